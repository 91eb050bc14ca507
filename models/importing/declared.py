"""Declarations of an import: the convention of the network, and its default solver."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pydantic import ValidationError

from models.checkpoint.card import SamplingCard
from models.compute import Compute
from models.conventions import TimeCard
from models.importing.files import ForeignError
from models.messages import explain
from models.scheduler import Chain, read_scheduler
from solvers.errors import SolverError
from solvers.spec import SolverSpec

_NEAR = 0.35  # slopes further off get a warning


@dataclass(frozen=True)
class Declared:
    """The convention that the user declares; None is detected, or follows from the other declarations.

    Attributes:
        noise_at, scale, sign, predicts, path, schedule, start, end, stop, start_scale: see `TimeCard`.
        sampling: the network's default solver.
        compute: the precision that it computes in; None for the program's own, or float32 for weights.
        noise_independent: whether it was trained on noise that is independent of the data.
    """

    noise_at: int | None = None
    scale: float | None = None
    sign: int | None = None
    predicts: str | None = None
    path: str | None = None
    schedule: Mapping[str, Any] | None = None
    start: float | None = None
    end: float | None = None
    stop: float | None = None
    start_scale: float | None = None
    sampling: SamplingCard | None = None
    compute: Compute | None = None
    noise_independent: bool = True

    @property
    def convention(self) -> dict[str, Any]:
        """The declared fields of a `TimeCard`."""
        values = {name: getattr(self, name, None) for name in TimeCard.model_fields if name != "data_at"}
        return {name: value for name, value in values.items() if value is not None}

    @property
    def changes(self) -> bool:
        """Whether it declares more than the time and the sign of a velocity on the straight path."""
        usual = {"predicts": "velocity", "path": "linear"}
        stated = {name: value for name, value in self.convention.items() if usual.get(name) != value}
        return not stated.keys() <= {"noise_at", "scale", "sign"}

    def card(self) -> TimeCard:
        """Return the convention as declared, if it cannot be detected; noise is at 1 by default.

        Raises:
            ForeignError: the declarations contradict each other.
        """
        noise_at = 1 if self.noise_at is None else self.noise_at
        try:
            return TimeCard.model_validate({**self.convention, "noise_at": noise_at, "data_at": 1 - noise_at})
        except ValidationError as error:
            raise ForeignError(f"the declared convention is not valid: {_describe_error(error)}") from None

    def sampled(self, solver: str | None, own_times: Sequence[float] | None = None) -> SamplingCard | None:
        """Return the default solver; None if none is named.

        Args:
            solver: its text.
            own_times: its grid in own times, see `TimeCard.grid`; None for the grid of the text. They need
                a fully declared convention.

        Raises:
            ForeignError: it is not a solver, the times are not a grid, or two grids are given.
        """
        if solver is None:
            if own_times is not None:
                raise ForeignError("--own-times needs --solver, the method that takes these steps, such as euler")
            return None
        time = self.card() if own_times is not None else TimeCard()
        try:
            text = solver if own_times is None else str(SolverSpec.of(solver, grid=time.grid(own_times)))
            return SamplingCard(solver=SamplingCard.checked(text))
        except SolverError as error:
            if own_times is None:
                raise ForeignError(f"--solver {solver}: {error}") from None
            first = time.own(time.levels[0])
            advice = f"; for times from {own_times[0]:g} on, add --start {own_times[0]:g}"
            raise ForeignError(
                f"--solver {solver} with --own-times: {error} (as t; own times run from {first:g}, where sampling "
                f"starts, to data{advice if time.time_of(own_times[0]) > 0 else ''})"
            ) from None

    def scheduled(self, config: Mapping[str, Any], solver: str | None, patch: int | None = None) -> Declared:
        """Return this with what a scheduler of diffusers states: its convention where none is declared, and its times.

        Args:
            config: its `scheduler_config.json`.
            solver: the method and its number of steps.
            patch: size of a token of its dynamic shift.

        Raises:
            ForeignError: the scheduler is not served, or the solver has no grid of its own steps.
        """
        try:
            scheduler, stated = read_scheduler(config, patch)
            taken = replace(self, **{name: value for name, value in stated.items() if getattr(self, name) is None})
            if solver is None:
                raise ForeignError("--scheduler needs --solver, the method and its number of steps, such as euler-28")
            sampling = SamplingCard(solver=solver, scheduler=scheduler)
            if isinstance(scheduler, Chain) and taken.start is None:
                time = taken.card()
                first = scheduler.levels(sampling.steps or 1, time.shape)[0]
                taken = replace(taken, start=time.own(first))
        except ValidationError as error:
            raise ForeignError(f"--solver {solver} with --scheduler: {_describe_error(error)}") from None
        except ValueError as error:
            raise ForeignError(f"--scheduler: {error}") from None
        return replace(taken, sampling=sampling)

    def report(self, time: TimeCard, slope: float) -> list[str]:
        """Return lines for the user: the convention used, and where the network disagrees.

        Args:
            time: the convention as declared.
            slope: see `start_slope`.
        """
        first, last = time.sigmas
        fields = time.shape.model_dump()
        shape = ", ".join([fields.pop("kind"), *(f"{name} {value}" for name, value in fields.items())])
        lines = [
            f"convention: predicts {time.predicts} on path {time.path} ({shape}), noise at {time.noise_at}, "
            f"time scale {time.scale:g}, sign {time.sign:+d}",
            f"sampling: from own time {time.own(time.levels[0]):.6g} (sigma {first:.6g}, states of scale "
            f"{time.first_scale:.6g}) to {time.own(time.levels[1]):.6g} (sigma {last:.6g})",
        ]
        expected = {"eps": 1.0, "x0": 0.0, "v": 0.0}.get(time.predicts, 1.0 if time.path == "edm" else None)
        if time.predicts == "velocity" and time.path == "linear":
            expected = 1.0 if time.noise_at == 1 else -1.0
        if expected is not None and not abs(time.sign * slope - expected) <= _NEAR:
            lines.append(
                f"warning: predicts {time.predicts} as declared looks wrong: at the start of sampling, the slope of "
                f"the outputs over the noise is {time.sign * slope:+.2f}, expected near {expected:+.0f}"
            )
        return lines

    def resolve(self, detected: TimeCard | None, evidence: str) -> tuple[TimeCard, list[str]]:
        """Return the convention of a velocity to store, and lines as of `report`, from what `detect` returned."""
        usual = detected or TimeCard()
        declared = {"noise_at": self.noise_at, "scale": self.scale, "sign": self.sign}
        taken = {name: getattr(usual, name) if value is None else value for name, value in declared.items()}
        time = TimeCard.model_validate({**taken, "data_at": 1 - taken["noise_at"]})
        report = [f"convention: noise at {time.noise_at}, time scale {time.scale:g}, sign {time.sign:+d}"]
        if detected is None:
            report += [f"warning: the convention {evidence}"] if None in declared.values() else []
        elif wrong := [name for name, value in declared.items() if value not in (None, getattr(usual, name))]:
            report.append(f"warning: {' and '.join(wrong)} as declared looks wrong; the network shows {evidence}")
        if self.predicts is None and time.sign == (1 if time.noise_at == 1 else -1):
            report.append(
                "warning: this network is assumed to return noise minus data; one that predicts the noise alone "
                "looks the same here: declare --predicts velocity, or --predicts eps with its --path"
            )
        return time, report


def _describe_error(error: ValidationError) -> str:
    """Describe the errors of a convention, without the values of all fields."""
    whole = [fault["msg"].removeprefix("Value error, ") for fault in error.errors() if not fault["loc"]]
    return "; ".join(whole) or explain(error)
