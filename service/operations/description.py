"""What the OpenAPI description says of the operations."""

from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel

from service.openapi import ANALYSIS, BINARY, SOLVING_PROBLEMS, asked, shown
from service.operations import examples
from service.operations.schemas import (
    DiagnoseRequest,
    DiagnoseResponse,
    EncodeRequest,
    EncodeResponse,
    LogProbRequest,
    LogProbResponse,
)
from service.responses.findings import NPZ


def _described(
    summary: str,
    body: type[BaseModel],
    answer: type[BaseModel],
    requests: Mapping[str, Any],
    answers: Mapping[str, Any],
) -> dict[str, Any]:
    """Return the arguments of a route."""
    content = {"application/json": shown(answers), NPZ: BINARY}
    found = {"model": answer, "description": "What was found, in the format that Accept asks for", "content": content}
    described = {"tags": [ANALYSIS], "summary": summary, "openapi_extra": asked(body, requests)}
    return described | {"responses": {200: found, **SOLVING_PROBLEMS}}


ENCODE = _described("Map data to noise", EncodeRequest, EncodeResponse, examples.ENCODE, examples.ENCODED)
LOG_PROB = _described("Compute log-densities", LogProbRequest, LogProbResponse, examples.LOG_PROB, examples.LOG_PROBS)
DIAGNOSE = _described(
    "Diagnose the velocity field", DiagnoseRequest, DiagnoseResponse, examples.DIAGNOSE, examples.DIAGNOSED
)
