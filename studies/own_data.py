"""``python -m studies.own_data``: 500 houses and 200 pictures, trained as a new user would, and how good they are.

The files are made from a seed. Both are trained by the shipped recipes, or with ``--quick`` by smaller ones. Fresh data
of the same distribution, as many as the samples, tell how good these are: correlations of columns side by side, and the
share that a judge tells apart (a classifier two-sample test).
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image, ImageDraw

from models.checkpoint.loading import Checkpoint, load
from models.field import Field, solve
from models.noise import noise
from solvers import SolverSpec
from training.__main__ import main as training
from training.by_class import sheet
from training.judges import picture_features, rank_correlations, told_apart

COLUMNS = ("rooms", "garden", "area", "price")
KINDS = ("disc", "square", "triangle")
QUICK = {
    "houses": ["--steps", "1500", "--batch-size", "128"],
    "shapes": ["--steps", "550", "--batch-size", "32", "--lr", "0.006"],
}
SMALL = "[network]\nhidden = 64\nblocks = 2\ntime_width = 32\nmax_frequency = 6.0\n"


def houses(count: int, seed: int) -> NDArray[np.float64]:
    """Return houses (count, 4): whole rooms, a garden or none, square metres, and a skewed price in whole euros."""
    random = np.random.default_rng(seed)
    rooms = 1 + random.binomial(6, 0.4, count)
    garden = random.random(count) < 0.1 + 0.1 * rooms
    area = 18 * rooms + 10 + random.normal(0, 9, count)
    price = np.exp(11 + 0.011 * area + 0.25 * garden + random.normal(0, 0.25, count)).round()
    return np.stack([rooms, garden, area.clip(15), price], axis=1).astype(np.float64)


def shapes(count: int, seed: int, side: int = 16) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Return white shapes on black, (count, side, side) from 0 to 1, of random place and size, and their kinds."""
    random, pictures = np.random.default_rng(seed), []
    for number in range(count):
        canvas = Image.new("L", (64, 64))
        draw, half = ImageDraw.Draw(canvas), random.uniform(12, 22)
        x, y = random.uniform(half, 64 - half, 2)
        if number % 3 == 0:
            draw.ellipse((x - half, y - half, x + half, y + half), fill=255)
        elif number % 3 == 1:
            draw.rectangle((x - 0.85 * half, y - 0.85 * half, x + 0.85 * half, y + 0.85 * half), fill=255)
        else:
            draw.polygon([(x, y - half), (x - half, y + 0.8 * half), (x + half, y + 0.8 * half)], fill=255)
        pictures.append(np.asarray(canvas.resize((side, side), Image.Resampling.BOX)) / 255)
    return np.stack(pictures), np.arange(count) % 3


def write_houses(path: Path, count: int = 500) -> None:
    """Write houses as CSV."""
    formats = ("%d", "%d", "%.1f", "%d")
    np.savetxt(path, houses(count, 0), fmt=",".join(formats), header=",".join(COLUMNS), comments="")


def write_shapes(folder: Path, side: int = 16, count: int = 200) -> None:
    """Write shapes as PNG files, in a folder for each kind."""
    for number, (picture, kind) in enumerate(zip(*shapes(count, 0, side), strict=True)):
        (folder / KINDS[kind]).mkdir(parents=True, exist_ok=True)
        Image.fromarray((picture * 255).round().astype(np.uint8)).save(folder / KINDS[kind] / f"{number:03d}.png")


def samples_of(checkpoint: Checkpoint, count: int, labels: NDArray[np.int64] | None = None) -> NDArray[np.float64]:
    """Draw decoded samples with DOPRI5, of the given classes if the model has some."""
    x0 = noise(0, 0, count, checkpoint.card.event_of(), checkpoint.dtype)
    field = Field(checkpoint.velocity, None if labels is None else torch.from_numpy(labels))
    states = solve(field, x0, SolverSpec(rtol=1e-4, atol=1e-4)).x
    with torch.no_grad():
        return checkpoint.decoder.decode(states).double().numpy()


def correlation_error(samples: NDArray[np.float64], real: NDArray[np.float64]) -> float:
    """Return the largest difference of the rank correlations of two columns."""
    return float(np.abs(rank_correlations(samples) - rank_correlations(real)).max())


def c2st(samples: NDArray[np.float64], real: NDArray[np.float64]) -> float:
    """Return the share that a judge tells apart; shapes are judged by principal components of others."""
    if samples.ndim > 2:
        samples, real = picture_features(shapes(500, 2, samples.shape[-1])[0], samples, real)
    right = told_apart(samples, real, 0)
    return float((right[0].mean() + right[1].mean()) / 2)


def train(folder: Path, kind: str, quick: bool) -> tuple[Path, float]:
    """Train on the data of one kind in a folder; return the checkpoint and the seconds that it took."""
    data = folder / ("houses.csv" if kind == "houses" else "pictures")
    if kind == "houses":
        write_houses(data)
    else:
        write_shapes(data, 8 if quick else 16)
    dataset = "vectors" if kind == "houses" else "images"
    options = ["--data", str(data), "--name", kind, *(["--conditional"] if kind == "shapes" else [])]
    options += ["--models-dir", str(folder / "models"), "--runs-dir", str(folder / "runs"), "--seconds", "30"]
    if quick:
        recipe = (Path(__file__).parents[1] / "training" / "configs" / f"{dataset}.toml").read_text()
        head = (
            recipe.partition("[network]")[0] + SMALL
            if kind == "houses"
            else recipe.replace("hidden = 32", "hidden = 16")
        )
        (folder / f"{kind}.toml").write_text(head)
        options += ["--config", str(folder / f"{kind}.toml"), "--seconds", "0", *QUICK[kind]]
    began = time.monotonic()
    if code := training(["fit", dataset, *options]):
        sys.exit(code)
    return folder / "models" / kind / "1", time.monotonic() - began


def judge(path: Path, kind: str, count: int = 500) -> tuple[float, float]:
    """Return the share of samples told from fresh data, and for houses how far correlations are from the data's."""
    checkpoint = load(path)
    if kind == "houses":
        samples = samples_of(checkpoint, 4000)
        return c2st(samples[:count], houses(count, 1)), correlation_error(samples, houses(500, 0))
    real, labels = shapes(count, 1, int(checkpoint.card.event_shape[-1]))
    return c2st(samples_of(checkpoint, count, labels), real), 0.0


def draw(path: Path, file: Path) -> None:
    """Draw a sheet of real pictures and of samples, by kind."""
    real, labels = shapes(30, 0)
    samples = samples_of(load(path), 30, labels)
    sets = {"pictures to learn from": (real, np.arange(30) % 15), "samples": (samples, np.arange(30) % 15)}
    file.write_bytes(sheet(sets, 15, 2))


def judged(kind: str, folder: Path, quick: bool) -> str:
    """Train, compare with fresh data, and return the result in a line."""
    path, seconds = train(folder, kind, quick)
    share, correlations = judge(path, kind)
    more = f"; correlations are up to {correlations:.3f} from those of the rows" if kind == "houses" else ""
    return f"{kind}: {seconds:.0f} s; a judge tells {share:.1%} from fresh data (50 % is guessing){more}"


def main(argv: list[str] | None = None) -> int:
    """Run the study and print a line for each kind of data."""
    parser = argparse.ArgumentParser(prog="python -m studies.own_data", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="small networks, and pictures of 8 x 8, in half a minute")
    parser.add_argument("--out", type=Path, default=Path("reports/own-data"), help="folder (default: %(default)s)")
    parser.add_argument("--only", choices=("houses", "shapes"), help="one of the two")
    parser.add_argument("--figure", type=Path, metavar="FILE.png", help="draw the shapes of an earlier run")
    options = parser.parse_args(argv)
    options.out.mkdir(parents=True, exist_ok=True)
    if options.figure:
        draw(options.out / "models" / "shapes" / "1", options.figure)
        return 0
    lines = [judged(kind, options.out, options.quick) for kind in ("houses", "shapes") if options.only in (None, kind)]
    print(*lines, sep="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
