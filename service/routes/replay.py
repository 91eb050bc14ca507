"""``POST /v1/replay``: the request that an earlier answer was for is made again, and the samples are compared."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from typing import Annotated

from fastapi import Response

from models.messages import shown
from service import examples
from service.environment import Difference, differences_of, environment_of
from service.errors import Kind, ProblemError, invalid
from service.http.context import Context
from service.openapi import SAMPLING, Router, requested, solved
from service.registry.version import ModelVersion
from service.requests import pipeline
from service.requests.parsing import check
from service.requests.replays import AGAIN, Answer, arrays_of
from service.requests.schemas import SampleRequest, TimeLimit, Urgency, with_fields
from service.requests.validation import Validated, validate_sample
from service.responses.arrays import ENCODERS, Encoder, digest_of
from service.responses.samples import SampleResponse
from service.responses.solved import closed, described
from service.settings import Settings

router = Router(tags=[SAMPLING], route_class=pipeline.BodyRoute)

_OWN = (*AGAIN, "timeout_s", "priority")


@with_fields(*AGAIN, about="as in the first request, if the answer has only its hash")
class ReplayRequest(Answer):
    """Body of ``POST /v1/replay``: an earlier answer, and the members of which it has only the hash."""

    force: bool = False
    """sample even if the bits cannot be promised; digest_matches says if they are equal"""
    timeout_s: TimeLimit = None
    priority: Urgency = "interactive"


@described
@closed
class ReplayResponse(SampleResponse):
    """Response of ``POST /v1/replay``."""

    digest_matches: bool
    """whether the samples have the bits of the first answer"""
    differences: list[Difference]
    """why the bits could not be promised; empty without `force`"""


_REQUESTS = {"anyway": examples.replay()}
_RESPONSES = solved("/v1/replay", ReplayResponse, "The samples", ENCODERS, Kind.DIFFERS)


@router.post("/v1/replay", summary="Reproduce the samples of an earlier response", responses=_RESPONSES)
async def replay(http: Context, answer: Annotated[ReplayRequest, requested(_REQUESTS)]) -> Response:
    """Reproduce the samples of an earlier response and compare their bits; 409 if these cannot be promised."""
    differences: list[Difference] = []
    valid = await pipeline.make_job(http, _request_of(answer), partial(_validate, answer, differences))
    response = await pipeline.build_response(http, valid, await pipeline.solve(http, valid.job))
    digest = response.document["digest"]
    matches = digest == answer.digest
    if not matches and not differences:
        reason = "the model is not deterministic here" if not valid.model.deterministic else "nothing else differs"
        differences.append(Difference("samples", answer.digest, digest, reason))
        if not answer.force:
            raise _not_promised(differences)
    headers = {"x-pathline-seed": str(valid.job.seed), "x-pathline-digest-matches": str(matches).lower()}
    comparison = {"digest_matches": matches, "differences": [asdict(difference) for difference in differences]}
    response = replace(response, document={**comparison, **response.document})
    return await pipeline.respond(http, valid, response, headers)


def _request_of(answer: ReplayRequest) -> SampleRequest:
    """Return the request that an answer was for.

    Raises:
        ProblemError: 422 for a request that is not allowed, and for a missing member of which the answer has only the
            hash.
    """
    own = {name: getattr(answer, name) for name in _OWN if getattr(answer, name) is not None}
    for name in AGAIN:
        hashed = name in answer.request.hashes
        if hashed and name not in own and name != "conditions":  # conditions may all have been nulls
            raise _only_hashed(name)
        if name in own and not hashed:
            raise invalid(name, f"{name} is in the answer if there was one; leave it out")
    return check(SampleRequest, answer.members() | own)


def _validate(
    answer: ReplayRequest,
    differences: list[Difference],
    request: SampleRequest,
    model: ModelVersion,
    settings: Settings,
    encoder: Encoder,
    http: Context,
) -> Validated:
    """Check a replay, reserve its memory and make its job.

    If the answer is reproduced all the same, `differences` gets those for which the bits cannot be promised.

    Raises:
        ProblemError: 409 if the bits cannot be promised; as in `validate_sample`.
    """

    def check_promise() -> None:
        if differences and not answer.force:
            raise _not_promised(differences)

    differences += _differences(answer, model, http.service.environment)
    check_promise()
    valid = validate_sample(request, model, settings, encoder, http)
    plan, answered = valid.job.plan.tuned or None, answer.solver.get("plan")
    if answered != plan and "plan" not in {difference.what for difference in differences}:
        differences.append(Difference("plan", answered or "none", plan or "none", _OTHER_PLAN))
        check_promise()
    text = valid.job.plan.settings["text"]
    if answer.solver.get("text", text) != text:
        said, repeats = shown(answer.solver["text"]), answer.solver.get("resample", 1)
        again = request.known is not None and repeats != valid.job.plan.spec.resample
        advice = f"give known.resample = {shown(repeats)}" if again else "send it as the answer has it"
        raise invalid("solver", f"its text is {said}, but its members are those of {text}; {advice}")
    arrays = arrays_of(valid.job)
    for name, digest in answer.request.hashes.items():
        if name not in arrays or digest_of(arrays[name]) != digest:
            if getattr(request, name) is None:
                raise _only_hashed(name)
            raise invalid(name, f"{name} is not the one of the first request: its hash differs")
    return valid


def _only_hashed(name: str) -> ProblemError:
    return invalid(name, f"the answer has only the hash of {name}; give {name} again")


_OTHER_PLAN = "another tuned plan gives other samples"


def _not_promised(differences: Sequence[Difference]) -> ProblemError:
    """Return the error for a replay that cannot promise the same bits."""
    detail = f"the same bits cannot be promised: {'; '.join(map(str, differences))}; send force true to sample anyway"
    return ProblemError(Kind.DIFFERS, detail, differences=[asdict(difference) for difference in differences])


def _differences(answer: Answer, model: ModelVersion, environment: Mapping[str, str]) -> Iterator[Difference]:
    if answer.checkpoint != model.digest:
        yield Difference("checkpoint", answer.checkpoint, model.digest, "other weights give other samples")
    plan = answer.solver.get("plan")
    if plan and (model.plans is None or plan not in model.plans.digests):  # its solver may be gone too
        yield Difference("plan", plan, "none of its tuned plans", _OTHER_PLAN)
    if answer.status in ("deadline", "cancelled"):
        yield Difference("answer", "partial", "whole", "the time limit cut it short, which cannot be repeated")
    fused = answer.environment.get("path") == model.path == "fused"
    threads_matter = not fused or (answer.members().get("decode", True) and not model.plain)
    yield from differences_of(answer.environment, environment_of(environment, model), threads_matter)
