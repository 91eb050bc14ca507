"""Replays: the body of ``POST /v1/replay``, an earlier answer, and the validation of the request that it answered."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Annotated, Any, Literal

from pydantic import Field, PrivateAttr, WithJsonSchema

from service.errors import Kind, ProblemError, invalid
from service.ledger import Take
from service.registry.version import ModelVersion
from service.replay import Answer, Difference, arrays_of, differences, digest_of, environment_of
from service.requests.parsing import check, parse
from service.requests.schemas import CONDITIONS_SCHEMA, X0_SCHEMA, Positive, SampleRequest
from service.requests.tensors import Tensor
from service.requests.validation import Validated, validate_sample
from service.responses.arrays import Encoder
from service.settings import Settings

AGAIN = ("condition", "conditions", "negative", "x0")
"""Members of which an answer may have only the hash; the client then sends them again."""

_OWN = (*AGAIN, "timeout_s", "priority")


class ReplayRequest(Answer):
    """Body of ``POST /v1/replay``: an earlier answer, and the members of which it has only the hash."""

    force: bool = Field(
        default=False, description="sample even if the bits cannot be promised; digest_matches says if they are equal"
    )
    condition: Annotated[Any, Tensor()] = Field(
        default=None, description="as in the first request, if the answer has only its hash"
    )
    conditions: Annotated[Any, WithJsonSchema(CONDITIONS_SCHEMA), Tensor(named=True)] = None
    negative: Annotated[Any, WithJsonSchema(CONDITIONS_SCHEMA), Tensor(named=True)] = None
    x0: Annotated[Any, WithJsonSchema(X0_SCHEMA), Tensor()] = None
    timeout_s: Positive | None = Field(default=None, description="time limit in seconds, queueing included")
    priority: Literal["interactive", "bulk"] = Field(
        default="interactive", description="bulk yields to interactive requests, which take most of the time"
    )


class ReplayedSample(SampleRequest):
    """The request that an answer was for."""

    _replay: ReplayRequest = PrivateAttr()

    @property
    def replay(self) -> ReplayRequest:
        """The answer."""
        return self._replay


@dataclass(frozen=True, kw_only=True)
class ValidatedReplay(Validated):
    """A validated replay.

    Attributes:
        digest: of the samples of the first answer.
        force: whether to answer with samples of other bits.
        differences: why the bits cannot be promised; empty without `force`.
    """

    digest: str
    force: bool
    differences: Sequence[Difference]


def parse_replay(body: bytes) -> ReplayedSample:
    """Return the request that the answer in a body was for.

    Raises:
        ProblemError: 422 for a body that is no answer, for a request that is not allowed, and for a missing member of
            which the answer has only the hash; 400 and 413 as for other bodies.
    """
    parsed = parse(ReplayRequest, body)
    own = {name: getattr(parsed, name) for name in _OWN if getattr(parsed, name) is not None}
    for name in AGAIN:
        hashed = name in parsed.request.hashes
        if hashed and name not in own and name != "conditions":  # conditions may all have been nulls
            raise _only_hashed(name)
        if name in own and not hashed:
            raise invalid(name, f"{name} is in the answer if there was one; leave it out")
    request = check(ReplayedSample, parsed.members() | own)
    request._replay = parsed
    return request


def validate_replay(
    environment: Mapping[str, str],
    request: ReplayedSample,
    model: ModelVersion,
    settings: Settings,
    encoder: Encoder,
    take: Take,
) -> ValidatedReplay:
    """Check a replay, reserve its memory and make its job; arguments as in `validate_sample`.

    Args:
        environment: the environment of this process.

    Raises:
        ProblemError: 409 if the bits cannot be promised; as in `validate_sample`.
    """
    answer = request.replay
    found = _differences(answer, model, environment)
    if found and not answer.force:
        raise not_promised(found)
    valid = validate_sample(request, model, settings, encoder, take)
    plan = valid.job.solve.tuned or None
    if answer.plan != plan and "plan" not in {each.what for each in found}:
        found.append(Difference("plan", answer.plan or "none", plan or "none", _OTHER_PLAN))
        if not answer.force:
            raise not_promised(found)
    arrays = arrays_of(valid.job)
    for name, digest in answer.request.hashes.items():
        if name not in arrays or digest_of(arrays[name]) != digest:
            if getattr(request, name) is None:
                raise _only_hashed(name)
            raise invalid(name, f"{name} is not the one of the first request: its hash differs")
    same = {field.name: getattr(valid, field.name) for field in fields(Validated)}
    return ValidatedReplay(**same, digest=answer.digest, force=answer.force, differences=found)


def _only_hashed(name: str) -> ProblemError:
    return invalid(name, f"the answer has only the hash of {name}; give {name} again")


_OTHER_PLAN = "another tuned plan gives other samples"


def not_promised(found: Sequence[Difference]) -> ProblemError:
    """Return the error for a replay that cannot promise the same bits."""
    detail = f"the same bits cannot be promised: {'; '.join(map(str, found))}; send force true to sample anyway"
    return ProblemError(Kind.DIFFERS, detail, differences=[each.document() for each in found])


def _differences(answer: Answer, model: ModelVersion, environment: Mapping[str, str]) -> list[Difference]:
    found: list[Difference] = []
    if answer.checkpoint != model.digest:
        found.append(Difference("checkpoint", answer.checkpoint, model.digest, "other weights give other samples"))
    if answer.plan and (model.plans is None or answer.plan not in model.plans.digests):  # its solver may be gone too
        found.append(Difference("plan", answer.plan, "none of its tuned plans", _OTHER_PLAN))
    if answer.partial:
        reason = "the time limit cut it short, which cannot be repeated"
        found.append(Difference("answer", "partial", "whole", reason))
    fused = answer.environment.get("path") == model.path == "fused"
    threads_matter = not fused or (answer.request.decode is not False and not model.plain)
    return [*found, *differences(answer.environment, environment_of(environment, model), threads_matter)]
