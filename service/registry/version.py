"""A loaded version of a model: the facts that requests read, and the leases that keep it in memory.

    with registry.lease("moons") as model:
        model.event_shape

A version is unloaded when the registry has retired it and its last lease is back.
"""

import logging
import math
import shlex
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, Protocol, Self

import torch

from engine.job import Priority, Sizes
from models.architectures import PROGRAM
from models.checkpoint.card import DTYPES, Card
from models.checkpoint.loading import Checkpoint
from models.checkpoint.plans import PlansError, read_plans
from models.compute import HALVES
from models.decoder import Decoder, Inverse
from models.forms.counts import RowCounts, RowFunction
from models.forms.rows import RowCaller, independent_rows
from models.named_conditions import NamedConditions
from models.noise import noise
from models.repository import Signature
from models.shapes import Shape, free_axes, sized
from selection.frontier import Frontier, FrontierFile
from service.ports import Pace
from solvers.tuned import TunedPlans

_DECODED_AT_ONCE = 128  # rows


@dataclass(frozen=True)
class PlansFile:
    """The tuned plans of a version, as last read; the file may change while the version is loaded.

    Attributes:
        plans: the plans; None without a usable file.
        fault: why an existing file cannot be used; empty otherwise.
        signature: signature of the file, which changes with it.
    """

    plans: TunedPlans | None = None
    fault: str = ""
    signature: Signature = ()

    @classmethod
    def read(cls, name: str, version: int, folder: Path, weights_sha256: str, signature: Signature) -> Self:
        """Read the file; a fault is logged and kept, as the model is served without its plans."""
        plans, fault = None, ""
        try:
            found = read_plans(folder, weights_sha256)
            plans = None if found is None else found.tuned()
        except PlansError as error:
            fault = str(error).replace(f"{folder}/", "")
            _log.warning("model %s version %d is served without its tuned plans: %s", name, version, fault)
        return cls(plans, fault, signature)

    def describe(self) -> dict[str, Any]:
        """Return the members of responses about the file."""
        return {"tuned": [] if self.plans is None else self.plans.texts, "tuned_fault": self.fault}


def _unmeasured(calls: float, work: float, rows: float, priority: Priority, sizes: Sizes = ()) -> float:
    """Seconds of a job if nothing was measured."""
    return 1e-3 * calls


_log = logging.getLogger("pathline")


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
        signature: the files it was loaded from.
        nulls: the stored nulls of named conditions.
        half: the half precision that its network computes in; None for full precision.
        plans_file: its tuned plans.
        frontier_file: the measured frontier of its solvers, if there is one.
        pace: see `Engine.pace`.
        sizes: sizes of the free axes for one request; empty without free axes, and in the version that all requests
            share.
        leases: the leases that keep it in memory.
    """

    name: str
    version: int
    digest: str
    card: Card
    decoder: Decoder
    decode: RowCaller
    deterministic: bool
    bytes: int = 0
    path: str = "eager"
    path_reason: str = ""
    row_limit: int = 0
    signature: Signature = ()
    nulls: Mapping[str, torch.Tensor] = field(default_factory=dict)
    half: Literal["bfloat16", "float16"] | None = None
    plans_file: PlansFile = PlansFile()
    frontier_file: FrontierFile | None = None
    pace: Pace = _unmeasured
    sizes: Sizes = ()
    leases: "Leases" = field(default_factory=lambda: Leases(lambda: None))

    def frontier(self) -> tuple[Frontier | None, str]:
        """Return the frontier now on disk, if any, and why an existing one cannot be used."""
        return (None, "") if self.frontier_file is None else self.frontier_file.now()

    def measured_by(self, models_dir: Path) -> str:
        """Return the command that measures the frontier, at the sizes of this request, or at N where it has none.

        Args:
            models_dir: the model repository, as configured.
        """
        sizes = dict.fromkeys(free_axes(self.card.event_shape), "N") | dict(self.sizes)
        shape = "".join(f" --shape {axis}={size}" for axis, size in sizes.items())
        return f"python -m models measure {shlex.quote(str(models_dir / self.name / str(self.version)))}{shape}"

    @property
    def never_measured(self) -> str:
        """Why the model cannot have a frontier, and what to do without; empty if it can."""
        if self.card.field.takes_ends:
            return (
                f"model {self.name!r} is a field of average velocity: it has no endpoint error, so no frontier; "
                "compare its samples with data (python -m training evaluate), and name a solver, such as euler-4"
            )
        if self.card.conditions and self.card.condition is None:
            return (
                f"model {self.name!r} takes conditions by name, and models that do have no frontier; name a solver, "
                "such as rk4-8"
            )
        return ""

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of states."""
        return DTYPES[self.card.dtype]

    @property
    def plans(self) -> TunedPlans | None:
        """The solvers tuned for it."""
        return self.plans_file.plans

    @property
    def compute(self) -> torch.dtype:
        """The dtype of its network's own arithmetic."""
        return self.dtype if self.half is None else HALVES[self.half]

    @property
    def data_dtype(self) -> torch.dtype:
        """The dtype of decoded samples."""
        return DTYPES[self.card.data_dtype]

    @property
    def conditioning(self) -> NamedConditions | None:
        """The conditions that requests give; None if it is unconditional."""
        takes = self.card.request_conditions
        return None if takes is None else replace(takes, stored=self.nulls)

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
    def decodes_in_engine(self) -> bool:
        """Whether its decoder is a program, which the engine runs in turn with the networks."""
        return self.card.decoder.program is not None

    @cached_property
    def inverse(self) -> tuple[RowCaller, float]:
        """The encoder, data (rows, *data_shape) -> states, and log abs det J of the decoder.

        Raises:
            InverseError: decoding cannot be undone.
        """
        inverse = Inverse(self.decoder)
        encode = _row_caller(inverse.encode, self.card.data_shape, self.data_dtype, seed=1)
        return encode, inverse.log_volume(self.event_shape)

    def describe(self) -> dict[str, Any]:
        """Return the members of ``GET /v1/models/{name}`` about this version."""
        card = self.card.model_dump(mode="json")
        if self.card.architecture.name == PROGRAM:  # readers do not need thousands of steps
            config = card["architecture"]["config"]
            config["steps"], config["tensors"] = len(config["steps"]), len(config["tensors"])
        if self.card.prelude is not None:
            card["prelude"]["program"] = self.card.prelude.program.brief()
        if self.card.decoder.program is not None:
            card["decoder"]["program"] = self.card.decoder.program.brief()
        return {
            "version": self.version,
            "checkpoint": self.digest,
            "deterministic": self.deterministic,
            "path": self.path,
            "path_reason": self.path_reason,
            "frontier": self.frontier()[0] is not None,
            **self.plans_file.describe(),
            "conditions": self._conditions(),
            "card": card,
        }

    def summary(self) -> dict[str, Any]:
        """Return the entry of this version in ``GET /v1/models``."""
        return {
            "version": self.version,
            "dtype": self.card.dtype,
            "event_shape": self.card.event_shape,
            "data_shape": self.card.data_shape,
            "axes": {name: {**dict(axis), "min": axis.smallest} for name, axis in self.card.bounds.items()},
            "deterministic": self.deterministic,
            "path": self.path,
            "compute": self.half or self.card.dtype,
            "field": self.card.field,
            "sampling": None if self.card.sampling is None else self.card.sampling.model_dump(),
            **self.plans_file.describe(),
            "conditions": self._conditions(),
        }

    def _conditions(self) -> dict[str, Any]:
        """The conditions that requests give, by name; a label or a vector is called `condition`."""
        takes = self.card.request_conditions
        return {} if takes is None else {name: takes.entries[name].model_dump(mode="json") for name in takes.given}

    @classmethod
    def of(
        cls,
        name: str,
        version: int,
        checkpoint: Checkpoint,
        deterministic: bool,
        path: str = "eager",
        path_reason: str = "",
        row_limit: int = 0,
        signature: Signature = (),
        plans_file: PlansFile = PlansFile(),
        free: Callable[[], None] = lambda: None,
        frontier_file: FrontierFile | None = None,
        pace: Pace | None = None,
    ) -> Self:
        """Make a version of a checkpoint that the engine has loaded.

        Args:
            name: name of the model.
            version: its version.
            checkpoint: the checkpoint. Its decoder is moved to the CPU, where results arrive, and padded so that a
                decoded sample does not depend on the number of samples; a decoder program stays in place, as the engine
                runs it.
            deterministic: whether the engine found the network deterministic.
            path, path_reason: how the engine evaluates it, and why it is `eager`.
            row_limit: see `ModelVersion`.
            signature: the files it was loaded from.
            free: frees the engine's memory, from any thread.
            plans_file, frontier_file, pace: see `ModelVersion`.
        """
        if checkpoint.decoder.program is None:
            checkpoint.decoder.cpu()
            decode = _row_caller(checkpoint.decoder.decode, checkpoint.card.event_shape, checkpoint.dtype)
        else:
            decode = RowCaller(checkpoint.decoder.decode, RowCounts(_DECODED_AT_ONCE))
        both = decode.counts.deterministic and deterministic
        modules = (checkpoint.velocity, checkpoint.decoder, checkpoint.prelude)
        size = sum(tensor.nbytes for each in modules if each is not None for tensor in each.state_dict().values())
        held = (checkpoint.digest, checkpoint.card, checkpoint.decoder, decode, both, size)
        return cls(
            name,
            version,
            *held,
            path,
            path_reason,
            row_limit,
            signature,
            checkpoint.nulls,
            checkpoint.half,
            plans_file,
            frontier_file,
            pace or _unmeasured,
            leases=Leases(free),
        )


def _row_caller(function: RowFunction, shape: Shape, dtype: torch.dtype, seed: int = 0) -> RowCaller:
    """Pad the calls of a decoder or its inverse, so that a row does not depend on the number of rows.

    With free axes, each element is computed by itself, and all row counts agree.
    """
    if free_axes(shape):
        return RowCaller(function, RowCounts(_DECODED_AT_ONCE))
    fixed = sized(shape, {})
    return independent_rows([function], lambda rows: (noise(seed, 0, rows, fixed, dtype),), _DECODED_AT_ONCE)


class Leases:
    """The leases of one loaded version: any thread takes and returns them, the registry retires the version.

    The lock is held for a few instructions, never while something is loaded or freed.

    Attributes:
        out: number of leases not yet returned.
        retired: whether the version is freed when the last one is returned.
        freed: whether it has been freed.
    """

    __slots__ = ("_free", "_lock", "freed", "out", "retired")

    def __init__(self, free: Callable[[], None]) -> None:
        self._free, self._lock = free, threading.Lock()
        self.out, self.retired, self.freed = 0, False, False

    def take(self, lease: "Lease") -> bool:
        """Count a lease; False if the version is gone, or the lease is already out."""
        with self._lock:
            if self.freed or lease.held:
                return False
            lease.held = True
            self.out += 1
            return True

    def give_back(self, lease: "Lease") -> None:
        """Stop counting a lease, once; the last one back frees a retired version."""
        with self._lock:
            if not lease.held:
                return
            lease.held = False
            self.out -= 1
            last = self.retired and self._ends()
        if last:
            self._free()

    def retire(self, if_idle: bool = False) -> bool:
        """Free the version now, or when the last lease is back; return whether it was retired.

        Args:
            if_idle: do nothing while leases are out.
        """
        with self._lock:
            if if_idle and self.out:
                return False
            self.retired = True
            last = self._ends()
        if last:
            self._free()
        return True

    def restore(self) -> bool:
        """Undo `retire`; False if the version is gone."""
        with self._lock:
            self.retired = False
            return not self.freed

    def _ends(self) -> bool:
        ends = not self.out and not self.freed
        self.freed = self.freed or ends
        return ends


class Lessor(Protocol):
    """The registry as a lease sees it: it fills leases."""

    def fill(self, lease: "Lease") -> bool:
        """Fill a lease with a version in memory; False if it must be loaded first."""
        ...

    def load(self, lease: "Lease") -> None:
        """Fill a lease, loading the version first; this blocks, so do not call it on the event loop."""
        ...

    async def load_async(self, lease: "Lease") -> None:
        """Like `load`, but off the event loop and within the lease's deadline."""
        ...


class Lease:
    """The right to use one loaded version until it is returned; a request holds one until its response is out.

    `Registry.lease` makes it empty; `acquire`, ``with`` or ``async with`` fill it. `release` returns it; further calls
    do nothing. A lease dropped without being returned is logged, and its version stays in memory, so that unloading
    never depends on garbage collection.

    Attributes:
        name, version: the requested model and version; None for the current one.
        deadline: end of the wait for loading, in `time.monotonic`.
        model: the leased version.
        fallback_from: the version that should have answered but cannot be loaded; usually None.
        held: whether it holds a version.
    """

    __slots__ = ("_lessor", "deadline", "fallback_from", "held", "model", "name", "version")
    model: ModelVersion

    def __init__(self, lessor: Lessor, name: str, version: int | None, deadline: float = math.inf) -> None:
        self._lessor, self.name, self.version, self.deadline = lessor, name, version, deadline
        self.fallback_from: int | None = None
        self.held = False

    async def acquire(self) -> ModelVersion:
        """Fill the lease, loading the version off the event loop if needed.

        Raises:
            ProblemError: 404, 429, 503 or 504.
        """
        if not self._lessor.fill(self):
            await self._lessor.load_async(self)
        return self.model

    def fill_now(self) -> bool:
        """Fill the lease with a version in memory; False if it would have to be loaded."""
        return self._lessor.fill(self)

    def take(self, model: ModelVersion, fallback_from: int | None = None) -> bool:
        """Hold a version; False if it is already unloaded."""
        if not model.leases.take(self):
            return False
        self.model, self.fallback_from = model, fallback_from
        return True

    def release(self) -> None:
        """Return the lease, from any thread."""
        if self.held:
            self.model.leases.give_back(self)

    def __enter__(self) -> ModelVersion:
        if not self._lessor.fill(self):
            self._lessor.load(self)
        return self.model

    def __exit__(self, *_: object) -> None:
        self.release()

    async def __aenter__(self) -> ModelVersion:
        return await self.acquire()

    async def __aexit__(self, *_: object) -> None:
        self.release()

    def __del__(self) -> None:
        if self.held:
            message = "a lease of model %s version %d was dropped without being returned; the version stays in memory"
            _log.error(message, self.model.name, self.model.version)
