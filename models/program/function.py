"""Programs of functions other than velocities: rows in, rows out, by name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Self

from pydantic import Field, model_validator
from torch import Tensor, nn

from models.frozen import Sparse
from models.program.steps import (
    MAX_STEPS,
    TENSOR_DTYPES,
    RowLimits,
    Step,
    Steps,
    Stored,
    check_rows,
    check_steps,
)
from models.velocity import rows_of


class FunctionConfig(Sparse):
    """A function of tensors as a list of steps; row i of each result comes from row i of each input alone.

    Attributes:
        inputs: the dtype of each input by its name; steps know it as `c_name`.
        outputs: name of each result -> name of its value in the steps.
        tensors: weights and constants by name.
        steps: the steps in order; each uses only values already computed.
        rows: minimum and maximum number of rows per call; None for no limit.
        alone_on_cpu: whether a CPU calls it with one row at a time, as a row costs hardly less in a batch.
    """

    unwritten = ("rows", "alone_on_cpu")

    inputs: dict[str, str] = Field(min_length=1, max_length=64)
    outputs: dict[str, str] = Field(min_length=1, max_length=64)
    tensors: dict[str, Stored]
    steps: tuple[Step, ...] = Field(max_length=MAX_STEPS)
    rows: RowLimits = (1, None)
    alone_on_cpu: bool = False

    @model_validator(mode="after")
    def _check(self) -> Self:
        check_rows(self.rows)
        for name, dtype in self.inputs.items():
            if dtype not in TENSOR_DTYPES:
                raise ValueError(f"input {name[:60]!r} is {dtype[:60]!r}, which programs cannot take")
        check_steps(self.tensors, self.steps, {f"c_{name}" for name in self.inputs}, tuple(self.outputs.values()))
        return self

    def brief(self) -> dict[str, Any]:
        """Return a summary for readers, with counts in place of thousands of steps."""
        return self.model_dump(mode="json") | {"steps": len(self.steps), "tensors": len(self.tensors)}


class Function(nn.Module):
    """The function of a program."""

    def __init__(self, config: FunctionConfig) -> None:
        super().__init__()
        self.config = config
        self._steps = Steps(self, config.tensors, config.steps, tuple(config.outputs.values()))

    @property
    def rows(self) -> RowLimits:
        """The minimum and maximum number of rows per call; None for no limit."""
        return self.config.rows

    @property
    def alone_on_cpu(self) -> bool:
        """See `FunctionConfig`."""
        return self.config.alone_on_cpu

    def forward(self, given: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return the results by name for inputs (rows, ...) by name; inputs are cast to their declared dtypes.

        Raises:
            VelocityError: a step fails.
        """
        cast = {f"c_{name}": given[name].to(TENSOR_DTYPES[dtype]) for name, dtype in self.config.inputs.items()}
        limits = rows_of(self, next(iter(cast.values())).device)
        return dict(zip(self.config.outputs, self._steps.run(self, cast, limits), strict=True))
