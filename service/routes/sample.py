"""``POST /v1/sample`` and ``/sample``: one request, one response in the requested format."""

from fastapi import APIRouter, Request, Response

from service.http.negotiation import choose
from service.openapi import SAMPLE_OPERATION
from service.requests import pipeline
from service.requests.parsing import parse
from service.requests.schemas import SampleRequest
from service.requests.validation import validate_sample
from service.responses.arrays import ENCODERS

router = APIRouter()


@router.post("/v1/sample", **SAMPLE_OPERATION)
@router.post("/sample", include_in_schema=False, responses=SAMPLE_OPERATION["responses"])
async def sample(request: Request) -> Response:
    """Draw samples: solve dx/dt = v(x, t) from noise to data with the solver that the request names."""
    encoder = ENCODERS[choose(request.headers.get("accept"), list(ENCODERS))]
    valid = await pipeline.receive(request, lambda body: (parse(SampleRequest, body), encoder), validate_sample)
    response = await pipeline.draw(request, valid)
    headers = {"X-Pathline-Seed": str(valid.job.seed), "Vary": "Accept"}
    return await pipeline.respond(request, response, encoder, headers)
