"""Writing checkpoints: whole or not at all, and the same bytes for the same content."""

import hashlib
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy
import safetensors
import safetensors.torch
import torch
from pydantic import JsonValue, ValidationError
from torch import Tensor, nn

from models.architectures import ArchitectureError, condition_of, event_shape_of, explain, name_of
from models.atomic import publish, remove_stale
from models.checkpoint.card import (
    CARD_FILE,
    DTYPES,
    MODEL_NAME,
    WEIGHTS_FILE,
    ArchitectureCard,
    Card,
    CheckpointError,
)
from models.conventions import TimeCard
from models.decoder import Decoder

_TRIES = 1000


def save(
    repository_root: Path | str,
    name: str,
    model: nn.Module,
    decoder: Decoder,
    *,
    dataset: Mapping[str, JsonValue],
    training: Mapping[str, JsonValue],
    seed: int,
    version: int | None = None,
    dtype: torch.dtype | None = None,
    time: TimeCard | None = None,
    row_by_row: bool = False,
) -> Path:
    """Write a checkpoint; it appears under its final name complete and on disk, or not at all.

    Args:
        repository_root: the repository; made if it is missing.
        name: name of the model.
        model: a module of a registered architecture; its config is stored with it.
        decoder: what turns its samples into data.
        dataset: what it was trained on.
        training: recipe and metrics; finite numbers only.
        seed: seed of the training, in [0, 2^63).
        version: an unused version; None takes the next one, also when others are saving the same model.
        dtype: float32 or float64; None takes that of the model's weights, float64 if it has none.
        time: the convention that the model follows; None is Pathline's own.
        row_by_row: whether each row is to be a call of its own (see `models.mixing`).

    Returns:
        The folder `<repository_root>/<name>/<version>`.

    Raises:
        CheckpointError: a name or value is not allowed, the version exists, or the disk refuses.
    """
    root = Path(repository_root)
    if not re.fullmatch(MODEL_NAME, name):
        raise CheckpointError(f"name is {name!r}; it needs 1 to 64 letters, digits, '.', '_' or '-', no dot first")
    if version is not None and version < 1:
        raise CheckpointError(f"version is {version}; it must be at least 1, or left out for the next")
    dtype = _dtype(model) if dtype is None else dtype
    weights = safetensors.torch.save(_tensors(model, decoder, dtype))
    try:
        root.mkdir(parents=True, exist_ok=True)
        remove_stale(root)
        for _ in range(_TRIES):
            number = _next_version(root / name) if version is None else version
            card = _card(
                name, number, model, decoder, dtype, dataset, training, seed, weights, time or TimeCard(), row_by_row
            )
            target = root / name / str(number)
            if publish(root, target, {WEIGHTS_FILE: weights, CARD_FILE: card.to_json()}):
                return target
            if version is not None:
                raise CheckpointError(f"{target}: already exists; leave version out to save as the next")
    except OSError as error:
        what = error.strerror or error
        raise CheckpointError(f"{root / name}: cannot be written: {what}; nothing was saved") from None
    raise CheckpointError(f"{root / name}: others took each version in {_TRIES} tries; nothing was saved")


def _card(
    name: str,
    version: int,
    model: nn.Module,
    decoder: Decoder,
    dtype: torch.dtype,
    dataset: Mapping[str, JsonValue],
    training: Mapping[str, JsonValue],
    seed: int,
    weights: bytes,
    time: TimeCard,
    row_by_row: bool,
) -> Card:
    """Describe a model; everything but the version is a function of what is saved."""
    try:
        architecture = name_of(model)
        config: Any = model.config
        card = Card(
            name=name,
            version=version,
            architecture=ArchitectureCard(name=architecture, config=config.model_dump(mode="json")),
            dtype="float32" if dtype == torch.float32 else "float64",
            event_shape=event_shape_of(model),
            data_shape=decoder.data_shape,
            time=time,
            row_by_row=row_by_row,
            condition=condition_of(model),
            decoder=decoder.config,
            dataset=dict(dataset),
            training=dict(training),
            seed=seed,
            libraries={m.__name__: str(m.__version__) for m in (numpy, safetensors, torch)},
            weights_sha256=hashlib.sha256(weights).hexdigest(),
        )
        return card.signed()
    except ValidationError as error:
        raise CheckpointError(f"{CARD_FILE}: {explain(error)}") from None
    except (ArchitectureError, ValueError) as error:
        raise CheckpointError(f"{CARD_FILE}: {error}") from None


def _dtype(model: nn.Module) -> torch.dtype:
    kinds = {tensor.dtype for tensor in model.state_dict().values() if tensor.is_floating_point()} or {torch.float64}
    if len(kinds) > 1:
        raise CheckpointError(f"the model's weights are of several types: {sorted(map(str, kinds))}")
    return kinds.pop()


def _tensors(model: nn.Module, decoder: Decoder, dtype: torch.dtype) -> dict[str, Tensor]:
    """All tensors by their key in the file, no two in the same memory; those that can stay as they are do."""
    if dtype not in DTYPES.values():
        raise CheckpointError(f"dtype is {dtype}; a checkpoint holds torch.float32 or torch.float64")
    tensors: dict[str, Tensor] = {}
    seen: set[int] = set()
    of_data = torch.float64 if decoder.config.dtype else dtype
    for prefix, module, kind in (("velocity", model, dtype), ("decoder", decoder, of_data)):
        for key, tensor in module.state_dict().items():
            stored = tensor.detach().to("cpu", kind if tensor.is_floating_point() else tensor.dtype).contiguous()
            if stored.untyped_storage().data_ptr() in seen:
                stored = stored.clone()
            seen.add(stored.untyped_storage().data_ptr())
            if not stored.isfinite().all():
                raise CheckpointError(f"key {prefix}.{key}: holds numbers that are not finite; nothing was saved")
            tensors[f"{prefix}.{key}"] = stored
    return tensors


def _next_version(folder: Path) -> int:
    try:
        taken = [int(path.name) for path in folder.iterdir() if re.fullmatch("[1-9][0-9]*", path.name)]
    except FileNotFoundError:
        taken = []
    return max(taken, default=0) + 1
