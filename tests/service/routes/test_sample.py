"""Sample requests that succeed: the echo, the formats, failed samples, and the jobs given to the engine."""

import asyncio
import io
import json
import time
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from engine.job import Draining, EngineFailed, JobResult, Overloaded, TooLate, TooManySamples, TooSlow
from models.noise import noise
from service.responses.samples import SampleResponse
from tests.service.serving import conforming

pytestmark = pytest.mark.anyio


async def test_only_the_model_is_required(shared: Any) -> None:
    before = time.monotonic()
    answer = await shared.post()
    body = conforming(SampleResponse, answer.json())
    assert answer.status_code == 200
    assert (body["model"], body["version"], body["noise"]) == ("moons", 2, "philox-ndtri-v1")
    assert body["shape"] == [256, 2]
    assert body["solver"]["rtol"] == 1e-5
    assert (body["status"], body["failed"]) == ("success", [])
    assert (body["nfe"], body["nfe_per_sample"]["min"], body["nfe_per_sample"]["max"]) == (56, 50, 56)
    assert 0 <= body["seed"] < 2**53
    job = shared.engine.jobs[0]
    assert job.plan.adaptive
    assert job.seed == body["seed"]
    assert before + 30 <= job.deadline <= time.monotonic() + 30


@pytest.mark.parametrize("seed", [0, 2**53 + 1, 2**63 - 1])
async def test_seed_is_echoed_exactly(shared: Any, seed: int) -> None:
    answer = await shared.post(seed=seed, num_samples=3)
    assert json.loads(answer.content)["seed"] == seed
    assert answer.headers["x-pathline-seed"] == str(seed)
    expected = noise(seed, 0, 3, (2,)).numpy() + 1
    np.testing.assert_array_equal(np.array(answer.json()["samples"], dtype=np.float32), expected)


async def test_a_drawn_seed_differs(shared: Any) -> None:
    seeds = {(await shared.post(num_samples=1)).json()["seed"] for _ in range(3)}
    assert len(seeds) == 3


async def test_programs_that_read_numbers_as_doubles_send_a_drawn_seed_back(shared: Any) -> None:
    samples, about = {"samples": [[0.5, 0.5]]}, {"num_samples": 1}
    for path, body in (
        ("/v1/sample", {"model": "moons", **about}),
        ("/v1/models/moons/log_prob", {**samples, "divergence": "hutchinson"}),
        ("/v1/models/moons/diagnose", about),
        ("/v2/models/moons/infer", {"parameters": about}),
    ):
        for _ in range(8):
            await shared.http.post(path, json=body)
            seed = shared.engine.jobs[-1].seed
            assert int(float(seed)) == seed < 2**53, path
    answer = await shared.post(num_samples=1)
    assert answer.headers["X-Pathline-Seed"] == str(answer.json()["seed"])


async def test_both_addresses_share_one_handler(shared: Any) -> None:
    body = {"model": "moons", "num_samples": 2, "seed": 5}
    first, second = [(await shared.http.post(path, json=body)).json() for path in ("/sample", "/v1/sample")]
    assert first["samples"] == second["samples"]


async def test_fixed_steps_show_the_grid(shared: Any) -> None:
    body = (await shared.post(solver="rk4", steps=4, num_samples=2)).json()
    assert not shared.engine.jobs[0].plan.adaptive
    assert body["solver"] == {"name": "rk4", "steps": 4, "grid": "uniform", "max_nfe": 10_000, "text": "rk4-4"}
    assert body["trace"] == {
        "sample": [0, 0, 0, 0],
        "t": [0.0, 0.25, 0.5, 0.75],
        "h": [0.25] * 4,
        "error": [None] * 4,
        "accepted": [True] * 4,
    }


@pytest.mark.parametrize(("level", "entries"), [("summary", 2), ("full", 6), ("none", None)])
async def test_trace_of_an_adaptive_solver(shared: Any, level: str, entries: int | None) -> None:
    body = (await shared.post(num_samples=3, trace=level)).json()
    conforming(SampleResponse, body)
    if entries is None:
        assert "trace" not in body
        return
    assert len(body["trace"]["t"]) == entries
    assert ("quantiles" in body["trace"]) == (level == "summary")


async def test_a_long_text_of_a_solver_is_its_grid(shared: Any) -> None:
    times = [0.0, *np.linspace(0.011, 0.987, 20).tolist(), 1.0]
    text = f"euler-21/({','.join(map(str, times))})"
    assert len(text) > 200
    for _ in range(2):
        answer = await shared.post(solver=text, num_samples=2)
        assert answer.status_code == 200, answer.text
    assert shared.engine.jobs[0].plan.times.tolist() == times


async def test_version_is_pinned(running: Any) -> None:
    body = (await running.post(version=1)).json()
    assert body["version"] == 1
    assert running.engine.jobs[0].version == 1


async def test_float64_model_keeps_its_dtype(shared: Any) -> None:
    answer = await shared.http.post("/v1/sample", json={"model": "gaussian", "num_samples": 2, "seed": 1, "rtol": 1e-9})
    expected = noise(1, 0, 2, (2,), torch.float64).numpy() + 1
    np.testing.assert_array_equal(np.array(answer.json()["samples"]), expected)


async def test_decoding_is_optional_and_independent_of_the_number_of_samples(shared: Any) -> None:
    ask = {"model": "digits", "seed": 3}
    npy = {"Accept": "application/x-npy"}
    many = await shared.http.post("/v1/sample", json={**ask, "num_samples": 70}, headers=npy)
    one = await shared.http.post("/v1/sample", json={**ask, "num_samples": 1, "first_index": 69}, headers=npy)
    raw = await shared.http.post("/v1/sample", json={**ask, "num_samples": 70, "decode": False}, headers=npy)
    samples = np.load(io.BytesIO(many.content))
    assert samples.shape == (70, 4, 4)
    np.testing.assert_array_equal(np.load(io.BytesIO(one.content))[0], samples[69])
    np.testing.assert_array_equal(np.load(io.BytesIO(raw.content)), noise(3, 0, 70, (3,)).numpy() + 1)


async def test_start_states_and_span(shared: Any) -> None:
    body = await shared.post(num_samples=2, x0=[[1, 2], [3.5, 4]], t_span=[0.5, 1], save_at=[0.5, 0.75])
    job, content = shared.engine.jobs[0], body.json()
    assert job.x0.tolist() == [[1, 2], [3.5, 4]]
    assert job.x0.dtype == torch.float32
    assert job.plan.t_span == (0.5, 1.0)
    assert content["saved"]["t"] == [0.5, 0.75]
    assert content["saved"]["states"][0] == [[1.5, 2.5], [1.75, 2.75]]


async def test_save_times_snap_to_the_grid(shared: Any) -> None:
    await shared.post(solver="euler", steps=10, num_samples=1, save_at=[0.1 + 0.2])
    job = shared.engine.jobs[0]
    assert job.save_at.tolist() == [job.plan.times[3]]


async def test_failed_samples(shared: Any) -> None:
    def spoil(result: JobResult) -> JobResult:
        result.x[1] = float("inf")
        status = np.array(["success", "non_finite", "max_nfe"])
        return replace(result, status=status, t=np.array([1.0, 0.25, 0.5]))

    shared.engine.edit = spoil
    ask = {"model": "digits", "num_samples": 3, "seed": 0}
    body = conforming(SampleResponse, (await shared.http.post("/v1/sample", json=ask)).json())
    assert body["status"] == "non_finite"
    assert [(f["index"], f["status"], f["t"]) for f in body["failed"]] == [(1, "non_finite", 0.25), (2, "max_nfe", 0.5)]
    assert [row is None for row in body["samples"]] == [False, True, False]
    npy = await shared.http.post("/v1/sample", json=ask, headers={"Accept": "application/x-npy"})
    assert np.isnan(np.load(io.BytesIO(npy.content))[1]).all()


async def test_npz_holds_everything(shared: Any) -> None:
    ask = {"num_samples": 3, "seed": 9, "solver": "euler", "steps": 2, "trace": "full", "save_at": [0.5]}
    plain = (await shared.post(**ask)).json()
    answer = await shared.post({"Accept": "application/x-npz"}, **ask)
    assert answer.headers["content-type"] == "application/x-npz"
    archive = np.load(io.BytesIO(answer.content), allow_pickle=False)
    meta = json.loads(archive["meta"].tobytes())
    np.testing.assert_array_equal(archive["samples"], np.array(plain.pop("samples"), dtype=np.float32))
    np.testing.assert_array_equal(archive["saved"], np.array(plain["saved"].pop("states"), dtype=np.float32))
    assert archive["status"].tolist() == ["success"] * 3
    assert archive["nfe"].dtype == np.int64
    assert archive["t"].tolist() == [1.0] * 3
    trace = plain.pop("trace")
    for name in ("sample", "t", "h", "accepted"):
        assert archive[f"trace_{name}"].tolist() == trace[name]
    assert np.isnan(archive["trace_error"]).all()
    assert meta.pop("latency").keys() == plain.pop("latency").keys()
    assert meta == plain


async def test_large_answers_arrive_whole_in_each_format(shared: Any) -> None:
    ask: dict[str, Any] = {"num_samples": 50_000, "seed": 1, "trace": "full", "max_nfe": 100}
    expected = noise(1, 0, 50_000, (2,)).numpy() + 1
    plain = await shared.post(**ask)
    body = plain.json()
    np.testing.assert_array_equal(np.array(body["samples"], dtype=np.float32), expected)
    assert len(body["trace"]["t"]) == 100_000
    for media, load in (("npz", lambda found: found["samples"]), ("npy", lambda found: found)):
        answer = await shared.post({"Accept": f"application/x-{media}"}, **ask)
        np.testing.assert_array_equal(load(np.load(io.BytesIO(answer.content))), expected)


PNG = {"Accept": "image/png"}


async def test_pictures(shared: Any) -> None:
    points = await shared.post(PNG, num_samples=50, seed=1)
    sheet = await shared.http.post("/v1/sample", json={"model": "digits", "num_samples": 3, "seed": 1}, headers=PNG)
    for answer in (points, sheet):
        assert (answer.status_code, answer.headers["content-type"]) == (200, "image/png")
        assert answer.headers["x-pathline-seed"] == "1"
    assert Image.open(io.BytesIO(points.content)).size == (640, 640)
    image = Image.open(io.BytesIO(sheet.content))
    assert (image.mode, image.size) == ("L", (2 * 130 + 2, 2 * 130 + 2))


async def test_samples_that_cannot_be_drawn_are_refused_before_any_work(shared: Any) -> None:
    ask = {"model": "digits", "decode": False}
    answer = await shared.http.post("/v1/sample", json=ask, headers=PNG)
    assert answer.status_code == 406
    assert "image/png of model 'digits': samples of the shape [3] cannot be drawn" in answer.json()["detail"]
    assert answer.json()["offered"] == ["application/json", "application/x-npz", "application/x-npy"]
    assert shared.engine.jobs == []


async def test_a_sheet_has_a_size(shared: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("models.pictures.MAX_PIXELS", 36 * 10)
    ask = {"model": "digits", "num_samples": 11}
    answer = await shared.http.post("/v1/sample", json=ask, headers=PNG)
    assert answer.status_code == 422
    assert "num_samples = 11 is over the 10 pictures of 4 x 4" in answer.json()["detail"]


ALIKE = {"model": "moons", "num_samples": 20, "solver": "rk4", "steps": 5, "seed": 1}


async def test_requests_alike_differ_in_seed_place_and_time_limit(shared: Any) -> None:
    first = (await shared.http.post("/v1/sample", json=ALIKE)).json()
    for more in ({"seed": 7}, {"seed": 2**63 - 1, "timeout_s": 3}, {"first_index": 5}, {"timeout_s": None}):
        begun = time.monotonic()
        again = (await shared.http.post("/v1/sample", json=ALIKE | more)).json()
        job = shared.engine.jobs[-1]
        wanted = ALIKE | {"first_index": 0} | more
        limit_s = wanted.get("timeout_s") or 30.0
        assert (job.seed, job.first_index) == (again["seed"], again["first_index"])
        assert (job.seed, job.first_index) == (wanted["seed"], wanted["first_index"])
        assert begun + limit_s <= job.deadline <= time.monotonic() + limit_s
        assert again.keys() == first.keys()
        individual = {"seed", "first_index", "samples", "digest", "latency"}
        assert {name for name in first if again[name] != first[name]} <= individual
    assert len(shared.service.kinds) == 1
    drawn = await shared.http.post("/v1/sample", json={**ALIKE, "seed": None})
    assert drawn.json()["seed"] == shared.engine.jobs[-1].seed < 2**53


async def test_only_some_kinds_of_requests_are_kept(shared: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("service.requests.validation._MAX_KINDS", 8)
    for rows in range(1, 12):
        assert (await shared.http.post("/v1/sample", json=ALIKE | {"num_samples": rows})).status_code == 200
    assert [kind.request.num_samples for kind in shared.service.kinds.values()] == list(range(4, 12))


@pytest.mark.parametrize(
    ("path", "more", "headers", "status"),
    [
        *(("/v1/sample", {name: value}, {}, 422) for name, value in (("seed", -1), ("seed", True), ("seed", 2**63))),
        *(("/v1/sample", {"first_index": index}, {}, 422) for index in (-1, None, True, 2**63, 2**63 - 19)),
        *(("/v1/sample", {"timeout_s": limit}, {}, 422) for limit in (0, -1, False, True, 10**400, -(10**400), 601)),
        *(("/v1/sample", {"num_samples": rows}, {}, 422) for rows in (0, True, 2.5, 10**400)),
        ("/v1/sample", {"priority": "bulk"}, {}, 200),
        ("/sample", {}, {}, 200),
        ("/v1/sample", {"solver_options": " " * 1024}, {}, 422),
        ("/v1/sample", {}, {"Content-Type": "text/plain"}, 415),
        ("/v1/sample", {}, {"Content-Encoding": "gzip"}, 415),
        ("/v1/sample", {}, {"Accept": "text/html"}, 406),
        ("/v1/sample", {"solver": None, "steps": None, "budget": {"max_nfe": 20}}, {}, 422),
        ("/v1/sample", {"error_control": "batch", "solver": "dopri5", "steps": None, "first_index": 3}, {}, 422),
    ],
)
async def test_what_only_looks_like_an_earlier_request_is_checked(
    shared: Any, path: str, more: dict[str, Any], headers: dict[str, str], status: int
) -> None:
    batch = {"error_control": "batch", "solver": "dopri5", "steps": None}
    for earlier in (ALIKE, ALIKE | batch):
        assert (await shared.http.post("/v1/sample", json=earlier)).status_code == 200
    answer = await shared.http.post(path, json=ALIKE | more, headers=headers)
    assert answer.status_code == status, answer.text


@pytest.mark.parametrize(
    ("error", "status", "slug"),
    [
        (Overloaded("the queue is full", 2.5), 429, "overloaded"),
        (TooSlow(3.2), 422, "invalid-request"),
        (TooManySamples(300, 128), 422, "invalid-request"),
        (Draining(), 503, "draining"),
        (TooLate(), 504, "deadline-exceeded"),
        (EngineFailed("out of memory"), 500, "engine-failed"),
        (RuntimeError("secret"), 500, "internal-error"),
    ],
)
@pytest.mark.parametrize("where", ["refuse", "fail"])
async def test_engine_errors(shared: Any, error: Exception, status: int, slug: str, where: str) -> None:
    setattr(shared.engine, where, error)
    answer = await shared.post({"X-Request-ID": "abc-1"})
    assert answer.status_code == status
    assert answer.json()["type"] == f"/problems/{slug}"
    assert answer.json()["request_id"] == answer.headers["x-request-id"] == "abc-1"
    assert "secret" not in answer.text
    if status == 429:
        assert answer.headers["retry-after"] == "3"
        assert answer.json()["retry_after_s"] == 2.5


async def test_client_that_leaves_cancels_its_job(shared: Any) -> None:
    shared.engine.hold = True
    app = shared.http._transport.app
    body = json.dumps({"model": "moons"}).encode()
    incoming = [{"type": "http.request", "body": body}, {"type": "http.disconnect"}]
    sent: list[Any] = []

    async def receive() -> Any:
        if len(incoming) == 1:
            while not shared.engine.jobs:
                await asyncio.sleep(0.001)
        return incoming.pop(0)

    async def send(message: Any) -> None:
        sent.append(message)

    headers = [(b"content-type", b"application/json")]
    scope = {"type": "http", "method": "POST", "path": "/v1/sample", "headers": headers, "query_string": b""}
    await asyncio.wait_for(app(scope, receive, send), 60)
    assert len(shared.engine.cancelled) == 1
    assert sent == []
    assert 'outcome="client_gone"' in shared.service.metrics.text().decode()


async def test_a_client_is_only_watched_during_a_long_job(shared: Any) -> None:
    """A watcher is a task and a call to receive; a job that finishes at once needs neither."""
    body = json.dumps({"model": "moons", "num_samples": 1}).encode()
    received, sent, tasks = 0, [], set[asyncio.Task[Any]]()

    async def receive() -> Any:
        nonlocal received
        received += 1
        return {"type": "http.request", "body": body} if received == 1 else await asyncio.Event().wait()

    async def send(message: Any) -> None:
        tasks.update(asyncio.all_tasks())
        sent.append(message)

    headers = [(b"content-type", b"application/json")]
    scope = {"type": "http", "method": "POST", "path": "/v1/sample", "headers": headers, "query_string": b""}
    before = asyncio.all_tasks()
    await shared.http._transport.app(scope, receive, send)
    assert (sent[0]["status"], received, tasks - before) == (200, 1, set())


async def test_a_job_given_up_by_the_engine_is_not_a_cancelled_request(shared: Any) -> None:
    shared.engine.hold = True
    asking = asyncio.ensure_future(shared.post())
    while not shared.engine.jobs:
        await asyncio.sleep(0.001)
    future = shared.engine.submitted[0]
    future.cancel()
    assert (await asking).status_code == 500


async def test_what_is_too_late_is_told_so_however_soon_the_engine_gives_up_its_job(running: Any) -> None:
    running.engine.hold = True
    running.engine.cancel = lambda future: future.cancel()
    assert (await running.post(timeout_s=0.01)).status_code == 504


async def test_small_and_large_bodies_take_the_same_path(shared: Any) -> None:
    x0 = np.arange(20_000, dtype=float).reshape(-1, 2) / 7
    answer = await shared.post(num_samples=10_000, x0=x0.tolist())
    assert answer.status_code == 200
    np.testing.assert_array_equal(shared.engine.jobs[0].x0.numpy(), x0.astype(np.float32))
