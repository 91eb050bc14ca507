"""What the OpenAPI description says of the operations."""

from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel

from service.openapi import BINARY, SOLVING_PROBLEMS, asked, shown
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
    body: type[BaseModel], answer: type[BaseModel], requests: Mapping[str, Any], answers: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the arguments of a route."""
    content = {"application/json": shown(answers), NPZ: BINARY}
    found = {"model": answer, "description": "What was found, in the format that Accept asks for", "content": content}
    return {"openapi_extra": asked(body, requests), "responses": {200: found, **SOLVING_PROBLEMS}}


ENCODE = _described(EncodeRequest, EncodeResponse, examples.ENCODE, examples.ENCODED)
LOG_PROB = _described(LogProbRequest, LogProbResponse, examples.LOG_PROB, examples.LOG_PROBS)
DIAGNOSE = _described(DiagnoseRequest, DiagnoseResponse, examples.DIAGNOSE, examples.DIAGNOSED)
