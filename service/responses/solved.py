"""What every solved response has: the model, the solver as used and the cost; their schemas, and how they are built.

Schemas are typed dictionaries: the OpenAPI description is made of them, and the type checker holds what builds them to
them, at no cost while the service runs.
"""

import ast
import inspect
import sys
from collections.abc import Callable
from functools import cache
from itertools import pairwise
from typing import Annotated, Any, NotRequired, TypeVar

import numpy as np
from pydantic import ConfigDict, Field, GetPydanticSchema, with_config
from typing_extensions import TypedDict

from engine.job import Job, JobResult
from service.http.context import Context
from service.registry.version import ModelVersion
from service.responses.arrays import Array
from solvers.errors import Status

SUCCESS = Status.SUCCESS.value

closed: Callable[[type], Any] = with_config(ConfigDict(extra="forbid"))
"""A schema without other members."""

Schema = TypeVar("Schema", bound=type)


@cache
def _classes(module: str) -> dict[str, ast.ClassDef]:
    source = inspect.getsource(sys.modules[module])
    return {node.name: node for node in ast.parse(source).body if isinstance(node, ast.ClassDef)}


def described(schema: Schema) -> Schema:
    """Make the text below a member of a schema its description.

    It is pydantic's `use_attribute_docstrings`, which reads the source anew for each use of a typed dictionary, and not
    for the members of one that it extends.
    """
    for member, text in pairwise(_classes(schema.__module__)[schema.__name__].body):
        if isinstance(member, ast.AnnAssign) and isinstance(text, ast.Expr):
            name, about = ast.unparse(member.target), Field(description=ast.literal_eval(text.value))
            schema.__annotations__[name] = Annotated[schema.__annotations__[name], about]
    return schema


def written_as(kind: Any) -> GetPydanticSchema:
    """Return the annotation of a value that JSON has in the form of another type."""
    return GetPydanticSchema(lambda _, handler: handler(kind))


Rows = Annotated[Array, written_as(list[Any])]
"""Any array, as nested lists; a state that is not finite is null as a whole."""
Floats = Annotated[Array, written_as(list[float | None])]
"""Numbers (n,); null for those that are not finite."""


@described
@with_config(ConfigDict(extra="allow"))
class SolverSettings(TypedDict):
    """The solver as used: its name, every parameter that belongs to it, and all of it as text."""

    name: str
    text: str
    """all of it, as requests may have it: rk4-20, dopri5@1e-5"""


SolverUsed = Annotated[dict[str, Any], written_as(SolverSettings)]


class NfePerSample(TypedDict):
    """Velocity evaluations of the samples."""

    min: int
    mean: float
    max: int


class FailedSample(TypedDict):
    """A sample that did not reach the end: its row, why, and the t it reached."""

    index: int
    status: str
    t: Annotated[float, written_as(float | None)]


@described
@closed
class LatencyBody(TypedDict):
    """Seconds: waiting, solving, in the network, encoding the response, and in total."""

    queue_s: float
    solve_s: float
    network_s: float
    prelude_s: NotRequired[float]
    """in calls of the model's prelude, if it has one"""
    decoder_s: NotRequired[float]
    """in calls of a decoder that is a program, if any"""
    encode_s: float
    total_s: float


@described
class Origin(TypedDict):
    """The weights that a response came from."""

    model: str
    version: int
    checkpoint: str
    fallback_from: NotRequired[int]
    """the version that should have answered but cannot be loaded"""


@described
class Outcome(TypedDict):
    """The cost of the samples, and how they ended."""

    nfe: int
    """sequential velocity evaluations of the slowest sample"""
    nfe_per_sample: NfePerSample
    network_rows: int
    """rows of all network calls made for this request"""
    status: str
    failed: list[FailedSample]


class Head(Origin, Outcome):
    """What the response of an operation other than sampling begins with."""

    deterministic: bool
    solver: SolverUsed


class Solved(Head):
    """The members of every solved response."""

    shape: list[int]
    latency: LatencyBody


def origin(model: ModelVersion, context: Context) -> Origin:
    """Return the members about the weights."""
    weights: Origin = {"model": model.name, "version": model.version, "checkpoint": model.digest}
    return weights if context.fallback_from is None else {**weights, "fallback_from": context.fallback_from}


def outcome(result: JobResult) -> Outcome:
    """Return the members about cost and status."""
    nfe, t, status = result.nfe, result.t, result.status
    most = int(np.maximum.reduce(nfe))
    good = status == SUCCESS
    worst: str = SUCCESS
    failed: list[FailedSample] = []
    if not np.logical_and.reduce(good):
        order = [member.value for member in Status]  # from best to worst
        worst = max(set(status.tolist()), key=order.index)
        rows = np.flatnonzero(~good)
        failed = [{"index": int(i), "status": str(status[i]), "t": float(t[i])} for i in rows]
    return {
        "nfe": most,
        "nfe_per_sample": {"min": int(np.minimum.reduce(nfe)), "mean": int(np.add.reduce(nfe)) / len(nfe), "max": most},
        "network_rows": int(result.rows),
        "status": worst,
        "failed": failed,
    }


def latency(result: JobResult) -> LatencyBody:
    """Return the seconds of a job; those of writing are added when it is written."""
    seconds: Any = {"queue_s": result.queue_s, "solve_s": result.solve_s, "network_s": result.network_s}
    if result.prelude_s is not None:
        seconds["prelude_s"] = result.prelude_s
    if result.decoder_s is not None:
        seconds["decoder_s"] = result.decoder_s
    return seconds | {"encode_s": 0.0, "total_s": 0.0}


def head(http: Context, model: ModelVersion, job: Job, result: JobResult) -> Head:
    """Return the members that the response of an operation other than sampling begins with."""
    return {**origin(model, http), "deterministic": model.deterministic, "solver": job.plan.settings, **outcome(result)}
