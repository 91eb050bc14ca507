"""Schemas of responses that no job is solved for, as typed dictionaries; see `solved`."""

from typing import Any, Literal, NotRequired

from pydantic import ConfigDict, with_config
from typing_extensions import TypedDict

from service.responses.solved import described


class Fault(TypedDict):
    """One invalid field, and why it is invalid."""

    field: str
    message: str


@described
@with_config(ConfigDict(extra="allow"))
class ProblemBody(TypedDict):
    """An error response (RFC 9457, ``application/problem+json``)."""

    type: str
    title: str
    status: int
    detail: str
    request_id: str
    errors: NotRequired[list[Fault] | None]
    """the fields at fault, the first 20"""
    more_errors: NotRequired[int | None]
    """number of faults that are not listed"""


@described
class Sampling(TypedDict):
    """How a model is sampled if a request does not say."""

    solver: str
    """the solver with its steps or tolerance and grid, as text"""
    scheduler: NotRequired[dict[str, Any] | None]
    """how the grid follows from the number of steps and the size of a state, where it does"""


@described
class ModelSummary(TypedDict):
    """One line of ``GET /v1/models``."""

    name: str
    status: Literal["served", "loading", "unavailable"]
    fallback_from: NotRequired[int | None]
    """the version that should answer but cannot be loaded; an older one answers instead"""
    loaded: bool
    """whether it is in memory; otherwise a request loads it"""
    version: int | None
    dtype: str | None
    event_shape: list[int | str] | None
    """shape of a state; a name is a free axis"""
    data_shape: list[int | str] | None
    """shape of a sample in responses"""
    axes: NotRequired[dict[str, dict[str, int]] | None]
    """min, max and multiple of the sizes of free axes of samples and conditions, by name"""
    deterministic: bool | None
    path: Literal["fused", "onnx", "eager"] | None
    """how the network is evaluated: by one compiled call, by onnxruntime, or by the torch module"""
    compute: NotRequired[Literal["float32", "float64", "bfloat16", "float16"] | None]
    """precision of the network's own arithmetic; states have that of `dtype`"""
    field: Literal["velocity", "average_velocity"] | None
    """what the network returns; one of average velocity takes euler steps only, 1 by default"""
    sampling: NotRequired[Sampling | None]
    """how it is sampled if a request names no solver; null for the service's default"""
    conditions: NotRequired[dict[str, Any]]
    """conditions of requests, by name: dtype, shape, null, ...; `condition` if it has no name"""
    tuned: NotRequired[list[str]]
    """solvers tuned for this model, as text: tuned-6, ab4-9/tuned"""
    tuned_fault: NotRequired[str]
    """why existing tuned plans cannot be used; otherwise empty"""


class PassedOver(TypedDict):
    """An entry of the repository that is not a model: its path there, why, and what to do."""

    path: str
    reason: str


@described
class Training(TypedDict):
    """A model that is being trained into the repository."""

    name: str
    left_s: float | None
    """seconds that the training will take; null if not yet known"""


@described
class ModelListBody(TypedDict):
    """Response of ``GET /v1/models``."""

    models: list[ModelSummary]
    training: list[Training]
    """models being trained now; they are served when done"""
    passed_over: list[PassedOver]
    """entries of the repository that are not models, the first 50"""
    more_passed_over: int
    """number of entries that are not listed"""


@described
class ModelBody(TypedDict):
    """Response of ``GET /v1/models/{name}``: served versions with their cards, and why others are unavailable."""

    name: str
    status: Literal["served", "loading", "unavailable"]
    serving: int | None
    fallback_from: NotRequired[int | None]
    """the version that should answer but cannot be loaded; an older one answers instead"""
    versions: list[int]
    served: list[dict[str, Any]]
    unavailable: list[dict[str, Any]]


@described
class PointBody(TypedDict):
    """A measured solver; endpoint errors are shares of the spread."""

    solver: str
    nfe: float
    """mean velocity evaluations of a sample"""
    nfe_most: int
    """velocity evaluations of the slowest sample: its cost"""
    p50: float
    """median endpoint error"""
    p95: float
    """endpoint error that 95 % of the measured samples end within"""
    p95_low: float
    """lower end of the interval of p95, with 99 % confidence"""
    p95_high: float
    """upper end, with 99 % confidence: what is promised and ranked"""
    worst: float
    """largest endpoint error of the samples that reached the end"""
    failed: int
    best: bool
    """whether no other solver is both cheaper and more accurate"""


@described
class CurveBody(TypedDict):
    """The solvers measured with one guidance; null for none."""

    guidance: NotRequired[float | None]
    samples: int
    seed: int
    spread: float
    complete: bool
    """whether every candidate was measured within the time limit"""
    points: list[PointBody]


@described
class FrontierBody(TypedDict):
    """Response of ``GET /v1/models/{name}/frontier``."""

    model: str
    version: int
    checkpoint: str
    reference: str
    """the solution used as the exact one"""
    conditions: str
    curves: list[CurveBody]


@described
class Reloaded(TypedDict):
    """Response of ``POST /v1/models:reload``: what changed."""

    loaded: list[dict[str, Any]]
    unloaded: list[dict[str, Any]]
    refused: list[dict[str, Any]]
    models: dict[str, int]
    """the models that answer now, each with its version"""


class Unloaded(TypedDict):
    """Response of ``POST /v1/models/{name}:unload``: the versions that were unloaded."""

    name: str
    unloaded: list[int]


@described
class Ready(TypedDict):
    """Response of ``GET /readyz``: the device, and the models with the version that answers now."""

    status: Literal["ready"]
    device: str
    models: dict[str, int]
    unavailable: dict[str, Any]
    """models that cannot be served, and why"""


@described
class ModelLoad(TypedDict):
    """The work left for one operation of a loaded model version."""

    model: str
    version: int
    operation: str
    interactive: float
    """network rows that interactive requests still need, over all calls"""
    bulk: float
    """the same for bulk requests"""
    budget: int
    """maximum rows of one network call"""
    tick_s: list[dict[str, float]]
    """`seconds` of a network call, with the work around it, by `rows`, as measured recently"""


@described
class Load(TypedDict):
    """Response of ``GET /v1/load``: how much work is left."""

    accepts: bool
    """whether requests are accepted: the service has started and is not draining"""
    jobs: int
    """requests waiting or running"""
    work: float
    """network rows that they still need, over all calls"""
    seconds: float
    """about how many seconds all of them take together"""
    models: list[ModelLoad]


@described
class SolverList(TypedDict):
    """Response of ``GET /v1/solvers``: each entry of the catalogue, and what solvers can be given."""

    solvers: list[dict[str, Any]]
    settings: dict[str, Any]
    """the settings of solvers in requests, by name"""
    fields: dict[str, Any]
    """other numbers that a request for samples may have, by name"""
    grids: dict[str, Any]
    """the grids of fixed steps by name: formula, source and parameters"""
