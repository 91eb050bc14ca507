"""The network of one arena: called for all lanes of a tick at once, and in parts if that fails."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from engine.conditions import CallRows, Conditions, JobRows, RowStore
from engine.device import Device
from engine.job import Job, Operation, Sizes
from models.checkpoint.loading import Checkpoint
from models.condition_values import Distinct
from models.forms.form import Form
from models.forms.rows import RowCaller, StoredRows, field_rows
from models.guidance import combined
from models.messages import typed_line
from solvers.derived import pulled_rows
from solvers.lanes import Finished, Lanes

_log = logging.getLogger("pathline")

_DERIVED_ROWS_AT_ONCE = 128
_SHOWN = 4  # rows of conditions in a timed call
_NO_OWNERS = (np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int64))


def _taken(rows: Tensor, places: NDArray[np.int64]) -> Tensor:
    return rows.index_select(0, torch.from_numpy(places).to(rows.device))


class ArenaNetwork:
    """The field that the lanes of one operation follow; a row has the same bits whatever other rows share its call.

    Attributes:
        call: calls the field: states, times and conditions, one row for each lane.
        form: how the field is evaluated.
        event_shape: shape of a lane's state.
        seconds: time spent in calls so far.
        rows: number of rows evaluated so far, without padding.
    """

    def __init__(self, checkpoint: Checkpoint, device: Device, operation: Operation, sizes: Sizes = ()) -> None:
        """Find the row counts at which a row has the same bits.

        Args:
            checkpoint: the model version.
            device: the device that it runs on.
            operation: the operation of the lanes.
            sizes: sizes of the free axes.
        """
        takes = checkpoint.network_conditions
        self._takes = None if takes is None else takes.sized({**checkpoint.card.typical, **dict(sizes)})
        self._device, self._dtype = device, checkpoint.dtype
        self.seconds, self.rows = 0.0, 0
        self.form = Form(checkpoint.velocity, reason="derivatives of the field need its torch module")
        self._constants: JobRows | None = None  # with the first job that has some
        self._operation = operation
        self._products: RowCaller | None = None  # calls of [x, e] -> e dv/dx for its correction
        self.event_shape, self.call = self._field(checkpoint, operation, sizes)
        self._conditions = None if self._takes is None else Conditions(self._takes, self._dtype, device.device)
        if self.call.limit == 1:
            _log.info("%s: its network is called with one row at a time", checkpoint.path)

    def _field(self, checkpoint: Checkpoint, operation: Operation, sizes: Sizes) -> tuple[tuple[int, ...], RowCaller]:
        """The shape of a lane's state, and calls of the field that lanes follow."""
        card = checkpoint.card
        shape, dtype, place = card.event_of({**card.typical, **dict(sizes)}), self._dtype, self._device.device
        if operation.field is None:
            self.form = form = self._device.form(checkpoint, self._takes)
            if form.reason:
                level = logging.WARNING if form.failed else logging.INFO
                _log.log(level, "%s is evaluated as a torch module: %s", checkpoint.path, form.reason)
            if operation.correction is not None:
                product = (checkpoint.velocity, (2, *shape), dtype, place, _DERIVED_ROWS_AT_ONCE, self._takes)
                self._products = field_rows(*product, derive=pulled_rows)
            more = {"independent": form.independent, "counted": checkpoint.velocity}
            self._row_shape = shape
            return shape, field_rows(form.velocity, shape, dtype, place, condition=self._takes, **more)
        derived = operation.field(shape)
        self._row_shape, rows = (derived.width + derived.constants,), _DERIVED_ROWS_AT_ONCE
        more = {"derive": derived, "examples": derived.examples}
        call = field_rows(checkpoint.velocity, self._row_shape, dtype, place, rows, self._takes, **more)
        return (derived.width,), call

    @property
    def deterministic(self) -> bool:
        """Whether a row has the same bits in all calls."""
        return self.call.deterministic and (self._products is None or self._products.deterministic)

    def timed(self, rows: int) -> float:
        """Measure the seconds of one call with this number of rows."""
        dtype, place = self._dtype, self._device.device
        x = torch.zeros((rows, *self._row_shape), dtype=dtype, device=place)
        t = self.form.field.times(torch.full((rows,), 0.5, dtype=dtype, device=place))
        shown = () if self._takes is None else self._takes.unpack(self._takes.examples(_SHOWN, dtype, place))
        conditions = [StoredRows(partial(_taken, tensor), np.arange(rows) % _SHOWN) for tensor in shown]
        begin = self._device.seconds()
        with torch.inference_mode():
            self.call(x, t, *conditions)
            if self._products is not None:
                self._products(torch.stack((x, x), dim=1), t, *conditions)
            self._device.finish()
        return self._device.seconds() - begin

    def add(self, owner: int, job: Job) -> None:
        """Add the conditions and constants of a job, once."""
        if self._conditions is not None:
            self._conditions.add(owner, job)
        if job.constants is None:
            return
        if self._constants is None:
            store = RowStore(job.constants.shape[1:], self._dtype, self._device.device)
            self._constants = JobRows({"constants": store})
        if owner not in self._constants:
            index = np.arange(job.num_samples) if len(job.constants) > 1 else None
            self._constants.add(owner, job.num_samples, [{"constants": Distinct(job.constants, index)}])

    def remove(self, owner: int) -> None:
        """Remove the conditions and constants of a job once its lanes are gone."""
        for store in (self._conditions, self._constants):
            if store is not None:
                store.remove(owner)

    def skipped(self, owner: int) -> int:
        """The number of rows of a job that its guidance did not need (see `Conditions.skipped`)."""
        return 0 if self._conditions is None else self._conditions.skipped(owner)

    def __call__(self, x: Tensor, t: Tensor, chosen: Sequence[Lanes], failed: dict[int, str]) -> Tensor:
        """Call the network once for all lanes.

        Args:
            x, t: states (n, *event) and times of the lanes, as the field takes them (see `models.velocity.FieldKind`).
            chosen: the groups of lanes, n lanes in all.
            failed: filled with owner -> error message, for owners with rows that made the network raise.

        Returns:
            Velocities (n, *event); zeros for those owners.
        """
        begin = time.perf_counter()
        self.rows += len(x) * self._operation.rows
        try:
            owner, index = _NO_OWNERS if self._conditions is self._constants is None else _owners(chosen)
            v = self._velocities(x, t, owner, index)
            self._device.finish()
        except Exception as error:  # (an error of the network must fail only its own requests)
            message = self.describe_error(error)
        else:
            self.seconds += time.perf_counter() - begin
            return v
        # Outside the handler: the exception keeps the failed call's memory alive.
        v = self._bisect(x, t, *_owners(chosen), failed, message)
        self.seconds += time.perf_counter() - begin
        return v

    def run(self, lanes: Lanes, calls: int, more: int) -> tuple[Finished | None, int] | None:
        """Make up to `calls` calls for one group of lanes in compiled code; None if the field cannot do that.

        Once a lane has ended there are at most `more` calls.
        """
        if self.form.runner is None or self._products is not None:
            return None
        if self._conditions is not None and self._conditions.guided:
            return None
        begin = time.perf_counter()
        conditions = [] if self._conditions is None else self._conditions.rows.of(*_owners([lanes]))
        if (runner := self.form.runner(*[stored.rows() for stored in conditions], rows=len(lanes))) is None:
            return None
        finished, done, rows = lanes.run(runner, calls, more)
        self.rows += rows
        self.seconds += time.perf_counter() - begin
        return finished, done

    def _velocities(self, x: Tensor, t: Tensor, owner: NDArray[np.int64], index: NDArray[np.int64]) -> Tensor:
        """The velocities of lanes, given the job of each and its sample in that job."""
        rows = None if self._conditions is None else self._conditions.of(owner, index, t)
        if rows is not None and rows.of is not None:
            self.rows += len(rows.of) * self._operation.rows
        if self._constants is None:
            return self._combined(self.call, rows, x, t)
        [stored] = self._constants.of(owner, index)
        constants, correction, products = stored.rows(), self._operation.correction, self._products
        if correction is None or products is None:
            v = self._combined(self.call, rows, torch.cat((x, constants), dim=1), t)
            return v[:, : self.event_shape[0]].contiguous()

        def pull(e: Tensor) -> Tensor:
            # The velocity under guidance is a weighted sum of velocities, so its product is that of theirs.
            return self._combined(products, rows, torch.stack((x, e), dim=1), t)[:, 0]

        return correction(x, t, self._combined(self.call, rows, x, t), constants, pull)

    def _combined(self, call: RowCaller, rows: CallRows | None, x: Tensor, t: Tensor) -> Tensor:
        """Call a field for states, once for each term of their guidance, and combine these."""
        if rows is None:
            return call(x, t)
        states = len(x)
        if rows.of is not None:
            again = torch.from_numpy(rows.of).to(x.device)
            x, t = torch.cat((x, x[again])), torch.cat((t, t[again]))
        return combined(call(x, t, *rows.conditions), states, rows.further, rows.projection, rows.rescaling)

    def _bisect(
        self,
        x: Tensor,
        t: Tensor,
        owner: NDArray[np.int64],
        index: NDArray[np.int64],
        failed: dict[int, str],
        message: str,
    ) -> Tensor:
        """Evaluate in ever smaller slices, which may fit into memory; only single rows that fail are given up."""
        if len(owner) == 1:
            failed[int(owner[0])] = message
            return torch.zeros_like(x)
        self._device.free()
        parts: list[Tensor] = []
        middle = len(owner) // 2
        for part in (slice(None, middle), slice(middle, None)):
            if all(int(one) in failed for one in owner[part]):
                parts.append(torch.zeros_like(x[part]))
                continue
            try:
                parts.append(self._velocities(x[part], t[part], owner[part], index[part]))
                self._device.finish()
                continue
            except Exception as error:
                again = self.describe_error(error)
            parts.append(self._bisect(x[part], t[part], owner[part], index[part], failed, again))
        return torch.cat(parts)

    def describe_error(self, error: Exception) -> str:
        """Return an error's message in one line; raise SystemExit if the error leaves the device unusable."""
        if self._device.is_lost(error):
            raise SystemExit(f"the device is lost: {error}") from error
        return typed_line(error)


def _owners(chosen: Sequence[Lanes]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return (n,) the job of each lane, and (n,) its sample in that job."""
    owner, index = (np.concatenate([lanes.records[name] for lanes in chosen]) for name in ("owner", "index"))
    return owner, index
