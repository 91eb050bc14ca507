"""Lanes: many independent trajectories, one vectorised tick for all of them.

One tick is `query` (where is the network asked?), the caller's single network call, and `absorb`. Data (x, K) lie in
tensors on the device; times, step sizes and counters lie in NumPy arrays on the host. Everywhere the last axis counts
the lanes, so that small operations run along it at full width. Nothing loops over lanes or requests: a tick costs a
constant number of small operations.

Each lane's arithmetic is elementwise (see `arithmetic`), so it cannot see its neighbours, not even in the last bit.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import prod

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from solvers.arithmetic import combine, pick, tensor_like
from solvers.bank import Bank
from solvers.errors import CODES, RUNNING, Status
from solvers.fields import F, I
from solvers.plan import Adaptive, Plan
from solvers.records import Admission, Finished, Saved
from solvers.rows import ADAPTIVE_START, MID
from solvers.stepping import end_rows
from solvers.trace import StepLog

SLOTS = 7
"""How many velocities a lane keeps: enough for every method of the catalogue."""


@dataclass
class _Ticket:
    """One admission: what it holds in the bank, and how many of its lanes still run."""

    solve: Plan | Adaptive
    save_at: NDArray[np.float64] | None
    lanes: int


@dataclass
class Lanes:
    """The state of all lanes of one velocity field.

    Args:
        event_shape: shape of one state.
        dtype: of the state.
        device: where x (D, n) and K (D, slots, n) lie.
        slots: S, how many velocities are kept; unused ones never change a bit of the result.
    """

    event_shape: tuple[int, ...]
    dtype: torch.dtype = torch.float32
    device: torch.device | str = "cpu"
    slots: int = SLOTS

    x: Tensor = field(init=False)
    k: Tensor = field(init=False)
    f: NDArray[np.float64] = field(init=False)
    i: NDArray[np.int64] = field(init=False)

    def __post_init__(self) -> None:
        self.width = prod(self.event_shape)
        self.bank = Bank(self.slots)
        self.log = StepLog()
        self.saved: list[Saved] = []
        self.saving = 0  # admissions with save times
        self._common_row: int | None = None
        self._tickets: dict[int, _Ticket] = {}
        self._next_ticket = 0
        self.x = torch.empty((self.width, 0), dtype=self.dtype, device=self.device)
        self.k = torch.empty((self.width, self.slots, 0), dtype=self.dtype, device=self.device)
        self.f = np.zeros((F.ROWS, 0))
        self.i = np.zeros((I.ROWS, 0), dtype=np.int64)

    def __len__(self) -> int:
        """Running lanes."""
        return self.f.shape[1]

    def admit(self, admissions: Sequence[Admission]) -> None:
        """Start trajectories; they take part from the next tick on."""
        admissions = [admission for admission in admissions if len(admission.x0)]
        if not admissions:
            return
        # Adding zero makes -0.0 a +0.0: with that, adding a zero-weighted slot never changes a bit.
        starts = [a.x0.reshape(len(a.x0), self.width).to(self.device, self.dtype).t() + 0.0 for a in admissions]
        fresh = self.k.new_zeros((self.width, self.slots, sum(start.shape[1] for start in starts)))
        # What may want more memory than there is comes first: nothing has changed if it fails.
        x, k = torch.cat([self.x, *starts], dim=1), torch.cat([self.k, fresh], dim=2)
        columns = [self._columns(admission) for admission in admissions]
        self.f = np.concatenate([self.f, *(f for f, _ in columns)], axis=1)
        self.i = np.concatenate([self.i, *(i for _, i in columns)], axis=1)
        self.x, self.k = x, k
        self._find_common_row()

    def _columns(self, admission: Admission) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
        solve, n = admission.solve, len(admission.x0)
        ticket, self._next_ticket = self._next_ticket, self._next_ticket + 1
        self._tickets[ticket] = _Ticket(solve, admission.save_at, n)
        first_row, first_time = self.bank.hold(solve)
        f, i = np.zeros((F.ROWS, n)), np.zeros((I.ROWS, n), dtype=np.int64)
        start, end = solve.t_span
        f[F.T], f[F.T_END] = start, end
        f[F.SPAN] = abs(end - start)
        i[I.ROW], i[I.TICKET], i[I.OWNER] = first_row, ticket, admission.owner
        i[I.INDEX] = admission.first_index + np.arange(n)
        i[I.GROUP], i[I.LOG], i[I.STATUS] = -1, -1, RUNNING
        if isinstance(solve, Plan):
            i[I.STEP], i[I.LAST] = first_time + 1, first_time + len(solve.times) - 1
            i[I.FIRST] = first_time
            f[F.T_NEXT] = solve.times[1]
            f[F.H] = solve.times[1] - start
        else:
            f[F.RTOL], f[F.ATOL], f[F.Q] = solve.rtol, solve.atol, solve.q
            f[F.ALPHA], f[F.BETA], f[F.BEFORE] = solve.controller.alpha, solve.controller.beta, 1.0
            f[F.H] = np.copysign(solve.first_step or 0.0, end - start)
            i[I.MAX_NFE] = solve.max_nfe
            attempt = len(solve.rows.c) - ADAPTIVE_START - (not solve.rows.fsal)
            i[I.ATTEMPT] = attempt
            i[I.GROUP] = ticket if solve.batch else -1
            i[I.LOG] = self.log.open(n)
            if (1 if solve.first_step else 2) + attempt > solve.max_nfe:
                i[I.STATUS] = CODES[Status.MAX_NFE]
        if admission.save_at is not None:
            self.saving += 1
            first = self.bank.hold_times(admission.save_at)
            i[I.SAVE], i[I.SAVE_FIRST], i[I.SAVE_END] = first, first, first + len(admission.save_at)
        return f, i

    def query(self) -> tuple[Tensor, Tensor]:
        """Where the network is asked in this tick.

        Returns:
            x (n, *event) and t (n,), both in the state's dtype; t is never outside a lane's span.
        """
        bank, f, row = self.bank, self.f, self._common_row
        h = f[F.H]
        # Nodes lie in [0, 1], and t + c h with c < 1 cannot round past the step's end.
        if row is None:
            rows = self.i[I.ROW]
            c = bank.c.take(rows)
            t = np.where(c == 1.0, f[F.T_NEXT], f[F.T] + c * h)
            used = int(bank.used.take(rows).max())
            weights = bank.weights[0, :used].take(rows, axis=1)
        else:
            c, used = bank.c[row], bank.used[row]
            t = f[F.T] if c == 0.0 else f[F.T_NEXT] if c == 1.0 else f[F.T] + c * h
            weights = bank.weights[0, :used, row, None]
        # A fresh tensor in any case: the caller may do with it what it likes.
        if used:
            x = (self.x + combine(weights * h, self.k)).t().contiguous()
        else:
            x = self.x.t().clone(memory_format=torch.contiguous_format)
        return x.view(-1, *self.event_shape), tensor_like(np.array(t), x)

    def absorb(self, v: Tensor) -> Finished | None:
        """Take in the velocities for the last `query` and finish the steps that end with them.

        Args:
            v: (n, *event) in the state's dtype.

        Returns:
            The lanes that ended; None where there are none.
        """
        n, bank, row = len(self), self.bank, self._common_row
        self.i[I.NFE] += 1
        v = v.reshape(n, self.width).t()
        if row is not None:
            self.k[:, bank.slot[row]].copy_(v)
            self.i[I.ROW] = self._common_row = int(bank.next[row])
            if bank.kind[row] == MID:
                return None
            rows = np.full(n, row)
        else:
            rows = self.i[I.ROW].copy()
            places = torch.from_numpy(bank.slot.take(rows) * n + np.arange(n)).to(self.device)
            self.k.view(self.width, self.slots * n).index_copy_(1, places, v)
            self.i[I.ROW] = bank.next.take(rows)
            if not bank.kind.take(rows).any():
                return None
        end_rows(self, rows, row)
        return self.collect()

    def _find_common_row(self) -> None:
        """Lanes in step share one row, and then nothing needs to be gathered; the arithmetic is the same."""
        rows = self.i[I.ROW]
        self._common_row = int(rows[0]) if len(self) and (rows == rows[0]).all() else None

    def stop(self, owner: int, status: Status) -> None:
        """End all lanes of an owner; `collect` gives them back."""
        self.i[I.STATUS, self.i[I.OWNER] == owner] = CODES[status]

    def collect(self) -> Finished | None:
        """Take the ended lanes out and close the gaps."""
        ended = self.i[I.STATUS] != RUNNING
        if not ended.any():
            self._find_common_row()
            return None
        gone, stay = np.flatnonzero(ended), np.flatnonzero(~ended)
        f, i = self.f[:, gone], self.i[:, gone]
        counts, steps = np.zeros(len(gone), dtype=np.int64), np.zeros((0, 5))
        logged = i[I.LOG] >= 0
        if logged.any():
            counts[logged], steps = self.log.close(i[I.LOG, logged])
        x = pick(self.x, gone).t().reshape(-1, *self.event_shape)
        grid_steps = np.where(logged, 0, i[I.STEP] - i[I.FIRST] - 1)
        self.x, self.k = pick(self.x, stay), pick(self.k, stay)
        self.f, self.i = self.f[:, stay], self.i[:, stay]
        self._find_common_row()
        self._return_tickets(i[I.TICKET])
        return Finished(i[I.OWNER], i[I.INDEX], x, f[F.T], i[I.NFE], i[I.STATUS], counts, steps, grid_steps)

    def _return_tickets(self, tickets: NDArray[np.int64]) -> None:
        for number, lanes in zip(*np.unique(tickets, return_counts=True), strict=True):
            ticket = self._tickets[int(number)]
            ticket.lanes -= int(lanes)
            if ticket.lanes == 0:
                self.bank.release(ticket.solve)
                if ticket.save_at is not None:
                    self.saving -= 1
                    self.bank.release_times(ticket.save_at)
                del self._tickets[int(number)]

    def take_saved(self) -> list[Saved]:
        """The states saved since the last call."""
        saved, self.saved = self.saved, []
        return saved

    def progress(self) -> float:
        """The share of its span that the slowest lane has behind it, 1 where none runs."""
        if not len(self):
            return 1.0
        left = np.abs(self.f[F.T_END] - self.f[F.T]) / self.f[F.SPAN]
        return float(1.0 - left.max())
