"""Bodies of the Open Inference Protocol as pydantic models.

Source: https://github.com/kserve/open-inference-protocol, specification/protocol/inference_rest.md
"""

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, model_validator

from service.requests.parsing import with_few_unknown

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

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True, protected_namespaces=())

    id: str | None = Field(default=None, max_length=1000, description="echoed in the response")
    model_name: str | None = Field(default=None, description="the name in the path, which KServe's client repeats here")
    parameters: Parameters = Field(default_factory=dict, description="scalar members of a sample request")
    inputs: list[InputTensor] = Field(
        default_factory=list,
        fail_fast=True,
        description="x0, condition, condition.NAME, negative.NAME, grid, save_at, t_span",
    )
    outputs: list[RequestedOutput] = Field(default_factory=list, fail_fast=True, description="all outputs by default")


class OutputTensor(BaseModel):
    """An output tensor; without `data` its bytes follow the JSON part, in the order of the outputs."""

    name: str
    shape: list[int]
    datatype: str
    parameters: Parameters | None = None
    data: list[Any] | None = None


class InferResponse(BaseModel):
    """Response of ``POST /v2/models/{model}/infer``; non-finite numbers are null in JSON."""

    model_config = ConfigDict(extra="forbid", protected_namespaces=())

    model_name: str
    model_version: str
    id: str | None = None
    parameters: Parameters
    outputs: list[OutputTensor]


class ErrorBody(BaseModel):
    """Error response under ``/v2``: the fault, the values allowed and the remedy."""

    model_config = ConfigDict(extra="forbid")

    error: str


class ServerMetadata(BaseModel):
    """Response of ``GET /v2``."""

    name: str
    version: str
    extensions: list[str]


class Health(BaseModel):
    """Response of ``GET /v2/health/live`` and ``GET /v2/health/ready``."""

    live: bool | None = None
    ready: bool | None = None


class ModelReady(BaseModel):
    """Response of ``GET /v2/models/{model}/ready``."""

    name: str
    ready: bool


class TensorMetadata(BaseModel):
    """An input or output of a model; -1 in its shape means any size."""

    name: str
    datatype: str
    shape: list[int]


class ModelMetadata(BaseModel):
    """Response of ``GET /v2/models/{model}``."""

    name: str
    versions: list[str]
    platform: str
    inputs: list[TensorMetadata]
    outputs: list[TensorMetadata]
