"""Recipes: everything that determines a training run, read from TOML and checked before anything else happens."""

import hashlib
import json
import tomllib
from pathlib import Path
from typing import Annotated, Any, Literal, Self, Union

from pydantic import BaseModel, Discriminator, Field, GetPydanticSchema, Tag, ValidationError, model_validator

from models.architectures import SIZES
from models.architectures.residual_mlp import ResidualMLPSize
from models.network import NetworkSize
from training.data_config import CONFIGS as CONFIGS
from training.data_config import DATASETS, SECTIONS, DataConfig, OwnData, RecipeTable
from training.errors import UsageError

_RULES = 2
"""Increased when the trainer makes another model of the same recipe, so that old hashes no longer match."""

_OWN_RULES = 5
"""The same for user data: increased when a file is read differently."""

_FLAGS = {"path": "--data", "separator": "--sep"}
"""Options with other names than their fields in `[data]`."""

_DEFAULT = ResidualMLPSize()


def _architecture(table: Any) -> str:
    """Return which member of the union a `[network]` table is."""
    if isinstance(table, NetworkSize):
        return table.architecture
    return str(table.get("architecture", _DEFAULT.architecture)) if isinstance(table, dict) else _DEFAULT.architecture


_ONE_OF = Union[tuple(Annotated[size, Tag(name)] for name, size in SIZES.items())]  # noqa: UP007  (made from a list)

NetworkTable = Annotated[
    NetworkSize,
    GetPydanticSchema(lambda _, handler: handler.generate_schema(Annotated[_ONE_OF, Discriminator(_architecture)])),
]
"""The `[network]` table: the size of one of the architectures that can be trained, selected by `architecture`."""


class StartConfig(RecipeTable):
    """A published model from which another one is trained; by itself, the one that a training continues.

    Attributes:
        checkpoint: the folder of the parent, a version in a model repository.
        sha256: hash of the parent's weights; filled in if left out.
    """

    checkpoint: str
    sha256: str = Field(default="", pattern="^([0-9a-f]{64})?$")


class ParentConfig(StartConfig):
    """A published model whose paths or velocity are learned.

    Attributes:
        guidance: guidance strength for a conditional parent; None is no guidance.
    """

    guidance: float | None = Field(default=None, allow_inf_nan=False)


class ReflowConfig(ParentConfig):
    """Training on the paths of a published model, see `training.reflow`.

    Attributes:
        pairs: number of pairs; 0 is one per training sample, or all that the file has.
        solver: text of the solver that follows the parent's paths; a file of pairs names its own.
        file: pairs written by `python -m fleet export --pairs`, used instead of paths that are solved here.
        file_sha256: hash of the file; filled in when the run begins.
    """

    pairs: int = Field(default=0, ge=0, le=100_000_000)
    solver: str = "dopri5@1e-5"
    file: str = ""
    file_sha256: str = Field(default="", pattern="^([0-9a-f]{64})?$")


class StudentConfig(ParentConfig):
    """Training of a field of average velocity on a published model, see `training.student`.

    Attributes:
        instants: share of the samples of a batch with steps of length zero, for which the parent's velocity itself is
            learned.
        power: how strongly samples with a large error are weighted down: their gradient is divided by the squared error
            to this power. 0 is the plain mean square: with a parent's velocity as the target, errors are not noise.
    """

    instants: float = Field(default=0.25, ge=0, le=1)
    power: float = Field(default=0.0, ge=0, le=1)


class Recipe(RecipeTable):
    """Everything that determines the weights of a run.

    Attributes:
        name: the model's name in the repository.
        data: the data set, selected by `name`, with its settings.
        network: architecture and size of the velocity network; the rest of its config follows from the data.
        seed: fixes the data, the initial weights, the order, the noise and the times.
        steps: training steps; or
        epochs: passes over the data. One of the two is given.
        batch_size: samples per step; the last batch of an epoch may be smaller.
        learning_rate: of Adam (Kingma & Ba 2015).
        ema: decay per step of the moving average of the weights that is published (see
            `training.trainer.average_decay`); 0 publishes the last weights.
        schedule: `constant`, or `cosine`: from the learning rate down to 0 over the run.
        warmup: share of the steps in which the learning rate rises from 0.
        clip: largest norm of the gradient; longer gradients are scaled down to it. 0 does not clip.
        coupling: how noise and samples are paired: `independent`, or `ot`: the pairing with the least squared distance
            in each batch, among samples of the same condition (see `training.flow_matching.optimal_coupling`), which
            makes paths straighter.
        times: how the times of a batch are drawn: `uniform` in [0, 1], or `logit_normal`, the logistic function of a
            standard normal number, more often in the middle (Esser et al. 2024, "Scaling rectified flow transformers").
        reflow: the published model with the paths that this one is trained on, or None.
        start: the published model that the training continues (see `training.parents`), or None.
        student: the published model from which this one learns an average velocity, so that a few steps suffice, or
            None.
        condition_dropout: share of the samples of a conditional model that are trained without their condition, so that
            the model can be guided; 0 makes a model that always needs its condition.
        precision: `float32`; `bfloat16`: mixed precision, the network's products in bfloat16 and all else in float32;
            or `auto`: bfloat16 on a GPU that supports it, else float32. On a CPU without instructions for it, bfloat16
            is ten times slower.
        patience: share of the steps after which the run ends if the held-out loss has not fallen; the weights with the
            least are published. 0 trains to the end and publishes the last ones.
    """

    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$")
    data: DataConfig
    network: NetworkTable = _DEFAULT
    seed: int = Field(default=0, ge=0, lt=1 << 63)
    steps: int | None = Field(default=None, ge=1, le=1_000_000_000)
    epochs: int | None = Field(default=None, ge=1, le=1_000_000)
    batch_size: int = Field(default=256, ge=1, le=1_000_000)
    learning_rate: float = Field(default=1e-3, gt=0, le=1)
    ema: float = Field(default=0.0, ge=0, lt=1)
    schedule: Literal["constant", "cosine"] = "constant"
    warmup: float = Field(default=0.0, ge=0, lt=1)
    clip: float = Field(default=0.0, ge=0, le=1e6)
    coupling: Literal["independent", "ot"] = "independent"
    times: Literal["uniform", "logit_normal"] = "uniform"
    reflow: ReflowConfig | None = None
    start: StartConfig | None = None
    student: StudentConfig | None = None
    condition_dropout: float = Field(default=0.1, ge=0, lt=1)
    precision: Literal["float32", "bfloat16", "auto"] = "float32"
    patience: float = Field(default=0.0, ge=0, le=1)

    @model_validator(mode="after")
    def _fields_agree(self) -> Self:
        reflow, student = self.reflow is not None, self.student is not None
        contradictions = {
            "give the length of the training as either steps or epochs": (self.steps is None) == (self.epochs is None),
            "reflow pairs noise and samples itself; leave coupling out": reflow and self.coupling != "independent",
            "a model is trained by reflow or as a student; leave one of the tables out": reflow and student,
            "a student starts from its own parent; leave start out": student and self.start is not None,
            "a student's loss has derivatives along the path, for which bfloat16 is too coarse; use float32": (
                student and self.precision == "bfloat16"
            ),
        }
        for text, holds in contradictions.items():
            if holds:
                raise ValueError(text)
        return self

    @property
    def dropout(self) -> float:
        """Share of the samples that are trained without their condition; 0 for a student, which always needs it."""
        return 0.0 if self.student else self.condition_dropout

    @property
    def hash(self) -> str:
        """Twelve hexadecimal digits that identify this recipe, regardless of model name and location of the data."""
        places = {"data": {"path"}, "reflow": {"checkpoint", "file"}, "student": {"checkpoint"}}
        places["start"] = {"checkpoint"}
        fields = self.model_dump(exclude={"name": True, **places})
        content = {"rules": _RULES, **fields}
        if isinstance(self.data, OwnData):
            content["own_rules"] = _OWN_RULES
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:12]


def load_recipe(path: Path, overrides: dict[str, Any] | None = None) -> Recipe:
    """Read a recipe from a TOML file.

    Args:
        path: the file.
        overrides: values given on the command line (epochs, data.path, ...), which take precedence over the file's.

    Raises:
        UsageError: the file is missing or not TOML, or a value is not allowed; one line that names the file or
            option, the field, the value and what is allowed.
    """
    try:
        content = tomllib.loads(path.read_text("utf-8"))
    except OSError as error:
        raise UsageError(f"recipe {path} cannot be read: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"recipe {path} is not TOML: {error}") from None
    overrides = dict(overrides or {})
    if {"steps", "epochs"} & set(overrides):
        content = {key: value for key, value in content.items() if key not in ("steps", "epochs")}
    own = {key.removeprefix("data."): overrides.pop(key) for key in list(overrides) if key.startswith("data.")}
    if own and isinstance(content.get("data"), dict):
        content["data"] = {**content["data"], **own}
    options = {key: f"--{key.replace('_', '-')}" for key in overrides}
    options |= {f"data.{key}": _FLAGS.get(key, f"--{key}") for key in own}
    options |= {f"{table}.{key}": f"--{key}" for table in ("reflow", "student") for key in overrides.get(table, ())}
    try:
        return Recipe.model_validate({**content, **overrides})
    except ValidationError as error:
        raise UsageError("; ".join(_explain(problem, path, options) for problem in error.errors())) from None


def _explain(problem: Any, path: Path, options: dict[str, str]) -> str:
    """Describe a problem in one phrase: where the value is, what it is and what is allowed."""
    if not problem["loc"]:
        return f"{path}: {problem['msg'].removeprefix('Value error, ')}"
    unions = {"data": ("name", DATASETS), "network": ("architecture", tuple(SIZES))}
    tag, members = unions.get(problem["loc"][0], ("", ()))
    loc = tuple(part for k, part in enumerate(problem["loc"]) if k != 1 or part not in members)
    field = ".".join(str(part) for part in loc)
    where = options.get(field) or f"{path}: {field}"
    if problem["type"] == "extra_forbidden":
        kind = f" for {tag} {problem['loc'][1]!r}" if len(problem["loc"]) > len(loc) else ""
        return f"{where} is unknown{kind}; allowed there: {', '.join(_keys(problem['loc'][:-1]))}"
    if field == "name" and problem["type"] == "string_pattern_mismatch":
        rule = "a name has up to 64 letters, digits, dots, underscores and hyphens, a letter or digit first"
        return f"{where} is {problem['input']!r}; {rule}"
    if problem["type"] == "missing":
        return f"{where} is missing; it is required"
    if problem["type"].startswith("union_tag"):
        return f"{path}: {field}.{tag} is {problem['input'].get(tag)!r}; allowed: {', '.join(members)}"
    allowed = problem["msg"].replace("Input should", "it must", 1).removeprefix("Value error, ")
    return f"{where} is {problem['input']!r}; {allowed}"


def _keys(table: tuple[int | str, ...]) -> list[str]:
    """Return the keys that the TOML table at `table` may have."""
    if not table:
        return list(Recipe.model_fields)
    parents: dict[str, type[BaseModel]] = {"reflow": ReflowConfig, "student": StudentConfig, "start": StartConfig}
    if table[0] in parents:
        return list(parents[str(table[0])].model_fields)
    return list({**SECTIONS, **SIZES}[str(table[1])].model_fields)
