"""Lanes: many independent trajectories, one vectorised tick for all of them.

One tick is `query` (where to evaluate the network), the caller's single network call, and `absorb`. No Python code runs
per lane or request: a tick costs a constant number of calls, whatever is in it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from math import prod

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from solvers import catalogue, clocks
from solvers.bank import Bank
from solvers.compiled import Index, Numbers, Records
from solvers.errors import CODES, Status
from solvers.kernels_cpu import HostStates
from solvers.kernels_torch import DeviceStates
from solvers.plan import END_ADAPTIVE, END_FIXED, FIRST_SLOPE, FIRST_STEP, MID, Plan
from solvers.saving import Saved, save, save_grid, save_passed
from solvers.state import LANE, SMALLEST_ROOM, Attempts, Limits, Runner, States, checked, first_record, plain
from solvers.trace import StepLog

_ON_GRIDS = 1 << MID | 1 << END_FIXED
"""Kinds of rows that `States.receive` handles by itself."""

UNDER_CONTROL = (FIRST_SLOPE, FIRST_STEP, END_ADAPTIVE)
"""Kinds of rows after which error control makes a decision."""

_ALL_KINDS = (1 << 32) - 1


@dataclass(frozen=True)
class Admission:
    """Trajectories to start together.

    Attributes:
        solve: the plan they follow.
        x0: (n, *event) starting states; copied.
        owner: an integer chosen by the caller, returned with them when they end.
        first_index: the first one's index within its owner's samples; the others count up from it.
        save_at: (M,) float64 times to save the state at, in the direction of the span, or None.
    """

    solve: Plan
    x0: Tensor
    owner: int = 0
    first_index: int = 0
    save_at: NDArray[np.float64] | None = None


@dataclass(frozen=True)
class Finished:
    """Lanes that ended, in lane order.

    Attributes:
        owner, index: (n,) the owner of each lane, and its index within its owner's samples.
        x: (n, *event) states reached: the last finite one for a lane that failed.
        t: (n,) float64 times reached.
        nfe: (n,) calls.
        status: (n,) codes, see `errors.status_of`.
        attempts: (n,) number of attempted steps of each lane in `steps` (0 on a grid, which is then the trace).
        steps: (sum, 5) t, h, error, accepted, stiffness of those, lane by lane.
        grid_steps: (n,) steps that a lane on a grid completed; 0 under error control.
    """

    owner: NDArray[np.int64]
    index: NDArray[np.int64]
    x: Tensor
    t: NDArray[np.float64]
    nfe: NDArray[np.int64]
    status: NDArray[np.int64]
    attempts: NDArray[np.int64]
    steps: NDArray[np.float64]
    grid_steps: NDArray[np.int64]


@dataclass
class _Ticket:
    """One admission: what it holds in the bank, and how many of its lanes are still running."""

    solve: Plan
    save_at: NDArray[np.float64] | None
    lanes: int


@dataclass
class Lanes:
    """All lanes of one velocity field.

    Args:
        event_shape: shape of one state.
        dtype: dtype of the states.
        device: device of the states.
        slots: S, the number of velocities kept per lane; by default enough for every solver of the catalogue. A plan
            that needs more, of a method registered later, widens it. Unused slots never change a bit of the result.
        step_ends: whether the network receives, besides the time of a row, where its lane's step ends; only on grids.
        compiled: use compiled loops (`kernels_cpu`) instead of tensor operations (`kernels_torch`); the default for
            float32 and float64 on the CPU.
    """

    event_shape: tuple[int, ...]
    dtype: torch.dtype = torch.float32
    device: torch.device | str = "cpu"
    slots: int | None = None
    compiled: bool | None = None
    step_ends: bool = False

    records: Records = field(init=False)
    states: States = field(init=False)

    def __post_init__(self) -> None:
        self.width = prod(self.event_shape)
        self._flat = self.event_shape == (self.width,)  # then a tick needs no views, which take microseconds each
        slots = catalogue.slots() if self.slots is None else self.slots
        self.bank = Bank(slots)
        self.log = StepLog()
        self.saved: list[Saved] = []
        self.saving = 0  # admissions with save times
        self._tickets: dict[int, _Ticket] = {}
        self._next_ticket = 0
        self._room = np.zeros(0, dtype=LANE)
        self.records = self._room[:0]
        self._kinds = np.zeros(0, dtype=np.int64)
        if self.compiled is None:
            on_host = torch.device(self.device).type == "cpu"
            self.compiled = on_host and self.dtype in (torch.float32, torch.float64)
        kind = HostStates if self.compiled else DeviceStates
        self.states = kind(self.width, slots, self.dtype, self.device)

    def __len__(self) -> int:
        """Running lanes."""
        return len(self.records)

    @property
    def owner(self) -> Index:
        """(n,) owning job of each lane."""
        return self.records["owner"].copy()

    @property
    def index(self) -> Index:
        """(n,) index of each lane within its owner's samples."""
        return self.records["index"].copy()

    def admit(self, admissions: Sequence[Admission]) -> None:
        """Start trajectories; they take part from the next tick on.

        If memory runs out, none has started and nothing has changed; try again with fewer.
        """
        admissions = [admission for admission in admissions if len(admission.x0)]
        if not admissions:
            return
        self._widen(max(admission.solve.rows.slots for admission in admissions))
        before, after = len(self), len(self) + sum(len(admission.x0) for admission in admissions)
        if after > len(self._room):
            room = np.zeros(max(2 * before, after, SMALLEST_ROOM), dtype=LANE)
            plain(room)[:before] = plain(self.records)
            self._room, self.records = room, room[:before]
        tickets: dict[int, _Ticket] = {}
        saved: list[Saved] = []
        with ExitStack() as undo:
            last = before
            for admission in admissions:
                first, last = last, last + len(admission.x0)
                records, number = self._room[first:last], self._next_ticket + len(tickets)
                tickets[number] = self._write(admission, records, number, undo)
                times = admission.save_at
                if times is not None and len(times) and times[0] == admission.solve.t_span[0]:
                    saved.append(save(records, np.arange(len(records)), self.states.start_of(admission.x0)))
            self.states.admit([(admission.x0, admission.solve.rows.origin) for admission in admissions])
            undo.pop_all()
        self.records = self._room[:after]
        self._tickets |= tickets
        self._next_ticket += len(tickets)
        self.saving += sum(ticket.save_at is not None for ticket in tickets.values())
        self.saved += saved

    def _widen(self, slots: int) -> None:
        if slots > self.bank.slots:
            self.states.widen(slots)
            self.bank.widen(slots)

    def _write(self, admission: Admission, records: Records, ticket: int, undo: ExitStack) -> _Ticket:
        """Write the records of an admission and hold what it needs; `undo` releases it."""
        plan, n = admission.solve, len(admission.x0)
        first_row, first_time = self.bank.hold(plan)
        undo.callback(self.bank.release, plan)
        one = first_record(plan, first_row, first_time)
        one["ticket"], one["owner"] = ticket, admission.owner
        if plan.batch:
            one["group"] = ticket
        if admission.save_at is not None:
            one["save"] = one["save_first"] = first = self.bank.hold_times(admission.save_at)
            undo.callback(self.bank.release_times, admission.save_at)
            one["save_end"] = first + len(admission.save_at)
        plain(records)[:] = plain(one[None])
        records["index"] = np.arange(admission.first_index, admission.first_index + n)
        if plan.adaptive:
            records["log"] = places = self.log.open(n)
            undo.callback(self.log.free, places)
        return _Ticket(plan, admission.save_at, n)

    def query(self) -> tuple[Tensor, Tensor]:
        """Return the states and times at which to evaluate the network in this tick.

        Returns:
            x (n, *event) and t (n,), both in the state's dtype; t is never outside a lane's span. With `step_ends`, t
            is (n, 2): the time, and the end of the lane's step. The caller may modify both.
        """
        x, t = self.states.query(self.records, self.bank)
        if self.step_ends:
            ends = torch.from_numpy(self.records["t_next"].copy())
            t = torch.stack((t, ends.to(t.device, t.dtype)), dim=1)
        return (x, t) if self._flat else (x.view(-1, *self.event_shape), t)

    def absorb(self, v: Tensor) -> Finished | None:
        """Take in the velocities for the last `query` and finish the steps that they complete.

        Args:
            v: (n, *event) in the state's dtype.

        Returns:
            The lanes that ended; None if there are none.

        Raises:
            SolverError: `v` has another shape, dtype or device; the lanes are unchanged.
        """
        kinds, present, ended = self.receive(v)
        return self._finish(kinds, present, ended)

    def receive(self, v: Tensor) -> tuple[Index, int, int]:
        """Take in velocities as `absorb` does, but finish only steps on grids.

        Returns:
            (n,) kind of the row that each lane has just done, a bit mask of these kinds, and how many lanes ended.
        """
        n = len(self.records)
        v = checked(v, (n, *self.event_shape), self.dtype, self.states.x.device)
        v = v if self._flat else v.reshape(n, self.width)
        kinds = self._room_for_kinds()
        present, ended = self.states.receive(v, self.records, self.bank, kinds)
        self._save(kinds, present)
        return kinds, present, ended

    def run(self, runner: Runner, calls: int, more: int = 0) -> tuple[Finished | None, int]:
        """Let a network run the lanes: `query`, network and `absorb` up to `calls` times in one call.

        Once a lane has ended, it stops after at most `more` calls for the others; if states are being saved, also when
        a step ends. Only for `compiled` lanes.

        Returns:
            The lanes that ended, or None, and the number of calls.
        """
        until = ~(1 << MID) & _ALL_KINDS if self.saving else 0
        kinds, limits = self._room_for_kinds(), Limits(calls, until, more)
        present, ended, done, full = self.states.run(runner, self.records, self.bank, self.log, kinds, limits)
        if full:
            self.log.move_full(self.records)
        self._save(kinds, present)
        return self._finish(kinds, present, ended), done

    def _room_for_kinds(self) -> Index:
        if len(self._kinds) != len(self.records):
            self._kinds = np.empty(len(self.records), dtype=np.int64)
        return self._kinds

    def _save(self, kinds: Index, present: int) -> None:
        """Save the states of lanes on grids that have just reached a save time."""
        if self.saving and present >> END_FIXED & 1:
            self.saved += save_grid(self.records, self.states, self.bank, clocks.of_kind(kinds, END_FIXED))

    def _finish(self, kinds: Index, present: int, ended: int) -> Finished | None:
        """Complete the steps under error control that end with this call; return the lanes that ended."""
        if present & ~_ON_GRIDS:
            for kind in UNDER_CONTROL:
                if present >> kind & 1:
                    index = clocks.of_kind(kinds, kind)
                    sums, found = self.measure(kind, index)
                    norms = [self._norms(index, each, kind == END_ADAPTIVE) for each in sums]
                    ended += self.decide(kind, index, found, norms)
        return self.collect() if ended else None

    def _norms(self, index: Index, sums: Numbers, errors: bool) -> Numbers:
        return clocks.norms(self.records, index, sums, self.width, errors)

    def measure(self, kind: int, index: Index) -> tuple[Sequence[Numbers], Attempts | None]:
        """Measure lanes `index` (m,) at the end of a row of this kind, for error control.

        Returns:
            Sums of squares (m,), from which the norms for `decide` follow, and the attempted steps, if any.
        """
        if kind == FIRST_SLOPE:
            return self.states.slopes(index, self.records), None
        if kind == FIRST_STEP:
            return (self.states.change(index, self.records),), None
        found = self.states.attempt(index, self.records, self.bank)
        return (found.sums,), found

    def decide(self, kind: int, index: Index, found: Attempts | None, norms: Sequence[Numbers]) -> int:
        """Choose the first step, or accept or reject an attempt and choose the next one.

        Args:
            kind: kind of the row that ended.
            index: (m,) the lanes.
            found: their attempts, if `measure` returned any.
            norms: root mean squares (m,) of the scaled values; infinite for an attempt that is not finite.

        Returns:
            How many lanes ended.
        """
        records, bank, states = self.records, self.bank, self.states
        if kind == FIRST_SLOPE:
            return clocks.first_slope(records, index, norms[0], norms[1], bank.rows)
        if kind == FIRST_STEP:
            states.wipe(index[~np.isfinite(norms[0])])
            return clocks.end_first_step(records, index, norms[0], bank.rows)
        assert found is not None  # noqa: S101  (an attempt ended)
        error = norms[0]
        self.log.record(records, index, error, found.rho)
        if self.saving:
            passed = error <= 1
            after = found.after[torch.from_numpy(passed).to(found.after.device)]
            self.saved += save_passed(records, states, bank, index[passed], after)
        accepted = np.empty(len(index), dtype=np.bool_)
        ended = clocks.end_adaptive(records, index, error, bank.rows, accepted)
        states.settle(index, found.after, accepted, records, bank)
        return ended

    def stop(self, owner: int, status: Status) -> None:
        """End all lanes of an owner; `collect` returns them."""
        self.records["status"][self.records["owner"] == owner] = CODES[status]

    def collect(self) -> Finished | None:
        """Remove and return the ended lanes."""
        gone, stay = clocks.ended(self.records)
        if not len(gone):
            return None
        out = clocks.take_out(plain(self.records), gone, stay).view(LANE)[:, 0]
        self.records = self._room[: len(stay)]
        x = self.states.take(gone, stay)
        if not self._flat:
            x = x.reshape(-1, *self.event_shape)
        attempts, steps = self.log.close(out)
        grid_steps = out["step"] - out["first"] - 1
        for number, lanes in Counter(out["ticket"].tolist()).items():
            self._leave(number, lanes)
        return Finished(out["owner"], out["index"], x, out["t"], out["nfe"], out["status"], attempts, steps, grid_steps)

    def _leave(self, number: int, lanes: int) -> None:
        ticket = self._tickets[number]
        ticket.lanes -= lanes
        if ticket.lanes == 0:
            self.bank.release(ticket.solve)
            if ticket.save_at is not None:
                self.saving -= 1
                self.bank.release_times(ticket.save_at)
            del self._tickets[number]

    def take_saved(self) -> list[Saved]:
        """The states saved since the last call."""
        saved, self.saved = self.saved, []
        return saved

    def progress(self) -> float:
        """The share of its span that the slowest lane has covered; 1 if none is running."""
        return float(self.shares().min()) if len(self) else 1.0

    def shares(self) -> Numbers:
        """(n,) the share of its span that each lane has covered."""
        return 1.0 - np.abs(self.records["t_end"] - self.records["t"]) / self.records["span"]
