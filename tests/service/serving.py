"""A service under test: in this process behind a client, or in its own process for tests that need its sockets."""

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import httpx
from fastapi import FastAPI
from pydantic import TypeAdapter

from service.app import create_app
from service.settings import Settings
from tests.processes import SERVICE, Process, environment, running


@asynccontextmanager
async def calling(app: FastAPI) -> AsyncIterator[httpx.AsyncClient]:
    """Start an application and yield a client of it; stop both at the end."""
    transport = httpx.ASGITransport(app)
    async with app.router.lifespan_context(app), httpx.AsyncClient(transport=transport, base_url="http://test") as http:
        yield http


def conforming(schema: Any, document: Any) -> Any:
    """Return a JSON document, checked against the schema of a response."""
    return TypeAdapter(schema).validate_python(document)


@asynccontextmanager
async def calling_models(repository: Path, **settings: Any) -> AsyncIterator[httpx.AsyncClient]:
    """Start a service with a real engine on one thread of the CPU, and yield a client of it; stop both at the end."""
    given: dict[str, Any] = {"device": "cpu", "threads": 1, "watch_s": 0, "allow_programs": True} | settings
    async with calling(create_app(Settings(models_dir=repository, **given))) as http:
        yield http


async def sampled(http: httpx.AsyncClient, body: dict[str, Any]) -> dict[str, Any]:
    """Return the answer to a request for samples, which must not be refused."""
    response = await http.post("/v1/sample", json=body)
    assert response.status_code == 200, response.text
    return response.json()


@contextmanager
def serving(repository: Path, **settings: object) -> Iterator[tuple[str, Process]]:
    """Run ``python -m service`` on a free port until the block ends; yield its URL and its process."""
    with running(SERVICE, environment(repository, **settings), forked=True) as service:
        yield service.url, service.process
