"""Bodies of ``POST /v1/models/{name}/encode``, ``log_prob`` and ``diagnose``, and their answers."""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field, WithJsonSchema

from service.requests.schemas import (
    SEED_LIMIT,
    X0_SCHEMA,
    Body,
    Drawn,
    Finite,
    Solved,
    Solving,
    name_solvers,
)

MOST_PROBES = 256
TIMES = tuple(k / 10 for k in range(11))

_SAMPLES_SCHEMA = {
    "description": "data, shape (num_samples, *data_shape), or states, (num_samples, *event_shape), without decode",
    "type": "array",
    "minItems": 1,
    "items": {},
}
_Priority = Literal["interactive", "bulk"]
_BULK = "bulk (the default) yields to interactive requests, which take most of the time"


class Versioned(Body):
    """The version of the model that the address names."""

    version: int | None = Field(default=None, ge=1, description="version of the model; the highest where left out")


class Given(Versioned):
    """Samples that the client has."""

    samples: Annotated[Any, WithJsonSchema(_SAMPLES_SCHEMA)]
    decode: bool = Field(
        default=True,
        description="true: samples are data, as answers give them; false: states in the model's own coordinates",
    )


class EncodeRequest(Solving, Given):
    """Body of ``encode``: data, and how to solve from t = 1 back to 0."""


class LogProbRequest(Solving, Given):
    """Body of ``log_prob``: data, how to solve from t = 1 back to 0, and how to take the divergence on the way."""

    priority: _Priority = Field(default="bulk", description=_BULK)
    divergence: Literal["auto", "exact", "hutchinson"] = Field(
        default="auto", description="exact, an estimate by random signs, or auto: exact up to 16 numbers a sample"
    )
    probes: int = Field(
        default=1,
        ge=1,
        le=MOST_PROBES,
        description="estimates that are averaged, each with signs and a path of its own",
    )
    seed: int | None = Field(
        default=None, ge=0, lt=SEED_LIMIT, description="seed of the signs; drawn and echoed where left out"
    )


class DiagnoseRequest(Solving, Drawn, Versioned):
    """Body of ``diagnose``: which samples to follow from t = 0 to 1, how, and at which times to take the Jacobian."""

    num_samples: int = Field(default=16, ge=1, description="how many samples")
    solver: str = Field(
        default="rk4",
        description="name from /v1/solvers; rk4 with 20 steps where neither solver nor steps are given",
        json_schema_extra=name_solvers,
    )
    priority: _Priority = Field(default="bulk", description=_BULK)
    x0: Annotated[Any, WithJsonSchema(X0_SCHEMA)] = None
    times: Annotated[tuple[Finite, ...], Field(strict=False, min_length=1, fail_fast=True)] = Field(
        default=TIMES, description="ascending times from 0 to 1; with fixed steps, points of the grid"
    )


_Residual = Annotated[
    list[float | None] | None,
    Field(description="for each sample, the largest difference from what its state decodes to; only with a decoder"),
]


class EncodeResponse(Solved):
    """Answer of ``encode``. A sample that did not get to the noise is a null row."""

    residual: _Residual = None
    x0: list[Any] = Field(description="the noise that the samples come from, as POST /v1/sample takes it")


class DivergenceBody(BaseModel):
    """How the divergence was taken; seed and probes only of an estimate."""

    method: Literal["exact", "hutchinson"]
    probes: int | None = None
    seed: int | None = None


class LogProbResponse(Solved):
    """Answer of ``log_prob``; null where a sample did not get to the noise."""

    divergence: DivergenceBody
    residual: _Residual = None
    log_prob: list[float | None] = Field(description="log-densities in nats")
    standard_error: list[float | None] | None = Field(
        default=None, description="of the mean over probes, where there are two or more"
    )


class DiagnoseResponse(Solved):
    """Answer of ``diagnose``: one list a sample, of one entry a time; null where it did not get to."""

    seed: int
    first_index: int
    noise: str
    times: list[float]
    eigenvalues_real: list[list[list[float | None]]] = Field(description="by ascending real part")
    eigenvalues_imag: list[list[list[float | None]]]
    condition_number: list[list[float | None]] = Field(
        description="largest over smallest singular value; null where the Jacobian is singular"
    )
    stiffness: list[list[float | None]] = Field(
        description="how fast the fastest direction contracts, as a rate by t: -min Re(eigenvalue), at least 0"
    )
    stiffness_ratio: list[list[float | None]] = Field(
        description="largest over smallest |Re(eigenvalue)|; null where the smallest is 0"
    )
