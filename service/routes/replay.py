"""``POST /v1/replay``: the samples of an earlier answer again, by its token."""

from functools import partial
from typing import Any

from fastapi import APIRouter, Request, Response

from service import examples
from service.errors import Kind
from service.http.negotiation import choose
from service.openapi import BINARY, SAMPLING, SOLVING_PROBLEMS, asked, problems, shown
from service.replay.environment import Difference
from service.requests import pipeline
from service.requests.replay import ReplayRequest, not_promised, parse_replay, validate_replay
from service.responses.arrays import ENCODERS
from service.responses.replay import replay_response
from service.responses.schemas import ReplayResponse
from service.state import service_of

router = APIRouter()

_OPERATION: dict[str, Any] = {
    "tags": [SAMPLING],
    "summary": "Draw the samples of an earlier answer again",
    "openapi_extra": asked(ReplayRequest, {"anyway": examples.REPLAY}),
    "responses": {
        200: {
            "model": ReplayResponse,
            "description": "The samples, in the format that Accept asks for",
            "content": {"application/json": shown({"anyway": examples.REPLAYED})}
            | {media: BINARY for media in ENCODERS if media != "application/json"},
        },
        **problems(Kind.DIFFERS),
        **SOLVING_PROBLEMS,
    },
}


@router.post("/v1/replay", **_OPERATION)
async def replay(request: Request) -> Response:
    """Draw the samples of an earlier answer again and compare their bits; 409 where these cannot be promised."""
    encoder = ENCODERS[choose(request.headers.get("accept"), list(ENCODERS))]
    validate = partial(validate_replay, service_of(request).environment)
    valid = await pipeline.receive(request, lambda body: (parse_replay(body), encoder), validate)
    response = await pipeline.draw(request, valid)
    digest = response.document["digest"]
    matches = digest == valid.token.digest
    differences = list(valid.differences)
    if not matches and not differences:
        told = "the model is not deterministic here" if not valid.model.deterministic else "nothing else differs"
        differences.append(Difference("samples", valid.token.digest, digest, told))
        if not valid.force:
            raise not_promised(differences)
    headers = {
        "X-Pathline-Seed": str(valid.job.seed),
        "X-Pathline-Digest-Matches": str(matches).lower(),
        "Vary": "Accept",
    }
    return await pipeline.respond(request, replay_response(response, matches, differences), encoder, headers)
