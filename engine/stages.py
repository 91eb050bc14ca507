"""Stages: the other programs of a model version, the prelude before its network and the decoder after it.

A stage processes rows of several jobs together, one slice at a time between the ticks of arenas, so that no job is held
up by another's rows. As in the network, a row has the same bits whatever other rows share its call.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from hashlib import sha256
from typing import Any, NamedTuple

import torch
from torch import Tensor

from engine.conditions import variants_of
from engine.device import Device
from engine.job import Job, JobResult, Priority, Sizes
from engine.scheduler import BULK_SHARE
from models.checkpoint.card import DTYPES
from models.checkpoint.loading import Checkpoint
from models.condition_values import Distinct
from models.decoder import DecoderError
from models.forms.rows import CALL_NUMBERS, MOST_ROWS, independent_rows
from models.messages import typed_line
from models.noise import noise
from models.prelude import combinations
from models.shapes import free_axes
from models.velocity import rows_of
from solvers.cache import BytesCache

SLICE_S = 0.025
"""A slice takes about this long at most, unless a single row takes longer."""

_SHOWN = 4  # rows in a timed call

StageFunction = Callable[..., tuple[Tensor, ...]]
"""Tensors (rows, ...) -> tensors (rows, ...), each row computed from its own inputs alone."""


@dataclass(eq=False)
class Pass:
    """The rows of one job that go through a stage.

    Attributes:
        owner: the object that the rows belong to.
        arguments: tensors (rows, ...) on the host.
        then: called with the results once all rows are done.
        bulk: whether the rows yield to those of other passes.
        solver: name of the job's solver.
        done: number of finished rows.
        seconds: total time of the calls that it took part in.
        out: results (rows, ...), filled slice by slice.
    """

    owner: Any
    arguments: Sequence[Tensor]
    then: Callable[[list[Tensor]], None]
    bulk: bool = False
    solver: str = ""
    done: int = 0
    seconds: float = 0.0
    out: list[Tensor] = field(default_factory=list)

    @property
    def rows(self) -> int:
        """The number of rows."""
        return len(self.arguments[0])

    @property
    def left(self) -> int:
        """The number of rows not done yet."""
        return self.rows - self.done


class Turn(NamedTuple):
    """The outcome of a slice.

    Attributes:
        rows, passes, solvers: numbers of rows, passes and distinct solvers in the call.
        ended: passes with all rows done.
        failed: passes with rows that made the program fail, and its error message.
    """

    rows: int
    passes: int
    solvers: int
    ended: list[Pass]
    failed: dict[Pass, str]
    bulk: bool


class Stage:
    """One program of a version.

    Attributes:
        name: `prelude` or `decoder`.
        model: name of the model.
        at_once: maximum number of rows in a slice.
        row_s: seconds per row in a full slice.
        used_s: device time used, for fairness among stages and arenas.
        passes: waiting passes.
        left_s: the estimated time of their rows, in seconds, which any thread may read.
    """

    def __init__(
        self,
        name: str,
        function: StageFunction,
        examples: Callable[[int], Sequence[Tensor]],
        checkpoint: Checkpoint,
        device: Device,
        rows: tuple[int, int | None] = (1, None),
        fetch: bool = False,
    ) -> None:
        """Find the row counts at which a row has the same bits, and how many rows fit into a slice.

        Args:
            name: see above.
            function: the program to call; it raises if it cannot return all rows.
            examples: row count -> arguments on the device, with distinct rows where possible.
            checkpoint: the checkpoint that it is part of.
            device: the device that it runs on.
            rows: minimum and maximum number of rows per call.
            fetch: whether to copy the results to the host.
        """
        self.name, self.model = name, checkpoint.card.name
        self.used_s = self.left_s = 0.0
        self.passes: deque[Pass] = deque()
        self._device, self._fetch, self._turns = device, fetch, 0
        with device.scope(), torch.inference_mode():
            self._kinds = [(tuple(tensor.shape[1:]), tensor.dtype) for tensor in function(*examples(rows[0]))]
            self._packed = len(self._kinds) > 1 or self._kinds[0][1].itemsize == 1

            def call(*arguments: Tensor) -> Tensor:
                tensors = function(*arguments)
                return _pack(tensors) if self._packed else tensors[0]

            least, most = rows
            numbers = max(1, sum(math.prod(shape) for shape, _ in self._kinds))
            at_once = max(least, min(MOST_ROWS, CALL_NUMBERS // numbers))
            at_once = at_once if most is None else min(at_once, most)
            self._call = independent_rows([call], examples, at_once, least)
            self.at_once, self.row_s = self._measure(examples(_SHOWN))

    def _measure(self, shown: Sequence[Tensor]) -> tuple[int, float]:
        """The maximum number of rows in a slice, and the seconds per row."""
        rows = 1
        while True:
            arguments = [tensor[torch.arange(rows, device=tensor.device) % len(tensor)] for tensor in shown]
            took = self._timed(arguments)
            if took > SLICE_S:  # something else may have slowed a single measurement
                took = min(took, self._timed(arguments))
            if took > SLICE_S and rows > 1:
                return rows // 2, took / rows
            if 2 * took > SLICE_S or rows >= self._call.limit:
                return min(rows, self._call.limit), took / rows
            rows *= 2

    def _timed(self, arguments: Sequence[Tensor]) -> float:
        begin = self._device.seconds()
        self._call(*arguments)
        self._device.finish()
        return self._device.seconds() - begin

    @property
    def deterministic(self) -> bool:
        """Whether a row has the same bits in all calls."""
        return self._call.deterministic

    def put(self, rows: Pass) -> None:
        """Let rows wait for a slice."""
        self.passes.append(rows)
        self._count()

    def drop(self, rows: Pass) -> None:
        """Drop rows that wait."""
        self.passes.remove(rows)
        self._count()

    def _count(self) -> None:
        self.left_s = self.row_s * sum([waiting.left for waiting in self.passes])

    def turn(self) -> Turn:
        """Call the program for one slice of the waiting rows; there must be at least one."""
        chosen = self._choose()
        for waiting, _ in chosen:
            if not waiting.out:
                where = torch.device("cpu") if self._fetch else self._device.device
                waiting.out = [
                    torch.empty((waiting.rows, *shape), dtype=dtype, device=where) for shape, dtype in self._kinds
                ]
        begin = time.perf_counter()
        failed = self._run(chosen)
        took = time.perf_counter() - begin
        for waiting, part in chosen:
            waiting.seconds += took
            waiting.done = part.stop
        ended = [waiting for waiting, _ in chosen if not waiting.left and waiting not in failed]
        for waiting in (*ended, *failed):
            self.passes.remove(waiting)
        self._count()
        rows = sum(part.stop - part.start for _, part in chosen)
        solvers = len({waiting.solver for waiting, _ in chosen})
        return Turn(rows, len(chosen), solvers, ended, failed, all(waiting.bulk for waiting, _ in chosen))

    def _choose(self) -> list[tuple[Pass, slice]]:
        """Divide a slice equally among the passes that do not yield, then the remainder among the others."""
        self._turns += 1
        first = [waiting for waiting in self.passes if not waiting.bulk]
        second = [waiting for waiting in self.passes if waiting.bulk]
        if second and (not first or not self._turns % BULK_SHARE):
            first, second = second, first
        left, taken = self.at_once, dict[Pass, int]()
        for group in (first, second):
            share = max(1, left // max(1, len(group)))
            for most in (share, left):  # rows that some do not need go to those that came first
                for waiting in group:
                    count = min(waiting.left - taken.get(waiting, 0), most, left)
                    if count > 0:
                        taken[waiting] = taken.get(waiting, 0) + count
                        left -= count
        self.passes.rotate(-1)
        return [(waiting, slice(waiting.done, waiting.done + count)) for waiting, count in taken.items()]

    def _run(self, chosen: Sequence[tuple[Pass, slice]]) -> dict[Pass, str]:
        """Fill the results of some rows; if the program fails, retry each pass alone, then in ever smaller parts."""
        try:
            self._fill(chosen)
        except Exception as error:  # (an error of the program must fail only its own requests)
            if self._device.is_lost(error):
                raise SystemExit(f"the device is lost: {error}") from error
            message = typed_line(error)
        else:
            return {}
        # Outside the handler: the exception keeps the failed call's memory alive.
        self._device.free()
        if len(chosen) > 1:
            failed: dict[Pass, str] = {}
            for waiting in chosen:
                failed |= self._run([waiting])
            return failed
        [(alone, part)] = chosen
        if part.stop - part.start == 1:
            return {alone: f"the {self.name} failed: {message}"}
        middle = (part.start + part.stop) // 2
        for half in (slice(part.start, middle), slice(middle, part.stop)):
            if failed := self._run([(alone, half)]):
                return failed
        return {}

    def _fill(self, chosen: Sequence[tuple[Pass, slice]]) -> None:
        columns = zip(*([tensor[part] for tensor in waiting.arguments] for waiting, part in chosen), strict=True)
        output = self._call(
            *(self._device.send(parts[0] if len(parts) == 1 else torch.cat(parts)) for parts in columns)
        )
        results = _unpack(output, self._kinds) if self._packed else [output]
        results = [self._device.fetch(tensor) for tensor in results] if self._fetch else results
        self._device.finish()
        begin = 0
        for waiting, part in chosen:
            end = begin + part.stop - part.start
            for out, result in zip(waiting.out, results, strict=True):
                out[part] = result[begin:end]
            begin = end


def _pack(tensors: Sequence[Tensor]) -> Tensor:
    """Pack tensors (rows, ...) into one tensor of bytes, row by row."""
    rows = len(tensors[0])
    return torch.cat([tensor.contiguous().reshape(rows, -1).view(torch.uint8) for tensor in tensors], dim=1)


def _unpack(packed: Tensor, kinds: Sequence[tuple[tuple[int, ...], torch.dtype]]) -> list[Tensor]:
    begin, tensors = 0, []
    for shape, dtype in kinds:
        end = begin + math.prod(shape) * dtype.itemsize
        tensors.append(
            packed[:, begin:end].clone(memory_format=torch.contiguous_format).view(dtype).reshape(-1, *shape)
        )
        begin = end
    return tensors


def prelude_of(checkpoint: Checkpoint, device: Device, sizes: Sizes = ()) -> Stage | None:
    """The prelude of a version for these sizes of the free axes; None if it has none."""
    prelude, requested, takes = checkpoint.prelude, checkpoint.request_conditions, checkpoint.network_conditions
    if prelude is None or requested is None or takes is None:
        return None
    arguments, makes = requested.sized(dict(sizes)), takes.sized(dict(sizes))

    def function(*conditions: Tensor) -> tuple[Tensor, ...]:
        return prelude.call(makes, *conditions)

    def examples(rows: int) -> tuple[Tensor, ...]:
        return prelude.examples(arguments, rows, checkpoint.dtype, device.device)

    rows = rows_of(prelude.program, device.device)
    return Stage("prelude", function, examples, checkpoint, device, rows)


def decoder_sizes(checkpoint: Checkpoint, sizes: Sizes) -> Sizes:
    """The sizes of the free axes of a version's states, for which its decoder is measured."""
    axes = free_axes(checkpoint.card.event_shape)
    return tuple((axis, size) for axis, size in sizes if axis in axes)


def decoder_of(checkpoint: Checkpoint, device: Device, sizes: Sizes = ()) -> Stage | None:
    """The decoder of a version for these sizes of the free axes; None if it is not a program."""
    decoder = checkpoint.decoder
    if decoder.program is None:
        return None
    card, mine = checkpoint.card, decoder_sizes(checkpoint, sizes)
    shape = card.event_of({**card.typical, **dict(mine)})

    def function(x: Tensor) -> tuple[Tensor, ...]:
        data = decoder.decode(x)
        if not data.isfinite().all():
            raise DecoderError("it returned numbers that are not finite")
        return (data,)

    def examples(rows: int) -> tuple[Tensor, ...]:
        return (noise(4, 0, rows, shape, checkpoint.dtype).to(device.device),)

    rows = rows_of(decoder.program, device.device)
    return Stage("decoder", function, examples, checkpoint, device, rows, fetch=True)


def prelude_pass(checkpoint: Checkpoint, owner: Any, job: Job, then: Callable[[Job], None]) -> Pass:
    """The rows of a job that go through the prelude: one for each distinct condition of each variant.

    Args:
        checkpoint: the version.
        owner: the object that the rows belong to.
        job: the job.
        then: called with the job once its conditions are those that the network takes.
    """
    prelude, requested, takes = checkpoint.prelude, checkpoint.request_conditions, checkpoint.network_conditions
    assert prelude is not None  # noqa: S101
    assert requested is not None  # noqa: S101
    assert takes is not None  # noqa: S101
    variants = variants_of(requested.sized(dict(job.sizes)), checkpoint.dtype, job)
    rows: list[list[Tensor]] = []
    parts: dict[tuple[int, ...], tuple[slice, Any]] = {}  # the rows and the index of variants with the same conditions
    begun, keys = 0, []
    for variant in variants:
        keys.append(tuple(id(part) for name in prelude.inputs for part in (variant[name].rows, variant[name].index)))
        if keys[-1] not in parts:
            distinct, index = combinations(variant, prelude.inputs)
            rows.append(distinct)
            parts[keys[-1]] = slice(begun, begun + len(distinct[0])), index
            begun += len(distinct[0])

    def finish(out: list[Tensor]) -> None:
        results = {
            key: {name: Distinct(tensor[part], index) for name, tensor in zip(prelude.outputs, out, strict=True)}
            for key, (part, index) in parts.items()
        }
        merged = [{**variant, **results[key]} for variant, key in zip(variants, keys, strict=True)]
        taken = tuple({name: conditions[name] for name in takes.entries} for conditions in merged)
        then(replace(job, conditions=None, negative=None, own=(), variants=taken))

    arguments = [torch.cat(column) for column in zip(*rows, strict=True)]
    return Pass(owner, arguments, finish, job.priority is Priority.BULK, job.plan.name)


def without_kept(kept: BytesCache[bytes, tuple[Tensor, ...]], version: str, rows: Pass) -> tuple[Pass | None, int]:
    """Take the rows of a pass through a prelude whose results are kept out of it: a hit has the bits of a miss.

    Args:
        kept: the results of one row, (*shape) each, by the digest of what they were made from. If its limit is 0,
            nothing is digested.
        version: digest of the checkpoint.
        rows: a pass, not begun. If all of its rows are there, they are handed on by its `then`.

    Returns:
        The pass of the other rows, which are kept once they are done, or None; and the number of rows taken out.
    """
    if not kept.limit:
        return rows, 0
    keys = [_digest(version, [tensor[row] for tensor in rows.arguments]) for row in range(rows.rows)]
    results = [kept.find(key) for key in keys]
    missing = [row for row, result in enumerate(results) if result is None]

    def finish(out: list[Tensor]) -> None:
        for place, row in enumerate(missing):
            results[row] = kept.keep(keys[row], tuple(tensor[place].clone() for tensor in out))
        rows.then([torch.stack(column) for column in zip(*filter(None, results), strict=True)])

    hits = rows.rows - len(missing)
    if not missing:
        finish([])
        return None, hits
    arguments = [tensor[missing] for tensor in rows.arguments] if hits else rows.arguments
    return replace(rows, arguments=arguments, then=finish), hits


def _digest(version: str, arguments: Sequence[Tensor]) -> bytes:
    digest = sha256(version.encode())
    for tensor in arguments:
        digest.update(f"{tensor.dtype} {tuple(tensor.shape)} ".encode())
        digest.update(tensor.contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return digest.digest()


def decoder_pass(
    checkpoint: Checkpoint, owner: Any, job: Job, result: JobResult, then: Callable[[JobResult], None]
) -> Pass | None:
    """The finite states of a job, which go through the decoder. Without any, the pass is done at once.

    Args:
        checkpoint: the version.
        owner: the object that the rows belong to.
        job: the job.
        result: its result so far.
        then: called with the decoded result.
    """
    n, saved, card = len(result.x), result.saved, checkpoint.card
    shape = card.data_of(dict(job.sizes))
    flat = result.x if saved is None else torch.cat((result.x, saved.flatten(0, 1)))
    finite = flat.flatten(1).isfinite().all(dim=1)
    whole = bool(finite.all())

    def decoded(out: Sequence[Tensor]) -> None:
        data = out[0] if whole else torch.full((len(flat), *shape), torch.nan, dtype=DTYPES[card.data_dtype])
        if not whole:
            data[finite] = out[0]
        saved_data = None if saved is None else data[n:].reshape(n, -1, *shape)
        then(replace(result, data=data[:n], saved_data=saved_data))

    if not finite.any():
        decoded([flat.new_empty((0, *shape), dtype=DTYPES[card.data_dtype])])
        return None
    arguments = [flat if whole else flat[finite]]
    return Pass(owner, arguments, decoded, job.priority is Priority.BULK, job.plan.name)
