"""Saving checkpoints: atomically, and with the same bytes for the same content."""

import contextlib
import errno
import hashlib
import re
import secrets
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Literal

import numpy
import safetensors
import torch
from pydantic import JsonValue
from torch import Tensor

from models.architectures import ARCHITECTURES
from models.checkpoint.card import (
    CARD_FILE,
    DTYPES,
    MODEL_NAME,
    WEIGHTS_FILE,
    ArchitectureCard,
    Card,
    CentredNoise,
    CheckpointError,
    SamplingCard,
)
from models.checkpoint.weights import Modules, file_of
from models.conventions import TimeCard
from models.decoder import Decoder
from models.messages import explain
from models.network import Network
from models.noise import FREE_SCHEME, SCHEME
from models.prelude import Prelude
from models.regular import remove_stale, replacing, sync_folder
from models.shapes import FreeAxis, free_axes

_TRIES = 1000


def save(
    repository_root: Path | str,
    name: str,
    model: Network,
    decoder: Decoder,
    *,
    dataset: Mapping[str, JsonValue],
    training: Mapping[str, JsonValue],
    seed: int,
    version: int | None = None,
    dtype: torch.dtype | None = None,
    time: TimeCard | None = None,
    sampling: SamplingCard | None = None,
    compute: Literal["bfloat16", "float16"] | None = None,
    axes: Mapping[str, FreeAxis] | None = None,
    prelude: Prelude | None = None,
    centred: str | int | None = None,
    noise_independent: bool = True,
) -> Path:
    """Write a checkpoint; it appears under its final name complete and on disk, or not at all.

    Args:
        repository_root: the repository; created if it is missing.
        name: name of the model.
        model: a network of a registered architecture; its config is stored with it.
        decoder: turns its samples into data.
        dataset: what it was trained on.
        training: recipe and metrics; numbers must be finite.
        seed: seed of the training, in [0, 2^63).
        version: an unused version; None takes the next one, even while others save the same model.
        dtype: float32 or float64; None takes that of the model's weights, or float64 if it has none; a
            program states its own.
        time: the model's convention; None for Pathline's own.
        sampling: how it is sampled if a request does not say; None leaves that to the service.
        compute: half precision that the parameters are stored in and the model computes in; None for `dtype`.
        axes: the allowed sizes of the free axes of the model's states.
        prelude: makes some of the model's conditions from those of requests; None for none.
        centred: the axis of states along which the starting noise has the mean zero; None for none.
        noise_independent: whether it was trained on noise that is independent of the data.

    Returns:
        The folder `<repository_root>/<name>/<version>`.

    Raises:
        CheckpointError: a name or value is not allowed, the version exists, or writing fails.
    """
    root = Path(repository_root)
    if not re.fullmatch(MODEL_NAME, name):
        raise CheckpointError(
            f"name is {name!r}; use 1 to 64 letters, digits, '.', '_' or '-', starting with a letter or a digit"
        )
    if version is not None and version < 1:
        raise CheckpointError(f"version is {version}; it must be at least 1; leave it out to save as the next")
    if not isinstance(model, Network) or type(model.config) is not ARCHITECTURES.get(model.config.architecture):
        kind, names = type(model).__name__, ", ".join(ARCHITECTURES)
        raise CheckpointError(f"{kind} is not a registered architecture; use one of {names}")
    dtype = (torch.float32 if compute else _dtype(model)) if dtype is None else dtype
    tensors = _tensors(Modules(model, decoder, prelude, _nulls(model, prelude)), dtype, compute)
    sha256 = hashlib.sha256()
    for part in file_of(tensors):
        sha256.update(part)
    config, free = model.config.model_dump(mode="json", exclude={"architecture"}), free_axes(model.event_shape)
    content = {
        "architecture": ArchitectureCard(name=model.config.architecture, config=config),
        "dtype": "float32" if dtype == torch.float32 else "float64",
        "event_shape": model.event_shape,
        "data_shape": decoder.data_shape,
        "axes": dict(axes or {}),
        "noise": CentredNoise(centred=centred) if centred is not None else FREE_SCHEME if free else SCHEME,
        "time": time or TimeCard(),
        "field": model.field,
        "noise_independent": noise_independent,
        "sampling": sampling,
        "compute": compute,
        "conditions": {} if model.condition is None else dict(model.condition.entries),
        "prelude": None if prelude is None else prelude.card,
        "decoder": decoder.config,
        "dataset": dict(dataset),
        "training": dict(training),
        "seed": seed,
        "libraries": {m.__name__: str(m.__version__) for m in (numpy, safetensors, torch)},
        "weights_sha256": sha256.hexdigest(),
    }
    try:
        root.mkdir(parents=True, exist_ok=True)
        remove_stale(root.glob(".tmp-*"))
        for _ in range(_TRIES):
            number = _next_version(root / name) if version is None else version
            card = _card({"name": name, "version": number, **content})
            target = root / name / str(number)
            if _publish(root, target, {WEIGHTS_FILE: file_of(tensors), CARD_FILE: [card.to_json()]}):
                return target
            if version is not None:
                raise CheckpointError(f"{target}: already exists; leave version out to save as the next")
    except OSError as error:
        what = error.strerror or error
        raise CheckpointError(f"{root / name}: cannot be written: {what}; nothing was saved") from None
    raise CheckpointError(
        f"{root / name}: other processes took the next version in each of {_TRIES} tries; nothing was saved"
    )


def _card(fields: Mapping[str, Any]) -> Card:
    try:
        return Card.model_validate(fields).signed()
    except ValueError as error:
        raise CheckpointError(f"{CARD_FILE}: {explain(error)}") from None


def _dtype(model: Network) -> torch.dtype:
    if model.holds_program:  # its tensors have dtypes of their own
        return getattr(torch, model.config.dtype)
    kinds = {tensor.dtype for tensor in model.state_dict().values() if tensor.is_floating_point()} or {torch.float64}
    if len(kinds) > 1:
        raise CheckpointError(
            f"the model's weights have several dtypes, {', '.join(sorted(map(str, kinds)))}; convert them to one"
        )
    return kinds.pop()


def _nulls(model: Network, prelude: Prelude | None) -> dict[str, Tensor]:
    """Return the nulls of conditions that are stored."""
    takes = model.condition
    if takes is None:
        return {}
    entries = takes.entries if prelude is None else prelude.card.request_conditions(takes.entries)
    return {
        name: takes.stored[name].to(entry.torch_dtype).reshape(entry.sizes)
        for name, entry in entries.items()
        if entry.null == "stored"
    }


def _tensors(modules: Modules, dtype: torch.dtype, compute: str | None) -> dict[str, Tensor]:
    """Return all tensors by their keys in the file."""
    if dtype not in DTYPES.values():
        raise CheckpointError(f"dtype is {dtype}; a checkpoint stores torch.float32 or torch.float64")
    tensors = {key: tensor.cpu().contiguous() for key, tensor in modules.stored(dtype, compute).items()}
    try:
        modules.check_finite(tensors)
    except CheckpointError as error:
        raise CheckpointError(f"{error}; nothing was saved") from None
    return tensors


def _next_version(folder: Path) -> int:
    try:
        taken = [int(path.name) for path in folder.iterdir() if re.fullmatch("[1-9][0-9]*", path.name)]
    except FileNotFoundError:
        taken = []
    return max(taken, default=0) + 1


def _publish(root: Path, target: Path, files: Mapping[str, Iterable[bytes | memoryview]]) -> bool:
    """Write files into a temporary folder in `root`, then rename it to `target`.

    Libraries for atomic writes publish single files; a checkpoint is a folder.

    Args:
        root: an existing folder, on the same file system as the target.
        target: a folder two levels below `root`; its parent is created.
        files: name and content of each file, in parts.

    Returns:
        True if `target` is now this folder; False if the name was already taken, with nothing changed.

    Raises:
        OSError: writing fails; nothing is left behind.
    """
    # Not tempfile.mkdtemp: its folders are closed to other users, and a service often runs as another user.
    temporary = root / f".tmp-{target.parent.name}-{secrets.token_hex(8)}"
    temporary.mkdir()
    new_parent = False
    try:
        for name, content in files.items():
            with replacing(temporary / name) as file:
                file.writelines(content)
        with contextlib.suppress(FileExistsError):
            target.parent.mkdir()
            new_parent = True
        try:
            temporary.rename(target)
        except OSError as error:
            if error.errno in (errno.EEXIST, errno.ENOTEMPTY, errno.ENOTDIR):
                return False
            raise
        sync_folder(target.parent)
        sync_folder(root)
        return True
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
        if new_parent:
            with contextlib.suppress(OSError):  # it holds a version, as it should
                target.parent.rmdir()
