"""The command `python -m training`: fit, evaluate, tune and defaults."""

import argparse
import dataclasses
import os
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NoReturn

from training.data_config import CONFIGS, DATASETS, SECTIONS
from training.errors import UsageError, reported

_NUMBER, _REAL = {"type": int, "metavar": "N"}, {"type": float}
_NAMES = {"type": lambda text: [name.strip() for name in text.split(",") if name.strip()], "metavar": "NAME,..."}
_FOLDER, _CHECKPOINT = {"type": Path, "metavar": "DIR"}, {"type": Path, "metavar": "CHECKPOINT"}
_ON = {"action": "store_const", "const": True}

_RECIPE: dict[str, tuple[str, str, dict[str, Any]]] = {
    "--name": ("name", "name of the model (default: the recipe's)", {"metavar": "NAME"}),
    "--steps": ("steps", "training steps (default: the recipe's)", _NUMBER),
    "--epochs": ("epochs", "passes over the data, instead of steps", _NUMBER),
    "--batch-size": ("batch_size", "samples per step", _NUMBER),
    "--lr": ("learning_rate", "learning rate of Adam", {**_REAL, "metavar": "RATE"}),
    "--seed": ("seed", "seed of the training", _NUMBER),
    "--ema": ("ema", "average the weights, e.g. 0.999; 0 turns it off", {**_REAL, "metavar": "DECAY"}),
    "--coupling": (
        "coupling", "coupling of noise and data (default: the recipe's)", {"choices": ("independent", "ot")}
    ),
    "--data": (
        "data.path", "your own data (vectors: .csv .tsv .npy .npz; images: a folder, .npy .npz, IDX)",
        {"metavar": "PATH"},
    ),
    "--columns": ("data.columns", "columns to learn (default: all others)", _NAMES),
    "--label": ("data.label", "column or array of class labels", {"metavar": "NAME"}),
    "--condition": ("data.condition", "columns of numbers that samples depend on", _NAMES),
    "--sep": ("data.separator", "between columns: ';' or tab", {"metavar": "CHARACTER"}),
    "--header": ("data.header", "whether the first line of a .csv has names", {"choices": ("yes", "no")}),
    "--scale": (
        "data.scale", "scale by mean and deviation, or by median and quartiles", {"choices": ("standard", "robust")}
    ),
    "--no-round": ("data.round", "do not round columns of whole numbers", {**_ON, "const": False}),
    "--nonnegative": (
        "data.nonnegative", "columns learned by their logarithm, so that no sample is negative", _NAMES
    ),
    "--quantile": (
        "data.quantile", "columns learned by their quantiles: with long tails, or several peaks", _NAMES
    ),
    "--no-transform": ("data.transforms", "transform no columns but those named", {**_ON, "const": "none"}),
    "--conditional": ("data.conditional", "train a class-conditional model", _ON),
    "--background": (
        "data.background", "colour behind transparent pixels (white, black, #rrggbb)", {"metavar": "COLOUR"}
    ),
    "--range": ("data.range", "pixel values of black and white", {**_REAL, "nargs": 2, "metavar": ("LOW", "HIGH")}),
}  # fmt: skip
"""Options of `fit` that set a field of the recipe: the field, the help, and what else argparse is told."""

_FIT: tuple[tuple[str, str, dict[str, Any]], ...] = (
    ("--reflow", "train on the paths of a published model", _CHECKPOINT),
    ("--student", "train a one-step or few-step student of a model", _CHECKPOINT),
    ("--pairs", "reflow: number of paths to train on (default: one per sample), or a file of pairs",
     {"metavar": "N|FILE"}),
    ("--guidance", "reflow, student: guidance of a conditional parent", {**_REAL, "metavar": "G"}),
    ("--from", "continue a published model", {**_CHECKPOINT, "dest": "start"}),
    ("--force", "train even if a model of this recipe exists", {"action": "store_true"}),
    ("--save-every", "time between saves (default: %(default)s)", {**_REAL, "default": 10.0, "metavar": "SECONDS"}),
    ("--seconds", "limit on measuring the model once it is published; 0 measures nothing (default: 60)",
     {**_REAL, "default": 60.0, "metavar": "S"}),
    ("--no-examples",
     "store none of the held-out data with the model; by default its page shows 256 rows or 16 pictures",
     {"dest": "examples", "action": "store_false"}),
    ("--tensorboard", "logs for TensorBoard, in a folder for each run", _FOLDER),
)  # fmt: skip

_EVALUATE: tuple[tuple[str, str, dict[str, Any]], ...] = (
    ("--solver", "e.g. rk4-20 or dopri5@1e-5; can be repeated", {"action": "append", "metavar": "SOLVER"}),
    ("--samples", "number of samples (default: %(default)s)", {**_NUMBER, "default": 1000}),
    ("--by-class", "measure how many samples look like their class", {"action": "store_true"}),
    ("--guidance", "guidance to measure; can be repeated (default: 1; with --by-class 1, 2 and 4)",
     {**_REAL, "action": "append", "metavar": "G"}),
    ("--seconds", "limit on the wall-clock time of the frontier; cheap solvers come first (default: 300)",
     {**_REAL, "default": 300.0, "metavar": "S"}),
    ("--out", "folder for results (default: reports/NAME-VERSION)", _FOLDER),
)  # fmt: skip

_TUNE: tuple[tuple[str, str, dict[str, Any]], ...] = (
    ("--nfe", "NFE budgets (default: %(default)s)", {"default": "4,5,6,8,10", "metavar": "N,..."}),
    ("--methods", "stock methods to tune grids for, too (default: %(default)s)",
     {"default": "ab2,ab3,ab4", "metavar": "NAME,..."}),
    ("--samples", "calibration paths (default: 512)", {**_NUMBER, "default": 512}),
    ("--guidance", "for conditional models (default: 1,2,4)", {"default": "1,2,4", "metavar": "G,..."}),
    ("--iterations", "maximum per plan (default: 60)", {**_NUMBER, "default": 60}),
    ("--seed", "seed of the noise (default: 0)", {**_NUMBER, "default": 0}),
    ("--force", "repeat earlier tuning", {"action": "store_true"}),
)  # fmt: skip


class _LineParser(argparse.ArgumentParser):
    """Reports a wrong command line in one line, like every other error."""

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{message} (see {self.prog} --help)")


def _add(parser: argparse.ArgumentParser, options: Iterable[tuple[str, str, dict[str, Any]]], *places: str) -> None:
    """Add options, and those of places: `data`, or `models` for the folders of models and runs and the device."""
    for flag, text, keywords in options:
        parser.add_argument(flag, help=text, **keywords)
    if "data" in places:
        folder = os.environ.get("PATHLINE_DATA_DIR", "").strip() or None
        parser.add_argument("--data-dir", default=folder, help="data files (mnist: IDX files)", **_FOLDER)
    if "models" in places:
        for kind, default, text in (("models", "checkpoints", "model repository"), ("runs", "runs", "unfinished runs")):
            folder = os.environ.get(f"PATHLINE_{kind.upper()}_DIR", "").strip() or default
            text = f"folder of the {text} (now: %(default)s)"
            parser.add_argument(f"--{kind}-dir", default=folder, help=text, **_FOLDER)
        parser.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto", help="device (default: auto)")


def _parser() -> argparse.ArgumentParser:
    parser = _LineParser(prog="python -m training", description="Train flow-matching models.")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    fit = commands.add_parser("fit", help="train and publish one model; run again to resume after a stop")
    fit.add_argument("dataset", choices=DATASETS, help="data set; its shipped recipe is the default")
    fit.add_argument("--config", type=Path, metavar="FILE.toml", help="recipe to use instead of the shipped one")
    fit.add_argument("--paper", action="store_true", help="use the paper's recipe (moons, circles, mnist)")
    for flag, (field, text, keywords) in _RECIPE.items():
        only = f"{', '.join(_kinds(field))}: " if "." in field else ""
        names = ("--lr", "--learning-rate") if flag == "--lr" else (flag,)
        fit.add_argument(*names, dest=field, help=only + text, **keywords)
    _add(fit, (), "data")
    _add(fit, _FIT, "models")
    for name, text, options, places in (
        ("evaluate", "measure how good a model is, and solvers on it", _EVALUATE, ("data",)),
        ("tune", "learn solvers for one model, to be served with it", _TUNE, ()),
    ):
        command = commands.add_parser(name, help=text)
        command.add_argument("checkpoint", help="the folder of a version", **_CHECKPOINT)
        _add(command, options, *places)
    defaults = commands.add_parser("defaults", help="make the default models that the repository lacks")
    then = "run a command, such as the service, as soon as the analytic models are written, and train behind it"
    _add(defaults, (), "models")
    defaults.add_argument("--then", nargs=argparse.REMAINDER, metavar="COMMAND", help=then)
    return parser


def _kinds(field: str) -> tuple[str, ...]:
    """Return the data sets whose recipes have a field."""
    table, _, name = field.rpartition(".")
    return tuple(kind for kind, section in SECTIONS.items() if not table or name in section.model_fields)


def _overrides(arguments: argparse.Namespace) -> dict[str, Any]:
    """Return the fields of the recipe that options set."""
    overrides: dict[str, Any] = {}
    dataset = arguments.dataset
    for flag, (field, *_) in _RECIPE.items():
        if (value := getattr(arguments, field)) is None:
            continue
        if dataset not in (kinds := _kinds(field)):
            if flag == "--data":
                raise UsageError(f"--data is for your own data: fit vectors or fit images, not fit {dataset}")
            classes = {"vectors": "; name the labels with --label", "moons": ", which have no classes"}
            classes["circles"] = classes["moons"]
            more = classes.get(dataset, "; classes are learned with --conditional")
            more = more if flag in ("--label", "--conditional") else ""
            raise UsageError(f"{flag} is for fit {', fit '.join(kinds)}, not fit {dataset}{more}")
        overrides[field] = value
    return overrides


def _parent(arguments: argparse.Namespace) -> dict[str, Any]:
    """Return the recipe table that names the parent; it is empty if no option names one."""
    parent, table = arguments.student or arguments.reflow, "student" if arguments.student else "reflow"
    if arguments.reflow and arguments.student:
        raise UsageError("--reflow and --student train different models; leave one of them out")
    if arguments.student and arguments.pairs is not None:
        raise UsageError("--pairs is for --reflow; a student is trained on the data themselves")
    if not parent and (arguments.pairs is not None or arguments.guidance is not None):
        raise UsageError("--pairs and --guidance need a parent model; name it with --reflow or --student CHECKPOINT")
    if not parent:
        return {}
    fields: dict[str, Any] = {"checkpoint": str(parent)}
    if arguments.guidance is not None:
        fields["guidance"] = arguments.guidance
    if arguments.pairs is not None:
        counted = arguments.pairs.lstrip("-").isdecimal()
        fields |= {"pairs": int(arguments.pairs)} if counted else {"file": arguments.pairs}
    return {table: fields}


def _fit(arguments: argparse.Namespace) -> None:
    overrides = _overrides(arguments)
    if arguments.start:
        overrides["start"] = {"checkpoint": str(arguments.start)}
    parent = _parent(arguments)
    overrides |= parent
    if "reflow" in parent:  # its pairs replace the recipe's coupling
        overrides.setdefault("coupling", "independent")
    shipped = arguments.dataset
    if overrides.get("data.conditional") and shipped in ("digits", "mnist"):
        shipped += "_conditional"
    if arguments.paper:
        if shipped not in ("moons", "circles", "mnist") or arguments.config:
            raise UsageError(f"--paper is for fit moons, circles and mnist without --config; here it is fit {shipped}")
        shipped += "_paper"
    for option, value, zero in (
        ("save-every", arguments.save_every, "0 seconds (every step)"),
        ("seconds", arguments.seconds, "0 (measure nothing)"),
    ):
        if not value >= 0:
            raise UsageError(f"--{option} is {value}; it must be {zero} or more")
    from training.config import load_recipe  # imports torch, which takes too long for `--help`

    path = arguments.config or CONFIGS / f"{shipped}.toml"
    recipe = load_recipe(path, overrides)
    if parent and "name" not in overrides:
        # A name of its own, so that it is not another version of the parent.
        recipe = recipe.model_copy(update={"name": f"{recipe.name}-{next(iter(parent))}"})
    if recipe.data.name != arguments.dataset:
        raise UsageError(
            f"{path}: data.name is {recipe.data.name!r}; use the recipe with fit {recipe.data.name}, "
            f"not fit {arguments.dataset}"
        )
    from training.fit import Options, fit

    fit(recipe, Options(**{field.name: getattr(arguments, field.name) for field in dataclasses.fields(Options)}))


def _evaluate(arguments: argparse.Namespace) -> None:
    from training.measurement import evaluate_checkpoint

    path: Path = arguments.checkpoint
    out = arguments.out or Path("reports") / f"{path.resolve().parent.name}-{path.name}"
    if arguments.by_class:
        from training import by_class

        solvers = arguments.solver or by_class.DEFAULT_SOLVERS
        by_class.evaluate_by_class(path, solvers, arguments.guidance, arguments.samples, out, arguments.data_dir)
        return
    if not arguments.seconds > 0:
        raise UsageError(f"--seconds is {arguments.seconds}; it must be above 0")
    evaluate_checkpoint(
        path, arguments.solver or (), arguments.samples, out, arguments.data_dir, arguments.seconds,
        arguments.guidance or (1.0,),
    )  # fmt: skip


def _tune(arguments: argparse.Namespace) -> None:
    from training.tune import TuningOptions, measure_tuned, read_numbers, tune

    options = TuningOptions(
        nfe=read_numbers("nfe", arguments.nfe, int),
        methods=tuple(name.strip().lower() for name in arguments.methods.split(",") if name.strip()),
        samples=arguments.samples,
        seed=arguments.seed,
        iterations=arguments.iterations,
        guidance=read_numbers("guidance", arguments.guidance, float),
    )
    tune(arguments.checkpoint, options, arguments.force)
    measure_tuned(arguments.checkpoint)


def _defaults(arguments: argparse.Namespace) -> None:
    from training.defaults import make_defaults, serve_meanwhile

    places = arguments.models_dir, arguments.runs_dir, arguments.device
    if arguments.then:
        serve_meanwhile(arguments.then, *places)
    else:
        make_defaults(*places)


def main(argv: list[str] | None = None) -> int:
    """Run the command and return its exit code: 0, 1 (failed), 2 (wrong usage), 130 or 143 (stopped)."""
    # GNU OpenMP's threads spin for milliseconds while they wait. If other programs need the same cores, small networks
    # then train ten times slower. The variable is read when torch is imported.
    os.environ.setdefault("GOMP_SPINCOUNT", "1000")

    def run() -> None:
        arguments = _parser().parse_args(argv)
        {"fit": _fit, "evaluate": _evaluate, "tune": _tune, "defaults": _defaults}[arguments.command](arguments)

    return reported("training", "training", run)


if __name__ == "__main__":
    sys.exit(main())
