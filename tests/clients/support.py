"""The real service behind the asynchronous client, in this process."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
from pathline import AsyncClient

from service.app import create_app
from service.settings import Settings


@asynccontextmanager
async def in_process(repository: Path) -> AsyncIterator[AsyncClient]:
    """Start a service over ASGI and yield a client of it; stop both at the end."""
    app = create_app(Settings(models_dir=repository, watch_s=0, device="cpu", threads=1))
    transport = httpx.ASGITransport(app)
    async with app.router.lifespan_context(app), AsyncClient("http://service", transport=transport) as client:
        yield client
