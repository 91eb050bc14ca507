"""``POST /v1/sample`` (alias ``/sample``), and ``POST /v1/replay``, which reproduces an earlier response's samples."""

from functools import partial

from fastapi import APIRouter, Request, Response

from service import examples
from service.errors import Kind
from service.http.negotiation import choose, joined
from service.openapi import SAMPLING, solving
from service.replay import Difference
from service.requests import pipeline
from service.requests.parsing import parse
from service.requests.replay import ReplayRequest, not_promised, parse_replay, validate_replay
from service.requests.schemas import SampleRequest
from service.requests.validation import validate_sample
from service.responses.arrays import ENCODERS
from service.responses.samples import replay_response
from service.responses.schemas import ReplayResponse, SampleResponse
from service.state import service_of

router = APIRouter()

_SAMPLE = solving(
    SAMPLING,
    "Draw samples",
    SampleRequest,
    SampleResponse,
    requests=examples.REQUESTS,
    responses=examples.SAMPLES,
    media=ENCODERS,
    what="The samples",
)
_REPLAY = solving(
    SAMPLING,
    "Reproduce the samples of an earlier response",
    ReplayRequest,
    ReplayResponse,
    requests={"anyway": examples.REPLAY},
    responses={"anyway": examples.REPLAYED},
    media=ENCODERS,
    what="The samples",
    kinds=[Kind.DIFFERS],
)


@router.post("/v1/sample", **_SAMPLE)
@router.post("/sample", include_in_schema=False, responses=_SAMPLE["responses"])
async def sample(request: Request) -> Response:
    """Draw samples: solve dx/dt = v(x, t) from noise to data with the solver that the request names."""
    encoder = ENCODERS[choose(joined(request.headers, "accept"), tuple(ENCODERS))]
    valid = await pipeline.receive(request, lambda body: (parse(SampleRequest, body), encoder), validate_sample)
    response = await pipeline.draw(request, valid)
    headers = {"X-Pathline-Seed": str(valid.job.seed), "Vary": "Accept"}
    return await pipeline.respond(request, response, encoder, headers)


@router.post("/v1/replay", **_REPLAY)
async def replay(request: Request) -> Response:
    """Reproduce the samples of an earlier response and compare their bits; 409 if these cannot be promised."""
    encoder = ENCODERS[choose(joined(request.headers, "accept"), tuple(ENCODERS))]
    validate = partial(validate_replay, service_of(request).environment)
    valid = await pipeline.receive(request, lambda body: (parse_replay(body), encoder), validate)
    response = await pipeline.draw(request, valid)
    digest = response.document["digest"]
    matches = digest == valid.digest
    differences = list(valid.differences)
    if not matches and not differences:
        reason = "the model is not deterministic here" if not valid.model.deterministic else "nothing else differs"
        differences.append(Difference("samples", valid.digest, digest, reason))
        if not valid.force:
            raise not_promised(differences)
    headers = {
        "X-Pathline-Seed": str(valid.job.seed),
        "X-Pathline-Digest-Matches": str(matches).lower(),
        "Vary": "Accept",
    }
    return await pipeline.respond(request, replay_response(response, matches, differences), encoder, headers)
