"""The service behind a proxy that serves it under a path: one that strips the path, and one that keeps it."""

import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urljoin

import httpx
import pytest
from pathline import AsyncClient
from pydantic import SecretStr
from starlette.types import ASGIApp, Receive, Scope, Send

from service.app import create_app
from service.settings import Settings, SettingsError, load_settings
from tests.service.serving import calling

pytestmark = pytest.mark.anyio

ROOT = "/lab/pathline"
KEY = {"X-API-Key": "a-key"}


class Proxy:
    """A proxy that passes on requests below `ROOT`, with or without this path, and answers all others with 418."""

    def __init__(self, app: ASGIApp, strips: bool) -> None:
        self._app, self._strips = app, strips

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if not scope["path"].startswith(ROOT):
            await send({"type": "http.response.start", "status": 418, "headers": []})
            await send({"type": "http.response.body", "body": b""})
            return
        path = scope["path"].removeprefix(ROOT) or "/" if self._strips else scope["path"]
        await self._app({**scope, "path": path, "raw_path": path.encode()}, receive, send)


@asynccontextmanager
async def behind(proxy: str, repository: Path, engine: Any, **settings: Any) -> AsyncIterator[httpx.AsyncClient]:
    root_path = "" if proxy == "strips" else ROOT
    allowed = Settings(
        models_dir=repository, watch_s=0, root_path=root_path, allowed_hosts=("lab.example",), **settings
    )
    app = create_app(allowed, engine)
    transport = httpx.ASGITransport(Proxy(app, proxy == "strips"))
    async with (
        app.router.lifespan_context(app),
        httpx.AsyncClient(transport=transport, base_url="https://lab.example") as http,
    ):
        yield http


both = pytest.mark.parametrize("proxy", ["strips", "leaves"])


@both
async def test_the_pages_find_their_files(proxy: str, repository: Path, engine: Any) -> None:
    async with behind(proxy, repository, engine) as http:
        for page in (f"{ROOT}/", f"{ROOT}/docs"):
            answer = await http.get(page, headers={"Accept": "text/html"})
            links = re.findall(r'(?:src|href)="([^"]+)"', answer.text)
            assert len(links) > 3
            for link in links:
                assert (await http.get(urljoin(str(answer.url), link))).status_code == 200, link


@both
async def test_docs_ask_for_the_description_and_that_for_the_service(proxy: str, repository: Path, engine: Any) -> None:
    async with behind(proxy, repository, engine) as http:
        page = (await http.get(f"{ROOT}/docs")).url
        script = await http.get(urljoin(str(page), "docs/start.js"))
        named = re.search(r'url: "(.*?)"', script.text)
        assert named is not None
        description = await http.get(urljoin(str(page), named.group(1)))  # scripts use the page's address
        assert description.url.path == f"{ROOT}/openapi.json"
        [server] = description.json()["servers"]
        base = urljoin(str(description.url), server["url"]).rstrip("/")
        assert base == f"https://lab.example{ROOT}"
        documented = [
            path for path, methods in description.json()["paths"].items() if "get" in methods and "{" not in path
        ]
        assert len(documented) > 5
        for path in documented:
            assert (await http.get(base + path)).status_code == 200, path


@both
async def test_links_lead_somewhere(proxy: str, repository: Path, engine: Any) -> None:
    async with behind(proxy, repository, engine) as http:
        answer = await http.get(f"{ROOT}/", headers={"Accept": "application/json"})
        for name, link in answer.json()["links"].items():
            expected = 405 if name == "sample" else 200
            assert (await http.get(urljoin(str(answer.url), link))).status_code == expected, link


@both
async def test_the_type_of_a_problem_leads_to_its_explanation(proxy: str, repository: Path, engine: Any) -> None:
    address = {"public_url": f"https://lab.example{ROOT}"} if proxy == "strips" else {}
    request = {"model": "moons", "num_samples": 0, "solver": "euler", "steps": 2}
    async with behind(proxy, repository, engine, **address) as http:
        for answer in (await http.get(f"{ROOT}/nowhere"), await http.post(f"{ROOT}/v1/sample", json=request)):
            assert answer.status_code in (404, 422)
            link = answer.json()["type"]
            assert link.startswith(f"{ROOT}/problems/")
            explained = await http.get(urljoin(str(answer.url), link), headers={"Accept": "application/json"})
            assert explained.status_code == 200
            assert explained.json()["status"] == answer.status_code


@both
async def test_the_sdk_takes_the_whole_address(proxy: str, repository: Path, engine: Any) -> None:
    async with behind(proxy, repository, engine) as http:
        client = AsyncClient(f"https://lab.example{ROOT}/", transport=http._transport)
        assert len(await client.sample("moons", 3, steps=2, solver="euler")) == 3
        assert "moons" in [model.name for model in await client.models()]
        metrics = (await http.get(f"{ROOT}/metrics")).text
        assert 'route="/v1/sample"' in metrics  # the prefix is not part of a route
        assert "lab.example" not in metrics


@both
async def test_what_is_open_stays_so_and_nothing_else(proxy: str, repository: Path, engine: Any) -> None:
    async with behind(proxy, repository, engine, api_keys=(SecretStr("a-key"),), open_metrics=False) as http:
        for path in ("/", "/docs", "/openapi.json", "/livez", "/readyz"):
            assert (await http.get(ROOT + path)).status_code == 200, path
        for path in ("/v1/models", "/metrics", "/v1/solvers", ROOT + "/v1/models"):
            assert (await http.get(ROOT + path)).status_code == 401, path
        assert (await http.get(f"{ROOT}/metrics", headers=KEY)).status_code == 200


async def test_a_path_without_its_slash_is_completed(repository: Path, engine: Any) -> None:
    async with behind("leaves", repository, engine) as http:
        for method in ("GET", "HEAD"):
            answer = await http.request(method, f"{ROOT}?solver=rk4&n=%C3%BC")
            assert (answer.status_code, answer.headers["location"]) == (307, f"{ROOT}/?solver=rk4&n=%C3%BC")
            assert answer.headers["x-request-id"]
        for path in (f"{ROOT}s/v1/models", f"{ROOT}.", f"{ROOT}{ROOT}/livez", f"{ROOT}//livez"):
            assert (await http.get(path)).status_code == 404, path
        assert (await http.post(ROOT)).status_code == 404


async def test_health_checks_need_no_path_in_front(repository: Path, engine: Any) -> None:
    app = create_app(Settings(models_dir=repository, watch_s=0, root_path=ROOT), engine)
    async with calling(app) as http:
        assert (await http.get("/livez")).status_code == (await http.get(f"{ROOT}/livez")).status_code == 200


async def test_no_header_moves_an_address(running: Any) -> None:
    forged = {"X-Forwarded-Prefix": "/a", "X-Script-Name": "/a", "X-Forwarded-Path": "/a/metrics"}
    assert (await running.http.get("/a/metrics", headers=forged)).status_code == 404
    [server] = (await running.http.get("/openapi.json", headers=forged)).json()["servers"]
    assert server["url"] == "."


@pytest.mark.parametrize(
    ("given", "held"),
    [("/lab", "/lab"), ("/lab/", "/lab"), ("/a.b/c-d_~1", "/a.b/c-d_~1"), ("/", ""), ("", ""), (" /lab\n", "/lab")],
)
def test_setting(given: str, held: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATHLINE_ROOT_PATH", given)
    assert load_settings().root_path == held


@pytest.mark.parametrize(
    "given", ["lab", "https://lab.example/a", "/a b", "//a", "/a//b", "/a?b", "/..", "/a/./b", "/ü"]
)
def test_setting_that_is_refused(given: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATHLINE_ROOT_PATH", given)
    with pytest.raises(SettingsError, match=r"PATHLINE_ROOT_PATH=.* is not allowed; path under which a proxy"):
        load_settings()
