"""Fields of requests: the options of the clients, and the flags of the command line.

``python -m service.sdk_fields`` of the server writes this file from its schemas; do not edit it.
"""

# ruff: noqa: E501

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, SupportsIndex, TypedDict

import numpy as np

if TYPE_CHECKING:
    from pathline._request import Budget


class SolverOptions(TypedDict, total=False):
    """Options of every operation. None stands for the default.

    Attributes:
        version: Version of the model; the highest if omitted.
        condition: Class label or vector of a conditional model: one for all samples, or a list of them.
        conditions: Conditions of the model by name: one value for all samples, or a list of them.
        negative: Conditions that replace the nulls in guidance, by name.
        shape: Size of each free axis of the samples, by name, unless it follows from a condition.
        guidance: Strength of classifier-free guidance, or its terms, interval, projection and rescale.
        timeout_s: Time limit in seconds, queueing included.
        priority: bulk yields to interactive requests, which take most of the time.
        solver: Name of a solver, see /v1/solvers, or text with its settings, like rk4-20.
        steps: Number of fixed steps.
        rtol: Relative tolerance: the error allowed in a step, as a fraction of the state's size.
        atol: Absolute tolerance: the error allowed in a step where the state is close to 0.
        grid: How fixed steps are spaced: a name (uniform, shift, sway, power, logit_normal, karras), an object with the
            name and its parameters, or a list of times.
        start: How a multistep method begins: with lower orders (ramp) or Runge-Kutta steps (rk).
        diffusion: Noise of a stochastic solver: an object, or text like flow_grpo(0.7), the schedule with its scale.
        error_control: sample: each sample has its own step sizes; batch: all share them.
        controller: Rule that turns the error of a step into the size of the next: paper, i or pi.
        first_step: Size of the first step of error control; automatic by default.
        max_step: Longest step under error control, in units of t; unbounded by default.
        max_nfe: Maximum velocity evaluations of a sample.
    """

    version: int | None
    condition: Any
    conditions: Mapping[str, Any] | None
    negative: Mapping[str, Any] | None
    shape: Mapping[str, Any] | None
    guidance: Any
    timeout_s: float | None
    priority: Literal["interactive", "bulk"] | None
    solver: str | None
    steps: int | None
    rtol: float | None
    atol: float | None
    grid: str | Sequence[float] | np.ndarray | Mapping[str, Any] | None
    start: Literal["ramp", "rk"] | None
    diffusion: Mapping[str, Any] | str | None
    error_control: Literal["sample", "batch"] | None
    controller: Literal["paper", "i", "pi"] | None
    first_step: float | None
    max_step: float | None
    max_nfe: int | None


class SampleOptions(SolverOptions, total=False):
    """Options of `sample`, `iter_samples` and `stream`, in addition to those of `SolverOptions`. None stands for the default.

    Attributes:
        seed: An integer in [0, 2**63); drawn below 2**53 and echoed if omitted.
        first_index: Index of the first sample in the seed's stream.
        x0: Start states instead of noise, shape (num_samples, *event_shape).
        known: Numbers of the samples that are known: values, mask and mode.
        noise_scale: Factor of the starting noise, its temperature: below 1 for more typical samples.
        start_time: Time of the first call as the network counts it, such as step 801 or a sigma, with the noise that
            its authors start from there; that of its card if omitted.
        t_span: Where to start and end; noise is at 0, data at 1.
        trace: How much to report about the steps.
        save_at: Times at which to report the states, too.
        log_prob: Also report the log-density of each step of each sample, with the solver sde.
        decode: Turn latent states into data.
        budget: Instead of a solver: the service chooses one.
        on_timeout: At the time limit: fail, or return the states reached.
    """

    seed: SupportsIndex | None
    first_index: int | None
    x0: Any
    known: Mapping[str, Any] | None
    noise_scale: float | None
    start_time: float | None
    t_span: tuple[float, float] | None
    trace: Literal["none", "summary", "full"] | None
    save_at: Sequence[float] | np.ndarray | None
    log_prob: bool | None
    decode: bool | None
    budget: Budget | Mapping[str, float] | str | None
    on_timeout: Literal["error", "partial"] | None


class EncodeOptions(SolverOptions, total=False):
    """Options of `encode`, in addition to those of `SolverOptions`. None stands for the default.

    Attributes:
        decode: true: samples are data, as responses give them; false: states in the model's own coordinates.
    """

    decode: bool | None


class LogProbOptions(SolverOptions, total=False):
    """Options of `log_prob`, in addition to those of `SolverOptions`. None stands for the default.

    Attributes:
        decode: true: samples are data, as responses give them; false: states in the model's own coordinates.
        divergence: exact, an estimate by Rademacher probes, or auto: exact up to 16 numbers per sample.
        probes: Rademacher probes of a sample, each with its own path; their estimates are averaged.
        seed: Seed of the probes; drawn below 2**53 and echoed if omitted.
    """

    decode: bool | None
    divergence: Literal["auto", "exact", "hutchinson"] | None
    probes: int | None
    seed: SupportsIndex | None


class DiagnoseOptions(SolverOptions, total=False):
    """Options of `diagnose`, in addition to those of `SolverOptions`. None stands for the default.

    Attributes:
        seed: An integer in [0, 2**63); drawn below 2**53 and echoed if omitted.
        first_index: Index of the first sample in the seed's stream.
        x0: Start states instead of noise, shape (num_samples, *event_shape).
        times: Ascending times from 0 to 1; with fixed steps, points of the grid.
    """

    seed: SupportsIndex | None
    first_index: int | None
    x0: Any
    times: Sequence[float] | np.ndarray | None


class FrontierOptions(TypedDict, total=False):
    """Options of `compare`. None stands for the default.

    Attributes:
        seed: An integer in [0, 2**63); drawn below 2**53 and echoed if omitted.
        first_index: Index of the first sample in the seed's stream.
        version: Version of the model; the highest if omitted.
        condition: Class label or vector of a conditional model: one for all samples, or a list of them.
        conditions: Conditions of the model by name: one value for all samples, or a list of them.
        negative: Conditions that replace the nulls in guidance, by name.
        shape: Size of each free axis of the samples, by name, unless it follows from a condition.
        guidance: Strength of classifier-free guidance, or its terms, interval, projection and rescale.
        timeout_s: Time limit in seconds, queueing included.
        priority: bulk (the default) yields to interactive requests, which take most of the time.
        noise_scale: Factor of the starting noise, its temperature: below 1 for more typical samples.
        per_sample: List the endpoint error of each sample in the points, too.
        budget: What the verdict is for: an error of 1 % if omitted.
    """

    seed: SupportsIndex | None
    first_index: int | None
    version: int | None
    condition: Any
    conditions: Mapping[str, Any] | None
    negative: Mapping[str, Any] | None
    shape: Mapping[str, Any] | None
    guidance: Any
    timeout_s: float | None
    priority: Literal["interactive", "bulk"] | None
    noise_scale: float | None
    per_sample: bool | None
    budget: Budget | Mapping[str, float] | str | None


class BulkOptions(TypedDict, total=False):
    """Options of `bulk`. None stands for the default.

    Attributes:
        version: Version of the model; the highest if omitted.
        seed: An integer in [0, 2**63); drawn below 2**53 and echoed if omitted.
        first_index: Index of the first sample in the seed's stream.
        condition: Class label or vector of a conditional model: one for all samples, or a list of them.
        conditions: Conditions of the model by name: one value for all samples, or a list of them.
        negative: Conditions that replace the nulls in guidance, by name.
        shape: Size of each free axis of the samples, by name, unless it follows from a condition.
        guidance: Strength of classifier-free guidance, or its terms, interval, projection and rescale.
        timeout_s: Time limit in seconds, queueing included.
        solver: Name of a solver, see /v1/solvers, or text with its settings, like rk4-20.
        steps: Number of fixed steps.
        rtol: Relative tolerance: the error allowed in a step, as a fraction of the state's size.
        atol: Absolute tolerance: the error allowed in a step where the state is close to 0.
        grid: How fixed steps are spaced: a name (uniform, shift, sway, power, logit_normal, karras), an object with the
            name and its parameters, or a list of times.
        start: How a multistep method begins: with lower orders (ramp) or Runge-Kutta steps (rk).
        diffusion: Noise of a stochastic solver: an object, or text like flow_grpo(0.7), the schedule with its scale.
        controller: Rule that turns the error of a step into the size of the next: paper, i or pi.
        first_step: Size of the first step of error control; automatic by default.
        max_step: Longest step under error control, in units of t; unbounded by default.
        max_nfe: Maximum velocity evaluations of a sample.
        known: Numbers of the samples that are known: values, mask and mode.
        noise_scale: Factor of the starting noise, its temperature: below 1 for more typical samples.
        start_time: Time of the first call as the network counts it, such as step 801 or a sigma, with the noise that
            its authors start from there; that of its card if omitted.
        decode: Turn latent states into data.
    """

    version: int | None
    seed: SupportsIndex | None
    first_index: int | None
    condition: Any
    conditions: Mapping[str, Any] | None
    negative: Mapping[str, Any] | None
    shape: Mapping[str, Any] | None
    guidance: Any
    timeout_s: float | None
    solver: str | None
    steps: int | None
    rtol: float | None
    atol: float | None
    grid: str | Sequence[float] | np.ndarray | Mapping[str, Any] | None
    start: Literal["ramp", "rk"] | None
    diffusion: Mapping[str, Any] | str | None
    controller: Literal["paper", "i", "pi"] | None
    first_step: float | None
    max_step: float | None
    max_nfe: int | None
    known: Mapping[str, Any] | None
    noise_scale: float | None
    start_time: float | None
    decode: bool | None


class ReplayOptions(TypedDict, total=False):
    """Options of `replay`. None stands for the default.

    Attributes:
        force: Sample even if the bits cannot be promised; digest_matches says if they are equal.
        timeout_s: Time limit in seconds, queueing included.
        priority: bulk yields to interactive requests, which take most of the time.
        condition: As in the first request, if the answer has only its hash.
        conditions: As in the first request, if the answer has only its hash.
        negative: As in the first request, if the answer has only its hash.
        guidance: As in the first request, if the answer has only its hash.
        x0: As in the first request, if the answer has only its hash.
        known: As in the first request, if the answer has only its hash.
    """

    force: bool | None
    timeout_s: float | None
    priority: Literal["interactive", "bulk"] | None
    condition: Any
    conditions: Mapping[str, Any] | None
    negative: Mapping[str, Any] | None
    guidance: Any
    x0: Any
    known: Mapping[str, Any] | None


@dataclass(frozen=True)
class RequestField:
    """A field of a request for samples.

    Attributes:
        kind: Its JSON type, or ``any``.
        about: One line about it.
        default: Its value if a request has none.
        choices: Its values, if they are words.
        bulk: Whether it may be a setting of a bulk job.
        low: The lowest value, if it is an integer with one.
    """

    kind: str
    about: str
    default: Any = None
    choices: tuple[str, ...] = ()
    bulk: bool = False
    low: int | None = None


# fmt: off
FIELDS: dict[str, RequestField] = {
    "model": RequestField("string", "name of the model"),
    "version": RequestField("integer", "version of the model; the highest if omitted", low=1),
    "num_samples": RequestField("integer", "number of samples", default=256, low=1),
    "seed": RequestField("integer", "an integer in [0, 2**63); drawn below 2**53 and echoed if omitted", low=0),
    "first_index": RequestField("integer", "index of the first sample in the seed's stream", low=0),
    "condition": RequestField("any", "class label or vector of a conditional model: one for all samples, or a list of them", bulk=True),
    "conditions": RequestField("object", "conditions of the model by name: one value for all samples, or a list of them", bulk=True),
    "negative": RequestField("object", "conditions that replace the nulls in guidance, by name", bulk=True),
    "shape": RequestField("object", "size of each free axis of the samples, by name, unless it follows from a condition", bulk=True),
    "guidance": RequestField("any", "strength of classifier-free guidance, or its terms, interval, projection and rescale", bulk=True),
    "timeout_s": RequestField("number", "time limit in seconds, queueing included"),
    "priority": RequestField("string", "bulk yields to interactive requests, which take most of the time", default="interactive", choices=("interactive", "bulk")),
    "solver": RequestField("string", "name of a solver, see /v1/solvers, or text with its settings, like rk4-20", default="dopri5", bulk=True),
    "steps": RequestField("integer", "number of fixed steps", bulk=True, low=1),
    "rtol": RequestField("number", "relative tolerance: the error allowed in a step, as a fraction of the state's size", bulk=True),
    "atol": RequestField("number", "absolute tolerance: the error allowed in a step where the state is close to 0", bulk=True),
    "grid": RequestField("any", "how fixed steps are spaced: a name (uniform, shift, sway, power, logit_normal, karras), an object with the name and its parameters, or a list of times", default="uniform", bulk=True),
    "start": RequestField("string", "how a multistep method begins: with lower orders (ramp) or Runge-Kutta steps (rk)", choices=("ramp", "rk"), bulk=True),
    "diffusion": RequestField("any", "noise of a stochastic solver: an object, or text like flow_grpo(0.7), the schedule with its scale", bulk=True),
    "error_control": RequestField("string", "sample: each sample has its own step sizes; batch: all share them", default="sample", choices=("sample", "batch")),
    "controller": RequestField("string", "rule that turns the error of a step into the size of the next: paper, i or pi", choices=("paper", "i", "pi"), bulk=True),
    "first_step": RequestField("number", "size of the first step of error control; automatic by default", bulk=True),
    "max_step": RequestField("number", "longest step under error control, in units of t; unbounded by default", bulk=True),
    "max_nfe": RequestField("integer", "maximum velocity evaluations of a sample", default=10000, bulk=True, low=1),
    "x0": RequestField("array", "start states instead of noise, shape (num_samples, *event_shape)"),
    "known": RequestField("object", "numbers of the samples that are known: values, mask and mode", bulk=True),
    "noise_scale": RequestField("number", "factor of the starting noise, its temperature: below 1 for more typical samples", default=1.0, bulk=True),
    "start_time": RequestField("number", "time of the first call as the network counts it, such as step 801 or a sigma, with the noise that its authors start from there; that of its card if omitted", bulk=True),
    "t_span": RequestField("array", "where to start and end; noise is at 0, data at 1", default=(0.0, 1.0)),
    "trace": RequestField("string", "how much to report about the steps", default="summary", choices=("none", "summary", "full")),
    "save_at": RequestField("array", "times at which to report the states, too"),
    "log_prob": RequestField("boolean", "also report the log-density of each step of each sample, with the solver sde"),
    "decode": RequestField("boolean", "turn latent states into data", default=True, bulk=True),
    "budget": RequestField("object", "instead of a solver: the service chooses one"),
    "on_timeout": RequestField("string", "at the time limit: fail, or return the states reached", default="error", choices=("error", "partial")),
}

_OTHERS = {
    "model": "name model_name checkpoint",
    "num_samples": "n n_samples count size batch_size samples",
    "samples": "x data inputs",
    "solver": "sampler method scheduler integrator ode_solver",
    "steps": "n_steps num_steps num_inference_steps sampling_steps",
    "rtol": "tol tolerance rel_tol relative_tolerance",
    "atol": "abs_tol absolute_tolerance",
    "max_nfe": "nfe budget max_evals max_num_steps",
    "grid": "schedule timesteps t_schedule",
    "seed": "random_seed random_state generator",
    "noise_scale": "temperature noise_temperature",
    "condition": "label labels class class_labels y prompt",
    "conditions": "cond conds encoder_hidden_states model_kwargs",
    "shape": "sizes length height width resolution event_shape",
    "negative": "negative_prompt negative_conditions uncond",
    "guidance": "guidance_scale cfg cfg_scale",
    "x0": "noise z latents init",
    "t_span": "span t interval",
    "save_at": "times saveat t_eval",
    "timeout_s": "timeout deadline",
    "probes": "n_probes num_probes hutchinson_samples",
}
# fmt: on

OTHER_NAMES = {other: name for name, others in _OTHERS.items() for other in others.split()}
"""Fields by the names that other samplers and solvers use for them."""
