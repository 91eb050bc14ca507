"""The arena of one model: its lanes and its network. With `device.py`, all that touches the device."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from models.checkpoint import Checkpoint
from models.condition import LabelCondition, VectorCondition
from models.guidance import Guided
from models.noise import noise, noise_of
from models.velocity import RowStable
from service.engine.conditions import Conditions
from service.engine.device import Device
from service.engine.job import Job
from service.engine.operation import Operation, derived_field
from service.engine.pace import Pace
from service.engine.tables import Table
from solvers import warm_up
from solvers.errors import Status
from solvers.lanes import Lanes
from solvers.records import Admission, Finished, Saved

TICK_S = 0.05
"""A network call of a full arena takes about this long at most."""

_SMALLEST_BUDGET, _LARGEST_BUDGET = 64, 8192
_SMALLEST_DERIVED_BUDGET, _DERIVED_ROWS_AT_ONCE = 4, 128  # a derivative of one row of a UNet takes milliseconds
_EARLY = 0.05
"""Share of its span from which on a lane's calls tell how many it will take."""


class Arena:
    """Lanes of one operation of a model version, in groups (by priority) of which any may take part in a tick.

    Attributes:
        checkpoint: the model version.
        operation: what is computed.
        event_shape: shape of a lane's state.
        deterministic: whether a sample's bits depend on nothing but checkpoint, solver, seed and index.
        budget: lanes that a group holds, as many as fit into a tick.
        lanes: the groups.
        network_s: seconds spent in network calls so far.
        rows: network rows so far, padding included in neither.
        pace: seconds of a tick by rows; begins with those of the network alone.
    """

    def __init__(
        self,
        checkpoint: Checkpoint,
        device: Device,
        groups: Sequence[str] = ("",),
        operation: Operation = Operation.SAMPLE,
    ) -> None:
        """Measure the network: which row buckets agree, and how many rows fit into a tick."""
        card = checkpoint.card
        self.checkpoint, self.operation = checkpoint, operation
        self.device, self.dtype, self.event_shape = device, checkpoint.dtype, tuple(card.event_shape)
        self.network_s, self.rows, self.pace = 0.0, 0, Pace()
        warm_up(self.dtype, device.device)
        with device.scope():
            self._velocity = self._field()
            self._conditional = None if card.condition is None else Guided(self._velocity, card.condition)
            self._conditions = None
            if card.condition is not None:
                self._conditions = Conditions(card.condition, self.dtype, device.device)
            self.deterministic = self._velocity.deterministic
            self.budget = self._measure_budget(card.condition)
        self.lanes = {group: self._empty() for group in groups}

    def _field(self) -> RowStable:
        """What the lanes follow, with rows padded; sets the shape of their states and what rides along with queries."""
        self._constants: Table | None = None
        velocity, card, place = self.checkpoint.velocity, self.checkpoint.card, self.device.device
        field = derived_field(self.operation, velocity, self.event_shape)
        if field is None:
            velocity = self.device.prepare(velocity)
            return RowStable(velocity, self.event_shape, self.dtype, place, condition=card.condition)
        self.event_shape, shape = (field.width,), (field.width + field.constants,)
        if field.constants:
            self._constants = Table(place)
        rows = _DERIVED_ROWS_AT_ONCE
        return RowStable(field, shape, self.dtype, place, rows, card.condition, field.examples(rows, self.dtype))

    def _empty(self) -> Lanes:
        return Lanes(self.event_shape, self.dtype, self.device.device)

    def __len__(self) -> int:
        """Running lanes of all groups."""
        return sum(map(len, self.lanes.values()))

    def _measure_budget(self, condition: LabelCondition | VectorCondition | None) -> int:
        rows = _SMALLEST_BUDGET if self.operation is Operation.SAMPLE else _SMALLEST_DERIVED_BUDGET
        while True:
            x = torch.zeros((rows, *self._velocity.event_shape), dtype=self.dtype, device=self.device.device)
            t = torch.full((rows,), 0.5, dtype=self.dtype, device=self.device.device)
            given = () if condition is None else (condition.examples(rows, self.dtype, self.device.device),)
            took = min(self._timed(x, t, *given) for _ in range(2))
            self.pace.measured(rows, took)
            if 2 * took > TICK_S or rows >= _LARGEST_BUDGET:
                return rows
            rows *= 2

    def _timed(self, *arguments: Tensor) -> float:
        begin = self.device.seconds()
        with torch.inference_mode():
            self._velocity(*arguments)
            self.device.finish()
        return self.device.seconds() - begin

    def start_of(self, job: Job, first: int, count: int) -> Tensor:
        """Starting states of samples first .. first + count - 1 of a job, on the host."""
        if job.x0 is not None:
            return job.x0[first : first + count]
        return noise(job.seed, job.first_index + first, count, self.event_shape, self.dtype)

    def admit(self, granted: Sequence[tuple[int, int, int, Job]], group: str = "") -> Finished | None:
        """Start lanes for (owner, first sample, count, job); some may end at once, for want of max_nfe."""
        with torch.inference_mode(), self.device.scope():
            if self._conditions is not None:
                for owner, _, _, job in granted:
                    self._conditions.add(owner, job)
            for owner, _, _, job in granted:
                if self._constants is not None and owner not in self._constants and job.constants is not None:
                    self._constants.add(owner, job.constants)
            self.lanes[group].admit(self._admissions(granted))
            finished = self.lanes[group].collect()
            return None if finished is None else self._fetched(finished)

    def _admissions(self, granted: Sequence[tuple[int, int, int, Job]]) -> list[Admission]:
        """Starting states on the device: given ones, or noise, which is made for all jobs at once."""
        made = [(job.seed, job.first_index + first, count) for _, first, count, job in granted if job.x0 is None]
        drawn = self.device.send(noise_of(made, self.event_shape, self.dtype))
        admissions, used = [], 0
        for owner, first, count, job in granted:
            if job.x0 is None:
                start, used = drawn[used : used + count], used + count
            else:
                start = self.device.send(job.x0[first : first + count])
            admissions.append(Admission(job.solve, start, owner, first, job.save_at))
        return admissions

    def tick(
        self, groups: Sequence[str] = ("",), go_on: Callable[[], bool] = lambda: False
    ) -> tuple[list[Finished], dict[int, str], int]:
        """One network call for all lanes of some groups, none of which is empty; more while nothing ends.

        Args:
            groups: whose lanes take part.
            go_on: asked after each call in which no lane ended whether there may be another.

        Returns:
            The lanes that ended; for each owner whose rows made the network raise, what it said, its lanes being
            stopped; and how many calls there were.
        """
        chosen, calls = [self.lanes[group] for group in groups], 0
        failed: dict[int, str] = {}
        with torch.inference_mode(), self.device.scope():
            while True:
                calls += 1
                ended = self._call(chosen, failed)
                if ended or failed or not go_on():
                    return [self._fetched(finished) for finished in ended], failed, calls

    def _call(self, chosen: Sequence[Lanes], failed: dict[int, str]) -> list[Finished]:
        if len(chosen) == 1:
            x, t = chosen[0].query()
        else:
            x, t = (torch.cat(parts) for parts in zip(*(lanes.query() for lanes in chosen), strict=True))
        begin = time.perf_counter()
        x = self._completed(x, chosen)
        v = self._evaluate((x, t, *self._given(chosen)), chosen, failed)
        if self._constants is not None:
            v = v[:, : self.event_shape[0]].contiguous()
        self.network_s += time.perf_counter() - begin
        self.rows += len(x)
        parts = (v,) if len(chosen) == 1 else v.split([len(lanes) for lanes in chosen])
        ended = (self._absorbed(*each, failed) for each in zip(chosen, parts, strict=True))
        return [finished for finished in ended if finished is not None]

    @staticmethod
    def _absorbed(lanes: Lanes, v: Tensor, failed: dict[int, str]) -> Finished | None:
        for owner in failed:
            lanes.stop(owner, Status.CANCELLED)
        finished = lanes.absorb(v)
        return lanes.collect() if failed and finished is None else finished

    def forget(self, owner: int) -> None:
        """Let go of what is kept for a job whose lanes are gone."""
        for table in (self._conditions, self._constants):
            if table is not None:
                table.remove(owner)

    def _completed(self, x: Tensor, chosen: Sequence[Lanes]) -> Tensor:
        """Queries with the constants of their lanes; the queries alone where there are none."""
        if self._constants is None:
            return x
        return torch.cat((x, self._constants.of(*_whose(chosen))), dim=1)

    def _given(self, chosen: Sequence[Lanes]) -> tuple[Tensor, ...]:
        """Conditions and guidances of the lanes; nothing for an unconditional model."""
        if self._conditions is None:
            return ()
        condition, guidance = self._conditions.of(*_whose(chosen))
        if guidance is None:
            return (condition,)
        self.rows += int(((guidance != 0) & (guidance != 1)).sum())
        return condition, guidance

    def _ask(self, arguments: Sequence[Tensor]) -> Tensor:
        return self._velocity(*arguments) if self._conditional is None else self._conditional(*arguments)

    def _evaluate(self, arguments: Sequence[Tensor], chosen: Sequence[Lanes], failed: dict[int, str]) -> Tensor:
        try:
            v = self._ask(arguments)
            self.device.finish()
            return v
        except Exception as error:  # (whatever a network raises is its requests' fault alone)
            said = self.said(error)
        # Out of the handler: the exception keeps what failed, and its memory, alive.
        owner = np.concatenate([lanes.records["owner"] for lanes in chosen])
        return self._by_halves(arguments, owner, failed, said)

    def _by_halves(
        self, arguments: Sequence[Tensor], owner: NDArray[np.int64], failed: dict[int, str], said: str
    ) -> Tensor:
        """Evaluate in ever smaller slices: memory may do for those, and only single rows that fail are given up."""
        if len(owner) == 1:
            failed[int(owner[0])] = said
            return torch.zeros_like(arguments[0])
        self.device.free()
        parts: list[Tensor] = []
        middle = len(owner) // 2
        for part in (slice(None, middle), slice(middle, None)):
            if all(int(one) in failed for one in owner[part]):
                parts.append(torch.zeros_like(arguments[0][part]))
                continue
            try:
                parts.append(self._ask([argument[part] for argument in arguments]))
                self.device.finish()
                continue
            except Exception as error:
                again = self.said(error)
            parts.append(self._by_halves([argument[part] for argument in arguments], owner[part], failed, again))
        return torch.cat(parts)

    def said(self, error: Exception) -> str:
        """What an error says, in one line; an error after which the device is unusable is raised again."""
        if self.device.is_lost(error):
            raise SystemExit(f"the device is lost: {error}") from error
        return f"{type(error).__name__}: {error}".splitlines()[0]

    def stop(self, owner: int, status: Status, group: str = "") -> Finished | None:
        """End an owner's lanes now and take them out."""
        self.lanes[group].stop(owner, status)
        with torch.inference_mode(), self.device.scope():
            finished = self.lanes[group].collect()
            return None if finished is None else self._fetched(finished)

    def renew(self, group: str) -> None:
        """Drop all lanes of a group whose state can no longer be trusted."""
        self.lanes[group] = self._empty()
        self.device.free()

    def take_saved(self) -> list[Saved]:
        """States saved since the last call."""
        saved = [saved for lanes in self.lanes.values() if lanes.saved for saved in lanes.take_saved()]
        return [replace(each, x=self.device.fetch(each.x)) for each in saved]

    def reached(self, owner: int, group: str) -> tuple[int, float, float]:
        """Most calls, least t and the sum of the shares of their span that an owner's running lanes have behind them.

        The least t is that of the lane with the smallest share; (0, nan, 0) where none runs.
        """
        lanes = self.lanes[group]
        mine = lanes.records["owner"] == owner
        if not mine.any():
            return 0, float("nan"), 0.0
        share, records = lanes.shares()[mine], lanes.records.compress(mine)
        return int(records["nfe"].max()), float(records["t"][share.argmin()]), float(share.sum())

    def expected_calls(self, group: str) -> dict[int, float]:
        """Owner -> calls that its lanes under error control will have taken in the end, on average, by their pace."""
        lanes = self.lanes[group]
        share = lanes.shares()
        told = (lanes.records["log"] >= 0) & (share > _EARLY)
        records = lanes.records.compress(told)
        owners, member = np.unique(records["owner"], return_inverse=True)
        calls = np.minimum(records["nfe"] / share[told], records["max_nfe"])
        means = np.bincount(member, weights=calls) / np.bincount(member)
        return dict(zip(owners.tolist(), means.tolist(), strict=True))

    def _fetched(self, finished: Finished) -> Finished:
        x = self.device.fetch(finished.x)
        return finished if x is finished.x else replace(finished, x=x)


def _whose(chosen: Sequence[Lanes]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Jobs of the lanes, and their numbers in them."""
    owner, index = (np.concatenate([lanes.records[name] for lanes in chosen]) for name in ("owner", "index"))
    return owner, index
