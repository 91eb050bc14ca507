"""One network behind a service and in its own library's sampler, and what all of them need."""

from __future__ import annotations

import ast
import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from models.importing.declared import Declared
from models.noise import noise

Tensors = Mapping[str, Tensor]
"""Conditions of one request by name, one row each."""

Plain = Callable[[Tensor, Tensors, int, torch.dtype], Tensor]
"""(noise (rows, *event), conditions, number of the request, dtype) -> samples, by the library's own sampler."""

STRAIGHT = Declared(noise_at=0, scale=1.0, sign=1)
"""The convention of networks that return data minus noise at t from 0 (noise) to 1 (data)."""


@dataclass(frozen=True)
class Case:
    """A network, imported into a repository.

    Attributes:
        source: the package that its class is from, or `written here`.
        model: its name in the repository.
        parameters: how many it has.
        lines: lines of code that a user writes around the network.
        sampler: the library's sampler, in words.
        plain: draws samples in a plain loop; it is called with float64 only where `exact` is true.
        event: the shape of one state of a request, given its sizes.
        solver: the solver of requests; None for the one in the card.
        conditions: (number of the request, its sizes) -> its conditions.
        shapes: sizes of the free axes of the eight requests.
        samples: samples of a request.
        free, centred: places of free axes in a state, and of the axis along which noise has the mean zero.
        exact: whether it is compared with float64.
    """

    source: str
    model: str
    parameters: int
    lines: int
    sampler: str
    plain: Plain
    event: Callable[[Mapping[str, int]], tuple[int, ...]]
    solver: str | None = None
    conditions: Callable[[int, Mapping[str, int]], dict[str, NDArray[Any]]] = lambda k, sizes: {}
    shapes: Sequence[Mapping[str, int]] = field(default_factory=lambda: [{}])
    samples: int = 1
    free: tuple[int, ...] = ()
    centred: int | None = None
    exact: bool = True

    def sizes(self, k: int) -> Mapping[str, int]:
        """Return the sizes of the free axes of request k."""
        return self.shapes[k % len(self.shapes)]

    def options(self, k: int) -> dict[str, Any]:
        """Return the fields of request k."""
        options: dict[str, Any] = {"seed": k, "timeout_s": 600}
        if self.solver is not None:
            options["solver"] = self.solver
        if sizes := self.sizes(k):
            options["shape"] = dict(sizes)
        if conditions := self.conditions(k, sizes):
            options["conditions"] = conditions
        return options

    @torch.no_grad()
    def draw(self, k: int, dtype: torch.dtype = torch.float32) -> NDArray[Any]:
        """Return the samples of request k, by the library's own sampler from the same noise."""
        sizes = self.sizes(k)
        x = noise(k, 0, self.samples, self.event(sizes), free=self.free, centred=self.centred).to(dtype)
        rows = {name: torch.from_numpy(value)[None] for name, value in self.conditions(k, sizes).items()}
        floats = {name: row.to(dtype) if row.is_floating_point() else row for name, row in rows.items()}
        return self.plain(x, floats, k, dtype).numpy()


def code_lines(file: str | None, *names: str) -> int:
    """Return the number of lines of classes and functions in a file, without documentation and empty lines."""
    text = Path(str(file)).read_text()
    lines = dict(enumerate(map(str.strip, text.splitlines()), start=1))
    total = 0
    for part in ast.parse(text).body:
        if isinstance(part, ast.ClassDef | ast.FunctionDef) and part.name in names:
            documented = {
                line
                for node in ast.walk(part)
                if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
                for line in range(node.lineno, (node.end_lineno or node.lineno) + 1)
            }
            total += sum(
                bool(lines[line]) and line not in documented
                for line in range(part.lineno, (part.end_lineno or part.lineno) + 1)
            )
    return total


def normal(k: int, *shape: int) -> NDArray[np.float32]:
    """Return standard normal numbers from a seed."""
    return np.random.default_rng(k).normal(size=shape).astype(np.float32)


def seeded(make: Callable[[], nn.Module], spread: float | None = None) -> nn.Module:
    """Make a network with random weights from seed 0; with a `spread`, also those that its class starts at zero."""
    torch.manual_seed(0)
    network = make().eval().requires_grad_(False)
    for weights in network.parameters():
        if spread is not None and not weights.any():
            nn.init.normal_(weights, std=spread)
    return network


def in_dtype(network: nn.Module) -> Callable[[torch.dtype], nn.Module]:
    """Return dtype -> the network in it; in float64 with embeddings of times as its class rounds them."""
    double: list[nn.Module] = []

    def chosen(dtype: torch.dtype) -> nn.Module:
        if dtype == torch.float32:
            return network
        if not double:
            double.append(copy.deepcopy(network).double())
            for module in double[0].modules():
                module.register_forward_pre_hook(_doubled, with_kwargs=True)
                if isinstance(module, nn.GroupNorm):  # TorchCFM's casts to float32
                    module.forward = partial(nn.GroupNorm.forward, module)
        return double[0]

    return chosen


def _doubled(module: nn.Module, args: Any, kwargs: Any) -> Any:
    """Convert the arguments of a module, as networks cast some of them to float32."""

    def cast(value: Any) -> Any:
        return value.double() if isinstance(value, Tensor) and value.is_floating_point() else value

    return tuple(map(cast, args)), {name: cast(value) for name, value in kwargs.items()}


def export(network: nn.Module, arguments: Sequence[Tensor], file: Path, shapes: Sequence[dict[int, Any]] = ()) -> Path:
    """Export a network with a free number of rows, and the other free sizes of each argument."""
    rows = torch.export.Dim("rows", min=1, max=63)
    every = shapes or [{}] * len(arguments)
    dynamic = tuple({0: rows, **sizes} for sizes in every)
    torch.export.save(torch.export.export(network, tuple(arguments), dynamic_shapes=dynamic), file)
    return file


def size_of(network: nn.Module) -> int:
    """Return the number of parameters."""
    return sum(weights.numel() for weights in network.parameters())


def euler(velocity: Callable[[Tensor, Tensor], Tensor], x: Tensor, times: Sequence[float]) -> Tensor:
    """Integrate with Euler's method along these times."""
    for start, end in pairwise(times):
        x = x + (end - start) * velocity(x, torch.full((len(x),), start, dtype=x.dtype))
    return x
