"""Devices: where networks run, with how many threads, how data gets there and back, and what to do without memory."""

from __future__ import annotations

import contextlib
import math
import os
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import torch
from torch import Tensor

from models.checkpoint.loading import Checkpoint
from models.conditions import NamedConditions
from models.forms.form import Form, choose


def choose_device(name: str) -> torch.device:
    """The device that a setting means: `auto` is CUDA if available, else the CPU."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    return torch.device(name)


def device_of(device: torch.device, compile: bool = True) -> Device:  # noqa: A002
    """The device's tools; `compile` asks for fused and exported forms, which only the CPU has."""
    return Cuda(device) if device.type == "cuda" else Device(device, compile)


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

    seconds: Callable[[], float] = staticmethod(time.thread_time)
    """A clock of this thread's work alone: CPU time used by others does not count."""

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

    def form(self, checkpoint: Checkpoint, condition: NamedConditions | None) -> Form:
        """Return the form in which to evaluate the field: fused or exported if possible."""
        if not self._compile:
            return Form(checkpoint.velocity, reason="PATHLINE_COMPILE is off")
        return choose(checkpoint.velocity, condition, checkpoint.path, checkpoint.digest)


class Cuda(Device):
    """One CUDA device; written without one, and never run on one.

    The work of each thread goes through its own stream, and copies between host and device through pinned memory.
    """

    def __init__(self, device: torch.device) -> None:
        super().__init__(device)
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

    seconds = staticmethod(time.perf_counter)  # the device works while the thread waits

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

    def form(self, checkpoint: Checkpoint, condition: NamedConditions | None) -> Form:
        """Return the field as it is."""
        return Form(checkpoint.velocity, reason="fused forms are for the CPU")


def default_threads() -> int:
    """CPU threads of the networks if the settings give no number: the usable cores except one.

    torch would take all of them, and leave none for HTTP and encoding, which go on while the network computes. Usable
    are no more than the quota of a container grants: more threads would take turns and be stopped in between.
    """
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, int(min(cores, cpu_quota())) - 1)


_ROOT, _OWN = Path("/sys/fs/cgroup"), Path("/proc/self/cgroup")


def cpu_quota(root: Path = _ROOT, own: Path = _OWN) -> float:
    """Return the CPUs' worth of time of this process's control groups, version 1 or 2; infinite without a quota.

    Args:
        root: where control groups are mounted.
        own: the file that names those of this process.
    """
    try:
        lines = own.read_text().splitlines()
    except OSError:  # not Linux
        return math.inf
    quotas = [math.inf]
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers and "cpu" not in controllers.split(","):
            continue
        top = root / "cpu" if controllers else root
        inside = Path(path.lstrip("/"))  # in a container, the group may be mounted at the top
        quotas += [_quota(top / group) for group in (inside, *inside.parents)]
    return min(quotas)


def _quota(group: Path) -> float:
    try:
        if (group / "cpu.max").exists():
            quota, period = (group / "cpu.max").read_text().split()
        else:
            quota, period = ((group / f"cpu.cfs_{name}_us").read_text().strip() for name in ("quota", "period"))
        return math.inf if quota in ("max", "-1") else int(quota) / int(period)
    except (OSError, ValueError, ZeroDivisionError):
        return math.inf
