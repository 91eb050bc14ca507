"""The default solver of a model's card is used if a request names none."""

import math
import shutil
from pathlib import Path
from typing import Any

import pytest

from models.checkpoint.card import CARD_FILE, SamplingCard, read_card
from models.scheduler import FlowMatchEuler
from service.app import create_app
from service.settings import Settings
from solvers.grids import times
from tests.service.free import picture
from tests.service.serving import calling

pytestmark = pytest.mark.anyio


@pytest.fixture
def settings(repository: Path, tmp_path: Path) -> Settings:
    shutil.copytree(repository / "moons", tmp_path / "moons")
    folder = tmp_path / "moons" / "2"
    card = read_card(folder).model_copy(update={"sampling": SamplingCard(solver="ab2-6/shift(3)"), "card_sha256": None})
    (folder / CARD_FILE).write_bytes(card.signed().to_json())
    return Settings(models_dir=tmp_path, watch_s=0)


@pytest.mark.parametrize("given", [{}, {"steps": None}, {"max_nfe": 50}, {"x0": [[0.0, 0.0]]}])
async def test_it_is_used_and_echoed(running: Any, given: dict[str, Any]) -> None:
    answer = await running.post(num_samples=1, **given)
    assert answer.status_code == 200, answer.text
    solver = answer.json()["solver"]
    assert (solver["name"], solver["steps"]) == ("ab2", 6)
    assert solver["grid"] == {"name": "shift", "value": 3.0}


@pytest.mark.parametrize(
    ("given", "name"),
    [
        ({"solver": "rk4-5"}, "rk4"),
        ({"steps": 7}, "dopri5"),
        ({"rtol": 1e-3}, "dopri5"),
        ({"error_control": "batch"}, "dopri5"),
        ({"t_span": [0, 0.5]}, "dopri5"),
    ],
)
async def test_a_request_that_says_how_to_solve_is_followed(running: Any, given: dict[str, Any], name: str) -> None:
    answer = await running.post(num_samples=1, **given)
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


async def test_its_grid_may_follow_from_the_shape(tmp_path: Path) -> None:
    _, path = picture(tmp_path, tmp_path / "repository")
    scheduler = FlowMatchEuler(use_dynamic_shifting=True, base_image_seq_len=16, max_image_seq_len=256, patch=2)
    sampling = SamplingCard(solver="euler-4", scheduler=scheduler)
    card = read_card(path).model_copy(update={"sampling": sampling, "card_sha256": None})
    (path / CARD_FILE).write_bytes(card.signed().to_json())
    settings = Settings(models_dir=tmp_path / "repository", watch_s=0, allow_programs=True, threads=1)
    async with calling(create_app(settings)) as http:
        for high, wide, mu in ((8, 8, 0.5), (32, 32, 1.15)):
            body = {"model": "picture", "num_samples": 1, "seed": 0, "shape": {"H": high, "W": wide}}
            answer = (await http.post("/v1/sample", json=body)).json()
            assert (answer["solver"]["name"], answer["nfe"]) == ("euler", 4)
            assert answer["solver"]["grid"] == pytest.approx(
                times(f"shift({math.exp(mu)!r})", 4, (0.0, 1.0)), rel=1e-12
            )
            again = {"solver": "euler", "steps": 4, "grid": answer["solver"]["grid"]}
            assert (await http.post("/v1/sample", json=body | again)).json()["samples"] == answer["samples"]
            more = (await http.post("/v1/sample", json=body | {"steps": 7})).json()
            assert (more["solver"]["name"], more["nfe"]) == ("euler", 7)
            grid = times(f"shift({math.exp(mu)!r})", 7, (0.0, 1.0))
            assert more["solver"]["grid"] == pytest.approx(grid, rel=1e-12)
        [line] = (await http.get("/v1/models")).json()["models"]
        assert line["sampling"] == {"solver": "euler-4", "scheduler": scheduler.model_dump()}
