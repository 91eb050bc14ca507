"""Samples as a picture of letters, to be looked at in a terminal: a sheet of pictures, or the density of points."""

import numpy as np
from numpy.typing import NDArray

_SHADES = np.array(list(" .:-=+*#%@"))
_WIDTH, _HEIGHT = 60, 24
_ACROSS = 4

Array = NDArray[np.floating]


def picture(samples: Array) -> str:
    """Draw samples (n, *data_shape): (h, w) and (1 or 3, h, w) as pictures, (2,) as a density, others as numbers."""
    shape = samples.shape[1:]
    finite = samples[np.isfinite(samples).reshape(len(samples), -1).all(1)]
    if not len(finite):
        return "(no finite sample)"
    if len(shape) == 3 and shape[0] in (1, 3):
        return _sheet(finite.mean(axis=1))
    if len(shape) == 2 and min(shape) > 1:
        return _sheet(finite)
    if shape == (2,):
        return _density(finite)
    rows = [" ".join(f"{number:8.3f}" for number in sample.reshape(-1)[:8]) for sample in finite[:8]]
    return "\n".join(rows)


def _sheet(images: Array) -> str:
    """Up to four pictures side by side; a letter is about twice as high as wide, so every second row is left out."""
    chosen = images[:_ACROSS, :: 2 if images.shape[1] > 10 else 1, :]
    low, high = np.quantile(chosen, [0.01, 0.99])
    levels = np.clip((chosen - low) / max(high - low, 1e-12), 0, 1)
    letters = _SHADES[(levels * (len(_SHADES) - 1)).round().astype(int)]
    return "\n".join("  ".join("".join(image[row]) for image in letters).rstrip() for row in range(letters.shape[1]))


def _density(points: Array) -> str:
    counts, _, _ = np.histogram2d(points[:, 1], points[:, 0], bins=(_HEIGHT, _WIDTH))
    levels = np.sqrt(counts[::-1] / max(counts.max(), 1.0))
    letters = _SHADES[np.ceil(levels * (len(_SHADES) - 1)).astype(int)]
    return "\n".join("".join(row).rstrip() for row in letters)
