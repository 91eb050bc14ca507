"""Request bodies as pydantic models: the fields that all requests to solve share, and the body of a sample request."""

from collections.abc import Callable
from typing import Annotated, Any, Literal, Self, TypeVar

from pydantic import (
    BaseModel,
    ConfigDict,
    Discriminator,
    Field,
    Tag,
    WithJsonSchema,
    WrapValidator,
    create_model,
    model_validator,
)

from models.guidance import MAX_TERMS
from service.requests.tensors import INTEGER_LIMIT, Tensor, array_too
from solvers import catalogue
from solvers.grids import GRIDS
from solvers.known_values import MAX_WEIGHT
from solvers.spec import DEFAULTS, MAX_RESAMPLE

DRAWN_BITS = 53
"""Bits of a seed that the service draws: a double holds it exactly, and JavaScript and jq read numbers as doubles."""

WHOLE = (0.0, 1.0)
"""The times at which models are defined, from noise to data."""

Count = Annotated[int, Field(ge=1, lt=INTEGER_LIMIT)]
Index = Annotated[int, Field(ge=0, lt=INTEGER_LIMIT)]
Finite = Annotated[float, Field(allow_inf_nan=False)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Times = Annotated[tuple[Finite, ...], Field(strict=False, min_length=1, fail_fast=True)]

SOLVER_FIELDS = tuple(name for name in DEFAULTS if name not in ("t_span", "resample"))
"""Fields that are also fields of a `SolverSpec`: the solver and its settings."""

SINGLE = "single"
"""Marks a field that is for one request; a bulk job, which is many requests, cannot have it."""

ECHOED = "echoed"
"""Marks a field that a response repeats where it is not the default, for a replay; a `Job` has it under this name."""

HASHED = "hashed"
"""Marks a field of which a response may have only the hash; for a replay it is sent again."""

Version = Annotated[Count | None, SINGLE, Field(description="version of the model; the highest if omitted")]

# What OpenAPI shows of fields that are checked with the model.
_ARRAY: dict[str, Any] = {"type": "array", "items": {}}
_OBJECT: dict[str, Any] = {"type": "object"}
_SIZES: dict[str, Any] = _OBJECT | {"additionalProperties": {"type": "integer", "minimum": 1}}
_GRID = WithJsonSchema({"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "number"}}, _OBJECT]})


def _optional(kind: dict[str, Any]) -> WithJsonSchema:
    return WithJsonSchema({"anyOf": [kind, {"type": "null"}]})


SOLVER = "name of a solver, see /v1/solvers, or text with its settings, like rk4-20"
_NAMES = f"one of {', '.join(sorted(catalogue.solvers()))}"
SOLVER_SCHEMA = {
    "description": f"{SOLVER}; {_NAMES}",
    "examples": ["dopri5", "dopri5@1e-5", "rk4-20", "ab3-12/shift(3)"],
}
"""What OpenAPI shows: programs that are written from the description alone do not name the solvers."""


Model = TypeVar("Model", bound=BaseModel)


class Body(BaseModel):
    """A request body. Numbers are never read from strings, and unknown fields are refused.

    The texts below fields describe them in OpenAPI, for the SDK and on the page.
    """

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True, use_attribute_docstrings=True)


class TermRequest(Body):
    """One velocity of guidance: with all conditions, with none, without some, or with some of its own."""

    weight: Finite
    """weight of this velocity; all weights sum to 1"""
    condition: Literal["all", "null"] | None = None
    """all conditions, or none"""
    drop: list[str] | None = Field(default=None, min_length=1, max_length=64)
    """conditions that are dropped"""
    conditions: Annotated[Any, _optional(_OBJECT)] = None
    """conditions of this velocity alone, by name, in place of those of the request: for all samples"""


class GuidanceRequest(Body):
    """Guidance of several terms, or with an interval of t."""

    terms: list[TermRequest] | None = Field(default=None, min_length=1, max_length=MAX_TERMS)
    """velocities that are summed; one network row each"""
    strength: Finite | None = None
    """instead of terms: strength of the usual two terms"""
    interval: Annotated[tuple[Finite, Finite], Field(strict=False)] | None = None
    """times between which there is guidance; outside them, all conditions apply"""
    projection: bool = False
    """multiply the other velocities so that they are nearest to that with all conditions"""
    rescale: Annotated[float, Field(ge=0, le=1)] = 0.0
    """how far velocities get the standard deviation of that with all conditions: 0 to 1"""


def _object_or_not(value: Any) -> str:
    return "{}" if isinstance(value, dict | Body) else ""


AnyGuidance = Annotated[
    Annotated[Finite, Tag("")] | Annotated[GuidanceRequest, Tag("{}")], Discriminator(_object_or_not)
]
"""A number or an object; the tags stay out of error messages."""


class DiffusionRequest(Body):
    """The noise of a stochastic solver, sqrt(w) dW in dx = [v + w/2 score] dt + sqrt(w) dW."""

    scale: Annotated[float, Field(ge=0, le=100)] = 1.0
    """factor of sqrt(w); with 0 the steps are those of the ODE solver"""
    schedule: Literal["linear", "flow_grpo", "constant"] = "linear"
    """w by time: scale^2 (1 - t); scale^2 (1 - t) / t, bounded at 0.05; or scale^2, falling to 0 from t = 0.95 on"""
    temperature: Annotated[float, Field(ge=0, le=100)] = 1.0
    """factor of the noise alone: below 1 for more typical samples"""


AnyDiffusion = Annotated[
    Annotated[str, Tag("")] | Annotated[DiffusionRequest, Tag("{}")], Discriminator(_object_or_not)
]
"""Text or an object."""


class KnownRequest(Body):
    """Numbers of the samples that are known."""

    values: Annotated[Any, WithJsonSchema(_ARRAY)] = Field(
        description="shape of one sample, or (num_samples, *shape); data, or states without decode or with a decoder "
        "that mixes numbers. Where the mask is 0 they do not matter"
    )
    mask: Annotated[Any, WithJsonSchema(_ARRAY)] = Field(
        description="1 where a number is known, 0 where it is sampled; in mode guided also weights between. It "
        "broadcasts to the shape of the values"
    )
    mode: Literal["replace", "guided"] = Field(
        default="replace",
        description="replace: known numbers are set after each step, and exact at the end. guided: the velocity of all "
        "numbers is corrected, which costs three network rows and fits the rest better",
    )
    max_weight: Positive = MAX_WEIGHT
    """largest factor of the correction of mode guided"""
    resample: Annotated[int, Field(ge=1, le=MAX_RESAMPLE)] = 1
    """how often each fixed step is made, with new noise before it is repeated; mode replace"""


class Named(Body):
    """The model, named in the body."""

    model: Annotated[str, SINGLE] = Field(min_length=1, max_length=200)
    """name of the model"""
    version: Version = None  # as in `Subject`; here it comes after the model


class Drawn(Body):
    """Samples of a seed."""

    num_samples: Annotated[Count, SINGLE] = 256
    """number of samples"""
    seed: Annotated[Index | None, SINGLE] = None
    """an integer in [0, 2**63); drawn below 2**53 and echoed if omitted"""
    first_index: Annotated[Index, SINGLE] = 0
    """index of the first sample in the seed's stream"""


Conditions = Annotated[Any, _optional(_OBJECT), Tensor(named=True), HASHED]
TimeLimit = Annotated[Positive | None, SINGLE, Field(description="time limit in seconds, queueing included")]
_YIELDS = "yields to interactive requests, which take most of the time"
Urgency = Annotated[Literal["interactive", "bulk"], SINGLE, Field(description=f"bulk {_YIELDS}")]
Background = Annotated[Urgency, Field(description=f"bulk (the default) {_YIELDS}")]
"""The urgency of requests that measure a model rather than draw samples."""
NoiseScale = Annotated[
    float,
    ECHOED,
    Field(ge=0, le=1000, description="factor of the starting noise, its temperature: below 1 for more typical samples"),
]


class Subject(Body):
    """Which paths to solve for: the model's version, conditions, guidance and sizes; and how long, and how urgently."""

    version: Version = None
    condition: Annotated[Any, Tensor(), HASHED] = None
    """class label or vector of a conditional model: one for all samples, or a list of them"""
    conditions: Conditions = None
    """conditions of the model by name: one value for all samples, or a list of them"""
    negative: Conditions = None
    """conditions that replace the nulls in guidance, by name"""
    shape: Annotated[Any, _optional(_SIZES), ECHOED] = None
    """size of each free axis of the samples, by name, unless it follows from a condition"""
    guidance: Annotated[AnyGuidance | None, HASHED] = None
    """strength of classifier-free guidance, or its terms, interval, projection and rescale"""
    timeout_s: TimeLimit = None
    priority: Urgency = "interactive"


class Solving(Subject):
    """How to solve: ``steps`` asks for fixed steps, ``rtol`` / ``atol`` for error control."""

    solver: str = Field(default="dopri5", description=SOLVER, json_schema_extra=SOLVER_SCHEMA)
    steps: Count | None = None
    """number of fixed steps"""
    rtol: Positive | None = None
    """relative tolerance: the error allowed in a step, as a fraction of the state's size"""
    atol: Positive | None = None
    """absolute tolerance: the error allowed in a step where the state is close to 0"""
    grid: Annotated[Any, _GRID, Tensor(axes=1)] = Field(
        default="uniform",
        description=f"how fixed steps are spaced: a name ({', '.join(GRIDS)}), an object with the name and its "
        "parameters, or a list of times",
    )
    start: str | None = None
    """how a multistep method begins: with lower orders (ramp) or Runge-Kutta steps (rk)"""
    diffusion: AnyDiffusion | None = None
    """noise of a stochastic solver: an object, or text like flow_grpo(0.7), the schedule with its scale"""
    error_control: Annotated[str, SINGLE] = "sample"
    """sample: each sample has its own step sizes; batch: all share them"""
    controller: str | None = None
    """rule that turns the error of a step into the size of the next: paper, i or pi"""
    first_step: Positive | None = None
    """size of the first step of error control; automatic by default"""
    max_step: Positive | None = None
    """longest step under error control, in units of t; unbounded by default"""
    max_nfe: Count = 10_000
    """maximum velocity evaluations of a sample"""


class Paths(Solving, Drawn):
    """Paths to solve for: from the noise of a seed, or from start states."""

    x0: Annotated[Any, _optional(_ARRAY), Tensor(), SINGLE, HASHED] = None
    """start states instead of noise, shape (num_samples, *event_shape)"""


class BudgetBody(Body):
    """Limits on the cost or error of a request, given instead of a solver; the service chooses one."""

    max_error: Positive | None = None
    """endpoint error that 95 % of samples end within, as a share of the spread: 0.01 is 1 %"""
    max_nfe: Count | None = None
    """maximum velocity evaluations of a sample"""
    max_ms: Positive | None = None
    """maximum milliseconds of solving at the service's current pace, without queueing"""

    @model_validator(mode="after")
    def _check_any_limit(self) -> Self:
        if self.max_error is None and self.max_nfe is None and self.max_ms is None:
            raise ValueError("needs max_error, max_nfe or max_ms, or several of them")
        return self


class SampleRequest(Paths, Named):
    """Body of ``POST /v1/sample``: the model, the samples of a seed, and how to solve for them."""

    known: Annotated[KnownRequest | None, Tensor(named=True), HASHED] = None
    """numbers of the samples that are known: values, mask and mode"""
    noise_scale: NoiseScale = 1.0
    start_time: Annotated[Finite | None, ECHOED] = Field(
        default=None,
        description="time of the first call as the network counts it, such as step 801 or a sigma, with the noise that "
        "its authors start from there; that of its card if omitted",
    )
    t_span: Annotated[
        tuple[Finite, Finite], Field(strict=False), WrapValidator(array_too), Tensor(axes=1), SINGLE, ECHOED
    ] = WHOLE
    """where to start and end; noise is at 0, data at 1"""
    trace: Annotated[Literal["none", "summary", "full"], SINGLE, ECHOED] = "summary"
    """how much to report about the steps"""
    save_at: Annotated[Times | None, WrapValidator(array_too), Tensor(axes=1), SINGLE] = None
    """times at which to report the states, too"""
    log_prob: Annotated[bool, SINGLE, ECHOED] = False
    """also report the log-density of each step of each sample, with the solver sde"""
    decode: Annotated[bool, ECHOED] = True
    """turn latent states into data"""
    budget: Annotated[BudgetBody | None, SINGLE] = None
    """instead of a solver: the service chooses one"""
    on_timeout: Annotated[Literal["error", "partial"], SINGLE] = "error"
    """at the time limit: fail, or return the states reached"""

    @property
    def saved_times(self) -> int:
        """The number of times at which to report the states."""
        return 0 if self.save_at is None else len(self.save_at)


def marked(mark: str) -> tuple[str, ...]:
    """Return the fields of a request for samples that have a mark."""
    return tuple(name for name, field in SampleRequest.model_fields.items() if mark in field.metadata)


def with_fields(*names: str, about: str | None = None) -> Callable[[type[Model]], type[Model]]:
    """Return a decorator that adds fields of a request for samples to a schema; none of them is required.

    Args:
        names: of the fields.
        about: a text about each, in place of its own.
    """

    def extended(schema: type[Model]) -> type[Model]:
        fields: dict[str, Any] = {}
        for name in names:
            field = SampleRequest.model_fields[name]
            kind: Any = Annotated[field.annotation, *field.metadata]
            tensors = [mark for mark in field.metadata if isinstance(mark, Tensor)]  # inside `kind` they are not seen
            fields[name] = Annotated[kind | None, *tensors, Field(description=about or field.description)], None
        kept = {"__module__": schema.__module__, "__doc__": schema.__doc__}
        return create_model(schema.__name__, __base__=schema, **kept, **fields)

    return extended
