"""Replays: what an answer says of its request and its environment, so that its samples can be drawn again.

An answer that is sent back is never trusted: its content is validated like any request. It has only the hash of long
members (many start states, a condition for each sample), of conditions by name and of known values, which must be sent
again, as must guidance with conditions.
"""

from __future__ import annotations

import hashlib
import json
import platform
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from importlib.metadata import version
from typing import Annotated, Any, Literal

import numpy as np
import torch
from llvmlite import binding
from numpy.typing import NDArray
from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from engine.job import Job
from models.condition_values import Distinct, class_names
from models.conditions import ONE, numbers_are_names
from models.forms.onnx import installed
from models.guidance import document_of
from models.messages import short
from service import VERSION
from service.registry.version import ModelVersion
from solvers.spec import DEFAULTS

HASH = r"^sha256:[0-9a-f]{64}$"
Digest = Annotated[str, Field(pattern=HASH)]
Whole = Annotated[int, Field(ge=0, lt=2**63)]

_NOT_SENT = ("name", "plan", "text", "resample")
"""Members of a solver that are not those of a request; how often it repeats a step is said by `known`."""

_OF_SOLVER = {"name", "plan", "text", *DEFAULTS} - {"solver", "t_span"}


def _of_solver(solver: dict[str, Any]) -> dict[str, Any]:
    """Check the names of a solver's members, and the one that no request has; a request's schema checks the others."""
    if other := sorted(solver.keys() - _OF_SOLVER):
        raise ValueError(f"must not have {', '.join(map(short, other[:5]))}, which no solver has")
    plan = solver.get("plan")
    if plan is not None and not (isinstance(plan, str) and re.fullmatch(HASH, plan)):
        raise ValueError("must have as its plan, if any, sha256: and 64 hexadecimal digits")
    return solver


MAX_NUMBERS = 64
"""Limit on the numbers of an array in an answer's `request`; of a larger one it has only the hash."""

_HASHED = ("conditions", "negative", "guidance", "known")
"""Members of which `request` has only the hash, whatever their size; see `Hashed`."""

_MAX_HEADER = 8_192


class SavedTimes(BaseModel):
    """The times at which states were saved."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    t: list[float]


Hashed = Literal["condition", "conditions", "negative", "guidance", "known", "x0"]
"""Members of which an answer may have only the hash; for a replay the client sends them again."""


class Asked(BaseModel):
    """What a request for samples said besides model, solver, seed and number, where it is not the default.

    Attributes:
        t_span, start_time, condition, guidance, x0, decode, log_prob, trace, noise_scale: as in a request.
        shape: sizes of the free axes, by name.
        hashes: of members that must be sent again: arrays of more than 64 numbers, vectors, conditions by name,
            guidance with these, and known values.
    """

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)

    t_span: tuple[float, float] | None = Field(default=None, strict=False)
    noise_scale: float | None = None
    start_time: float | None = None
    condition: Any = None
    guidance: Any = None
    x0: Any = None
    shape: dict[str, int] | None = None
    decode: bool | None = None
    log_prob: bool | None = None
    trace: Literal["none", "summary", "full"] | None = None
    hashes: dict[Hashed, Digest] = {}


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
        return members | self.request.model_dump(exclude_none=True, exclude={"hashes"})


def header_of(document: Mapping[str, Any]) -> str | None:
    """Return the members of an answer that a replay needs as a header, for formats that hold only samples.

    None if they are too long for a header.
    """
    members = {name: document[name] for name in Answer.model_fields if name in document}
    if "saved" in members:
        members["saved"] = {"t": members["saved"]["t"]}
    text = json.dumps(members, separators=(",", ":"))
    return text if len(text) <= _MAX_HEADER else None


def digest_of(array: NDArray[Any]) -> str:
    """Return the hash of an array's bytes in C order."""
    flat = array if array.flags.c_contiguous else np.ascontiguousarray(array)
    return f"sha256:{hashlib.sha256(flat.data.cast('B') if flat.size else b'').hexdigest()}"


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
    arrays = arrays_of(job)
    hashes = {name: digest_of(array) for name, array in arrays.items() if array.size > MAX_NUMBERS or name in _HASHED}
    if "condition" in arrays and arrays["condition"].dtype.kind == "f":  # standardised, so not as it came
        hashes["condition"] = digest_of(arrays["condition"])
    values = {name: array.tolist() for name, array in arrays.items() if name not in hashes}
    takes = model.request_conditions
    droppable = () if takes is None else takes.droppable(job.negative or ())
    if "condition" in values and takes is not None and numbers_are_names(takes.entries[ONE].names):
        values["condition"] = class_names(takes, job.conditions or {})[ONE]
    usual = {
        "start_time": (job.start_time, None),
        "t_span": (job.plan.t_span, (0.0, 1.0) if job.start_time is None else job.plan.t_span),
        "noise_scale": (job.noise_scale, 1.0),
        "guidance": (None if "guidance" in hashes else document_of(job.guidance, droppable), None),
        "shape": (dict(job.sizes), {}),
        "hashes": (hashes, {}),
        "decode": (decode, True),
        "log_prob": (job.log_prob, False),
        "trace": (job.trace, "summary"),
    }
    return values | {name: value for name, (value, default) in usual.items() if value != default}


LIBRARIES = ("torch", "numpy", "scipy", "numba", "llvmlite")
"""Libraries used to compute networks, noise and steps."""

_REASONS = {
    "pathline": "another release may add in a different order",
    "device": "other devices have other kernels",
    "machine": "kernels are chosen and compiled for the type of processor",
    "compute": "the network computes in another precision",
    "path": "the fused network, onnxruntime and the torch module round differently",
    "rows": "kernels are chosen by the number of rows in a call",
    "threads": "torch kernels split sums by the number of threads",
}
_LIBRARY = "another version may have other kernels"


@dataclass(frozen=True)
class Difference:
    """One difference between an earlier answer and this service.

    Attributes:
        what: name of the property.
        answer, here: its value in the answer, and in this service.
        reason: why the bits cannot be promised.
    """

    what: str
    answer: str
    here: str
    reason: str

    def __str__(self) -> str:
        answer, here = (text[:19] if text.startswith("sha256:") else text for text in (self.answer, self.here))
        return f"{self.what} (answer: {answer}; here: {here}; {self.reason})"


def environment_of(process: Mapping[str, str], model: ModelVersion) -> Mapping[str, str]:
    """Return the environment of a model's answers: that of the process, and how the network is evaluated."""
    half = {} if model.card.compute is None else {"compute": model.half or model.card.dtype}
    runtime = installed() if model.path == "onnx" else {}
    rows = {} if model.path == "fused" else {"rows": str(model.row_limit)}  # fused rows are computed one by one
    return {**process, "path": model.path, **rows, **runtime, **half}


@lru_cache(maxsize=4)
def environment(device: str, device_name: str, threads: int) -> Mapping[str, str]:
    """Return the environment of this process by name: release, libraries, device, machine, threads.

    Args:
        device: torch's name for the device; the index among identical devices does not matter.
        device_name: the vendor's name for it.
        threads: CPU threads of the networks.
    """
    kind = device.partition(":")[0]
    cpu = f"{platform.machine()} {binding.get_host_cpu_name()} {torch.backends.cpu.get_cpu_capability()}"
    return {
        "pathline": VERSION,
        **{name: str(torch.__version__) if name == "torch" else version(name) for name in LIBRARIES},
        "device": kind if kind == "cpu" else f"{kind} {device_name}",
        "machine": cpu,
        "threads": str(threads),
    }


def differences_of(answer: Mapping[str, str], here: Mapping[str, str], threads_matter: bool) -> list[Difference]:
    """Return where two environments differ.

    Args:
        answer, here: the environment of the answer, and of this process.
        threads_matter: whether torch computed anything, as its bits depend on the number of threads.
    """
    return [
        Difference(name, answer.get(name, "not named"), here[name], _REASONS.get(name, _LIBRARY))
        for name in here
        if answer.get(name) != here[name] and (name != "threads" or threads_matter)
    ]
