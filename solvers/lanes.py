"""Lanes: many independent trajectories, one vectorised tick for all of them.

One tick is `query` (where is the network asked?), the caller's single network call, and `absorb`. The states (x, K) lie
on the device, the lanes' records (times, step sizes, counters) in the host's memory. No Python runs for a single lane
or request: a tick costs a constant number of calls, whatever is in it.
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

from solvers import clocks
from solvers.bank import Bank
from solvers.clocks import Index, Numbers, Records
from solvers.device import DeviceStates
from solvers.errors import CODES, RUNNING, Status
from solvers.fields import LANE, plain
from solvers.host import HostStates
from solvers.plan import Plan
from solvers.records import Admission, Finished, Saved, checked
from solvers.rows import END_FIXED, MID
from solvers.saving import save_grid, save_start
from solvers.states import SMALLEST_ROOM, Limits, Runner, States
from solvers.stepping import end_rows
from solvers.trace import StepLog

SLOTS = 7
"""How many velocities a lane keeps: enough for every method of the catalogue."""

_OF_PLANS = 1 << MID | 1 << END_FIXED
"""Kinds of rows that `States.receive` deals with by itself."""

_ALL_KINDS = (1 << 32) - 1


@dataclass
class _Ticket:
    """One admission: what it holds in the bank, and how many of its lanes still run."""

    solve: Plan
    save_at: NDArray[np.float64] | None
    lanes: int


@dataclass
class Lanes:
    """All lanes of one velocity field.

    Args:
        event_shape: shape of one state.
        dtype: of the state.
        device: where the states lie.
        slots: S, how many velocities are kept; unused ones never change a bit of the result.
        compiled: whether states are worked on by compiled loops or by tensor operations; by default the former where
            they lie in the host's memory as float32 or float64.
    """

    event_shape: tuple[int, ...]
    dtype: torch.dtype = torch.float32
    device: torch.device | str = "cpu"
    slots: int = SLOTS
    compiled: bool | None = None

    records: Records = field(init=False)
    states: States = field(init=False)

    def __post_init__(self) -> None:
        self.width = prod(self.event_shape)
        self._flat = self.event_shape == (self.width,)  # a tick then needs no views, each of which takes microseconds
        self.bank = Bank(self.slots)
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
        self.states = kind(self.width, self.slots, self.dtype, self.device)

    def __len__(self) -> int:
        """Running lanes."""
        return len(self.records)

    @property
    def owner(self) -> Index:
        """(n,) whose each lane is."""
        return self.records["owner"].copy()

    @property
    def index(self) -> Index:
        """(n,) which of its owner's samples each lane is."""
        return self.records["index"].copy()

    def admit(self, admissions: Sequence[Admission]) -> None:
        """Start trajectories; they take part from the next tick on.

        Where this raises, for want of memory, none has started and nothing has changed: try again with less.
        """
        admissions = [admission for admission in admissions if len(admission.x0)]
        if not admissions:
            return
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
                saved += save_start(self, admission, records)
            self.states.admit([admission.x0 for admission in admissions])
            undo.pop_all()
        self.records = self._room[:after]
        self._tickets |= tickets
        self._next_ticket += len(tickets)
        self.saving += sum(ticket.save_at is not None for ticket in tickets.values())
        self.saved += saved

    def _write(self, admission: Admission, records: Records, ticket: int, undo: ExitStack) -> _Ticket:
        """Write the records of an admission, and hold what it needs, until `undo` gives that back."""
        solve, n = admission.solve, len(admission.x0)
        one = np.zeros((), dtype=LANE)
        one["row"], first_time = self.bank.hold(solve)
        undo.callback(self.bank.release, solve)
        start, end = solve.t_span
        one["t"], one["t_end"], one["span"] = start, end, abs(end - start)
        one["ticket"], one["owner"] = ticket, admission.owner
        one["group"], one["log"], one["status"] = -1, -1, RUNNING
        if solve.times is not None:
            one["first"], one["step"], one["last"] = first_time, first_time + 1, first_time + len(solve.times) - 1
            one["t_next"], one["h"] = solve.times[1], solve.times[1] - start
        else:
            spec, control = solve.spec, solve.control
            assert control is not None  # noqa: S101  (there is no grid)
            one["rtol"], one["atol"], one["q"] = spec.rtol, spec.atol, solve.q
            one["alpha"], one["beta"], one["before"] = control.alpha, control.beta, 1.0
            one["step"] = 1  # as a plan's lane that has completed no step of its grid
            one["h"] = np.copysign(spec.first_step or 0.0, end - start)
            one["max_nfe"] = spec.max_nfe
            one["max_step"], one["wary"] = spec.max_step or np.inf, np.inf
            one["attempt"] = attempt = solve.attempt_nfe
            if (1 if spec.first_step else 2) + attempt > spec.max_nfe:
                one["status"] = CODES[Status.MAX_NFE]
            if solve.batch:
                one["group"] = ticket
        if admission.save_at is not None:
            one["save"] = one["save_first"] = first = self.bank.hold_times(admission.save_at)
            undo.callback(self.bank.release_times, admission.save_at)
            one["save_end"] = first + len(admission.save_at)
        plain(records)[:] = plain(one[None])
        records["index"] = np.arange(admission.first_index, admission.first_index + n)
        if solve.adaptive:
            records["log"] = places = self.log.open(n)
            undo.callback(self.log.free, places)
        return _Ticket(solve, admission.save_at, n)

    def query(self) -> tuple[Tensor, Tensor]:
        """Where the network is asked in this tick.

        Returns:
            x (n, *event) and t (n,), both in the state's dtype; t is never outside a lane's span. The caller may do
            with them what it likes.
        """
        x, t = self.states.query(self.records, self.bank)
        return (x, t) if self._flat else (x.view(-1, *self.event_shape), t)

    def absorb(self, v: Tensor) -> Finished | None:
        """Take in the velocities for the last `query` and finish the steps that end with them.

        Args:
            v: (n, *event) in the state's dtype.

        Returns:
            The lanes that ended; None where there are none.

        Raises:
            SolverError: for anything else than such a tensor; nothing has changed then.
        """
        kinds, present, ended = self.receive(v)
        return self._finish(kinds, present, ended)

    def receive(self, v: Tensor) -> tuple[Index, int, int]:
        """Take in velocities as `absorb` does, but finish only the steps of plans.

        Returns:
            (n,) what ends for each lane, a bit mask of the kinds that occur, and how many lanes ended.
        """
        n = len(self.records)
        v = checked(v, (n, *self.event_shape), self.dtype, self.states.x.device)
        v = v if self._flat else v.reshape(n, self.width)
        kinds = self._room_for_kinds()
        present, ended = self.states.receive(v, self.records, self.bank, kinds)
        self._save(kinds, present)
        return kinds, present, ended

    def run(self, runner: Runner, calls: int) -> tuple[Finished | None, int]:
        """Have a network run the lanes by itself: `query`, network and `absorb` up to `calls` times in one call.

        It stops early when a lane ends or a step under error control does, so what follows is as after one `absorb`.
        For lanes with `compiled` states.

        Returns:
            The lanes that ended, None where there are none; and how many calls there were.
        """
        until = ~_OF_PLANS & _ALL_KINDS | (1 << END_FIXED if self.saving else 0)
        kinds, limits = self._room_for_kinds(), Limits(calls, until)
        present, ended, done = self.states.run(runner, self.records, self.bank, kinds, limits)
        self._save(kinds, present)
        return self._finish(kinds, present, ended), done

    def _room_for_kinds(self) -> Index:
        if len(self._kinds) != len(self.records):
            self._kinds = np.empty(len(self.records), dtype=np.int64)
        return self._kinds

    def _save(self, kinds: Index, present: int) -> None:
        """Save the states of plans that a step has brought to a save time."""
        if self.saving and present >> END_FIXED & 1:
            save_grid(self, clocks.of_kind(kinds, END_FIXED))

    def _finish(self, kinds: Index, present: int, ended: int) -> Finished | None:
        """End what steps under error control end with this call; the lanes that ended."""
        if present & ~_OF_PLANS:
            ended += end_rows(self, kinds, present)
        return self.collect() if ended else None

    def stop(self, owner: int, status: Status) -> None:
        """End all lanes of an owner; `collect` gives them back."""
        self.records["status"][self.records["owner"] == owner] = CODES[status]

    def collect(self) -> Finished | None:
        """Take the ended lanes out and close the gaps."""
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
        """The share of its span that the slowest lane has behind it, 1 where none runs."""
        return float(self.shares().min()) if len(self) else 1.0

    def shares(self) -> Numbers:
        """(n,) the share of its span that each lane has behind it."""
        return 1.0 - np.abs(self.records["t_end"] - self.records["t"]) / self.records["span"]
