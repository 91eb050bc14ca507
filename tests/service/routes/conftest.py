"""A service with a real engine, for modules that make their own models."""

from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest

from tests.service.serving import calling_models


@pytest.fixture(scope="module")
async def http(root: Path) -> AsyncIterator[httpx.AsyncClient]:
    """A client of a service of the models in the folder `root`, a fixture of the module."""
    async with calling_models(root) as http:
        yield http
