"""The command `python -m training`: fit, evaluate, tune and defaults."""

import argparse
import os
import sys
from pathlib import Path
from typing import Any, NoReturn

from training.data_config import CONFIGS, DATASETS
from training.errors import TrainingError, UsageError


class _Parser(argparse.ArgumentParser):
    """Reports a wrong command line in one line, like every other error."""

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{message} (see {self.prog} --help)")


def _add_places(parser: argparse.ArgumentParser) -> None:
    models_dir = os.environ.get("PATHLINE_MODELS_DIR", "").strip() or "checkpoints"
    runs_dir = os.environ.get("PATHLINE_RUNS_DIR", "").strip() or "runs"
    parser.add_argument(
        "--models-dir", type=Path, default=models_dir, metavar="DIR", help="model repository (now: %(default)s)"
    )
    parser.add_argument(
        "--runs-dir", type=Path, default=runs_dir, metavar="DIR", help="folder for unfinished runs (now: %(default)s)"
    )
    parser.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto", help="device (default: auto)")


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(prog="python -m training", description="Train flow-matching models.")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    fit = commands.add_parser("fit", help="train and publish one model; run again to resume after a stop")
    fit.add_argument("dataset", choices=DATASETS, help="data set; its shipped recipe is the default")
    fit.add_argument("--config", type=Path, metavar="FILE.toml", help="recipe to use instead of the shipped one")
    data_dir = os.environ.get("PATHLINE_DATA_DIR", "").strip() or None
    fit.add_argument("--data-dir", type=Path, default=data_dir, metavar="DIR", help="data files (mnist: IDX files)")
    fit.add_argument(
        "--data", metavar="PATH", help="your own data (vectors: .npy .npz .csv; images: a folder, .npy .npz, IDX)"
    )
    fit.add_argument("--name", metavar="NAME", help="name of the model (default: the recipe's)")
    fit.add_argument(
        "--conditional", action="store_true", help="train a class-conditional model (digits, mnist, images)"
    )
    fit.add_argument("--label", metavar="COLUMN", help="vectors: column or array of class labels")
    fit.add_argument("--header", choices=("yes", "no"), help="vectors: whether the first line of a .csv has names")
    fit.add_argument(
        "--scale",
        choices=("standard", "robust"),
        help="vectors: scale by mean and deviation, or by median and quartiles",
    )
    fit.add_argument("--no-round", action="store_true", help="vectors: do not round columns of whole numbers")
    fit.add_argument(
        "--background", metavar="COLOUR", help="images: colour behind transparent pixels (white, black, #rrggbb)"
    )
    fit.add_argument(
        "--range", nargs=2, type=float, metavar=("LOW", "HIGH"), help="images: pixel values of black and white"
    )
    fit.add_argument(
        "--coupling", choices=("independent", "ot"), help="coupling of noise and data (default: the recipe's)"
    )
    fit.add_argument("--reflow", type=Path, metavar="CHECKPOINT", help="train on the paths of a published model")
    fit.add_argument(
        "--student", type=Path, metavar="CHECKPOINT", help="train a one-step or few-step student of a model"
    )
    fit.add_argument("--paper", action="store_true", help="use the paper's recipe (moons, circles, mnist)")
    fit.add_argument(
        "--pairs",
        metavar="N|FILE",
        help="reflow: number of paths to train on (default: one per sample), or a file of pairs",
    )
    fit.add_argument("--guidance", type=float, metavar="G", help="reflow, student: guidance of a conditional parent")
    fit.add_argument("--from", dest="start", type=Path, metavar="CHECKPOINT", help="continue a published model")
    fit.add_argument("--steps", type=int, metavar="N", help="training steps (default: the recipe's)")
    fit.add_argument("--epochs", type=int, metavar="N", help="passes over the data, instead of steps")
    fit.add_argument("--batch-size", type=int, metavar="N", help="samples per step (default: the recipe's)")
    fit.add_argument("--learning-rate", "--lr", type=float, metavar="RATE", help="of Adam (default: the recipe's)")
    fit.add_argument("--seed", type=int, metavar="N", help="seed of the training (default: the recipe's)")
    fit.add_argument("--ema", type=float, metavar="DECAY", help="average the weights, e.g. 0.999; 0 turns it off")
    fit.add_argument("--force", action="store_true", help="train even if a model of this recipe exists")
    fit.add_argument(
        "--save-every", type=float, default=10.0, metavar="SECONDS", help="time between saves (default: %(default)s)"
    )
    fit.add_argument(
        "--seconds",
        type=float,
        default=60.0,
        metavar="S",
        help="limit on measuring the model once it is published; 0 measures nothing (default: 60)",
    )
    fit.add_argument("--tensorboard", type=Path, metavar="DIR", help="logs for TensorBoard, in a folder for each run")
    _add_places(fit)
    _add_evaluate(commands.add_parser("evaluate", help="measure how good a model is, and solvers on it"))
    _add_tune(commands.add_parser("tune", help="learn solvers for one model, to be served with it"))
    _add_places(commands.add_parser("defaults", help="make the default models that the repository lacks"))
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
    example = "e.g. rk4-20 or dopri5@1e-5"
    parser.add_argument("--solver", action="append", metavar="SOLVER", help=f"{example}; can be repeated")
    parser.add_argument(
        "--samples", type=int, default=1000, metavar="N", help="number of samples (default: %(default)s)"
    )
    parser.add_argument("--by-class", action="store_true", help="measure how many samples look like their class")
    parser.add_argument(
        "--guidance",
        action="append",
        type=float,
        metavar="G",
        help="guidance to measure; can be repeated (default: 1; with --by-class 1, 2 and 4)",
    )
    parser.add_argument(
        "--seconds",
        type=float,
        default=300.0,
        metavar="S",
        help="limit on the wall-clock time of the frontier; cheap solvers come first (default: 300)",
    )
    parser.add_argument("--out", type=Path, metavar="DIR", help="folder for results (default: reports/NAME-VERSION)")
    data_dir = os.environ.get("PATHLINE_DATA_DIR", "").strip() or None
    parser.add_argument("--data-dir", type=Path, default=data_dir, metavar="DIR", help="data files (mnist: IDX files)")


def _own_data(arguments: argparse.Namespace) -> dict[str, Any]:
    """Return the data settings given as options."""
    own = arguments.dataset in ("vectors", "images")
    if arguments.data and not own:
        raise UsageError(f"--data is for your own data: fit vectors or fit images, not fit {arguments.dataset}")
    if arguments.label and arguments.dataset != "vectors":
        raise UsageError(f"--label is for fit vectors; fit {arguments.dataset} takes --conditional")
    if arguments.conditional and arguments.dataset in ("moons", "circles", "vectors"):
        more = "; name the labels with --label" if arguments.dataset == "vectors" else ", which have no classes"
        raise UsageError(f"--conditional is not for {arguments.dataset}{more}")
    for option, kind in {
        "header": "vectors",
        "scale": "vectors",
        "no_round": "vectors",
        "background": "images",
        "range": "images",
    }.items():
        if getattr(arguments, option) not in (None, False) and arguments.dataset != kind:
            name = option.replace("_", "-")
            raise UsageError(f"--{name} is for fit {kind}, not fit {arguments.dataset}")
    given: dict[str, Any] = {"data.path": arguments.data, "data.label": arguments.label}
    given |= {f"data.{option}": getattr(arguments, option) for option in ("header", "scale", "background", "range")}
    if arguments.conditional:
        given["data.conditional"] = True
    if arguments.no_round:
        given["data.round"] = False
    return {key: value for key, value in given.items() if value is not None}


def _evaluate(arguments: argparse.Namespace) -> None:
    from training.assess import evaluate_checkpoint

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
    given = {"checkpoint": str(parent), "guidance": arguments.guidance}
    if arguments.pairs is not None:
        counted = arguments.pairs.lstrip("-").isdecimal()
        given |= {"pairs": int(arguments.pairs)} if counted else {"file": arguments.pairs}
    return {table: {key: value for key, value in given.items() if value is not None}}


def _tune(arguments: argparse.Namespace) -> None:
    from training.tune import Recipe, measure_tuned, read_numbers, tune

    recipe = Recipe(
        nfe=read_numbers("nfe", arguments.nfe, int),
        methods=tuple(name.strip().lower() for name in arguments.methods.split(",") if name.strip()),
        samples=arguments.samples,
        seed=arguments.seed,
        iterations=arguments.iterations,
        guidance=read_numbers("guidance", arguments.guidance, float),
    )
    tune(arguments.checkpoint, recipe, arguments.force)
    measure_tuned(arguments.checkpoint)


def _fit(arguments: argparse.Namespace) -> None:
    overrides: dict[str, Any] = {
        name: value
        for name in ("steps", "epochs", "batch_size", "learning_rate", "seed", "ema", "name", "coupling")
        if (value := getattr(arguments, name)) is not None
    }
    overrides |= _own_data(arguments)
    if arguments.start:
        overrides["start"] = {"checkpoint": str(arguments.start)}
    table = _parent(arguments)
    overrides |= table
    if "reflow" in table:  # its pairs replace the recipe's coupling
        overrides.setdefault("coupling", "independent")
    shipped = arguments.dataset
    if arguments.conditional and shipped in ("digits", "mnist"):
        shipped += "_conditional"
    if arguments.paper:
        if shipped not in ("moons", "circles", "mnist") or arguments.config:
            raise UsageError(f"--paper is for fit moons, circles and mnist without --config; here it is fit {shipped}")
        shipped += "_paper"
    from training.config import load_recipe  # imports torch, which takes too long for `--help`

    path = arguments.config or CONFIGS / f"{shipped}.toml"
    recipe = load_recipe(path, overrides)
    if table and not arguments.name:
        # A name of its own, so that it is not another version of the parent.
        recipe = recipe.model_copy(update={"name": f"{recipe.name}-{next(iter(table))}"})
    if recipe.data.name != arguments.dataset:
        raise UsageError(
            f"{path}: data.name is {recipe.data.name!r}; use the recipe with fit {recipe.data.name}, "
            f"not fit {arguments.dataset}"
        )
    if not arguments.save_every >= 0:
        raise UsageError(f"--save-every is {arguments.save_every}; it must be 0 seconds (every step) or more")
    if not arguments.seconds >= 0:
        raise UsageError(f"--seconds is {arguments.seconds}; it must be 0 (measure nothing) or more")
    from training.fit import Options, fit  # imports torch, after the command line is checked

    places = Options(
        models_dir=arguments.models_dir,
        runs_dir=arguments.runs_dir,
        data_dir=arguments.data_dir,
        device=arguments.device,
        force=arguments.force,
        save_every=arguments.save_every,
        tensorboard=arguments.tensorboard,
        seconds=arguments.seconds,
    )
    fit(recipe, places)


def _defaults(arguments: argparse.Namespace) -> None:
    from training.defaults import make_defaults

    make_defaults(arguments.models_dir, arguments.runs_dir, arguments.device)


def main(argv: list[str] | None = None) -> int:
    """Run the command and return its exit code: 0, 1 (failed), 2 (wrong usage), 130 or 143 (stopped)."""
    # GNU OpenMP's threads spin for milliseconds while they wait. If other programs need the same cores, small networks
    # then train ten times slower. The variable is read when torch is imported.
    os.environ.setdefault("GOMP_SPINCOUNT", "1000")
    try:
        arguments = _parser().parse_args(argv)
        run = {
            "fit": _fit,
            "evaluate": _evaluate,
            "tune": _tune,
            "defaults": _defaults,
        }[arguments.command]
        run(arguments)
    except TrainingError as error:
        print(f"training: {error}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        print("training: stopped; run the same command to resume from the last saved state", file=sys.stderr)
        return 130
    except ModuleNotFoundError as error:
        print(f"training: {error.name} is not installed; run pip install -e '.[training]'", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
