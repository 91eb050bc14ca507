"""Names that try to leave the repository are refused on every route, however they are written."""

import re
import shutil
import socket
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any, cast

import pytest
from pydantic import SecretStr

from service.app import create_app
from service.settings import Settings
from tests.service.conftest import FakeEngine, Running
from tests.service.serving import calling, serving

pytestmark = pytest.mark.anyio

KEY = "correct-horse"
NAMES = [
    "..%2Foutside",
    "%2e%2e%2Foutside",
    "%2E%2E%2foutside",
    "moons%2F..%2F..%2Foutside",
    "..%5Coutside",
    "%252e%252e%252Foutside",
    "%2Fetc",
    "%2e%2e",
    "%2e",
    ".hidden",
    "moons%00",
    "link",
]


@pytest.fixture(scope="module")
def root(repository: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a repository with a hidden model, a link that leads out, and a good model outside."""
    folder = tmp_path_factory.mktemp("names")
    root = folder / "checkpoints"
    shutil.copytree(repository / "moons", root / "moons")
    shutil.copytree(repository / "moons", folder / "outside")
    shutil.copytree(repository / "moons", root / ".hidden")
    (root / "link").symlink_to(folder / "outside")
    return root


@pytest.fixture(scope="module")
async def running(root: Path, anyio_backend: str) -> AsyncIterator[Running]:
    app = create_app(Settings(models_dir=root, watch_s=0, admin_key=SecretStr(KEY)), cast(Any, engine := FakeEngine()))
    async with calling(app) as http:
        yield Running(http, engine, app.state.service)


def addresses(description: dict[str, Any]) -> Iterator[tuple[str, str, Any]]:
    """Return method, path and a valid body of each route with a name."""
    for path, operations in description["paths"].items():
        for method, operation in operations.items():
            if "name}" in path:
                body = operation.get("requestBody", {}).get("content", {}).get("application/json", {"examples": {}})
                examples = [example["value"] for example in body["examples"].values()]
                yield method.upper(), path.replace("{version}", "1"), next(iter(examples), None)


@pytest.mark.parametrize("name", NAMES)
async def test_in_an_address(running: Running, name: str) -> None:
    tried = 0
    for method, path, body in addresses((await running.http.get("/openapi.json")).json()):
        address = re.sub(r"\{\w*name\}", name, path)
        answer = await running.http.request(method, address, json=body, headers={"X-API-Key": KEY})
        assert answer.status_code in (400, 404, 503), f"{method} {address}: {answer.text}"
        tried += 1
    assert tried >= 9
    assert set(running.engine.loaded) == {("moons", 2)}
    assert not running.engine.jobs


@pytest.mark.parametrize("name", [*NAMES, "../outside", "./moons", "/etc", "moons/../../outside", "moons\\1"])
async def test_in_a_body(running: Running, name: str) -> None:
    for path in ("/v1/sample", "/sample", "/v1/sample/stream"):
        answer = await running.http.post(path, json={"model": name})
        assert answer.status_code in (404, 503), f"{path}: {answer.text}"
    assert set(running.engine.loaded) == {("moons", 2)}
    assert not running.engine.jobs


def test_over_a_socket(root: Path) -> None:
    with serving(root) as (url, _):
        host, port = url.removeprefix("http://").split(":")
        for target in ("/v1/models/../../etc/passwd", "/v1/models/..%2Foutside", "/v2/models/%2e%2e%2Foutside/ready"):
            with socket.create_connection((host, int(port)), timeout=10) as connection:
                connection.sendall(f"GET {target} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode())
                assert connection.makefile("rb").readline().split()[1] == b"404"
