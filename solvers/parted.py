"""Parted lanes: a large request under batch error control, with one network call for each part and one norm for all.

All samples of such a request share their steps, so its network calls would be as large as the request itself. Its lanes
are split into several `Lanes`, one of which takes part in each tick. The sums of a part are kept until the last part
has had its call; then the norm over all samples, in their order, decides for each part at its next turn. The result is
the same, bit for bit, as with all lanes in one `Lanes`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace

import numpy as np
import torch
from torch import Tensor

from solvers.clocks import group_norms
from solvers.compiled import Numbers, Records
from solvers.errors import Status
from solvers.lanes import Admission, Finished, Lanes
from solvers.plan import CONTROLLED_KINDS, END_ADAPTIVE, MID
from solvers.saving import Saved
from solvers.state import Attempts


@dataclass
class _Part:
    """Some of the lanes, the measurements of their last call, and the norms that decide on the step.

    As lanes of one group share their steps, all are at rows of the same kind.
    """

    lanes: Lanes
    kind: int = MID
    sums: Sequence[Numbers] = ()
    found: Attempts | None = None
    norms: Sequence[Numbers] = ()


class Parted:
    """Lanes of one admission; each tick takes those of one part in turn.

    Args:
        admission: samples on a plan under batch error control.
        make: returns an empty `Lanes`.
        size: the most lanes in a part.
    """

    def __init__(self, admission: Admission, make: Callable[[], Lanes], size: int) -> None:
        self._parts: list[_Part] = []
        for first in range(0, len(admission.x0), size):
            lanes = make()
            x0 = admission.x0[first : first + size]
            lanes.admit([replace(admission, x0=x0, first_index=admission.first_index + first)])
            self._parts.append(_Part(lanes))
        self._turn = 0

    def __len__(self) -> int:
        """Lanes that take part in the next tick."""
        return len(self._parts[self._turn].lanes)

    @property
    def total(self) -> int:
        """All running lanes."""
        return sum(len(part.lanes) for part in self._parts)

    @property
    def records(self) -> Records:
        """The records of the lanes that take part in the next tick."""
        return self._parts[self._turn].lanes.records

    @property
    def all(self) -> list[Lanes]:
        """The lanes of all parts."""
        return [part.lanes for part in self._parts]

    def query(self) -> tuple[Tensor, Tensor]:
        """See `Lanes.query`; for the current part."""
        return self._parts[self._turn].lanes.query()

    def absorb(self, v: Tensor) -> Finished | None:
        """See `Lanes.absorb`: take in the current part's velocities, and make the next part ready."""
        part = self._parts[self._turn]
        kinds, _, _ = part.lanes.receive(v)
        part.kind = int(kinds[0])
        self._measure(part)
        ended: list[Finished] = []
        while True:
            self._turn += 1
            if self._turn == len(self._parts):
                self._turn = 0
                self._share()
            part = self._parts[self._turn]
            if part.norms and self._decide(part):
                finished = part.lanes.collect()
                ended += [] if finished is None else [finished]
            if len(part.lanes) or not self.total:
                return _joined(ended)

    def _measure(self, part: _Part) -> None:
        part.sums, part.found, part.norms = (), None, ()
        if part.kind in CONTROLLED_KINDS:
            part.sums, part.found = part.lanes.measure(part.kind, np.arange(len(part.lanes)))

    def _share(self) -> None:
        """After the last part's call: take the norms over all samples, in their order."""
        measured = [part for part in self._parts if part.sums]
        if not measured:
            return
        edges = np.cumsum([len(part.sums[0]) for part in measured])[:-1]
        together = [np.concatenate(sums) for sums in zip(*(part.sums for part in measured), strict=True)]
        one = np.zeros(len(together[0]), dtype=np.int64)
        norms = [group_norms(sums, measured[0].lanes.width, one) for sums in together]
        if measured[0].kind == END_ADAPTIVE:
            norms = [np.where(np.isfinite(each), each, np.inf) for each in norms]
        norms = [np.split(each, edges) for each in norms]
        for place, part in enumerate(measured):
            part.sums, part.norms = (), [each[place] for each in norms]

    def _decide(self, part: _Part) -> int:
        norms, found = part.norms, part.found
        part.norms, part.found = (), None
        return part.lanes.decide(part.kind, np.arange(len(part.lanes)), found, norms)

    def stop(self, owner: int, status: Status) -> None:
        """End all lanes of an owner; `collect` returns them."""
        for part in self._parts:
            part.lanes.stop(owner, status)

    def collect(self) -> Finished | None:
        """Remove and return the ended lanes."""
        ended = [finished for part in self._parts if (finished := part.lanes.collect()) is not None]
        return _joined(ended)

    def take_saved(self) -> list[Saved]:
        """The states saved since the last call."""
        return [saved for part in self._parts for saved in part.lanes.take_saved()]


def _joined(ended: Sequence[Finished]) -> Finished | None:
    if len(ended) < 2:
        return ended[0] if ended else None
    parts = {field.name: [getattr(each, field.name) for each in ended] for field in fields(Finished)}
    x = torch.cat(parts.pop("x"))
    return Finished(x=x, **{name: np.concatenate(values) for name, values in parts.items()})
