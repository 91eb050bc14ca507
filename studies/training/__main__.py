"""`python -m studies.training [--recipe NAME] [--epochs N]`: time of training inside and outside the network."""

from __future__ import annotations

import argparse
import os
import platform
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch.optim import Adam

from training.config import CONFIGS, load_recipe
from training.fit import Options, fit
from training.trainer import Trainer


class Stopwatch:
    """Adds up the wall time of the calls of some methods."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    def time(self, owner: type, method: str) -> None:
        """Time each call of a method from now on."""
        name = f"{owner.__name__}.{method}"
        call: Callable[..., Any] = getattr(owner, method)
        self.seconds[name] = 0.0

        def timed(*arguments: Any, **named: Any) -> Any:
            begin = time.perf_counter()
            try:
                return call(*arguments, **named)
            finally:
                self.seconds[name] += time.perf_counter() - begin

        setattr(owner, method, timed)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m studies.training", description=__doc__)
    parser.add_argument("--recipe", default="moons_paper", help="a recipe in training/configs (default: %(default)s)")
    parser.add_argument("--epochs", type=int, help="number of epochs (default: the recipe's)")
    arguments = parser.parse_args()
    overrides = {} if arguments.epochs is None else {"epochs": arguments.epochs}
    recipe = load_recipe(CONFIGS / f"{arguments.recipe}.toml", overrides)
    watch = Stopwatch()
    watch.time(Trainer, "run")
    watch.time(Trainer, "_gradient")
    watch.time(Adam, "step")
    load = os.getloadavg()[0]
    begin, cpu = time.perf_counter(), time.process_time()
    with tempfile.TemporaryDirectory() as folder:
        fit(recipe, Options(Path(folder) / "models", Path(folder) / "runs", device="cpu", seconds=0))
    whole, cpu = time.perf_counter() - begin, time.process_time() - cpu
    run, gradient, step = (watch.seconds[name] for name in ("Trainer.run", "Trainer._gradient", "Adam.step"))
    other = run - gradient - step
    print(
        f"Python {platform.python_version()}, torch {torch.__version__}, {torch.get_num_threads()} threads; "
        f"{platform.machine()}, {os.cpu_count()} cores, load {load:.1f} at the start\n\n"
        "| part | s | of training |\n| --- | --- | --- |\n"
        f"| training: all steps, with progress and saved states | {run:.1f} | 100 % |\n"
        f"| network: forward, loss, backward | {gradient:.1f} | {gradient / run:.1%} |\n"
        f"| Adam | {step:.1f} | {step / run:.1%} |\n"
        f"| data, noise, bookkeeping: the rest | {other:.2f} | {other / run:.1%} |\n"
        f"| whole `fit`: also data, publishing | {whole:.1f} (CPU {cpu:.1f}) | |"
    )
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
