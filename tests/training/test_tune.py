"""`python -m training tune`: the file it writes, resuming after a stop, conditional models, and wrong usage."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from models.__main__ import main as measured
from models.architectures.residual_mlp import ResidualMLP, ResidualMLPConfig, ResidualMLPSize
from models.checkpoint.loading import load
from models.checkpoint.plans import PLANS_FILE, Plans
from models.checkpoint.saving import save
from models.conditions import ONE, NamedCondition
from models.decoder import Decoder
from models.velocity import FieldKind
from selection.frontier import FRONTIER_FILE, is_tuned, read_frontier
from training import tune as command
from training.__main__ import main
from training.tune import TuningOptions, paths_of, tune

from ..service.free import mel, picture

ABOUT: dict[str, Any] = {"dataset": {"name": "none"}, "training": {}, "seed": 0}
QUICK = TuningOptions(nfe=(2, 3), methods=("ab2",), samples=16, iterations=3)
SHORT = ["--nfe", "2,3", "--methods", "ab2", "--samples", "16", "--iterations", "3"]


def saved(root: Path, condition: NamedCondition | None = None) -> Path:
    torch.manual_seed(0)
    network = ResidualMLP(
        ResidualMLPConfig(dim=2, hidden=8, blocks=1, time_width=4, max_frequency=6, condition=condition)
    )
    for parameter in network.parameters():
        torch.nn.init.normal_(parameter, std=0.4)
    return save(root, "small", network, Decoder.identity((2,)), **ABOUT)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(command, "VALIDATED", 16)
    monkeypatch.setattr("selection.measure._SAMPLES", 8)
    monkeypatch.setattr("selection.candidates.STEPS", (1, 4))
    return saved(tmp_path)


def test_the_frontier_has_what_was_tuned_and_all_else_as_it_was(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert main(["tune", str(folder), *SHORT]) == 0
    assert "4 tuned solvers measured for budgets" in capsys.readouterr().out
    card = load(folder).card
    first = read_frontier(folder, card)
    assert first is not None
    texts = {point.solver for point in first.curves[0].points}
    assert {"tuned-2", "tuned-3", "ab2-2/tuned", "ab2-3/tuned", "rk4-1"} <= texts
    monkeypatch.setattr("selection.measure._SAMPLES", 16)  # the frontier keeps its number of paths
    assert main(["tune", str(folder), *SHORT, "--nfe", "4"]) == 0
    second = read_frontier(folder, card)
    assert second is not None
    kept = tuple(point for point in second.curves[0].points if point.nfe != 4 or not is_tuned(point.solver))
    assert kept == first.curves[0].points
    assert {point.solver for point in second.curves[0].points} - texts == {"tuned-4", "ab2-4/tuned"}
    other = second.curves[0].model_copy(update={"spread": 9.0})
    second.model_copy(update={"curves": (other,)}).write(folder)
    capsys.readouterr()
    assert main(["tune", str(folder), *SHORT]) == 0
    assert f"measured again: python -m training evaluate {folder}" in capsys.readouterr().out


def test_a_student_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    network = ResidualMLPSize(hidden=8, blocks=1, time_width=4).network((2,), field=FieldKind.AVERAGE)
    folder = save(tmp_path, "student", network, Decoder.identity((2,)), **ABOUT)
    assert main(["tune", str(folder), *SHORT]) == 1
    assert "whose steps follow no ODE for a plan to approximate" in capsys.readouterr().err
    assert not (folder / PLANS_FILE).exists()
    assert measured(["measure", str(folder)]) == 1
    assert "whose steps follow no ODE: it has no endpoint error" in capsys.readouterr().err
    assert not (folder / FRONTIER_FILE).exists()


def test_a_free_axis_is_refused_with_what_can_be_done(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _, folder = picture(tmp_path, tmp_path / "repository")
    assert main(["tune", str(folder), *SHORT]) == 1
    assert capsys.readouterr().err == (
        f"training: {folder}: has free axes (H, W), and there is no one shape to tune for; measure stock solvers at "
        f"one: python -m models measure {folder} --shape H=N --shape W=N\n"
    )
    assert not (folder / PLANS_FILE).exists()


def test_conditions_by_name_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    mel(tmp_path, tmp_path / "repository")
    assert main(["tune", str(tmp_path / "repository" / "mel" / "1"), *SHORT]) == 1
    assert "takes conditions by name (mu), and there are no examples of them to tune for" in capsys.readouterr().err


def test_the_file_holds_what_was_asked_for_and_more_is_added(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tune", str(folder), *SHORT]) == 0
    out = capsys.readouterr().out
    assert [line.split()[0] for line in out.splitlines()[1:-1]] == ["ab2-2/tuned", "tuned-2", "ab2-3/tuned", "tuned-3"]
    checkpoint = load(folder)
    assert checkpoint.plans is not None
    assert sorted(checkpoint.plans.plans) == [2, 3]
    stored = Plans.read(folder, checkpoint.card.weights_sha256)
    assert stored is not None
    made: dict[str, Any] = {"samples": 16, "seed": 0, "iterations": 3, "tuner": command.TUNER}
    assert [plan.tuning for plan in stored.plans] == [made, made | {"methods": ["ab2"]}] * 2
    assert all(plan.libraries["torch"] == torch.__version__ for plan in stored.plans)
    assert main(["evaluate", str(folder), "--solver", "tuned-3", "--samples", "8", "--out", str(folder.parent)]) == 0
    assert "tuned-3" in capsys.readouterr().out
    assert main(["evaluate", str(folder), "--solver", "tuned-4", "--samples", "8", "--out", str(folder.parent)]) == 2
    assert "available: tuned-2, tuned-3" in capsys.readouterr().err


def test_a_stop_keeps_what_is_done_and_the_same_command_goes_on(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = tune(folder, QUICK)
    (folder / PLANS_FILE).unlink()
    learn = command.tune_plan

    def stop(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(command, "tune_plan", stop)
    arguments = ["tune", str(folder), *SHORT]
    assert main(arguments) == 130
    left = Plans.read(folder, whole.weights_sha256)
    assert left is not None
    assert [plan.solver for plan in left.plans] == ["ab2-2/tuned"]
    monkeypatch.setattr(command, "tune_plan", learn)
    assert tune(folder, QUICK) == whole
    monkeypatch.setattr(command, "tune_plan", stop)
    assert tune(folder, QUICK) == whole  # nothing is left to do
    with pytest.raises(KeyboardInterrupt):
        tune(folder, QUICK, force=True)


def test_each_plan_says_how_it_was_tuned_and_other_recipes_replace_their_own_only(folder: Path) -> None:
    first = {plan.solver: plan for plan in tune(folder, QUICK).plans}
    other = TuningOptions(nfe=(3, 4), methods=("ab2",), samples=20, iterations=2)
    second = {plan.solver: plan for plan in tune(folder, other).plans}
    for solver in ("ab2-2/tuned", "tuned-2"):
        assert second[solver] == first[solver]
    for solver in ("ab2-3/tuned", "tuned-3", "ab2-4/tuned", "tuned-4"):
        assert second[solver].tuning["samples"] == 20
    more = {plan.solver: plan for plan in tune(folder, replace(QUICK, methods=("ab2", "ab3"))).plans}
    assert more["tuned-2"].tuning["methods"] == ["ab2", "ab3"]  # it may start with another grid
    assert more["ab2-2/tuned"] == first["ab2-2/tuned"]


def test_plans_of_an_earlier_tuner_are_tuned_again_or_named(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    whole = tune(folder, QUICK)
    old = tuple(
        plan.model_copy(
            update={
                "x0_weights": None,
                "tuning": {name: fact for name, fact in plan.tuning.items() if name != "tuner"},
            }
        )
        for plan in whole.plans
    )
    whole.model_copy(update={"plans": old}).write(folder)
    capsys.readouterr()
    some = tune(folder, replace(QUICK, nfe=(3,)))
    printed = capsys.readouterr().err
    assert f"{folder}: tuning ab2-3/tuned, tuned-3 again: tuner not given, now {command.TUNER}\n" in printed
    assert (
        "ab2-2/tuned, tuned-2 stay as an earlier tuner left them; to improve them, name their NFE in --nfe" in printed
    )
    assert some.plans == old[:2] + whole.plans[2:]
    assert tune(folder, QUICK) == whole
    assert "tuning ab2-2/tuned, tuned-2 again" in capsys.readouterr().err
    assert tune(folder, QUICK) == whole
    assert capsys.readouterr().err == f"{folder}: everything is tuned already; use --force to tune it again\n"
    tune(folder, replace(QUICK, samples=18, iterations=2))
    printed = capsys.readouterr().err
    assert "tuning ab2-2/tuned, tuned-2, ab2-3/tuned, tuned-3 again: iterations 3, now 2; samples 16, now 18" in printed


def test_old_plans_stay_until_their_successors_are_ready(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = {plan.solver: plan for plan in tune(folder, QUICK).plans}

    def stop(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(command, "tune_plan", stop)
    with pytest.raises(KeyboardInterrupt):
        tune(folder, replace(QUICK, samples=18))
    left = Plans.read(folder, load(folder).card.weights_sha256)
    assert left is not None
    assert left.plans[0].tuning["samples"] == 18
    assert list(left.plans[1:]) == [first[text] for text in ("tuned-2", "ab2-3/tuned", "tuned-3")]


def test_plans_that_cannot_be_used_are_replaced(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / PLANS_FILE).write_text("{")
    tune(folder, TuningOptions(nfe=(2,), methods=("ab2",), samples=16, iterations=1))
    assert "replacing them" in capsys.readouterr().err
    assert load(folder).plans_fault == ""


def test_a_conditional_model_is_tuned_over_classes_and_guidance(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command, "VALIDATED", 16)
    folder = saved(tmp_path, NamedCondition.label(classes=3))
    checkpoint = load(folder)
    field = paths_of(checkpoint, (1.0, 3.0), 0, 0, 12)[0]
    assert isinstance(field.conditions, torch.Tensor)
    assert isinstance(field.guidance, torch.Tensor)
    pairs = {(int(label), float(g)) for label, g in zip(field.conditions, field.guidance, strict=True)}
    assert {label for label, _ in pairs} == {0, 1, 2}
    assert {g for _, g in pairs} == {1.0, 3.0}
    plain, guided = (paths_of(checkpoint, (g,), 0, 0, 6)[2].states for g in (1.0, 3.0))
    assert not torch.allclose(plain, guided)
    # More than the 128 paths that a descent begins on.
    plans = tune(folder, TuningOptions(nfe=(2,), methods=("ab2",), samples=130, iterations=2, guidance=(1.0, 3.0)))
    assert all(plan.tuning["guidance"] == [1.0, 3.0] for plan in plans.plans)


def test_a_stored_null_guides(tmp_path: Path) -> None:
    class Constant(nn.Module):
        def forward(self, x: Tensor, t: Tensor, condition: Tensor) -> Tensor:
            return condition.to(x.dtype).expand_as(x)

    checkpoint = load(saved(tmp_path, NamedCondition.vector(width=1)))
    card = checkpoint.card.model_copy(update={"conditions": {ONE: NamedCondition(shape=(1,), null="stored")}})
    stored = replace(checkpoint, velocity=Constant(), card=card, nulls={ONE: torch.tensor([2.0])})
    _, x0, ends = paths_of(stored, (0.0,), 0, 0, 4)
    torch.testing.assert_close(ends.states, x0.double() + 2)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("--nfe 1", "--nfe is 1; each must be from 2 to 32"),
        ("--nfe 4,99", "--nfe is 4,99"),
        ("--nfe six", "--nfe is 'six'; use numbers separated by commas"),
        ("--nfe 4.5", "--nfe is '4.5'"),
        ("--methods rk4", "rk4 does not take one evaluation per step"),
        ("--methods tuned", "tuned does not take one evaluation per step"),
        ("--methods abc", "unknown solver 'abc'"),
        ("--methods ,", "--methods is empty"),
        ("--samples 3", "--samples is 3"),
        ("--seed -1", "--seed is -1"),
        ("--iterations 0", "--iterations is 0"),
        ("--guidance nan", "--guidance is nan"),
    ],
)
def test_wrong_usage(tmp_path: Path, arguments: str, words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tune", str(tmp_path), *arguments.split()]) == 2
    assert words in capsys.readouterr().err
    assert main(["tune", str(tmp_path)]) == 1
    assert "card.json" in capsys.readouterr().err
