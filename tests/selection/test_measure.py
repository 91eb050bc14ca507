"""Measured frontiers of fields with known paths."""

import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from models.__main__ import main
from models.architectures.analytic import Gaussian, GaussianConfig
from models.architectures.residual_mlp import ResidualMLP, ResidualMLPConfig
from models.checkpoint.card import read_card
from models.checkpoint.loading import load
from models.checkpoint.saving import save
from models.conditions import NamedCondition
from models.decoder import Decoder
from models.field import Field
from models.noise import noise
from selection.candidates import CLOSE, STEPS, candidates, falls_behind
from selection.error import Ends, NoErrors, Point, exact_ends
from selection.frontier import pareto, read_frontier
from selection.measure import SEED, measure, measure_curve, measure_solver
from solvers import integrate
from solvers.tuned import TunedPlan, TunedPlans

from ..models import test_prelude as preludes
from ..service import named
from ..service.free import mel, picture
from ..service.named import imported
from .support import only, point

ABOUT: dict[str, Any] = {"dataset": {}, "training": {}, "seed": 0}
FEW: dict[str, Any] = {"only": ("euler-1", "ab4-4", "euler-8", "rk4-4", "ab4-24", "tsit5@1e-6")}


class Decay(nn.Module):
    """dx/dt = -3 x."""

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        return -3 * x


class Constant(nn.Module):
    """dx/dt = 1: at any tolerance the only error is rounding."""

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        return torch.ones_like(x)


class Labelled(nn.Module):
    """dx/dt = -(1 + label) x."""

    def forward(self, x: Tensor, t: Tensor, label: Tensor) -> Tensor:
        return -x * (1 + label[:, None])


class Lost(nn.Module):
    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        return torch.full_like(x, math.nan)


X0 = noise(0, 0, 256, (2,), torch.float64)


def test_errors_are_distances_from_the_exact_ends() -> None:
    curve = measure_curve(Field(Decay()), X0, **FEW)
    ends = X0 * math.exp(-3)
    spread = float((ends - ends.mean(0)).square().sum(1).mean().sqrt())
    assert curve.spread == pytest.approx(spread)
    assert (curve.samples, curve.complete) == (256, True)
    for one in curve.points:
        if one.adaptive:
            continue
        name, steps = one.solver.split("-")
        x = integrate(Decay(), X0, solver=name, steps=int(steps)).x
        distance = (x - ends).square().sum(1).sqrt().numpy() / spread
        assert one.p50 == pytest.approx(np.quantile(distance, 0.5), rel=0.02, abs=1e-8)
        assert np.quantile(distance, 0.95) - 1e-8 <= one.p95_high <= one.worst == pytest.approx(distance.max())
        assert one.nfe == one.nfe_most == int(steps) * (4 if name == "rk4" else 1)


@pytest.mark.parametrize("new", range(3))
def test_the_limit_is_kept_by_95_percent_of_new_samples(new: int) -> None:
    field = Gaussian(GaussianConfig()).double()
    curve = measure_curve(Field(field), X0, **FEW)
    x0 = noise(100 + new, 0, 4000, (2,), torch.float64)
    for one in pareto(curve.points):
        name, _, rest = one.solver.replace("@", "-@").partition("-")
        settings: dict[str, Any] = (
            {"rtol": float(rest[1:]), "atol": float(rest[1:])} if rest.startswith("@") else {"steps": int(rest)}
        )
        x = integrate(field, x0, solver=name, **settings).x
        distance = (x - field.exact(x0)).square().sum(1).sqrt().numpy() / curve.spread
        assert (distance <= one.p95_high).mean() >= 0.95, one


def tried(field: nn.Module, monkeypatch: pytest.MonkeyPatch, solvers: tuple[str, ...], **changes: Any) -> list[str]:
    """Measure with a shorter list of candidates, and return their texts in the order of cost."""
    values = {"catalogue.solvers": only(*solvers), "EDM": "heun2/karras", "GRIDS": (), "ADAPTIVE": (), **changes}
    for name, value in values.items():
        monkeypatch.setattr(f"selection.candidates.{name}", value)
    curve = measure_curve(Field(field), X0.float(), seconds=math.inf)
    assert curve.complete
    assert [point.nfe_most for point in curve.points] == sorted(point.nfe_most for point in curve.points)
    return [point.solver for point in curve.points]


def test_a_method_ends_once_another_is_close_and_the_best_try_other_grids(monkeypatch: pytest.MonkeyPatch) -> None:
    texts = tried(Decay(), monkeypatch, ("euler", "rk4"), GRIDS=("sway",))
    assert {"euler-1", "rk4-1", "heun2-3/karras"} <= set(texts)
    assert "heun2-3" not in texts, "too similar to others"
    assert not {"euler-200", "rk4-48"} & set(texts)
    assert any(text.startswith("rk4") and text.endswith("/sway") for text in texts)
    texts = tried(Decay(), monkeypatch, ("ab2", "midpoint"), GRIDS=("sway",))
    assert {"ab2-4/sway", "midpoint-2/sway"} <= set(texts), "the best of each family"
    assert not {"ab2-1", "euler-1/sway", "midpoint-1/sway"} & set(texts), "the same as others"


def test_no_solver_that_would_be_chosen_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("selection.candidates.EDM", "rk4/karras")
    monkeypatch.setattr("selection.candidates.catalogue.solvers", only("euler", "ab4", "rk4"))
    monkeypatch.setattr("selection.candidates.GRIDS", ())
    monkeypatch.setattr("selection.candidates.ADAPTIVE", ())
    few = measure_curve(Field(Decay()), X0, seconds=math.inf)
    every = measure_curve(
        Field(Decay()), X0, only=[f"{name}-{n}" for name in ("euler", "ab4", "rk4") for n in STEPS if n >= 1]
    )
    assert len(few.points) < len(every.points)
    close = min(point.nfe for point in few.points if point.p95_high <= CLOSE)
    for best in (one for one in pareto(every.points) if one.nfe <= close):
        assert min(one.p95_high for one in few.points if one.nfe <= best.nfe) <= best.p95_high


def test_a_method_that_catches_up_is_not_given_up() -> None:
    def record(errors: list[float], best: list[float]) -> list[bool]:
        ratios, points = [np.inf], dict[str, Point]()
        told = []
        for k, (error, other) in enumerate(zip(errors, best, strict=True), 1):
            points[f"rk4-{k}"] = point(f"rk4-{k}", k, other)
            told.append(falls_behind(ratios, point(f"euler-{k}", k, error), points))
        return told

    assert record([1, 0.5, 0.25, 0.1], [0.5, 0.2, 0.08, 0.001]) == [False, False, False, True]
    assert not any(record([10 * 0.5**k for k in range(12)], [0.7**k for k in range(12)]))
    few = {"ab2-16": point("ab2-16", 16, 0.01)}
    ratios = [np.inf]
    assert not any(falls_behind(ratios, point(f"rk4-{k}", 4 * k, 0.1 * k), few, order=4) for k in range(4, 9))


def test_tolerances_end_where_they_change_little(monkeypatch: pytest.MonkeyPatch) -> None:
    few: dict[str, Any] = {"ADAPTIVE": ("tsit5",), "TOLERANCES": tuple(10.0**-k for k in range(2, 7))}
    texts = [tried(field, monkeypatch, ("rk4",), **few) for field in (Decay(), Constant())]
    assert [sum("tsit5@" in text for text in each) for each in texts] == [5, 2]


def test_what_was_tuned_is_tried_first() -> None:
    plans = TunedPlans(grids={"ab2-3": TunedPlan(np.array([0.0, 0.3, 0.6, 1.0]))})
    first = next(candidates({}, torch.float64, plans.texts))
    assert first == "ab2-3/tuned"
    ends = Ends.of(exact_ends(Field(Decay()), X0))
    assert measure_solver(first, Field(Decay()), X0, ends, plans) is not None


class Watch:
    """A clock that `exact_ends` and each solver move on by seconds of their own."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, ends_s: float) -> None:
        self.now = 0.0
        monkeypatch.setattr("selection.measure.time.monotonic", lambda: self.now)

        def slow_ends(field: Field, x0: Tensor) -> Tensor:
            self.now += ends_s * len(x0) / 64
            return exact_ends(field, x0)

        monkeypatch.setattr("selection.measure.exact_ends", slow_ends)

    def tell(self, text: str) -> None:
        self.now += text != "exact ends"


def test_time_bounds_it_and_the_cheapest_come_first(monkeypatch: pytest.MonkeyPatch) -> None:
    curve = measure_curve(Field(Decay()), X0, **FEW, seconds=3.5, progress=Watch(monkeypatch, 0).tell)
    assert not curve.complete
    assert [point.solver for point in curve.points] == ["euler-1", "ab4-4", "euler-8", "rk4-4"]
    whole = measure_curve(Field(Decay()), X0, **FEW, seconds=1e9)
    assert whole.complete
    assert set(curve.points) < set(whole.points)


def test_the_exact_ends_are_within_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    notes = list[str]()

    def measured(ends_s: float, seconds: float = 8) -> tuple[int, int]:
        watch = Watch(monkeypatch, ends_s)
        curve = measure_curve(Field(Decay()), X0, **FEW, seconds=seconds, progress=watch.tell, note=notes.append)
        return curve.samples, len(curve.points)

    assert (measured(1), notes) == ((256, 5), [])  # 4 s for the ends
    assert measured(2, 4) == (96, 2)
    assert notes.pop() == "errors are measured on 96 paths, as the exact ends of 256 could take 8 s"
    assert measured(20) == (96, 4)  # a tenth of 30 s
    assert notes[1] == "the exact ends of 96 paths alone took 30 s, over the limit of 8 s"


def test_paths_solved_in_pieces_end_where_all_at_once_do() -> None:
    field = Field(Labelled(), torch.arange(256) % 3)
    at_once, pieces = (measure_curve(field, X0, **FEW, seconds=seconds) for seconds in (math.inf, 1e9))
    assert pieces.has_paths_of(at_once)
    assert {point.solver for point in pieces.points} == {point.solver for point in at_once.points}


def test_an_error_may_have_to_be_reached_however_long_it_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    watch, solvers = Watch(monkeypatch, 1), ("euler-1", "rk4-4", "rk4-8", "rk4-12")
    curve = measure_curve(Field(Decay()), X0, only=solvers, seconds=1, until_error=0.01, progress=watch.tell)
    assert not curve.complete
    assert [point.p95_high <= 0.01 for point in curve.points].count(True) == 1


def test_what_has_no_ends_is_refused() -> None:
    with pytest.raises(NoErrors, match="none of 256 paths reached t = 1"):
        measure_curve(Field(Lost()), X0, **FEW)


def test_guidance_has_curves_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("selection.candidates.catalogue.solvers", only("rk4"))
    monkeypatch.setattr("selection.candidates.STEPS", (1, 4))
    monkeypatch.setattr("selection.candidates.ADAPTIVE", ())
    torch.manual_seed(0)
    network = ResidualMLP(
        ResidualMLPConfig(dim=2, hidden=8, blocks=1, time_width=4, condition=NamedCondition.label(classes=3))
    )
    checkpoint = load(save(tmp_path, "labels", network, Decoder.identity((2,)), **ABOUT))
    frontier = measure(checkpoint, guidances=(1.0, 3.0), seconds=1e9)
    assert [curve.guidance for curve in frontier.curves] == [1.0, 3.0]
    assert frontier.conditions == "every label in turn"
    assert frontier.curve(None) is frontier.curves[0]
    assert frontier.curve(2.0) is None
    assert frontier.curves[0].spread != frontier.curves[1].spread


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    return save(tmp_path, "exact", Gaussian(GaussianConfig()), Decoder.identity((2,)), **ABOUT)


def test_the_command_writes_it_and_says_what_it_found(
    saved: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("selection.candidates.catalogue.solvers", only("rk4"))
    monkeypatch.setattr("selection.candidates.EDM", "rk4/karras")
    assert main(["measure", str(saved), "--seconds", "1000"]) == 0
    out = capsys.readouterr().out
    assert "rk4-1" in out
    assert "written to" in out
    assert read_frontier(saved, read_card(saved)) is not None
    assert main(["measure", str(saved / "none")]) == 1
    assert "card.json: is missing" in capsys.readouterr().err
    assert main(["measure", str(saved), "--seconds", "0"]) == 2
    capsys.readouterr()
    assert main(["measure", str(saved), "--guidance", "2"]) == 1
    assert "guidance is for conditional models, and this one is not conditional" in capsys.readouterr().err


def test_a_shorter_measurement_takes_nothing_away(
    saved: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("selection.candidates.catalogue.solvers", only("rk4"))
    monkeypatch.setattr("selection.candidates.EDM", "rk4/karras")
    monkeypatch.setattr("selection.candidates.STEPS", (1, 2))
    assert main(["measure", str(saved), "--seconds", "1000"]) == 0
    before = read_frontier(saved, read_card(saved))
    assert before is not None
    assert before.curves[0].complete
    monkeypatch.setattr("selection.measure._ends", lambda field, x0, seconds, note: exact_ends(field, x0))
    capsys.readouterr()
    assert main(["measure", str(saved), "--seconds", "1e-9"]) == 0
    assert f"merged into {saved / 'frontier.json'}" in capsys.readouterr().out
    after = read_frontier(saved, read_card(saved))
    assert after is not None
    assert after.curves[0].complete
    assert [p.solver for p in after.curves[0].points] == [p.solver for p in before.curves[0].points]


@pytest.mark.parametrize(
    ("shape", "message"),
    [
        ([], "the axis H .* is free; it needs a size here: --shape H=N, N from 4 to 64"),
        (["--shape", "H=5"], "--shape W=N"),
        (["--shape", "H=5", "--shape", "W=65"], "has W = 65, expected 4 to 64"),
        (["--shape", "K=5"], r"the model has no axis 'K'; its shape is \[1, 'H', 'W'\]"),
    ],
)
def test_a_free_axis_needs_a_size(
    free: Path, shape: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["measure", str(free), *shape]) == 1
    assert re.search(message, capsys.readouterr().err)


@pytest.fixture(scope="module")
def free(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("free")
    return picture(folder, folder / "repository")[1]


def test_conditions_by_name_are_measured_with_examples_of_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("selection.measure.candidates", lambda *_: iter(("euler-8", "rk4-4")))
    _, folder = imported(tmp_path, tmp_path / "repository")
    assert main(["measure", str(folder)]) == 1
    assert "give some: --condition FILE.npz, with an array (examples, ...) for each name" in capsys.readouterr().err
    random = np.random.default_rng(0)
    examples = {"text": random.normal(size=(5, 3, 4)), "label": np.arange(5), "image": np.zeros((5, 3, 2, 2), "uint8")}
    np.savez(tmp_path / "examples.npz", **examples, mask=np.ones((5, 3), bool))
    assert main(["measure", str(folder), "--condition", str(tmp_path / "examples.npz")]) == 0
    out = capsys.readouterr().out
    assert "conditions: the examples of examples.npz" in out
    assert "not the conditions of this request" in out
    frontier = read_frontier(folder, read_card(folder))
    assert frontier is not None
    assert [point.solver for point in frontier.curves[0].points] == ["euler-8", "rk4-4"]
    (tmp_path / "no.npz").write_text("no")
    assert main(["measure", str(folder), "--condition", str(tmp_path / "no.npz")]) == 1
    assert "it must be an npz file with an array for each name" in capsys.readouterr().err
    np.savez(tmp_path / "other.npz", other=np.zeros((2, 3)))
    assert main(["measure", str(folder), "--condition", str(tmp_path / "other.npz")]) == 1
    assert "there is no condition 'other'; this model takes image, label" in capsys.readouterr().err


def test_a_stored_null_and_one_with_a_free_axis_are_guided(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("selection.measure.candidates", lambda *_: iter(("rk4-8",)))
    monkeypatch.setitem(named.DECLARED, "strength", {"null": "zeros"})
    checkpoint = load(named.imported(tmp_path, tmp_path / "repository")[1])
    random = np.random.default_rng(0)
    examples = {"text": random.normal(size=(5, 3, 4)), "label": np.arange(5), "mask": np.ones((5, 3), bool)}
    examples |= {"image": np.zeros((5, 3, 2, 2), "uint8"), "strength": np.ones(5)}
    frontier = measure(checkpoint, examples=examples, samples=64, seconds=1e9, guidances=[0, 1, 2])
    assert [curve.guidance for curve in frontier.curves] == [0, 1, 2]
    assert len({curve.spread for curve in frontier.curves}) == 3
    assert all(curve.points[0].p95_high < 1e-2 for curve in frontier.curves)


def test_examples_go_through_the_prelude_in_turn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("selection.measure.candidates", lambda *_: iter(("rk4-8",)))
    checkpoint = load(preludes.saved(tmp_path, preludes.card()))
    random = np.random.default_rng(0)
    images = random.normal(size=(3, 4)).astype(np.float32)
    examples = {"image": images, "state": random.normal(size=(2, 3)).astype(np.float32)}
    curve = measure(checkpoint, examples=examples, conditions_text="three", samples=96, seconds=1e9).curves[0]
    assert checkpoint.prelude is not None
    tokens = checkpoint.prelude.program({"image": torch.from_numpy(images)})["tokens"][torch.arange(96) % 3]
    x0 = noise(SEED, 0, 96, (2,)).double()
    ends = math.e * x0 + (math.e - 1) * tokens.double()  # of dx/dt = x + tokens
    assert curve.spread == pytest.approx(Ends.of(ends).spread)
    assert curve.points[0].p95_high < 1e-3


def test_a_free_axis_has_the_size_of_the_examples(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("selection.measure.candidates", lambda *_: iter(("euler-8", "rk4-4")))
    _, folder = mel(tmp_path, tmp_path / "repository")
    np.savez(tmp_path / "mu.npz", mu=np.random.default_rng(0).normal(size=(4, 3, 8)))
    assert main(["measure", str(folder), "--condition", str(tmp_path / "mu.npz"), "--seconds", "1000"]) == 0
    assert "shape T=8" in capsys.readouterr().out
    frontier = read_frontier(folder, read_card(folder))
    assert frontier is not None
    assert frontier.sizes == {"T": 8}
    assert main(["measure", str(folder), "--condition", str(tmp_path / "mu.npz"), "--shape", "T=6"]) == 1
    assert "T = 8, but --shape has T = 6; they must agree" in capsys.readouterr().err
