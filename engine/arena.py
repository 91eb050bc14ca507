"""The arena: the lanes of one operation of a model version, which share network calls.

Only one thread uses it, in torch's inference mode and within `Device.scope`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import torch

from engine.device import Device
from engine.job import SAMPLE, Job, Operation, Sizes
from engine.network import ArenaNetwork
from engine.scheduler import TickCostModel
from engine.stages import Stage, decoder_of, prelude_of
from models.checkpoint.loading import Checkpoint
from models.forms.rows import CALL_NUMBERS, rounded
from models.guidance import network_rows
from models.noise import noise, noise_of, noise_places
from models.shapes import free_places
from solvers import catalogue, warm_up
from solvers.errors import Status
from solvers.lanes import Admission, Finished, Lanes, SavedStates

TICK_S = 0.05
"""A network call of a full arena takes about this many seconds at most, unless more rows are worth a longer one."""

_LARGEST_BUDGET = 8192
_LONGEST_TICK_S = 4 * TICK_S
_WORTHWHILE_RATIO = 1.5
"""A call with twice the rows that takes less than this many times as long is worth a longer tick."""


class Arena:
    """Lanes of one operation of a model version, in two groups (interactive and bulk) that may share a tick.

    Attributes:
        checkpoint: the model version.
        operation: the operation.
        event_shape: shape of a lane's state.
        deterministic: whether a sample's bits depend only on checkpoint, solver, seed and index, including decoding.
        budget: network rows of the lanes of a group, as many as fit into a tick.
        lanes: the groups.
        network: the network, called for all lanes of a tick.
        form: how it is evaluated.
        tick_cost: seconds of a tick by rows; at first those of the network alone.
        prelude, decoder: the programs that run before and after the network, if there are any.
    """

    def __init__(
        self,
        checkpoint: Checkpoint,
        device: Device,
        operation: Operation = SAMPLE,
        sizes: Sizes = (),
        prelude: Stage | None = None,
        decoder: Stage | None = None,
    ) -> None:
        """Measure the network: the row counts at which a row has the same bits, and how many rows fit into a tick.

        Args:
            checkpoint: the model version.
            device: the device that it runs on.
            operation: the operation of the lanes.
            sizes: sizes of the free axes.
            prelude, decoder: stages to share with another operation; None to make them.
        """
        self.checkpoint, self.device, self.operation = checkpoint, device, operation
        self.dtype, self.tick_cost = checkpoint.dtype, TickCostModel()
        card = checkpoint.card
        self._free, self._centred = (
            (free_places(card.event_shape), card.centred) if operation.field is None else ((), None)
        )
        warm_up(self.dtype, device.device)
        with device.scope():
            self.network = ArenaNetwork(checkpoint, device, operation, sizes)
            self.form, self.event_shape = self.network.form, self.network.event_shape
            self.budget = self._measure_budget()
        self.prelude = prelude or prelude_of(checkpoint, device, sizes)
        self.decoder = decoder or decoder_of(checkpoint, device, sizes)
        self.stages = [stage for stage in (self.prelude, self.decoder) if stage is not None]
        self.deterministic = all(part.deterministic for part in (self.network, *self.stages))
        plans = checkpoint.plans
        self._slots = max(catalogue.slots(), 0 if plans is None else plans.slots)
        self.lanes = [self._empty(), self._empty()]

    @property
    def row_limit(self) -> int:
        """The most rows of one call of the network."""
        return self.network.call.limit

    def stages_s(self, job: Job) -> float:
        """Estimated seconds that a job's rows take in the stages."""
        seconds = 0.0
        if self.prelude is not None:
            conditions = (job.conditions or {}).values()
            rows = max((1 if condition.index is None else len(condition.rows) for condition in conditions), default=1)
            seconds += self.prelude.row_s * rows * (1 + network_rows(job.guidance))
        if self.decoder is not None and job.decode:
            saved = 0 if job.save_at is None else len(job.save_at)
            seconds += self.decoder.row_s * job.num_samples * (1 + saved)
        return seconds

    def _empty(self) -> Lanes:
        ends, order = self.form.field.takes_ends, noise_places(self.event_shape, self._free)
        return Lanes(self.event_shape, self.dtype, self.device.device, self._slots, step_ends=ends, order=order)

    @property
    def counts(self) -> tuple[int, int]:
        """Running lanes of each group."""
        interactive, bulk = self.lanes
        return len(interactive.records), len(bulk.records)

    def _measure_budget(self) -> int:
        """The maximum rows of a tick; the timings on the way there also serve forecasts of small requests."""
        if self.row_limit == 1:  # rows cost the same in any number
            row_s = min(self.network.timed(1), self.network.timed(1))
            budget = rounded(max(1, min(_LARGEST_BUDGET, int(TICK_S / max(row_s, 1e-6)))))
            for rows in {1, budget}:
                self.tick_cost.measured(rows, rows * row_s)
            return budget
        rows, before, numbers = 1, 0.0, math.prod(self.event_shape)
        while True:
            took = self.network.timed(rows)
            if took < TICK_S:  # something else may have slowed a single measurement
                took = min(took, self.network.timed(rows))
            pays = took < _WORTHWHILE_RATIO * before and took < _LONGEST_TICK_S
            if took > TICK_S and rows > 1 and not pays:
                return rows // 2
            self.tick_cost.measured(rows, took)
            if (2 * took > TICK_S and not pays and rows > 1) or took > _LONGEST_TICK_S:
                return rows
            if rows >= _LARGEST_BUDGET or 2 * rows * numbers > CALL_NUMBERS:
                return rows
            rows, before = 2 * rows, took

    def start_of(self, job: Job, first: int, count: int) -> torch.Tensor:
        """Starting states of samples first .. first + count - 1 of a job, on the host."""
        if job.x0 is not None:
            return job.x0[first : first + count]
        block = (job.seed, job.first_index + first, count)
        return self._scaled(noise(*block, self.event_shape, self.dtype, self._free, self._centred), job)

    def _scaled(self, drawn: torch.Tensor, job: Job) -> torch.Tensor:
        """The states that a job starts from, given its unit noise."""
        factor = job.noise_scale * self.checkpoint.card.time.begin(job.start_time)[1]
        return drawn if factor == 1 else drawn * factor

    def admit(self, granted: Sequence[tuple[int, int, int, Job]], bulk: bool = False) -> list[Finished]:
        """Start lanes for each (owner, first sample, count, job); some may end at once, if max_nfe is too small."""
        # Noise is made for all jobs at once.
        blocks = [(job.seed, job.first_index + first, count) for _, first, count, job in granted if job.x0 is None]
        like = (self.event_shape, self.dtype, self._free, self._centred)
        drawn = self.device.send(noise_of(blocks, *like)) if blocks else None
        admissions, used = list[Admission](), 0
        for owner, first, count, job in granted:
            if job.x0 is not None:
                start = self.device.send(job.x0[first : first + count])
            else:
                assert drawn is not None  # noqa: S101
                start, used = drawn[used : used + count], used + count
                start = self._scaled(start, job)
            known = None if job.known is None else job.known.part(first, count)
            sample = job.first_index + first
            admissions.append(Admission(job.plan, start, owner, first, job.save_at, job.seed, sample, known))
            self.network.add(owner, job)
        self.lanes[bulk].admit(admissions)
        return self._ended(bulk) if any(job.plan.adaptive for _, _, _, job in granted) else []

    def _ended(self, bulk: bool) -> list[Finished]:
        """Remove and return the lanes of a group that have ended."""
        finished = self.lanes[bulk].collect()
        return [] if finished is None else [self._fetched(finished)]

    def tick(
        self,
        groups: Sequence[bool] = (False,),
        proceed: Callable[[], bool] = lambda: False,
        at_once: int = 1,
        more: int = 0,
    ) -> tuple[list[Finished], dict[int, str], int]:
        """Make one network call for all lanes of some groups, none of them empty; make more until lanes end.

        Args:
            groups: the groups that take part.
            proceed: called after each call in which no lane ended; returns whether to make another.
            at_once: maximum number of calls of compiled lanes between two checks of `proceed`.
            more: maximum number of those calls after the first lane has ended.

        Returns:
            The lanes that ended; owner -> error message, for owners with rows that made the network raise (their lanes
            are stopped); and the number of calls.
        """
        chosen = [self.lanes[group] for group in groups if len(self.lanes[group].records)]
        calls, failed = 0, dict[int, str]()
        while True:
            if len(chosen) > 1:
                x, t = (torch.cat(parts) for parts in zip(*(lanes.query() for lanes in chosen), strict=True))
                parts = self.network(x, t, chosen, failed).split([len(lanes) for lanes in chosen])
                ended = [self._absorbed(*pair, failed) for pair in zip(chosen, parts, strict=True)]
                calls += 1
            elif (ran := self.network.run(chosen[0], at_once, more)) is not None:
                ended, calls = [ran[0]], calls + ran[1]
            else:
                v = self.network(*chosen[0].query(), chosen, failed)
                ended, calls = [self._absorbed(chosen[0], v, failed)], calls + 1
            if failed or any(finished is not None for finished in ended) or not proceed():
                return [self._fetched(finished) for finished in ended if finished is not None], failed, calls

    def forget(self, owner: int) -> None:
        """Remove the conditions and constants of a job once its lanes are gone."""
        self.network.remove(owner)

    @staticmethod
    def _absorbed(lanes: Lanes, v: torch.Tensor, failed: dict[int, str]) -> Finished | None:
        for owner in failed:
            lanes.stop(owner, Status.CANCELLED)
        finished = lanes.absorb(v)
        return lanes.collect() if failed and finished is None else finished

    def stop(self, owner: int, status: Status, bulk: bool = False) -> list[Finished]:
        """End an owner's lanes now; return the lanes of the group that have ended."""
        self.lanes[bulk].stop(owner, status)
        return self._ended(bulk)

    def renew(self, bulk: bool) -> None:
        """Drop all lanes of a group, as their state can no longer be trusted."""
        self.lanes[bulk] = self._empty()
        self.device.free()

    def take_saved(self) -> list[SavedStates]:
        """Return the states saved since the last call."""
        saved = [saved for lanes in self.lanes if lanes.saved for saved in lanes.take_saved()]
        return [replace(states, x=self.device.fetch(states.x)) for states in saved]

    def reached(self, owner: int, bulk: bool = False) -> tuple[int, float, float]:
        """Progress of an owner's running lanes: most calls, least t, and the sum of the shares of the span completed.

        The least t is that of the lane with the smallest share; (0, nan, 0) if none is running.
        """
        every, shares = self.lanes[bulk].records, self.lanes[bulk].shares()
        mine = every["owner"] == owner
        if not mine.any():
            return 0, float("nan"), 0.0
        share, records = shares[mine], every.compress(mine)
        return int(records["nfe"].max()), float(records["t"][share.argmin()]), float(share.sum())

    def paces(self, bulk: bool = False) -> dict[int, tuple[float, float, float]]:
        """Progress of the lanes under error control, by owner.

        Returns:
            Owner -> mean calls so far, mean share of the span completed, and the share of the slowest lane.
        """
        every, shares = self.lanes[bulk].records, self.lanes[bulk].shares()
        adaptive = every["log"] >= 0
        share, records = shares[adaptive], every.compress(adaptive)
        owners, member = np.unique(records["owner"], return_inverse=True)
        count, least = np.bincount(member), np.ones(len(owners))
        np.minimum.at(least, member, share)
        nfe, mean = (np.bincount(member, weights=values) / count for values in (records["nfe"], share))
        return dict(zip(owners.tolist(), zip(nfe.tolist(), mean.tolist(), least.tolist(), strict=True), strict=True))

    def _fetched(self, finished: Finished) -> Finished:
        x = self.device.fetch(finished.x)
        return finished if x is finished.x else replace(finished, x=x)
