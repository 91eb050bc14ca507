"""What an answer says of its request, so that its samples can be drawn again.

An answer that is sent back is never trusted: its content is validated like any request. It has only the hash of long
members (many start states, a condition for each sample), of conditions by name and of known values, which must be sent
again, as must guidance with conditions.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from typing import Annotated, Any

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from engine.job import Job
from models.condition_values import Distinct, class_names
from models.conditions import ONE, numbers_are_names
from models.guidance import document_of
from models.messages import short
from service.registry.version import ModelVersion
from service.requests.schemas import ECHOED, HASHED, SOLVER_FIELDS, Body, SampleRequest, marked, with_fields
from service.responses.arrays import digest_of

HASH = r"^sha256:[0-9a-f]{64}$"
Digest = Annotated[str, Field(pattern=HASH)]
Whole = Annotated[int, Field(ge=0, lt=2**63)]

_NOT_SENT = ("name", "plan", "text", "resample")
"""Members of a solver that are not those of a request; how often it repeats a step is said by `known`."""


def _of_solver(solver: dict[str, Any]) -> dict[str, Any]:
    """Check the names of a solver's members, and the one that no request has; a request's schema checks the others."""
    if other := sorted(solver.keys() - ({*_NOT_SENT, *SOLVER_FIELDS} - {"solver"})):
        raise ValueError(f"must not have {', '.join(map(short, other[:5]))}, which no solver has")
    plan = solver.get("plan")
    if plan is not None and not (isinstance(plan, str) and re.fullmatch(HASH, plan)):
        raise ValueError("must have as its plan, if any, sha256: and 64 hexadecimal digits")
    return solver


MAX_NUMBERS = 64
"""Limit on the numbers of an array in an answer's `request`; of a larger one it has only the hash."""

_MAX_HEADER = 8_192

AGAIN = marked(HASHED)
"""Fields of which an answer may have only the hash; for a replay the client sends them again."""

_ARRAYS = ("condition", "x0")
"""Those of which it has the numbers if they are few. Guidance it has unless terms have conditions of their own."""

_ECHOED = {name: SampleRequest.model_fields[name].default for name in marked(ECHOED)}
"""Fields that an answer has where they are not the default, with their defaults."""


class SavedTimes(BaseModel):
    """The times at which states were saved."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    t: list[float]


@with_fields(*_ARRAYS, "guidance", *_ECHOED)
class Asked(Body):
    """What a request for samples said besides model, solver, seed and number, where it is not the default."""

    hashes: dict[Annotated[str, Field(pattern=f"^({'|'.join(AGAIN)})$")], Digest] = Field(default={})
    """of fields that must be sent again: long arrays, vectors, conditions by name, guidance with these, known values"""


class Answer(BaseModel):
    """What a replay needs of an earlier answer; its other members may be left out."""

    model_config = ConfigDict(strict=True, extra="ignore", frozen=True, use_attribute_docstrings=True)

    model: str
    version: Whole
    checkpoint: Digest
    solver: Annotated[dict[str, Any], AfterValidator(_of_solver)]
    """the solver as used"""
    seed: Whole
    first_index: Whole = 0
    shape: list[Whole] = Field(min_length=1)
    """of the samples; their number comes first"""
    status: str = "success"
    saved: SavedTimes | None = None
    request: Asked = Asked()
    environment: Annotated[dict[str, Annotated[str, Field(max_length=200)]], Field(max_length=32)]
    digest: Digest

    def members(self) -> dict[str, Any]:
        """Return the members of the request that it answers, without those in `hashes`."""
        settings = {name: value for name, value in self.solver.items() if name not in _NOT_SENT}
        members = {name: value for name, value in settings.items() if value is not None}
        members |= {"model": self.model, "version": self.version, "solver": self.solver.get("name"), "seed": self.seed}
        members |= {"first_index": self.first_index, "num_samples": self.shape[0]}
        members |= {} if self.saved is None else {"save_at": self.saved.t}
        return members | {name: value for name, value in self.request if name != "hashes" and value is not None}


def header_of(document: Mapping[str, Any]) -> str | None:
    """Return the members of an answer that a replay needs as a header, for formats that hold only samples.

    None if they are too long for a header.
    """
    members = {name: document[name] for name in Answer.model_fields if name in document}
    if "saved" in members:
        members["saved"] = {"t": members["saved"]["t"]}
    text = json.dumps(members, separators=(",", ":"))
    return text if len(text) <= _MAX_HEADER else None


def arrays_of(job: Job) -> dict[str, NDArray[Any]]:
    """Return the arrays of a job by their member in a request; equal conditions are one row."""
    arrays: dict[str, NDArray[Any]] = {}
    if job.conditions is not None and ONE in job.conditions:
        rows = job.conditions[ONE].expanded(job.num_samples).numpy()
        arrays["condition"] = np.asarray(rows[0]) if (rows == rows[:1]).all() else rows
    elif job.conditions is not None:
        arrays["conditions"] = _hash_of(job.conditions)
    if job.negative is not None:
        arrays["negative"] = _hash_of(job.negative)
    if any(job.own):
        text = json.dumps(document_of(job.guidance, ()), sort_keys=True).encode()
        arrays["guidance"] = np.frombuffer(text + b"".join(_hash_of(own).tobytes() for own in job.own), dtype=np.uint8)
    if job.known is not None:
        text = f"{job.operation.name} {job.known.max_weight!r} {job.plan.spec.resample}"
        tensors = {"values": job.known.values, "weights": job.known.weights}
        own = {name: Distinct(tensor) for name, tensor in tensors.items() if tensor is not None}
        arrays["known"] = np.concatenate((np.frombuffer(text.encode(), dtype=np.uint8), _hash_of(own)))
    if job.x0 is not None:
        arrays["x0"] = job.x0.numpy()
    return arrays


def _hash_of(conditions: Mapping[str, Distinct]) -> NDArray[np.uint8]:
    """Return the hash of all named conditions, which stands for them in an answer."""
    digest = hashlib.sha256()
    for name in sorted(conditions):
        distinct = conditions[name]
        index = np.zeros(1, dtype=np.int64) if distinct.index is None else distinct.index
        digest.update(f"{name} {distinct.rows.dtype} {tuple(distinct.rows.shape[1:])}".encode())
        flat = distinct.rows.contiguous().as_strided((distinct.rows.numel(),), (1,))  # one number may have stride 0
        digest.update(flat.view(torch.uint8).numpy().data)
        digest.update(index.data)
    return np.frombuffer(digest.digest(), dtype=np.uint8)


def asked_of(model: ModelVersion, job: Job, decode: bool) -> dict[str, Any]:
    """Return the member `request` of an answer, see `Asked`.

    Args:
        model: the model that gave the answer.
        job: the job of the request.
        decode: whether the samples are data, not states.
    """
    takes = model.request_conditions
    values: dict[str, Any] = {}
    hashes: dict[str, str] = {}
    for name, array in arrays_of(job).items():
        standardised = name == "condition" and array.dtype.kind == "f"  # so not as it came
        if name in _ARRAYS and array.size <= MAX_NUMBERS and not standardised:
            values[name] = array.tolist()
        else:
            hashes[name] = digest_of(array)
    if "condition" in values and takes is not None and numbers_are_names(takes.entries[ONE].names):
        values["condition"] = class_names(takes, job.conditions or {})[ONE]
    guidance = document_of(job.guidance, () if takes is None else takes.droppable(job.negative or ()))
    if guidance is not None and "guidance" not in hashes:
        values["guidance"] = guidance
    own = {"t_span": job.plan.t_span, "shape": dict(job.sizes) or None, "decode": decode}
    for name, default in _ECHOED.items():
        value = own[name] if name in own else getattr(job, name)
        if value != default and (name != "t_span" or job.start_time is None):  # which says where to start
            values[name] = value
    return values | ({"hashes": hashes} if hashes else {})
