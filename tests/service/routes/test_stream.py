"""Streams in process: events, errors before and after the start, and clients that disconnect or read slowly."""

import asyncio
import io
import json
from base64 import b64decode
from typing import Any

import numpy as np
import pytest

from engine.job import JobProgress, Overloaded, TooLate
from service.http import events as events_of_http
from service.requests.schemas import SampleRequest
from service.requests.sizes import response_bytes
from service.routes import stream as route
from solvers import resolve

pytestmark = pytest.mark.anyio


def events(text: str) -> list[tuple[str, Any]]:
    found = []
    for block in text.split("\n\n"):
        if block and not block.startswith(":"):
            name, data = block.split("\n", 1)
            found.append((name.removeprefix("event: "), json.loads(data.removeprefix("data: "))))
    return found


async def test_events_in_order_and_the_body_of_a_plain_request(running: Any) -> None:
    body = {"model": "moons", "num_samples": 3, "seed": 5, "solver": "rk4", "steps": 4, "save_at": [0.25, 1.0]}
    answer = await running.http.post("/v1/sample/stream", json=body)
    assert (answer.status_code, answer.headers["content-type"]) == (200, "text/event-stream; charset=utf-8")
    found = events(answer.text)
    assert [name for name, _ in found] == ["start", "sample", "sample", "progress", "completed"]
    assert (found[0][1]["seed"], found[0][1]["nfe_bound"]) == (5, 16)
    assert [state["t"] for _, state in found[1:3]] == [0.25, 1.0]
    assert found[3][1]["share"] == 1
    plain = (await running.post(**body)).json()
    assert {**found[4][1], "latency": 0} == {**plain, "latency": 0}
    assert [state["states"] for _, state in found[1:3]] == [
        list(t) for t in zip(*plain["saved"]["states"], strict=True)
    ]


async def test_the_result_comes_as_npz_if_requested(running: Any) -> None:
    body = {"model": "moons", "num_samples": 300, "seed": 5, "solver": "dopri5", "trace": "full", "save_at": [0.5]}
    accept = {"Accept": "text/event-stream; Completed=npz; q=0.9"}
    found = events((await running.http.post("/v1/sample/stream", json=body, headers=accept)).text)
    plain = await running.http.post("/v1/sample", json=body, headers={"Accept": "application/x-npz"})
    assert found[-1][0] == "completed"
    with (
        np.load(io.BytesIO(b64decode(found[-1][1]["npz"]))) as streamed,
        np.load(io.BytesIO(plain.content)) as expected,
    ):
        assert streamed.files == expected.files
        for name in set(expected.files) - {"meta"}:
            assert streamed[name].dtype == expected[name].dtype
            np.testing.assert_array_equal(streamed[name], expected[name])
        metas = [json.loads(each["meta"].tobytes()) for each in (streamed, expected)]
    assert {**metas[0], "latency": 0} == {**metas[1], "latency": 0}


async def test_errors_before_the_start_are_responses_and_later_ones_events(running: Any) -> None:
    assert (await running.http.post("/v1/sample/stream", json={"model": "none"})).status_code == 404
    refused = await running.http.post("/v1/sample/stream", json={"model": "moons"}, headers={"Accept": "image/png"})
    assert refused.status_code == 406
    running.engine.refuse = Overloaded("the queue is full", 7.2)
    full = await running.http.post("/v1/sample/stream", json={"model": "moons"})
    assert (full.status_code, full.headers["Retry-After"]) == (429, "8")
    running.engine.refuse, running.engine.fail = None, TooLate()
    late = events((await running.http.post("/v1/sample/stream", json={"model": "moons"})).text)
    assert [name for name, _ in late] == ["start", "error"]
    assert (late[1][1]["status"], late[1][1]["type"]) == (504, "/problems/deadline-exceeded")
    assert 'outcome="504",route="/v1/sample/stream"' in (await running.http.get("/metrics")).text


async def test_a_quiet_stream_is_kept_alive_and_a_disconnect_ends_its_job(
    running: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(events_of_http, "KEEP_ALIVE_S", 0.01)
    running.engine.hold = True
    sent, body = [], json.dumps({"model": "moons"}).encode()
    enough = asyncio.Event()

    async def receive() -> dict[str, Any]:
        if not sent:
            return {"type": "http.request", "body": body, "more_body": False}
        await enough.wait()
        return {"type": "http.disconnect"}

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)
        if len(sent) > 4:
            enough.set()

    headers = [(b"content-type", b"application/json")]
    scope = {"type": "http", "method": "POST", "path": "/v1/sample/stream", "raw_path": b"/v1/sample/stream"}
    scope |= {"headers": headers, "query_string": b"", "root_path": "", "scheme": "http", "http_version": "1.1"}
    app = running.http._transport.app
    await asyncio.wait_for(app(scope, receive, send), 60)
    assert b": keep-alive\n\n" in [message.get("body") for message in sent]
    assert running.engine.cancelled == running.engine.submitted
    assert 'outcome="client_gone",route="/v1/sample/stream"' in (await running.http.get("/metrics")).text


async def test_a_reader_gets_only_the_newest_progress(running: Any) -> None:
    running.engine.hold = True
    asking = asyncio.create_task(running.http.post("/v1/sample/stream", json={"model": "moons"}))
    while not running.engine.submitted:
        await asyncio.sleep(0.001)
    [job], [future] = running.engine.jobs, running.engine.submitted
    await asyncio.to_thread(lambda: [job.on_progress(JobProgress(k, 0.0, 0.0, 0)) for k in range(100)])
    for k in range(100, 10_000):
        job.on_progress(JobProgress(k, 0.0, 0.0, 0))
    for _ in range(3):
        await asyncio.sleep(0.001)
    future.set_result(running.engine._result(job))
    progress = [document["nfe"] for name, document in events((await asking).text) if name == "progress"]
    assert progress[-2] == 9_999
    assert len(progress) <= 102


@pytest.mark.parametrize("spare", [-1, 0, 700])
async def test_a_stream_never_exceeds_the_limit_of_responses(running: Any, spare: int) -> None:
    """Saved states are sent twice; progress is sent while there is room for it."""
    body: dict[str, Any] = {"model": "moons", "num_samples": 400, "solver": "rk4", "steps": 4, "trace": "none"}
    body |= {"save_at": [0.25, 0.5, 1.0]}
    with await running.service.lease("moons", None) as model:
        pass
    solve = resolve(solver="rk4", steps=4, dtype=model.dtype)
    limit = response_bytes(SampleRequest(**body), model, solve, route._EVENTS) + spare
    settings = running.service.settings.model_copy(update={"max_answer_bytes": limit})
    object.__setattr__(running.service, "settings", settings)
    if spare < 0:
        refused = await running.http.post("/v1/sample/stream", json=body)
        assert (refused.status_code, refused.json()["limit_bytes"]) == (422, limit)
        return
    running.engine.hold = True
    asking = asyncio.create_task(running.http.post("/v1/sample/stream", json=body))
    while not running.engine.submitted:
        await asyncio.sleep(0.001)
    [job], [future] = running.engine.jobs, running.engine.submitted
    for k in range(100):
        job.on_progress(JobProgress(k, 0.1, 0.1, 0))
        await asyncio.sleep(0)
        await asyncio.sleep(0.001)
    result = running.engine._result(job)
    for states in (result.x, result.saved):
        states.fill_(-6.3184107e-06)  # the most characters that a number takes
    future.set_result(result)
    answer = await asking
    assert len(answer.content) <= limit
    names = [name for name, _ in events(answer.text)]
    assert names[-5:] == ["sample", "sample", "sample", "progress", "completed"]
    assert (names.count("progress") > 1) == (spare > 0)
    assert names.count("progress") < 10
    assert len(answer.content) > 0.6 * limit
