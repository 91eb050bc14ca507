"""Recipes: everything that decides a training run, read from TOML and checked before anything else happens."""

import hashlib
import json
import tomllib
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from training.errors import UsageError

CONFIGS = Path(__file__).parent / "configs"

_RULES = 1
"""Raised when the trainer changes what a recipe leads to, so that old hashes no longer match."""


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class PointsData(_Frozen):
    """Two interleaved half circles (moons) or two concentric circles, 2-D, made by scikit-learn.

    Attributes:
        samples: how many points, half of them on each curve.
        noise: standard deviation of the Gaussian noise added to each coordinate.
    """

    name: Literal["moons", "circles"]
    samples: int = Field(default=2000, ge=2, le=10_000_000)
    noise: float = Field(default=0.05, ge=0, le=10)


class DigitsData(_Frozen):
    """scikit-learn's 1,797 handwritten digits of 8 x 8 pixels.

    Attributes:
        held_out: how many of them are kept from training, to evaluate on.
    """

    name: Literal["digits"]
    held_out: int = Field(default=261, ge=1, le=1700)


class MnistData(_Frozen):
    """MNIST's 28 x 28 handwritten digits, in principal components.

    Attributes:
        samples: how many of the 60,000 training digits are used.
        components: principal components kept.
    """

    name: Literal["mnist"]
    samples: int = Field(default=10_000, ge=2, le=60_000)
    components: int = Field(default=64, ge=1, le=784)


DataConfig = Annotated[PointsData | DigitsData | MnistData, Field(discriminator="name")]
DATASETS: tuple[str, ...] = tuple(
    name
    for section in (PointsData, DigitsData, MnistData)
    for name in get_args(section.model_fields["name"].annotation)
)
"""The names of all data sets, which are also the names of the recipes that ship."""


class NetworkConfig(_Frozen):
    """Size of the residual MLP; the length of a sample follows from the data. See `models.residual_mlp`."""

    hidden: int = Field(default=256, ge=1, le=1 << 14)
    blocks: int = Field(default=4, ge=0, le=256)
    time_width: int = Field(default=64, ge=4, le=4096, multiple_of=2)


class Recipe(_Frozen):
    """Everything that decides the weights of a run.

    Attributes:
        name: the model's name in the repository.
        data: the data set, by its `name`, with its own settings.
        network: size of the velocity network.
        seed: fixes the data, the first weights, the order, the noise and the times.
        epochs: passes over the data.
        batch_size: samples in a step; the last batch of an epoch is smaller when the data do not divide.
        learning_rate: of Adam (Kingma & Ba 2015), constant.
        ema: decay per step of the moving average of the weights that is published; 0 publishes the last weights.
    """

    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$")
    data: DataConfig
    network: NetworkConfig = NetworkConfig()
    seed: int = Field(default=0, ge=0, lt=1 << 63)
    epochs: int = Field(ge=1, le=1_000_000)
    batch_size: int = Field(default=256, ge=1, le=1_000_000)
    learning_rate: float = Field(default=1e-3, gt=0, le=1)
    ema: float = Field(default=0.0, ge=0, lt=1)

    @property
    def hash(self) -> str:
        """Twelve hexadecimal digits that name this recipe; the model's name is not part of it."""
        content = {"rules": _RULES, **self.model_dump(exclude={"name"})}
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:12]


def load_recipe(path: Path, overrides: dict[str, Any] | None = None) -> Recipe:
    """Read a recipe from a TOML file.

    Args:
        path: the file.
        overrides: values given on the command line (epochs, seed, ema), which go before the file's.

    Raises:
        UsageError: the file is missing or no TOML, or a value is not allowed; one line that names the file or
            option, the field, the value and what is allowed.
    """
    try:
        content = tomllib.loads(path.read_text("utf-8"))
    except OSError as error:
        raise UsageError(f"recipe {path} cannot be read: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"recipe {path} is not TOML: {error}") from None
    overrides = overrides or {}
    try:
        return Recipe.model_validate({**content, **overrides})
    except ValidationError as error:
        raise UsageError("; ".join(_explain(problem, path, overrides) for problem in error.errors())) from None


def _explain(problem: Any, path: Path, overrides: dict[str, Any]) -> str:
    """Say in one phrase where a value stands, what it is and what is allowed."""
    loc = tuple(part for part in problem["loc"] if not (part in DATASETS and problem["loc"][0] == "data"))
    field = ".".join(str(part) for part in loc)
    where = f"--{field}" if field in overrides else f"{path}: {field}"
    if problem["type"] == "extra_forbidden":
        return f"{where} is unknown; allowed there: {', '.join(_keys(problem['loc'][:-1]))}"
    if problem["type"] == "missing":
        return f"{where} is missing; it is required"
    if problem["type"].startswith("union_tag"):
        return f"{path}: data.name is {problem['input'].get('name')!r}; allowed: {', '.join(DATASETS)}"
    allowed = problem["msg"].replace("Input should", "it must", 1)
    return f"{where} is {problem['input']!r}; {allowed}"


def _keys(table: tuple[int | str, ...]) -> list[str]:
    """Return the keys that the TOML table at `table` may have."""
    sections = {"moons": PointsData, "circles": PointsData, "digits": DigitsData, "mnist": MnistData}
    model: type[BaseModel] = {"network": NetworkConfig}.get(str(table[0]), Recipe) if table else Recipe
    if len(table) > 1:
        model = sections[str(table[1])]
    return list(model.model_fields)
