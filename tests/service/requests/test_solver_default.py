"""The default solver of a model's card is used if a request names none."""

import shutil
from pathlib import Path
from typing import Any

import pytest

from models.checkpoint.card import CARD_FILE, SamplingCard, read_card
from service.settings import Settings

pytestmark = pytest.mark.anyio


@pytest.fixture
def settings(repository: Path, tmp_path: Path) -> Settings:
    shutil.copytree(repository / "moons", tmp_path / "moons")
    folder = tmp_path / "moons" / "2"
    card = read_card(folder).model_copy(update={"sampling": SamplingCard(solver="ab2-6/shift(3)"), "card_sha256": None})
    (folder / CARD_FILE).write_bytes(card.signed().to_json())
    return Settings(models_dir=tmp_path)


@pytest.mark.parametrize("said", [{}, {"steps": None}, {"max_nfe": 50}, {"x0": [[0.0, 0.0]]}])
async def test_it_is_used_and_echoed(running: Any, said: dict[str, Any]) -> None:
    answer = await running.post(num_samples=1, **said)
    assert answer.status_code == 200, answer.text
    solver = answer.json()["solver"]
    assert (solver["name"], solver["steps"]) == ("ab2", 6)
    assert solver["grid"] == {"name": "shift", "value": 3.0}


@pytest.mark.parametrize(
    ("said", "name"),
    [
        ({"solver": "rk4-5"}, "rk4"),
        ({"steps": 7}, "dopri5"),
        ({"rtol": 1e-3}, "dopri5"),
        ({"error_control": "batch"}, "dopri5"),
        ({"t_span": [0, 0.5]}, "dopri5"),
    ],
)
async def test_a_request_that_says_how_to_solve_is_followed(running: Any, said: dict[str, Any], name: str) -> None:
    answer = await running.post(num_samples=1, **said)
    assert answer.json()["solver"]["name"] == name, answer.text


async def test_it_is_for_samples_only_and_shown(running: Any) -> None:
    encoded = await running.http.post("/v1/models/moons/encode", json={"samples": [[0.0, 0.0]]})
    assert encoded.json()["solver"]["name"] == "dopri5", encoded.text
    [line] = (await running.http.get("/v1/models")).json()["models"]
    assert line["sampling"] == {"solver": "ab2-6/shift(3)"}
    described = (await running.http.get("/v1/models/moons")).json()
    assert described["served"][0]["card"]["sampling"] == {"solver": "ab2-6/shift(3)"}


async def test_its_limits_are_those_of_every_request(running: Any) -> None:
    answer = await running.post(num_samples=1, max_nfe=5)
    assert answer.status_code == 422
    assert answer.json()["errors"][0]["field"] == "max_nfe"
