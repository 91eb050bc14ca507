"""The card of a checkpoint, `card.json`: its fields, and reading and checking it."""

import json
import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from io import BufferedReader
from pathlib import Path
from typing import Annotated, Literal, Self

import torch
from pydantic import Field, JsonValue, ValidationError, field_validator, model_validator

from models.conditions import NamedCondition, NamedConditions
from models.conventions import TimeCard
from models.decoder import DecoderConfig
from models.frozen import Frozen, Sparse, json_bytes, own_sha256
from models.messages import explain
from models.noise import CENTRED_SCHEME, FREE_SCHEME, SCHEME
from models.prelude import PreludeCard
from models.program import PROGRAM
from models.regular import NotRegular, open_regular
from models.scheduler import Chain, FlowMatchEuler
from models.shapes import NAME, AxisName, DataSize, FreeAxis, check_axes, free_axes, sized, typical
from models.velocity import FieldKind
from solvers.errors import SolverError
from solvers.plan import compile  # noqa: A004
from solvers.spec import SolverSpec, read_solver

CARD_FILE = "card.json"
WEIGHTS_FILE = "weights.safetensors"
MODEL_NAME = r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}"
"""The names that a model may have: a name is a folder and part of a URL."""

DTYPES: dict[str, torch.dtype] = {"float32": torch.float32, "float64": torch.float64}

MAX_CONDITIONS = 64
MAX_AXES = 16
_UNWRITTEN = ("conditions", "prelude", "sampling", "compute", "axes", "field", "noise_independent")
"""Fields that are not written while they have their defaults, so that releases without them can read the card."""

ConditionName = Annotated[str, Field(pattern=NAME)]
_INDENT = 2
_MAX_CARD_BYTES = 16 << 20
_MAX_STATE = 1 << 22
_MAX_CONDITIONS = 1 << 23


class CheckpointError(Exception):
    """A checkpoint cannot be written, read or trusted; the message names the file, the key and the fault."""


class UnreadableCheckpoint(CheckpointError):  # noqa: N818  (a kind of it, named for what it says)
    """A checkpoint cannot be read now, for reasons outside it: the disk, permissions, open files, memory."""


class ArchitectureCard(Frozen):
    """The name of an architecture (see `models.architectures`) and its config."""

    name: str
    config: dict[str, JsonValue]


class CentredNoise(Frozen):
    """Starting noise for equivariant networks: its mean along one axis of the state is zero.

    Attributes:
        centred: the free axis by name, or the place of a fixed one.
    """

    centred: AxisName | Annotated[int, Field(ge=0, strict=True)]


class SamplingCard(Sparse):
    """How a network is sampled if a request does not say: its authors' settings.

    Attributes:
        solver: a solver with its steps or tolerance and its grid, as text (see `solvers.spec`): `euler-28/shift(3)`.
        scheduler: makes the grid, from the number of steps and the shape of a request; the text of the solver then has
            none. None is not written.
    """

    unwritten = ("scheduler",)

    solver: str = Field(max_length=1 << 16)
    scheduler: FlowMatchEuler | Chain | None = Field(default=None, discriminator="kind")

    @model_validator(mode="after")
    def _one_grid(self) -> Self:
        if self.scheduler is not None and "grid" in read_solver(self.solver):
            raise ValueError(f"{self.solver} has a grid, and so has the scheduler; give one of them")
        if self.scheduler is not None:
            try:
                SolverSpec.of(self.solver, grid="shift(3)")
            except SolverError as error:
                raise ValueError(f"a scheduler needs a solver with a grid, such as euler-28: {error}") from None
        return self

    @property
    def steps(self) -> int | None:
        """The number of steps; None under error control."""
        return SolverSpec.parse(self.solver).steps

    @field_validator("solver")
    @classmethod
    def checked(cls, text: str) -> str:
        """Return the text of a solver in its usual form; raise a SolverError if it is not one."""
        spec = SolverSpec.parse(text)
        if not spec.tuned:  # only the loaded model knows whether it has that solver
            compile(spec)
        return str(spec)


class Card(Frozen):
    """The card of a checkpoint.

    Attributes:
        format: version of this format.
        name: name the checkpoint was saved under.
        version: version it was saved as.
        architecture: the network that the weights are for.
        dtype: dtype of the states it takes, and of its weights.
        compute: half precision of the weights and of the network's own arithmetic (see `models.compute`); None, which
            is not written, means `dtype`.
        event_shape: shape of one sample of the flow; a name is a free axis (see `models.shapes`).
        data_shape: shape of one decoded sample; sizes may follow from free axes.
        axes: the allowed sizes of free axes, of samples and, if they have bounds other than a largest size, of
            conditions; not written if there are none.
        conditions: what the network is conditioned on, by name (see `models.conditions`); empty, which is not
            written, if it is unconditional.
        prelude: makes some of the conditions from others, once per request; None, which is not written, if all of them
            come from requests.
        time: the network's convention of time, noise and prediction (see `models.conventions`).
        sampling: how it is sampled if a request does not say; None, which is not written, leaves that to the service.
        field: what the network returns and which times it takes; a plain velocity is not written.
        decoder: how samples become data.
        dataset: what the network was trained on.
        training: the training recipe and its metrics.
        noise_independent: whether it was trained on noise that is independent of the data; False, which alone is
            written, after a coupling of the two, a reflow or the like.
        noise: scheme of the starting noise (see `models.noise`): one for states of fixed shape, one for free axes, or
            the axis along which its mean is zero.
        seed: seed of the training.
        libraries: versions of the libraries that wrote the checkpoint.
        weights_sha256: SHA-256 of the weights file, 64 hexadecimal digits.
        card_sha256: SHA-256 of this card without this field, so that damage is noticed; None, as in a card written by
            hand, is not checked.
    """

    format: Literal[1] = 1
    name: str = Field(pattern=f"^{MODEL_NAME}$")
    version: int = Field(ge=1)
    architecture: ArchitectureCard
    dtype: Literal["float32", "float64"]
    compute: Literal["bfloat16", "float16"] | None = None
    event_shape: tuple[int | AxisName, ...]
    data_shape: tuple[int | DataSize, ...]
    axes: dict[AxisName, FreeAxis] = Field(default_factory=dict, max_length=MAX_AXES)
    conditions: dict[ConditionName, NamedCondition] = Field(default_factory=dict, max_length=MAX_CONDITIONS)
    prelude: PreludeCard | None = None
    time: TimeCard = TimeCard()
    field: FieldKind = FieldKind.VELOCITY
    sampling: SamplingCard | None = None
    decoder: DecoderConfig
    dataset: dict[str, JsonValue]
    training: dict[str, JsonValue]
    noise_independent: bool = True
    noise: Literal["philox-ndtri-v1", "philox-ndtri-free-v1"] | CentredNoise = SCHEME
    seed: int = Field(ge=0, lt=1 << 63)
    libraries: dict[str, str]
    weights_sha256: str = Field(pattern=r"^[0-9a-f]{64}$")
    card_sha256: str | None = Field(default=None, pattern=r"^[0-9a-f]{64}$")

    @model_validator(mode="after")
    def _parts_agree(self) -> Self:
        NamedConditions(self.conditions).check_entries()
        if self.prelude is not None:
            self.prelude.request_conditions(self.conditions)
        if self.compute is not None and self.dtype != "float32":
            raise ValueError(f"compute is {self.compute}, with states of {self.dtype}; they must be float32")
        if self.field.takes_ends and not self.time.straight:
            raise ValueError("a field of average velocity needs the straight path, but time has another convention")
        if self.sampling is not None and (
            why := self.field.check_solver(SolverSpec.parse(self.sampling.solver).solver)
        ):
            raise ValueError(f"sampling: {why}")
        for name in ("event_shape", "data_shape"):
            mine, decoders = getattr(self, name), getattr(self.decoder, name)
            if mine != decoders:
                raise ValueError(f"{name} is {list(mine)}, but that of the decoder is {list(decoders)}")
        return self

    @model_validator(mode="after")
    def _axes_fit(self) -> Self:
        mine = free_axes(self.event_shape)
        check_axes({"event_shape": self.event_shape, "data_shape": self.data_shape}, self.axes)
        if unused := sorted(set(self.axes) - {*mine, *self._condition_axes}):
            raise ValueError(f"axes has {unused[0]!r}, which no shape has")
        for name, entry in self.conditions.items():
            for axis in entry.free:
                if axis in self.axes and entry.max[axis] != self.axes[axis].max:
                    raise ValueError(
                        f"the max of {axis} is {entry.max[axis]} in condition {name!r}, but {self.axes[axis].max} in "
                        "axes"
                    )
        if self.sampling is not None and self.sampling.scheduler is not None:
            self.sampling.scheduler.check(self.time, self.event_shape, self.axes)
            self.authors_solver(self.typical)
            if (start := self.start_time()) is not None:
                raise ValueError(f"the steps of the scheduler start at {start:g}; time must start there, too")
        needed = FREE_SCHEME if mine else SCHEME
        if isinstance(self.noise, CentredNoise):
            axes = [*range(len(self.event_shape)), *mine]
            if self.noise.centred not in axes:
                raise ValueError(
                    f"noise is centred on {self.noise.centred!r}; the axes are {', '.join(map(str, axes))}"
                )
        elif self.noise != needed:
            raise ValueError(f"noise is {self.noise}, but the event_shape {list(self.event_shape)} needs {needed}")
        return self

    @model_validator(mode="after")
    def _rows_fit_into_memory(self) -> Self:
        """Loading a checkpoint evaluates a few rows, however small its files are."""
        takes = self.network_conditions
        entries = () if takes is None else takes.sized(self.typical).entries.values()
        conditions = sum(math.prod(entry.sizes) for entry in entries)
        for what, numbers, most in (
            ("a state", math.prod(self.event_of(self.typical)), _MAX_STATE),
            ("the conditions of a sample", conditions, _MAX_CONDITIONS),
        ):
            if numbers > most:
                raise ValueError(f"{what} would have {numbers} numbers at typical sizes; at most {most} are served")
        return self

    @property
    def noise_scheme(self) -> str:
        """The name of the scheme of the starting noise."""
        return CENTRED_SCHEME if isinstance(self.noise, CentredNoise) else self.noise

    @property
    def centred(self) -> int | None:
        """The place of the axis along which states have the mean zero; None if there is none."""
        axis = self.noise.centred if isinstance(self.noise, CentredNoise) else None
        return self.event_shape.index(axis) if isinstance(axis, str) else axis

    @property
    def bounds(self) -> dict[str, FreeAxis]:
        """The allowed sizes of each free axis, of states and of conditions."""
        return {**self._condition_axes, **self.axes}

    @property
    def _condition_axes(self) -> dict[str, FreeAxis]:
        """The free axes of conditions."""
        axes: dict[str, FreeAxis] = {}
        for takes in (self.network_conditions, self.request_conditions):
            axes |= {} if takes is None else takes.axes
        return axes

    def authors_solver(self, sizes: Mapping[str, int], steps: int | None = None) -> str | None:
        """The text of the authors' solver for a state with these sizes of its free axes; None if the card has none.

        Args:
            sizes: the sizes.
            steps: another number of steps than the card's, for a solver whose grid a scheduler makes.

        Raises:
            ValueError: the scheduler has no grid with that many steps.
        """
        sampling = self.sampling
        if sampling is None or sampling.scheduler is None:
            return None if sampling is None else sampling.solver
        steps = sampling.steps if steps is None else steps
        assert steps is not None  # noqa: S101  (a scheduler needs fixed steps)
        times = sampling.scheduler.times(steps, self.time, self.event_shape, sizes)
        own = {"steps": steps, "grid": times, "t_span": (times[0], times[-1])}
        return str(SolverSpec(**(read_solver(sampling.solver) | own)))

    def start_time(self, steps: int | None = None) -> float | None:
        """The network's own time at which the scheduler starts its steps, or others; None for that of `time`."""
        if self.sampling is None or not isinstance(self.sampling.scheduler, Chain):
            return None
        return self.sampling.scheduler.start_time(steps or self.sampling.steps or 1, self.time)

    @property
    def no_score(self) -> str:
        """Why the score of its path, if it has one, does not follow from its velocity; empty if it does."""
        if not self.noise_independent:
            return "was trained on noise that depends on the data (`noise_independent` of its card)"
        if (self.time.first_state, self.time.last_state) != ((0.0, 1.0), (1.0, 0.0)):
            return "starts from states that are not standard normal noise, or ends before data (`time` of its card)"
        return ""

    @property
    def typical(self) -> dict[str, int]:
        """A small size for each free axis, for trying the network."""
        return typical(self.bounds)

    def event_of(self, sizes: Mapping[str, int] | None = None) -> tuple[int, ...]:
        """Return the shape of one sample of the flow, given the sizes of free axes.

        Raises:
            ShapeError: one is missing.
        """
        return sized(self.event_shape, sizes or {})

    def data_of(self, sizes: Mapping[str, int] | None = None) -> tuple[int, ...]:
        """Return the shape of one decoded sample; errors as for `event_of`."""
        return sized(self.data_shape, sizes or {})

    @property
    def network_conditions(self) -> NamedConditions | None:
        """What the network is conditioned on, without the nulls in the weights file; None if it is unconditional."""
        return NamedConditions(self.conditions, bounds=self.axes) if self.conditions else None

    @property
    def condition(self) -> NamedCondition | None:
        """The label or vector that is its only condition, of which there are examples; None for any others."""
        entry = None if self.network_conditions is None or self.prelude is not None else self.network_conditions.single
        return entry if entry is not None and not entry.free and len(entry.shape) < 2 else None

    @property
    def request_conditions(self) -> NamedConditions | None:
        """The conditions that requests give: those of the network, unless a prelude makes some of them from others."""
        if self.prelude is None:
            return self.network_conditions
        return NamedConditions(self.prelude.request_conditions(self.conditions), bounds=self.axes)

    @property
    def runs_programs(self) -> bool:
        """Whether it contains an imported program, which a service serves only if a setting allows it."""
        return self.architecture.name == PROGRAM or self.prelude is not None or self.decoder.program is not None

    @property
    def data_dtype(self) -> Literal["float32", "float64"]:
        """The dtype of decoded samples."""
        return self.decoder.dtype or self.dtype

    def to_json(self) -> bytes:
        """Return the bytes of `card.json`; equal cards give equal bytes.

        Raises:
            ValueError: a number is not finite, which JSON cannot represent.
        """
        return json_bytes(self._fields(), _INDENT)

    def signed(self) -> Self:
        """Return the same card with its `card_sha256`; raise a ValueError as `to_json` does."""
        return self.model_copy(update={"card_sha256": own_sha256(self._fields(), "card_sha256", _INDENT)})

    def _fields(self) -> dict[str, JsonValue]:
        return self.model_dump(mode="json", exclude=self.with_defaults(_UNWRITTEN))


@contextmanager
def opened_file(path: Path) -> Iterator[BufferedReader]:
    """Open a file of a checkpoint; errors of reading it, also within the block, are those of the checkpoint.

    Raises:
        CheckpointError: it is missing or not a regular file; an UnreadableCheckpoint if it cannot be read now.
    """
    try:
        with open_regular(path) as file:
            yield file
    except (FileNotFoundError, NotADirectoryError):
        raise CheckpointError(f"{path}: is missing{_explain_missing(path)}") from None
    except NotRegular as error:
        raise CheckpointError(f"{path}: cannot be read: {error.strerror}") from None
    except OSError as error:
        raise UnreadableCheckpoint(f"{path}: cannot be read: {error.strerror or error}") from None


def read_card(folder: Path) -> Card:
    """Read and check the card of a checkpoint folder; its `card_sha256` is filled in if the file has none.

    Raises:
        CheckpointError: there is no card, it is not JSON, or a field is missing, unknown or not allowed; an
            UnreadableCheckpoint if reading fails.
    """
    path = folder / CARD_FILE
    with opened_file(path) as file:
        content = file.read(_MAX_CARD_BYTES + 1)
    if len(content) > _MAX_CARD_BYTES:
        raise CheckpointError(f"{path}: is larger than {_MAX_CARD_BYTES} bytes, the limit for a card")
    try:
        card = Card.model_validate_json(content)
        expected = own_sha256(json.loads(content), "card_sha256", _INDENT)
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{path}: {_fault(error)}") from None
    if card.card_sha256 not in (None, expected):
        raise CheckpointError(
            f"{path}: is damaged or was edited: card_sha256 found {card.card_sha256}, expected {expected}; "
            "if it was edited on purpose, remove the field"
        )
    return card.model_copy(update={"card_sha256": expected})


def _fault(error: ValueError | RecursionError) -> str:
    """Describe the fault of a card. A file that is not a card is never quoted, as it may contain secrets."""
    if not isinstance(error, ValidationError):
        return str(error)
    faults = error.errors(include_url=False, include_context=False, include_input=False)
    missing = [str(fault["loc"][0]) for fault in faults if fault["type"] == "missing" and len(fault["loc"]) == 1]
    if missing:
        return f"is not a card: lacks {', '.join(missing)}"
    if any(not fault["loc"] and fault["type"] != "value_error" for fault in faults):
        return f"is not a card: {faults[0]['msg']}"
    return explain(error)


def is_pickle(path: Path) -> bool:
    """Whether a file is a pickle by its name; pickles are never read."""
    return path.suffix.lower() in {".pt", ".pth", ".pkl", ".pickle", ".ckpt", ".bin", ".joblib"}


def _explain_missing(file: Path) -> str:
    """Say what the folder of a missing file contains, if that explains why it is missing."""
    try:
        names = sorted(path.name for path in file.parent.iterdir())
    except OSError:
        return "; the folder is missing or cannot be read"
    pickles = [name for name in names if is_pickle(Path(name))]
    if pickles:
        return f"; found {pickles[0]}: pickles can run code and are never read, save as safetensors instead"
    return f"; the folder contains {', '.join(names[:5]) or 'nothing'}"
