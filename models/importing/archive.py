"""The archive of a `torch.export` program (.pt2); only listed members are read, as JSON or as tensor bytes."""

import json
import math
import os
import re
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from models.checkpoint.weights import fill, finite
from models.importing.files import ForeignError
from models.program.steps import CAST_DTYPES

_MAJOR = 8  # the supported major version of torch.export's schema
_MAX_JSON = 64 << 20
_MAX_REPEATED = 1 << 22  # maximum number of elements in a tensor that repeats fewer stored ones
_TIED = 4  # how often the same weights may be used under several names, on average
_UNLIKELY = 1 << 48  # numbers of a tensor, if it were not empty
SCALAR_TYPES = {2: "int8", 1: "uint8", 3: "int16", 4: "int32", 5: "int64", 7: "float32", 8: "float64", 12: "bool"}
SCALAR_TYPES |= {6: "float16", 13: "bfloat16"}
"""Supported dtypes by their number in the schema."""
COMPLEX_TYPES = {10: "complex64", 11: "complex128"}
"""Dtypes of intermediate results and of constants, which are stored as pairs of real numbers."""
_OTHER_TYPES = {9: "complex32", 28: "uint16", 34: "uint32", 35: "uint64", 29: "float8_e4m3fn", 30: "float8_e5m2"}
_OTHER_TYPES |= {31: "float8_e4m3fnuz", 32: "float8_e5m2fnuz", 33: "float8_e8m0fnu"}


class Members:
    """The readable members of an archive, by path below its folder.

    Attributes:
        program: the description of the program.
    """

    def __init__(self, path: Path, archive: zipfile.ZipFile) -> None:
        self.path, self._archive = path, archive
        assert archive.fp is not None  # noqa: S101  (it is open)
        self._size = os.fstat(archive.fp.fileno()).st_size
        self._left = 8 * _MAX_REPEATED + _TIED * self._size  # bytes of tensors
        roots = {name.split("/", 1)[0] for name in archive.namelist() if name.endswith("/models/model.json")}
        if len(roots) != 1:
            raise ForeignError(f"{path}: holds {len(roots)} programs of torch.export; it must hold exactly one")
        self._root = roots.pop()
        self.program = self.json("models/model.json")
        major = self.program["schema_version"]["major"]
        if major != _MAJOR:
            raise ForeignError(f"{path}: has schema version {major}, expected {_MAJOR}; export with torch 2.8 or later")

    def _member(self, name: str, limit: int) -> zipfile.ZipInfo:
        """Return an entry of the archive; raise an error if it has more than `limit` bytes."""
        info = self._archive.getinfo(f"{self._root}/{name}")
        if info.compress_type != zipfile.ZIP_STORED or info.file_size > limit:
            raise ForeignError(f"{self.path}: {name} is compressed or has {info.file_size} bytes, over {limit}")
        return info

    def _numbers(self, name: str) -> Tensor:
        """Return the bytes of a member, which go straight into their tensor."""
        info = self._member(name, self._size)
        content = torch.empty(info.file_size, dtype=torch.uint8)
        with self._archive.open(info) as stream:
            fill(content, stream)
        return content

    def json(self, name: str) -> dict[str, Any]:
        """Read a member that is JSON."""
        return json.loads(self._archive.read(self._member(name, _MAX_JSON)))

    def tensor(self, folder: str, entry: Mapping[str, Any], name: str, masks: bool = False) -> Tensor:
        """Read a tensor from its plain bytes."""
        if entry["use_pickle"] is not False or not re.fullmatch(r"(weight|tensor)_\d+", entry["path_name"]):
            raise ForeignError(f"{self.path}: tensor {name} is pickled or not a plain file; it was not read")
        meta = entry["tensor_meta"]
        kind = (SCALAR_TYPES | COMPLEX_TYPES).get(meta["dtype"])
        if kind is None:
            raise ForeignError(
                f"{self.path}: tensor {name} is {_OTHER_TYPES.get(meta['dtype'], 'of an unknown type')}, which is not "
                "served; export in float32"
            )
        shape = [size["as_int"] for size in meta["sizes"]]
        strides = [stride["as_int"] for stride in meta["strides"]]
        offset = meta["storage_offset"]["as_int"]
        dtype = CAST_DTYPES[kind]
        numbers = math.prod(shape)
        if math.prod(max(1, size) for size in shape) >= _UNLIKELY:
            raise ForeignError(f"{self.path}: tensor {name} has shape {shape}, which no memory holds")
        flat = self._numbers(f"{folder}/{entry['path_name']}").view(dtype)
        last = offset + sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True))
        if min([offset, *shape, *strides], default=0) < 0 or (numbers and last >= len(flat)):
            raise ForeignError(f"{self.path}: tensor {name} of shape {shape} is larger than its {flat.nbytes} bytes")
        if numbers > max(len(flat), _MAX_REPEATED):
            raise ForeignError(
                f"{self.path}: tensor {name} of shape {shape} repeats the numbers of its {flat.nbytes} bytes; "
                "make it contiguous() before the export"
            )
        self._left -= numbers * dtype.itemsize
        if self._left < 0:
            raise ForeignError(
                f"{self.path}: its tensors repeat the numbers of the archive too often, up to {name} of shape {shape}; "
                "make them contiguous() before the export"
            )
        tensor = flat.as_strided(shape, strides, offset) if numbers else flat.new_zeros(shape)
        if not tensor.is_contiguous() or tensor.nbytes < flat.nbytes:
            tensor = tensor.clone(memory_format=torch.contiguous_format)
        if not finite(tensor, masks):
            raise ForeignError(f"{self.path}: tensor {name} holds numbers that are not finite")
        return tensor
