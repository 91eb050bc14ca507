"""The /docs page loads nothing from other hosts, and the type of every error leads to its explanation."""

import re
from typing import Any

import pytest

from service.errors import Kind

pytestmark = pytest.mark.anyio


async def test_the_page_loads_nothing_from_other_hosts(shared: Any) -> None:
    page = await shared.http.get("/docs")
    assert page.status_code == 200
    assert page.headers["content-type"].startswith("text/html")
    assert "default-src 'none'" in page.headers["content-security-policy"]
    links = re.findall(r'(?:src|href)="([^"]+)"', page.text)
    assert len(links) == 4
    for link in links:
        assert link.startswith("docs/")
        answer = await shared.http.get(f"/{link}")
        assert (answer.status_code, len(answer.content) > 50) == (200, True)
    start = (await shared.http.get("/docs/start.js")).text
    assert 'url: "openapi.json"' in start
    assert (await shared.http.get("/openapi.json")).json()["openapi"].startswith("3.1")


async def test_other_files_are_not_served(shared: Any) -> None:
    for name in ("main.py", "..%2f__init__.py"):
        answer = await shared.http.get(f"/docs/{name}")
        assert (answer.status_code, answer.json()["type"]) == (404, "/problems/no-such-route")


@pytest.mark.parametrize("kind", Kind)
async def test_the_type_of_an_error_links_to_its_explanation(shared: Any, kind: Kind) -> None:
    answer = await shared.http.get(kind.type)
    assert (answer.status_code, answer.headers["content-type"]) == (200, "application/json")
    assert (answer.json()["title"], answer.json()["status"]) == (kind.title, kind.status)
    assert answer.json()["example"]["type"] == kind.type
    page = await shared.http.get(kind.type, headers={"Accept": "text/html,application/xhtml+xml,*/*;q=0.8"})
    assert page.headers["content-type"].startswith("text/html")
    assert "default-src 'none'" in page.headers["content-security-policy"]
    assert kind.title in page.text
    assert "`" not in page.text.partition("<h2>Example")[0]
    assert all(link.startswith("../") for link in re.findall(r'(?:src|href)="([^"]+)"', page.text))


async def test_all_errors_are_listed_and_unknown_ones_are_not_found(shared: Any) -> None:
    listed = (await shared.http.get("/problems")).json()["problems"]
    assert [each["type"] for each in listed] == [kind.type for kind in Kind]
    page = (await shared.http.get("/problems", headers={"Accept": "text/html"})).text
    assert re.findall(r'href="(problems/[^"]+)"', page) == [kind.type.removeprefix("/") for kind in Kind]
    missing = await shared.http.get("/problems/nothing")
    assert (missing.status_code, missing.json()["type"]) == (404, "/problems/no-such-route")
