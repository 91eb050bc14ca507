"""``POST /v1/sample`` (alias ``/sample``): samples from a model, the solver chosen by the request."""

from typing import Annotated

from fastapi import Response

from service import examples
from service.http.context import Context
from service.openapi import SAMPLING, Router, requested, solved
from service.requests import pipeline
from service.requests.schemas import SampleRequest
from service.requests.validation import validate_sample
from service.responses.arrays import ENCODERS
from service.responses.samples import SampleResponse

router = Router(tags=[SAMPLING], route_class=pipeline.BodyRoute)

_RESPONSES = solved("/v1/sample", SampleResponse, "The samples", ENCODERS)


@router.post("/sample", include_in_schema=False, responses=_RESPONSES)
@router.post("/v1/sample", summary="Draw samples", responses=_RESPONSES)  # applied first, so matched first
async def sample(http: Context, request: Annotated[SampleRequest, requested(examples.REQUESTS)]) -> Response:
    """Draw samples: solve dx/dt = v(x, t) from noise to data with the solver that the request names."""
    valid = await pipeline.make_job(http, request, validate_sample)
    response = await pipeline.build_response(http, valid, await pipeline.solve(http, valid.job))
    return await pipeline.respond(http, valid, response, {"x-pathline-seed": str(valid.job.seed)})
