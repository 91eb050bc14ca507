"""Default models of a fresh model repository, made if they are missing."""

from collections.abc import Callable
from pathlib import Path

from training import folders
from training.data_config import CONFIGS
from training.errors import TrainingError

TRAINED = ("moons", "digits")
"""Models trained by the shipped recipes."""

ANALYTIC = ("gaussian", "mixture")
"""Fields with known solutions; written, not trained."""


MEASURE_S, MEASURE_TO = 20.0, 0.01
"""Seconds for measuring each model, and the error that its frontier shall reach even if that takes longer.

On any machine, a budget for 1 % of the spread then has a solver.
"""


def make_defaults(models_dir: Path, runs_dir: Path, device: str) -> None:
    """Make the default models that the repository at `models_dir` lacks, and print what happens, line by line.

    A model exists if it has any version. Each is published whole or not at all, and training that was killed resumes
    from its last saved state, so the command can be repeated until it succeeds.

    Raises:
        TrainingError: a folder cannot be used or a training failed.
    """
    missing = [name for name in (*ANALYTIC, *TRAINED) if not folders.versions(models_dir, name)]
    if not missing:
        print(f"models: {models_dir} has {', '.join((*ANALYTIC, *TRAINED))}; nothing to do")
        return
    print(f"models: {models_dir} lacks {', '.join(missing)}; making them", flush=True)
    # Imported only now, because torch takes seconds to import.
    from training.config import load_recipe
    from training.fit import Options, fit

    for name in missing:
        if name in ANALYTIC:
            folder = _write_analytic(models_dir, name)
            print(f"{name}: written to {folder}", flush=True)
        else:
            places = Options(models_dir, runs_dir, device=device, seconds=MEASURE_S)
            folder = fit(load_recipe(CONFIGS / f"{name}.toml"), places)
        if not (folder / "frontier.json").exists():
            _measure(name, folder)


def _measure(name: str, folder: Path) -> None:
    """Measure the frontier of a model for some seconds; a model without one can be served too."""
    from models.checkpoint.card import CheckpointError
    from models.checkpoint.loading import load
    from selection.error import NoErrors
    from selection.frontier import FrontierError, write_frontier
    from selection.measure import measure

    try:
        frontier = measure(load(folder), seconds=MEASURE_S, until_error=MEASURE_TO)
        write_frontier(folder, frontier)
    except (CheckpointError, FrontierError, NoErrors) as error:
        print(f"{name}: no frontier measured: {error}", flush=True)
        return
    part = "" if all(curve.complete for curve in frontier.curves) else ", not all of them"
    solvers = sum(len(curve.points) for curve in frontier.curves)
    print(f"{name}: {solvers} solvers measured{part}; to repeat it, run python -m models measure {folder}", flush=True)


def _write_analytic(models_dir: Path, name: str) -> Path:
    """Write an analytic field as a checkpoint like any other, in float64."""
    import torch

    from models.architectures.analytic import Gaussian, Mixture
    from models.checkpoint.card import CheckpointError
    from models.checkpoint.saving import save
    from models.decoder import Decoder
    from models.network import Network

    make: dict[str, Callable[[], Network]] = {"gaussian": Gaussian, "mixture": Mixture}
    text = {"gaussian": "N(2, 0.5^2) in each of 2 coordinates", "mixture": "eight Gaussians on a ring in the plane"}
    try:
        return save(
            models_dir,
            name,
            make[name](),
            Decoder.identity((2,)),
            dataset={"name": name, "source": text[name]},
            training={"method": "none: the exact marginal velocity of the optimal-transport path"},
            seed=0,
            dtype=torch.float64,
        )
    except CheckpointError as error:
        raise TrainingError(str(error)) from None
