"""Jobs, results, errors and models as the fields and arrays of messages, see `link`."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields
from functools import lru_cache
from typing import Any

import numpy as np
import orjson
import torch
from numpy.typing import NDArray

import solvers
from engine.job import (
    DeadlineExceeded,
    Draining,
    EngineFailed,
    Job,
    JobResult,
    Outcome,
    Overloaded,
    Priority,
    TooSlow,
)
from engine.result_builder import NAMES
from models.calibration import Agreement
from models.checkpoint.card import Card
from models.decoder import Decoder
from models.guidance import Guidance, Term
from models.named_conditions import Distinct
from models.row_padding import RowCaller
from service.errors import Kind, ProblemError
from service.registry.version import Leases, ModelVersion, PlansFile
from service.workers.link import Arrays, Fields
from solvers import SolverSpec
from solvers.errors import CODES, STATUSES, SolverError
from solvers.plan import Plan
from solvers.trace import Trace
from solvers.tuned import TunedPlan, TunedPlans

Message = tuple[Fields, list[NDArray[Any]]]

_SPEC = tuple(each.name for each in fields(SolverSpec))
_CODES = {status.value: CODES[status] for status in STATUSES}
_TRACE = tuple(each.name for each in fields(Trace))
_PRIORITIES = {each.value: each for each in Priority}


def can_serve(model: ModelVersion) -> bool:
    """Return whether an HTTP worker can handle requests to a model.

    A worker has neither the networks nor the files: it checks a request, and decodes what the engine returns. Models
    with free axes, where requests wait for arenas to be made, and decoder programs stay with the engine's process.
    """
    return not (model.card.bounds or model.decodes_in_engine or model.card.prelude is not None)


# Models.


def model_message(model: ModelVersion) -> Message:
    """Return what a worker needs to know about a version."""
    arrays: list[NDArray[Any]] = []
    message = {
        "name": model.name,
        "version": model.version,
        "digest": model.digest,
        "card": model.card.model_dump_json(),
        "deterministic": model.deterministic,
        "bytes": model.bytes,
        "path": model.path,
        "path_reason": model.path_reason,
        "half": model.half,
        "decoder": _tensors(model.decoder.state_dict(), arrays),
        "nulls": _tensors(model.nulls, arrays),
        "agreement": vars(model.decode.agreement),
        "plans": None if model.plans is None else _plans(model.plans, arrays),
        "plans_fault": model.plans_file.fault,
    }
    return message, arrays


def model_of(message: Fields, arrays: Arrays, leases: Leases) -> ModelVersion:
    """Return the version of a message, without its network."""
    rest = iter(arrays)
    card = Card.model_validate_json(message["card"])
    decoder = Decoder(card.decoder)
    decoder.load_state_dict(_read_tensors(message["decoder"], rest), assign=True)
    nulls = _read_tensors(message["nulls"], rest)
    found = message["agreement"]
    agreement = Agreement(tuple(found["counts"]), tuple(found["buckets"]), found["limit"], found["complete"])
    plans = None if message["plans"] is None else _read_plans(message["plans"], rest)
    same = ("name", "version", "digest", "deterministic", "bytes", "path", "path_reason", "half")
    return ModelVersion(
        **{name: message[name] for name in same},
        card=card,
        decoder=decoder,
        decode=RowCaller(decoder.decode, (), 0, known=agreement),
        nulls=nulls,
        plans_file=PlansFile(plans, message["plans_fault"]),
        leases=leases,
    )


def _tensors(tensors: Mapping[str, torch.Tensor], arrays: list[NDArray[Any]]) -> list[tuple[str, str]]:
    """Add tensors to the arrays, as bytes where numpy lacks the dtype; return their names and dtypes."""
    listed: list[tuple[str, str]] = []
    for name, tensor in tensors.items():
        arrays.append(_array(tensor))
        listed.append((name, str(tensor.dtype).removeprefix("torch.")))
    return listed


def _read_tensors(listed: list[tuple[str, str]], arrays: Iterator[NDArray[Any]]) -> dict[str, torch.Tensor]:
    return {name: _tensor(next(arrays), dtype) for name, dtype in listed}


def _array(tensor: torch.Tensor) -> NDArray[Any]:
    tensor = tensor.detach().cpu().contiguous()
    return (tensor.view(torch.int16) if tensor.dtype is torch.bfloat16 else tensor).numpy()


def _tensor(array: NDArray[Any], dtype: str) -> torch.Tensor:
    """Return a tensor of its own memory."""
    tensor = torch.from_numpy(array.copy())
    return tensor.view(torch.bfloat16) if dtype == "bfloat16" else tensor


def _plans(plans: TunedPlans, arrays: list[NDArray[Any]]) -> list[tuple[int | str, list[str]]]:
    listed: list[tuple[int | str, list[str]]] = []
    for key, plan in (*plans.plans.items(), *plans.grids.items()):
        present = [name for name in ("times", "weights", "x0_weights") if getattr(plan, name) is not None]
        arrays.extend(getattr(plan, name) for name in present)
        listed.append((key, present))
    return listed


def _read_plans(listed: list[tuple[int | str, list[str]]], arrays: Iterator[NDArray[Any]]) -> TunedPlans:
    plans: dict[int, TunedPlan] = {}
    grids: dict[str, TunedPlan] = {}
    for key, present in listed:
        plan = TunedPlan(**{name: next(arrays) for name in present})
        if isinstance(key, int):
            plans[key] = plan
        else:
            grids[key] = plan
    return TunedPlans(plans, grids)


# Jobs.


@lru_cache(maxsize=1024)
def spec_text(plan: Plan) -> str:
    """Return the spec of a plan and the digest of its tuned plan as JSON."""
    return orjson.dumps([{name: getattr(plan.spec, name) for name in _SPEC}, plan.tuned]).decode()


def plan_of(text: str, model: ModelVersion) -> Plan:
    """Compile the spec of `spec_text` for a version.

    Raises:
        ProblemError: 503; the tuned plan has been replaced since the request was checked.
    """
    spec, digest = orjson.loads(text)
    try:
        plan = solvers.compile(SolverSpec(**spec), model.dtype, model.plans, model.compute)
    except SolverError:
        plan = None
    if plan is None or plan.tuned != digest:
        detail = f"the tuned plans of model {model.name!r} have just been replaced; send the request again"
        raise ProblemError(Kind.NOT_READY, detail, headers={"Retry-After": "1"}, retry_after_s=1)
    return plan


def job_message(job: Job) -> Message:
    """Return a job for samples; its model and its callbacks are not part of it."""
    arrays: list[NDArray[Any]] = []
    message: Fields = {
        "spec": spec_text(job.solve),
        "n": job.num_samples,
        "seed": job.seed,
        "first": job.first_index,
        "deadline": job.deadline,
        "trace": job.trace,
        "priority": job.priority,
        "partial": job.partial,
        "bytes": job.bytes,
    }
    if job.conditions is not None:
        message |= {"conditions": _distinct(job.conditions, arrays), "condition_bytes": job.condition_bytes}
    if job.negative is not None:
        message["negative"] = _distinct(job.negative, arrays)
    if job.guidance is not None:
        message["guidance"] = _guidance(job.guidance)
    if job.x0 is not None:
        message["x0"] = _tensors({"x0": job.x0}, arrays)
    if job.save_at is not None:
        message["save_at"] = True
        arrays.append(job.save_at)
    return message, arrays


def job_of(
    message: Fields, arrays: Arrays, model: ModelVersion, plan: Plan, on_logged: Callable[[int], None] | None = None
) -> Job:
    """Return the job of a message, for a version, with its compiled plan and its callback."""
    rest = iter(arrays)
    conditions = _read_distinct(message["conditions"], rest) if "conditions" in message else None
    negative = _read_distinct(message["negative"], rest) if "negative" in message else None
    guidance = _read_guidance(message["guidance"]) if "guidance" in message else None
    x0 = _read_tensors(message["x0"], rest)["x0"] if "x0" in message else None
    return Job(
        model.name,
        model.version,
        plan,
        message["n"],
        message["seed"],
        message["first"],
        x0=x0,
        save_at=next(rest) if "save_at" in message else None,
        deadline=message["deadline"],
        partial=message["partial"],
        trace=message["trace"],
        conditions=conditions,
        guidance=guidance,
        negative=negative,
        priority=_PRIORITIES[message["priority"]],
        on_logged=on_logged,
        bytes=message["bytes"],
        condition_bytes=message.get("condition_bytes", 0),
    )


def _distinct(conditions: Mapping[str, Distinct], arrays: list[NDArray[Any]]) -> list[tuple[str, str, bool]]:
    listed: list[tuple[str, str, bool]] = []
    for name, each in conditions.items():
        arrays.append(_array(each.rows))
        if each.index is not None:
            arrays.append(each.index)
        listed.append((name, str(each.rows.dtype).removeprefix("torch."), each.index is not None))
    return listed


def _read_distinct(listed: list[tuple[str, str, bool]], arrays: Iterator[NDArray[Any]]) -> dict[str, Distinct]:
    found: dict[str, Distinct] = {}
    for name, dtype, indexed in listed:
        rows = _tensor(next(arrays), dtype)
        found[name] = Distinct(rows, next(arrays) if indexed else None)
    return found


def _guidance(guidance: float | Guidance) -> Any:
    if not isinstance(guidance, Guidance):
        return guidance
    terms = [(term.weight, sorted(term.without)) for term in guidance.terms]
    return {"terms": terms, "interval": guidance.interval, "channels": guidance.channels}


def _read_guidance(value: Any) -> float | Guidance:
    if not isinstance(value, dict):
        return value
    interval = None if value["interval"] is None else (value["interval"][0], value["interval"][1])
    terms = tuple(Term(weight, frozenset(without)) for weight, without in value["terms"])
    return Guidance(terms, interval, value["channels"])


# Outcomes.


_EXCEPTIONS: dict[str, tuple[type[Exception], tuple[str, ...]]] = {
    "overloaded": (Overloaded, ("reason", "retry_after_s")),
    "too_slow": (TooSlow, ("needed_s",)),
    "draining": (Draining, ()),
    "late": (DeadlineExceeded, ()),
}
"""The engine's exceptions, with the attributes from which each is made again; all others become `EngineFailed`."""


def outcome_message(outcome: Outcome) -> Message:
    """Return how a job ended."""
    if isinstance(outcome, JobResult):
        return _result_message(outcome)
    if outcome is None:
        return {"error": "cancelled"}, []
    if isinstance(outcome, ProblemError):
        problem = {
            "kind": outcome.kind.name,
            "detail": outcome.detail,
            "errors": outcome.errors,
            "headers": outcome.headers,
            "members": outcome.members,
        }
        return {"error": "problem", "problem": problem}, []
    for name, (kind, attributes) in _EXCEPTIONS.items():
        if isinstance(outcome, kind):
            return {"error": name, "with": [getattr(outcome, each) for each in attributes]}, []
    return {"error": "failed", "with": [str(outcome) or type(outcome).__name__]}, []


def outcome_of(message: Fields, arrays: Arrays) -> Outcome:
    """Return the outcome of a message."""
    error = message.get("error")
    if error is None:
        return _result_of(message, arrays)
    if error == "cancelled":
        return None
    if error == "problem":
        told = message["problem"]
        members = told["members"]
        return ProblemError(
            Kind[told["kind"]], told["detail"], errors=told["errors"], headers=told["headers"], **members
        )
    kind, _ = _EXCEPTIONS.get(error, (EngineFailed, ()))
    return kind(*message["with"])


def _result_message(result: JobResult) -> Message:
    times = [result.rows, result.queue_s, result.solve_s, result.network_s, result.prelude_s, result.decoder_s]
    message: Fields = {"cost": times}
    arrays: list[NDArray[Any]] = [_array(result.x), result.t, result.nfe]
    if result.x.dtype is torch.bfloat16:
        message["bfloat16"] = True
    if (result.status != NAMES[1]).any():
        message["status"] = True
        arrays.append(np.array([_CODES[name] for name in result.status.tolist()], dtype=np.uint8))
    if result.saved is not None:
        message["saved"] = True
        arrays.append(_array(result.saved))
    if len(result.trace):
        message["trace"] = True
        arrays += [getattr(result.trace, name) for name in _TRACE]
    return message, arrays


def _result_of(message: Fields, arrays: Arrays) -> JobResult:
    rest = iter(arrays)
    dtype = "bfloat16" if "bfloat16" in message else ""
    x, t, nfe = _tensor(next(rest), dtype), next(rest), next(rest)
    status = NAMES[next(rest)] if "status" in message else np.full(len(nfe), NAMES[1], NAMES.dtype)
    saved = _tensor(next(rest), dtype) if "saved" in message else None
    trace = Trace(*(next(rest) for _ in _TRACE)) if "trace" in message else Trace.empty()
    return JobResult(x, saved, t, nfe, status, trace, *message["cost"])
