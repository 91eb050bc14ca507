"""Every experiment at a tiny size: it runs, is not run twice, and gives a verdict, a table and a picture."""

import dataclasses
import json
from pathlib import Path

import pytest

from studies.experiments.cells import Cells
from studies.experiments.context import Context
from studies.experiments.experiment import Experiment
from studies.experiments.run import EXPERIMENTS, Options, run_experiments
from studies.experiments.sizes import FULL, QUICK, Sizes
from training.errors import TrainingError, UsageError

TINY = Sizes(
    name="tiny",
    training_seeds=(0, 1),
    sampling_seeds=(0,),
    samples=30,
    endpoint_samples=4,
    projections=8,
    hidden=8,
    blocks=1,
    epochs=2,
    widths=(4, 8),
    epoch_counts=(1, 2),
    euler=(10, 20, 50, 200),
    midpoint=(10, 100),
    rk4=(5, 20, 50),
    jacobian_samples=6,
    trajectories=6,
    mnist_digits=200,
    mnist_components=8,
    mnist_hidden=8,
    mnist_blocks=1,
    mnist_epochs=2,
    mnist_seeds=(0,),
    mnist_samples=20,
    mnist_endpoint_samples=2,
    classifier_digits=300,
    finest=40,
    target=1e-4,
    tight=1e-5,
    grid=31,
    price_datasets=("moons",),
    price_samples=6,
    price_digits=200,
    price_mnist_epochs=2,
    price_pairs=32,
)


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder in which all tests of this module measure, so that models are trained once."""
    return tmp_path_factory.mktemp("paper")


@pytest.fixture
def options(out: Path, mnist_dir: Path) -> Options:
    return Options(out=out, sizes=TINY, data_dir=mnist_dir)


@pytest.mark.parametrize("experiment", EXPERIMENTS, ids=lambda experiment: experiment.name)
def test_an_experiment_runs_once_and_is_judged(experiment: Experiment, options: Options):
    options = dataclasses.replace(options, only=[experiment.name])
    report = run_experiments(options)
    text = report.read_text()
    for claim in experiment.claims:
        assert f"**{claim.text}: " in text
        if claim.figure:
            for end in ("png", "svg"):
                assert (report.parent / "figures" / f"{claim.figure}.{end}").stat().st_size > 1000
    numbers = json.loads((report.parent / "numbers" / "numbers.json").read_bytes())
    verdicts = {key: finding["verdict"] for key, finding in numbers["claims"].items()}
    mine = [key for key in verdicts if key.startswith(f"{experiment.name}/")]
    assert mine == [f"{experiment.name}/{claim.key}" for claim in experiment.claims]
    allowed = {"holds", "partly", "does not hold", "inconclusive"}
    assert {verdicts[key] for key in mine} <= allowed
    assert len(list((report.parent / "numbers").glob("*.csv"))) > 0
    # Without models and data, all results must come from the cells.
    cells = Cells(report.parent / "cells" / experiment.name)
    experiment.run(Context(TINY, None, cells))  # type: ignore[arg-type]
    assert cells.found > 0


def test_names_and_claims_are_unique_and_every_rule_is_worded():
    names = [experiment.name for experiment in EXPERIMENTS]
    assert len(set(names)) == len(names) == 9
    for experiment in EXPERIMENTS:
        keys = [claim.key for claim in experiment.claims]
        assert len(set(keys)) == len(keys) > 0
        assert all(len(claim.rule) > 20 for claim in experiment.claims)


@pytest.mark.parametrize("sizes", [FULL, QUICK, TINY], ids=lambda sizes: sizes.name)
def test_sizes_have_what_the_rules_need(sizes: Sizes):
    assert {10, 20, 50, 200} <= set(sizes.euler)
    assert {10, 100} <= set(sizes.midpoint)
    assert {5, 20, 50} <= set(sizes.rk4)
    assert sizes.hidden in sizes.widths
    assert sizes.epochs in sizes.epoch_counts
    assert len(sizes.training_seeds) > 1


def test_the_full_run_is_the_papers_setting():
    context = Context(FULL, None, None)  # type: ignore[arg-type]
    recipe = context.points_recipe("moons", 0)
    from training.config import CONFIGS, load_recipe

    assert recipe.hash == load_recipe(CONFIGS / "moons_paper.toml").hash
    assert context.mnist_recipe().hash == load_recipe(CONFIGS / "mnist_paper.toml").hash


def test_force_measures_again(options: Options):
    options = dataclasses.replace(options, only=["numbers"])
    cell = next((run_experiments(options).parent / "cells" / "numbers").iterdir())
    cell.write_text('{"seconds": 0, "value": "old"}')
    run_experiments(dataclasses.replace(options, force=True))
    assert "parameters" in json.loads(cell.read_bytes())["value"]


def test_an_experiment_that_cannot_run_does_not_stop_the_others(tmp_path: Path):
    empty = tmp_path / "empty"
    empty.mkdir()
    options = Options(out=tmp_path / "out", sizes=TINY, data_dir=empty, only=["mnist", "numbers"])
    with pytest.raises(TrainingError, match=r"1 of 9 experiments could not be run \(mnist: .*has no MNIST"):
        run_experiments(options)
    text = (tmp_path / "out" / "tiny" / "REPORT.md").read_text()
    assert "all claims of `mnist` | not run: data folder" in text
    assert "546,818" in text


def test_an_unknown_experiment_is_refused_before_any_work(tmp_path: Path):
    with pytest.raises(UsageError, match="--only is 'figure1'; experiments are convergence, stability, pareto"):
        run_experiments(Options(out=tmp_path / "out", sizes=TINY, only=["figure1"]))
    assert not (tmp_path / "out").exists()


def test_quick_says_so_and_keeps_out_of_the_full_runs_folder(options: Options):
    report = run_experiments(dataclasses.replace(options, only=["numbers"], conditions="The machine was busy."))
    assert report.parent.name == "tiny"
    text = report.read_text()
    assert "tiny run at reduced size" in text
    assert "The machine was busy." in text
