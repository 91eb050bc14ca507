"""Cost and quality of trained models, as a table: `python -m studies.prices CHECKPOINT...`.

Price and distance to data are measured as `training fit` does, with the seed of the training. "Astray" is the share of
samples farther from the nearest training sample than 99 % of unseen data are, so 1 % is as good as real. It detects
what a distance between distributions misses: single samples where there are no data.
"""

import argparse
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn.neighbors import NearestNeighbors

from models.checkpoint.loading import Checkpoint, load
from models.field import Field
from models.noise import noise
from selection.measure import measure_curve
from solvers import integrate
from training.data import data_of
from training.dataset import DataSet
from training.draws import DrawPurpose, seed32
from training.evaluation import evaluate
from training.measurement import PRICED, conditions_of
from training.price import price

_SAMPLES = 2000
_SEED = 1_000_003
_REAL = 0.99
_TOLERANCE = 1e-5
_CHOICES = {"schedule": "constant", "coupling": "independent", "times": "uniform", "ema": 0.0}
"""Defaults of recipe fields; a field is shown if it differs."""

_NAMES = {"ema": "EMA "}
"""Prefixes of values that need one to be understood."""


def astray(checkpoint: Checkpoint, data: DataSet) -> float:
    """Return the share of samples that are farther from the training data than 99 % of unseen data are."""
    x0 = noise(_SEED, 0, _SAMPLES, checkpoint.card.event_of(), checkpoint.dtype)
    with torch.no_grad():
        samples = integrate(checkpoint.velocity, x0, solver="dopri5", rtol=_TOLERANCE, atol=_TOLERANCE).x
    near = NearestNeighbors(n_neighbors=1).fit(data.train.reshape(len(data.train), -1))

    def distances(x: Any) -> Any:
        return near.kneighbors(np.asarray(x).reshape(len(x), -1))[0][:, 0]

    return float((distances(samples) > np.quantile(distances(data.reference), _REAL)).mean())


def _made_by(recipe: Mapping[str, Any]) -> str:
    """Return the choices of a recipe that determine the price."""
    network = recipe["network"]
    changed = [
        f"{_NAMES.get(key, '')}{recipe[key]}" for key, usual in _CHOICES.items() if recipe.get(key, usual) != usual
    ]
    return ", ".join([f"{network.get('max_frequency', 100):g}", *changed, f"{recipe['epochs']} epochs"])


def row(path: Path, data_dir: Path | None) -> tuple[str, ...]:
    """Return the cells of one checkpoint's row.

    Raises:
        SystemExit: its card has no recipe, or its data are not available.
    """
    checkpoint = load(path)
    data, note = data_of(checkpoint, data_dir)
    if data is None:
        raise SystemExit(f"{path}: {note}")
    seed = seed32(checkpoint.card.seed, DrawPurpose.EVALUATION)
    quality = evaluate(checkpoint.velocity, data, seed)
    x0 = noise(seed, 0, PRICED, checkpoint.card.event_of(), checkpoint.dtype)
    conditions = conditions_of(checkpoint, data, PRICED)
    field = Field(checkpoint.velocity, conditions, checkpoint.network_conditions)
    curve = measure_curve(field, x0, seed=seed, seconds=math.inf)
    cost = price(checkpoint.velocity, x0, curve, conditions)
    reached = [f"{best[1]} (`{best[0]}`)" if best else "over 200" for best in cost.cheapest]
    share = f"{100 * astray(checkpoint, data):.1f} %" if checkpoint.card.condition is None else ""
    found = (f"{quality.swd:.4f}", f"{quality.swd_real:.4f}", share, f"{cost.dopri5_nfe:.1f}", *reached)
    recipe: Any = checkpoint.card.training["recipe"]
    return f"{checkpoint.card.name}, seed {checkpoint.card.seed}", _made_by(recipe), *found


def main() -> None:
    """Measure the checkpoints and print one row for each."""
    parser = argparse.ArgumentParser(description="Measure the cost of solving trained models, and their quality.")
    parser.add_argument("checkpoints", type=Path, nargs="+", metavar="CHECKPOINT")
    place = os.environ.get("PATHLINE_DATA_DIR", "").strip() or None
    parser.add_argument("--data-dir", type=Path, default=place, metavar="DIR", help="data files (mnist: IDX files)")
    options = parser.parse_args()
    head = ("model", "recipe", "SWD", "of real data", "astray", "`dopri5@1e-5`", "NFE for 1 %", "NFE for 0.1 %")
    print("\n".join(f"| {' | '.join(cells)} |" for cells in (head, ("---",) * len(head))))
    for path in options.checkpoints:
        print(f"| {' | '.join(row(path, options.data_dir))} |", flush=True)


if __name__ == "__main__":
    main()
