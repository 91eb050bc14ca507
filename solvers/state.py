"""The state of lanes: a record for each lane, and the states x and velocities K that kernels work on.

Records (times, step sizes, counters) are in host memory, x and K on the device.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from solvers.bank import Bank
from solvers.compiled import Index, Numbers, Records
from solvers.errors import CODES, RUNNING, SolverError, Status
from solvers.plan import Plan
from solvers.trace import StepLog

LANE = np.dtype(
    [
        # Every call touches the first nine: one cache line, which the network call has evicted.
        ("t", np.float64),  # current time of the lane
        ("h", np.float64),  # the step, signed; 0 until the automatic first step is chosen
        ("t_next", np.float64),  # where the step ends, exactly
        ("row", np.int64),  # next row, absolute in the bank
        ("done", np.int32),  # the row of the last call
        ("pin", np.int32),  # place of its known values, -1 for none
        ("nfe", np.int64),
        ("step", np.int64),  # time of the grid at which the running step ends, absolute in the bank
        ("last", np.int64),  # last time of the grid
        ("status", np.int64),
        ("t_end", np.float64),
        ("span", np.float64),  # length of the whole integration
        ("rtol", np.float64),
        ("atol", np.float64),
        ("q", np.float64),  # order of the error estimate
        ("alpha", np.float64),  # controller
        ("beta", np.float64),
        ("before", np.float64),  # error of the last accepted step
        ("d1", np.float64),  # norm of the first velocity, between the two calls of the automatic first step
        ("max_step", np.float64),  # the longest step, infinite for no bound
        ("wary", np.float64),  # the longest step before t = mark, infinite unless one was rejected on the way there
        ("mark", np.float64),  # where the furthest rejected attempt ended
        ("max_nfe", np.int64),
        ("attempt", np.int32),  # calls that an attempt takes
        ("rejected", np.int16),  # 1 right after a rejection
        ("bad", np.int16),  # non-finite attempts in a row
        ("group", np.int64),  # lanes under one error norm, -1 for a lane on its own
        ("log", np.int32),  # place in the step log, -1 on a grid
        ("first", np.int32),  # first time of the grid
        ("ticket", np.int64),
        ("owner", np.int64),
        ("index", np.int64),
        ("save", np.int64),  # next time to save at, absolute in the bank
        ("save_first", np.int32),
        ("save_end", np.int32),
        ("seed", np.int64),  # these two choose the noise of a stochastic path
        ("sample", np.int64),  # index in the stream of the seed
    ]
)
"""One lane: its clock, tolerances and owner."""


def plain(records: NDArray[Any]) -> NDArray[np.int64]:
    """View records (n,) of `LANE` as words (n, 32), as NumPy copies records field by field."""
    return records.view(np.int64).reshape(len(records), LANE.itemsize // 8)


def first_record(plan: Plan, first_row: int, first_time: int) -> Records:
    """Return the record () of a lane at the start of a plan; its rows and times begin at these indices of the bank."""
    one = np.zeros((), dtype=LANE)
    start, end = plan.t_span
    one["row"] = first_row
    one["t"], one["t_end"], one["span"] = start, end, abs(end - start)
    one["group"], one["log"], one["pin"], one["status"] = -1, -1, -1, RUNNING
    if plan.times is not None:
        one["first"], one["step"], one["last"] = first_time, first_time + 1, first_time + len(plan.times) - 1
        one["t_next"], one["h"] = plan.times[1], plan.times[1] - start
        return one
    spec, control = plan.spec, plan.control
    assert control is not None  # noqa: S101  (there is no grid)
    one["rtol"], one["atol"], one["q"] = spec.rtol, spec.atol, plan.q
    one["alpha"], one["beta"], one["before"] = control.alpha, control.beta, 1.0
    one["step"] = 1  # as for a lane on a grid that has completed no step
    one["h"] = np.copysign(spec.first_step or 0.0, end - start)
    one["max_nfe"], one["attempt"] = spec.max_nfe, plan.attempt_nfe
    one["max_step"], one["wary"] = spec.max_step or np.inf, np.inf
    if (1 if spec.first_step else 2) + plan.attempt_nfe > spec.max_nfe:
        one["status"] = CODES[Status.MAX_NFE]
    return one


Velocity = Callable[[Tensor, Tensor], Tensor]
"""States (rows, *event), times (rows,) -> (rows, *event)."""


def checked(v: object, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Return the velocity if it matches its states.

    Compiled loops read its memory by address, so this is the only guard against reading out of bounds.

    Raises:
        SolverError: it does not match; the message says what was returned and what was expected.
    """
    if isinstance(v, Tensor) and v.shape == shape and v.dtype == dtype and v.device == device:
        return v
    returned = f"{tuple(v.shape)} {v.dtype} on {v.device}" if isinstance(v, Tensor) else type(v).__name__
    raise SolverError(
        "velocity",
        f"the velocity must return a tensor like x, {shape} {dtype} on {device}, but returned {returned}",
    )


def widened(velocity: Velocity, x: Tensor) -> tuple[Velocity, Tensor]:
    """Return a velocity and its states as a solve sums them: in float32 if they are of half precision, else unchanged.

    In half precision, a state of 1 would stand still under steps of 1/1000. The velocity itself is still asked in the
    dtype of x, and must return it.
    """
    dtype = x.dtype
    if dtype in (torch.float32, torch.float64):
        return velocity, x

    def half(state: Tensor, t: Tensor) -> Tensor:
        return checked(velocity(state.to(dtype), t.to(dtype)), tuple(state.shape), dtype, state.device).float()

    return half, x.float()


Data = NDArray[Any]
"""An array of the states' dtype."""

Runner = Callable[
    [Records, Data, Data, Data, Bank, StepLog, Index, tuple[int, int, int]], tuple[int, int, int, int, bool]
]
"""A network that runs lanes: query, network and receive in a loop, within one compiled call, to the same bits.

It takes records (n,), states x (n, D), velocities K (n, S, D), known values (P, 2, D) as in `States`, the bank, the
log of attempts, room for the kinds of rows that the last call ended (n,), and when to stop if lanes are left and no
place of the log is full: the most network calls, at least 1; a bit mask of the kinds of rows after which to return, to
leave them to the caller; and the most calls for the others once a lane has ended.

It returns the kinds of rows that the caller has to handle after the last call, how many lanes ended, how many calls
there were and rows in them, and whether a place of the log is full.
"""

SMALLEST_ROOM = 64
"""The smallest number of lanes to make room for."""

_KEPT_BYTES = 1 << 20
"""Velocities of that many bytes stay allocated when the last lane has ended, so that a lone sample finds them warm."""


class States(ABC):
    """x (n, D) and K (n, S, D) of n lanes; one row per lane.

    Both are the front of larger tensors, so lanes come and go without allocation. Every operation works on each
    lane in an order fixed by the lane alone, so its last bit cannot depend on other lanes.

    Attributes:
        x: (n, D) the states.
        k: (n, S, D) the velocities.
        pins: (P, 2, D) noise x0 and value y of lanes with known values, by their places; y is NaN where it is unknown.
            Known entries of all queries and states are (1 - t) x0 + t y, and those of all velocities y - x0.
        arrays: x (n, D), K (n, S, D) and pins for a `Runner`; None for states that are not in host memory.
        order: (D,) the place in a state of each number of the noise of a step, see `draws.stir`.
    """

    x: Tensor
    k: Tensor
    pins: Tensor
    arrays: tuple[Data, Data, Data] | None = None

    def __init__(
        self, width: int, slots: int, dtype: torch.dtype, device: torch.device | str, order: Index | None = None
    ) -> None:
        self.order = np.zeros(0, dtype=np.int64) if order is None else order
        self._room_x = torch.empty((0, width), dtype=dtype, device=device)
        self._room_k = torch.empty((0, slots, width), dtype=dtype, device=device)
        self._free_pins: list[int] = []
        self._set_pins(torch.empty((0, 2, width), dtype=dtype, device=device))
        self._hold(0)

    @abstractmethod
    def query(self, lanes: Records, bank: Bank) -> tuple[Tensor, Tensor]:
        """Return where to evaluate the network: new tensors x + h sum_s a[s] K[s] (n, D) and t + c h (n,)."""

    @abstractmethod
    def receive(self, v: Tensor, lanes: Records, bank: Bank, kinds: Index) -> tuple[int, int]:
        """Store the velocities v (n, D), move the lanes to their next rows, and complete steps on grids.

        At the end of such a step, x advances by h sum_s b[s] K[s] if the result is finite, see `clocks.end_step`.

        Returns:
            A bit mask of the kinds of rows that occur, see `clocks.next_rows`, and how many lanes ended.
        """

    @abstractmethod
    def control(
        self, kinds: Index, present: int, lanes: Records, bank: Bank, log: StepLog
    ) -> tuple[Index, Any, Numbers, int]:
        """Choose the first steps of lanes whose trial has ended, and evaluate and log the attempts that have ended.

        Args:
            kinds: (n,) the kind of the row that each lane has just done.
            present: bit mask of these.
            lanes, bank, log: records, weights and rows, and the log of attempts.

        Returns:
            (m,) the lanes with an attempt, for `settle`. (m, D) their new states, a tensor or an array of host memory.
            (m,) scaled errors, infinite where a stage or the new state is not finite. How many lanes ended.
        """

    @abstractmethod
    def settle(self, index: Index, after: Any, error: Numbers, lanes: Records, bank: Bank) -> int:
        """Complete attempts: accepted lanes move on, with the last velocity as the first (FSAL); others are wiped.

        Velocities after the first become zeros there: a stale infinity times a zero weight would be NaN.

        Args:
            index, after, error: from `control`.
            lanes, bank: records, weights and rows.

        Returns:
            How many lanes ended.
        """

    def admit(self, starts: Sequence[tuple[Tensor, int]]) -> None:
        """Add lanes with states (m, *event), each with the slot that keeps them or -1.

        If memory runs out, nothing has changed.
        """
        before, after = self._lanes, self._lanes + sum([start.shape[0] for start, _ in starts])
        if after > self._room_x.shape[0]:
            self._grow(max(2 * before, after, SMALLEST_ROOM))
        parts = [self._fitting(start) for start, _ in starts]
        # Adding zero turns -0.0 into +0.0; then adding a zero-weighted slot never changes a bit.
        torch.add(parts[0] if len(parts) == 1 else torch.cat(parts), 0.0, out=self._room_x[before:after])
        self._room_k[before:after] = 0.0
        last = before
        for start, origin in starts:
            first, last = last, last + start.shape[0]
            if origin >= 0:
                self._room_k[first:last, origin] = self._room_x[first:last]
        self._hold(after)

    def pin(self, start: Tensor, known: Tensor, t: float) -> Index:
        """Keep known values of lanes, and return their places (m,).

        Args:
            start: (m, *event) starting states.
            known: (m, *event), or (1, *event) for all of them; NaN where nothing is known.
            t: where they start, below 1: x0 is where the line from the value through the state is at 0.
        """
        lanes, free = start.shape[0], self._free_pins
        if len(free) < lanes:
            size = self.pins.shape[0]
            room = max(2 * size, size + lanes, SMALLEST_ROOM)
            pins = self.pins.new_empty((room, *self.pins.shape[1:]))
            pins[:size] = self.pins
            self._set_pins(pins)
            free.extend(range(room - 1, size - 1, -1))
        places = np.array(free[len(free) - lanes :], dtype=np.int64)
        x, y = self.start_of(start), self.start_of(known).expand(lanes, -1)
        pinned = torch.stack((x if t == 0 else (x - t * y) / (1 - t), y), dim=1)
        self.pins[torch.from_numpy(places).to(pinned.device)] = pinned
        del free[len(free) - lanes :]
        return places

    def unpin(self, places: Index) -> None:
        """Free places of known values; without any left, their memory too."""
        self._free_pins.extend(places.tolist())
        if len(self._free_pins) == self.pins.shape[0]:
            self._free_pins = []
            self._set_pins(self.pins.new_empty((0, *self.pins.shape[1:])))

    def _set_pins(self, pins: Tensor) -> None:
        self.pins = pins

    def start_of(self, start: Tensor) -> Tensor:
        """Return a copy of starting states (m, *event) as lanes store them, (m, D)."""
        return self._fitting(start) + 0.0

    def _fitting(self, start: Tensor) -> Tensor:
        room = self._room_x
        if start.ndim != 2 or start.dtype != room.dtype or start.device != room.device:
            start = start.to(room.device, room.dtype).reshape(start.shape[0], room.shape[1])
        return start

    def take(self, gone: Index, stay: Index) -> Tensor:
        """Remove lanes and return their states."""
        x = self._take_out(gone, stay)
        if not len(stay) and self._room_k.nbytes > _KEPT_BYTES:  # give back the memory of the last peak
            self._room_x, self._room_k = (room.new_empty((0, *room.shape[1:])) for room in (self._room_x, self._room_k))
        self._hold(len(stay))
        return x

    def widen(self, slots: int) -> None:
        """Increase the number of velocities kept for each lane."""
        rooms, old, width = self._room_k.shape
        k = self._room_k.new_zeros((rooms, slots, width))
        k[:, :old] = self._room_k
        self._room_k = k
        self._hold(self._lanes)

    def _grow(self, room: int) -> None:
        """Make room for this many lanes. If memory runs out, nothing has changed."""
        x, k = (old.new_empty((room, *old.shape[1:])) for old in (self._room_x, self._room_k))
        lanes = self._lanes
        x[:lanes], k[:lanes] = self.x, self.k
        self._room_x, self._room_k = x, k
        self._hold(lanes)

    def _hold(self, lanes: int) -> None:
        """Let x and K be the first rows of the rooms, one for each lane."""
        self._lanes, self.x, self.k = lanes, self._room_x[:lanes], self._room_k[:lanes]

    def _take_out(self, gone: Index, stay: Index) -> Tensor:
        """Copies of the states of lanes `gone`; lanes `stay`, ascending, move to the front."""
        x = self.x.index_select(0, torch.from_numpy(gone).to(self.x.device))
        left = torch.from_numpy(stay).to(self.x.device)
        self.x[: len(stay)], self.k[: len(stay)] = self.x.index_select(0, left), self.k.index_select(0, left)
        return x
