"""The environment of an answer: what its bits depend on beside the request, and where two environments differ."""

from __future__ import annotations

import platform
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from importlib.metadata import version

import torch
from llvmlite import binding

from service import VERSION

LIBRARIES = ("torch", "numpy", "scipy", "numba", "llvmlite")
"""What computes: networks, noise, steps."""

_REASONS = {
    "pathline": "another release may order a sum otherwise",
    "device": "other devices have other kernels",
    "machine": "kernels are chosen, and compiled, by the kind of processor",
    "path": "the fused network and the torch module round otherwise",
    "threads": "kernels of torch share out sums by the number of threads",
}
_LIBRARY = "another version may have other kernels"


@dataclass(frozen=True)
class Difference:
    """One thing that differs between the token and this service.

    Attributes:
        what: its name.
        token, here: what the token says, and what is found here.
        reason: why the bits cannot be promised.
    """

    what: str
    token: str
    here: str
    reason: str

    def document(self) -> dict[str, str]:
        """Return the difference as it stands in responses."""
        return {"what": self.what, "token": self.token, "here": self.here, "reason": self.reason}

    def __str__(self) -> str:
        token, here = (text[:19] if text.startswith("sha256:") else text for text in (self.token, self.here))
        return f"{self.what} (token: {token}; here: {here}; {self.reason})"


@lru_cache(maxsize=4)
def environment(device: str, device_name: str, threads: int) -> Mapping[str, str]:
    """Return the environment of this process by name: release, libraries, device, machine, threads.

    Args:
        device: torch's name of the device; which of several equal ones it is does not matter.
        device_name: its maker's.
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


def differences(token: Mapping[str, str], here: Mapping[str, str], threads_matter: bool) -> list[Difference]:
    """Return where two environments differ.

    Args:
        token, here: that of the answer, and that of this process.
        threads_matter: whether anything was computed by torch, whose bits depend on the number of threads.
    """
    return [
        Difference(name, token.get(name, "not named"), here[name], _REASONS.get(name, _LIBRARY))
        for name in here
        if token.get(name) != here[name] and (name != "threads" or threads_matter)
    ]
