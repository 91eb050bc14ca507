"""The spaces that samples are seen in by a network, each with the way back to the data's own form."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from models.decoder import Decoder
from training.errors import DataError

Array = NDArray[np.float32]


@dataclass(frozen=True)
class Space:
    """Samples as a network sees them, and the way back."""

    train: Array
    held_out: Array
    decoder: Decoder
    space: str
    card: dict[str, Any]


def components(
    train: NDArray[np.float64], held_out: NDArray[np.float64], count: int, shape: tuple[int, ...], what: str
) -> Space:
    """Flat pictures in [0, 1], (n, pixels), as their first principal components.

    Raises:
        DataError: there are too few pictures or pixels for so many components.
    """
    from sklearn.decomposition import PCA
    from threadpoolctl import threadpool_limits

    if count > min(train.shape):
        raise DataError(
            f"{len(train)} {what} are too few for data.components = {count}; give more of them, or fewer components"
            if count > len(train)
            else f"data.components is {count}; {what} of {train.shape[1]} numbers have at most as many"
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
    """Flat pictures in [0, 1], (n, pixels), as they are, from -1 to 1."""
    half = torch.full((train.shape[1],), 0.5)
    decoder = Decoder.affine(half, half, data_shape=shape, clip=(0.0, 1.0))
    card = {"scaling": "pixels 0 ... 1 mapped to [-1, 1]"}
    scaled = [(2 * part - 1).astype(np.float32) for part in (train, held_out)]
    return Space(scaled[0], scaled[1], decoder, "pixels", card)


def standardised(train: Array, held_out: Array, path: str) -> Space:
    """Rows of numbers, (n, columns), each column with mean 0 and standard deviation 1.

    Raises:
        DataError: all rows are the same.
    """
    wide = train.astype(np.float64)
    shift, scale = wide.mean(0), wide.std(0)
    if not (scale > 0).any():
        raise DataError(f"data {path}: all samples are the same; there is nothing to learn")
    scale = np.where(scale > 0, scale, 1.0)  # a column that never changes stays
    decoder = Decoder.affine(torch.from_numpy(scale.astype(np.float32)), torch.from_numpy(shift.astype(np.float32)))
    scaled = [((part - shift) / scale).astype(np.float32) for part in (train, held_out)]
    return Space(
        scaled[0], scaled[1], decoder, "scaling", {"scaling": "each column to mean 0 and standard deviation 1"}
    )
