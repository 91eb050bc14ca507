"""DataSet: samples, references and decoder, ready for training."""

import hashlib
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from models.conditions import NamedCondition
from models.decoder import Decoder
from models.shapes import sized
from training import draws
from training.draws import DrawPurpose
from training.errors import DataError

Array = NDArray[np.float32]


@dataclass(frozen=True)
class DataSet:
    """One data set, ready for training.

    Attributes:
        train: the training samples as the network sees them, (samples, *event), float32.
        reference: real data that training never saw, for evaluation, (n, *event).
        second_reference: more real data, to measure the noise floor: the distance of real data from real data.
        reference_text: description of the reference.
        decoder: maps samples as the network sees them back to the data's own form.
        card: origin of the data, for the checkpoint's card.
        condition: what the samples are conditioned on, or None.
        conditions: one for each training sample, as the network takes them: labels (samples,) int64, or vectors
            (samples, width) float32, standardised by `condition`; or None.
        reference_conditions: the same for `reference`.
        condition_names: names of the numbers of a condition vector; empty if there is none.
        noise: the noise paired with each training sample, (samples, *event), or None to draw it in each step.
        notes: lines for the user that describe what was read.
    """

    train: Array
    reference: Array
    second_reference: Array
    reference_text: str
    decoder: Decoder
    card: dict[str, Any] = field(default_factory=dict)
    condition: NamedCondition | None = None
    conditions: NDArray[Any] | None = None
    reference_conditions: NDArray[Any] | None = None
    condition_names: tuple[str, ...] = ()
    noise: Array | None = None
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Raise a DataError if a class has no training sample: it would be offered and draw another one."""
        if self.condition is None or self.condition.classes is None or self.conditions is None:
            return
        counts = np.bincount(self.conditions, minlength=self.condition.classes)
        names = self.condition.names or range(self.condition.classes)
        missing = [str(name) for name, count in zip(names, counts, strict=True) if not count]
        if missing:
            more = ", ..." if len(missing) > 10 else ""
            raise DataError(
                f"none of the {len(self.train):,} training samples has the label {', '.join(missing[:10])}{more}; "
                "train on more samples, or leave such labels out of the data"
            )

    @property
    def digest(self) -> str:
        """SHA-256 of samples, conditions and noise, to check that a resumed run has the same data."""
        digest = hashlib.sha256(np.ascontiguousarray(self.train).tobytes())
        for more in (self.conditions, self.noise):
            if more is not None:
                digest.update(np.ascontiguousarray(more).tobytes())
        return digest.hexdigest()


def to_pictures(data: DataSet, name: str, architecture: str) -> DataSet:
    """Reshape flat samples to pictures, which some architectures need.

    Raises:
        DataError: the samples are not pictures.
    """
    shape = sized(data.decoder.data_shape, {})
    if data.decoder.config.kind != "affine" or len(shape) not in (2, 3):
        raise DataError(
            f"network.architecture is {architecture!r}; it needs pictures, and the {name} samples are vectors"
        )
    event = (1, *shape) if len(shape) == 2 else shape
    decoder = Decoder(data.decoder.config.model_copy(update={"event_shape": event}))
    decoder.load_state_dict(data.decoder.state_dict())
    return replace(
        data,
        train=data.train.reshape(-1, *event),
        reference=data.reference.reshape(-1, *event),
        second_reference=data.second_reference.reshape(-1, *event),
        decoder=decoder,
    )


Rows = NDArray[np.int64]


def split(
    source: str, count: int, share: float, seed: int, conditions: NDArray[Any] | None = None
) -> tuple[Rows, Rows]:
    """Return the rows to train on and the rows held out, both in random order.

    Each class gives its share of the held-out rows, rounded, and keeps at least one row to train on. Conditions that
    are vectors are classes in this sense if they repeat, as one-hot columns do.

    Args:
        source: what the data are, for errors.
        count: the number of rows.
        share: the share to hold out, at least one row in all.
        seed: fixes the draw.
        conditions: labels (count,) or vectors (count, width), or None.

    Raises:
        DataError: there are fewer than three rows, or none is left to hold out.
    """
    held = max(1, round(share * count))
    if count - held < 2:
        raise DataError(f"{source} has {count} samples; at least 3 are needed, 2 to train on and 1 held out")
    order = draws.generator(seed, DrawPurpose.DATA).permutation(count)
    group = np.zeros(count, dtype=np.int64)  # the number of each row's class, without gaps
    if conditions is not None:
        classes = np.unique(conditions, axis=0, return_inverse=True)[1].reshape(-1)
        if conditions.ndim == 1 or classes.max() < count // 2:
            group = classes[order]
    sizes = np.bincount(group)
    if not (held := min(held, count - len(sizes))):
        raise DataError(
            f"{source} has {count} samples, each in a class of its own; at least one class needs a second sample, to "
            "be held out. A quantity is a condition, not a label"
        )
    by_group = np.argsort(group, kind="stable")
    place = np.empty(count, dtype=np.int64)  # of a row among those of its class, from 1
    place[by_group] = 1 + np.arange(count) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    # The rows are held out in the order in which they complete a share of their class; the last row would complete it.
    chosen = np.zeros(count, dtype=bool)
    chosen[np.argsort(place / sizes[group], kind="stable")[:held]] = True
    return order[~chosen], order[chosen]
