"""What a model's inputs and outputs are called and look like."""

from typing import Any

from models.conditions import LabelCondition
from service.registry.served import Served
from service.responses.traces import COLUMNS

_FLOATS = {"float32": "FP32", "float64": "FP64"}
_TRACE = {"sample": "INT64", "t": "FP64", "h": "FP64", "error": "FP64", "accepted": "BOOL"}

PLATFORM = "pathline_safetensors"


def metadata(model: Served, versions: list[int]) -> dict[str, Any]:
    """Return the answer of ``GET /v2/models/{model}``; -1 stands for any number."""
    card = model.card
    number, data = _FLOATS[card.dtype], _FLOATS[card.data_dtype]
    inputs = [_tensor("x0", number, -1, *model.event_shape)]
    if isinstance(card.condition, LabelCondition):
        inputs.append(_tensor("condition", "INT64", -1))
    elif card.condition is not None:
        inputs.append(_tensor("condition", number, -1, card.condition.width))
    inputs += [_tensor("grid", "FP64", -1), _tensor("save_at", "FP64", -1), _tensor("t_span", "FP64", 2)]
    outputs = [
        _tensor("samples", data, -1, *card.data_shape),
        _tensor("nfe", "INT64", -1),
        _tensor("t", "FP64", -1),
        _tensor("status", "BYTES", -1),
        _tensor("saved", data, -1, -1, *card.data_shape),
        *(_tensor(f"trace_{name}", _TRACE[name], -1) for name in COLUMNS),
    ]
    versions_ = [str(version) for version in versions]
    return {"name": model.name, "versions": versions_, "platform": PLATFORM, "inputs": inputs, "outputs": outputs}


def _tensor(name: str, datatype: str, *shape: int) -> dict[str, Any]:
    return {"name": name, "datatype": datatype, "shape": list(shape)}
