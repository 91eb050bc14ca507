"""Default models of a fresh model repository, made if they are missing."""

import ctypes
import os
import signal
import subprocess
import sys
from pathlib import Path

from training import folders
from training.data_config import CONFIGS
from training.errors import TrainingError
from training.folders import make_writable

TRAINED = ("moons", "digits")
"""Models trained by the shipped recipes."""

ANALYTIC = ("gaussian", "mixture")
"""Fields with known solutions; written, not trained."""

_PARENT_DEATH_SIGNAL = 1  # PR_SET_PDEATHSIG of Linux's prctl

MEASURE_S, MEASURE_TO = 20.0, 0.01
"""Seconds for measuring each model, and the error that its frontier shall reach even if that takes longer.

On any machine, a budget for 1 % of the spread then has a solver.
"""


def make_defaults(models_dir: Path, runs_dir: Path, device: str) -> None:
    """Make the default models that the repository at `models_dir` lacks, and print what happens, line by line.

    A model exists if it has any version. Each is published whole or not at all, and training that was killed resumes
    from its last saved state, so the command can be repeated until it succeeds. Analytic models are written first and
    measured last.

    Raises:
        TrainingError: a folder cannot be used or a training failed.
    """
    names = _unfinished(models_dir)
    if not names:
        print(f"models: {models_dir} has {', '.join((*ANALYTIC, *TRAINED))}; nothing to do")
        return
    print(f"models: {models_dir} lacks {', '.join(names)}; making them", flush=True)
    write_analytic(models_dir)
    from training.config import load_recipe  # imports torch, which takes seconds
    from training.fit import Options, fit

    for name in TRAINED:
        if not folders.versions(models_dir, name):
            fit(load_recipe(CONFIGS / f"{name}.toml"), Options(models_dir, runs_dir, device=device, seconds=MEASURE_S))
    from models.checkpoint.card import CheckpointError
    from selection import measure
    from selection.error import NoErrors

    for name in _unfinished(models_dir):
        try:
            lines = measure.run(folders.versions(models_dir, name)[-1], seconds=MEASURE_S, until_error=MEASURE_TO)
        except (CheckpointError, NoErrors) as error:  # a model without a frontier can be served too
            lines = [f"no frontier measured: {error}"]
        for line in lines:
            print(f"{name}: {line}", flush=True)


def write_analytic(models_dir: Path) -> None:
    """Write the analytic models that the repository lacks as checkpoints in float64, in a few seconds.

    Raises:
        TrainingError: they cannot be written.
    """
    missing = [name for name in ANALYTIC if not folders.versions(models_dir, name)]
    if not missing:
        return
    import torch

    from models.architectures.analytic import Gaussian, Mixture
    from models.checkpoint.card import CheckpointError
    from models.checkpoint.saving import save
    from models.decoder import Decoder

    fields = {
        "gaussian": (Gaussian(), "N(2, 0.5^2) in each of 2 coordinates"),
        "mixture": (Mixture(), "eight Gaussians on a ring in the plane"),
    }
    record = {"method": "none: the exact marginal velocity of the optimal-transport path"}
    for name in missing:
        field, source = fields[name]
        dataset = {"name": name, "source": source}
        decoder = Decoder.identity((2,))
        try:
            folder = save(
                models_dir, name, field, decoder, dataset=dataset, training=record, seed=0, dtype=torch.float64
            )
        except CheckpointError as error:
            raise TrainingError(str(error)) from None
        print(f"{name}: written to {folder}", flush=True)


def serve_meanwhile(command: list[str], models_dir: Path, runs_dir: Path, device: str) -> None:
    """Become a command, usually the service, while the models that the repository lacks are made behind it.

    Only the analytic models are made before. The other process writes to a log in `runs_dir`; it ends with the command,
    and training resumes the next time. If models cannot be made, a line says why, and the command runs all the same.

    Raises:
        TrainingError: the command cannot be run.
    """
    try:
        write_analytic(models_dir)
        if names := _unfinished(models_dir):
            log = _make_behind(models_dir, runs_dir, device, names)
            print(
                f"models: making {', '.join(names)} behind the service, which takes minutes and is logged in {log}; "
                "each is served when it is done",
                flush=True,
            )
    except TrainingError as error:
        print(f"training: {error}; no models are made", file=sys.stderr, flush=True)
    try:
        os.execvp(command[0], command)  # noqa: S606  (the command of the user's own command line)
    except OSError as error:
        raise TrainingError(f"{command[0]} cannot be run: {error.strerror}") from None


def _make_behind(models_dir: Path, runs_dir: Path, device: str, names: list[str]) -> Path:
    """Start this program's `defaults` in a process of its own; return its log."""
    make_writable(runs_dir, "run folder")
    log = runs_dir / "defaults.log"
    again = ["--models-dir", str(models_dir), "--runs-dir", str(runs_dir), "--device", device]
    try:
        with log.open("ab", buffering=0) as output:
            output.write(f"models: making {', '.join(names)}\n".encode())  # a full disk is seen now
            subprocess.Popen(  # noqa: S603  (this program)
                [sys.executable, "-m", "training", "defaults", *again],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                preexec_fn=stay_behind,
            )
    except OSError as error:
        raise TrainingError(f"log {log} cannot be written: {error.strerror}") from None
    return log


def stay_behind() -> None:
    """Give way to other processes, and end when the parent does: by SIGTERM on Linux, by Ctrl-C everywhere."""
    os.nice(10)
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PARENT_DEATH_SIGNAL, signal.SIGTERM)


def _unfinished(models_dir: Path) -> list[str]:
    """Return the default models without a version, or whose newest one was not measured yet."""
    newest = {name: folders.versions(models_dir, name)[-1:] for name in (*ANALYTIC, *TRAINED)}
    return [name for name, last in newest.items() if not last or not (last[0] / "frontier.json").exists()]
