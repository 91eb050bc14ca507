"""Sample spaces: the data as a network sees them, each with a decoder back to the data's own form."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from models.decoder import Decoder
from models.named_conditions import NamedCondition
from training.errors import DataError

Array = NDArray[np.float32]

_FAR = 8
"""Distance from zero in standard deviations; columns nearer than that lose at most three bits if decoded in float32."""

_WHOLE = 2**24
"""float32 represents every whole number up to this one; the limit for columns that never change."""


@dataclass(frozen=True)
class Space:
    """Samples as a network sees them, and the decoder back."""

    train: Array
    held_out: Array
    decoder: Decoder
    space: str
    card: dict[str, Any]


def components(
    train: NDArray[np.float64], held_out: NDArray[np.float64], count: int, shape: tuple[int, ...], what: str
) -> Space:
    """Represent flat pictures in [0, 1], (n, pixels), by their first principal components.

    Raises:
        DataError: there are too few pictures or pixels for this number of components.
    """
    from sklearn.decomposition import PCA
    from threadpoolctl import threadpool_limits

    if count > min(train.shape):
        raise DataError(
            f"{len(train)} {what} are too few for data.components = {count}; use more {what}, or fewer components"
            if count > len(train)
            else f"data.components is {count}; {what} of {train.shape[1]} numbers have at most that number"
        )
    pca = PCA(count, svd_solver="covariance_eigh")
    with threadpool_limits(1):  # the same bits on any number of cores, which resuming relies on
        latent = pca.fit_transform(train)
        unseen = pca.transform(held_out)
    scale = float(latent.std())
    if not scale > 0:
        raise DataError(f"all {what} are the same; there is nothing to learn")
    decoder = Decoder.pca(
        mean=torch.from_numpy(np.asarray(pca.mean_, dtype=np.float32)),
        components=torch.from_numpy(np.asarray(pca.components_, dtype=np.float32)),
        latent_scale=torch.full((count,), scale),
        data_shape=shape,
        clip=(0.0, 1.0),
    )
    card = {
        "components": count,
        "variance_retained": float(pca.explained_variance_ratio_.sum()),
        "scaling": "pixels in [0, 1]; principal components divided by one number, their common standard deviation",
        "latent_scale": scale,
    }
    return Space((latent / scale).astype(np.float32), (unseen / scale).astype(np.float32), decoder, "components", card)


def pixels(train: NDArray[Any], held_out: NDArray[Any], shape: tuple[int, ...]) -> Space:
    """Represent flat pictures in [0, 1], (n, pixels), by their pixels, scaled to [-1, 1]."""
    half = torch.full((train.shape[1],), 0.5)
    decoder = Decoder.affine(half, half, data_shape=shape, clip=(0.0, 1.0))
    card = {"scaling": "pixels 0 ... 1 mapped to [-1, 1]"}
    scaled = [(2 * part - 1).astype(np.float32) for part in (train, held_out)]
    return Space(scaled[0], scaled[1], decoder, "pixels", card)


def standardised(train: NDArray[np.float64], held_out: NDArray[np.float64], path: str) -> Space:
    """Scale rows of numbers, (n, columns), so that each column has mean 0 and standard deviation 1.

    If a column is so far from zero that float32 would drop digits that the scaled samples have, decoding is done in
    float64 and returns float64.

    Raises:
        DataError: all rows are the same.
    """
    shift = train.mean(0)
    shift += (train - shift).mean(0)  # what the first sum lost by rounding
    scale = _spread(train)
    if not (scale > 0).any():
        raise DataError(f"data {path}: all samples are the same; there is nothing to learn")
    far = bool((np.abs(shift) > np.where(scale > 0, _FAR * scale, _WHOLE)).any())
    scale = np.where(scale > 0, scale, 1.0)  # a column that never changes is only shifted
    kind = np.float64 if far else np.float32
    decoder = Decoder.affine(
        torch.from_numpy(scale.astype(kind)), torch.from_numpy(shift.astype(kind)), dtype="float64" if far else None
    )
    scaled = [((part - shift) / scale).astype(np.float32) for part in (train, held_out)]
    card = {"scaling": "each column to mean 0 and standard deviation 1"}
    return Space(scaled[0], scaled[1], decoder, "scaling", card)


def _spread(rows: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the standard deviation of each column, even if its square would underflow or overflow float64."""
    off = rows - rows.mean(0)
    most = np.abs(off).max(0)
    unit = np.where(most > 0, most, 1.0)
    # A column with a single value may differ from its mean by rounding.
    return np.where(rows.max(0) > rows.min(0), unit * np.sqrt(np.square(off / unit).mean(0)), 0.0)


def conditioned(
    condition: NamedCondition | None, values: NDArray[Any] | None, train: NDArray[np.int64]
) -> tuple[NamedCondition | None, NDArray[Any] | None]:
    """Return a condition with its mean and scale, and all values as the network takes them.

    Vectors are standardised by the training rows: (value - mean) / deviation, for each column. A column that never
    changes is always 0 to the network, whatever a request says, as nothing was learned of other values. Labels stay.

    Args:
        condition: what the samples are conditioned on, or None.
        values: labels (samples,), or vectors (samples, width) float64, or None.
        train: the training rows.
    """
    if condition is None or values is None or condition.classes is not None:
        return condition, values
    mean, deviation = values[train].mean(0), values[train].std(0)
    changes = values[train].min(0) < values[train].max(0)
    scale = np.divide(1.0, deviation, out=np.zeros_like(deviation), where=changes)
    fitted = NamedCondition.vector(len(mean), condition.nullable, mean.tolist(), scale.tolist())
    return fitted, fitted.standardised(torch.from_numpy(values), torch.float32).numpy()
