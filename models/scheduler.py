"""The times of diffusers' schedulers, as their `scheduler_config.json` sets them.

A scheduler chooses the noises at which a network is called. For a flow these are sigmas from 1 towards 0, with the
straight path's t = 1 - sigma; for a chain of steps, the steps themselves. After the last call always follows a step to
data (or to the noise of step 0, see `TimeCard.stop`).

A flow's sigmas may be shifted, s -> m s / (1 + (m - 1) s) (Esser et al. 2024, Stable Diffusion 3, eq. 23), with m given
or, for a dynamic shift, growing with the size of a state: more tokens need more noise for the same loss of information.
The scheduler shifts its smallest training sigma 1/1000 when it is made, spaces the sigmas from 1 to that, and shifts
them; so a static shift acts twice at the end. Pipelines with a dynamic shift give it sigmas 1, ..., 1/N of their own.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field, ValidationError
from scipy.special import betaincinv

from models.conventions import TimeCard
from models.frozen import Frozen
from models.messages import explain
from models.paths import Steps
from models.shapes import FreeAxis, Shape, free_axes

Array = NDArray[np.float64]

Spread = Literal["karras", "exponential", "beta"]
"""How noises are respaced between the largest and the smallest: see `_respaced`."""

_MOST_SHIFT = 1e3


class FlowMatchEuler(Frozen):
    """Times of `FlowMatchEulerDiscreteScheduler`; names and defaults are those of diffusers, but for the last three.

    Attributes:
        num_train_timesteps, shift, shift_terminal, use_dynamic_shifting, time_shift_type: as in diffusers.
        base_shift, max_shift: mu of a dynamic shift for `base_image_seq_len` and `max_image_seq_len` tokens, on a line
            through both. The shift is exp(mu), or mu with the `time_shift_type` `linear`.
        spread: respaces the sigmas; None for none.
        patch: size of a token along each free axis; 2 for a network that cuts pictures into patches of 2 x 2.
        pipeline_sigmas: whether the sigmas before the shift are 1, 1 - 1/N, ..., 1/N; None if the shift is dynamic.
    """

    kind: Literal["flow_match_euler"] = "flow_match_euler"
    num_train_timesteps: int = Field(default=1000, ge=2, le=1 << 20)
    shift: float = Field(default=1.0, ge=1 / _MOST_SHIFT, le=_MOST_SHIFT)
    use_dynamic_shifting: bool = False
    base_shift: float = Field(default=0.5, ge=-10.0, le=10.0)
    max_shift: float = Field(default=1.15, ge=-10.0, le=10.0)
    base_image_seq_len: int = Field(default=256, ge=1, le=1 << 30)
    max_image_seq_len: int = Field(default=4096, ge=1, le=1 << 30)
    time_shift_type: Literal["exponential", "linear"] = "exponential"
    shift_terminal: float | None = Field(default=None, gt=0.0, lt=1.0)
    spread: Spread | None = None
    patch: int = Field(default=1, ge=1, le=1 << 16)
    pipeline_sigmas: bool | None = None

    def times(self, steps: int, time: TimeCard, event_shape: Shape, sizes: Mapping[str, int]) -> list[float]:
        """Return the t of a grid of N steps for a state of these sizes, from 0 to 1."""
        shift = self._shift_of(self._tokens(event_shape, sizes)) if self.use_dynamic_shifting else self.shift
        by_pipeline = self.use_dynamic_shifting if self.pipeline_sigmas is None else self.pipeline_sigmas
        least = 1 / self.num_train_timesteps
        last = 1 / steps if by_pipeline else least if self.use_dynamic_shifting else _shifted(least, shift)
        sigmas = _shifted(np.linspace(1.0, last, steps), shift)
        if self.shift_terminal is not None and steps > 1:
            sigmas = 1 - (1 - sigmas) * (1 - self.shift_terminal) / (1 - sigmas[-1])
        if self.spread is not None:
            sigmas = _respaced(self.spread, float(sigmas[0]), float(sigmas[-1]), steps)
        return [*(1 - sigmas).tolist(), 1.0]

    def check(self, time: TimeCard, event_shape: Shape, axes: Mapping[str, FreeAxis]) -> None:
        """Refuse a dynamic shift for states without a free axis, and sizes with a shift that is out of range.

        Raises:
            ValueError: with the reason.
        """
        if not time.straight:
            raise ValueError("the scheduler is for velocities of the straight path, but time has another convention")
        if not self.use_dynamic_shifting:
            return
        if self.base_image_seq_len >= self.max_image_seq_len:
            raise ValueError(
                f"base_image_seq_len is {self.base_image_seq_len}; it must be below max_image_seq_len, "
                f"{self.max_image_seq_len}"
            )
        free = free_axes(event_shape)
        if not free:
            raise ValueError(
                f"a dynamic shift needs a free axis; states of shape {list(event_shape)} have none, so give a "
                "scheduler with the shift of their size"
            )
        for name in ("smallest", "max"):
            tokens = self._tokens(event_shape, {axis: getattr(axes[axis], name) for axis in free})
            if not tokens:
                raise ValueError(f"patch = {self.patch} is larger than the smallest state; make it smaller")
            if not 1 / _MOST_SHIFT <= self._shift_of(tokens) <= _MOST_SHIFT:
                raise ValueError(
                    f"a state of {tokens} tokens has the shift {self._shift_of(tokens):.3g}, outside "
                    f"{1 / _MOST_SHIFT:g} to {_MOST_SHIFT:g}; limit the axes, or change the shifts"
                )

    def _tokens(self, event_shape: Shape, sizes: Mapping[str, int]) -> int:
        return math.prod(sizes[axis] // self.patch for axis in event_shape if isinstance(axis, str))

    def _shift_of(self, tokens: int) -> float:
        slope = (self.max_shift - self.base_shift) / (self.max_image_seq_len - self.base_image_seq_len)
        mu = self.base_shift + slope * (tokens - self.base_image_seq_len)
        return math.exp(mu) if self.time_shift_type == "exponential" else mu


class Chain(Frozen):
    """Times of `DDIMScheduler` and `DPMSolverMultistepScheduler`: whole steps, or steps at respaced noises.

    Attributes:
        kind: `ddim`; `dpm_solver`, which divides the chain into one part more.
        timestep_spacing, steps_offset, lambda_min_clipped: as in diffusers (Lin et al. 2023, table 2).
        spread: respaces the noises of the whole chain instead, only for `dpm_solver`.
    """

    kind: Literal["ddim", "dpm_solver"]
    timestep_spacing: Literal["leading", "trailing", "linspace"] = "leading"
    steps_offset: int = Field(default=0, ge=0, le=1 << 16)
    lambda_min_clipped: float | None = None
    spread: Spread | None = None

    def times(self, steps: int, time: TimeCard, event_shape: Shape, sizes: Mapping[str, int]) -> list[float]:
        """Return the t of a grid of N steps, to 1 from where these steps start; sizes do not matter.

        Raises:
            ValueError: these steps start at more noise than `time` does.
        """
        levels = self.levels(steps, time.shape)
        if time.stop_level is not None:  # a call there would change nothing
            levels = [u for u in levels if u > time.stop_level]
        if levels[0] > time.levels[0] + 1e-6 * time.shape.steps:
            raise ValueError(
                f"{steps} steps of this scheduler start at {levels[0]:g}, but the model was imported to start at "
                f"{time.levels[0]:g}; take fewer steps, or import it with a --solver of {steps} steps"
            )
        return [*(time.time_of(time.own(u)) for u in levels), 1.0]

    def start_time(self, steps: int, time: TimeCard) -> float | None:
        """Return the network's own time at which a grid of N steps starts; None for that of `time`."""
        first = self.levels(steps, time.shape)[0]
        return None if time.time_of(time.own(first)) == 0.0 else time.own(first)

    def levels(self, steps: int, chain: Steps) -> list[float]:
        """Return the steps of the chain at which N calls take place, noisiest first."""
        total = chain.steps
        if steps >= total:
            raise ValueError(f"{steps} steps are too many for a chain of {total}; take fewer")
        if self.spread is not None:
            noises = _respaced(self.spread, chain.sigma(total - 1.0), chain.sigma(0.0), steps)
            return chain.level(torch.from_numpy(noises)).tolist()
        if self.kind == "ddim":
            last, parts = total, steps
        else:
            clipped = -math.inf if self.lambda_min_clipped is None else self.lambda_min_clipped
            last, parts = sum(-math.log(chain.sigma(float(k))) >= clipped for k in range(total)), steps + 1
        if self.timestep_spacing == "linspace":
            spaced = np.linspace(0, last - 1, parts).round()[::-1]
        elif self.timestep_spacing == "leading":
            spaced = np.arange(parts)[::-1] * float(last // parts) + self.steps_offset
        else:
            spaced = np.arange(last, 0, -total / steps).round() - 1
        return spaced[:steps].tolist()

    def check(self, time: TimeCard, event_shape: Shape, axes: Mapping[str, FreeAxis]) -> None:
        """Refuse networks that are not trained on a chain of steps.

        Raises:
            ValueError: with the reason.
        """
        if not isinstance(time.schedule, Steps):
            raise ValueError("the scheduler counts the steps of a chain; the schedule must be of kind steps")


Scheduler = FlowMatchEuler | Chain


def _shifted(sigmas: Any, shift: float) -> Any:
    return shift * sigmas / (1 + (shift - 1) * sigmas)


def _respaced(spread: Spread, high: float, low: float, steps: int) -> Array:
    """Return N noises from high to low.

    `karras`: Karras et al. 2022, eq. 5 with rho = 7. `exponential`: evenly in the logarithm. `beta`: at quantiles of a
    Beta(0.6, 0.6) distribution (Lee et al. 2024, "Beta Sampling is All You Need").
    """
    share = np.linspace(0.0, 1.0, steps)
    if spread == "karras":
        return (high ** (1 / 7) + share * (low ** (1 / 7) - high ** (1 / 7))) ** 7
    if spread == "exponential":
        return np.exp(math.log(high) + share * (math.log(low) - math.log(high)))
    return low + (high - low) * betaincinv(0.6, 0.6, 1 - share)


_CLASSES = {
    "FlowMatchEulerDiscreteScheduler": "flow_match_euler",
    "DDIMScheduler": "ddim",
    "DPMSolverMultistepScheduler": "dpm_solver",
}
_PREDICTS = {"epsilon": "eps", "sample": "x0", "v_prediction": "v"}
_SPREADS: dict[str, Spread] = {
    "use_karras_sigmas": "karras",
    "use_exponential_sigmas": "exponential",
    "use_beta_sigmas": "beta",
    "use_lu_lambdas": "exponential",  # evenly in log sigma, too
}
_NOT_AN_ODE = ("stochastic_sampling", "thresholding", "rescale_betas_zero_snr", "trained_betas", "use_flow_sigmas")


def read_scheduler(config: Mapping[str, Any], patch: int | None = None) -> tuple[Scheduler, dict[str, Any]]:
    """Read the `scheduler_config.json` of diffusers.

    Args:
        config: its content.
        patch: see `FlowMatchEuler`.

    Returns:
        The times, and the fields of a `TimeCard` that it states, except for `start`.

    Raises:
        ValueError: it is of another class, or sets something that is not served.
    """
    name = config.get("_class_name", "FlowMatchEulerDiscreteScheduler")
    if name not in _CLASSES:
        raise ValueError(f"_class_name is {name!r}; use one of {', '.join(_CLASSES)}, with this network's settings")
    refused = [key for key in _NOT_AN_ODE if config.get(key)]
    if refused or str(config.get("algorithm_type", "")).startswith("sde"):
        raise ValueError(f"{(refused or ['algorithm_type'])[0]} is set, which is not served; sample without it")
    spreads = [spread for key, spread in _SPREADS.items() if config.get(key)]
    if len(spreads) > 1:
        raise ValueError(f"only one of {', '.join(_SPREADS)} may be set")
    kind = FlowMatchEuler if name.startswith("Flow") else Chain
    fields = {key: value for key, value in config.items() if key in kind.model_fields and key != "kind"}
    fields |= {"kind": _CLASSES[name], "spread": spreads[0] if spreads else None}
    if patch is not None:
        fields["patch"] = patch
    if kind is Chain and name.startswith("DPM"):
        fields.setdefault("timestep_spacing", "linspace")
        clipped = fields.get("lambda_min_clipped")
        fields["lambda_min_clipped"] = None if clipped is None or math.isinf(float(clipped)) else float(clipped)
    try:
        scheduler = kind.model_validate(fields)
    except ValidationError as error:
        raise ValueError(explain(error)) from None
    if isinstance(scheduler, FlowMatchEuler):
        noise_at = 0 if config.get("invert_sigmas") else 1
        scale = float(scheduler.num_train_timesteps)
        return scheduler, {"noise_at": noise_at, "scale": scale, "sign": 1, "predicts": "velocity", "path": "linear"}
    return scheduler, _chain(config)


def _chain(config: Mapping[str, Any]) -> dict[str, Any]:
    predicts = config.get("prediction_type", "epsilon")
    if predicts not in _PREDICTS:
        raise ValueError(f"prediction_type is {predicts!r}; use one of {', '.join(_PREDICTS)}")
    schedule = {
        "kind": "steps",
        "betas": config.get("beta_schedule", "linear"),
        "beta_first": config.get("beta_start", 1e-4),
        "beta_last": config.get("beta_end", 0.02),
        "steps": config.get("num_train_timesteps", 1000),
    }
    noisy = config.get("set_alpha_to_one") is False or config.get("final_sigmas_type") == "sigma_min"
    return {"noise_at": 1, "predicts": _PREDICTS[predicts], "path": "vp", "schedule": schedule} | (
        {"stop": 0.0} if noisy else {}
    )
