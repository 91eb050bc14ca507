"""SolverSpec: the settings of a solver, checked, completed with defaults, and readable as text.

    tuned:     tuned-STEPS, or NAME-STEPS/tuned  tuned-6   ab4-9/tuned
    fixed:     NAME-STEPS[/GRID][+OPTION...]     rk4-20   ab3-12/shift(3)   ab2-10+rk   rk4-3/(0,0.2,0.6,1)
    adaptive:  NAME[@RTOL[/ATOL]][+OPTION...]    dopri5   dopri5@1e-5   dopri5@1e-5/1e-6   tsit5@1e-4+batch

GRID is a grid's name, with its parameters in parentheses where it has any, or times in parentheses. OPTION is a value
of `start`, `controller` or `error_control`; `first_step=`, `max_step=` or `max_nfe=` with a number; or the schedule of
a stochastic method, with its scale and temperature in parentheses unless they are 1: `sde-50+flow_grpo(0.7)`.
`resample=` repeats the steps of a one-step method: `euler-50+resample=3`. Case and surrounding spaces do not matter;
`rk4:20` and `rk4_20` are the same as `rk4-20`, and `sde-heun-25` as `sde_heun-25`. This is the only place that reads or
writes such text: other programs send it as it was typed, and show the `text` of a response.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from functools import cached_property
from typing import Any

import numpy as np

from solvers import catalogue
from solvers.control import CONTROLLERS, MAX_STEP_SLACK
from solvers.errors import SolverError
from solvers.grids import (
    GRID_TEXT,
    GRIDS,
    NUMBER,
    GridSpec,
    grid_text,
    normalise,
    number_text,
    read,
    settings_of,
    snapped,
)
from solvers.multistep import STARTS
from solvers.stochastic import SCHEDULES, Diffusion
from solvers.tuned import TUNED

DEFAULT_TOLERANCE = 1e-5
DEFAULT_MAX_NFE = 10_000
ERROR_CONTROLS = ("sample", "batch")
MAX_RESAMPLE = 100
MAX_STEPS = 10_000_000
"""More steps than this are refused before anything is allocated."""


@dataclass(frozen=True)
class Option:
    """A setting that text has after a plus: a word, or its name and a number.

    Attributes:
        words: its values, the default first; empty for a number.
        whole: whether the number is an integer.
        adaptive: whether it is for error control only.
    """

    words: tuple[str, ...] = ()
    whole: bool = False
    adaptive: bool = True


OPTIONS = {
    "start": Option(STARTS, adaptive=False),
    "diffusion": Option(tuple(SCHEDULES), adaptive=False),
    "resample": Option(whole=True, adaptive=False),
    "controller": Option(tuple(CONTROLLERS)),
    "error_control": Option(ERROR_CONTROLS),
    "first_step": Option(),
    "max_step": Option(),
    "max_nfe": Option(whole=True, adaptive=False),
}
"""By field of `SolverSpec`, in the order in which they are printed. No word belongs to two fields."""


@dataclass(frozen=True)
class SolverSpec:
    """The settings of a solver, completed with defaults, so that equal settings make equal specs.

    Attributes:
        solver: a name in the catalogue.
        steps: N for fixed steps; None for error control. Methods without an error estimate need it unless `grid` lists
            the times.
        rtol, atol: tolerances of error control, 1e-5 by default; None with fixed steps.
        grid: the grid of fixed steps, see `grids.normalise`.
        start: `ramp` (default) or `rk`, the start-up of multistep methods; None for others.
        diffusion: the noise of stochastic methods, see `Diffusion.of` for other forms; None for other methods.
        resample: how often each fixed step of a one-step method is made, with new noise before it is repeated; see
            `known_values`. 1 to 100.
        error_control: `sample` (each sample its own steps) or `batch` (one step size for all).
        controller: `paper`, `i` or `pi`; the method's own by default, None with fixed steps.
        first_step: size of the first step, positive, at most the span; None for the automatic one.
        max_step: the longest step of error control, in units of |t|; None for no bound.
        max_nfe: the most velocity evaluations of a sample.
        t_span: (start, end); end < start runs backwards.

    Raises:
        SolverError: for invalid settings; names the field, what is wrong with it and what to do.
    """

    solver: str = "dopri5"
    steps: int | None = None
    rtol: float | None = None
    atol: float | None = None
    grid: GridSpec = "uniform"
    start: str | None = None
    diffusion: Diffusion | Mapping[str, Any] | str | None = None
    resample: int = 1
    error_control: str = "sample"
    controller: str | None = None
    first_step: float | None = None
    max_step: float | None = None
    max_nfe: int = DEFAULT_MAX_NFE
    t_span: Sequence[float] = (0.0, 1.0)

    def __post_init__(self) -> None:
        method = catalogue.find(self.solver, "" if self.steps is None else f"-{self.steps}")
        span = _checked_span(self.t_span)
        self._fill(solver=method.name, t_span=span, max_nfe=_whole("max_nfe", self.max_nfe))
        if self.steps is not None:
            self._fill(steps=_whole("steps", self.steps))
            if self.steps > MAX_STEPS:
                raise SolverError("steps", f"steps = {self.steps} is over the limit of {MAX_STEPS}")
        self._fill(grid=normalise(self.grid, span))
        if self.steps is None and not isinstance(self.grid, str):
            self._fill(steps=len(self.grid) - 1)
        self._fill(resample=_whole("resample", self.resample))
        if span != (0.0, 1.0):
            self._check_span(method, span)
        if self.tuned:
            self._check_tuned(method)
        if self.start is not None and not method.starts:
            raise SolverError("start", f"start is for Adams-Bashforth methods; {self.solver} has none; leave it out")
        if self.diffusion is not None and not method.stochastic:
            text = f"diffusion is for sde and sde_heun; {self.solver} has no noise; leave it out"
            raise SolverError("diffusion", text)
        if method.stochastic:
            self._fill(diffusion=Diffusion.of({} if self.diffusion is None else self.diffusion))
        if self.resample > 1:
            self._check_resample(method)
        if self.steps is None and method.adaptive:
            self._check_error_control(method, span)
        else:
            self._check_fixed(method)

    def _fill(self, **values: object) -> None:
        for name, value in values.items():
            object.__setattr__(self, name, value)

    def _check_span(self, method: catalogue.Solver, span: tuple[float, float]) -> None:
        """Refuse a span, other than from 0 to 1, on which a solver has no path."""
        inside = min(span) >= 0 and max(span) <= 1
        forwards, where = inside and span[0] < span[1], f"from {span[0]:g} to {span[1]:g}"
        if self.tuned:
            raise SolverError("t_span", f"tuned plans go from t = 0 to t = 1, not {where}; use another solver")
        if method.stochastic and not forwards:
            text = f"{self.solver} is stochastic and goes from noise to data only, between t = 0 and 1, not {where}"
            raise SolverError("solver", f"{text}; use another solver")
        if self.resample > 1 and not forwards:
            raise SolverError("resample", f"resample is for spans from noise to data, not {where}; leave it out")
        if method.exponential and not inside:
            raise SolverError(
                "t_span", f"{self.solver} is for times from 0 to 1; its span is {span[0]:g} to {span[1]:g}"
            )

    def _check_resample(self, method: catalogue.Solver) -> None:
        one_step = not (method.multistep_order or method.stochastic or self.tuned)
        if not one_step or self.steps is None:
            raise SolverError(
                "resample",
                f"resample = {self.resample} repeats fixed steps of Runge-Kutta methods, for example "
                f"euler-50+resample={self.resample}, not those of {self.solver}"
                f"{' under error control' if one_step else ''}; leave it out",
            )
        if self.resample > MAX_RESAMPLE or self.steps * self.resample > MAX_STEPS:
            text = f"at most {MAX_RESAMPLE}, with at most {MAX_STEPS} steps in all, got {self.resample}"
            raise SolverError("resample", f"resample must be {text}")

    def _check_tuned(self, method: catalogue.Solver) -> None:
        if method.learned and self.grid != "uniform":
            raise SolverError("grid", f"solver {TUNED!r} has its own times; leave grid out")
        if self.steps is None and self.rtol is None and self.atol is None:
            raise SolverError("steps", f"tuned solvers need steps, for example {self.solver}-6")

    def _check_error_control(self, method: catalogue.Solver, span: tuple[float, float]) -> None:
        if self.grid != "uniform":
            raise SolverError("grid", f"a grid needs fixed steps; give {self.solver} steps, or leave grid out")
        self._fill(rtol=_tolerance("rtol", self.rtol), atol=_tolerance("atol", self.atol))
        first_step, max_step = _first_and_longest(self.first_step, self.max_step, span)
        controller = method.tableau.controller if self.controller is None else self.controller
        self._fill(controller=controller, first_step=first_step, max_step=max_step)
        for name in ("error_control", "controller"):
            if (value := getattr(self, name)) not in OPTIONS[name].words:
                raise SolverError(name, f"unknown {name} {value!r}; use one of {', '.join(OPTIONS[name].words)}")

    def _check_fixed(self, method: catalogue.Solver) -> None:
        for name in ("rtol", "atol"):
            if getattr(self, name) is not None:
                if not method.adaptive:
                    raise SolverError(name, f"{self.solver} has no error estimate and takes no {name}; give steps")
                text = f"steps (or a list of times) and {name} contradict each other; give one of them"
                raise SolverError("steps", text)
        if self.steps is None:
            text = f"{self.solver} has no error estimate and needs steps, for example {self.solver}-20"
            raise SolverError("steps", text)
        for name, option in OPTIONS.items():
            if option.adaptive and getattr(self, name) != DEFAULTS[name]:
                advice = ": the grid sets their length" if name == "max_step" else ""
                raise SolverError(name, f"{name} is for error control; with fixed steps leave it out{advice}")
        if method.starts:
            start = method.starts[0] if self.start is None else self.start
            if start not in method.starts:
                words = ", ".join(method.starts)
                raise SolverError("start", f"unknown start {self.start!r} for {self.solver}; use one of {words}")
            self._fill(start=start)

    @property
    def adaptive(self) -> bool:
        """Whether steps are under error control."""
        return self.steps is None

    @property
    def tuned(self) -> bool:
        """Whether it names a tuned solver of a checkpoint: a learned plan, or a stock method on a tuned grid."""
        return TUNED in (self.solver, self.grid)

    @property
    def noisy(self) -> bool:
        """Whether steps draw noise: their path is not that of the ODE."""
        return self.method.stochastic or self.resample > 1

    @property
    def method(self) -> catalogue.Solver:
        """The solver's entry in the catalogue."""
        return catalogue.find(self.solver)

    @property
    def settings(self) -> dict[str, Any]:
        """The settings that matter, as JSON-ready data, named as in a request (`name` for the solver); and the text."""
        own: dict[str, Any] = {"rtol": self.rtol, "atol": self.atol}
        if not self.adaptive:
            own = {"steps": self.steps, "grid": settings_of(self.grid)}  # type: ignore[arg-type]  (checked)
        if self.method.learned:  # its times are its own
            del own["grid"]
        own |= {name: getattr(self, name) for name in OPTIONS if _takes(self.method, name, self.adaptive)}
        if self.resample > 1:
            own["resample"] = self.resample
        if isinstance(self.diffusion, Diffusion):
            own["diffusion"] = asdict(self.diffusion)
        return {"name": self.solver, **own, "text": str(self)}

    @classmethod
    def parse(cls, text: str) -> SolverSpec:
        """Parse the text of a spec.

        Raises:
            SolverError: for malformed text, and as for `SolverSpec`.
        """
        return cls(**read_solver(text))

    @classmethod
    def of(cls, solver: str = "dopri5", **overrides: Any) -> SolverSpec:
        """Make a spec from the name or text of a solver and other fields; a default of None counts as not given.

        Raises:
            SolverError: for a field that contradicts the text, and as for `parse`.
        """
        parsed = read_solver(solver)
        fields: dict[str, Any] = {
            name: value for name, value in overrides.items() if value is not None or DEFAULTS.get(name) is not None
        }
        for name in parsed.keys() & fields.keys():
            values = _normal(name, parsed[name]), _normal(name, fields[name])
            if values[0] != values[1]:
                own, other = (grid_text(value) if name == "grid" else str(value) for value in values)
                text = (
                    f"solver {solver!r} says {name} = {own}, but {name} = {other} was given too; leave one of them out"
                )
                raise SolverError(name, text)
        return cls(**(fields | parsed))

    def __str__(self) -> str:
        """The text form, which `parse` reads; fields at their defaults are left out, except for tolerances."""
        return self._text

    @cached_property
    def _text(self) -> str:
        text = self.solver
        if self.adaptive:
            rtol, atol = number_text(self.rtol or 0), number_text(self.atol or 0)
            text += f"@{rtol}" if rtol == atol else f"@{rtol}/{atol}"
        else:
            text += f"-{self.steps}"
            if self.grid != "uniform":
                text += f"/{grid_text(self.grid)}"  # type: ignore[arg-type]  (checked)
        usual = DEFAULTS | {"start": STARTS[0], "controller": self.method.tableau.controller, "diffusion": Diffusion()}
        words = []
        for name, option in OPTIONS.items():
            if (value := getattr(self, name)) not in (None, usual[name]):
                words.append(str(value) if option.words else f"{name}={value if option.whole else number_text(value)}")
        return "+".join([text, *words])


DEFAULTS: dict[str, Any] = {field.name: field.default for field in fields(SolverSpec)}


def stated(**values: Any) -> dict[str, Any]:
    """Return the values that differ from the defaults of a spec."""

    def is_default(value: Any, default: Any) -> bool:
        return value is default or (isinstance(value, str | int) and type(value) is type(default) and value == default)

    return {name: value for name, value in values.items() if not is_default(value, DEFAULTS.get(name))}


_WORDS = {word: name for name, option in OPTIONS.items() for word in option.words}

_WHOLE = "[0-9]{1,18}"
_TEXT = re.compile(
    rf"(?P<solver>[a-z_][a-z0-9_]*)"
    rf"(?:[-:](?P<steps>{_WHOLE})(?:/(?P<grid>{GRID_TEXT}))?|@(?P<rtol>{NUMBER})(?:/(?P<atol>{NUMBER}))?)?"
    rf"(?P<options>(?:\+[a-z_]+(?:={NUMBER}|\({NUMBER}(?:,{NUMBER})?\))?)*)"
)
_STEPS = re.compile(rf"^([a-z_][a-z0-9_]*)_({_WHOLE})(?=[/+]|$)")
_PARTS = re.compile(r"^([a-z]\w*)-(\d*[a-z]\w*)")
_OPTION = re.compile(rf"\+([a-z_]+)(=(?:{NUMBER})|\([^)]*\))?")


def read_solver(text: str) -> dict[str, Any]:
    """Read the text of a solver, or its bare name, into fields of `SolverSpec`.

    Raises:
        SolverError: for malformed text; `SolverSpec` checks the values.
    """
    if not isinstance(text, str):
        catalogue.find(text)  # raises an error that lists the known names
    plain = text.strip().lower()
    if (parts := _PARTS.match(plain)) and catalogue.has(name := f"{parts[1]}_{parts[2]}"):  # sde-heun
        plain = name + plain[parts.end() :]
    if (parts := _STEPS.match(plain)) and not catalogue.has(parts[0]):  # rk4_20
        plain = f"{parts[1]}-{parts[2]}" + plain[parts.end() :]
    match = _TEXT.fullmatch(plain)
    if match is None:
        raise SolverError(
            "solver",
            f"solver {text!r} is not understood; use a name (dopri5), a name with steps (rk4-20, ab3-12/shift(3)) or "
            "a name with a tolerance (dopri5@1e-5)",
        )
    parsed: dict[str, Any] = {"solver": match["solver"]}
    if match["steps"]:
        parsed["steps"] = int(match["steps"])
    if match["grid"]:
        grid = read(match["grid"])
        parsed["grid"] = grid["name"] if isinstance(grid, dict) and len(grid) == 1 else grid
    if match["rtol"]:
        parsed["rtol"] = float(match["rtol"])
        parsed["atol"] = float(match["atol"] or match["rtol"])
    for word, value in _OPTION.findall(match["options"]):
        name, setting = _option(text, word, value)
        if name in parsed:
            raise SolverError("solver", f"solver {text!r} says {name} twice; leave one of them out")
        parsed[name] = setting
    return parsed


def _option(text: str, word: str, value: str) -> tuple[str, Any]:
    if word in SCHEDULES and value[:1] != "=":
        return "diffusion", word + value
    if word in _WORDS and not value:
        return _WORDS[word], word
    option, value, shown = OPTIONS.get(word), value.removeprefix("="), f"+{word}{value}"
    if option and not option.words and value and (not option.whole or re.fullmatch(_WHOLE, value)):
        return word, int(value) if option.whole else float(value)
    words = ", ".join(f"+{name}" for name in _WORDS)
    raise SolverError(
        "solver",
        f"solver {text!r}: {shown} is not an option; use {words}, +first_step=0.01, +max_step=0.05 or +max_nfe=500",
    )


def parameters(solver: catalogue.Solver) -> dict[str, object]:
    """Return the settings that a request can make for a solver: their values, the default first, or their type."""
    own: dict[str, object] = {"steps": "integer", "grid": list(GRIDS)}
    if solver.adaptive:
        own |= {"rtol": "number", "atol": "number"}
    for name, option in OPTIONS.items():
        if _takes(solver, name, solver.adaptive):
            words = sorted(option.words, key=lambda word: word != solver.tableau.controller) if option.words else []
            own[name] = words or ("integer" if option.whole else "number")
    return own


def _takes(solver: catalogue.Solver, name: str, adaptive: bool) -> bool:
    """Whether one of `OPTIONS` is for a solver, under error control or not."""
    own = {"start": bool(solver.starts), "diffusion": solver.stochastic, "resample": False}  # it is said by `known`
    return own.get(name, adaptive or not OPTIONS[name].adaptive)


def _normal(name: str, value: Any) -> Any:
    return normalise(value) if name == "grid" else Diffusion.of(value) if name == "diffusion" else value


def _checked_span(t_span: Sequence[float]) -> tuple[float, float]:
    if not isinstance(t_span, Sequence | np.ndarray) or isinstance(t_span, str):
        raise SolverError("t_span", f"t_span must be two finite numbers (start, end), got {t_span!r}")
    if len(t_span) != 2 or not all(map(_is_finite, t_span)):
        raise SolverError("t_span", f"t_span must be two finite numbers (start, end), got {list(t_span)}")
    if t_span[0] == t_span[1]:
        raise SolverError("t_span", f"t_span starts and ends at {t_span[0]:g}; the ends must differ")
    return float(t_span[0]), float(t_span[1])


def _is_finite(value: object) -> bool:
    try:
        return isinstance(value, int | float | np.number) and not isinstance(value, bool) and math.isfinite(value)
    except OverflowError:  # an integer that is too large for double precision
        return False


def _whole(name: str, value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < 1:
        raise SolverError(name, f"{name} must be a whole number of at least 1, got {value!r}")
    return int(value)


def _tolerance(name: str, value: Any) -> float:
    if value is None:
        return DEFAULT_TOLERANCE
    if not _is_finite(value):
        raise SolverError(name, f"{name} must be a finite number, got {value!r}")
    return float(value)


def _first_and_longest(
    first_step: float | None, max_step: float | None, span: tuple[float, float]
) -> tuple[float | None, float | None]:
    length = abs(span[1] - span[0])
    if first_step is not None:
        if _is_finite(first_step) and first_step > length:
            first_step = float(snapped(np.array([float(first_step)]), (0.0, length), span)[0])
        if not (_is_finite(first_step) and 0 < first_step <= length):
            text = f"first_step must be positive and at most the span {length:g}, got {first_step!r}"
            raise SolverError("first_step", text)
        first_step = float(first_step)
    if max_step is not None:
        if not (_is_finite(max_step) and max_step > 0):
            text = f"max_step must be a finite positive number, got {max_step!r}; leave it out for no bound"
            raise SolverError("max_step", text)
        max_step = float(max_step)
        if first_step is not None and first_step > max_step * MAX_STEP_SLACK:
            text = f"first_step = {first_step!r} is over max_step = {max_step!r}; make it shorter"
            raise SolverError("first_step", text)
        first_step = None if first_step is None else min(first_step, max_step)
    return first_step, max_step
