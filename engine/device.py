"""Devices: where networks run, how data gets there and back, and what to do when memory runs out.

The CPU needs none of this. On CUDA the work of each thread goes through its own stream, copies between host and
device go through pinned memory, and calls of few rows can be captured as graphs, which saves the launch of each
kernel (`PATHLINE_CUDA_GRAPHS`).
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections import OrderedDict
from contextlib import AbstractContextManager

import torch
from torch import Tensor

from models.checkpoint.loading import Checkpoint
from models.exported import exported
from models.fused import Prepared, prepare
from models.named_conditions import NamedConditions
from models.velocity import Condition, VelocityField, rows_of

_LARGEST_GRAPH = 1024
"""Rows up to which calls are captured; a longer call keeps the device busy anyway."""

_MAX_GRAPHS = 16


def choose_device(name: str) -> torch.device:
    """The device that a setting means: `auto` is CUDA if available, else the CPU."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    return torch.device(name)


def device_of(device: torch.device, graphs: bool = False, compile: bool = True) -> Device:  # noqa: A002
    """The device's tools; `graphs` asks for graph capture, which only CUDA has, `compile` for fused forms on a CPU."""
    return Cuda(device, graphs) if device.type == "cuda" else Device(device, compile)


class Device:
    """A device that shares memory with the host: the CPU."""

    def __init__(self, device: torch.device, compile: bool = True) -> None:  # noqa: A002
        self.device = device
        self._compile = compile

    @property
    def name(self) -> str:
        """What it is called in metrics."""
        return "cpu"

    def scope(self) -> AbstractContextManager[object]:
        """A context in which the engine does its work."""
        return contextlib.nullcontext()

    def seconds(self) -> float:
        """A clock of this thread's work alone: CPU time used by others does not count."""
        return time.thread_time()

    def finish(self) -> None:
        """Wait until all work given to the device is done."""

    def send(self, tensor: Tensor) -> Tensor:
        """Return a host tensor on the device."""
        return tensor

    def fetch(self, tensor: Tensor) -> Tensor:
        """Return a device tensor on the host."""
        return tensor

    def free(self) -> None:
        """Release cached memory, before work that ran out of memory is tried again in smaller parts."""

    def is_lost(self, error: BaseException) -> bool:
        """Whether nothing can run on the device after this error, so that the process must be restarted."""
        return False

    def prepare(self, checkpoint: Checkpoint, condition: NamedConditions | None) -> Prepared:
        """Return the field in the form to call: fused or exported if possible."""
        velocity = checkpoint.velocity
        if not self._compile:
            return Prepared(velocity, "eager", "PATHLINE_COMPILE is off")
        made = prepare(velocity, condition)
        if made.path == "fused" or made.failed:
            return made
        return exported(velocity, made.reason, checkpoint.path, checkpoint.digest)


class Cuda(Device):
    """One CUDA device."""

    def __init__(self, device: torch.device, graphs: bool) -> None:
        super().__init__(device)
        self._graphs = graphs
        self._own = threading.local()  # the engine's thread and the loading thread must not share one

    @property
    def _stream(self) -> torch.cuda.Stream:
        if not hasattr(self._own, "stream"):
            self._own.stream = torch.cuda.Stream(self.device)
        return self._own.stream

    @property
    def name(self) -> str:
        """What it is called in metrics."""
        return torch.cuda.get_device_name(self.device)

    def scope(self) -> AbstractContextManager[object]:
        """A context in which all work of a thread goes to its own stream."""
        return torch.cuda.stream(self._stream)

    def seconds(self) -> float:
        """Wall-clock time: the device works while the thread waits."""
        return time.perf_counter()

    def finish(self) -> None:
        """Wait for the stream."""
        self._stream.synchronize()

    def send(self, tensor: Tensor) -> Tensor:
        """Copy through pinned memory, without waiting; torch keeps the pinned block until the copy is done."""
        if tensor.device.type != "cpu" or not tensor.numel():
            return tensor.to(self.device)
        return tensor.pin_memory().to(self.device, non_blocking=True)

    def fetch(self, tensor: Tensor) -> Tensor:
        """Copy into pinned memory and wait for the stream."""
        if tensor.device.type == "cpu" or not tensor.numel():
            return tensor.cpu()
        host = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
        host.copy_(tensor, non_blocking=True)
        self._stream.synchronize()
        return host

    def free(self) -> None:
        """Return cached blocks to the driver."""
        torch.cuda.empty_cache()

    def is_lost(self, error: BaseException) -> bool:
        """A CUDA error other than lack of memory leaves the context unusable."""
        return not isinstance(error, torch.OutOfMemoryError) and "CUDA error" in str(error)

    def prepare(self, checkpoint: Checkpoint, condition: NamedConditions | None) -> Prepared:
        """Return the field, with graph capture if that was requested."""
        velocity = checkpoint.velocity
        return Prepared(Captured(velocity) if self._graphs else velocity, "eager", "fused forms are for the CPU")


class Captured:
    """A field with its calls captured as CUDA graphs, once for each row count, and then replayed.

    Calls arrive padded to a few row counts (`models.row_padding`); here they are padded further, to powers of two, and
    beyond 16 recordings the least recently used is dropped. Larger calls go to the field itself.
    """

    def __init__(self, velocity: VelocityField) -> None:
        self._velocity = velocity
        self.rows = rows_of(velocity)
        self._recorded: OrderedDict[tuple[int, torch.dtype], tuple[torch.cuda.CUDAGraph, Tensor, Tensor, Tensor]] = (
            OrderedDict()
        )

    def __call__(self, x: Tensor, t: Tensor, condition: Condition | None = None) -> Tensor:
        """Evaluate (rows, *event) at (rows,); a call with conditions goes to the field itself."""
        rows = len(x)
        if condition is not None or not rows or rows > _LARGEST_GRAPH:
            return self._velocity(x, t, condition)
        padded = 1 << (rows - 1).bit_length()
        key = (padded, x.dtype)
        if key not in self._recorded:
            self._recorded[key] = self._record(x, t, padded)
            if len(self._recorded) > _MAX_GRAPHS:
                self._recorded.popitem(last=False)
        self._recorded.move_to_end(key)
        graph, held_x, held_t, held_v = self._recorded[key]
        held_x[:rows].copy_(x)
        held_t[:rows].copy_(t)
        graph.replay()
        return held_v[:rows].clone()

    def _record(self, x: Tensor, t: Tensor, rows: int) -> tuple[torch.cuda.CUDAGraph, Tensor, Tensor, Tensor]:
        held_x, held_t = (held.new_zeros((rows, *held.shape[1:])) for held in (x, t))
        for _ in range(3):  # kernels choose their code in the first calls, which must not be recorded
            self._velocity(held_x, held_t)
        stream = torch.cuda.current_stream(x.device)
        stream.synchronize()
        graph = torch.cuda.CUDAGraph()
        # Other threads may allocate meanwhile: only this one's work must be fit for capture.
        with torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):
            held_v = self._velocity(held_x, held_t)
        return graph, held_x, held_t, held_v
