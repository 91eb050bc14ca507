"""The command `python -m training`: fit, evaluate, tune and defaults."""

import argparse
import os
import sys
from pathlib import Path
from typing import Any, NoReturn

from training.data_config import CONFIGS, DATASETS, SECTIONS
from training.errors import UsageError, reported

_NAMES = {"type": lambda text: [name.strip() for name in text.split(",") if name.strip()], "metavar": "NAME,..."}

_RECIPE: dict[str, tuple[str, dict[str, Any]]] = {
    "--name": ("name", {"metavar": "NAME", "help": "name of the model (default: the recipe's)"}),
    "--steps": ("steps", {"type": int, "metavar": "N", "help": "training steps (default: the recipe's)"}),
    "--epochs": ("epochs", {"type": int, "metavar": "N", "help": "passes over the data, instead of steps"}),
    "--batch-size": ("batch_size", {"type": int, "metavar": "N", "help": "samples per step"}),
    "--lr": ("learning_rate", {"type": float, "metavar": "RATE", "help": "learning rate of Adam"}),
    "--seed": ("seed", {"type": int, "metavar": "N", "help": "seed of the training"}),
    "--ema": ("ema", {"type": float, "metavar": "DECAY", "help": "average the weights, e.g. 0.999; 0 turns it off"}),
    "--coupling": (
        "coupling",
        {"choices": ("independent", "ot"), "help": "coupling of noise and data (default: the recipe's)"},
    ),
    "--data": (
        "data.path",
        {"metavar": "PATH", "help": "your own data (vectors: .csv .tsv .npy .npz; images: a folder, .npy .npz, IDX)"},
    ),
    "--columns": ("data.columns", {**_NAMES, "help": "columns to learn (default: all others)"}),
    "--label": ("data.label", {"metavar": "NAME", "help": "column or array of class labels"}),
    "--condition": ("data.condition", {**_NAMES, "help": "columns of numbers that samples depend on"}),
    "--sep": ("data.separator", {"metavar": "CHARACTER", "help": "between columns: ';' or tab"}),
    "--header": ("data.header", {"choices": ("yes", "no"), "help": "whether the first line of a .csv has names"}),
    "--scale": (
        "data.scale",
        {"choices": ("standard", "robust"), "help": "scale by mean and deviation, or by median and quartiles"},
    ),
    "--no-round": (
        "data.round",
        {"action": "store_const", "const": False, "help": "do not round columns of whole numbers"},
    ),
    "--nonnegative": (
        "data.nonnegative",
        {**_NAMES, "help": "columns learned by their logarithm, so that no sample is negative"},
    ),
    "--quantile": (
        "data.quantile",
        {**_NAMES, "help": "columns learned by their quantiles: with long tails, or several peaks"},
    ),
    "--no-transform": (
        "data.transforms",
        {"action": "store_const", "const": "none", "help": "transform no columns but those named"},
    ),
    "--conditional": (
        "data.conditional",
        {"action": "store_const", "const": True, "help": "train a class-conditional model"},
    ),
    "--background": (
        "data.background",
        {"metavar": "COLOUR", "help": "colour behind transparent pixels (white, black, #rrggbb)"},
    ),
    "--range": (
        "data.range",
        {"nargs": 2, "type": float, "metavar": ("LOW", "HIGH"), "help": "pixel values of black and white"},
    ),
}
"""Options of `fit` that set a field of the recipe: the field, and what argparse is told."""


def _kinds(field: str) -> tuple[str, ...]:
    """Return the data sets whose recipes have a field."""
    table, _, name = field.rpartition(".")
    return tuple(kind for kind, section in SECTIONS.items() if not table or name in section.model_fields)


class _LineParser(argparse.ArgumentParser):
    """Reports a wrong command line in one line, like every other error."""

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{message} (see {self.prog} --help)")


def _add_data_dir(parser: argparse.ArgumentParser) -> None:
    data_dir = os.environ.get("PATHLINE_DATA_DIR", "").strip() or None
    parser.add_argument("--data-dir", type=Path, default=data_dir, metavar="DIR", help="data files (mnist: IDX files)")


def _add_places(parser: argparse.ArgumentParser) -> None:
    for kind, default, text in (("models", "checkpoints", "model repository"), ("runs", "runs", "unfinished runs")):
        place = os.environ.get(f"PATHLINE_{kind.upper()}_DIR", "").strip() or default
        parser.add_argument(
            f"--{kind}-dir", type=Path, default=place, metavar="DIR", help=f"folder of the {text} (now: %(default)s)"
        )
    parser.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto", help="device (default: auto)")


def _parser() -> argparse.ArgumentParser:
    parser = _LineParser(prog="python -m training", description="Train flow-matching models.")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    fit = commands.add_parser("fit", help="train and publish one model; run again to resume after a stop")
    fit.add_argument("dataset", choices=DATASETS, help="data set; its shipped recipe is the default")
    fit.add_argument("--config", type=Path, metavar="FILE.toml", help="recipe to use instead of the shipped one")
    fit.add_argument("--paper", action="store_true", help="use the paper's recipe (moons, circles, mnist)")
    for flag, (field, options) in _RECIPE.items():
        only = f"{', '.join(_kinds(field))}: " if "." in field else ""
        names = ("--lr", "--learning-rate") if flag == "--lr" else (flag,)
        fit.add_argument(*names, dest=field, **{**options, "help": only + options["help"]})
    _add_data_dir(fit)
    fit.add_argument("--reflow", type=Path, metavar="CHECKPOINT", help="train on the paths of a published model")
    student = "train a one-step or few-step student of a model"
    fit.add_argument("--student", type=Path, metavar="CHECKPOINT", help=student)
    pairs = "reflow: number of paths to train on (default: one per sample), or a file of pairs"
    fit.add_argument("--pairs", metavar="N|FILE", help=pairs)
    fit.add_argument("--guidance", type=float, metavar="G", help="reflow, student: guidance of a conditional parent")
    fit.add_argument("--from", dest="start", type=Path, metavar="CHECKPOINT", help="continue a published model")
    fit.add_argument("--force", action="store_true", help="train even if a model of this recipe exists")
    fit.add_argument(
        "--save-every", type=float, default=10.0, metavar="SECONDS", help="time between saves (default: %(default)s)"
    )
    measuring = "limit on measuring the model once it is published; 0 measures nothing (default: 60)"
    fit.add_argument("--seconds", type=float, default=60.0, metavar="S", help=measuring)
    hidden = "store none of the held-out data with the model; by default its page shows 256 rows or 16 pictures"
    fit.add_argument("--no-examples", dest="examples", action="store_false", help=hidden)
    fit.add_argument("--tensorboard", type=Path, metavar="DIR", help="logs for TensorBoard, in a folder for each run")
    _add_places(fit)
    _add_evaluate(commands.add_parser("evaluate", help="measure how good a model is, and solvers on it"))
    _add_tune(commands.add_parser("tune", help="learn solvers for one model, to be served with it"))
    defaults = commands.add_parser("defaults", help="make the default models that the repository lacks")
    _add_places(defaults)
    then = "run a command, such as the service, as soon as the analytic models are written, and train behind it"
    defaults.add_argument("--then", nargs=argparse.REMAINDER, metavar="COMMAND", help=then)
    return parser


def _add_tune(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("checkpoint", type=Path, metavar="CHECKPOINT", help="the folder of a version")
    parser.add_argument("--nfe", default="4,5,6,8,10", metavar="N,...", help="NFE budgets (default: %(default)s)")
    methods = "stock methods to tune grids for, too (default: %(default)s)"
    parser.add_argument("--methods", default="ab2,ab3,ab4", metavar="NAME,...", help=methods)
    parser.add_argument("--samples", type=int, default=512, metavar="N", help="calibration paths (default: 512)")
    parser.add_argument("--guidance", default="1,2,4", metavar="G,...", help="for conditional models (default: 1,2,4)")
    parser.add_argument("--iterations", type=int, default=60, metavar="N", help="maximum per plan (default: 60)")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="seed of the noise (default: 0)")
    parser.add_argument("--force", action="store_true", help="repeat earlier tuning")


def _add_evaluate(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("checkpoint", type=Path, metavar="CHECKPOINT", help="the folder of a version")
    example = "e.g. rk4-20 or dopri5@1e-5; can be repeated"
    parser.add_argument("--solver", action="append", metavar="SOLVER", help=example)
    parser.add_argument(
        "--samples", type=int, default=1000, metavar="N", help="number of samples (default: %(default)s)"
    )
    parser.add_argument("--by-class", action="store_true", help="measure how many samples look like their class")
    guidance = "guidance to measure; can be repeated (default: 1; with --by-class 1, 2 and 4)"
    parser.add_argument("--guidance", action="append", type=float, metavar="G", help=guidance)
    seconds = "limit on the wall-clock time of the frontier; cheap solvers come first (default: 300)"
    parser.add_argument("--seconds", type=float, default=300.0, metavar="S", help=seconds)
    parser.add_argument("--out", type=Path, metavar="DIR", help="folder for results (default: reports/NAME-VERSION)")
    _add_data_dir(parser)


def _overrides(arguments: argparse.Namespace) -> dict[str, Any]:
    """Return the fields of the recipe that options set."""
    overrides: dict[str, Any] = {}
    for flag, (field, _) in _RECIPE.items():
        value = getattr(arguments, field)
        if value is None:
            continue
        if arguments.dataset not in (kinds := _kinds(field)):
            raise UsageError(_not_for(flag, kinds, arguments.dataset))
        overrides[field] = value
    return overrides


def _not_for(flag: str, kinds: tuple[str, ...], dataset: str) -> str:
    if flag == "--data":
        return f"--data is for your own data: fit vectors or fit images, not fit {dataset}"
    more = ""
    if flag in ("--label", "--conditional"):
        more = {"vectors": "; name the labels with --label", "moons": ", which have no classes"}.get(
            "moons" if dataset == "circles" else dataset, "; classes are learned with --conditional"
        )
    return f"{flag} is for fit {', fit '.join(kinds)}, not fit {dataset}{more}"


def _parent(arguments: argparse.Namespace) -> dict[str, Any]:
    """Return the recipe table that names the parent; it is empty if no option names one."""
    if arguments.reflow and arguments.student:
        raise UsageError("--reflow and --student train different models; leave one of them out")
    if arguments.student and arguments.pairs is not None:
        raise UsageError("--pairs is for --reflow; a student is trained on the data themselves")
    table = "student" if arguments.student else "reflow"
    parent = arguments.student or arguments.reflow
    if not parent:
        if arguments.pairs is not None or arguments.guidance is not None:
            raise UsageError(
                "--pairs and --guidance need a parent model; name it with --reflow or --student CHECKPOINT"
            )
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

    names = ("models_dir", "runs_dir", "data_dir", "device", "force", "save_every", "tensorboard", "seconds")
    names += ("examples",)
    fit(recipe, Options(**{name: getattr(arguments, name) for name in names}))


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
