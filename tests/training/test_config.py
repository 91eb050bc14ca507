from pathlib import Path

import pytest

from models.architectures import SIZES
from models.architectures.residual_mlp import ResidualMLPSize
from models.architectures.unet import UNetSize
from models.network import NetworkSize
from training.config import CONFIGS, Recipe, load_recipe
from training.data_config import DATASETS
from training.errors import UsageError

GOOD = 'name = "m"\nepochs = 3\n[data]\nname = "moons"\n'


def write(folder: Path, text: str) -> Path:
    path = folder / "recipe.toml"
    path.write_text(text)
    return path


@pytest.mark.parametrize("name", DATASETS)
def test_a_recipe_ships_for_every_data_set(name: str):
    recipe = load_recipe(CONFIGS / f"{name}.toml")
    assert (recipe.name, recipe.data.name) == (name, name)


@pytest.mark.parametrize(
    ("name", "epochs", "hidden", "blocks"), [("moons", 300, 256, 4), ("circles", 300, 256, 4), ("mnist", 500, 512, 6)]
)
def test_paper_recipes(name: str, epochs: int, hidden: int, blocks: int):
    recipe = load_recipe(CONFIGS / f"{name}_paper.toml")
    assert recipe.name == f"{name}-paper"
    assert (recipe.epochs, recipe.network) == (
        epochs,
        ResidualMLPSize(hidden=hidden, blocks=blocks, max_frequency=100.0),
    )
    assert (recipe.learning_rate, recipe.batch_size, recipe.ema) == (1e-3, 256, 0.0)


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        (GOOD.replace("3", "0"), ["recipe.toml", "epochs is 0", "greater than or equal to 1"]),
        (GOOD.replace("3", "-4"), ["epochs is -4"]),
        (GOOD.replace("3", '"many"'), ["epochs is 'many'", "integer"]),
        ("epoch = 3\n" + GOOD, ["epoch is unknown", "epochs", "learning_rate"]),
        ("learning_rate = nan\n" + GOOD, ["learning_rate is nan"]),
        ("learning_rate = inf\n" + GOOD, ["learning_rate is inf"]),
        ("ema = 1.0\n" + GOOD, ["ema is 1.0", "less than 1"]),
        ("steps = 5\n" + GOOD, ["as either steps or epochs"]),
        (GOOD.replace("epochs = 3\n", ""), ["as either steps or epochs"]),
        ("warmup = 100\n" + GOOD, ["warmup is 100", "less than 1"]),
        (GOOD.replace("moons", "suns"), ["data.name is 'suns'", "moons, circles, digits, mnist"]),
        (GOOD + "noises = 1\n", ["data.noises is unknown", "samples, noise"]),
        (GOOD + "noise = -1.0\n", ["data.noise is -1.0"]),
        (GOOD + "[network]\nwidth = 3\n", ["network.width is unknown", "hidden, blocks, time_width"]),
        (GOOD + "[network]\ntime_width = 5\n", ["network.time_width is 5", "multiple of 2"]),
        ('name = "m"\nepochs = 3\n', ["data is missing"]),
        ('name = "m"\nepochs = 3\ndata = 3\n', ["data is 3"]),
        ('name = "m"\nepochs = 3\n[data]\nsamples = 3\n', ["data.name is None"]),
        (GOOD.replace('"m"', '"../m"'), ["name is '../m'"]),
        ("epochs = ", ["is not TOML"]),
    ],
)
def test_bad_recipes_are_explained_in_one_line(tmp_path: Path, text: str, parts: list[str]):
    with pytest.raises(UsageError) as caught:
        load_recipe(write(tmp_path, text))
    message = str(caught.value)
    assert "\n" not in message
    for part in parts:
        assert part in message


def test_missing_file_is_named(tmp_path: Path):
    with pytest.raises(UsageError, match=r"nothing\.toml cannot be read: No such file"):
        load_recipe(tmp_path / "nothing.toml")


def test_options_go_before_the_file_and_are_named_in_errors(tmp_path: Path):
    path = write(tmp_path, GOOD)
    assert load_recipe(path, {"epochs": 9, "ema": 0.5}).epochs == 9
    with pytest.raises(UsageError, match=r"^--epochs is 0; it must be greater than or equal to 1$"):
        load_recipe(path, {"epochs": 0})


def test_steps_and_epochs_on_the_command_line_replace_each_other(tmp_path: Path):
    path = write(tmp_path, GOOD)
    assert [load_recipe(path, {"steps": 7}).epochs, load_recipe(path, {"steps": 7}).steps] == [None, 7]
    assert load_recipe(CONFIGS / "vectors.toml", {"epochs": 7}).steps is None
    with pytest.raises(UsageError, match=r"^--batch-size is 0; it must be"):
        load_recipe(path, {"batch_size": 0})


def test_options_of_the_data_are_named_in_errors(tmp_path: Path):
    path = write(tmp_path, 'name = "m"\nepochs = 3\n[data]\nname = "images"\nrange = [1.0, 0.0]\n')
    with pytest.raises(UsageError, match=r"recipe\.toml: data\.range is \[1\.0, 0\.0\]; give two finite numbers"):
        load_recipe(path)
    with pytest.raises(UsageError, match=r"^--background is 'pink'; use white, black or six hexadecimal digits"):
        load_recipe(path, {"data.background": "pink", "data.range": [0, 255]})
    for wrong in ([1.0], [0.0, float("nan")], [0.0, 1.0, 2.0], [5, 5]):
        with pytest.raises(UsageError, match=r"^--range is \["):
            load_recipe(path, {"data.range": wrong})


def test_hash_follows_the_recipe_but_not_the_name(tmp_path: Path):
    path = write(tmp_path, GOOD)
    recipe = load_recipe(path)
    assert recipe.hash == load_recipe(path).hash
    assert recipe.hash == recipe.model_copy(update={"name": "other"}).hash
    assert len({recipe.hash, *(load_recipe(path, {key: 1 / 2}).hash for key in ("ema", "learning_rate"))}) == 3
    assert recipe.hash != load_recipe(path, {"seed": 1}).hash


NETWORK = GOOD + "[network]\n"


@pytest.mark.parametrize(
    ("table", "size"),
    [
        ("", ResidualMLPSize()),
        ("hidden = 8\nmax_frequency = 9.5\n", ResidualMLPSize(hidden=8, max_frequency=9.5)),
        ('architecture = "residual_mlp"\nblocks = 0\n', ResidualMLPSize(blocks=0)),
        ('architecture = "unet"\nhidden = 8\nlevels = 2\n', UNetSize(hidden=8, levels=2)),
    ],
)
def test_the_network_is_of_the_architecture_that_its_table_names(tmp_path: Path, table: str, size: NetworkSize):
    recipe = load_recipe(write(tmp_path, NETWORK + table))
    assert (type(recipe.network), recipe.network) == (type(size), size)
    assert Recipe.model_validate_json(recipe.model_dump_json()) == recipe


@pytest.mark.parametrize(
    ("table", "words"),
    [
        (
            "levels = 2\n",
            "network.levels is unknown for architecture 'residual_mlp'; allowed there: "
            "architecture, hidden, blocks, time_width, max_frequency",
        ),
        (
            'architecture = "unet"\ndim = 2\n',
            "network.dim is unknown for architecture 'unet'; allowed there: "
            "architecture, hidden, blocks, levels, time_width, max_frequency",
        ),
        ('architecture = "resnet"\n', "network.architecture is 'resnet'; allowed: " + ", ".join(SIZES)),
        ('architecture = "gaussian"\n', "network.architecture is 'gaussian'; allowed: " + ", ".join(SIZES)),
        ("architecture = 3\n", "network.architecture is 3; allowed: " + ", ".join(SIZES)),
        ('architecture = "unet"\nhidden = 6\n', "network.hidden is 6; it must be a multiple of 4"),
        ('hidden = "32"\n', "network.hidden is '32'; it must be a valid integer"),
        ("hidden = 32.0\n", "network.hidden is 32.0; it must be a valid integer"),
    ],
)
def test_fields_of_other_architectures_and_bad_values_are_refused(tmp_path: Path, table: str, words: str):
    path = write(tmp_path, NETWORK + table)
    with pytest.raises(UsageError) as caught:
        load_recipe(path)
    assert str(caught.value) == f"{path}: {words}"


def test_a_network_that_is_no_table_is_refused(tmp_path: Path):
    with pytest.raises(UsageError, match="network is 3; it must be a valid dictionary"):
        load_recipe(write(tmp_path, "network = 3\n" + GOOD))


def test_fields_that_contradict_each_other_are_one_line() -> None:
    with pytest.raises(UsageError, match=r"moons\.toml: reflow pairs noise and samples itself; leave coupling out"):
        load_recipe(CONFIGS / "moons.toml", {"coupling": "ot", "reflow": {"checkpoint": "x"}})
