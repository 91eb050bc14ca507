"""A response sent before the body has arrived: whole at once; then the rest of the body is dropped, within bounds."""

import asyncio
from typing import Any

import pytest

from service import written
from service.errors import Kind, ProblemError
from service.written import EarlyResponse

pytestmark = pytest.mark.anyio

MORE: dict[str, Any] = {"type": "http.request", "body": b"x" * 10, "more_body": True}
LAST: dict[str, Any] = {"type": "http.request", "body": b"x", "more_body": False}
GONE: dict[str, Any] = {"type": "http.disconnect"}


async def _answer(coming: list[dict[str, Any]], *headers: tuple[bytes, bytes]) -> list[dict[str, Any]]:
    """Answer while messages arrive, and none after the last one; those not read remain in `coming`."""
    sent: list[dict[str, Any]] = []

    async def receive() -> dict[str, Any]:
        assert [message.get("body") for message in sent] == [None, b"no"]  # the response was sent first
        if not coming:
            await asyncio.Event().wait()
        return coming.pop(0)

    async def send(message: Any) -> None:
        sent.append(message)

    await EarlyResponse(b"no", "text/plain", {}, 413)({"type": "http", "headers": list(headers)}, receive, send)
    return sent


@pytest.mark.parametrize("end", [LAST, GONE])
async def test_it_drops_what_comes_to_the_end(end: dict[str, Any]) -> None:
    coming = [MORE, MORE, end, MORE]
    sent = await _answer(coming)
    assert (sent[0]["status"], (b"content-length", b"2") in sent[0]["headers"]) == (413, True)
    assert [message.get("more_body", False) for message in sent[1:]] == [True, False]
    assert coming == [MORE]


async def test_it_does_not_wait_for_those_who_send_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(written, "_IDLE_S", 0.01)
    assert len(await _answer([MORE])) == 3
    assert len(await _answer([])) == 3


async def test_it_drops_so_much_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(written, "_MAX_DRAINED", 25)
    coming = [MORE] * 9
    assert len(await _answer(coming)) == 3
    assert len(coming) == 6


async def test_who_waits_for_a_continue_is_not_waited_for() -> None:
    coming = [MORE]
    assert len(await _answer(coming, (b"expect", b"100-continue"))) == 3
    assert coming == [MORE]


@pytest.mark.parametrize("path", ["/v1/sample", "/v2/models/net/infer"])
def test_a_body_that_is_refused_unread_is_dropped_at_every_address(path: str) -> None:
    problem = ProblemError(Kind.TOO_LARGE, "the body has 99 bytes", unread=True)
    assert isinstance(problem.response("r1", path=path), EarlyResponse)
    assert problem.response("r1", path=path).status_code == 413
    assert not isinstance(ProblemError(Kind.TOO_LARGE, "all of it was read").response("r1", path=path), EarlyResponse)
