"""What ``/v2`` says of models: their tensors in the terms of the protocol and of Triton, statistics, all versions."""

import json
from typing import Any

from engine.job import SAMPLE
from models.conditions import ONE
from service.oip.schemas import IndexEntry, ModelConfig, ModelMetadata, ModelStatistics, TensorMetadata
from service.oip.tensors import NAMES
from service.registry.registry import Registry
from service.registry.version import ModelVersion
from service.requests.schemas import SampleRequest
from service.requests.tensors import tensor_fields
from service.responses.samples import COLUMNS
from service.state import Service

PLATFORM = "pathline_safetensors"
UNTRIED = "not loaded yet; a request that names this version loads it"
_TRACE = {"sample": "INT64", "t": "FP64", "h": "FP64", "error": "FP64", "accepted": "BOOL"}


def metadata(model: ModelVersion, versions: list[int]) -> ModelMetadata:
    """Return the response of ``GET /v2/models/{model}``; -1 means any size."""
    card = model.card
    number, data = NAMES[card.dtype], NAMES[card.data_dtype]
    inputs = [_tensor("x0", number, -1, *card.event_shape)]
    takes = model.request_conditions
    named = {} if takes is None else {name: takes.entries[name] for name in takes.in_requests}
    single = tuple(named) == (ONE,)
    for member in ("condition",) if single else ("condition", "negative"):
        for name, entry in named.items():
            key = ONE if single else f"{member}.{name}"
            standardised = entry.is_standardised and entry.torch_dtype.is_floating_point
            # Other datatypes of its kind are accepted, too.
            datatype = number if standardised else NAMES.get(entry.dtype, "FP32")
            inputs.append(_tensor(key, datatype, -1, *entry.shape))
    shape = card.data_shape if model.numberwise else card.event_shape
    inputs += [_tensor("known.values", data if model.numberwise else number, -1, *shape)]
    inputs += [_tensor("known.mask", "BOOL", -1, *shape)]
    times = [name for name, mark in tensor_fields(SampleRequest).items() if mark.axes == 1]
    inputs += [_tensor(name, "FP64", 2 if name == "t_span" else -1) for name in times]
    samples = _tensor("samples", data, -1, *card.data_shape)
    if card.decoder.columns:
        samples["parameters"] = {"columns": json.dumps([column.described() for column in card.decoder.columns])}
    outputs = [
        samples,
        _tensor("nfe", "INT64", -1),
        _tensor("t", "FP64", -1),
        _tensor("status", "BYTES", -1),
        _tensor("saved", data, -1, -1, *card.data_shape),
        _tensor("log_prob", "FP64", -1, -1),
        *(_tensor(f"trace_{name}", _TRACE[name], -1) for name in COLUMNS),
    ]
    return {
        "name": model.name,
        "versions": [str(version) for version in versions],
        "platform": PLATFORM,
        "inputs": inputs,
        "outputs": outputs,
    }


def _tensor(name: str, datatype: str, *shape: int | str) -> TensorMetadata:
    sizes = [-1 if isinstance(size, str) else size for size in shape]
    return {"name": name, "datatype": datatype, "shape": sizes}


def configuration(model: ModelVersion) -> ModelConfig:
    """Return the configuration of a model."""

    def configured(tensor: TensorMetadata) -> dict[str, Any]:
        datatype = "STRING" if tensor["datatype"] == "BYTES" else tensor["datatype"]
        return {"name": tensor["name"], "data_type": f"TYPE_{datatype}", "dims": tensor["shape"]}

    described = metadata(model, [])
    return {
        "name": model.name,
        "platform": PLATFORM,
        "backend": "pathline",
        "max_batch_size": 0,
        "version_policy": {"latest": {"num_versions": 1}},
        "input": [configured(tensor) | {"optional": True} for tensor in described["inputs"]],
        "output": [configured(tensor) | {"optional": False} for tensor in described["outputs"]],
        "model_transaction_policy": {"decoupled": False},
    }


def statistics(service: Service, name: str, version: int) -> ModelStatistics:
    """Return the statistics of a model, with the version that answers."""
    metrics = service.metrics
    count, queue_s = metrics.histograms["queue_seconds"].total(name)
    _, solve_s = metrics.histograms["solve_seconds"].total(name)
    calls, _ = metrics.histograms["batch_rows"].total(name, SAMPLE.name)
    seconds = {"success": queue_s + solve_s, "queue": queue_s, "compute_infer": solve_s}
    unmeasured = ("fail", "compute_input", "compute_output", "cache_hit", "cache_miss")
    return {
        "name": name,
        "version": str(version),
        "last_inference": 0,
        "inference_count": count,
        "execution_count": calls,
        "inference_stats": {
            **{part: {"count": count, "ns": round(s * 1e9)} for part, s in seconds.items()},
            **{part: {"count": 0, "ns": 0} for part in unmeasured},
        },
        "batch_stats": [],
    }


def index(registry: Registry, only_ready: bool) -> list[IndexEntry]:
    """Return all versions of all models with their state."""
    entries: list[IndexEntry] = []
    for entry in registry.entries():
        for version in entry.versions or entry.broken:
            fault, state = entry.broken.get(version), "READY" if entry.state(version).answers else "UNAVAILABLE"
            reason = "" if fault is None else fault.reason
            if state != "READY" and not reason:
                state, reason = ("LOADING", "") if entry.pending else (state, UNTRIED)
            entries.append({"name": entry.name, "version": str(version), "state": state, "reason": reason})
    return [entry for entry in entries if entry["state"] == "READY" or not only_ready]
