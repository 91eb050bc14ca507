"""Bulk jobs of models with free axes: one shape for each job, the same bits as the service's, whatever the workers."""

import io
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import httpx
import numpy as np
import pytest
import torch
from pathline._bulk_spec import JobSpec

from fleet.errors import CommandError
from fleet.maker import Maker, digest_of_plan
from service.app import create_app
from service.settings import load_settings
from solvers import SolverSpec, plan
from tests.fleet.conftest import Fleet
from tests.service.free import picture

pytestmark = pytest.mark.anyio

REQUEST = {"solver": "rk4-2", "shape": {"H": 6, "W": 8}}


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("free")
    picture(folder, folder / "repository")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PATHLINE_MODELS_DIR", str(folder / "repository"))
        patch.setenv("PATHLINE_ALLOW_PROGRAMS", "true")
        yield folder / "repository"


@pytest.mark.parametrize(
    ("solver", "digest"),
    [("rk4-20", "af98dbeb3a1f8ba6"), ("dopri5", "1bdaac86623bdc4f"), ("ab3-12", "949043f4dcd913f7")],
)
def test_a_job_of_an_earlier_release_has_the_same_plan(solver: str, digest: str) -> None:
    assert digest_of_plan(plan.compile(SolverSpec.of(solver), torch.float32)).startswith(digest)


def fingerprint(text: str) -> str:
    return text.split("fingerprint ")[-1].strip()


async def test_rows_are_those_of_the_service(repository: Path) -> None:
    with closing(Maker(load_settings(), "picture", 1, 1, REQUEST, seed=5)) as maker:
        rows = maker.make(64, 10)
    app = create_app(load_settings(threads=1, watch_s=0))
    transport = httpx.ASGITransport(app)
    async with app.router.lifespan_context(app), httpx.AsyncClient(transport=transport, base_url="http://test") as http:
        body = {"model": "picture", "seed": 5, "first_index": 60, "num_samples": 20, **REQUEST}
        answer = await http.post("/v1/sample", json=body, headers={"Accept": "application/x-npy"})
    assert rows.samples.shape == (10, 1, 6, 8)
    assert np.load(io.BytesIO(answer.content))[4:14].tobytes() == rows.samples.tobytes()


def test_a_job_has_one_shape_and_one_fingerprint(
    repository: Path, fleet: Fleet, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATHLINE_MODELS_DIR", str(repository))
    job = {"total": 200, "seed": 5, "solver": "rk4-2", "shard_rows": 64}
    sizes = ("--shape", "H=6", "--shape", "W=8")
    found = []
    for name, more in (("a", {}), ("b", {"format": "npy"}), ("c", {"on": "local", "workers": 2})):
        assert fleet("sample", "picture", *sizes, to=tmp_path / name, **job | more) == 0
        found.append(fingerprint(capsys.readouterr().out))
        assert fleet("verify", tmp_path / name) == 0
        found.append(fingerprint(capsys.readouterr().out))
    assert len(set(found)) == 1
    spec = JobSpec.from_json((tmp_path / "a" / "job.json").read_bytes())
    assert (spec.request["shape"], spec.shape, spec.noise) == ({"H": 6, "W": 8}, (1, 6, 8), "philox-ndtri-free-v1")
    assert fleet("sample", "picture", "--shape", "H=6", "--shape", "W=10", to=tmp_path / "a") == 2
    assert "its shape is {'H': 6, 'W': 8}, not {'H': 6, 'W': 10}" in capsys.readouterr().err


def test_a_size_that_is_missing_or_not_allowed_is_said(repository: Path, fleet: Fleet, tmp_path: Path) -> None:
    with closing(Maker(load_settings(), "picture", 1, 1, REQUEST)) as maker:
        for shape, message in (
            (None, "H is missing"),
            ({"H": 6}, "W is missing"),
            ({"H": 6, "W": 100}, "W"),
            ({"T": 3}, "no free axis"),
        ):
            maker.request = {"solver": "rk4-2"} | ({} if shape is None else {"shape": shape})
            with pytest.raises(CommandError, match=message):
                maker.job()
