"""Replay tokens: short texts with the request and the environment of an answer, enough to draw it again.

A token is ``plr1.`` and the base64url of deflated JSON. It is data and is never trusted: its content is validated like
any request. Long members (many start states, a condition for each sample) and conditions by name are stored only as a
hash and must be sent again.
"""

from __future__ import annotations

import binascii
import hashlib
import platform
import zlib
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from importlib.metadata import version
from typing import Annotated, Any, Literal

import numpy as np
import orjson
import torch
from llvmlite import binding
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field

from engine.job import Job
from models.conditions import ONE, numbers_are_names
from models.forms.onnx import installed
from models.guidance import document_of
from models.named_conditions import Distinct
from service import VERSION
from service.registry.version import ModelVersion

PREFIX = "plr1."
MAX_CHARACTERS = 8_192
"""Limit on the length of a token, which must fit into a header."""

_HASHED = ("conditions", "negative")
"""Members that a token holds only as a hash."""

MAX_NUMBERS = 64
"""Limit on the numbers of an array; larger ones are stored as a hash."""

_MAX_BYTES = 1 << 16  # of JSON, whatever the deflated text claims
_UNPREDICTABLE = ("deadline", "cancelled")

HASH = r"^sha256:[0-9a-f]{64}$"


class TokenError(ValueError):
    """The text is not a token, or is damaged."""


class Token(BaseModel):
    """The content of a token.

    Attributes:
        model, version, checkpoint: name, version and checkpoint digest of the model.
        plan: hash of the tuned plan, if the solver is one.
        solver, t_span: the solver as text (without the grid if that is in `given`), and its span.
        seed, first_index, num_samples, noise_scale: the samples, as in a request.
        condition, guidance, x0, save_at: as in a request, or None.
        shape: sizes of the free axes, by name.
        given: hashes of members that are too long for a token; the client sends them again.
        decode, trace: as in a request.
        partial: whether the time limit cut the answer short, which cannot be repeated.
        environment: see `environment`.
        digest: hash of the bytes of the samples.
    """

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)

    model: str
    version: int
    checkpoint: str = Field(pattern=HASH)
    plan: str | None = Field(default=None, pattern=HASH)
    solver: str
    t_span: tuple[float, float] = Field(default=(0.0, 1.0), strict=False)
    seed: int
    first_index: int = 0
    noise_scale: float = 1.0
    num_samples: int
    condition: Any = None
    guidance: Any = None
    x0: Any = None
    save_at: Any = None
    shape: dict[str, int] = {}
    given: dict[Literal["condition", "conditions", "negative", "x0", "grid", "save_at"], str] = {}
    decode: bool = True
    trace: Literal["none", "summary", "full"] = "summary"
    partial: bool = False
    environment: Annotated[dict[str, Annotated[str, Field(max_length=200)]], Field(max_length=32)]
    digest: str = Field(pattern=HASH)

    def request(self) -> dict[str, Any]:
        """Return the members of the token's request, without those in `given`."""
        names = ("model", "version", "solver", "t_span", "seed", "first_index", "num_samples", "decode", "trace")
        names = (*names, "noise_scale")
        optional = ("condition", "guidance", "x0", "save_at")
        members = {name: getattr(self, name) for name in optional if getattr(self, name) is not None}
        if self.shape:
            members["shape"] = self.shape
        return {name: getattr(self, name) for name in names} | members


def digest_of(array: NDArray[Any]) -> str:
    """Return the hash of an array's bytes in C order."""
    return f"sha256:{hashlib.sha256(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data).hexdigest()}"


def arrays_of(job: Job) -> dict[str, NDArray[Any]]:
    """Return the arrays of a job by their member in a request; equal conditions are one row."""
    found: dict[str, NDArray[Any]] = {}
    if job.conditions is not None and ONE in job.conditions:
        rows = job.conditions[ONE].expanded(job.num_samples).numpy()
        found["condition"] = np.asarray(rows[0]) if (rows == rows[:1]).all() else rows
    elif job.conditions is not None:
        found["conditions"] = _hash_of(job.conditions)
    if job.negative is not None:
        found["negative"] = _hash_of(job.negative)
    if job.x0 is not None:
        found["x0"] = job.x0.numpy()
    if not job.solve.adaptive and not isinstance(job.solve.spec.grid, str) and job.solve.times is not None:
        found["grid"] = job.solve.times
    if job.save_at is not None:
        found["save_at"] = job.save_at
    return found


def _hash_of(conditions: Mapping[str, Distinct]) -> NDArray[np.uint8]:
    """Return the hash of all named conditions, which replaces arrays too large for a token."""
    found = hashlib.sha256()
    for name in sorted(conditions):
        each = conditions[name]
        index = np.zeros(1, dtype=np.int64) if each.index is None else each.index
        found.update(f"{name} {each.rows.dtype} {tuple(each.rows.shape[1:])}".encode())
        flat = each.rows.contiguous().as_strided((each.rows.numel(),), (1,))  # a single number may have stride 0
        found.update(flat.view(torch.uint8).numpy().data)
        found.update(index.data)
    return np.frombuffer(found.digest(), dtype=np.uint8)


def token_of(
    model: ModelVersion,
    job: Job,
    decode: bool,
    status: str,
    environment: Mapping[str, str],
    digest: str,
) -> str:
    """Return the token of an answer.

    Args:
        model: the model that gave the answer.
        job: the job of the request.
        decode: whether the samples are data, not states.
        status: the status of the answer.
        environment: the environment of this process.
        digest: hash of the samples.
    """
    spec, arrays = job.solve.spec, arrays_of(job)
    given = {name: digest_of(array) for name, array in arrays.items() if array.size > MAX_NUMBERS or name in _HASHED}
    if "condition" in arrays and arrays["condition"].dtype.kind == "f":  # standardised, so not as it came
        given["condition"] = digest_of(arrays["condition"])
    if "grid" in given:
        spec = replace(spec, grid="uniform")
    content = {
        "model": model.name,
        "version": model.version,
        "checkpoint": model.digest,
        "solver": str(spec),
        "seed": job.seed,
        "num_samples": job.num_samples,
        "environment": environment_of(environment, model),
        "digest": digest,
    }
    values = {name: array.tolist() for name, array in arrays.items() if name not in given and name != "grid"}
    takes = model.conditioning
    if "condition" in values and takes is not None and numbers_are_names(takes.entries[ONE].names):
        values["condition"] = takes.class_names(job.conditions or {})[ONE]
    usual = {
        "plan": (job.solve.tuned or None, None),
        "t_span": (job.solve.t_span, (0.0, 1.0)),
        "first_index": (job.first_index, 0),
        "noise_scale": (job.noise_scale, 1.0),
        "guidance": (document_of(job.guidance, _droppable(model, job)), None),
        "shape": (dict(job.sizes), {}),
        "given": (given, {}),
        "decode": (decode, True),
        "trace": (job.trace, "summary"),
        "partial": (status in _UNPREDICTABLE, False),
    }
    return encode(content | values | {name: value for name, (value, default) in usual.items() if value != default})


def _droppable(model: ModelVersion, job: Job) -> tuple[str, ...]:
    return () if model.conditioning is None else model.conditioning.droppable(job.negative or ())


def encode(content: Mapping[str, Any]) -> str:
    """Return the text of a token with this content."""
    # The usual window of 32 KiB is wasted on half a kilobyte, and clearing it takes eight times as long as the rest.
    packer = zlib.compressobj(6, zlib.DEFLATED, wbits=10, memLevel=4)
    deflated = packer.compress(orjson.dumps(content)) + packer.flush()
    return PREFIX + urlsafe_b64encode(deflated).rstrip(b"=").decode()


def decode(text: str) -> bytes:
    """Return the JSON of a token, of at most 64 KiB whatever its deflated bytes claim.

    Raises:
        TokenError: the text is not a token, or is incomplete.
    """
    text = text.strip()
    if not text.startswith(PREFIX):
        raise TokenError(f"it does not begin with {PREFIX}; send the member 'replay' of an answer")
    if len(text) > MAX_CHARACTERS:
        raise TokenError(
            f"it has {len(text)} characters, and a token has at most {MAX_CHARACTERS}; copy only the token"
        )
    body = text.removeprefix(PREFIX)
    reader = zlib.decompressobj()
    try:
        deflated = urlsafe_b64decode(body.encode("ascii") + b"=" * (-len(body) % 4))
        content = reader.decompress(deflated, _MAX_BYTES)
    except (binascii.Error, UnicodeEncodeError, zlib.error):
        raise TokenError("it is damaged; copy all of it") from None
    if not reader.eof or reader.unused_data or urlsafe_b64encode(deflated).rstrip(b"=").decode() != body:
        raise TokenError("it is cut off or too long; copy all of it")
    return content


LIBRARIES = ("torch", "numpy", "scipy", "numba", "llvmlite")
"""Libraries used to compute networks, noise and steps."""

_REASONS = {
    "pathline": "another release may add in a different order",
    "device": "other devices have other kernels",
    "machine": "kernels are chosen and compiled for the type of processor",
    "compute": "the network computes in another precision",
    "path": "the fused network, onnxruntime and the torch module round differently",
    "rows": "kernels are chosen by the number of rows in a call",
    "threads": "torch kernels split sums by the number of threads",
}
_LIBRARY = "another version may have other kernels"


@dataclass(frozen=True)
class Difference:
    """One difference between a token and this service.

    Attributes:
        what: name of the property.
        token, here: its value in the token, and in this service.
        reason: why the bits cannot be promised.
    """

    what: str
    token: str
    here: str
    reason: str

    def document(self) -> dict[str, str]:
        """Return the difference as responses show it."""
        return {"what": self.what, "token": self.token, "here": self.here, "reason": self.reason}

    def __str__(self) -> str:
        token, here = (text[:19] if text.startswith("sha256:") else text for text in (self.token, self.here))
        return f"{self.what} (token: {token}; here: {here}; {self.reason})"


def environment_of(process: Mapping[str, str], model: ModelVersion) -> Mapping[str, str]:
    """Return the environment of a model's answers: that of the process, and how the network is evaluated."""
    half = {} if model.card.compute is None else {"compute": model.half or model.card.dtype}
    runtime = installed() if model.path == "onnx" else {}
    rows = {} if model.path == "fused" else {"rows": str(model.row_limit)}  # fused rows are computed one by one
    return {**process, "path": model.path, **rows, **runtime, **half}


@lru_cache(maxsize=4)
def environment(device: str, device_name: str, threads: int) -> Mapping[str, str]:
    """Return the environment of this process by name: release, libraries, device, machine, threads.

    Args:
        device: torch's name for the device; the index among identical devices does not matter.
        device_name: the vendor's name for it.
        threads: CPU threads of the networks.
    """
    kind = device.partition(":")[0]
    cpu = f"{platform.machine()} {binding.get_host_cpu_name()} {torch.backends.cpu.get_cpu_capability()}"
    return {
        "pathline": VERSION,
        **{name: str(torch.__version__) if name == "torch" else version(name) for name in LIBRARIES},
        "device": kind if kind == "cpu" else f"{kind} {device_name}",
        "machine": cpu,
        "threads": str(threads),
    }


def differences(token: Mapping[str, str], here: Mapping[str, str], threads_matter: bool) -> list[Difference]:
    """Return where two environments differ.

    Args:
        token, here: the environment of the answer, and of this process.
        threads_matter: whether torch computed anything, as its bits depend on the number of threads.
    """
    return [
        Difference(name, token.get(name, "not named"), here[name], _REASONS.get(name, _LIBRARY))
        for name in here
        if token.get(name) != here[name] and (name != "threads" or threads_matter)
    ]
