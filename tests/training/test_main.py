import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from training import trainer
from training.__main__ import main

TINY = 'name = "tiny"\nepochs = 2\n[data]\nname = "moons"\nsamples = 40\n[network]\nhidden = 8\nblocks = 1\n'


@pytest.fixture
def places(tmp_path: Path) -> list[str]:
    folders = ["--models-dir", str(tmp_path / "models"), "--runs-dir", str(tmp_path / "runs")]
    return [*folders, "--device", "cpu", "--seconds", "0"]


@pytest.fixture
def tiny(tmp_path: Path) -> list[str]:
    (tmp_path / "tiny.toml").write_text(TINY)
    return ["fit", "moons", "--config", str(tmp_path / "tiny.toml")]


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        ([], "COMMAND"),
        (["fit"], "dataset"),
        (["fit", "suns"], "'suns' (choose from"),
        (["fit", "moons", "--epochs", "0"], "--epochs is 0; it must be greater than or equal to 1"),
        (["fit", "moons", "--epochs", "-3"], "--epochs is -3"),
        (["fit", "moons", "--epochs", "x"], "invalid int value: 'x'"),
        (["fit", "moons", "--seed", "-1"], "--seed is -1"),
        (["fit", "moons", "--seed", str(2**63)], f"--seed is {2**63}"),
        (["fit", "moons", "--ema", "1"], "--ema is 1.0; it must be less than 1"),
        (["fit", "moons", "--ema", "nan"], "--ema is nan"),
        (["fit", "moons", "--device", "tpu"], "'tpu'"),
        (["fit", "moons", "--save-every", "-1"], "--save-every is -1.0"),
        (["fit", "moons", "--seconds", "-1"], "--seconds is -1.0; it must be 0 (measure nothing) or more"),
        (["fit", "moons", "--config", "/nothing.toml"], "/nothing.toml cannot be read"),
        (["fit", "moons", "--speed", "1"], "--speed"),
        (["fit", "moons", "--header", "yes"], "--header is for fit vectors, not fit moons"),
        (["fit", "vectors", "--range", "0", "1"], "--range is for fit images, not fit vectors"),
        (["fit", "digits", "--background", "white"], "--background is for fit images"),
        (["fit", "images", "--background", "pink"], "--background is 'pink'; use white, black or"),
        (["fit", "images", "--range", "1", "0"], "--range is [1.0, 0.0]; give two finite numbers"),
    ],
)
def test_wrong_usage_is_one_line_and_exit_2(arguments: list[str], part: str, capsys: pytest.CaptureFixture[str]):
    assert main(arguments) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("training: ")
    assert part in err
    assert err.count("\n") == 1


def test_recipe_for_other_data_is_wrong_usage(tiny: list[str], capsys: pytest.CaptureFixture[str]):
    assert main(["fit", "circles", *tiny[2:]]) == 2
    assert "data.name is 'moons'; use the recipe with fit moons, not fit circles" in capsys.readouterr().err


def test_failures_are_one_line_and_exit_1(
    tmp_path: Path, tiny: list[str], places: list[str], capsys: pytest.CaptureFixture[str]
):
    (tmp_path / "file").touch()
    blocked = [*places[2:], "--models-dir", str(tmp_path / "file")]
    assert main([*tiny, *blocked]) == 1
    assert main(["fit", "mnist", "--data-dir", str(tmp_path), *places]) == 1
    first, second = capsys.readouterr().err.splitlines()
    assert "file" in first
    assert f"data folder {tmp_path} has no MNIST" in second


def test_options_reach_the_recipe_and_the_data_folder_comes_from_the_environment(
    tmp_path: Path, tiny: list[str], places: list[str], monkeypatch: pytest.MonkeyPatch, mnist_dir: Path
):
    from models.checkpoint.loading import load

    assert main([*tiny, *places, "--epochs", "1", "--seed", "3", "--ema", "0.5"]) == 0
    recipe = load(tmp_path / "models" / "tiny" / "1").card.training["recipe"]
    assert isinstance(recipe, dict)
    assert (recipe["epochs"], recipe["seed"], recipe["ema"]) == (1, 3, 0.5)

    config = tmp_path / "mnist.toml"
    text = TINY.replace("moons", "mnist").replace("samples = 40", "samples = 100\ncomponents = 4")
    config.write_text(text.replace("tiny", "small-mnist"))
    monkeypatch.setenv("PATHLINE_DATA_DIR", str(mnist_dir))
    assert main(["fit", "mnist", "--config", str(config), *places]) == 0
    card = load(tmp_path / "models" / "small-mnist" / "1").card
    assert card.data_shape == (28, 28)
    assert card.decoder.kind == "pca"


def test_a_missing_package_is_named(tiny: list[str], places: list[str], monkeypatch: pytest.MonkeyPatch, capsys):
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    assert main([*tiny, *places]) == 1
    assert "sklearn.datasets is not installed; run pip install" in capsys.readouterr().err


def test_a_diverging_run_keeps_the_last_good_state(
    tmp_path: Path,
    tiny: list[str],
    places: list[str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
):
    (tmp_path / "tiny.toml").write_text("learning_rate = 1.0\n" + TINY)
    right, calls = trainer.flow_matching_loss, []

    def spoilt(*arguments: Any) -> Any:
        calls.append(1)
        return right(*arguments) * (math.nan if len(calls) > 1 else 1)

    monkeypatch.setattr(trainer, "flow_matching_loss", spoilt)
    assert main([*tiny, *places, "--save-every", "0"]) == 1
    message = capsys.readouterr().err
    assert "the loss is not finite at step 2 (epoch 2); learning_rate is 1, try 0.1; the last good state" in message
    assert len(list((tmp_path / "runs").glob("tiny-*/state.safetensors"))) == 1
    assert not (tmp_path / "models" / "tiny").exists()


def test_help_needs_no_torch():
    script = (
        "import sys; from training.__main__ import main\n"
        "try: main(['--help'])\n"
        "finally: assert 'torch' not in sys.modules\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert "fit" in done.stdout
    assert "defaults" in done.stdout


def test_the_first_lines_of_a_run_say_what_was_read_and_skipped(
    tmp_path: Path, places: list[str], capsys: pytest.CaptureFixture[str]
):
    lines = [f"{row},{math.sin(row)},{math.cos(row)}" for row in range(20)]
    (tmp_path / "wave.csv").write_text("\n".join([",a,b", *lines]))
    recipe = 'name = "wave"\nepochs = 1\n[data]\nname = "vectors"\n[network]\nhidden = 8\nblocks = 1\ntime_width = 4\n'
    (tmp_path / "wave.toml").write_text(recipe)
    config = ["--config", str(tmp_path / "wave.toml"), "--data", str(tmp_path / "wave.csv")]
    assert main(["fit", "vectors", *config, *places]) == 0
    first, second, third, *_ = capsys.readouterr().out.splitlines()
    assert first.startswith(f"wave: read 20 rows from {tmp_path}/wave.csv: column a from -0.99999")
    assert second.startswith("wave: left out the first column (without a name)")
    assert third.startswith("wave: training")


def test_data_of_the_other_command_are_told_apart_and_no_run_folder_is_left(
    tmp_path: Path, places: list[str], capsys: pytest.CaptureFixture[str]
):
    (tmp_path / "pictures").mkdir()
    (tmp_path / "t.csv").write_text("a,b\n1,2\n")
    for dataset, data, message in (
        ("images", "t.csv", "is a table, so these are rows: use fit vectors"),
        ("vectors", "pictures", "is a folder, so these are pictures: use fit images"),
        ("vectors", "t.csv", "has 1 samples; at least 3 are needed"),
    ):
        assert main(["fit", dataset, "--data", str(tmp_path / data), *places]) == 1
        assert message in capsys.readouterr().err
    assert list((tmp_path / "runs").iterdir()) == []


def test_flags_choose_columns_separator_and_condition(
    tmp_path: Path, places: list[str], capsys: pytest.CaptureFixture[str]
):
    from models.checkpoint.loading import load

    lines = [f"{row % 7};{math.sin(row):.4f};{math.exp(row / 8):.4f};{row % 3}" for row in range(60)]
    (tmp_path / "t.csv").write_text("\n".join(["n;x;price;year", *lines]))
    (tmp_path / "r.toml").write_text('name="t"\nsteps=2\n[data]\nname="vectors"\n[network]\nhidden=8\nblocks=1\n')
    config = ["--config", str(tmp_path / "r.toml"), "--data", str(tmp_path / "t.csv"), *places]
    assert main(["fit", "vectors", *config]) == 1
    assert "has semicolons between its columns" in capsys.readouterr().err
    more = ["--sep", ";", "--columns", "x, price,n", "--condition", "year", "--lr", "0.01", "--batch-size", "16"]
    assert main(["fit", "vectors", *config, *more]) == 0
    assert "learned by logarithm, so that no sample is negative: price (skewness " in capsys.readouterr().out
    card = load(tmp_path / "models" / "t" / "1").card
    columns = card.decoder.columns or ()
    assert [(column.name, column.transform) for column in columns] == [("x", None), ("price", "log"), ("n", None)]
    assert card.condition is not None
    assert card.condition.shape == (1,)
    assert main(["fit", "vectors", *config, *more, "--no-transform", "--name", "plain"]) == 0
    columns = load(tmp_path / "models" / "plain" / "1").card.decoder.columns or ()
    assert [column.transform for column in columns] == [None] * 3
    for flags, message in (
        (["--nonnegative", "x"], "column x has values down to -"),
        (["--nonnegative", "rooms"], "names 'rooms'; the columns are x, price, n"),
    ):
        assert main(["fit", "vectors", *config, *more, *flags]) == 1
        assert message in capsys.readouterr().err
    assert main(["fit", "vectors", *config, "--sep", "ab"]) == 2
    assert "training: --sep is 'ab'; use one character" in capsys.readouterr().err
    assert main(["fit", "vectors", *config, "--name", "my model"]) == 2
    assert "a name has up to 64 letters, digits, dots" in capsys.readouterr().err
