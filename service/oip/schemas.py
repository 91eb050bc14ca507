"""Bodies of the Open Inference Protocol, and of what Triton's clients and perf_analyzer ask for besides.

Sources: https://github.com/kserve/open-inference-protocol, specification/protocol/inference_rest.md, and
https://github.com/triton-inference-server/server/tree/main/docs/protocol, extension_model_configuration.md,
extension_statistics.md and extension_model_repository.md.
"""

from typing import Annotated, Any, NotRequired

from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, PrivateAttr, model_validator
from typing_extensions import TypedDict

from service.requests.parsing import with_few_unknown
from service.requests.schemas import SampleRequest
from service.requests.tensors import tensor_fields
from service.responses.solved import closed, described, written_as

REQUESTS: dict[str, Any] = {
    "seed": {"parameters": {"num_samples": 2, "seed": 0, "solver": "rk4", "steps": 5}},
    "states": {
        "id": "from-two-points",
        "parameters": {"solver": "dopri5", "rtol": 1e-6, "atol": 1e-6},
        "inputs": [{"name": "x0", "shape": [2, 2], "datatype": "FP32", "data": [0.1, 0.2, -0.3, 0.4]}],
        "outputs": [{"name": "samples"}, {"name": "nfe"}],
    },
}
"""Example requests: samples of a seed; samples from given start states, with selected outputs."""

_TENSORS = tensor_fields(SampleRequest).items()
NAMED = {"condition" if name == "conditions" else name: name for name, mark in _TENSORS if mark.named}
"""Inputs with a name after a point, and the members of a sample request that hold them."""

INPUTS = ", ".join((*(name for name, mark in _TENSORS if not mark.named), *(f"{name}.NAME" for name in NAMED)))
"""All inputs, in words."""

Parameters = dict[str, Any]
Size = Annotated[int, Field(ge=0, lt=2**31)]


class _Tensor(BaseModel):
    """Base of tensor descriptions in requests."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)

    @model_validator(mode="before")
    @classmethod
    def _few(cls, content: Any) -> Any:
        return with_few_unknown(cls, content) if isinstance(content, dict) else content


class InputTensor(_Tensor):
    """An input tensor: `data` as a flat or nested list, or `binary_data_size` bytes after the JSON part."""

    name: str
    shape: list[Size] = Field(max_length=16, fail_fast=True)
    datatype: str
    parameters: Parameters = Field(default_factory=dict)
    data: list[Any] | None = None


class RequestedOutput(_Tensor):
    """A requested output; with the parameter `binary_data` its bytes follow the JSON part of the response."""

    name: str
    parameters: Parameters = Field(default_factory=dict)


class InferRequest(BaseModel):
    """Body of ``POST /v2/models/{model}/infer``; every member is optional.

    The parameters are the scalar members of ``POST /v1/sample``, under the same names.
    """

    model_config = ConfigDict(
        strict=True, extra="forbid", frozen=True, protected_namespaces=(), use_attribute_docstrings=True
    )

    id: str | None = Field(default=None, max_length=1000)
    """echoed in the response"""
    model_name: str | None = None
    """the name in the path, which KServe's client repeats here"""
    parameters: Parameters = Field(default_factory=dict)
    """scalar members of a sample request"""
    inputs: list[InputTensor] = Field(default_factory=list, fail_fast=True, description=INPUTS)
    outputs: list[RequestedOutput] = Field(default_factory=list, fail_fast=True)
    """all outputs by default"""
    _tensors: dict[str, NDArray[Any]] = PrivateAttr(default_factory=dict)

    @property
    def tensors(self) -> dict[str, NDArray[Any]]:
        """The arrays of the inputs by name, from JSON or from the bytes after it."""
        return self._tensors


class OutputTensor(TypedDict):
    """An output tensor; without `data` its bytes follow the JSON part, in the order of the outputs."""

    name: str
    shape: list[int]
    datatype: str
    parameters: NotRequired[Parameters]
    data: NotRequired[Annotated[Any, written_as(list[Any])]]


@closed
class InferResponse(TypedDict):
    """Response of ``POST /v2/models/{model}/infer``; non-finite numbers are null in JSON."""

    model_name: str
    model_version: str
    id: NotRequired[str]
    parameters: Parameters
    outputs: list[OutputTensor]


@closed
class ErrorBody(TypedDict):
    """Error response under ``/v2``: the fault, the values allowed and the remedy."""

    error: str


class ServerMetadata(TypedDict):
    """Response of ``GET /v2``."""

    name: str
    version: str
    extensions: list[str]


class ModelReady(TypedDict):
    """Response of ``GET /v2/models/{model}/ready``."""

    name: str
    ready: bool


class TensorMetadata(TypedDict):
    """An input or output of a model; -1 in its shape means any size."""

    name: str
    datatype: str
    shape: list[int]
    parameters: NotRequired[dict[str, Any]]


class ModelMetadata(TypedDict):
    """Response of ``GET /v2/models/{model}``."""

    name: str
    versions: list[str]
    platform: str
    inputs: list[TensorMetadata]
    outputs: list[TensorMetadata]


@described
class ModelConfig(TypedDict):
    """Response of ``GET /v2/models/{model}/config``; a batch is part of the shapes, so `max_batch_size` is 0."""

    name: str
    platform: str
    backend: str
    max_batch_size: int
    version_policy: dict[str, Any]
    input: list[dict[str, Any]]
    """name, data_type, dims (-1 is any size), optional"""
    output: list[dict[str, Any]]
    model_transaction_policy: dict[str, bool]


@described
class ModelStatistics(TypedDict):
    """Counts since the start of the service, of all versions of a model.

    A request of any endpoint for samples counts once, when its samples are ready; `execution_count` is the number of
    network calls, which requests share. Times that are not measured by model are 0.
    """

    name: str
    version: str
    last_inference: int
    inference_count: int
    execution_count: int
    inference_stats: dict[str, dict[str, int]]
    """`count` and `ns`, the total time"""
    batch_stats: list[Any]


class Statistics(TypedDict):
    """Response of ``GET /v2/models/{model}/stats`` and ``GET /v2/models/stats``."""

    model_stats: list[ModelStatistics]


class IndexRequest(BaseModel):
    """Body of ``POST /v2/repository/index``, which may be empty."""

    model_config = ConfigDict(strict=True, extra="forbid", use_attribute_docstrings=True)

    ready: bool = False
    """leave out versions that do not answer"""


@described
class IndexEntry(TypedDict):
    """A version of a model."""

    name: str
    version: str
    state: str
    """READY, LOADING or UNAVAILABLE"""
    reason: str
