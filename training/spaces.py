"""Sample spaces: the data as a network sees them, each with a decoder back to the data's own form.

They are returned as data sets that lack a name and conditions.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.special import ndtri

from models.conditions import NamedCondition
from models.decoder import KNOTS, ColumnCard, Decoder, Inverse, Transform
from training.data_config import VectorsData
from training.dataset import DataSet
from training.errors import DataError

_FAR = 8
"""Distance from zero in standard deviations; columns nearer than that lose at most three bits if decoded in float32."""

MAX_COLUMNS = 10_000

MAX_EXACT = 2**53
"""float64 represents every whole number up to this one, and no fractions beyond."""

_SKEWED, _VALUES = 1.0, 12
"""Smallest skewness, and number of different values, of columns whose logarithm may be learned."""

_LONG = 10.0
"""Smallest length of tails, in interquartile ranges from 0.5 % to 99.5 % of the rows, of columns whose quantiles are
learned; 3.8 for normal distributions, 6.6 for Laplace's, 12 for Student's of two degrees of freedom."""

_MOST_DECIMALS = 9
"""Data with more decimal places have as many as float64."""

_WHOLE = 2**24
"""float32 represents every whole number up to this one; the limit for columns of such."""


def _in_space(
    train: NDArray[np.floating[Any]], held_out: NDArray[np.floating[Any]], decoder: Decoder, card: dict[str, Any]
) -> DataSet:
    """Return samples as a network sees them, with the decoder back and what the card says of it."""
    seen, unseen = train.astype(np.float32), held_out.astype(np.float32)
    return DataSet(seen, unseen, seen[: len(unseen)], "", decoder, card)


def components(
    train: NDArray[np.float64], held_out: NDArray[np.float64], count: int, shape: tuple[int, ...], what: str
) -> DataSet:
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
    same = np.flatnonzero(train.max(0) == train.min(0))
    pca = PCA(count, svd_solver="covariance_eigh")
    with threadpool_limits(1):  # the same bits on any number of cores, which resuming relies on
        latent = pca.fit_transform(train)
        unseen = pca.transform(held_out)
    scale = float(latent.std())
    if not scale > 0:
        raise DataError(f"all {what} are the same; there is nothing to learn")
    mean, directions = np.asarray(pca.mean_, dtype=np.float32), np.asarray(pca.components_, dtype=np.float32)
    mean[same], directions[:, same] = train[0, same], 0.0  # pixels that never change are decoded exactly
    decoder = Decoder.pca(
        mean=torch.from_numpy(mean),
        components=torch.from_numpy(directions),
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
    return _in_space(latent / scale, unseen / scale, decoder, card)


def pixels(train: NDArray[Any], held_out: NDArray[Any], shape: tuple[int, ...]) -> DataSet:
    """Represent flat pictures in [0, 1], (n, pixels), by their pixels, scaled to [-1, 1]."""
    half = torch.full((train.shape[1],), 0.5)
    decoder = Decoder.affine(half, half, data_shape=shape, clip=(0.0, 1.0), constants=_constants(train, np.float32))
    return _in_space(2 * train - 1, 2 * held_out - 1, decoder, {"scaling": "pixels 0 ... 1 mapped to [-1, 1]"})


def standardised(
    train: NDArray[np.float64],
    held_out: NDArray[np.float64],
    columns: tuple[ColumnCard, ...],
    path: str,
    robust: bool = False,
) -> DataSet:
    """Scale rows of numbers, (n, columns), so that each column has mean 0 and standard deviation 1.

    With `robust`, the median is 0 and the interquartile range 1.349, as of a standard normal distribution, so a few
    values that are far away do not count.

    Columns that never change in the training rows are decoded exactly. Decoding is done in float64 and returns float64
    if float32 cannot hold such a value or all whole numbers of a column, or if a column is so far from zero that
    float32 would drop digits that the scaled samples have.

    Raises:
        DataError: all rows are the same.
    """
    constants = _constants(train, np.float64)
    moved = any(column.transform for column in columns)
    quantiles = [_knots(train[:, k]) for k, column in enumerate(columns) if column.transform == "quantile"]
    knots = torch.from_numpy(np.stack(quantiles, axis=1)) if quantiles else None
    if moved:
        unscaled = torch.ones(len(columns)).double(), torch.zeros(len(columns)).double()
        seen = Inverse(Decoder.affine(*unscaled, dtype="float64", columns=columns, knots=knots)).encode
        train, held_out = (seen(torch.from_numpy(part)).numpy() for part in (train, held_out))
    if robust:
        shift, scale = np.median(train, axis=0), _quartile_spread(train)
    else:
        shift, scale = train.mean(0), deviations(train)
        shift += (train - shift).mean(0)  # what the first sum lost by rounding
    if not (scale > 0).any():
        raise DataError(f"data {path}: all samples are the same; there is nothing to learn")
    whole = [column.kind != "number" and max(-column.low, column.high) > _WHOLE for column in columns]
    far = np.where(scale > 0, np.abs(shift) > _FAR * scale, train[0] != train[0].astype(np.float32))
    wide = bool(far.any()) or any(whole) or moved  # a power amplifies what float32 rounds off
    scale = np.where(scale > 0, scale, 1.0)  # a column that never changes is only shifted
    kind = np.float64 if wide else np.float32
    decoder = Decoder.affine(
        torch.from_numpy(scale.astype(kind)),
        torch.from_numpy(shift.astype(kind)),
        dtype="float64" if wide else None,
        constants=(constants[0], constants[1].to(torch.float64 if wide else torch.float32)),
        columns=columns or None,
        knots=knots,
    )
    to = "median 0 and interquartile range 1.349" if robust else "mean 0 and standard deviation 1"
    train, held_out = ((part - shift) / scale for part in (train, held_out))
    return _in_space(train, held_out, decoder, {"scaling": f"each column to {to}"})


def _knots(column: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return normal scores and quantiles of a column (n,), both (`KNOTS`,), closest together at the ends.

    The levels are those of Chebyshev's points between the first and the last row (Hazen's plotting position).
    """
    edge = 0.5 / len(column)
    levels = edge + (1 - 2 * edge) * (1 - np.cos(np.pi * np.arange(KNOTS) / (KNOTS - 1))) / 2
    return np.stack([ndtri(levels), np.quantile(column, levels, method="hazen")])


def skewness(column: NDArray[np.float64]) -> float:
    """Return the third standardised moment of a column (n,); 0 if it never changes."""
    most = np.abs(column).max()
    if most == 0 or column.min() == column.max():
        return 0.0
    unit = column / most  # sums and squares of huge or tiny numbers are beyond float64
    off = unit - unit.mean()
    return float(((off / deviations(unit[:, None])) ** 3).mean())


def _transform(column: NDArray[np.float64], least: float) -> Transform | None:
    """Return what makes a column with long tails much more like a normal distribution, if something does.

    That is the logarithm of a skewed column without values (`least`) below 0, or else the quantiles.
    """
    if len(np.unique(column)) < _VALUES:
        return None
    skewed = skewness(column)
    if least >= 0 and skewed >= _SKEWED:
        kind, moved = ("log", np.log(column)) if column.min() > 0 else ("log1p", np.log1p(column))
        if abs(skewness(moved)) < skewed / 2:
            return kind
    first, low, high, last = np.quantile(column, [0.005, 0.25, 0.75, 0.995])
    return "quantile" if last - first > _LONG * (high - low) and _ascends(column) else None


def _ascends(column: NDArray[np.float64]) -> bool:
    """Return whether a column (n,) has so few equal values that its quantiles can be undone."""
    return bool((np.diff(_knots(column)) > 0).all())


def _constants(train: NDArray[np.float64], kind: type[np.floating]) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the places in flat samples (n, numbers) of the numbers that never change, and their values."""
    places = np.flatnonzero(train.max(0) == train.min(0))
    return torch.from_numpy(places), torch.from_numpy(train[0, places].astype(kind))


def columns_of(
    names: Sequence[str],
    units: Mapping[str, str],
    train: NDArray[np.float64],
    held_out: NDArray[np.float64],
    config: VectorsData,
) -> tuple[ColumnCard, ...]:
    """Describe the columns of rows (n, columns): which are whole, their units and decimals, and which are transformed.

    More columns than a card has room for are not described, and so not rounded.
    """
    if len(names) > MAX_COLUMNS:
        return ()
    low, high = train.min(0), train.max(0)
    whole = np.array([(part == np.floor(part)).all(0) for part in (train, held_out)]).all(0)
    whole &= config.round & (np.maximum(-low, high) <= MAX_EXACT)
    yes_no = (low == 0) & (high == 1)
    kinds = np.where(whole, np.where(yes_no, "yes-no", "whole"), "number").tolist()
    least = np.minimum(low, held_out.min(0))
    transforms: list[Transform | None] = [
        _transform(column, least[place]) if config.transforms == "auto" and kinds[place] != "yes-no" else None
        for place, column in enumerate(train.T)
    ]
    varies = low < high
    for place in _places(names, config.nonnegative, "nonnegative"):
        if least[place] < 0:
            raise DataError(f"column {names[place]} has values down to {least[place]:g}; leave it out of --nonnegative")
        if varies[place]:
            transforms[place] = "log"
    for place in _places(names, config.quantile, "quantile"):
        if varies[place] and not _ascends(train[:, place]):
            raise DataError(f"column {names[place]} has too many equal values; leave it out of --quantile")
        if varies[place]:
            transforms[place] = "quantile"
    columns = []
    for place, (name, values) in enumerate(zip(names, np.concatenate([train, held_out]).T, strict=True)):
        kind, transform = kinds[place], transforms[place]
        exact = (n for n in range(_MOST_DECIMALS + 1) if (values.round(n) == values).all())  # decimals that write all
        columns.append(
            ColumnCard(
                name=name,
                kind=kind,
                low=float(low[place]),
                high=float(high[place]),
                unit=units.get(name),
                decimals=next(exact, None) if config.round and kind == "number" else None,
                transform="log1p" if transform == "log" and least[place] == 0 else transform,
            )
        )
    return tuple(columns)


def _places(names: Sequence[str], chosen: Sequence[str], option: str) -> list[int]:
    """Return the places of columns that an option names."""
    for name in chosen:
        if name not in names:
            raise DataError(f"data.{option} (--{option}) names {name!r}; the columns are {', '.join(names)}")
    return [list(names).index(name) for name in chosen]


def deviations(rows: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the standard deviation of each column of rows (n, columns), even if its square is beyond float64."""
    off = rows - rows.mean(0)
    most = np.abs(off).max(0)
    unit = np.where(most > 0, most, 1.0)
    # A column with a single value may differ from its mean by rounding.
    return np.where(rows.max(0) > rows.min(0), unit * np.sqrt(np.square(off / unit).mean(0)), 0.0)


def _quartile_spread(rows: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the interquartile range of each column, divided by that of a standard normal distribution, 1.349.

    If half of the values are the same, the range from 10 % to 90 % is used, then from 5 % to 95 % and from 1 % to 99 %,
    each divided by that of the normal distribution; and if it is 0, too, the standard deviation.
    """
    spread = np.zeros(rows.shape[1])
    for outer in (0.25, 0.1, 0.05, 0.01):
        low, high = np.quantile(rows, [outer, 1 - outer], axis=0)
        spread = np.where(spread > 0, spread, (high - low) / (2 * ndtri(1 - outer)))
    return np.where(spread > 0, spread, deviations(rows))


def original(condition: NamedCondition, values: NDArray[np.float32]) -> NDArray[np.float64]:
    """Return condition vectors (n, width) in the unit of the data, from what the network takes; see `conditioned`."""
    if condition.mean is None or condition.scale is None:
        return values.astype(np.float64)
    scale = np.broadcast_to(np.asarray(condition.scale, dtype=np.float64), values.shape)
    return np.divide(values, scale, out=np.zeros(values.shape), where=scale > 0) + np.asarray(condition.mean)


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
    values = values.astype(np.float64, copy=False)
    mean, deviation = values[train].mean(0), deviations(values[train])
    scale = np.divide(1.0, deviation, out=np.zeros_like(deviation), where=deviation > 0)
    fitted = NamedCondition.vector(len(mean), condition.nullable, mean.tolist(), scale.tolist())
    return fitted, fitted.standardised(torch.from_numpy(values), torch.float32).numpy()
