"""Response bodies as pydantic models.

Responses are built and written by hand: these are for the OpenAPI description, and tests check responses against them.
"""

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field


class Solver(BaseModel):
    """The solver as used: its name, every parameter that belongs to it, and all of it as text."""

    model_config = ConfigDict(extra="allow")
    name: str
    text: str = Field(description="the solver with its settings, as requests may have it: rk4-20, dopri5@1e-5")


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
    """Seconds: waiting, solving, in the network, encoding the response, and in total."""

    queue_s: float
    solve_s: float
    network_s: float
    prelude_s: float | None = Field(default=None, description="in calls of the model's prelude; omitted if it has none")
    decoder_s: float | None = Field(
        default=None, description="in calls of a decoder that is a program; omitted if there is none"
    )
    encode_s: float
    total_s: float


class Solved(BaseModel):
    """The members of every solved response: the model, the solver as used, and the cost."""

    model_config = ConfigDict(extra="forbid")

    model: str
    version: int
    checkpoint: str
    deterministic: bool
    fallback_from: int | None = Field(
        default=None, description="the version that should have answered but cannot be loaded; otherwise omitted"
    )
    solver: Solver
    shape: list[int]
    nfe: int = Field(description="sequential velocity evaluations of the slowest sample")
    nfe_per_sample: NfePerSample
    network_rows: int = Field(description="rows of all network calls made for this request")
    status: str
    failed: list[FailedSample]
    latency: Latency


class Chosen(BaseModel):
    """The service's choice of a solver: the budget, the solver, its promise, and the reason."""

    model_config = ConfigDict(extra="forbid")

    max_error: float | None = None
    max_nfe: int | None = None
    max_ms: float | None = None
    solver: str
    nfe: int = Field(description="velocity evaluations of the slowest sample of those measured")
    measured_nfe: float = Field(description="mean velocity evaluations of a sample of those measured")
    promised_error: float = Field(
        description="upper end of the interval of p95: 95 % of samples end within it, as a share of the spread"
    )
    promised_distance: float = Field(description="the same in units of the model's own coordinates")
    p95: float = Field(description="p95 of the endpoint error as measured")
    p95_low: float = Field(description="lower end of its interval")
    samples: int = Field(description="number of samples that this rests on")
    stored: bool = Field(description="whether it was measured beforehand, rather than now")
    own_conditions: bool = Field(description="whether it was measured with the conditions of this request")
    predicted_ms: float | None = Field(
        default=None, description="milliseconds of solving at the current pace, without queueing"
    )
    reason: str


class NamedColumn(BaseModel):
    """One column of samples that are rows."""

    name: str
    kind: Literal["number", "whole", "yes-no"] = Field(description="`yes-no` is 0 or 1; `whole` has no fractions")


class SampleResponse(Solved):
    """Response of ``POST /v1/sample``. A sample that is not finite is a null row."""

    seed: int
    first_index: int
    noise_scale: float = Field(default=1.0, description="factor of the starting noise, if it is not 1")
    noise: str
    path: Literal["fused", "onnx", "eager"] = Field(description="how the network was evaluated, as in /v1/models")
    budget: Chosen | None = Field(default=None, description="only if the request had a budget")
    class_: Any = Field(
        default=None,
        alias="class",
        description="only of a model with classes: the name of the class, or a list with that of each sample; null is "
        "no class; by name if the model has several conditions",
    )
    columns: list[NamedColumn] | None = Field(
        default=None, description="only for rows with named columns: the name and kind of each number of a sample"
    )
    digest: str = Field(description="SHA-256 of the samples' bytes, as in npz")
    request: dict[str, Any] = Field(
        description="what else POST /v1/replay needs of the request, where it is not the default; long arrays and "
        "conditions by name as hashes"
    )
    environment: dict[str, str] = Field(description="versions, device and machine that the bits depend on")
    samples: list[Any]
    saved: Saved | None = None
    trace: TraceBody | None = None


class DifferenceBody(BaseModel):
    """One thing that differs between an earlier answer and the service."""

    what: str
    answer: str
    here: str
    reason: str


class ReplayResponse(SampleResponse):
    """Response of ``POST /v1/replay``."""

    digest_matches: bool = Field(description="whether the samples have the bits of the first answer")
    differences: list[DifferenceBody] = Field(description="why the bits could not be promised; empty without `force`")


class Fault(BaseModel):
    """One invalid field, and why it is invalid."""

    field: str
    message: str


class ProblemBody(BaseModel):
    """An error response (RFC 9457, ``application/problem+json``)."""

    model_config = ConfigDict(extra="allow")

    type: str
    title: str
    status: int
    detail: str
    request_id: str
    errors: list[Fault] | None = Field(default=None, description="the fields at fault, the first 20")
    more_errors: int | None = Field(default=None, description="number of faults that are not listed")


class Sampling(BaseModel):
    """How a model is sampled if a request does not say."""

    solver: str = Field(description="the solver with its steps or tolerance and grid, as text")
    scheduler: dict[str, Any] | None = Field(
        default=None, description="how the grid follows from the number of steps and the size of a state, where it does"
    )


class AxisBounds(BaseModel):
    """The sizes that a free axis may have."""

    min: int
    max: int
    multiple: int


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
    event_shape: list[int | str] | None = Field(description="shape of a state; a name is a free axis")
    data_shape: list[int | str] | None = Field(description="shape of a sample in responses")
    axes: dict[str, AxisBounds] | None = Field(
        default=None, description="the sizes that free axes of samples and conditions may have, by name"
    )
    deterministic: bool | None
    path: Literal["fused", "onnx", "eager"] | None = Field(
        description="how the network is evaluated: by one compiled call, by onnxruntime, or by the torch module"
    )
    compute: Literal["float32", "float64", "bfloat16", "float16"] | None = Field(
        default=None, description="precision of the network's own arithmetic; states have that of `dtype`"
    )
    field: Literal["velocity", "average_velocity"] | None = Field(
        description="what the network returns; one of average velocity takes euler steps only, 1 by default"
    )
    sampling: Sampling | None = Field(
        default=None, description="how it is sampled if a request names no solver; null for the service's default"
    )
    conditions: dict[str, Any] = Field(
        default={},
        description="conditions of requests, by name: dtype, shape, null, ...; `condition` if it has no name",
    )
    tuned: list[str] = Field(default=[], description="solvers tuned for this model, as text: tuned-6, ab4-9/tuned")
    tuned_fault: str = Field(default="", description="why existing tuned plans cannot be used; otherwise empty")


class PassedOver(BaseModel):
    """An entry of the repository that is not a model: its path there, why, and what to do."""

    path: str
    reason: str


class Training(BaseModel):
    """A model that is being trained into the repository."""

    name: str
    left_s: float | None = Field(description="seconds that the training will take; null if not yet known")


class ModelList(BaseModel):
    """Response of ``GET /v1/models``."""

    models: list[ModelSummary]
    training: list[Training] = Field(default=[], description="models being trained now; they are served when done")
    passed_over: list[PassedOver] = Field(
        default=[], description="entries of the repository that are not models, the first 50"
    )
    more_passed_over: int = Field(default=0, description="number of entries that are not listed")


class ModelBody(BaseModel):
    """Response of ``GET /v1/models/{name}``: served versions with their cards, and why others are unavailable."""

    name: str
    status: Literal["served", "loading", "unavailable"]
    serving: int | None
    fallback_from: int | None = Field(
        default=None, description="the version that should answer but cannot be loaded; an older one answers instead"
    )
    versions: list[int]
    served: list[dict[str, Any]]
    unavailable: list[dict[str, Any]]


class PointBody(BaseModel):
    """A measured solver; endpoint errors are shares of the spread."""

    solver: str
    nfe: float = Field(description="mean velocity evaluations of a sample")
    nfe_most: int = Field(description="velocity evaluations of the slowest sample: its cost")
    p50: float = Field(description="median endpoint error")
    p95: float = Field(description="endpoint error that 95 % of the measured samples are within")
    p95_low: float = Field(description="lower end of the interval of p95, with 99 % confidence")
    p95_high: float = Field(description="upper end, with 99 % confidence: what is promised and ranked")
    worst: float = Field(description="largest endpoint error of the samples that reached the end")
    failed: int
    best: bool = Field(description="whether no other solver is both cheaper and more accurate")


class CurveBody(BaseModel):
    """The solvers measured with one guidance; null for none."""

    guidance: float | None = None
    samples: int
    seed: int
    spread: float
    complete: bool = Field(description="whether every candidate was measured within the time limit")
    points: list[PointBody]


class FrontierBody(BaseModel):
    """Response of ``GET /v1/models/{name}/frontier``."""

    model: str
    version: int
    checkpoint: str
    reference: str = Field(description="the solution used as the exact one")
    conditions: str
    curves: list[CurveBody]


class Reloaded(BaseModel):
    """Response of ``POST /v1/models:reload``: what changed."""

    loaded: list[dict[str, Any]]
    unloaded: list[dict[str, Any]]
    refused: list[dict[str, Any]]
    models: dict[str, int] = Field(description="the models that answer now, each with its version")


class Unloaded(BaseModel):
    """Response of ``POST /v1/models/{name}:unload``: the versions that were unloaded."""

    name: str
    unloaded: list[int]


class Alive(BaseModel):
    """Response of ``GET /livez``."""

    status: Literal["alive"]


class Ready(BaseModel):
    """Response of ``GET /readyz``: the device, and the models with the version that answers now."""

    status: Literal["ready"]
    device: str
    models: dict[str, int]
    unavailable: dict[str, Any] = Field(description="models that cannot be served, and why")


class TickSeconds(BaseModel):
    """Seconds of a network call, including the work around it."""

    rows: float
    seconds: float


class ModelLoad(BaseModel):
    """The work left for one operation of a loaded model version."""

    model: str
    version: int
    operation: str
    interactive: float = Field(description="network rows that interactive requests still need, over all calls")
    bulk: float = Field(description="the same for bulk requests")
    budget: int = Field(description="maximum rows of one network call")
    tick_s: list[TickSeconds] = Field(description="seconds by rows, as measured recently")


class Load(BaseModel):
    """Response of ``GET /v1/load``: how much work is left."""

    accepts: bool = Field(description="whether requests are accepted: the service has started and is not draining")
    jobs: int = Field(description="requests waiting or running")
    work: float = Field(description="network rows that they still need, over all calls")
    seconds: float = Field(description="about how many seconds all of them take together")
    models: list[ModelLoad]


class SolverList(BaseModel):
    """Response of ``GET /v1/solvers``: each entry of the catalogue, and what solvers can be given."""

    solvers: list[dict[str, Any]]
    settings: dict[str, Any] = Field(description="the settings of solvers in requests, by name")
    fields: dict[str, Any] = Field(description="other numbers that a request for samples may have, by name")
    grids: dict[str, Any] = Field(description="the grids of fixed steps by name: formula, source and parameters")
