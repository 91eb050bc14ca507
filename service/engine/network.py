"""The network of one arena: called for all lanes of a tick at once, and in parts where that fails."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from models.checkpoint.loading import Checkpoint
from models.fused import FusedResidualMLP
from models.guidance import Guided
from models.row_padding import RowStable
from service.engine.conditions import Conditions, RowTable
from service.engine.device import Device
from service.engine.job import Job, Operation, derived_field
from solvers.lanes import Finished, Lanes
from solvers.parted import Parted

_log = logging.getLogger("pathline")

_DERIVED_ROWS_AT_ONCE = 128


class Network:
    """What the lanes of one operation follow: each of its rows has the same bits whatever rows stand beside it.

    Attributes:
        velocity: the field with its rows padded.
        event_shape: shape of a lane's state.
        deterministic: whether a padding was found that makes rows independent.
        seconds: spent in calls so far.
        rows: evaluated so far, padding not included.
        path: `fused` or `eager`: what evaluates the field.
        path_reason: why it is eager; empty if it is fused.
    """

    def __init__(self, checkpoint: Checkpoint, device: Device, operation: Operation) -> None:
        """Measure which row buckets agree."""
        condition = checkpoint.card.condition
        self._device, self._dtype, self._condition = device, checkpoint.dtype, condition
        self.seconds, self.rows = 0.0, 0
        self.path, self.path_reason = "eager", "derivatives of the field need its torch module"
        self._constants: RowTable | None = None
        self.event_shape, self.velocity = self._field(checkpoint, operation)
        self.deterministic = self.velocity.deterministic
        self._ask = self.velocity if condition is None else Guided(self.velocity, condition)
        self._conditions = None if condition is None else Conditions(condition, self._dtype, device.device)

    def _field(self, checkpoint: Checkpoint, operation: Operation) -> tuple[tuple[int, ...], RowStable]:
        """The shape of a lane's state, and what lanes follow, of their states and what rides along with them."""
        shape, place = tuple(checkpoint.card.event_shape), self._device.device
        field = derived_field(operation, shape)
        if field is None:
            made = self._device.prepare(checkpoint.velocity, self._condition)
            self.path, self.path_reason = ("fused" if made.fused else "eager"), made.reason
            if made.failed:
                _log.warning("%s is evaluated as a torch module: %s", checkpoint.path, made.reason)
            stable = RowStable(made.velocity, shape, self._dtype, place, condition=self._condition, unpadded=made.fused)
            return shape, stable
        if field.constants:
            self._constants = RowTable(place)
        whole, rows = (field.width + field.constants,), _DERIVED_ROWS_AT_ONCE
        made_of, derived = checkpoint.velocity, {"derive": field, "examples": field.examples}
        return (field.width,), RowStable(made_of, whole, self._dtype, place, rows, self._condition, **derived)

    def timed(self, rows: int) -> float:
        """Measure the seconds of one call with this number of rows."""
        dtype, place = self._dtype, self._device.device
        x = torch.zeros((rows, *self.velocity.event_shape), dtype=dtype, device=place)
        t = torch.full((rows,), 0.5, dtype=dtype, device=place)
        given = () if self._condition is None else (self._condition.examples(rows, dtype, place),)
        begin = self._device.seconds()
        with torch.inference_mode():
            self.velocity(x, t, *given)
            self._device.finish()
        return self._device.seconds() - begin

    def add(self, owner: int, job: Job) -> None:
        """Add the conditions and constants of a job, once."""
        if self._conditions is not None:
            self._conditions.add(owner, job)
        if self._constants is not None and owner not in self._constants and job.constants is not None:
            self._constants.add(owner, job.constants)

    def remove(self, owner: int) -> None:
        """Remove what is kept for a job once its lanes are gone."""
        for table in (self._conditions, self._constants):
            if table is not None:
                table.remove(owner)

    def __call__(self, x: Tensor, t: Tensor, chosen: Sequence[Lanes | Parted], failed: dict[int, str]) -> Tensor:
        """One call.

        Args:
            x, t: states (n, *event) and times (n,) of the lanes.
            chosen: the lanes, n in all.
            failed: filled with owner -> error message, for owners with rows that made the network raise.

        Returns:
            Velocities (n, *event); zeros for those owners.
        """
        begin = time.perf_counter()
        self.rows += len(x)
        if self._constants is not None:
            x = torch.cat((x, self._constants.of(*_owners(chosen))), dim=1)
        v = self._evaluate((x, t, *self._given(chosen)), chosen, failed)
        if self._constants is not None:
            v = v[:, : self.event_shape[0]].contiguous()
        self.seconds += time.perf_counter() - begin
        return v

    def run(self, lanes: Lanes | Parted, calls: int) -> tuple[Finished | None, int] | None:
        """Make up to `calls` calls for one group of lanes in compiled code; None if the field cannot do that."""
        field = self.velocity.velocity
        if isinstance(lanes, Parted) or self.velocity.buckets[:1] != (1,) or not isinstance(field, FusedResidualMLP):
            return None
        if self._conditions is not None and self._conditions.guided:
            return None
        begin, rows = time.perf_counter(), len(lanes)
        if (runner := field.runner(*self._given([lanes]), rows=rows)) is None:
            return None
        finished, done = lanes.run(runner, calls)
        self.rows += rows * done
        self.seconds += time.perf_counter() - begin
        return finished, done

    def _given(self, chosen: Sequence[Lanes | Parted]) -> tuple[Tensor, ...]:
        """Conditions and guidances of the lanes; nothing for an unconditional model."""
        if self._conditions is None:
            return ()
        condition, guidance = self._conditions.of(*_owners(chosen))
        if guidance is None:
            return (condition,)
        self.rows += int(((guidance != 0) & (guidance != 1)).sum())
        return condition, guidance

    def _evaluate(
        self, arguments: Sequence[Tensor], chosen: Sequence[Lanes | Parted], failed: dict[int, str]
    ) -> Tensor:
        try:
            v = self._ask(*arguments)
            self._device.finish()
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
        self._device.free()
        parts: list[Tensor] = []
        middle = len(owner) // 2
        for part in (slice(None, middle), slice(middle, None)):
            if all(int(one) in failed for one in owner[part]):
                parts.append(torch.zeros_like(arguments[0][part]))
                continue
            try:
                parts.append(self._ask(*(argument[part] for argument in arguments)))
                self._device.finish()
                continue
            except Exception as error:
                again = self.said(error)
            parts.append(self._by_halves([argument[part] for argument in arguments], owner[part], failed, again))
        return torch.cat(parts)

    def said(self, error: Exception) -> str:
        """What an error says, in one line; an error after which the device is unusable is raised again."""
        if self._device.is_lost(error):
            raise SystemExit(f"the device is lost: {error}") from error
        return f"{type(error).__name__}: {error}".splitlines()[0]


def _owners(chosen: Sequence[Lanes | Parted]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return (n,) the job of each lane, and (n,) its sample in that job."""
    owner, index = (np.concatenate([lanes.records[name] for lanes in chosen]) for name in ("owner", "index"))
    return owner, index
