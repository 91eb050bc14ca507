"""Every error is a problem document, wherever it is raised."""

from typing import Any

import pytest

from service.errors import Kind, ProblemError, invalid, invalid_fields

pytestmark = pytest.mark.anyio


def test_slugs_are_unique_and_never_change() -> None:
    slugs = [kind.slug for kind in Kind]
    assert len(set(slugs)) == len(slugs)
    assert sorted(slugs) == [
        "bad-request",
        "body-too-large",
        "deadline-exceeded",
        "draining",
        "engine-failed",
        "forbidden",
        "head-too-large",
        "internal-error",
        "invalid-request",
        "job-too-large",
        "malformed-json",
        "method-not-allowed",
        "model-unavailable",
        "no-frontier",
        "no-such-route",
        "not-acceptable",
        "not-ready",
        "overloaded",
        "replay-differs",
        "request-timeout",
        "too-many-connections",
        "unauthorized",
        "unknown-model",
        "unknown-version",
        "unsupported-media-type",
    ]


def test_document() -> None:
    body = invalid("steps", "steps = 0 is too few", limit=1).body("r1")
    assert body == {
        "type": "/problems/invalid-request",
        "title": "Invalid field: steps",
        "status": 422,
        "detail": "steps = 0 is too few",
        "request_id": "r1",
        "limit": 1,
        "errors": [{"field": "steps", "message": "steps = 0 is too few"}],
    }


def test_long_texts_lose_their_middle() -> None:
    body = invalid("f" * 10**5, f"solver {'x' * 10**5} is unknown; use euler").body("r1")
    for text in (body["detail"], body["errors"][0]["message"], body["errors"][0]["field"]):
        assert len(text) == 1001
        assert "…" in text
    assert body["detail"].startswith("solver xxx")
    assert body["detail"].endswith("is unknown; use euler")


def test_many_faults_are_counted() -> None:
    faults = [{"field": f"f{k}", "message": f"no f{k}"} for k in range(25)]
    body = invalid_fields(faults).body("r1")
    assert body["errors"] == faults[:20]
    assert body["more_errors"] == 5
    assert body["detail"].endswith("no f19; and 5 more")
    assert "more_errors" not in invalid_fields(faults[:20]).body("r1")


def test_response_headers() -> None:
    response = ProblemError(Kind.OVERLOADED, "full", headers={"Retry-After": "2"}).response("r1")
    assert response.status_code == 429
    assert response.headers["retry-after"] == "2"
    assert response.media_type == "application/problem+json"


@pytest.mark.parametrize("path", ["/nothing", "/v1/sample/", "/metrics/", "/v1/models/a/b", "/v3"])
async def test_no_route(shared: Any, path: str) -> None:
    answer = await shared.http.get(path)
    assert answer.status_code == 404
    assert answer.headers["content-type"] == "application/problem+json"
    assert answer.json()["type"] == "/problems/no-such-route"
    assert path in answer.json()["detail"]


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [("GET", "/v1/sample", "POST"), ("POST", "/v1/models", "GET, HEAD"), ("PUT", "/", "GET, HEAD")],
)
async def test_wrong_method(shared: Any, method: str, path: str, allowed: str) -> None:
    answer = await shared.http.request(method, path)
    assert answer.status_code == 405
    assert answer.json()["type"] == "/problems/method-not-allowed"
    assert answer.headers["allow"] == allowed
    assert allowed in answer.json()["detail"]


async def test_internal_error_is_logged_and_keeps_its_secret(
    running: Any, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail() -> list[str]:
        raise ZeroDivisionError("the secret")

    monkeypatch.setattr(running.service.registry, "entries", fail)
    answer = await running.http.get("/v1/models")
    assert answer.status_code == 500
    assert answer.json()["type"] == "/problems/internal-error"
    assert "secret" not in answer.text
    assert answer.json()["request_id"] in caplog.text
    assert "the secret" in caplog.text
