"""gzip for those who accept it; a length for HTTP/1.0; headers that all responses have."""

import gzip
import json
from typing import Any

import httpx
import pytest

from service.http.compression import LEAST_BYTES

pytestmark = pytest.mark.anyio

MANY = {"num_samples": 500, "solver": "euler", "steps": 2, "seed": 1}


async def _raw(shared: Any, method: str, path: str, coding: str, **sent: Any) -> tuple[httpx.Response, bytes]:
    async with shared.http.stream(method, path, headers={"Accept-Encoding": coding}, **sent) as answer:
        return answer, b"".join([piece async for piece in answer.aiter_raw()])


@pytest.mark.parametrize(
    ("method", "path", "sent"),
    [
        ("POST", "/v1/sample", {"json": {"model": "moons", **MANY}}),
        ("POST", "/v1/sample", {"json": {"model": "moons", **MANY, "num_samples": 50_000}}),  # sent in pieces
        ("POST", "/v2/models/moons/infer", {"json": {"parameters": MANY}}),
        ("GET", "/v1/solvers", {}),
        ("GET", "/metrics", {}),
    ],
)
async def test_json_and_metrics_are_compressed(shared: Any, method: str, path: str, sent: dict[str, Any]) -> None:
    plain, content = await _raw(shared, method, path, "gzip;q=0, identity", **sent)
    packed, zipped = await _raw(shared, method, path, "gzip", **sent)
    assert "content-encoding" not in plain.headers
    assert (packed.headers["content-encoding"], len(content) > LEAST_BYTES) == ("gzip", True)
    for answer in (plain, packed):
        assert "Accept-Encoding" in answer.headers["vary"]
    unpacked = gzip.decompress(zipped)
    assert len(zipped) < 0.7 * len(content)
    assert "content-length" not in packed.headers or int(packed.headers["content-length"]) == len(zipped)
    if path == "/metrics":
        assert unpacked[:40] == content[:40] == b"# HELP pathline_requests_total Finished "
    elif path != "/v1/solvers":
        name = "outputs" if path.startswith("/v2") else "samples"
        assert json.loads(unpacked)[name] == json.loads(content)[name]


@pytest.mark.parametrize(("path", "coding"), [("/v1/solvers", "gzip"), ("/v1/solvers", "identity"), ("/", "gzip")])
async def test_head_has_the_headers_of_get(shared: Any, path: str, coding: str) -> None:
    read, _ = await _raw(shared, "GET", path, coding)
    head, content = await _raw(shared, "HEAD", path, coding)
    assert (head.status_code, content) == (200, b"")
    names = ("content-encoding", "content-length", "content-type", "vary", "etag", "cache-control")
    assert [head.headers.get(name) for name in names] == [read.headers.get(name) for name in names]


@pytest.mark.parametrize(("path", "accept"), [("/livez", "*/*"), ("/v1/sample", "application/x-npz")])
async def test_small_responses_and_other_formats_are_not(shared: Any, path: str, accept: str) -> None:
    sent = {"json": {"model": "moons", **MANY}} if path == "/v1/sample" else {}
    answer = await shared.http.request(
        "POST" if sent else "GET", path, headers={"Accept-Encoding": "gzip", "Accept": accept}, **sent
    )
    assert answer.status_code == 200
    assert "content-encoding" not in answer.headers


async def test_no_response_may_be_taken_for_another_type(shared: Any) -> None:
    for path in ("/", "/livez", "/metrics", "/nowhere", "/docs", "/v2", "/static/main.js", "/static/index.html"):
        assert (await shared.http.get(path)).headers["x-content-type-options"] == "nosniff"
    for path in ("/", "/static/index.html", "/static/icon.svg", "/docs", "/problems"):
        answer = await shared.http.get(path, headers={"Accept": "text/html"})
        assert answer.headers["content-security-policy"].startswith("default-src 'none'")


async def test_a_list_of_tags_may_come_on_several_lines(shared: Any) -> None:
    tag = (await shared.http.get("/static/main.js")).headers["etag"]
    for tags, status in (
        ([tag], 304),
        (['"x"', f"W/{tag}"], 304),
        (['"x", "y"', tag], 304),
        (["*"], 304),
        (['"x"'], 200),
        ([tag[:-2]], 200),
        ([f"x{tag}"], 200),
    ):
        headers = [("If-None-Match", each) for each in tags]
        assert (await shared.http.get("/static/main.js", headers=headers)).status_code == status


@pytest.mark.parametrize("path", ["/", "/static/main.js"])
async def test_what_has_not_changed_varies_as_before(shared: Any, path: str) -> None:
    read = await shared.http.get(path)
    again = await shared.http.get(path, headers={"If-None-Match": read.headers["etag"]})
    assert again.status_code == 304
    assert again.headers["vary"] == read.headers["vary"]
    assert "Accept-Encoding" in read.headers["vary"]


async def test_a_format_may_be_accepted_on_a_line_of_its_own(shared: Any) -> None:
    lines = [("Accept", "text/html"), ("Accept", "application/x-npy")]
    answer = await shared.http.post("/v1/sample", json={"model": "moons", "num_samples": 1}, headers=lines)
    assert answer.headers["content-type"] == "application/x-npy"
