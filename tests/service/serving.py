"""A service under test: in this process behind a client, or in its own process for tests that need its sockets."""

import os
import re
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import httpx
from fastapi import FastAPI

ROOT = Path(__file__).parents[2]


@asynccontextmanager
async def calling(app: FastAPI) -> AsyncIterator[httpx.AsyncClient]:
    """Start an application and give a client of it; stop both at the end."""
    transport = httpx.ASGITransport(app)
    async with app.router.lifespan_context(app), httpx.AsyncClient(transport=transport, base_url="http://test") as http:
        yield http


@contextmanager
def serving(repository: Path, **settings: str) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """Start ``python -m service`` on a free port; gives its URL and its process, and ends it at the end."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PATHLINE_")}
    environment |= {"PATHLINE_MODELS_DIR": str(repository), "PATHLINE_PORT": "0", "PATHLINE_THREADS": "1"}
    environment |= {f"PATHLINE_{name.upper()}": value for name, value in settings.items()}
    command = [sys.executable, "-m", "service"]
    running = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True)
    assert running.stdout is not None
    try:
        for line in running.stdout:
            if found := re.search(r" on (http://[\d.]+:\d+)", line):
                yield found.group(1), running
                break
        else:
            raise AssertionError("the service did not start")
    finally:
        running.kill()
        running.wait()
        running.stdout.close()
