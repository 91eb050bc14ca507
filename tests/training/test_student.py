"""Students: the loss has the average velocity as its minimum, and a run is bound to its parent."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from models.architectures.analytic import Gaussian
from models.architectures.residual_mlp import ResidualMLPSize
from models.checkpoint.bound import read_report
from models.checkpoint.card import read_card
from models.checkpoint.loading import load
from models.checkpoint.saving import save
from models.conditions import NamedCondition
from models.decoder import Decoder
from models.velocity import FieldKind
from tests.training.support import small
from training import draws
from training.__main__ import main
from training.by_class import evaluate_by_class
from training.config import CONFIGS, Recipe, StudentConfig, load_recipe
from training.data import prepare
from training.errors import UsageError
from training.fit import Options, fit, new_trainer
from training.measurement import evaluate_checkpoint
from training.parents import pin_parent
from training.student import Teacher, take_over, with_teacher

pytestmark = pytest.mark.usefixtures("quick_measurements")


@pytest.fixture(scope="module")
def parent(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("parent")
    return fit(small(), Options(folder / "models", folder / "runs", device="cpu", seconds=0))


def student(parent: Path, recipe: Recipe | None = None, **more: Any) -> Recipe:
    given = StudentConfig.model_validate({"checkpoint": str(parent), **more})
    return pin_parent((recipe or small()).model_copy(update={"name": "quick", "student": given}))


class Known(nn.Module):
    """The average velocity of the flow to N(m, s^2 I): (x_s - x_t) / (s - t) by its known flow map."""

    def __init__(self, off: float = 0.0) -> None:
        super().__init__()
        self.off = nn.Parameter(torch.tensor(off, dtype=torch.float64))

    def forward(self, x: Tensor, times: Tensor) -> Tensor:
        t, s = times[:, :1], times[:, 1:]
        spread = [((1 - at) ** 2 + (0.5 * at) ** 2).sqrt() for at in (t, s)]
        end = s * 2.0 + spread[1] / spread[0] * (x - t * 2.0)
        return (end - x) / (s - t) + self.off


def gaussian(folder: Path, **given: Any) -> Teacher:
    path = save(folder, "gaussian", Gaussian(), Decoder.identity((2,)), dataset={}, training={}, seed=0)
    teacher = Teacher(load(path), StudentConfig(checkpoint=str(path), **given))
    teacher.parent.velocity.double()
    return teacher


def batch(rows: int = 64) -> tuple[Tensor, ...]:
    source = torch.Generator().manual_seed(0)
    x0, x1 = torch.randn(2, rows, 2, generator=source, dtype=torch.float64)
    times = torch.rand(rows, 2, generator=source, dtype=torch.float64).sort(1).values
    return x0, 2.0 + 0.5 * x1, times[:, 0], times[:, 1]


@pytest.mark.parametrize("power", [0.0, 1.0])
def test_the_true_average_velocity_has_no_loss_and_others_have(tmp_path: Path, power: float) -> None:
    teacher = gaussian(tmp_path, power=power)
    assert teacher.loss(Known(), *batch()).item() < 1e-20
    off = Known(off=0.1)
    loss = teacher.loss(off, *batch())
    assert loss.item() == pytest.approx(0.01)  # the mean square, whatever the weights
    loss.backward()
    assert off.off.grad is not None
    assert off.off.grad.item() == pytest.approx(0.2 / (0.02 + 1e-3) ** power)


def test_steps_are_ordered_and_some_have_no_length() -> None:
    t = np.random.default_rng(0).random(4000, dtype=np.float32)
    start, end = draws.steps(3, 5, t, 0.25)
    assert (start <= end).all()
    assert abs((start == end).mean() - 0.25) < 0.03
    assert (np.isin(t, start) | np.isin(t, end)).all()
    assert np.array_equal(draws.steps(3, 5, t, 0.25)[1], end)
    assert not np.array_equal(draws.steps(3, 6, t, 0.25)[1], end)


def test_a_student_is_trained_declared_and_priced_by_data(
    parent: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = fit(student(parent), Options(tmp_path / "models", tmp_path / "runs", device="cpu", seconds=100))
    card, theirs = read_card(path), read_card(parent)
    assert card.field.takes_ends
    assert card.dataset["student"] == {
        "parent": "moons", "parent_weights_sha256": theirs.weights_sha256, "guidance": None
    }  # fmt: skip
    assert card.dataset["sha256"] == theirs.dataset["sha256"]
    report = read_report(path, card)
    price = report["price"]
    assert isinstance(price, dict)
    assert price["kind"] == "few_steps"
    assert list(price["swd"]) == ["1", "2", "4"]  # type: ignore[arg-type]
    assert price["parent"] == "moons"
    quality = report["quality"]
    assert isinstance(quality, dict)
    assert (quality["solver"], quality["nfe_max"]) == ("euler-1", 1)
    message = capsys.readouterr().out
    assert "there is no ODE, so no endpoint error" in message
    assert "its parent moons: SWD" in message


def test_it_begins_with_its_parents_weights_where_they_fit(parent: Path) -> None:
    velocity = load(parent).velocity
    recipe = student(parent)
    data, teacher = with_teacher(recipe, prepare(recipe))
    trainer = new_trainer(recipe, data, torch.device("cpu"), teacher=teacher)
    x, times = torch.randn(4, 2), torch.tensor([[0.2, 0.9]]).repeat(4, 1)
    torch.testing.assert_close(trainer.network(x, times), velocity(x, times[:, 0]))
    other = ResidualMLPSize(hidden=24, blocks=1).network((2,), field=FieldKind.AVERAGE)
    assert not take_over(other, velocity)


def test_labels_begin_as_the_parents_without_the_null() -> None:
    size = ResidualMLPSize(hidden=16, blocks=1)
    theirs = size.network((2,), NamedCondition.label(classes=3))
    mine = size.network((2,), NamedCondition.label(classes=3, null=False), field=FieldKind.AVERAGE)
    assert take_over(mine, theirs)
    x, t, labels = torch.randn(3, 2), torch.rand(3), torch.tensor([0, 1, 2])
    torch.testing.assert_close(mine(x, t, labels), theirs(x, t, labels))


def test_labels_and_guidance_come_along(tmp_path: Path) -> None:
    recipe = small("digits_conditional")
    places = Options(tmp_path / "models", tmp_path / "runs", device="cpu", seconds=0)
    parent = fit(recipe, places)
    guided = student(parent, recipe, guidance=3.0)
    data, teacher = with_teacher(guided, prepare(guided))
    velocity, x, t = load(parent).velocity, torch.randn(4, 64), torch.rand(4)
    labels, null = torch.tensor([0, 1, 2, 3]), torch.full((4,), 10)
    expected = velocity(x, t, null) + 3.0 * (velocity(x, t, labels) - velocity(x, t, null))
    torch.testing.assert_close(teacher.velocity(x, t, labels), expected)
    assert data.condition == NamedCondition.label(classes=10, null=False, names=getattr(data.condition, "names", None))
    path = fit(guided, places)
    assert read_card(path).dataset["student"]["guidance"] == 3.0  # type: ignore[index, call-overload]
    assert read_card(path).condition == data.condition
    assert guided.hash != student(parent, recipe).hash


def test_a_resumed_student_ends_at_the_same_bits(parent: Path) -> None:
    def made() -> Any:
        recipe = student(parent)
        data, teacher = with_teacher(recipe, prepare(recipe))
        return new_trainer(recipe, data, torch.device("cpu"), teacher=teacher)

    def run(trainer: Any, stop_at: int) -> Any:
        kept: list[Any] = []
        calls = iter(range(1, 1000))
        trainer.run(save=lambda *state: kept.append(state), stopping=lambda: next(calls) == stop_at)
        return kept[-1]

    whole, half, again = made(), made(), made()
    expected, _ = run(whole, 0)
    again.restore(*run(half, 5))
    found, _ = run(again, 0)
    assert all(torch.equal(found[name], tensor) for name, tensor in expected.items())
    assert "weights.span.weight" in found
    assert found["weights.span.weight"].any()


def test_parents_that_do_not_fit_are_refused(parent: Path, tmp_path: Path) -> None:
    recipe = student(parent, small(seed=5))
    with pytest.raises(UsageError, match=r"student\.checkpoint .* was trained on other data"):
        with_teacher(recipe, prepare(recipe))
    with pytest.raises(UsageError, match=r"student\.checkpoint: .* is missing"):
        student(tmp_path / "none")
    with pytest.raises(UsageError, match=r"student\.checkpoint .* is not that of the recipe"):
        student(parent, sha256="0" * 64)
    guided = student(parent, guidance=2.0)
    with pytest.raises(UsageError, match="guidance does not apply"):
        with_teacher(guided, prepare(guided))
    quick = fit(student(parent), Options(tmp_path / "models", tmp_path / "runs", device="cpu", seconds=0))
    with pytest.raises(UsageError, match=r"is a field of average velocity .*, whose steps follow no ODE to train on"):
        student(quick)


def test_recipes_that_cannot_be_are_refused(tmp_path: Path) -> None:
    text = (CONFIGS / "moons.toml").read_text()
    table = '\n[student]\ncheckpoint = "x"\n'
    for change, words in (
        (table + '[reflow]\ncheckpoint = "x"\n', "by reflow or as a student"),
        (table + "pairs = 5\n", "student.pairs is unknown; allowed there: checkpoint, sha256, guidance"),
        (table + "instants = 2.0\n", "student.instants is 2.0"),
    ):
        file = tmp_path / "recipe.toml"
        file.write_text(text + change)
        with pytest.raises(UsageError, match=words):
            load_recipe(file)
    file.write_text('precision = "bfloat16"\n' + text + table)
    with pytest.raises(UsageError, match="bfloat16 is too coarse"):
        load_recipe(file)


def test_a_picture_network_can_be_a_student(tmp_path: Path) -> None:
    recipe = load_recipe(CONFIGS / "digits_unet.toml", {"epochs": 1})
    network = recipe.network.model_copy(update={"hidden": 4, "levels": 1})
    recipe = recipe.model_copy(update={"network": network, "batch_size": 512})
    places = Options(tmp_path / "models", tmp_path / "runs", device="cpu", seconds=0)
    path = fit(student(fit(recipe, places), recipe), places)
    assert read_card(path).field.takes_ends


def test_evaluate_compares_its_steps_with_data(
    parent: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = fit(student(parent), Options(tmp_path / "models", tmp_path / "runs", device="cpu", seconds=0))
    capsys.readouterr()
    rows = evaluate_checkpoint(path, (), 50, tmp_path / "out")
    assert [(row.solver, row.nfe) for row in rows] == [(f"euler-{n}", n) for n in (1, 2, 4, 8)]
    assert all(row.p95_high is None and row.swd for row in rows)
    assert "there is no ODE, so no endpoint error" in capsys.readouterr().out
    record = read_report(path, read_card(path))["evaluation"]
    assert isinstance(record, dict)
    assert record["reference"] is None
    assert record["price"]["kind"] == "few_steps"  # type: ignore[index, call-overload]
    assert (tmp_path / "out" / "evaluation.png").read_bytes().startswith(b"\x89PNG")
    with pytest.raises(UsageError, match="rk4 does not fit a field of average velocity"):
        evaluate_checkpoint(path, ("rk4-5",), 50, tmp_path / "out")


def test_a_student_is_not_judged_by_class(tmp_path: Path) -> None:
    labels = NamedCondition.label(classes=3, null=False)
    network = ResidualMLPSize(hidden=8, blocks=1).network((2,), labels, field=FieldKind.AVERAGE)
    path = save(tmp_path, "student", network, Decoder.identity((2,)), dataset={}, training={}, seed=0)
    with pytest.raises(UsageError, match=r"field of average velocity .*evaluate it without --by-class"):
        evaluate_by_class(path, ["euler-1"], None, 30, tmp_path / "out")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--student", "a", "--reflow", "b"], "train different models"),
        (["--student", "a", "--pairs", "5"], "--pairs is for --reflow"),
        (["--guidance", "2"], "name it with --reflow or --student CHECKPOINT"),
        (["--student", "a", "--guidance", "inf"], "training: --guidance is inf; it must be a finite number"),
        (["--reflow", "a", "--pairs=-5"], "training: --pairs is -5; it must be greater than or equal to 0"),
        (["--paper", "--config", "x.toml"], "--paper is for fit moons, circles and mnist without --config"),
    ],
)
def test_options_that_contradict_each_other_are_one_line(
    options: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["fit", "moons", *options]) == 2
    assert words in capsys.readouterr().err


def test_the_command_names_the_student_after_its_recipe(parent: Path, tmp_path: Path) -> None:
    recipe = tmp_path / "small.toml"
    text = (
        (CONFIGS / "moons.toml").read_text().replace("hidden = 256", "hidden = 16").replace("blocks = 4", "blocks = 1")
    )
    recipe.write_text(text)
    places = ["--models-dir", str(tmp_path / "models"), "--runs-dir", str(tmp_path / "runs"), "--seconds", "0"]
    assert main(["fit", "moons", "--config", str(recipe), "--epochs", "1", "--student", str(parent), *places]) == 0
    assert read_card(tmp_path / "models" / "moons-student" / "1").field.takes_ends
