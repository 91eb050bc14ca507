"""The network of one arena: called for all lanes of a tick at once, and in parts if that fails."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from engine.device import Device
from engine.job import Job, Operation, Sizes, derived_field
from engine.job_rows import Conditions, JobRows, RowStore
from models.calibration import Agreement, Allowance
from models.checkpoint.calibrations import Key, keep, key_of, known
from models.checkpoint.loading import Checkpoint
from models.fused import FusedResidualMLP
from models.guidance import Guidance, Term, combined
from models.named_conditions import Distinct
from models.row_padding import Chosen, RowStable
from solvers.lanes import Finished, Lanes

_log = logging.getLogger("pathline")

_DERIVED_ROWS_AT_ONCE = 128
_SHOWN = 4  # rows of conditions in a timed call
_PLAIN = Guidance((Term(1.0),))
_NO_OWNERS = (np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int64))


class _Shown:
    """A store that repeats a few rows."""

    def __init__(self, rows: Tensor) -> None:
        self._rows = rows

    def take(self, places: NDArray[np.int64]) -> Tensor:
        """See `models.row_padding.Store`."""
        return self._rows.index_select(0, torch.from_numpy(places).to(self._rows.device))


class Network:
    """The field that the lanes of one operation follow; a row has the same bits whatever other rows share its call.

    Attributes:
        velocity: the field with its rows padded.
        event_shape: shape of a lane's state.
        seconds: time spent in calls so far.
        rows: number of rows evaluated so far, without padding.
        path: how the field is evaluated: `fused`, `onnx` or `eager`.
        path_reason: why it is eager; empty if it is not.
    """

    def __init__(
        self,
        checkpoint: Checkpoint,
        device: Device,
        operation: Operation,
        sizes: Sizes = (),
        allowance: Allowance | None = None,
    ) -> None:
        """Find the row counts at which a row has the same bits, unless they were found before.

        Args:
            checkpoint: the model version.
            device: the device that it runs on.
            operation: the operation of the lanes.
            sizes: sizes of the free axes.
            allowance: time limit for measuring, in seconds; None for no limit.
        """
        takes = checkpoint.conditioning
        self._takes = None if takes is None else takes.sized({**checkpoint.card.typical, **dict(sizes)})
        self._device, self._dtype, self._folder = device, checkpoint.dtype, checkpoint.path
        self.seconds, self.rows = 0.0, 0
        self.path, self.path_reason = "eager", "derivatives of the field need its torch module"
        self._constants: JobRows | None = None
        self._key: Key = ()
        self.event_shape, self.velocity = self._field(checkpoint, operation, sizes, allowance)
        self._conditions = None if self._takes is None else Conditions(self._takes, self._dtype, device.device)
        self._keep()
        if self.unmeasured:
            tried, total = self.velocity.progress
            message = "%s: %d of %d row counts are measured; the rest is measured while idle"
            _log.info(message, self._folder, tried, total)

    def _field(
        self, checkpoint: Checkpoint, operation: Operation, sizes: Sizes, allowance: Allowance | None
    ) -> tuple[tuple[int, ...], RowStable]:
        """The shape of a lane's state, and the field that lanes follow, given states and the constants with them."""
        card = checkpoint.card
        shape, place = card.event_of({**card.typical, **dict(sizes)}), self._device.device
        field = derived_field(operation, shape)
        if field is None:
            made = self._device.prepare(checkpoint, self._takes)
            self.path, self.path_reason = made.path, made.reason
            if made.path == "eager":
                level = logging.WARNING if made.failed else logging.INFO
                _log.log(level, "%s is evaluated as a torch module: %s", checkpoint.path, made.reason)
            found = self._known(checkpoint, operation, sizes)
            more: dict[str, Any] = {"condition": self._takes, "allowance": allowance, "known": found}
            more["average"] = card.average
            return shape, RowStable(made.velocity, shape, self._dtype, place, unpadded=made.unpadded, **more)
        if field.constants:
            self._constants = JobRows({"constants": RowStore((field.constants,), self._dtype, place)})
        whole, rows = (field.width + field.constants,), _DERIVED_ROWS_AT_ONCE
        found = self._known(checkpoint, operation, sizes)
        more = {"derive": field, "examples": field.examples, "allowance": allowance, "known": found}
        return (field.width,), RowStable(checkpoint.velocity, whole, self._dtype, place, rows, self._takes, **more)

    def _known(self, checkpoint: Checkpoint, operation: Operation, sizes: Sizes) -> tuple[int, Agreement] | None:
        what = (str(operation), self.path, *(f"{axis}={size}" for axis, size in sizes))
        self._key = key_of(checkpoint.digest, self._device.device, *what)
        return known(self._folder, self._key)

    @property
    def deterministic(self) -> bool:
        """Whether row counts were found at which rows are independent."""
        return self.velocity.deterministic

    @property
    def unmeasured(self) -> int:
        """The number of row counts still to be tried."""
        tried, total = self.velocity.progress
        return total - tried

    def refine(self) -> bool:
        """Try one more row count; once all were tried, keep the findings and return False."""
        more = self.velocity.refine()
        if not more:
            self._keep()
            _log.info("%s: all row counts are measured", self._folder)
        return more

    def _keep(self) -> None:
        if not self.velocity.known:
            keep(self._folder, self._key, self.velocity.form, self.velocity.agreement)

    def timed(self, rows: int) -> float:
        """Measure the seconds of one call with this number of rows."""
        dtype, place = self._dtype, self._device.device
        x = torch.zeros((rows, *self.velocity.event_shape), dtype=dtype, device=place)
        t = torch.full((rows, *self.velocity.time_shape), 0.5, dtype=dtype, device=place)
        shown = () if self._takes is None else self._takes.unpack(self._takes.examples(_SHOWN, dtype, place))
        given = [Chosen(_Shown(tensor), np.arange(rows) % _SHOWN) for tensor in shown]
        begin = self._device.seconds()
        with torch.inference_mode():
            self.velocity.chosen(x, t, given)
            self._device.finish()
        return self._device.seconds() - begin

    def add(self, owner: int, job: Job) -> None:
        """Add the conditions and constants of a job, once."""
        if self._conditions is not None:
            self._conditions.add(owner, job)
        if self._constants is not None and owner not in self._constants and job.constants is not None:
            variant = {"constants": Distinct(job.constants, np.arange(job.num_samples))}
            self._constants.add(owner, job.num_samples, [variant], _PLAIN)

    def remove(self, owner: int) -> None:
        """Remove the conditions and constants of a job once its lanes are gone."""
        for each in (self._conditions, self._constants):
            if each is not None:
                each.remove(owner)

    def skipped(self, owner: int) -> int:
        """The number of rows of a job that its guidance did not need (see `Conditions.skipped`)."""
        return 0 if self._conditions is None else self._conditions.skipped(owner)

    def __call__(self, x: Tensor, t: Tensor, chosen: Sequence[Lanes], failed: dict[int, str]) -> Tensor:
        """Call the network once for all lanes.

        Args:
            x, t: states (n, *event) and times (n,) of the lanes; (n, 2) of a field of average velocity.
            chosen: the groups of lanes, n lanes in all.
            failed: filled with owner -> error message, for owners with rows that made the network raise.

        Returns:
            Velocities (n, *event); zeros for those owners.
        """
        begin = time.perf_counter()
        self.rows += len(x)
        try:
            owner, index = _NO_OWNERS if self._conditions is self._constants is None else _owners(chosen)
            v = self._ask(x, t, owner, index)
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
        field = self.velocity.velocity
        if self.velocity.buckets[:1] != (1,) or not isinstance(field, FusedResidualMLP):
            return None
        if self._conditions is not None and self._conditions.guided:
            return None
        begin, rows, before = time.perf_counter(), len(lanes), int(lanes.records["nfe"].sum())
        given = [] if self._conditions is None else self._conditions.plain(*_owners([lanes]))
        if (runner := field.runner(*(each.rows() for each in given), rows=rows)) is None:
            return None
        finished, done = lanes.run(runner, calls, more)
        after = int(lanes.records["nfe"].sum()) + (0 if finished is None else int(finished.nfe.sum()))
        self.rows += after - before
        self.seconds += time.perf_counter() - begin
        return finished, done

    def _ask(self, x: Tensor, t: Tensor, owner: NDArray[np.int64], index: NDArray[np.int64]) -> Tensor:
        """The velocities of lanes, given the job of each and its sample in that job."""
        states = len(x)
        if self._constants is not None:
            [constants] = self._constants.chosen(self._constants.lines(owner, index)[1])
            x = torch.cat((x, constants.rows()), dim=1)
        if self._conditions is None:
            v = self.velocity(x, t)
        else:
            rows = self._conditions.of(owner, index, t)
            if rows.of is not None:
                self.rows += len(rows.of)
                again = torch.from_numpy(rows.of).to(x.device)
                x, t = torch.cat((x, x[again])), torch.cat((t, t[again]))
            v = combined(self.velocity.chosen(x, t, rows.conditions), states, rows.further, rows.kept)
        return v if self._constants is None else v[:, : self.event_shape[0]].contiguous()

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
                parts.append(self._ask(x[part], t[part], owner[part], index[part]))
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
        return f"{type(error).__name__}: {error}".splitlines()[0]


def _owners(chosen: Sequence[Lanes]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return (n,) the job of each lane, and (n,) its sample in that job."""
    owner, index = (np.concatenate([lanes.records[name] for lanes in chosen]) for name in ("owner", "index"))
    return owner, index
