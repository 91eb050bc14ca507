"""/docs needs nothing from elsewhere."""

import re
from typing import Any

import pytest

pytestmark = pytest.mark.anyio


async def test_the_page_loads_from_here_only(running: Any) -> None:
    page = await running.http.get("/docs")
    assert page.status_code == 200
    assert page.headers["content-type"].startswith("text/html")
    assert "default-src 'none'" in page.headers["content-security-policy"]
    links = re.findall(r'(?:src|href)="([^"]+)"', page.text)
    assert len(links) == 4
    for link in links:
        assert link.startswith("docs/")
        answer = await running.http.get(f"/{link}")
        assert (answer.status_code, len(answer.content) > 50) == (200, True)
    start = (await running.http.get("/docs/start.js")).text
    assert 'url: "openapi.json"' in start
    assert (await running.http.get("/openapi.json")).json()["openapi"].startswith("3.1")


async def test_other_files_are_not_there(running: Any) -> None:
    for name in ("main.py", "..%2f__init__.py"):
        answer = await running.http.get(f"/docs/{name}")
        assert (answer.status_code, answer.json()["type"]) == (404, "/problems/no-such-route")
