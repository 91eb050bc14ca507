"""The playground's files: their content, browser caching, and no loading from other hosts."""

import gzip
import re
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.anyio
STATIC = Path(__file__).parents[3] / "service" / "static"


@pytest.mark.parametrize("accept", [None, "*/*", "text/html,application/xhtml+xml,*/*;q=0.8"])
async def test_the_page_is_at_the_root(shared: Any, accept: str | None) -> None:
    answer = await shared.http.get("/", headers={"Accept": accept} if accept else None)
    assert answer.status_code == 200
    assert answer.headers["content-type"] == "text/html; charset=utf-8"
    assert answer.text.startswith("<!doctype html>")


async def test_the_page_preloads_its_modules(shared: Any) -> None:
    named = re.findall(r'<link rel="modulepreload" href="static/(.*?)">', (await shared.http.get("/")).text)
    imported = [re.findall(r'from "\./(.*?)"', path.read_text()) for path in STATIC.glob("*.js")]
    assert named == sorted(set().union(*imported))
    assert len(named) > 5


async def test_a_client_that_accepts_only_json_gets_the_addresses(shared: Any) -> None:
    answer = await shared.http.get("/", headers={"Accept": "application/json"})
    assert answer.json()["links"]["sample"] == "v1/sample"
    assert answer.headers["vary"] == "Accept, Accept-Encoding"


async def test_the_page_forbids_content_from_other_hosts(shared: Any) -> None:
    policy = (await shared.http.get("/")).headers["content-security-policy"]
    assert policy.startswith("default-src 'none'; script-src 'self';")
    assert "unsafe-eval" not in policy
    assert "http" not in policy


@pytest.mark.parametrize("name", sorted(path.name for path in STATIC.iterdir()))
async def test_every_file_is_sent_as_it_is(shared: Any, name: str) -> None:
    content = (STATIC / name).read_bytes()
    answer = await shared.http.get(f"/static/{name}", headers={"Accept-Encoding": "identity"})
    assert answer.status_code == 200
    assert answer.content == content
    assert answer.headers["cache-control"] == "no-cache"
    kinds = {".js": "text/javascript", ".css": "text/css", ".html": "text/html", ".svg": "image/svg+xml"}
    assert answer.headers["content-type"].startswith(kinds[Path(name).suffix])
    again = await shared.http.get(f"/static/{name}", headers={"If-None-Match": answer.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")
    assert again.headers["etag"] == answer.headers["etag"]


async def test_large_files_are_compressed_for_clients_that_accept_it(shared: Any) -> None:
    async with shared.http.stream("GET", "/static/main.js", headers={"Accept-Encoding": "gzip"}) as answer:
        packed = b"".join([piece async for piece in answer.aiter_raw()])
    assert answer.headers["content-encoding"] == "gzip"
    assert gzip.decompress(packed) == (STATIC / "main.js").read_bytes()


@pytest.mark.parametrize("path", ["/static/nothing.js", "/static/..%2Fapp.py", "/static/", "/static/%00"])
async def test_nothing_else_is_served(shared: Any, path: str) -> None:
    answer = await shared.http.get(path)
    assert answer.status_code == 404
    assert answer.headers["content-type"] == "application/problem+json"


def test_files_refer_only_to_existing_files() -> None:
    known = {path.name for path in STATIC.iterdir()}
    for path in STATIC.glob("*.js"):
        assert set(re.findall(r'from "\./(.*?)"', path.read_text())) <= known, path
    page = (STATIC / "index.html").read_text()
    assert set(re.findall(r'static/([\w.-]+)"', page)) <= known
    assert not re.search(r"https?://|//cdn", page)


def test_labels_refer_to_controls_and_ids_are_unique() -> None:
    page = (STATIC / "index.html").read_text()
    ids = re.findall(r'\bid="(.*?)"', page)
    assert len(ids) == len(set(ids))
    for attribute in ("for", "aria-controls", "aria-labelledby", "aria-describedby", "list"):
        for names in re.findall(rf'\b{attribute}="(.*?)"', page):
            assert set(names.split()) <= set(ids), names
