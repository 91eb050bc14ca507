"""Samples follow their conditions, whatever the units of these are."""

from pathlib import Path

import numpy as np
import torch

from models.checkpoint.loading import load
from models.condition_values import Values
from models.field import Field, solve
from models.noise import noise
from solvers import SolverSpec
from training.config import Recipe
from training.fit import Options, fit


def test_samples_follow_years(tmp_path: Path, options: Options):
    """u = (year - 2007) / 5 + 0.2 N(0, 1): so the mean of u given a year is known."""
    draws = np.random.default_rng(0)
    year = draws.integers(1990, 2025, 1500)
    u = (year - 2007) / 5 + 0.2 * draws.normal(size=1500)
    path = tmp_path / "t.csv"
    path.write_text("u,year\n" + "\n".join(f"{a},{b}" for a, b in zip(u, year, strict=True)))
    recipe = Recipe.model_validate(
        {
            "name": "years",
            "epochs": 40,
            "batch_size": 128,
            "ema": 0.9,
            "learning_rate": 5e-3,
            "data": {"name": "vectors", "path": str(path), "columns": ["u"], "condition": ["year"]},
            "network": {"hidden": 32, "blocks": 2, "time_width": 8},
        }
    )
    checkpoint = load(fit(recipe, options))
    takes = checkpoint.request_conditions
    assert takes is not None
    for asked, right in ((1990, -3.4), (2010, 0.6), (2020, 2.6)):
        given = Values(takes, {"condition": [asked]}, 300, torch.float32).tensors()["condition"].expanded(300)
        x = solve(Field(checkpoint.velocity, given), noise(0, 0, 300, (1,)), SolverSpec.parse("rk4-8")).x
        found = checkpoint.decoder.decode(x).numpy()
        assert abs(found.mean() - right) < 0.25
        assert found.std() < 0.45
