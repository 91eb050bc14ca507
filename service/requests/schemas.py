"""The bodies of the HTTP interface as pydantic models.

The request is parsed with its model. Answers are built and encoded by hand: their models are for the OpenAPI
description, and tests hold the answers to them.
"""

import time
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, PrivateAttr, WithJsonSchema

from solvers import catalogue

SEED_LIMIT = 2**63

Finite = Annotated[float, Field(allow_inf_nan=False)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]

_GRID_SCHEMA = {
    "description": "time grid of fixed steps: a name, a name with its parameter, or explicit times",
    "anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "number"}}, {"type": "object"}],
}
X0_SCHEMA = {
    "description": "start states, shape (num_samples, *event_shape)",
    "anyOf": [{"type": "array", "items": {}}, {"type": "null"}],
}


def name_solvers(schema: dict[str, Any]) -> None:
    """Put the names of all solvers into the schema of a member."""
    schema["enum"] = sorted(catalogue.solvers())


class Body(BaseModel):
    """What a request says. Numbers are never read from strings, and unknown fields are refused."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)


class Named(Body):
    """The model, in the body."""

    model: str = Field(min_length=1, max_length=200, description="name of the model")
    version: int | None = Field(default=None, ge=1, description="version of the model; the highest where left out")


class Drawn(Body):
    """Samples of a seed."""

    num_samples: int = Field(default=256, ge=1, description="how many samples")
    seed: int | None = Field(
        default=None, ge=0, lt=SEED_LIMIT, description="an integer in [0, 2**63); drawn and echoed where left out"
    )
    first_index: int = Field(
        default=0, ge=0, lt=SEED_LIMIT, description="index of the first sample in the seed's stream"
    )


class Solving(Body):
    """How to solve: ``steps`` asks for fixed steps, ``rtol`` / ``atol`` for error control."""

    solver: str = Field(default="dopri5", description="name from /v1/solvers", json_schema_extra=name_solvers)
    steps: int | None = Field(default=None, ge=1, description="number of fixed steps")
    rtol: Positive | None = Field(default=None, description="relative tolerance of error control")
    atol: Positive | None = Field(default=None, description="absolute tolerance of error control")
    grid: Annotated[Any, WithJsonSchema(_GRID_SCHEMA)] = "uniform"
    start: str | None = Field(default=None, description="start of a multistep method: ramp or rk")
    error_control: str = Field(
        default="sample", description="sample: each sample has its own steps; batch: all share them"
    )
    controller: str | None = Field(default=None, description="step-size controller: paper, i or pi")
    first_step: Positive | None = Field(default=None, description="size of the first step; automatic where left out")
    max_step: Positive | None = Field(
        default=None, description="longest step under error control, in units of t; unbounded by default"
    )
    max_nfe: int = Field(default=10_000, ge=1, description="most velocity evaluations of a sample")
    condition: Any = Field(
        default=None, description="class label or vector of a conditional model: one for all samples, or a list of them"
    )
    guidance: Finite | None = Field(default=None, description="strength of classifier-free guidance")
    timeout_s: Positive | None = Field(default=None, description="time limit in seconds, waiting included")
    priority: Literal["interactive", "bulk"] = Field(
        default="interactive", description="bulk yields to interactive requests, which take most of the time"
    )
    _came: float = PrivateAttr(default_factory=time.monotonic)

    @property
    def came(self) -> float:
        """When the request was read, in `time.monotonic`: its time limit counts from then, loading included."""
        return self._came


class SampleRequest(Solving, Drawn, Named):
    """Body of ``POST /v1/sample``: which model, how many samples of which seed, and how to solve for them."""

    x0: Annotated[Any, WithJsonSchema(X0_SCHEMA)] = None
    t_span: Annotated[tuple[Finite, Finite], Field(strict=False)] = Field(
        default=(0.0, 1.0), description="where to start and end; noise is at 0, data at 1"
    )
    trace: Literal["none", "summary", "full"] = Field(
        default="summary", description="how much to report about the steps"
    )
    save_at: Annotated[tuple[Finite, ...], Field(strict=False, min_length=1, fail_fast=True)] | None = Field(
        default=None, description="times at which to report the states, too"
    )
    decode: bool = Field(default=True, description="turn latent states into data")
    on_timeout: Literal["error", "partial"] = Field(default="error", description="what to answer at the time limit")


class Solver(BaseModel):
    """The solver as it was used: its name and every parameter that belongs to it."""

    model_config = ConfigDict(extra="allow")
    name: str


class NfePerSample(BaseModel):
    """Velocity evaluations of the samples."""

    min: int
    mean: float
    max: int


class FailedSample(BaseModel):
    """A sample that did not reach the end: its row, why, and the t it reached."""

    index: int
    status: str
    t: float | None


class TraceBody(BaseModel):
    """Attempted steps, one entry each; `quantiles` (of h over t) only in an adaptive summary."""

    sample: list[int]
    t: list[float | None]
    h: list[float | None]
    error: list[float | None]
    accepted: list[bool]
    quantiles: dict[str, list[float | None]] | None = None


class Saved(BaseModel):
    """States on the way: `states[i][j]` is sample i at time `t[j]`; null where it was not reached."""

    t: list[float]
    states: list[list[Any]]


class Latency(BaseModel):
    """Seconds: waiting, solving, in the network, encoding the answer, and all together."""

    queue_s: float
    solve_s: float
    network_s: float
    encode_s: float
    total_s: float


class Solved(BaseModel):
    """What every operation answers: the model, the solver as it was used, and what it cost."""

    model_config = ConfigDict(extra="forbid")

    model: str
    version: int
    checkpoint: str
    deterministic: bool
    fallback_from: int | None = Field(
        default=None, description="the version that should have answered but cannot be loaded; otherwise left out"
    )
    solver: Solver
    shape: list[int]
    nfe: int = Field(description="sequential velocity evaluations of the slowest sample")
    nfe_per_sample: NfePerSample
    network_rows: int = Field(description="rows of all network calls made for this request")
    status: str
    failed: list[FailedSample]
    latency: Latency


class SampleResponse(Solved):
    """Answer of ``POST /v1/sample``. A sample whose state is not finite is a null row."""

    seed: int
    first_index: int
    noise: str
    samples: list[Any]
    saved: Saved | None = None
    trace: TraceBody | None = None


class Fault(BaseModel):
    """One field that is not allowed as it is, and why."""

    field: str
    message: str


class ProblemBody(BaseModel):
    """An error answer (RFC 9457, ``application/problem+json``)."""

    model_config = ConfigDict(extra="allow")

    type: str
    title: str
    status: int
    detail: str
    request_id: str
    errors: list[Fault] | None = Field(default=None, description="the fields at fault, the first 20")
    more_errors: int | None = Field(default=None, description="how many faults are not listed")


class ModelSummary(BaseModel):
    """One line of ``GET /v1/models``."""

    name: str
    status: Literal["served", "loading", "unavailable"]
    fallback_from: int | None = Field(
        default=None, description="the version that should answer but cannot be loaded; an older one answers instead"
    )
    loaded: bool = Field(description="whether it is in memory; otherwise a request loads it")
    version: int | None
    dtype: str | None
    event_shape: list[int] | None
    data_shape: list[int] | None
    deterministic: bool | None
    path: Literal["fused", "eager"] | None = Field(
        description="what evaluates the network: one compiled call, or the torch module"
    )


class PassedOver(BaseModel):
    """An entry of the repository that is not a model: its path there, why, and what to do."""

    path: str
    reason: str


class ModelList(BaseModel):
    """Answer of ``GET /v1/models``."""

    models: list[ModelSummary]
    passed_over: list[PassedOver] = Field(
        default=[], description="entries of the repository that are not models, the first 50"
    )
    more_passed_over: int = Field(default=0, description="how many entries are not listed")


class ModelBody(BaseModel):
    """Answer of ``GET /v1/models/{name}``: served versions with their cards, and why others are unavailable."""

    name: str
    status: Literal["served", "loading", "unavailable"]
    serving: int | None
    fallback_from: int | None = Field(
        default=None, description="the version that should answer but cannot be loaded; an older one answers instead"
    )
    versions: list[int]
    served: list[dict[str, Any]]
    unavailable: list[dict[str, Any]]


class Reloaded(BaseModel):
    """Answer of ``POST /v1/models:reload``: what changed."""

    loaded: list[dict[str, Any]]
    unloaded: list[dict[str, Any]]
    refused: list[dict[str, Any]]
    models: dict[str, int] = Field(description="each model that answers now, with its version")


class Unloaded(BaseModel):
    """Answer of ``POST /v1/models/{name}:unload``: the versions that were unloaded."""

    name: str
    unloaded: list[int]


class Alive(BaseModel):
    """Answer of ``GET /livez``."""

    status: Literal["alive"]


class Ready(BaseModel):
    """Answer of ``GET /readyz``: what it computes on, and the models with the version that answers now."""

    status: Literal["ready"]
    device: str
    models: dict[str, int]
    unavailable: dict[str, Any] = Field(description="models that cannot be served, and why")


class SolverList(BaseModel):
    """Answer of ``GET /v1/solvers``: each entry of the catalogue."""

    solvers: list[dict[str, Any]]
