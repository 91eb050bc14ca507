"""Replays: the body of ``POST /v1/replay``, and the validation of the request in its token."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Annotated, Any, Literal

from pydantic import Field, PrivateAttr, WithJsonSchema

from service.errors import Kind, ProblemError, invalid, invalid_fields
from service.ledger import Take
from service.registry.version import ModelVersion
from service.replay import (
    MAX_CHARACTERS,
    Difference,
    Token,
    TokenError,
    arrays_of,
    decode,
    differences,
    digest_of,
    environment_of,
)
from service.requests.parsing import check, parse
from service.requests.schemas import CONDITIONS_SCHEMA, GRID_SCHEMA, X0_SCHEMA, Body, Positive, SampleRequest
from service.requests.validation import Validated, validate_sample
from service.responses.arrays import Encoder
from service.settings import Settings

AGAIN = ("condition", "conditions", "negative", "x0", "grid", "save_at")
"""Members that a token may hold only as a hash; the client then sends them again."""

_OWN = (*AGAIN, "timeout_s", "priority")


class ReplayRequest(Body):
    """Body of ``POST /v1/replay``: a token, and the members stored in it only as a hash."""

    token: str = Field(min_length=1, max_length=MAX_CHARACTERS + 64, description="the member `replay` of an answer")
    force: bool = Field(
        default=False, description="sample even if the bits cannot be promised; digest_matches says if they are equal"
    )
    condition: Any = Field(default=None, description="as in the first request, if the token holds only its hash")
    conditions: Annotated[Any, WithJsonSchema(CONDITIONS_SCHEMA)] = None
    negative: Annotated[Any, WithJsonSchema(CONDITIONS_SCHEMA)] = None
    x0: Annotated[Any, WithJsonSchema(X0_SCHEMA)] = None
    grid: Annotated[Any, WithJsonSchema(GRID_SCHEMA)] = None
    save_at: Any = Field(default=None, description="as in the first request, if the token holds only its hash")
    timeout_s: Positive | None = Field(default=None, description="time limit in seconds, queueing included")
    priority: Literal["interactive", "bulk"] = Field(
        default="interactive", description="bulk yields to interactive requests, which take most of the time"
    )


class ReplayedSample(SampleRequest):
    """The request stored in a token."""

    _token: Token = PrivateAttr()
    _force: bool = PrivateAttr(default=False)

    @property
    def token(self) -> Token:
        """The token."""
        return self._token

    @property
    def force(self) -> bool:
        """Whether to sample even if the bits cannot be promised."""
        return self._force


@dataclass(frozen=True)
class ValidatedReplay(Validated):
    """A validated replay.

    Attributes:
        token: the token to replay.
        force: whether to answer with samples of other bits.
        differences: why the bits cannot be promised; empty without `force`.
    """

    token: Token = None  # type: ignore[assignment]  (always given)
    force: bool = False
    differences: Sequence[Difference] = ()


def parse_replay(body: bytes) -> ReplayedSample:
    """Return the request stored in the token of a body.

    Raises:
        ProblemError: 422 for a text that is not a token, for a token with a request that is not allowed, and for a
            missing member stored in the token only as a hash; 400 and 413 as for other bodies.
    """
    parsed = parse(ReplayRequest, body)
    try:
        content = decode(parsed.token)
    except TokenError as error:
        raise invalid("token", f"the token cannot be read: {error}") from None
    try:
        token = parse(Token, content, "content of the token")
    except ProblemError as problem:
        raise _as_token_problem(problem, ()) from None
    own = {name: getattr(parsed, name) for name in _OWN if getattr(parsed, name) is not None}
    for name in AGAIN:
        if name in token.given and name not in own and name != "conditions":  # conditions may all have been nulls
            raise _only_hashed(name)
        if name in own and name not in token.given:
            raise invalid(name, f"{name} is in the token if there was one; leave it out")
    try:
        request = check(ReplayedSample, token.request() | own)
    except ProblemError as problem:
        raise _as_token_problem(problem, own) from None
    request._token, request._force = token, parsed.force
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
        ProblemError: 409 if the bits cannot be promised; as in `validate_sample`, but naming the token.
    """
    token = request.token
    found = _differences(token, model, environment)
    if found and not request.force:
        raise not_promised(found)
    try:
        valid = validate_sample(request, model, settings, encoder, take)
    except ProblemError as problem:
        raise _as_token_problem(problem, (*token.given, "timeout_s")) from None
    plan = valid.job.solve.tuned or None
    if token.plan != plan and "plan" not in {each.what for each in found}:
        found.append(Difference("plan", token.plan or "none", plan or "none", _OTHER_PLAN))
        if not request.force:
            raise not_promised(found)
    arrays = arrays_of(valid.job)
    for name, digest in token.given.items():
        if name not in arrays or digest_of(arrays[name]) != digest:
            if getattr(request, name) is None:
                raise _only_hashed(name)
            raise invalid(name, f"{name} is not the one that the token was made with: its hash differs")
    same = {field.name: getattr(valid, field.name) for field in fields(Validated)}
    return ValidatedReplay(**same, token=token, force=request.force, differences=found)


def _only_hashed(name: str) -> ProblemError:
    return invalid(name, f"the token holds only the hash of {name}; give {name} again")


_OTHER_PLAN = "another tuned plan gives other samples"


def not_promised(found: Sequence[Difference]) -> ProblemError:
    """Return the error for a replay that cannot promise the same bits."""
    detail = f"the same bits cannot be promised: {'; '.join(map(str, found))}; send force true to sample anyway"
    return ProblemError(Kind.DIFFERS, detail, differences=[each.document() for each in found])


def _differences(token: Token, model: ModelVersion, environment: Mapping[str, str]) -> list[Difference]:
    found: list[Difference] = []
    if token.checkpoint != model.digest:
        found.append(Difference("checkpoint", token.checkpoint, model.digest, "other weights give other samples"))
    if token.plan and (model.plans is None or token.plan not in model.plans.digests):  # its solver may be gone too
        found.append(Difference("plan", token.plan, "none of its tuned plans", _OTHER_PLAN))
    if token.partial:
        reason = "the time limit cut it short, which cannot be repeated"
        found.append(Difference("answer", "partial", "whole", reason))
    fused = token.environment.get("path") == model.path == "fused"
    threads_matter = not fused or (token.decode and not model.plain)
    return [*found, *differences(token.environment, environment_of(environment, model), threads_matter)]


def _as_token_problem(problem: ProblemError, given: Any) -> ProblemError:
    """Return an error in the token's request as one of `token`; fields sent along with the token keep their names."""
    if problem.kind not in (Kind.INVALID, Kind.MALFORMED, Kind.TOO_LARGE):
        return problem
    faults = problem.errors or [{"field": "token", "message": problem.detail}]
    return invalid_fields(
        [
            fault
            if fault["field"] in given or fault["field"] == "token"
            else {"field": "token", "message": f"the request in the token is not allowed: {fault['message']}"}
            for fault in faults
        ]
    )
