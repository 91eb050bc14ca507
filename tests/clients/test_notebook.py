"""Results in a notebook: as arrays, tensors, tables, figures, files and links."""

from __future__ import annotations

import json
import struct
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl, urlsplit

import matplotlib
import numpy as np
import pytest
from pathline import (
    Client,
    Comparison,
    DiagnoseResult,
    Frontier,
    FrontierCurve,
    FrontierPoint,
    LogProbResult,
    SampleResult,
)

if TYPE_CHECKING:
    from tests.clients.conftest import FakeService

matplotlib.use("Agg")

COMMON: dict[str, Any] = {
    "nfe": 9,
    "network_rows": 18,
    "status": "success",
    "failed": (),
    "model": "moons",
    "version": 1,
    "checkpoint": "sha256:00",
    "solver": {"name": "dopri5", "rtol": 1e-5, "atol": 1e-5, "text": "dopri5@1e-5"},
    "deterministic": True,
}


@pytest.fixture
def result(client: Client) -> SampleResult:
    return client.sample("moons", 5, solver="rk4-20/shift(3)", seed=7, condition=3, guidance=1.5)


@pytest.fixture
def table(client: Client) -> Comparison:
    return client.compare("moons", ["euler-20", "rk4-20"], 50, seed=1)


@pytest.fixture
def density() -> LogProbResult:
    from pathline import Latency

    values = np.array([-1.0, np.nan, -3.0])
    return LogProbResult(
        **COMMON, latency=Latency(), log_prob=values, standard_error=None, residual=None, divergence={"method": "exact"}
    )


@pytest.fixture
def diagnosis() -> DiagnoseResult:
    from pathline import Latency

    rates = np.arange(6.0).reshape(2, 3)
    return DiagnoseResult(
        **COMMON,
        latency=Latency(),
        times=np.array([0.0, 0.5, 1.0]),
        eigenvalues=rates[:, :, None] + 1j,
        condition_number=rates + 1,
        stiffness=rates,
        stiffness_ratio=rates + 2,
        seed=1,
        first_index=0,
    )


@pytest.fixture
def frontier() -> Frontier:
    points = (
        FrontierPoint("euler-4", 4, 4.0, 0.1, 0.2, 0.15, 0.3, 0.4, 0, best=True),
        FrontierPoint("euler-8", 8, 8.0, 0.05, 0.1, 0.08, 0.2, 0.3, 0, best=False),
        FrontierPoint("rk4-2", 8, 8.0, 0.005, 0.01, 0.008, 0.02, 0.03, 0, best=True),
    )
    curves = tuple(FrontierCurve(guidance, 64, 0, 1.0, True, points) for guidance in (1.0, 2.0))
    return Frontier("moons", 1, "sha256:00", "dopri5 at 1e-09", "classes & <all>", curves)


@pytest.fixture
def pandas(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stand-in for pandas, which is not needed for the tests: a table is its input."""
    monkeypatch.setitem(sys.modules, "pandas", SimpleNamespace(DataFrame=lambda data: data))


def view(url: str) -> dict[str, str]:
    return dict(parse_qsl(urlsplit(url).fragment))


def test_a_result_is_its_samples(result: SampleResult) -> None:
    np.testing.assert_array_equal(np.asarray(result), result.samples)
    assert np.asarray(result) is result.samples
    assert np.array(result, dtype=np.float64).dtype == np.float64
    np.testing.assert_array_equal(result[1:3], result.samples[1:3])
    np.testing.assert_array_equal(list(result), result.samples)
    np.testing.assert_array_equal(result["nfe"], result.nfe_per_sample)
    with pytest.raises(KeyError, match="'x' is not an array of this result; use one of samples, nfe, t, status"):
        result["x"]
    copied = result.__array__(copy=True)
    assert copied is not result.samples
    with pytest.raises(ValueError, match="without a copy"):
        result.__array__(np.float16, copy=False)


def test_a_tensor_shares_the_memory(result: SampleResult) -> None:
    tensor = result.to_torch()
    tensor[0, 0] = 9.0
    assert result.samples[0, 0] == 9.0


@pytest.mark.usefixtures("pandas")
def test_tables(result: SampleResult, table: Comparison, diagnosis: DiagnoseResult, density: LogProbResult) -> None:
    assert list(result.to_dataframe()) == ["x0", "x1", "nfe", "t", "status"]
    assert list(result.trace.to_dataframe()) == ["sample", "t", "h", "error", "accepted"]
    assert [row["solver"] for row in table.to_dataframe()] == ["euler-20", "rk4-20"]
    assert list(density.to_dataframe()) == ["log_prob"]
    long = diagnosis.to_dataframe()
    assert long["sample"].tolist() == [0, 0, 0, 1, 1, 1]
    assert long["t"].tolist() == [0.0, 0.5, 1.0] * 2
    assert long["stiffness"].tolist() == [0, 1, 2, 3, 4, 5]


@pytest.mark.parametrize(
    ("package", "call"), [("pandas", "to_dataframe"), ("torch", "to_torch"), ("matplotlib", "plot")]
)
def test_a_missing_package_is_named(
    result: SampleResult, monkeypatch: pytest.MonkeyPatch, package: str, call: str
) -> None:
    for name in [name for name in sys.modules if name == package or name.startswith(f"{package}.")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(sys, "meta_path", [Refusing(package), *sys.meta_path])
    with pytest.raises(ImportError, match=rf"{call}\(\) needs {package}, which is not installed; run: pip install"):
        getattr(result, call)()


class Refusing:
    """An importer that behaves as if one package were not installed."""

    def __init__(self, package: str) -> None:
        self._package = package

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> None:
        if name.partition(".")[0] == self._package:
            raise ModuleNotFoundError(f"No module named {self._package!r}", name=self._package)


def test_a_private_file_stays_private(result: SampleResult, tmp_path: Path) -> None:
    path = tmp_path / "samples.npz"
    path.touch(0o600)
    result.save(path)
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.stat().st_size > 0


def test_files_hold_what_the_result_holds(result: SampleResult, tmp_path: Path) -> None:
    with np.load(result.save(tmp_path / "r.npz")) as found:
        np.testing.assert_array_equal(found["samples"], result.samples)
        np.testing.assert_array_equal(found["nfe"], result.nfe_per_sample)
        assert json.loads(found["meta"].tobytes())["seed"] == 7
    np.testing.assert_array_equal(np.load(result.save(str(tmp_path / "r.npy"))), result.samples)
    lines = result.save(tmp_path / "r.csv").read_text().splitlines()
    assert lines[:2] == ["x0,x1,nfe,t,status", "0.25,7,50,1,success"]
    document = json.loads(result.save(tmp_path / "r.json").read_text())
    assert document["samples"] == result.samples.tolist()
    assert (document["nfe"], document["solver"]["name"]) == (56 if len(result) > 6 else 54, "rk4")
    assert result.save(tmp_path / "r.PNG").read_bytes() == result.picture()
    with pytest.raises(ValueError, match="no known extension; use one of"):
        result.save(tmp_path / "r.pt")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["r.PNG", "r.csv", "r.json", "r.npy", "r.npz"]


def test_files_of_other_results(
    table: Comparison, diagnosis: DiagnoseResult, density: LogProbResult, tmp_path: Path
) -> None:
    with np.load(diagnosis.save(tmp_path / "d.npz")) as found:
        np.testing.assert_array_equal(found["eigenvalues_imag"], np.ones((2, 3, 1)))
    assert json.loads(density.save(tmp_path / "l.json").read_text())["log_prob"] == [-1.0, None, -3.0]
    assert table.save(tmp_path / "c.csv").read_text().startswith("solver,nfe_most,nfe,p50,")
    assert json.loads(table.save(tmp_path / "c.json").read_text())["reference"] == "dopri5@1e-07"
    head = table.save(tmp_path / "c.png").read_bytes()[:24]
    assert (head[:4], struct.unpack(">II", head[16:])) == (b"\x89PNG", (1920, 1440))
    with pytest.raises(ValueError, match="cannot be drawn"):
        density.save(tmp_path / "l.png")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["c.csv", "c.json", "c.png", "d.npz", "l.json"]


def test_figures(
    service: FakeService,
    client: Client,
    result: SampleResult,
    table: Comparison,
    diagnosis: DiagnoseResult,
    density: LogProbResult,
) -> None:
    from matplotlib import pyplot

    assert np.asarray(result.plot().collections[0].get_offsets()).shape == (5, 2)
    steps = result.trace.plot()
    assert steps.get_yscale() == "log"
    assert steps.get_legend_handles_labels()[1] == ["rejected"]
    assert {line.get_label() for line in table.plot().lines} >= {"measured beforehand"}
    assert len(diagnosis.plot().lines) == 2
    assert density.plot().patches
    mine = pyplot.figure().add_subplot()
    assert result.plot(mine) is mine
    service.change = lambda arrays, meta: arrays.update(samples=np.zeros((2, 8, 8)))
    assert client.sample("moons", 2).plot().images
    service.change = lambda arrays, meta: arrays.update(samples=np.zeros((2, 5)))
    with pytest.raises(ValueError, match=r"samples of shape \(5,\) cannot be drawn"):
        client.sample("moons", 2).plot()
    pyplot.close("all")


def test_what_is_not_there_cannot_be_drawn(service: FakeService, client: Client) -> None:
    def change(arrays: dict[str, Any], meta: dict[str, Any]) -> None:
        for name in [name for name in arrays if name.startswith("trace_")]:
            del arrays[name]

    service.change = change
    with pytest.raises(ValueError, match="the trace has no steps; ask for them"):
        client.sample("moons", 2).trace.plot()


def test_links_show_the_request_on_the_page(result: SampleResult, table: Comparison) -> None:
    assert result.url.startswith("http://fake/#")
    assert view(result.url) == {
        "model": "moons",
        "num_samples": "5",
        "seed": "7",
        "condition": "3",
        "guidance": "1.5",
        "a": "rk4-20/shift(3)",
    }
    assert result.url.endswith("&a=rk4-20/shift(3)")
    found = view(table.url)
    assert found["a"] == "rk4-20"
    assert result.url.replace("&", "&amp;") in result._repr_html_()


def test_all_show_themselves(
    result: SampleResult, table: Comparison, diagnosis: DiagnoseResult, density: LogProbResult, client: Client
) -> None:
    assert "rk4-20/shift(3)" in repr(result)
    assert "result   3 log-densities, mean -2.0000 nats (exact)" in str(density)
    for shown in (result, table, diagnosis, density):
        assert "<table>" in shown._repr_html_()
    assert repr(client) == "Client('http://fake')"
    client.close()
    assert repr(client) == "Client('http://fake', closed)"


@pytest.mark.usefixtures("pandas")
def test_a_frontier_shows_itself(frontier: Frontier) -> None:
    from matplotlib import pyplot

    assert repr(frontier) == "Frontier(moons v1: 6 solvers measured, 4 on the frontier)"
    assert "guidance 2\n" in str(frontier)
    html = frontier._repr_html_()
    assert "classes &amp; &lt;all&gt;" in html
    assert "<td>2</td><td>rk4-2</td><td>8</td><td>1 %</td><td>2 %</td>" in html
    assert "euler-8" not in html
    rows = frontier.to_dataframe()
    assert [(row["guidance"], row["solver"]) for row in rows[2:4]] == [(1.0, "rk4-2"), (2.0, "euler-4")]
    axes = frontier.plot()
    assert axes.get_legend_handles_labels()[1] == ["guidance 1", "guidance 2"]
    np.testing.assert_array_equal(axes.lines[0].get_ydata(), [30.0, 2.0])
    pyplot.close("all")
