"""Keys, routes that need none, and pages of other origins."""

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from pydantic import SecretStr
from starlette.datastructures import Headers

from service.app import create_app
from service.errors import ProblemError
from service.http.access import require_admin
from service.settings import Settings

pytestmark = pytest.mark.anyio

Serve = Callable[..., AbstractAsyncContextManager[httpx.AsyncClient]]
ASK = {"model": "moons", "num_samples": 1}
KEYS = (SecretStr("first-key"), SecretStr("second-key"))


@pytest.fixture
def serve(repository: Path, engine: Any) -> Serve:
    @asynccontextmanager
    async def started(**settings: Any) -> AsyncIterator[httpx.AsyncClient]:
        app = create_app(Settings(models_dir=repository, watch_s=0, **settings), engine)
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
        [("X-API-Key", "wrong"), ("X-API-Key", "second-key")],
        [("Authorization", "Basic of-a-proxy"), ("Authorization", "Bearer first-key")],
    ],
)
async def test_keys(serve: Serve, headers: Any) -> None:
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
    assert caught.value.kind.status == status


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
            preflighted = await http.options("/v1/sample", headers={"Origin": origin, **preflight})
            answer = await http.get("/livez", headers={"Origin": origin})
            refused = await http.get("/v1/models", headers={"Origin": origin})
            for each in (preflighted, answer, refused):
                assert (each.headers.get("access-control-allow-origin") == origin) is allowed
            assert (preflighted.status_code == 200) is allowed
            assert refused.status_code == 401
        assert "X-Request-ID" in answer.headers.get("access-control-expose-headers", "X-Request-ID")


OWN = {"Host": "localhost:8000"}
FOREIGN = [
    {"Origin": "https://evil.example"},
    {"Origin": "null"},
    {"Origin": "http://localhost:9999"},
    {"Origin": "https://evil.example", "Sec-Fetch-Site": "cross-site"},
    {"Origin": "http://a.localhost:8000", "Sec-Fetch-Site": "same-site"},
    {"Sec-Fetch-Site": "cross-site"},
]
OURS = [
    {},
    {"Origin": "http://localhost:8000"},
    {"Origin": "https://proxy.example", "Sec-Fetch-Site": "same-origin"},  # as if a proxy had changed Host
    {"Sec-Fetch-Site": "none"},
]
DOORS = ["/v1/sample", "/sample", "/v1/sample/stream", "/v1/models/moons/encode", "/v1/models:reload"]
INFER = "/v2/models/moons/infer"


async def test_a_page_may_send_and_read_binary_tensors_and_traces(serve: Serve) -> None:
    names = ["inference-header-content-length", "tracestate", "baggage", "traceparent", "content-type"]
    async with serve(cors_origins=("https://Lab.Example:443",)) as http:
        page = {"Origin": "https://lab.example"}
        asked = {"Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": ", ".join(names)}
        preflighted = await http.options("/v2/models/moons/infer", headers=page | asked)
        assert (preflighted.status_code, preflighted.headers["access-control-allow-origin"]) == (200, page["Origin"])
        content = b'{"parameters": {"num_samples": 1, "binary_data_output": true}}'
        head = {"Inference-Header-Content-Length": str(len(content)), "Content-Type": "application/octet-stream"}
        answer = await http.post("/v2/models/moons/infer", content=content, headers=page | head)
        assert answer.status_code == 200
        assert "inference-header-content-length" in answer.headers
        assert "Inference-Header-Content-Length" in answer.headers["access-control-expose-headers"].split(", ")


@pytest.mark.parametrize(
    "host",
    ["[::1].evil.example", "[::1]evil", "[::1", "127.0.0.1:80.evil.example", "127.0.0.1:evil", "a.example", "[x]y:1"],
)
async def test_host_names_that_only_begin_like_an_address(serve: Serve, host: str) -> None:
    async with serve() as http:
        assert (await http.get("/livez", headers={"Host": host})).status_code == 403
        for own in ("[::1]", "[::1]:8000", "127.0.0.1:8000", "localhost", "LOCALHOST.:80", "lab", "127.1", ""):
            assert (await http.get("/livez", headers={"Host": own})).status_code == 200


@pytest.mark.parametrize("headers", FOREIGN)
async def test_pages_of_other_origins_run_nothing(serve: Serve, engine: Any, headers: dict[str, str]) -> None:
    async with serve() as http:
        for path in (*DOORS, INFER):
            for media in ({}, {"Content-Type": "text/plain"}, {"Content-Type": "application/json"}):
                answer = await http.post(path, content=b"{}", headers=OWN | headers | media)
                assert answer.status_code == 403, path
                assert "PATHLINE_CORS_ORIGINS" in answer.text
        assert engine.jobs == []
        assert 'outcome="403"' in (await http.get("/metrics")).text


@pytest.mark.parametrize("headers", OURS)
async def test_our_own_page_and_programs_are_answered(serve: Serve, headers: dict[str, str]) -> None:
    async with serve() as http:
        assert (await http.post("/v1/sample", json=ASK, headers=OWN | headers)).status_code == 200
        assert (await http.get("/v1/models", headers=OWN | headers)).status_code == 200


@pytest.mark.parametrize("headers", FOREIGN)
async def test_allowed_origins_may_ask(serve: Serve, headers: dict[str, str]) -> None:
    async with serve(cors_origins=("*",)) as http:
        assert (await http.post("/v1/sample", json=ASK, headers=OWN | headers)).status_code == 200
    async with serve(cors_origins=("https://evil.example",)) as http:
        allowed = headers.get("Origin") == "https://evil.example"
        answer = await http.post("/v1/sample", json=ASK, headers=OWN | headers)
        assert answer.status_code == (200 if allowed else 403)


async def test_a_picture_on_another_page_loads_no_model_but_a_link_leads_here(serve: Serve) -> None:
    picture = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "no-cors", "Sec-Fetch-Dest": "image"}
    frame = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "iframe"}
    link = {**frame, "Sec-Fetch-Dest": "document"}
    async with serve() as http:
        for path in ("/v1/models/moons", "/v2/models/moons/versions/1"):
            assert [(await http.get(path, headers=OWN | h)).status_code for h in (picture, frame, link)] == [
                403,
                403,
                200,
            ]
        for path in ("/", "/docs", "/livez", "/metrics"):
            assert (await http.get(path, headers=OWN | link)).status_code == 200


async def test_a_body_of_no_type_is_taken_from_programs_only(serve: Serve, engine: Any) -> None:
    body = b'{"inputs": [{"name": "num_samples", "datatype": "INT64", "shape": [1], "data": [1]}]}'
    async with serve() as http:
        plain = await http.post(INFER, content=body, headers=OWN)
        page = await http.post(INFER, content=body, headers=OWN | {"Sec-Fetch-Site": "same-origin"})
        assert (plain.status_code == 415, page.status_code) == (False, 415)
        for path in ("/v1/sample", "/v1/sample/stream", "/v1/models/moons/encode"):
            assert (await http.post(path, content=b"{}", headers=OWN)).status_code == 415


GOOD_HOSTS = [
    "localhost",
    "127.1",
    "127.0.0.1:8000",
    "[::1]:8000",
    "LOCALHOST:1",
    "a.localhost",
    "10.0.0.7:8000",
    "laptop",
    "",
]
BAD_HOSTS = ["evil.example", "evil.example:8000", "127.0.0.1.evil.example", "localhost.evil.example", "evil.example."]


@pytest.mark.parametrize("host", BAD_HOSTS)
async def test_a_name_that_was_made_to_point_here_is_refused(serve: Serve, engine: Any, host: str) -> None:
    async with serve() as http:
        for method, path in (("POST", "/v1/sample"), ("GET", "/v1/models"), ("GET", "/"), ("GET", "/metrics")):
            answer = await http.request(method, path, headers={"Host": host})
            assert answer.status_code == 403
            assert "PATHLINE_ALLOWED_HOSTS" in answer.text
        assert engine.jobs == []
    async with serve(allowed_hosts=("evil.example",)) as http:
        own = host.rstrip(".").partition(":")[0] == "evil.example"
        assert (await http.get("/v1/models", headers={"Host": host})).status_code == (200 if own else 403)
        assert (await http.get("/v1/models", headers={"Host": "laptop"})).status_code == 403
    for settings in ({"host": "0.0.0.0"}, {"allowed_hosts": ("*",)}):  # noqa: S104
        async with serve(**settings) as http:
            assert (await http.get("/v1/models", headers={"Host": host})).status_code == 200


@pytest.mark.parametrize("host", GOOD_HOSTS)
async def test_names_of_this_machine_are_taken(serve: Serve, host: str) -> None:
    async with serve() as http:
        assert (await http.post("/v1/sample", json=ASK, headers={"Host": host})).status_code == 200
        assert (await http.get("/livez", headers={"Host": host})).status_code == 200


async def test_no_page_draws_ours_in_a_frame(serve: Serve) -> None:
    async with serve() as http:
        for path in ("/", "/docs"):
            headers = (await http.get(path)).headers
            assert headers["x-frame-options"] == "DENY"
            assert "frame-ancestors 'none'" in headers["content-security-policy"]


async def test_a_short_form_of_a_loopback_address_is_one(serve: Serve) -> None:
    async with serve(host="127.1") as http:
        assert (await http.get("/v1/models", headers={"Host": "evil.example"})).status_code == 403
        assert (await http.get("/v1/models", headers={"Host": "127.1:8000"})).status_code == 200


REFUSED = [
    ({}, 401),
    ({"Authorization": "Bearer wrong"}, 401),
    ({"X-API-Key": "first-key", "Host": "evil.example"}, 403),
    ({"X-API-Key": "first-key", "Origin": "https://evil.example"}, 403),
    ({"X-API-Key": "first-key", "Sec-Fetch-Site": "cross-site"}, 403),
]


@pytest.mark.parametrize(("headers", "status"), REFUSED)
async def test_headers_are_checked_before_a_body_is_read(
    repository: Path, engine: Any, headers: dict[str, str], status: int
) -> None:
    app = create_app(Settings(models_dir=repository, watch_s=0, api_keys=KEYS, admin_key=SecretStr("admin")), engine)
    posted = [path for path, operations in app.openapi()["paths"].items() if "post" in operations]
    paths = ["/sample"] + [path.format(name="moons", model_name="moons", version="2") for path in posted]
    assert {"/v1/sample", "/v1/sample/stream", "/v2/models/moons/infer", "/v2/repository/index"} < set(paths)
    app.state.service.start()
    try:
        for path in (*paths, "/nowhere"):
            raw = [(b"host", b"localhost"), (b"content-type", b"application/json"), (b"content-length", b"9999999")]
            named = {name.lower().encode(): value.encode() for name, value in headers.items()}
            raw = [(name, named.pop(name, value)) for name, value in raw] + list(named.items())
            scope = {"type": "http", "method": "POST", "path": path, "query_string": b"", "headers": raw, "app": app}
            sent: list[Any] = []

            async def send(message: Any, sent: list[Any] = sent) -> None:
                sent.append(message)

            async def receive(sent: list[Any] = sent) -> Any:
                assert sent  # answered before
                return {"type": "http.disconnect"}

            await app(scope, receive, send)
            assert (path, sent[0]["status"]) == (path, status)
    finally:
        app.state.service.stop()
