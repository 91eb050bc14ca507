"""The environment of an answer: libraries, device and machine that its bits depend on, and where two of them differ."""

from __future__ import annotations

import platform
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from importlib.metadata import version

import torch
from llvmlite import binding

from models.forms.onnx import installed
from service import VERSION
from service.registry.version import ModelVersion

LIBRARIES = ("torch", "numpy", "scipy", "numba", "llvmlite")
"""Libraries used to compute networks, noise and steps."""

_REASONS = {
    "pathline": "another release may add in a different order",
    "device": "other devices have other kernels",
    "machine": "kernels are chosen and compiled for the type of processor",
    "compute": "the network computes in another precision",
    "path": "the fused network, onnxruntime and the torch module round differently",
    "rows": "kernels are chosen by the number of rows in a call",
    "threads": "torch kernels split sums by the number of threads",
}
_LIBRARY = "another version may have other kernels"


@dataclass(frozen=True)
class Difference:
    """One difference between an earlier answer and this service.

    Attributes:
        what: name of the property.
        answer, here: its value in the answer, and in this service.
        reason: why the bits cannot be promised.
    """

    what: str
    answer: str
    here: str
    reason: str

    def __str__(self) -> str:
        answer, here = (text[:19] if text.startswith("sha256:") else text for text in (self.answer, self.here))
        return f"{self.what} (answer: {answer}; here: {here}; {self.reason})"


def environment_of(process: Mapping[str, str], model: ModelVersion) -> Mapping[str, str]:
    """Return the environment of a model's answers: that of the process, and how the network is evaluated."""
    half = {} if model.card.compute is None else {"compute": model.half or model.card.dtype}
    runtime = installed() if model.path == "onnx" else {}
    rows = {} if model.path == "fused" else {"rows": str(model.row_limit)}  # fused rows are computed one by one
    return {**process, "path": model.path, **rows, **runtime, **half}


@lru_cache(maxsize=4)
def environment(device: str, device_name: str, threads: int) -> Mapping[str, str]:
    """Return the environment of this process by name: release, libraries, device, machine, threads.

    Args:
        device: torch's name for the device; the index among identical devices does not matter.
        device_name: the vendor's name for it.
        threads: CPU threads of the networks.
    """
    kind = device.partition(":")[0]
    cpu = f"{platform.machine()} {binding.get_host_cpu_name()} {torch.backends.cpu.get_cpu_capability()}"
    return {
        "pathline": VERSION,
        **{name: str(torch.__version__) if name == "torch" else version(name) for name in LIBRARIES},
        "device": kind if kind == "cpu" else f"{kind} {device_name}",
        "machine": cpu,
        "threads": str(threads),
    }


def differences_of(answer: Mapping[str, str], here: Mapping[str, str], threads_matter: bool) -> list[Difference]:
    """Return where two environments differ.

    Args:
        answer, here: the environment of the answer, and of this process.
        threads_matter: whether torch computed anything, as its bits depend on the number of threads.
    """
    return [
        Difference(name, answer.get(name, "not named"), here[name], _REASONS.get(name, _LIBRARY))
        for name in here
        if answer.get(name) != here[name] and (name != "threads" or threads_matter)
    ]
