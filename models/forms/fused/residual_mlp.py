"""The fused residual MLP: one compiled call, designed for many calls with few rows.

A block of rows goes through all layers while its activations stay in the cache; weights are packed in panels of 16
outputs. The order of operations for each number does not depend on the number of rows (see
`models.forms.fused.pieces`), so a row has the same bits alone and beside any other rows, with any number of threads.
"""

from __future__ import annotations

import platform
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import cache, partial
from pathlib import Path
from typing import Any

import llvmlite.binding as llvm
import numpy as np
import torch
from torch import Tensor

from models.architectures.residual_mlp import ResidualMLP, ResidualMLPConfig
from models.conditions import tensors_of
from models.forms.form import FormKind
from models.forms.fused.packing import Floats, aligned_zeros, packed, room
from models.forms.fused.pieces import (
    BIAS,
    BIAS_AND_OLD,
    BYTES,
    HEIGHTS,
    OLD,
    PANEL,
    WIDTHS,
    normalise,
    silu,
    sinusoids,
    tile,
)
from models.forms.fused.vectors import LANES
from models.shapes import sized
from models.velocity import VelocityError, check_float32
from solvers import resolve
from solvers.bank import Bank
from solvers.compiled import Index, Records, array_at, compiled
from solvers.errors import RUNNING
from solvers.kernels_cpu import control, query, receive, settle
from solvers.lanes import Admission, Lanes
from solvers.plan import CONTROLLED, MID
from solvers.state import Runner
from solvers.trace import StepLog

_BLOCK = 144
"""Rows in a block, a multiple of the tallest tile; larger blocks read the weights less often."""

_ROWS_OF_A_THREAD = 48
"""The fewest rows that justify another thread."""

_TERMS = 256
"""Terms of a product for which a panel of weights fits in the first-level cache; a multiple of `PARTIAL`."""

# Places among the addresses of parameters that `_evaluate` takes; those of a layer's norm and product are adjacent.
_FREQUENCIES, _TABLE, _INPUT, _LAYERS = 0, 1, 2, 4


@compiled
def _run(lanes, states, k, pins, weights, rows, times, log, kinds, limits, addresses, constants):
    """See `solvers.state.Runner`. Lanes that have ended keep their places, but have no rows in the network's calls."""
    x, t, vectors, chosen, v = addresses
    calls, until, more = limits
    sizes, epsilon, parameters, work = constants
    present, left, done, evaluated, full = 0, len(lanes), 0, 0, False
    order = np.empty(0, dtype=np.int64)  # that of the noise of steps: there are no free axes
    while done < calls and left and not present & until and not full:
        query(lanes, states, k, pins, weights, rows, order, x, t, True)
        if not _evaluate(x, t, vectors, chosen, v, left, sizes, epsilon, parameters, work):
            break
        present, ended = receive(lanes, states, k, pins, weights, rows, times, order, v, kinds, True)
        done += 1
        evaluated += left
        if present & ~until & CONTROLLED:
            index, after, error, decided, full = control(
                lanes, states, k, pins, weights, rows, kinds, present & ~until, log
            )
            ended += decided + settle(lanes, index, after, error, rows, states, k)
            present &= until | ~CONTROLLED
        if ended:
            if left == len(lanes):
                calls = min(calls, done + more)
            if done < calls:
                _close_gaps(lanes, kinds, vectors, chosen, left, sizes)
            left -= ended
    return present, len(lanes) - left, done, evaluated, full


@compiled
def _close_gaps(lanes, kinds, vectors_at, chosen_at, count, sizes):
    """Take the lanes that ended in the last call out of `count` rows of conditions; the arguments of `_evaluate`."""
    if not vectors_at and not chosen_at:
        return
    width, before, after = sizes[4], 0, 0
    vectors, chosen = array_at(vectors_at, (count, width), np.float32), array_at(chosen_at, count, np.int64)
    for j in range(len(lanes)):
        running = lanes[j].status == RUNNING
        if not running and kinds[j] == MID:  # it had ended before
            continue
        if running:
            if vectors_at:
                for k in range(width):
                    vectors[after, k] = vectors[before, k]
            if chosen_at:
                chosen[after] = chosen[before]
            after += 1
        before += 1


_ALWAYS_WITH_FMA = ("aarch64", "arm64")


@compiled
def _product(a, a_stride, rows, terms, weights, bias, panels, c, c_stride, to):
    """C = A W + bias (+ C), by addresses and strides in bytes, with W in `panels` panels."""
    panel, begin = terms * PANEL, 0
    while begin < terms:
        count, row, shape = min(_TERMS, terms - begin), 0, 0
        while row < rows:
            while HEIGHTS[shape] > rows - row:
                shape += 1
            height, most = HEIGHTS[shape], WIDTHS[shape]
            end, column = row + (rows - row) // height * height, 0
            while column < panels:
                wide = most if column + most <= panels else 1
                w, shift = weights + column * panel + begin * PANEL, bias + column * PANEL
                for r in range(row, end, height):  # all tiles of this height share the panels while they are cached
                    from_a, to_c = a + r * a_stride + begin * BYTES, c + r * c_stride + column * PANEL
                    tile(height, wide, from_a, a_stride, w, panel, count, shift, to_c, c_stride, to)
                column += wide
            row = end
        begin += count
        to = OLD


@compiled
def _gather(x, t, vectors, first, count, half, frequencies, inputs, at):
    """Write embedded times, states and condition vectors of `count` rows into `inputs`, which is at address `at`."""
    room = (half + LANES - 1) // LANES * LANES
    dim, width, stride = x.shape[1], vectors.shape[1], inputs.shape[1] * BYTES
    for row in range(count):
        i, start = first + row, at + row * stride
        if row and t[i] == t[i - 1]:
            for k in range(2 * room):
                inputs[row, k] = inputs[row - 1, k]
        else:
            sinusoids(t[i], frequencies, half, start, start + room * BYTES)
        for k in range(dim):
            inputs[row, 2 * room + k] = x[i, k]
        for k in range(width):
            inputs[row, 2 * room + dim + k] = vectors[i, k]


@compiled
def _evaluate(x_at, t_at, vectors_at, chosen_at, v_at, rows, sizes, epsilon, parameters, work):
    """Write the velocities of `rows` rows to the address `v_at`.

    Args:
        x_at, t_at: addresses of states and times.
        vectors_at, chosen_at: addresses of condition vectors, and of row numbers in the condition's table; 0 for none.
        sizes: dim, hidden, blocks, frequencies, width of a condition vector, rows of the condition's table.
        epsilon: epsilon of LayerNorm.
        parameters: addresses of the packed parameters.
        work: address of the memory that `_work` provides.

    Returns:
        False, with nothing written, if a row number is outside the table.
    """
    dim, hidden, blocks, half, width, table_rows = sizes
    if chosen_at:
        for number in array_at(chosen_at, rows, np.int64):
            if not 0 <= number < table_rows:
                return False
    room, panels = (hidden + LANES - 1) // LANES * LANES, (hidden + LANES - 1) // LANES
    out_panels = (dim + LANES - 1) // LANES
    half_room = (half + LANES - 1) // LANES * LANES
    terms = 2 * half_room + dim + width
    input_length = (terms + LANES - 1) // LANES * LANES
    length = room + LANES  # a power of two would map all rows to the same cache lines
    input_stride, stride, out_stride = input_length * BYTES, length * BYTES, out_panels * PANEL
    stream_at = work + _BLOCK * input_stride
    normal_at, inner_at = stream_at + _BLOCK * stride, stream_at + 2 * _BLOCK * stride
    answer_at = stream_at + 3 * _BLOCK * stride
    x, t = array_at(x_at, (rows, dim), np.float32), array_at(t_at, rows, np.float32)
    vectors, v = array_at(vectors_at, (rows, width), np.float32), array_at(v_at, (rows, dim), np.float32)
    inputs = array_at(work, (_BLOCK, input_length), np.float32)
    stream = array_at(stream_at, (_BLOCK, length), np.float32)
    answer = array_at(answer_at, (_BLOCK, out_panels * LANES), np.float32)
    for first in range(0, rows, _BLOCK):
        count = min(_BLOCK, rows - first)
        _gather(x, t, vectors, first, count, half, parameters[_FREQUENCIES], inputs, work)
        if chosen_at:
            chosen = array_at(chosen_at, rows, np.int64)
            for row in range(count):
                stream[row, :room] = array_at(parameters[_TABLE] + chosen[first + row] * room * BYTES, room, np.float32)
        start = BIAS_AND_OLD if chosen_at else BIAS
        weights, bias = parameters[_INPUT], parameters[_INPUT + 1]
        _product(work, input_stride, count, terms, weights, bias, panels, stream_at, stride, start)
        at = _LAYERS
        for _ in range(blocks):
            for row in range(count):
                offset = row * stride
                normalise(stream_at + offset, hidden, parameters[at], parameters[at + 1], epsilon, normal_at + offset)
            weights, bias = parameters[at + 2], parameters[at + 3]
            _product(normal_at, stride, count, hidden, weights, bias, panels, inner_at, stride, BIAS)
            silu(inner_at, count * length)
            weights, bias = parameters[at + 4], parameters[at + 5]
            _product(inner_at, stride, count, hidden, weights, bias, panels, stream_at, stride, BIAS_AND_OLD)
            at += 6
        for row in range(count):
            offset = row * stride
            normalise(stream_at + offset, hidden, parameters[at], parameters[at + 1], epsilon, normal_at + offset)
        weights, bias = parameters[at + 2], parameters[at + 3]
        _product(normal_at, stride, count, hidden, weights, bias, out_panels, answer_at, out_stride, BIAS)
        for row in range(count):
            for k in range(dim):
                v[first + row, k] = answer[row, k]
    return True


def can_fuse(velocity: ResidualMLP) -> str | None:
    """Return why a network has no fused form on this machine; None if it has one.

    The rule depends on the network and the processor, never on a clock, so each start of a machine gives the same bits.
    """
    if (dtype := velocity.input.weight.dtype) != torch.float32:
        return f"weights are {dtype}; the fused form is float32"
    if velocity.input.weight.device.type != "cpu":
        return f"weights are on {velocity.input.weight.device}; the fused form runs on the CPU"
    if platform.machine() not in _ALWAYS_WITH_FMA and not llvm.get_host_cpu_features().get("fma"):
        return "the processor has no fused multiply-add"
    return None


class FusedResidualMLP:
    """A compiled copy of a `ResidualMLP`; it does not see later changes of the parameters.

    Any number of threads may call it at once.
    """

    def __init__(self, network: ResidualMLP) -> None:
        self.event_shape, self.condition = network.event_shape, network.condition
        bare, config, entry = network.bare(), network.config, network.config.condition
        width = entry.sizes[0] if entry is not None and entry.classes is None else 0
        self._arrays = packed(network, bare)
        table_rows = len(self._arrays[_TABLE])
        self._sizes = (config.dim, config.hidden, config.blocks, config.time_width // 2, width, table_rows)
        self._epsilon = np.float32(bare.norm[3])
        self._parameters = np.array([array.ctypes.data for array in self._arrays], np.int64)
        self._own = threading.local()

    def __call__(self, x: Tensor, t: Tensor, condition: Tensor | None = None) -> Tensor:
        """Evaluate float32 states on the CPU; see `ResidualMLP.forward`.

        Raises:
            VelocityError: states, times or conditions have another shape or dtype, or a label is out of range.
        """
        check_float32(x, t, self.event_shape)
        x, t = x.contiguous(), t.contiguous()
        vectors, chosen = self._conditions(condition, x)
        v = torch.empty_like(x)
        tensors = (x, t, vectors, chosen, v)
        if not all(_shared(partial(self._rows, tensors), len(x))):
            raise VelocityError(f"condition holds a label outside 0 to {self._sizes[-1] - 1}")
        return v

    def _rows(self, tensors: tuple[Tensor, Tensor, Tensor | None, Tensor | None, Tensor], begin: int, end: int) -> bool:
        """Evaluate rows begin .. end - 1 in the calling thread."""
        x, t, vectors, chosen, v = (0 if tensor is None else tensor[begin:].data_ptr() for tensor in tensors)
        sizes, parameters = self._sizes, self._parameters
        return _evaluate(x, t, vectors, chosen, v, end - begin, sizes, self._epsilon, parameters, self._work())

    def runner(self, condition: Tensor | None = None, *, rows: int) -> Runner | None:
        """Return a runner of lanes with these conditions, one row for each lane, in compiled calls (see `Lanes.run`).

        None if several threads should share the rows, as a runner uses only its own thread.
        """
        if torch.get_num_threads() > 1 and rows >= 2 * _ROWS_OF_A_THREAD:
            return None
        return partial(self._run, condition)

    def _run(
        self,
        condition: Tensor | None,
        lanes: Records,
        states: Floats,
        k: Floats,
        pins: Floats,
        bank: Bank,
        log: StepLog,
        kinds: Index,
        limits: tuple[int, int, int],
    ) -> tuple[int, int, int, int, bool]:
        x = torch.empty(states.shape)
        t, v = x.new_empty(x.shape[0]), torch.empty_like(x)
        vectors, chosen = self._conditions(condition, x)
        if limits[2]:  # these are changed as lanes end
            vectors, chosen = (None if tensor is None else tensor.clone() for tensor in (vectors, chosen))
        vectors_at, chosen_at = [0 if tensor is None else tensor.data_ptr() for tensor in (vectors, chosen)]
        addresses = x.data_ptr(), t.data_ptr(), vectors_at, chosen_at, v.data_ptr()
        constants = (self._sizes, self._epsilon, self._parameters, self._work())
        ended = _run(
            *(lanes, states, k, pins, bank.weights, bank.rows, bank.times, log.arrays),
            *(kinds, limits, addresses, constants),
        )
        if ended[2] == 0:  # no call
            raise VelocityError(f"condition holds a label outside 0 to {self._sizes[-1] - 1}")
        return ended

    def _conditions(self, condition: Any, x: Tensor) -> tuple[Tensor | None, Tensor | None]:
        """Return condition vectors, and the number of each row in the condition's table."""
        if self.condition is None and condition is None:
            return None, None
        [condition] = tensors_of(self.condition, condition, x)
        if not condition.is_floating_point():
            return None, condition.contiguous()
        missing = condition.isnan().any(1)
        return condition.masked_fill(missing[:, None], 0.0).contiguous(), missing.to(torch.int64)

    def _work(self) -> int:
        """Return the address of this thread's memory for activations."""
        if not hasattr(self._own, "address"):
            dim, hidden, _, half, width, _ = self._sizes
            inputs = room(2 * room(half) + dim + width)
            self._own.memory = aligned_zeros(_BLOCK * (inputs + 3 * (room(hidden) + LANES) + room(dim)))
            self._own.address = self._own.memory.ctypes.data
        return self._own.address


def _shared(evaluate: Callable[[int, int], bool], rows: int) -> Iterable[bool]:
    """Share rows among as many threads as torch may use, if there are enough rows."""
    parts = min(torch.get_num_threads(), rows // _ROWS_OF_A_THREAD)
    if parts < 2:
        return (evaluate(0, rows),)
    ends = [rows * part // parts for part in range(parts + 1)]
    return _pool(parts).map(evaluate, ends[:-1], ends[1:])


@cache
def _pool(threads: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(threads, "pathline-fused")


def make(network: ResidualMLP, folder: Path, digest: str) -> FusedResidualMLP:
    """Return the fused form of a network, compiled."""
    warm_up()
    return FusedResidualMLP(network)


@cache
def warm_up() -> None:
    """Compile the loops of fused networks, which takes seconds unless their machine code is cached on disk."""
    with torch.random.fork_rng(devices=()):
        network = FusedResidualMLP(ResidualMLP(ResidualMLPConfig(dim=1, hidden=1, blocks=0)).requires_grad_(False))
    network(torch.zeros(1, 1), torch.zeros(1))
    lanes = Lanes(sized(network.event_shape, {}))
    lanes.admit([Admission(resolve(solver="euler", steps=1), torch.zeros(1, 1))])
    if (runner := network.runner(rows=1)) is not None:
        lanes.run(runner, 1)


MAKER = FormKind("fused", can_fuse, make, "the fused form could not be compiled", "fused", independent=True)
"""The fused form in the table of forms."""
