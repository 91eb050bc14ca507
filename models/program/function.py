"""Programs of functions other than velocities: rows in, rows out, by name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Self

from pydantic import Field, model_validator
from torch import Tensor

from models.conditions import DTYPES
from models.program.steps import StepsConfig, Stepwise


class FunctionConfig(StepsConfig):
    """A function of tensors as a list of steps; row i of each result comes from row i of each input alone.

    Attributes:
        inputs: the dtype of each input by its name; steps know it as `c_name`.
        outputs: name of each result -> name of its value in the steps.
    """

    inputs: dict[str, str] = Field(min_length=1, max_length=64)
    outputs: dict[str, str] = Field(min_length=1, max_length=64)

    @model_validator(mode="after")
    def _check(self) -> Self:
        for name, dtype in self.inputs.items():
            if dtype not in DTYPES:
                raise ValueError(f"input {name[:60]!r} is {dtype[:60]!r}, which programs cannot take")
        self.check_steps({f"c_{name}" for name in self.inputs}, tuple(self.outputs.values()))
        return self

    def brief(self) -> dict[str, Any]:
        """Return a summary for readers, with counts in place of thousands of steps."""
        return self.model_dump(mode="json") | {"steps": len(self.steps), "tensors": len(self.tensors)}


class Function(Stepwise):
    """The function of a program."""

    config: FunctionConfig

    def __init__(self, config: FunctionConfig) -> None:
        super().__init__()
        self.config = config
        self.add_steps(config, tuple(config.outputs.values()))

    def forward(self, inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return the results by name for inputs (rows, ...) by name; inputs are cast to their declared dtypes.

        Raises:
            VelocityError: a step fails.
        """
        cast = {f"c_{name}": inputs[name].to(DTYPES[dtype]) for name, dtype in self.config.inputs.items()}
        return dict(zip(self.config.outputs, self.run(cast), strict=True))
