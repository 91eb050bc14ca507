"""A loaded version of a model: the facts that requests read, and how it is loaded from its checkpoint."""

import contextlib
import logging
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Literal, Self

import torch
from torch import Tensor

from engine.engine import Engine
from engine.job import Priority, Sizes
from models.architectures import PROGRAM
from models.checkpoint.bound import BoundFileError, read_report
from models.checkpoint.card import DTYPES, Card, CheckpointError, read_card
from models.checkpoint.loading import load
from models.compute import HALVES, missing_instructions
from models.conditions import NamedConditions
from models.decoder import Decoder, Inverse
from models.forms.rows import RowCaller, RowFunction, independent_rows, most_rows
from models.noise import noise
from models.repository import Signature
from models.shapes import Shape, free_axes, sized
from selection.frontier import FrontierFile
from service.settings import Settings
from solvers.tuned import TunedPlans

_DECODED_AT_ONCE = 128  # rows

Pace = Callable[[float, float, float, Priority, Sizes], float]
"""Seconds of a job of one version by its calls, work, rows, priority and sizes: see `Engine.pace`."""

_log = logging.getLogger("pathline")


class Leases:
    """The leases of one loaded version, which any thread takes and returns; the last one back frees the version.

    The first one is that of the registry, as long as it lends the version. The lock is never held while something is
    loaded.

    Attributes:
        out: number of leases not yet returned.
        freed: whether all were returned.
        used: time of the last request for it, by the registry's clock.
    """

    __slots__ = ("_free", "_lock", "freed", "out", "used")

    def __init__(self, free: Callable[[], None]) -> None:
        self._free, self._lock = free, threading.Lock()
        self.out, self.freed, self.used = 1, False, 0.0

    def take(self) -> bool:
        """Count a lease; False if the version is gone."""
        with self._lock:
            self.out += not self.freed
            return not self.freed

    def give_back(self) -> None:
        """Stop counting a lease."""
        with self._lock:
            self.out -= 1
            self.freed = last = not self.out
        if last:
            self._free()


@dataclass(frozen=True, eq=False)
class ModelVersion:
    """A version that answers requests.

    Attributes:
        name, version: its place in the repository.
        digest: hash of its card and weights.
        card: description of the checkpoint.
        decoder: turns states into data.
        decode: decodes states (rows, *event_shape) on the CPU, each row computed from its own state alone.
        deterministic: whether a sample's bits depend only on checkpoint, solver, seed and index.
        bytes: size of its tensors.
        path: how its network is evaluated: `fused`, `onnx` or `eager`.
        path_reason: why it is `eager`; empty if it is not.
        row_limit: the most rows of one network call.
        nulls: the stored nulls of named conditions.
        half: the half precision that its network computes in; None for full precision.
        frontier_file: the measured frontier of its solvers.
        pace: see `Engine.pace`.
        leases: the leases that keep it in memory.
        plans: the solvers tuned for it, as last read: their file may change; None without a usable file.
        plans_fault: why an existing file cannot be used; empty otherwise.
        plans_signature: signature of the file, which changes with it.
        sizes: sizes of the free axes for one request; empty without free axes, and in the version that all requests
            share.
    """

    name: str
    version: int
    digest: str
    card: Card
    decoder: Decoder
    decode: RowCaller
    deterministic: bool
    bytes: int
    path: str
    path_reason: str
    row_limit: int
    nulls: Mapping[str, torch.Tensor]
    half: Literal["bfloat16", "float16"] | None
    frontier_file: FrontierFile
    pace: Pace
    leases: Leases
    plans: TunedPlans | None = None
    plans_fault: str = ""
    plans_signature: Signature = ()
    sizes: Sizes = ()

    def with_plans(self, plans: TunedPlans | None, fault: str, signature: Signature) -> Self:
        """With tuned plans that were read; a fault is logged, as the model is served without them."""
        fault = fault.replace(f"{self.frontier_file.folder}/", "")
        if fault:
            _log.warning("model %s version %d is served without its tuned plans: %s", self.name, self.version, fault)
        return replace(self, plans=plans, plans_fault=fault, plans_signature=signature)

    @property
    def no_path(self) -> str:
        """Why its steps follow no path; empty if they do."""
        return self.card.field.no_path and f"model {self.name!r} {self.card.field.no_path}"

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of states."""
        return DTYPES[self.card.dtype]

    @property
    def compute(self) -> torch.dtype:
        """The dtype of its network's own arithmetic."""
        return self.dtype if self.half is None else HALVES[self.half]

    @property
    def data_dtype(self) -> torch.dtype:
        """The dtype of decoded samples."""
        return DTYPES[self.card.data_dtype]

    @property
    def request_conditions(self) -> NamedConditions | None:
        """The conditions that requests give; None if it is unconditional."""
        conditions = self.card.request_conditions
        return None if conditions is None else replace(conditions, stored=self.nulls)

    @property
    def event_shape(self) -> tuple[int, ...]:
        """The shape of one state; a ShapeError if an axis is free and has no size."""
        return self.card.event_of(dict(self.sizes))

    @property
    def data_shape(self) -> tuple[int, ...]:
        """The shape of one decoded sample; a ShapeError if an axis is free and has no size."""
        return self.card.data_of(dict(self.sizes))

    def of_sizes(self, sizes: Mapping[str, int]) -> Self:
        """The same version, as one request sees it, with these sizes of its free axes."""
        return replace(self, sizes=tuple(sorted(sizes.items()))) if sizes else self

    @property
    def plain(self) -> bool:
        """Whether states are data already, so that decoding changes nothing."""
        decoder = self.card.decoder
        return decoder.reshapes_only and decoder.event_shape == decoder.data_shape

    @property
    def numberwise(self) -> bool:
        """Whether each number of data is made of one number of the state."""
        return self.card.decoder.kind in ("identity", "affine")

    @property
    def decodes_in_engine(self) -> bool:
        """Whether its decoder is a program, which the engine runs in turn with the networks."""
        return self.card.decoder.program is not None

    @cached_property
    def inverse(self) -> tuple[RowCaller, Callable[[torch.Tensor], torch.Tensor]]:
        """The encoder, data (rows, *data_shape) -> states, and log abs det J of the decoder there, (rows,).

        Raises:
            InverseError: decoding cannot be undone.
        """
        inverse = Inverse(self.decoder)
        encode = _row_caller(self.decoder, inverse.encode, self.card.data_shape, self.data_dtype, seed=1)
        return encode, inverse.log_volume

    def describe(self) -> dict[str, Any]:
        """Return what `GET /v1/models` and `GET /v1/models/{name}` tell about this version.

        A label or a vector is the condition called `condition`.
        """
        card, conditions = self.card.model_dump(mode="json"), self.card.request_conditions
        if self.card.architecture.name == PROGRAM:  # readers do not need thousands of steps
            config = card["architecture"]["config"]
            config["steps"], config["tensors"] = len(config["steps"]), len(config["tensors"])
        if self.card.prelude is not None:
            card["prelude"]["program"] = self.card.prelude.program.brief()
        if self.card.decoder.program is not None:
            card["decoder"]["program"] = self.card.decoder.program.brief()
        entries = {} if conditions is None else {name: conditions.entries[name] for name in conditions.in_requests}
        return {
            "version": self.version,
            "checkpoint": self.digest,
            "dtype": self.card.dtype,
            "event_shape": self.card.event_shape,
            "data_shape": self.card.data_shape,
            "axes": {name: {**dict(axis), "min": axis.smallest} for name, axis in self.card.bounds.items()},
            "deterministic": self.deterministic,
            "path": self.path,
            "path_reason": self.path_reason,
            "compute": self.half or self.card.dtype,
            "field": self.card.field,
            "sampling": None if self.card.sampling is None else self.card.sampling.model_dump(),
            "conditions": {name: entry.model_dump(mode="json") for name, entry in entries.items()},
            "tuned": [] if self.plans is None else self.plans.texts,
            "tuned_fault": self.plans_fault,
            **self.measured(),
            "card": card,
        }

    def measured(self) -> dict[str, Any]:
        """Return what is measured after a model is published, as it is on disk now.

        That is whether there is a frontier, the report on the quality of samples in words, and examples of real data.
        """
        parts: dict[str, Any] = {}
        with contextlib.suppress(BoundFileError):
            parts = read_report(self.frontier_file.folder, self.card)
        report = parts.get("report")
        return {
            "frontier": self.frontier_file.now()[0] is not None,
            "report": report.get("words", []) if isinstance(report, dict) else [],
            "examples": parts.get("examples", []),
        }


def load_version(
    engine: Engine, settings: Settings, name: str, version: int, folder: Path, plans_signature: Signature = ()
) -> ModelVersion:
    """Load and verify a checkpoint and pass it to the engine.

    Its decoder is moved to the CPU, where results arrive, and padded so that a decoded sample does not depend on the
    number of samples; a decoder program stays in place, as the engine runs it.

    Args:
        engine: evaluates the network.
        settings: whether it may be an imported program, and the precision of the network.
        name, version: name and version in requests.
        folder: the checkpoint.
        plans_signature: signature of the file of tuned plans.

    Raises:
        CheckpointError: the checkpoint is damaged, or a program where none is allowed. Errors of its network pass
            through.
    """
    if not settings.allow_programs and read_card(folder).runs_programs:
        raise CheckpointError(f"{name}/{version}: is a program; set PATHLINE_ALLOW_PROGRAMS=true to serve it")
    checkpoint = load(folder, engine.device, settings.compute)
    card, decoder = checkpoint.card, checkpoint.decoder
    if slow := missing_instructions(str(checkpoint.half), engine.device, card.architecture.name == PROGRAM):
        _log.warning("model %s version %d computes in %s: %s", name, version, checkpoint.half, slow)
    if decoder.program is None:
        decode = _row_caller(decoder, decoder.cpu().decode, card.event_shape, checkpoint.dtype)
    else:
        decode = RowCaller(decoder.decode, _DECODED_AT_ONCE)
    arena = engine.load(name, version, checkpoint)  # last: if something failed after it, nothing would free it
    modules = (checkpoint.velocity, decoder, checkpoint.prelude)
    tensors = [tensor for module in modules if module is not None for tensor in module.state_dict().values()]
    loaded = ModelVersion(
        name,
        version,
        checkpoint.digest,
        card,
        decoder,
        decode,
        decode.deterministic and arena.deterministic,
        sum(tensor.nbytes for tensor in tensors),
        arena.form.path,
        arena.form.reason,
        arena.row_limit,
        checkpoint.nulls,
        checkpoint.half,
        FrontierFile(folder, card),
        partial(engine.pace, name, version),
        Leases(lambda: engine.unload(arena)),
    )
    return loaded.with_plans(checkpoint.plans, checkpoint.plans_fault, plans_signature)


def _row_caller(decoder: Decoder, function: RowFunction, shape: Shape, dtype: torch.dtype, seed: int = 0) -> RowCaller:
    """Return calls of a decoder or its inverse in which a row does not depend on the number of rows.

    Where each number is computed by itself, all row counts agree, and nothing is tested.
    """
    if free_axes(shape):
        return RowCaller(function, _DECODED_AT_ONCE)
    fixed = sized(shape, {})

    def trial(rows: int) -> tuple[Tensor, ...]:
        return (noise(seed, 0, rows, fixed, dtype),)

    if decoder.config.kind in ("identity", "affine"):
        return RowCaller(function, most_rows(function, trial, _DECODED_AT_ONCE))
    return independent_rows([function], trial, _DECODED_AT_ONCE)
