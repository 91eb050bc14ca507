"""Admin routes for models."""

import shutil
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr

from service.app import create_app
from service.responses.schemas import Reloaded
from service.settings import Settings
from tests.service.serving import calling, conforming

pytestmark = pytest.mark.anyio

KEY = {"Authorization": "Bearer correct-horse"}


@pytest.fixture
def settings(repository: Path, tmp_path: Path) -> Settings:
    root = tmp_path / "checkpoints"
    shutil.copytree(repository / "moons", root / "moons")
    return Settings(models_dir=root, admin_key=SecretStr("correct-horse"), watch_s=0)


@pytest.mark.parametrize("path", ["/v1/models:reload", "/v1/models/moons:unload"])
@pytest.mark.parametrize("sent", [None, "", "Bearer", "Bearer wrong", "Basic correct-horse", "Bearer korrekt hörse"])
async def test_wrong_keys_are_refused(running: Any, path: str, sent: str | None) -> None:
    headers = {} if sent is None else {b"Authorization": sent.encode()}
    answer = await running.http.post(path, headers=headers)
    assert answer.status_code == 401
    assert answer.json()["type"] == "/problems/unauthorized"
    assert "correct-horse" not in answer.text


async def test_off_without_a_key(repository: Path, engine: Any) -> None:
    app = create_app(Settings(models_dir=repository, watch_s=0), engine)
    async with calling(app) as http:
        answer = await http.post("/v1/models:reload", headers=KEY)
    assert answer.status_code == 403
    assert "PATHLINE_ADMIN_KEY" in answer.json()["detail"]


async def test_reload(running: Any, settings: Settings) -> None:
    root = settings.models_dir
    shutil.copytree(root / "moons" / "2", root / "moons" / "3")
    (root / "moons" / "4").mkdir()
    answer = await running.http.post("/v1/models:reload", headers=KEY)
    body = conforming(Reloaded, answer.json())
    assert body["loaded"] == [{"name": "moons", "version": 3}]
    assert body["unloaded"] == [{"name": "moons", "version": 2}]
    assert body["refused"][0]["version"] == 4
    assert body["models"] == {"moons": 3}
    assert (await running.post(num_samples=1)).json()["version"] == 3
    text = (await running.http.get("/metrics")).text
    assert 'pathline_model_loaded{model="moons",version="3"} 1.0' in text
    assert 'version="2"' not in text


async def test_a_missing_repository(running: Any, settings: Settings) -> None:
    settings.models_dir.rename(settings.models_dir.with_name("elsewhere"))
    answer = await running.http.post("/v1/models:reload", headers=KEY)
    assert answer.status_code == 503
    assert "stay in use" in answer.json()["detail"]
    assert (await running.post(num_samples=1)).status_code == 200


async def test_unload(running: Any) -> None:
    answer = await running.http.post("/v1/models/moons:unload", headers=KEY)
    assert answer.json() == {"name": "moons", "unloaded": [2]}
    assert (await running.http.get("/v1/models/moons")).json()["served"][0]["loaded"] is False
    assert (await running.post(num_samples=1)).status_code == 200
    assert (await running.http.post("/v1/models/nothing:unload", headers=KEY)).status_code == 404


async def test_the_watch_sees_new_versions(repository: Path, tmp_path: Path, engine: Any) -> None:
    shutil.copytree(repository / "moons", tmp_path / "moons")
    app = create_app(Settings(models_dir=tmp_path, watch_s=0.01), engine)
    async with calling(app) as http:
        shutil.copytree(tmp_path / "moons" / "2", tmp_path / "moons" / ".3")
        (tmp_path / "moons" / ".3").rename(tmp_path / "moons" / "3")
        for _ in range(1000):
            if (await http.get("/v1/models/moons")).json()["serving"] == 3:
                break
        else:
            pytest.fail("version 3 did not appear")


@pytest.mark.parametrize("path", ["/v1/models:reload", "/v1/models/moons:unload"])
@pytest.mark.parametrize("method", ["GET", "PUT", "DELETE", "PATCH", "HEAD"])
async def test_other_methods_get_the_allowed_one(running: Any, path: str, method: str) -> None:
    answer = await running.http.request(method, path, headers=KEY)
    assert answer.status_code == 405
    assert answer.headers["allow"] == "POST"
