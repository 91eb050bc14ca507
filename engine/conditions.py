"""Conditions and constants of the rows of a network call, looked up by job and sample.

Each distinct condition of a job is stored once, and each sample has the places of its conditions. The cost of adding a
job depends only on that job, not on the number of running jobs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from engine.job import Job
from models.condition_values import Distinct
from models.conditions import NamedConditions
from models.forms.rows import StoredRows
from models.guidance import Correction, Further, Guidance, Term
from solvers.bank import RangeAllocator, grown

_BLOCK_BYTES = 1 << 20
_BLOCK_ROWS = 4096
_ALIGNMENT = 64  # bytes; kernels may round otherwise where a row is not aligned like a fresh tensor
_PLAIN = Guidance((Term(1.0),))

Places = NDArray[np.int64]


class RowStore:
    """Rows of one shape, in blocks that never move; a row is found by its place.

    Small rows share blocks, so that a tick gathers them in one operation; a large row has its own block, freed along
    with it.
    """

    def __init__(self, shape: Sequence[int], dtype: torch.dtype, device: torch.device | str) -> None:
        self._shape, self._dtype, self._device = tuple(shape), dtype, device
        self._bytes = max(1, int(np.prod(self._shape)) * dtype.itemsize)
        self._room = max(1, min(_BLOCK_BYTES // self._bytes, _BLOCK_ROWS))
        self._copies: Tensor | None = None
        self._gathered: tuple[Places, Tensor] | None = None  # the last large copy, and the places of its rows
        self._blocks: list[Tensor] = []
        self._free: list[list[int]] = []  # places in each block
        self._first = np.empty(0, dtype=np.int64)  # place of the first row of each block
        self._end = 0
        self.held = 0

    def add(self, rows: Tensor) -> Places:
        """Store rows (n, *shape); return their places (n,)."""
        n, rows = len(rows), rows.to(self._device, self._dtype)
        number = next((k for k in reversed(range(len(self._free))) if len(self._free[k]) >= n), None)
        if number is None:
            number, room = len(self._blocks), max(n, self._room)
            self._blocks.append(torch.empty((room, *self._shape), dtype=self._dtype, device=self._device))
            self._free.append(list(range(self._end + room - 1, self._end - 1, -1)))
            self._first = np.append(self._first, self._end)
            self._end += room
        self._gathered = None
        free = self._free[number]
        places = np.array(free[len(free) - n :], dtype=np.int64)
        del free[len(free) - n :]
        at = torch.from_numpy(places - self._first[number]).to(self._device)
        self._blocks[number][at] = rows
        self.held += n
        return places

    def remove(self, places: Places) -> None:
        """Remove the rows at these places, which must be all those of one call of `add`."""
        number = int(np.searchsorted(self._first, places[0], side="right")) - 1
        self._gathered = None
        self._free[number] += places.tolist()
        self.held -= len(places)
        if not self.held:
            self._copies = None
        if len(self._free[number]) == len(self._blocks[number]) and len(self._blocks) > 1:
            del self._blocks[number], self._free[number]
            self._first = np.delete(self._first, number)
        elif not self.held and self._blocks[0].nbytes > _BLOCK_BYTES:
            self._blocks, self._free, self._first = [], [], self._first[:0]

    def take(self, places: Places) -> Tensor:
        """The rows at these places, valid only until the next call.

        A large copy serves again while the places stay the same, and a single large row needs none.
        """
        if self._gathered is not None and np.array_equal(self._gathered[0], places):
            return self._gathered[1]
        rows = self._gather(places)
        if len(places) > 1 and rows.nbytes >= _BLOCK_BYTES:
            self._gathered = places, rows
        return rows

    def _gather(self, places: Places) -> Tensor:
        block = np.searchsorted(self._first, places, side="right") - 1
        if len(places) == 1 and self._room == 1:  # large rows have blocks of their own, which are aligned as copies are
            at = int(places[0] - self._first[block[0]])
            if (row := self._blocks[block[0]][at : at + 1]).data_ptr() % _ALIGNMENT == 0:
                return row
        self._gathered = None
        first, rows = int(block[0]), self._room_to_copy(len(places))
        if (block == first).all():
            return self._picked(first, places, rows)
        if rows is None:
            rows = torch.empty((len(places), *self._shape), dtype=self._dtype, device=self._device)
        for number in np.unique(block).tolist():
            inside = np.flatnonzero(block == number)
            rows[torch.from_numpy(inside).to(self._device)] = self._picked(number, places[inside])
        return rows

    def _picked(self, number: int, places: Places, rows: Tensor | None = None) -> Tensor:
        at = torch.from_numpy(places - self._first[number]).to(self._device)
        return torch.index_select(self._blocks[number], 0, at, out=rows)

    def _room_to_copy(self, n: int) -> Tensor | None:
        """Return memory for copies of n large rows, always the same; None if they are small.

        The C library keeps large blocks of varying sizes when they are freed, up to three times what a call needs.
        """
        if n * self._bytes < _BLOCK_BYTES:
            return None
        if self._copies is None or len(self._copies) < n:
            self._copies = None  # freed first
            self._copies = torch.empty((n, *self._shape), dtype=self._dtype, device=self._device)
        return self._copies[:n]


@dataclass(frozen=True)
class _JobLines:
    """A job's share of the stores and of the table of places."""

    first: int
    rows: int
    samples: int
    places: tuple[tuple[RowStore, Places], ...]


class JobRows:
    """The places of the conditions and constants of an arena's jobs, one line for each sample and variant.

    The variants of a job are: all conditions, then the terms of its guidance.
    """

    def __init__(self, stores: Mapping[str, RowStore]) -> None:
        self.stores = dict(stores)
        self.owners = np.empty(0, dtype=np.int64)  # all jobs, ascending
        self._jobs: dict[int, _JobLines] = {}
        self._space = RangeAllocator()
        self._table = np.empty((0, len(self.stores)), dtype=np.int64)
        self._first = np.empty(0, dtype=np.int64)  # the first line of each job

    def __contains__(self, owner: int) -> bool:
        return owner in self._jobs

    def __getitem__(self, owner: int) -> _JobLines:
        return self._jobs[owner]

    def add(self, owner: int, samples: int, variants: Sequence[Mapping[str, Distinct]]) -> None:
        """Add a job.

        Args:
            owner: number of the job.
            samples: number of its samples.
            variants: conditions and constants of each variant, by name; identical objects are stored once.

        If memory runs out, nothing has changed.
        """
        placed: dict[int, tuple[RowStore, Places]] = {}
        with ExitStack() as undo:
            lines = np.empty((len(variants), samples, len(self.stores)), dtype=np.int64)
            for variant, entries in enumerate(variants):
                for column, (name, store) in enumerate(self.stores.items()):
                    condition = entries[name]
                    if id(condition.rows) not in placed:
                        placed[id(condition.rows)] = (store, store.add(condition.rows))
                        undo.callback(store.remove, placed[id(condition.rows)][1])
                    places = placed[id(condition.rows)][1]
                    lines[variant, :, column] = places[0] if condition.index is None else places[condition.index]
            undo.callback(setattr, self, "_space", replace(self._space, free=list(self._space.free)))
            first = self._space.take(len(variants) * samples)
            self._table = grown(self._table, self._space.size)
            undo.pop_all()
        self._table[first : first + len(variants) * samples] = lines.reshape(-1, len(self.stores))
        self._jobs[owner] = _JobLines(first, len(variants) * samples, samples, tuple(placed.values()))
        at = int(np.searchsorted(self.owners, owner))
        self.owners, self._first = np.insert(self.owners, at, owner), np.insert(self._first, at, first)

    def remove(self, owner: int) -> None:
        """Remove everything stored for a job, if anything, once its lanes are gone."""
        lines = self._jobs.pop(owner, None)
        if lines is None:
            return
        for store, places in lines.places:
            store.remove(places)
        self._space.give(lines.first, lines.rows)
        at = int(np.searchsorted(self.owners, owner))
        self.owners, self._first = np.delete(self.owners, at), np.delete(self._first, at)
        self._space.shrink()
        if self._space.size < len(self._table):  # give back the memory of the last peak
            self._table = self._table[: self._space.size].copy()

    def lines(self, owner: Places, index: Places) -> tuple[Places, Places]:
        """For lanes (n,): the position of each lane's job in `owners`, and the line of its first variant."""
        place = np.searchsorted(self.owners, owner)
        return place, self._first[place] + index

    def of(self, owner: Places, index: Places) -> list[StoredRows]:
        """The rows of the first variant of lanes (n,), for each store."""
        return self.stored(self.lines(owner, index)[1])

    def stored(self, lines: Places) -> list[StoredRows]:
        """The rows at these lines (n,), for each store."""
        places = self._table[lines]
        return [StoredRows(store.take, places[:, column]) for column, store in enumerate(self.stores.values())]


@dataclass(frozen=True)
class CallRows:
    """The rows of one network call for n lanes.

    Attributes:
        conditions: for each name, n rows and then those of `further`.
        of: (m,) the lane of each row after the first n; None if there are no more.
        further, projection, rescaling: see `models.guidance.combined`.
    """

    conditions: list[StoredRows]
    of: Places | None = None
    further: tuple[Further, ...] = ()
    projection: Correction | None = None
    rescaling: Correction | None = None


def variants_of(takes: NamedConditions, dtype: torch.dtype, job: Job) -> Sequence[Mapping[str, Distinct]]:
    """The conditions of a job's variants: all of its conditions, then those of each term of its guidance.

    Args:
        takes: the conditions that the job gives, without free axes.
        dtype: dtype of states.
        job: the job; samples without a condition get the null.
    """
    if job.variants is not None:
        return job.variants
    names, nulls = tuple(takes.entries), dict[str, Distinct]()

    def null(name: str) -> Distinct:
        if name not in nulls:
            nulls[name] = (job.negative or {}).get(name) or Distinct(takes.null_of(name, dtype))
        return nulls[name]

    whole = {name: null(name) for name in names} if job.conditions is None else dict(job.conditions)
    if job.guidance is None or job.guidance.plain:
        return [whole]
    variants, terms = list[Mapping[str, Distinct]](), job.guidance.terms
    for term, own in zip(terms, job.own or ({},) * len(terms), strict=True):
        gone = takes.with_flags(term.without)
        variants.append({n: own[n] if n in own else null(n) if n in gone else whole[n] for n in names})
    return [{**variants[0], **whole}, *variants]


class Conditions:
    """Conditions and guidances of the jobs of one arena."""

    def __init__(self, takes: NamedConditions, dtype: torch.dtype, device: torch.device | str) -> None:
        self._takes, self._dtype, self._device = takes, dtype, device
        entries = takes.entries.items()
        stores = {name: RowStore(entry.sizes, entry.network_dtype(dtype), device) for name, entry in entries}
        self.rows = JobRows(stores)
        self.guided: dict[int, Guidance] = {}  # of the jobs that have some
        self._guides: NDArray[Any] | None = None
        self._skipped: dict[int, int] = {}  # per job with an interval: rows not evaluated, as guidance was off

    def add(self, owner: int, job: Job) -> None:
        """Add a job, once; samples without a condition get the null."""
        if owner in self.rows:
            return
        if job.guidance is not None and not job.guidance.plain:
            self.guided[owner] = job.guidance
            if job.guidance.interval is not None:
                self._skipped[owner] = 0
        self.rows.add(owner, job.num_samples, variants_of(self._takes, self._dtype, job))
        self._guides = None

    def remove(self, owner: int) -> None:
        """Remove a job once its lanes are gone."""
        self.rows.remove(owner)
        self.guided.pop(owner, None)
        self._skipped.pop(owner, None)
        self._guides = None

    def skipped(self, owner: int) -> int:
        """The number of rows of a job not evaluated, as their times were outside its guidance's interval."""
        return self._skipped.get(owner, 0)

    def of(self, owner: Places, index: Places, t: Tensor) -> CallRows:
        """The rows of a network call.

        Args:
            owner, index: (n,) job of each lane, and its sample in that job.
            t: (n,) times.
        """
        place, line = self.rows.lines(owner, index)
        if not self.guided:
            return CallRows(self.rows.stored(line))
        if self._guides is None:
            self._guides = self._listed()
        guides = self._guides.take(place)
        samples, terms, last = guides["samples"], guides["terms"], guides["last"]
        if self._skipped:
            at = t.double().cpu().numpy()
            off = (at < guides["begin"]) | (at > guides["end"])
            skipped = np.bincount(place[off], weights=terms[off] - 1)
            for job in np.flatnonzero(skipped).tolist():
                self._skipped[int(self.rows.owners[job])] += int(skipped[job])
            terms, last = np.where(off, 1, terms), np.where(off, 0, last)
        lines, lanes, further = [line + last * samples], [], []
        for term in range(int(terms.max()) - 1):
            guided = np.flatnonzero(terms > term + 1)
            lanes.append(guided)
            lines.append(line[guided] + (term + 1) * samples[guided])
            weight = torch.from_numpy(guides["weights"][guided, term]).to(self._device, self._dtype)
            further.append(Further(torch.from_numpy(guided).to(self._device), weight))
        of = np.concatenate(lanes) if lanes else None
        corrections = self._corrections(guides, terms, lanes) if of is not None else (None, None)
        return CallRows(self.rows.stored(np.concatenate(lines)), of, tuple(further), *corrections)

    def _listed(self) -> NDArray[Any]:
        """The guidances of all jobs, in the order of `JobRows.owners`."""
        most_terms = max(len(guidance.terms) for guidance in self.guided.values())
        guides = []
        for owner in self.rows.owners.tolist():
            guidance = self.guided.get(owner, _PLAIN)
            samples, terms = self.rows[owner].samples, len(guidance.terms)
            weights = [term.weight for term in guidance.terms] + [0.0] * (most_terms - terms)
            interval, whole = guidance.interval or (-np.inf, np.inf), guidance.whole
            corrections = guidance.projection, guidance.rescale, -1 if whole is None else whole
            guides.append((samples, terms, 0 if guidance.plain else terms, weights, *interval, *corrections))
        return np.array(  # (assigning fields one by one would take twice as long)
            guides,
            dtype=[
                ("samples", np.int64),  # of the job
                ("terms", np.int64),  # number of terms
                ("last", np.int64),  # the variant of its last term
                ("weights", np.float64, (most_terms,)),
                ("begin", np.float64),  # its interval
                ("end", np.float64),
                ("projection", np.bool_),  # its corrections
                ("rescale", np.float64),
                ("whole", np.int64),  # the term with all conditions; -1 if there is none
            ],
        )

    def _corrections(
        self, guides: NDArray[Any], terms: Places, lanes: Sequence[Places]
    ) -> tuple[Correction | None, Correction | None]:
        """The projection and the rescaling of the lanes with several terms; None where no lane needs it."""
        guided, count = terms > 1, len(terms)
        project, share = guides["projection"] & guided, np.where(guided, guides["rescale"], 0.0)
        if not (project.any() or share.any()):
            return None, None
        begin = np.cumsum([count, *map(len, lanes)])
        row_of = np.arange(count)  # the row with all conditions of each lane: that of its last term, or a further one
        for term, rows in enumerate(lanes):
            mine = guides["whole"][rows] == term
            row_of[rows[mine]] = begin[term] + np.flatnonzero(mine)
        lane_of = np.concatenate((np.arange(count), *lanes))
        rows = np.flatnonzero(project[lane_of] & (row_of[lane_of] != np.arange(len(lane_of))))
        states = np.flatnonzero(share)

        def at(rows: Places, states: Places, share: NDArray[np.float64] | None = None) -> Correction | None:
            tensors = [torch.from_numpy(array).to(self._device) for array in (rows, row_of[states])]
            last = None if share is None else torch.from_numpy(share).to(self._device)
            return Correction(tensors[0], tensors[1], last) if len(rows) else None

        return at(rows, lane_of[rows]), at(states, states, share[states])
