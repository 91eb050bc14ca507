"""Schemas of responses that no job is solved for, as typed dictionaries; see `solved`."""

from typing import Annotated, Any, Literal, NotRequired

from pydantic import ConfigDict, Field, with_config
from typing_extensions import TypedDict


class Fault(TypedDict):
    """One invalid field, and why it is invalid."""

    field: str
    message: str


@with_config(ConfigDict(extra="allow"))
class ProblemBody(TypedDict):
    """An error response (RFC 9457, ``application/problem+json``)."""

    type: str
    title: str
    status: int
    detail: str
    request_id: str
    errors: NotRequired[Annotated[list[Fault] | None, Field(description="the fields at fault, the first 20")]]
    more_errors: NotRequired[Annotated[int | None, Field(description="number of faults that are not listed")]]


class Sampling(TypedDict):
    """How a model is sampled if a request does not say."""

    solver: Annotated[str, Field(description="the solver with its steps or tolerance and grid, as text")]
    scheduler: NotRequired[
        Annotated[
            dict[str, Any] | None,
            Field(description="how the grid follows from the number of steps and the size of a state, where it does"),
        ]
    ]


class AxisBounds(TypedDict):
    """The sizes that a free axis may have."""

    min: int
    max: int
    multiple: int


class ModelSummary(TypedDict):
    """One line of ``GET /v1/models``."""

    name: str
    status: Literal["served", "loading", "unavailable"]
    fallback_from: NotRequired[
        Annotated[
            int | None,
            Field(description="the version that should answer but cannot be loaded; an older one answers instead"),
        ]
    ]
    loaded: Annotated[bool, Field(description="whether it is in memory; otherwise a request loads it")]
    version: int | None
    dtype: str | None
    event_shape: Annotated[list[int | str] | None, Field(description="shape of a state; a name is a free axis")]
    data_shape: Annotated[list[int | str] | None, Field(description="shape of a sample in responses")]
    axes: NotRequired[
        Annotated[
            dict[str, AxisBounds] | None,
            Field(description="the sizes that free axes of samples and conditions may have, by name"),
        ]
    ]
    deterministic: bool | None
    path: Annotated[
        Literal["fused", "onnx", "eager"] | None,
        Field(description="how the network is evaluated: by one compiled call, by onnxruntime, or by the torch module"),
    ]
    compute: NotRequired[
        Annotated[
            Literal["float32", "float64", "bfloat16", "float16"] | None,
            Field(description="precision of the network's own arithmetic; states have that of `dtype`"),
        ]
    ]
    field: Annotated[
        Literal["velocity", "average_velocity"] | None,
        Field(description="what the network returns; one of average velocity takes euler steps only, 1 by default"),
    ]
    sampling: NotRequired[
        Annotated[
            Sampling | None,
            Field(description="how it is sampled if a request names no solver; null for the service's default"),
        ]
    ]
    conditions: NotRequired[
        Annotated[
            dict[str, Any],
            Field(
                description="conditions of requests, by name: dtype, shape, null, ...; `condition` if it has no name"
            ),
        ]
    ]
    tuned: NotRequired[
        Annotated[list[str], Field(description="solvers tuned for this model, as text: tuned-6, ab4-9/tuned")]
    ]
    tuned_fault: NotRequired[
        Annotated[str, Field(description="why existing tuned plans cannot be used; otherwise empty")]
    ]


class PassedOver(TypedDict):
    """An entry of the repository that is not a model: its path there, why, and what to do."""

    path: str
    reason: str


class Training(TypedDict):
    """A model that is being trained into the repository."""

    name: str
    left_s: Annotated[float | None, Field(description="seconds that the training will take; null if not yet known")]


class ModelListBody(TypedDict):
    """Response of ``GET /v1/models``."""

    models: list[ModelSummary]
    training: Annotated[list[Training], Field(description="models being trained now; they are served when done")]
    passed_over: Annotated[
        list[PassedOver], Field(description="entries of the repository that are not models, the first 50")
    ]
    more_passed_over: Annotated[int, Field(description="number of entries that are not listed")]


class ModelBody(TypedDict):
    """Response of ``GET /v1/models/{name}``: served versions with their cards, and why others are unavailable."""

    name: str
    status: Literal["served", "loading", "unavailable"]
    serving: int | None
    fallback_from: NotRequired[
        Annotated[
            int | None,
            Field(description="the version that should answer but cannot be loaded; an older one answers instead"),
        ]
    ]
    versions: list[int]
    served: list[dict[str, Any]]
    unavailable: list[dict[str, Any]]


class PointBody(TypedDict):
    """A measured solver; endpoint errors are shares of the spread."""

    solver: str
    nfe: Annotated[float, Field(description="mean velocity evaluations of a sample")]
    nfe_most: Annotated[int, Field(description="velocity evaluations of the slowest sample: its cost")]
    p50: Annotated[float, Field(description="median endpoint error")]
    p95: Annotated[float, Field(description="endpoint error that 95 % of the measured samples end within")]
    p95_low: Annotated[float, Field(description="lower end of the interval of p95, with 99 % confidence")]
    p95_high: Annotated[float, Field(description="upper end, with 99 % confidence: what is promised and ranked")]
    worst: Annotated[float, Field(description="largest endpoint error of the samples that reached the end")]
    failed: int
    best: Annotated[bool, Field(description="whether no other solver is both cheaper and more accurate")]


class CurveBody(TypedDict):
    """The solvers measured with one guidance; null for none."""

    guidance: NotRequired[float | None]
    samples: int
    seed: int
    spread: float
    complete: Annotated[bool, Field(description="whether every candidate was measured within the time limit")]
    points: list[PointBody]


class FrontierBody(TypedDict):
    """Response of ``GET /v1/models/{name}/frontier``."""

    model: str
    version: int
    checkpoint: str
    reference: Annotated[str, Field(description="the solution used as the exact one")]
    conditions: str
    curves: list[CurveBody]


class Reloaded(TypedDict):
    """Response of ``POST /v1/models:reload``: what changed."""

    loaded: list[dict[str, Any]]
    unloaded: list[dict[str, Any]]
    refused: list[dict[str, Any]]
    models: Annotated[dict[str, int], Field(description="the models that answer now, each with its version")]


class Unloaded(TypedDict):
    """Response of ``POST /v1/models/{name}:unload``: the versions that were unloaded."""

    name: str
    unloaded: list[int]


class Alive(TypedDict):
    """Response of ``GET /livez``."""

    status: Literal["alive"]


class Ready(TypedDict):
    """Response of ``GET /readyz``: the device, and the models with the version that answers now."""

    status: Literal["ready"]
    device: str
    models: dict[str, int]
    unavailable: Annotated[dict[str, Any], Field(description="models that cannot be served, and why")]


class TickSeconds(TypedDict):
    """Seconds of a network call, including the work around it."""

    rows: float
    seconds: float


class ModelLoad(TypedDict):
    """The work left for one operation of a loaded model version."""

    model: str
    version: int
    operation: str
    interactive: Annotated[
        float, Field(description="network rows that interactive requests still need, over all calls")
    ]
    bulk: Annotated[float, Field(description="the same for bulk requests")]
    budget: Annotated[int, Field(description="maximum rows of one network call")]
    tick_s: Annotated[list[TickSeconds], Field(description="seconds by rows, as measured recently")]


class Load(TypedDict):
    """Response of ``GET /v1/load``: how much work is left."""

    accepts: Annotated[
        bool, Field(description="whether requests are accepted: the service has started and is not draining")
    ]
    jobs: Annotated[int, Field(description="requests waiting or running")]
    work: Annotated[float, Field(description="network rows that they still need, over all calls")]
    seconds: Annotated[float, Field(description="about how many seconds all of them take together")]
    models: list[ModelLoad]


class SolverList(TypedDict):
    """Response of ``GET /v1/solvers``: each entry of the catalogue, and what solvers can be given."""

    solvers: list[dict[str, Any]]
    settings: Annotated[dict[str, Any], Field(description="the settings of solvers in requests, by name")]
    fields: Annotated[dict[str, Any], Field(description="other numbers that a request for samples may have, by name")]
    grids: Annotated[
        dict[str, Any], Field(description="the grids of fixed steps by name: formula, source and parameters")
    ]
