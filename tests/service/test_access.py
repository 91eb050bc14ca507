"""Keys, the addresses that need none, and pages of other origins."""

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from pydantic import SecretStr
from starlette.datastructures import Headers

from service.access import require_admin
from service.app import create_app
from service.errors import ProblemError
from service.settings import Settings

pytestmark = pytest.mark.anyio

Serve = Callable[..., AbstractAsyncContextManager[httpx.AsyncClient]]
ASK = {"model": "moons", "num_samples": 1}
KEYS = (SecretStr("first-key"), SecretStr("second-key"))


@pytest.fixture
def serve(repository: Path, engine: Any) -> Serve:
    @asynccontextmanager
    async def started(**settings: Any) -> AsyncIterator[httpx.AsyncClient]:
        app = create_app(Settings(models_dir=repository, **settings), engine)
        transport = httpx.ASGITransport(app)
        async with (
            app.router.lifespan_context(app),
            httpx.AsyncClient(transport=transport, base_url="http://x") as http,
        ):
            yield http

    return started


@pytest.mark.parametrize(
    "headers",
    [
        {"Authorization": "Bearer first-key"},
        {"Authorization": "bearer second-key"},
        {"X-API-Key": "second-key"},
        {"X-API-Key": "wrong", "Authorization": "Bearer first-key"},
        {"X-API-Key": "the-admin"},
    ],
)
async def test_keys(serve: Serve, headers: dict[str, str]) -> None:
    async with serve(api_keys=KEYS, admin_key=SecretStr("the-admin")) as http:
        assert (await http.post("/v1/sample", json=ASK, headers=headers)).status_code == 200
        assert (await http.get("/v1/models", headers=headers)).status_code == 200


@pytest.mark.parametrize(
    ("headers", "challenge"),
    [
        ({}, 'Bearer realm="pathline"'),
        ({"Authorization": "Basic first-key"}, 'Bearer realm="pathline"'),
        ({"Authorization": "Bearer "}, 'Bearer realm="pathline"'),
        ({"Authorization": "Bearer first-ke"}, 'Bearer realm="pathline", error="invalid_token"'),
        ({"X-API-Key": "first-key,second-key"}, 'Bearer realm="pathline", error="invalid_token"'),
        ({"X-API-Key": "é"}, 'Bearer realm="pathline", error="invalid_token"'),
    ],
)
async def test_without_a_key(serve: Serve, headers: dict[str, str], challenge: str) -> None:
    raw = [(name.encode(), value.encode("latin-1")) for name, value in headers.items()]
    async with serve(api_keys=KEYS) as http:
        for method, path in (("POST", "/v1/sample"), ("POST", "/sample"), ("GET", "/v1/models"), ("GET", "/nowhere")):
            answer = await http.request(method, path, headers=raw)
            assert answer.status_code == 401
            assert answer.headers["content-type"] == "application/problem+json"
            assert answer.headers["www-authenticate"] == challenge
            assert answer.json()["request_id"] == answer.headers["x-request-id"]
            assert not any(key.get_secret_value() in answer.text for key in KEYS)
        for path in ("/", "/docs", "/openapi.json", "/livez", "/readyz", "/metrics"):
            assert (await http.get(path)).status_code == 200
        assert 'outcome="401"' in (await http.get("/metrics")).text


async def test_health_and_metrics_can_be_closed(serve: Serve) -> None:
    async with serve(api_keys=KEYS, open_health=False, open_metrics=False) as http:
        for path in ("/livez", "/readyz", "/metrics"):
            assert (await http.get(path)).status_code == 401
            assert (await http.get(path, headers={"X-API-Key": "first-key"})).status_code == 200


async def test_no_keys_no_lock(serve: Serve) -> None:
    async with serve() as http:
        assert (await http.get("/v1/models", headers={"X-API-Key": "anything"})).status_code == 200


@pytest.mark.parametrize(
    ("key", "headers", "status"),
    [
        (None, {}, 403),
        (None, {"x-api-key": ""}, 403),
        ("boss", {}, 401),
        ("boss", {"x-api-key": "bos"}, 401),
        ("boss", {"x-api-key": "boss"}, None),
        ("boss", {"authorization": "Bearer boss"}, None),
    ],
)
def test_admin(key: str | None, headers: dict[str, str], status: int | None) -> None:
    settings = Settings(admin_key=None if key is None else SecretStr(key))
    if status is None:
        require_admin(Headers(headers), settings)
        return
    with pytest.raises(ProblemError) as caught:
        require_admin(Headers(headers), settings)
    assert caught.value.kind.value.status == status


async def test_other_origins_are_refused_by_default(serve: Serve) -> None:
    async with serve() as http:
        answer = await http.get("/v1/models", headers={"Origin": "https://a.example"})
        assert not [name for name in answer.headers if name.startswith("access-control")]


async def test_origins(serve: Serve) -> None:
    preflight = {
        "Access-Control-Request-Method": "POST",
        "Access-Control-Request-Headers": "authorization,content-type",
    }
    async with serve(cors_origins=("https://a.example",), api_keys=KEYS) as http:
        for origin, allowed in (("https://a.example", True), ("https://b.example", False)):
            asked = await http.options("/v1/sample", headers={"Origin": origin, **preflight})
            answer = await http.get("/livez", headers={"Origin": origin})
            refused = await http.get("/v1/models", headers={"Origin": origin})
            for each in (asked, answer, refused):
                assert (each.headers.get("access-control-allow-origin") == origin) is allowed
            assert (asked.status_code == 200) is allowed
            assert refused.status_code == 401
        assert "X-Request-ID" in answer.headers.get("access-control-expose-headers", "X-Request-ID")
