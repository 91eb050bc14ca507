"""What Triton's clients and perf_analyzer ask for besides the protocol: configuration, statistics, repository index.

Source: https://github.com/triton-inference-server/server/tree/main/docs/protocol, extension_model_configuration.md,
extension_statistics.md and extension_model_repository.md. Models cannot be loaded or unloaded here.
"""

from typing import Any

from pydantic import BaseModel, ConfigDict, Field, RootModel

from engine.job import SAMPLE
from service.errors import Kind
from service.oip.description import PLATFORM, UNKNOWN, UNREADY, metadata, refusals
from service.openapi import answered, json_body
from service.registry.registry import Registry
from service.registry.version import ModelVersion
from service.state import Service

UNTRIED = "not loaded yet; a request that names this version loads it"


class TensorConfig(BaseModel):
    """An input or output of a model in Triton's terms; -1 in its dimensions means any size."""

    name: str
    data_type: str
    dims: list[int]
    optional: bool = False


class ModelConfig(BaseModel):
    """Response of ``GET /v2/models/{model}/config``; a batch is part of the shapes, so `max_batch_size` is 0."""

    name: str
    platform: str
    backend: str
    max_batch_size: int
    version_policy: dict[str, Any]
    input: list[TensorConfig]
    output: list[TensorConfig]
    model_transaction_policy: dict[str, bool]


class Duration(BaseModel):
    """Number and total time of something."""

    count: int
    ns: int


class ModelStatistics(BaseModel):
    """Counts since the start of the service, of all versions of a model.

    A request of any endpoint for samples counts once, when its samples are ready; `execution_count` is the number of
    network calls, which requests share. Times that are not measured by model are 0.
    """

    name: str
    version: str
    last_inference: int
    inference_count: int
    execution_count: int
    inference_stats: dict[str, Duration]
    batch_stats: list[Any]


class Statistics(BaseModel):
    """Response of ``GET /v2/models/{model}/stats`` and ``GET /v2/models/stats``."""

    model_config = ConfigDict(protected_namespaces=())

    model_stats: list[ModelStatistics]


class IndexRequest(BaseModel):
    """Body of ``POST /v2/repository/index``, which may be empty."""

    model_config = ConfigDict(strict=True, extra="forbid")

    ready: bool = Field(default=False, description="leave out versions that do not answer")


class IndexEntry(BaseModel):
    """A version of a model."""

    name: str
    version: str
    state: str = Field(description="READY, LOADING or UNAVAILABLE")
    reason: str


class RepositoryIndex(RootModel[list[IndexEntry]]):
    """Response of ``POST /v2/repository/index``."""


_CONFIG = {
    "name": "moons",
    "platform": PLATFORM,
    "backend": "pathline",
    "max_batch_size": 0,
    "version_policy": {"latest": {"num_versions": 1}},
    "input": [{"name": "x0", "data_type": "TYPE_FP32", "dims": [-1, 2], "optional": True}],
    "output": [{"name": "samples", "data_type": "TYPE_FP32", "dims": [-1, 2], "optional": False}],
    "model_transaction_policy": {"decoupled": False},
}
_STATS = {
    "name": "moons",
    "version": "2",
    "last_inference": 0,
    "inference_count": 12,
    "execution_count": 240,
    "inference_stats": {
        "success": {"count": 12, "ns": 150_000_000},
        "queue": {"count": 12, "ns": 2_000_000},
        "compute_infer": {"count": 12, "ns": 148_000_000},
        "fail": {"count": 0, "ns": 0},
    },
    "batch_stats": [],
}

CONFIG = answered(ModelConfig, moons=_CONFIG) | refusals(*UNKNOWN, *UNREADY)
STATISTICS = answered(Statistics, all={"model_stats": [_STATS]})
MODEL_STATISTICS = answered(Statistics, moons={"model_stats": [_STATS]}) | refusals(*UNKNOWN, *UNREADY)
_ENTRY = {"name": "moons", "version": "2", "state": "READY", "reason": ""}
INDEX: dict[str, Any] = {
    "openapi_extra": json_body(IndexRequest, {"all": {}, "ready": {"ready": True}}),
    "responses": answered(RepositoryIndex, all=[_ENTRY])
    | refusals(Kind.MALFORMED, Kind.INVALID, Kind.TOO_LARGE, Kind.MEDIA),
}
INDEX["openapi_extra"]["requestBody"]["required"] = False


def configuration(model: ModelVersion, versions: list[int]) -> dict[str, Any]:
    """Return the configuration of a model."""
    described = metadata(model, versions)
    return {
        "name": model.name,
        "platform": PLATFORM,
        "backend": "pathline",
        "max_batch_size": 0,
        "version_policy": {"latest": {"num_versions": 1}},
        "input": [_tensor(tensor) | {"optional": True} for tensor in described["inputs"]],
        "output": [_tensor(tensor) for tensor in described["outputs"]],
        "model_transaction_policy": {"decoupled": False},
    }


def _tensor(described: dict[str, Any]) -> dict[str, Any]:
    datatype = "STRING" if described["datatype"] == "BYTES" else described["datatype"]
    return {"name": described["name"], "data_type": f"TYPE_{datatype}", "dims": described["shape"], "optional": False}


def statistics(service: Service, models: list[tuple[str, int]]) -> dict[str, Any]:
    """Return the statistics of models, given their names and the versions that answer."""
    return {"model_stats": [_statistics(service, name, version) for name, version in models]}


def _statistics(service: Service, name: str, version: int) -> dict[str, Any]:
    metrics = service.metrics
    count, queue_s = metrics.queue_seconds.total(name)
    _, solve_s = metrics.solve_seconds.total(name)
    calls, _ = metrics.batch_rows.total(name, SAMPLE.name)
    seconds = {"success": queue_s + solve_s, "queue": queue_s, "compute_infer": solve_s}
    unknown = ("fail", "compute_input", "compute_output", "cache_hit", "cache_miss")
    counted = {part: {"count": count, "ns": round(s * 1e9)} for part, s in seconds.items()}
    return {
        "name": name,
        "version": str(version),
        "last_inference": 0,
        "inference_count": count,
        "execution_count": calls,
        "inference_stats": counted | {part: {"count": 0, "ns": 0} for part in unknown},
        "batch_stats": [],
    }


def index(registry: Registry, only_ready: bool) -> list[dict[str, str]]:
    """Return all versions of all models with their state."""
    entries = []
    for name in registry.names():
        found = registry.describe(name)
        ready = {served["version"] for served in found["served"]}
        faults = {fault["version"]: fault["reason"] for fault in found["unavailable"]}
        for version in found["versions"] or [version or 0 for version in faults]:
            reason = faults.get(version or None, "")
            state = "READY" if version in ready else "UNAVAILABLE"
            if state != "READY" and not reason:
                state, reason = ("LOADING", "") if found["status"] == "loading" else (state, UNTRIED)
            entries.append({"name": name, "version": str(version), "state": state, "reason": reason})
    return [entry for entry in entries if entry["state"] == "READY" or not only_ready]
