"""Half precision: networks that compute in bfloat16 or float16 while states, velocities and errors stay float32.

The parameters of such a network are stored and kept in its compute dtype, its buffers in their own dtypes, as the
frequencies of a time embedding need all of their digits. States and conditions are cast on the way in and the result on
the way out; times stay float32 unless the network requires another dtype.
"""

from __future__ import annotations

from typing import Any, Literal

import torch
from torch import Tensor, nn

from models.velocity import VelocityField, Wrapper

Compute = Literal["float32", "bfloat16", "float16"]
HALVES: dict[str, torch.dtype] = {"bfloat16": torch.bfloat16, "float16": torch.float16}
_INSTRUCTIONS = {"bfloat16": ("avx512_bf16", "amx_bf16", "bf16"), "float16": ("avx512_fp16", "amx_fp16", "fp16")}


class Cast(Wrapper):
    """A half-precision network as a float32 field."""

    def __init__(self, network: nn.Module, compute: torch.dtype) -> None:
        super().__init__(network)
        self.compute = compute
        self._times: torch.dtype = getattr(network, "time_dtype", None) or torch.float32

    def ask(self, network: VelocityField, x: Tensor, t: Tensor, condition: Any = None) -> Tensor:
        """Evaluate float32 states with a half-precision field."""
        takes = getattr(self.network, "condition", None)
        if takes is not None and condition is not None:
            condition = takes.cast(condition, self.compute)
        return network(x.to(self.compute), t.to(self._times), condition).to(x.dtype)


def to_half(network: nn.Module, compute: str) -> None:
    """Convert the parameters of a network to half precision."""
    for parameter in network.parameters():
        parameter.data = parameter.data.to(HALVES[compute])


def missing_instructions(compute: str, device: torch.device | str = "cpu", program: bool = False) -> str:
    """Return a warning for a processor without instructions for a half precision; empty if it has them.

    Args:
        compute: the precision.
        device: the device of the network.
        program: whether the network is an exported program, which fixes its own precision.
    """
    if compute not in HALVES or torch.device(device).type != "cpu":
        return ""
    capabilities = torch.cpu.get_capabilities()
    if any(capabilities.get(name) for name in _INSTRUCTIONS[compute]):
        return ""
    return f"this CPU has no instructions for {compute}, so the network is slower than in float32; " + (
        "export it in float32" if program else "set PATHLINE_COMPUTE=float32, or import it with --compute float32"
    )
