from __future__ import annotations

import pickle
import re
from datetime import datetime, timedelta, timezone
from email.utils import format_datetime
from typing import TYPE_CHECKING

import pathline
import pytest
from pathline import Client, errors

if TYPE_CHECKING:
    from tests.clients.conftest import FakeService


def classes() -> list[type[errors.PathlineError]]:
    found = [item for item in vars(errors).values() if isinstance(item, type)]
    return [item for item in found if issubclass(item, errors.PathlineError)]


def test_every_error_is_exported_and_drawn() -> None:
    names = {kind.__name__ for kind in classes()}
    assert names == set(errors.__all__)
    assert names <= set(pathline.__all__)


def test_the_drawn_tree_is_the_tree() -> None:
    parents: list[tuple[int, str]] = []
    drawn: set[str] = set()
    tree = (errors.__doc__ or "").split("::", 1)[1].split("`slug` is")[0]
    for line in filter(str.strip, tree.splitlines()):
        match = re.match(r"([ |+-]*)(\w+)", line)
        assert match is not None, line
        depth, name = len(match[1]), match[2]
        parents = [item for item in parents if item[0] < depth]
        kind = getattr(errors, name)
        if parents:
            assert parents[-1][1] in [base.__name__ for base in kind.__bases__], name
        parents.append((depth, name))
        drawn.add(name)
    assert drawn == set(errors.__all__)


def test_every_error_that_the_service_has_not_named_has_a_slug_of_its_own() -> None:
    own = [kind for kind in classes() if not issubclass(kind, errors.APIError) and kind is not errors.PathlineError]
    assert len({kind.slug for kind in own} - {""}) == len(own) == 6


def test_everything_exported_exists() -> None:
    assert len(set(pathline.__all__)) == len(pathline.__all__)
    assert all(hasattr(pathline, name) for name in pathline.__all__)


def test_a_problem_is_carried_over_in_full(service: FakeService, client: Client) -> None:
    listed = [{"field": "steps", "message": "steps = 0 is not allowed"}]
    service.replies = [service.problem(422, "invalid-request", "steps = 0 is not allowed", errors=listed)]
    with pytest.raises(pathline.InvalidRequest) as caught:
        client.sample("moons", steps=0)
    error = caught.value
    assert (error.status, error.type, error.request_id) == (422, "/problems/invalid-request", "r-1")
    assert error.errors == ({"field": "steps", "message": "steps = 0 is not allowed"},)
    assert str(error) == "steps = 0 is not allowed [422, request r-1]"


@pytest.mark.parametrize(
    ("status", "expected"),
    [(401, "AccessDenied"), (404, "NotFound"), (418, "APIError"), (500, "APIError"), (507, "APIError")],
)
def test_an_answer_without_a_problem_is_told_by_its_status(
    service: FakeService, client: Client, status: int, expected: str
) -> None:
    service.replies = [(status, {"content-type": "text/plain"}, b"no\nsuch luck")]
    with pytest.raises(pathline.APIError, match=f"answered {status} .*: no such luck .*check that the URL") as caught:
        client.models()
    assert type(caught.value).__name__ == expected


def test_a_404_in_the_words_of_another_program_is_a_wrong_address(service: FakeService, client: Client) -> None:
    service.replies = [(404, {"content-type": "application/json"}, b'{"detail": "Not Found"}')]
    with pytest.raises(pathline.NotFound, match=r'answered 404 .*"Not Found".*check that the URL'):
        client.models()


@pytest.mark.parametrize("body", [b"[1]", b"{", b"\xff", b'{"type": 7, "errors": "x", "detail": null}'])
def test_a_problem_document_may_be_nonsense(service: FakeService, client: Client, body: bytes) -> None:
    service.replies = [(422, {"content-type": "application/problem+json"}, body)]
    with pytest.raises(pathline.InvalidRequest, match="answered 422"):
        client.models()


@pytest.mark.parametrize(
    ("header", "member", "low", "high"),
    [
        ("2", None, 2.0, 2.0),
        ("2", 1.25, 1.25, 1.25),
        ("-5", None, 0.0, 0.0),
        pytest.param(
            format_datetime(datetime.now(timezone.utc) + timedelta(hours=2)),  # noqa: UP017  (the SDK's tests run on 3.10)
            None,
            60.0,
            7200.0,
            id="a date",
        ),  # its name is the same in every process that collects the tests
        ("soon", None, None, None),
        ("nan", "inf", None, None),
    ],
)
def test_retry_after(service: FakeService, header: str, member: object, low: float | None, high: float | None) -> None:
    import httpx

    service.replies = [service.problem(429, "overloaded", headers={"retry-after": header}, retry_after_s=member)]
    transport = httpx.MockTransport(service.handle)
    with (
        Client("http://fake", retry=pathline.RetryPolicy(max_attempts=1), transport=transport) as client,
        pytest.raises(pathline.Unavailable) as caught,
    ):
        client.models()
    hint = caught.value.retry_after_s
    assert (hint is None) if low is None or high is None else (hint is not None and low <= hint <= high)


@pytest.mark.parametrize("kind", classes(), ids=lambda kind: kind.__name__)
def test_errors_survive_the_way_between_processes(kind: type[errors.PathlineError]) -> None:
    error = kind(429, "busy", retry_after_s=2.0) if issubclass(kind, errors.APIError) else kind("gone")
    error.attempts = 3
    copy = pickle.loads(pickle.dumps(error))  # noqa: S301 - our own bytes
    assert type(copy) is kind
    assert str(copy) == str(error)
    assert vars(copy) == vars(error)
    assert str(copy).endswith("(gave up after 3 attempts)")


def test_transport_errors_are_what_python_calls_them() -> None:
    assert issubclass(pathline.RequestTimeout, TimeoutError)
    assert issubclass(pathline.TransportError, ConnectionError)
    assert issubclass(pathline.InvalidValue, ValueError)
