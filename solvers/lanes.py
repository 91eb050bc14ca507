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
from solvers.plan import CONTROLLED, END_FIXED, Plan, Rows
from solvers.saving import SavedStates, save, save_grid, save_passed
from solvers.state import LANE, SMALLEST_ROOM, Runner, States, checked, first_record, plain
from solvers.trace import StepLog


@dataclass(frozen=True)
class Admission:
    """Trajectories to start together.

    Attributes:
        plan: the plan they follow.
        x0: (n, *event) starting states; copied.
        owner: an integer chosen by the caller, returned with them when they end.
        first_index: the first one's index within its owner's samples; the others count up from it.
        save_at: (M,) float64 times to save the state at, in the direction of the span, or None.
        seed, first_sample: choose the noise of stochastic paths, see `draws`: the seed, and the index of the first one
            in its stream.
        known: (n, *event) or (1, *event) known values that replace numbers on the way, NaN where nothing is known (see
            `known_values`); None for none. The plan then goes forwards, from before t = 1.
    """

    plan: Plan
    x0: Tensor
    owner: int = 0
    first_index: int = 0
    save_at: NDArray[np.float64] | None = None
    seed: int = 0
    first_sample: int = 0
    known: Tensor | None = None


@dataclass(frozen=True)
class Finished:
    """Lanes that ended, in lane order.

    Attributes:
        owner, index: (n,) the owner of each lane, and its index within its owner's samples.
        x: (n, *event) states reached: the last finite one for a lane that failed.
        t: (n,) float64 times reached.
        nfe: (n,) calls.
        status: (n,) codes, see `errors.CODES`.
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
    """Lanes of one plan, admitted together.

    Attributes:
        plan: the plan.
        items: what they hold in the bank.
        words: their first record.
        saves: whether they have save times.
        lanes: how many are still running.
    """

    plan: Plan
    items: list[Rows | NDArray[np.float64]]
    words: NDArray[np.int64]
    saves: bool
    lanes: int = 0


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
        order: (D,) the place in a state of each number of the noise of a step; None for the same order.
        compiled: use compiled loops (`kernels_cpu`) instead of tensor operations (`kernels_torch`); the default for
            float32 and float64 on the CPU.
    """

    event_shape: tuple[int, ...]
    dtype: torch.dtype = torch.float32
    device: torch.device | str = "cpu"
    slots: int | None = None
    compiled: bool | None = None
    step_ends: bool = False
    order: Index | None = None

    records: Records = field(init=False)
    states: States = field(init=False)

    def __post_init__(self) -> None:
        self.width = prod(self.event_shape)
        self._flat = self.event_shape == (self.width,)  # then a tick needs no views, which take microseconds each
        slots = catalogue.slots() if self.slots is None else self.slots
        self.bank = Bank(slots)
        self.log = StepLog()
        self.saved: list[SavedStates] = []
        self.saving = 0  # admissions with save times
        self._tickets: dict[int, _Ticket] = {}
        self._next_ticket = 0
        self._set_room(np.zeros(0, dtype=LANE), 0)
        self._kinds = np.zeros(0, dtype=np.int64)
        if self.compiled is None:
            on_host = torch.device(self.device).type == "cpu"
            self.compiled = on_host and self.dtype in (torch.float32, torch.float64)
        kind = HostStates if self.compiled else DeviceStates
        self.states = kind(self.width, slots, self.dtype, self.device, self.order)

    def __len__(self) -> int:
        """Running lanes."""
        return len(self.records)

    def admit(self, admissions: Sequence[Admission]) -> None:
        """Start trajectories; they take part from the next tick on.

        If memory runs out, none has started and nothing has changed; try again with fewer.
        """
        admissions = [admission for admission in admissions if admission.x0.shape[0]]
        if not admissions:
            return
        slots = max([admission.plan.rows.slots for admission in admissions])
        if slots > self.bank.slots:
            self.states.widen(slots)
            self.bank.widen(slots)
        before = len(self.records)
        after = before + sum([admission.x0.shape[0] for admission in admissions])
        if after > len(self._room):
            words = self._words
            self._set_room(np.zeros(max(2 * before, after, SMALLEST_ROOM), dtype=LANE), before)
            self._words[:before] = words[:before]
        words, owners, indices = self._words, self._room["owner"], self._room["index"]
        tickets, saved = list[_Ticket](), list[SavedStates]()
        with ExitStack() as undo:
            last = before
            for admission in admissions:
                first, last = last, last + admission.x0.shape[0]
                plan, times = admission.plan, admission.save_at
                alone = plan.batch or times is not None
                if alone or not tickets or tickets[-1].plan is not plan or tickets[-1].saves:
                    tickets.append(self._ticket(admission, self._next_ticket + len(tickets), undo))
                tickets[-1].lanes += last - first
                words[first:last] = tickets[-1].words
                owners[first:last] = admission.owner
                indices[first:last] = np.arange(admission.first_index, admission.first_index + last - first)
                if plan.rows.noisy:
                    noisy = self._room[first:last]
                    noisy["seed"], noisy["sample"] = admission.seed, admission.first_sample + np.arange(last - first)
                if admission.known is not None:
                    start, known, t = admission.x0, admission.known, plan.t_span[0]
                    self._room["pin"][first:last] = places = self.states.pin(start, known, t)
                    undo.callback(self.states.unpin, places)
                if plan.times is None:
                    self._room["log"][first:last] = places = self.log.open(last - first)
                    undo.callback(self.log.free, places)
                if times is not None and len(times) and times[0] == plan.t_span[0]:
                    start = self.states.start_of(admission.x0)
                    saved.append(save(self._room[first:last], np.arange(last - first), start))
            self.states.admit([(admission.x0, admission.plan.rows.origin) for admission in admissions])
            undo.pop_all()
        self.records = self._room[:after]
        for ticket in tickets:
            self._tickets[self._next_ticket] = ticket
            self._next_ticket += 1
            self.saving += ticket.saves
        self.saved += saved

    def _set_room(self, room: Records, lanes: int) -> None:
        self._room, self._words, self.records = room, plain(room), room[:lanes]

    def _ticket(self, admission: Admission, number: int, undo: ExitStack) -> _Ticket:
        """Hold in the bank what an admission needs; `undo` releases it."""
        plan, times = admission.plan, admission.save_at
        items = [item for item in (plan.rows, plan.times, times) if item is not None]
        firsts = list[int]()
        for item in items:
            firsts.append(self.bank.hold(item))
            undo.callback(self.bank.release, item)
        one = first_record(plan, firsts[0], firsts[1] if plan.times is not None else 0)
        one["ticket"] = number
        if plan.batch:
            one["group"] = number
        if times is not None:
            one["save"] = one["save_first"] = firsts[-1]
            one["save_end"] = firsts[-1] + len(times)
        return _Ticket(plan, items, plain(one[None]), times is not None)

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
        n = len(self.records)
        v = checked(v, (n, *self.event_shape), self.dtype, self.states.x.device)
        kinds = self._room_for_kinds()
        v = v if self._flat else v.reshape(n, self.width)
        present, ended = self.states.receive(v, self.records, self.bank, kinds)
        return self._finish(kinds, present, ended)

    def run(self, runner: Runner, calls: int, more: int = 0) -> tuple[Finished | None, int, int]:
        """Let a network run the lanes: `query`, network and `absorb` up to `calls` times in one call.

        Once a lane has ended, it stops after at most `more` calls for the others; if states are being saved, also when
        a step ends. Only for `compiled` lanes.

        Returns:
            The lanes that ended, or None; the number of calls, and of rows in them.
        """
        until = CONTROLLED | 1 << END_FIXED if self.saving else 0
        if self.states.arrays is None:
            raise TypeError("states on a device have no runner")
        kinds, limits, states = self._room_for_kinds(), (calls, until, more), self.states.arrays
        present, ended, done, rows, full = runner(self.records, *states, self.bank, self.log, kinds, limits)
        if full:
            self.log.move_full(self.records)
        return self._finish(kinds, present, ended), done, rows

    def _room_for_kinds(self) -> Index:
        if len(self._kinds) != len(self.records):
            self._kinds = np.empty(len(self.records), dtype=np.int64)
        return self._kinds

    def _finish(self, kinds: Index, present: int, ended: int) -> Finished | None:
        """Save states of lanes on grids, and complete what ends with this call under error control.

        Args:
            kinds: (n,) kind of the row that each lane has just done.
            present: bit mask of these kinds.
            ended: how many lanes have ended on grids.

        Returns:
            The lanes that ended.
        """
        if self.saving and present >> END_FIXED & 1:
            self.saved += save_grid(self.records, self.states, self.bank, clocks.of_kind(kinds, END_FIXED))
        if present & CONTROLLED:
            records, states, bank = self.records, self.states, self.bank
            index, after, error, decided = states.control(kinds, present, records, bank, self.log)
            if self.saving:
                passed = error <= 1
                ends = torch.as_tensor(after)[torch.from_numpy(passed).to(states.x.device)]
                self.saved += save_passed(records, states, bank, index[passed], ends)
            ended += decided + states.settle(index, after, error, records, bank)
        return self.collect() if ended else None

    def stop(self, owner: int, status: Status) -> None:
        """End all lanes of an owner; `collect` returns them."""
        self.records["status"][self.records["owner"] == owner] = CODES[status]

    def collect(self) -> Finished | None:
        """Remove and return the ended lanes."""
        gone, stay = clocks.ended(self.records)
        if not len(gone):
            return None
        out = clocks.take_out(self._words[: len(gone) + len(stay)], gone, stay).view(LANE)[:, 0]
        self.records = self._room[: len(stay)]
        if len(self.states.pins):
            self.states.unpin(out["pin"][out["pin"] >= 0])
        x = self.states.take(gone, stay)
        if not self._flat:
            x = x.reshape(-1, *self.event_shape)
        attempts, steps = self.log.close(out)
        grid_steps = out["step"] - out["first"] - 1
        for number, lanes in Counter(out["ticket"].tolist()).items():
            ticket = self._tickets[number]
            ticket.lanes -= lanes
            if not ticket.lanes:
                for item in ticket.items:
                    self.bank.release(item)
                self.saving -= ticket.saves
                del self._tickets[number]
        return Finished(out["owner"], out["index"], x, out["t"], out["nfe"], out["status"], attempts, steps, grid_steps)

    def take_saved(self) -> list[SavedStates]:
        """The states saved since the last call."""
        saved, self.saved = self.saved, []
        return saved

    def shares(self) -> Numbers:
        """(n,) the share of its span that each lane has covered."""
        return 1.0 - np.abs(self.records["t_end"] - self.records["t"]) / self.records["span"]
