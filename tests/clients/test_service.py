"""The SDK against the real service: in the same process over ASGI, and in a separate process."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import httpx
import numpy as np
import pathline
import pytest
import torch
from pathline import Budget, Client
from pathline._response import Response, problem_of
from pathline.cli import main
from pathline.errors import BY_STATUS, APIError

from models.architectures.analytic import Gaussian, GaussianConfig
from models.checkpoint.card import read_card
from models.checkpoint.saving import save
from models.decoder import Decoder
from models.noise import noise
from selection.frontier import Curve, StoredFrontier
from service.errors import Kind
from solvers.spec import SolverSpec
from tests.clients.support import in_process
from tests.processes import stop
from tests.selection.support import point
from tests.service.serving import serving

SEED = 2**63 - 1


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("checkpoints")
    save(root, "gaussian", Gaussian(GaussianConfig()), Decoder.identity((2,)), dataset={}, training={}, seed=0)
    return root


@pytest.fixture(scope="module")
def served(repository: Path) -> Iterator[str]:
    """Run `python -m service` as a user would and yield its URL."""
    with serving(repository, device="cpu") as (url, process):
        yield url
        stop(process)


@pytest.fixture(autouse=True)
def _direct(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")


@pytest.fixture
def client(served: str) -> Iterator[Client]:
    with Client(served) as client:
        yield client


def exact(count: int, first: int = 0) -> np.ndarray:
    start = noise(SEED, first, count, (2,), torch.float64)
    return Gaussian(GaussianConfig()).exact(start).numpy()


def test_in_process_over_asgi(repository: Path) -> None:
    async def run() -> tuple[pathline.SampleResult, list[pathline.ModelInfo]]:
        async with in_process(repository) as client:
            return await client.sample("gaussian", 64, rtol=1e-8, atol=1e-8, seed=SEED), await client.models()

    result, models = asyncio.run(run())
    np.testing.assert_allclose(result.samples, exact(64), atol=1e-6)
    assert result.seed == SEED
    assert result.ok
    assert [info.name for info in models] == ["gaussian"]


def test_samples_are_those_of_the_seed(client: Client) -> None:
    result = client.sample("gaussian", 64, rtol=1e-8, atol=1e-8, seed=SEED, trace="full", save_at=[0.5])
    np.testing.assert_allclose(result.samples, exact(64), atol=1e-6)
    assert (result.seed, result.model, result.version) == (SEED, "gaussian", 1)
    assert result.nfe == result.nfe_per_sample.max()
    np.testing.assert_array_equal(result.t, np.ones(64))
    assert result.status_per_sample.tolist() == ["success"] * 64
    assert set(result.trace.sample.tolist()) == set(range(64))
    assert result.saved is not None
    assert result.saved.shape == (64, 1, 2)
    np.testing.assert_array_equal(result.saved_t, [0.5])
    assert result.latency.total_s is not None
    assert result.latency.total_s > 0


def test_pages_are_one_call_bit_for_bit(client: Client) -> None:
    whole = client.sample("gaussian", 100, solver="rk4", steps=20, seed=SEED)
    pages = list(client.iter_samples("gaussian", 100, 33, solver="rk4", steps=20, seed=SEED))
    assert whole.deterministic
    np.testing.assert_array_equal(np.concatenate([page.samples for page in pages]), whole.samples)


def test_a_stream_ends_with_what_sample_returns(client: Client) -> None:
    whole = client.sample("gaussian", 40, solver="rk4", steps=20, seed=SEED, save_at=[0.5])
    events = list(client.stream("gaussian", 40, solver="rk4", steps=20, seed=SEED, save_at=[0.5]))
    first, last = events[0], events[-1]
    states = [event for event in events if isinstance(event, pathline.State)]
    assert isinstance(first, pathline.Started)
    assert first.fields["seed"] == SEED
    assert isinstance(last, pathline.Completed)
    np.testing.assert_array_equal(last.result.samples, whole.samples)
    assert last.result.solver == whole.solver
    assert whole.saved is not None
    assert [state.t for state in states] == [0.5]
    np.testing.assert_array_equal(states[0].samples, whole.saved[:, 0])
    progress = [event for event in events if isinstance(event, pathline.Progress)]
    assert (progress[-1].nfe, progress[-1].t) == (80, 1.0)


def test_a_stream_in_process_over_asgi(repository: Path) -> None:
    async def run() -> list[pathline.Event]:
        async with in_process(repository) as client:
            return [event async for event in client.stream("gaussian", 4, solver="euler", steps=3, seed=1)]

    events = asyncio.run(run())
    assert isinstance(events[-1], pathline.Completed)


def test_progress_changes_nothing_about_the_result(client: Client) -> None:
    reports: list[pathline.Progress] = []
    options: dict[str, Any] = {"solver": "dopri5@1e-6", "seed": SEED, "save_at": [0.5], "trace": "full"}
    followed = client.sample("gaussian", 40, progress=reports.append, **options)
    plain = client.sample("gaussian", 40, **options)
    assert reports[-1].share == 1.0
    for name, array in plain.arrays().items():
        np.testing.assert_array_equal(followed[name], array)
        assert followed[name].dtype == array.dtype
    np.testing.assert_array_equal(followed.trace.h, plain.trace.h)
    assert (followed.solver, followed.url) == (plain.solver, plain.url)


def test_solvers_print_as_what_they_are(client: Client) -> None:
    for text in ("rk4-10", "rk4-10/shift(3)", "ab2-9+rk", "dopri5@1e-5/1e-8+batch+max_step=0.5", "rk4-3/(0,0.2,0.6,1)"):
        result = client.sample("gaussian", 3, solver=text, seed=1)
        assert f" by {text}, " in repr(result)


def test_a_refused_stream_has_its_class(client: Client) -> None:
    with pytest.raises(pathline.NotFound):
        list(client.stream("circles"))


def test_descriptions(client: Client) -> None:
    info = client.model("gaussian")
    assert (info.version, info.event_shape, info.data_shape) == (1, (2,), (2,))
    solvers = {solver.name: solver for solver in client.solvers()}
    assert solvers["dopri5"].adaptive
    assert not solvers["rk4"].adaptive
    assert solvers["rk4"].order == 4
    assert solvers["rk4"].cost


def test_comparing(client: Client) -> None:
    table = client.compare("gaussian", ["euler-20", "rk4-20", "dopri5@1e-8"], 128, seed=SEED)
    fresh = {row.solver: row for row in table.rows if not row.stored}
    assert [fresh[text].nfe_most for text in ("euler-20", "rk4-20")] == [20, 80]
    assert fresh["euler-20"].p95_high > fresh["rk4-20"].p95_high > fresh["dopri5@1e-8"].p95_high
    assert table.choice["solver"] in table.verdict
    assert "95 % of samples end within" in str(table)


def test_errors_are_typed(client: Client) -> None:
    with pytest.raises(pathline.NotFound, match="gaussian"):
        client.sample("circles")
    with pytest.raises(pathline.NotFound):
        client.sample("gaussian", version=99)
    with pytest.raises(pathline.InvalidRequest) as caught:
        client.sample("gaussian", solver="rk4", steps=5, rtol=1e-3)
    assert caught.value.errors[0]["field"]
    assert re.fullmatch(r"[0-9a-f]{32}", caught.value.request_id)


def test_the_command_line(served: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "out.npy"
    command = ["sample", "gaussian", "-n", "50", "--batch", "20", "--rtol", "1e-8", "--atol", "1e-8"]
    assert main([*command, "--seed", str(SEED), "--first-index", "5", "-o", str(path), "--url", served]) == 0
    np.testing.assert_allclose(np.load(path), exact(50, first=5), atol=1e-6)
    for other in ("models", "solvers"):
        assert main([other, "--url", served]) == 0
    assert "gaussian" in capsys.readouterr().out


def test_known_values(client: Client, served: str, tmp_path: Path) -> None:
    """Arrays go as npz, lists as JSON; pages and the command line have the same samples."""
    values, mask = np.array([0.5, np.nan]), np.array([True, False])
    options: dict[str, Any] = {"solver": "rk4-5", "seed": 3}
    result = client.sample("gaussian", 6, known={"values": values, "mask": mask}, **options)
    assert (result.samples[:, 0] == 0.5).all()
    listed = client.sample("gaussian", 6, known={"values": [0.5, 0.0], "mask": [1, 0]}, **options)
    assert (
        result.samples.tobytes()
        == listed.samples.tobytes()
        == client.replay(listed, known={"values": [0.5, 0], "mask": [1, 0]}).samples.tobytes()
    )
    pages = client.iter_samples("gaussian", 6, 4, known={"values": values, "mask": mask}, **options)
    assert np.concatenate([page.samples for page in pages]).tobytes() == result.samples.tobytes()
    guided = client.sample("gaussian", 6, known={"values": values, "mask": mask, "mode": "guided"}, **options)
    plain = client.sample("gaussian", 6, **options)
    assert 0 < abs(guided.samples[:, 0] - 0.5).max() < abs(plain.samples[:, 0] - 0.5).max() / 3

    np.save(tmp_path / "values.npy", values)
    known = ["--known", f"values={tmp_path / 'values.npy'}", "--known", "mask=[true, false]"]
    command = ["sample", "gaussian", "-n", "6", "--solver", "rk4-5", "--seed", "3", *known]
    assert main([*command, "-o", str(tmp_path / "out.npy"), "--url", served]) == 0
    assert np.load(tmp_path / "out.npy").tobytes() == result.samples.tobytes()
    assert main(["sample", "gaussian", "--known", "3", "--url", served]) == 2
    with pytest.raises(TypeError, match="known is a list"):
        client.sample("gaussian", 1, known=[1])  # type: ignore[arg-type]


@pytest.mark.parametrize("mask", [[1, 0], [[1, 0], [0, 1]] * 3], ids=["one mask", "a mask for each"])
@pytest.mark.parametrize("form", [np.array, list], ids=["array", "list"])
def test_pages_take_apart_known_values_of_each_sample(client: Client, mask: list[Any], form: Any) -> None:
    known = {"values": form([[k / 8, -k / 8] for k in range(6)]), "mask": form(mask)}
    options: dict[str, Any] = {"solver": "rk4-5", "seed": 3}
    whole = client.sample("gaussian", 6, known=known, **options).samples
    assert whole[4, 0] == 0.5
    pages = client.iter_samples("gaussian", 6, 4, known=known, **options)
    np.testing.assert_array_equal(np.concatenate([page.samples for page in pages]), whole)
    if len(mask) == 6:
        shared = {"values": form([0.5, -0.5]), "mask": form(mask)}
        pages = client.iter_samples("gaussian", 6, 4, known=shared, **options)
        whole = client.sample("gaussian", 6, known=shared, **options).samples
        np.testing.assert_array_equal(np.concatenate([page.samples for page in pages]), whole)


def test_known_values_of_all_samples_may_have_as_many_numbers_as_there_are_samples(client: Client) -> None:
    known = {"values": [0.5, 0.0], "mask": [1, 0]}
    pages = client.iter_samples("gaussian", 2, 1, known=known, solver="rk4-5", seed=3)
    assert [page.samples[0, 0] for page in pages] == [0.5, 0.5]


def test_a_budget_and_the_frontier(
    served: str, repository: Path, client: Client, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(pathline.NotFound, match=r"python -m models measure .*/gaussian/1"):
        client.frontier("gaussian")
    with pytest.raises(pathline.InvalidRequest, match="was not measured"):
        client.sample("gaussian", 3, budget=Budget(max_error=0.01))
    folder = repository / "gaussian" / "1"
    points = [("euler-4", 4, 0.3), ("ab4-9", 9, 0.008), ("midpoint-9", 18, 0.01), ("rk4-5", 20, 0.001)]
    curve = Curve(
        samples=128,
        seed=0,
        spread=1.0,
        points=tuple(point(s, n, e) for s, n, e in points),
    )
    weights = read_card(folder).weights_sha256
    StoredFrontier(weights_sha256=weights, reference="exact", curves=(curve,)).write(folder)
    found = None
    while found is None:  # the service notices the file
        with contextlib.suppress(pathline.NotFound):
            found = client.frontier("gaussian")
    assert [point.solver for point in found.curves[0].best] == ["euler-4", "ab4-9", "rk4-5"]
    drawn = "".join(line.partition("|")[2] for line in found.curves[0].chart().splitlines())
    assert (drawn.count("o"), drawn.count(".")) == (3, 1)
    for budget in (Budget(max_error=0.01), {"max_error": 0.01}, "error=0.01", "max_error=0.01,nfe=10"):
        result = client.sample("gaussian", 3, budget=budget)
        assert (result.budget["solver"], result.solver["name"]) == ("ab4-9", "ab4")
        assert "ab4-9: of 4 measured solvers, the cheapest" in str(result)
    pages = list(client.iter_samples("gaussian", 6, 2, budget=Budget(max_nfe=10)))
    assert [page.solver["name"] for page in pages] == ["ab4"] * 3
    assert ("budget" in pages[0].describe(), "budget" in pages[1].describe()) == (True, False)
    assert main(["frontier", "gaussian", "--url", served]) == 0
    assert "ab4-9" in capsys.readouterr().out
    assert main(["sample", "gaussian", "-n", "2", "--budget", "error=0.5", "--url", served]) == 0
    assert "euler-4" in capsys.readouterr().out
    assert main(["sample", "gaussian", "--budget", "speed=1", "--url", served]) == 2
    assert "error=0.01" in capsys.readouterr().err
    with pytest.raises(pathline.InvalidValue):
        Budget()
    with pytest.raises(pathline.InvalidRequest, match="rk4"):
        client.sample("gaussian", 3, budget={"max_error": 1e-9})
    with pytest.raises(pathline.InvalidRequest, match="contradict"):
        client.sample("gaussian", 3, budget={"max_error": 1e-9}, solver="rk4-5")


def test_replay(client: Client, served: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first = client.sample("gaussian", 5, solver="rk4-3", x0=np.arange(80.0).reshape(40, 2)[:5])
    again = client.replay(first)
    assert again.digest_matches is True
    assert (again.differences, again.digest, again.request) == ((), first.digest, first.request)
    np.testing.assert_array_equal(again.samples, first.samples)
    assert hashlib.sha256(first.samples.tobytes()).hexdigest() == first.digest.removeprefix("sha256:")
    other = {**first.describe(), "environment": {**first.environment, "torch": "1.0"}}
    changed = tmp_path / "changed.json"
    changed.write_text(json.dumps(other))
    with pytest.raises(pathline.ReplayDiffers, match="torch") as caught:
        client.replay(other)
    assert [each["what"] for each in caught.value.differences] == ["torch"]
    forced = client.replay(changed, force=True)
    assert (forced.digest_matches, len(forced.differences)) == (True, 1)
    with pytest.raises(pathline.InvalidValue, match="has no digest"):
        client.replay({name: value for name, value in other.items() if name != "digest"})
    with pytest.raises(pathline.InvalidValue, match="is no response"):
        client.replay(__file__)
    document = httpx.post(f"{served}/v1/sample", json={"model": "gaussian", "num_samples": 3, "save_at": [0.5]})
    (tmp_path / "document.json").write_bytes(document.content)
    for name in ("one.json", "one.npz", "document.json"):
        if name.startswith("one"):
            first.save(tmp_path / name)
        assert main(["replay", str(tmp_path / name), "--url", served]) == 0
        assert "the bits match those of the original response" in capsys.readouterr().out
    assert main(["replay", str(changed), "--url", served]) == 4
    refusal = capsys.readouterr().err
    assert "torch" in refusal
    assert "; use --force to sample anyway" in refusal
    assert main(["replay", str(changed), "--force", "--json", "--url", served]) == 0
    assert json.loads(capsys.readouterr().out)["digest_matches"] is True
    assert main(["replay", "no-such-file", "--url", served]) == 2


def test_pages_are_replayed_together(served: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    written, again = tmp_path / "pages.npz", tmp_path / "again.npy"
    assert main(["sample", "gaussian", "-n", "50", "--batch", "20", "-o", str(written), "--url", served]) == 0
    assert main(["replay", str(written), "-o", str(again), "--url", served]) == 0
    np.testing.assert_array_equal(np.load(again), np.load(written)["samples"])


def test_replay_in_asyncio(repository: Path) -> None:
    async def both() -> None:
        async with in_process(repository) as client:
            first = await client.sample("gaussian", 4)
            np.testing.assert_array_equal((await client.replay(first)).samples, first.samples)

    asyncio.run(both())


@pytest.mark.parametrize("kind", list(Kind), ids=lambda kind: kind.slug)
def test_each_problem_of_the_service_is_told_by_its_class_and_slug(kind: Kind) -> None:
    document = {"type": f"/problems/{kind.slug}", "title": "x", "status": kind.status, "detail": "y"}
    head = httpx.Response(kind.status, request=httpx.Request("POST", "http://there"))
    error = problem_of(document, Response(head))
    assert type(error) is BY_STATUS.get(kind.status, APIError)
    assert error.slug == kind.slug


def test_links_name_solvers_by_the_text_that_the_page_reads() -> None:
    from pathline._show import page_url

    script = (Path(__file__).parents[2] / "service" / "static" / "view.js").read_text()
    assert 'if (key === "a" || key === "b")' in script
    solvers = ("ab2-9/logit_normal(0.5,2)+rk", "tsit5@1e-5/1e-8+pi+batch")
    parts = dict(parse_qsl(urlsplit(page_url("http://x", {}, *solvers)).fragment))
    assert {side: str(SolverSpec.parse(text)) for side, text in parts.items()} == dict(zip("ab", solvers, strict=True))
