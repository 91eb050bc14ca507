"""Request bodies, built once before they are first sent, so that a retry sends the same bytes."""

from __future__ import annotations

import difflib
import inspect
import io
import json
import math
import operator
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, SupportsIndex, TypedDict, TypeVar

import numpy as np

from pathline._conditions import NAMED, differ, may_differ, slice_of
from pathline._solver_text import expand_solver
from pathline.errors import InvalidValue

F = TypeVar("F", bound=Callable[..., Any])

SEED_LIMIT = 2**63
"""Seeds are integers in [0, 2**63)."""

DRAWN_LIMIT = 2**53
"""Drawn seeds are below it."""

DEFAULT_NUM_SAMPLES = 256


class SolverOptions(TypedDict, total=False):
    """Options of every operation; the service's defaults apply to omitted ones.

    Attributes:
        solver: A name from `solvers`, or text with settings: ``"rk4-20"``, ``"dopri5@1e-5"``, ``"ab3-12/shift(3)"``.
        steps: Number of fixed steps.
        rtol: Relative tolerance of error control.
        atol: Absolute tolerance of error control.
        version: Version of the model; by default the highest.
        grid: Time grid of fixed steps: a name, an object with the name and its parameters, or explicit times.
        start: Start of a multistep method: ``"ramp"`` or ``"rk"``.
        error_control: ``"sample"`` (each sample has its own steps) or ``"batch"`` (one step size for the request).
        controller: Step-size controller: ``"paper"``, ``"i"`` or ``"pi"``.
        first_step: Size of the first step of error control; automatic by default.
        max_step: Longest step of error control, in units of t; unlimited by default.
        max_nfe: Most velocity evaluations of a sample.
        condition: Class label or vector of a conditional model.
        conditions: Conditions by name, each either one for all samples or one for each: numbers, lists, NumPy arrays or
            torch tensors. Arrays keep their dtype.
        negative: Conditions that replace nulls in guidance, in the same form.
        shape: Size of each free axis of the samples, by name: ``{"T": 344}``. Omit axes that a condition determines.
        guidance: Strength of classifier-free guidance, or an object with terms, interval, projection and rescale.
        timeout_s: Time limit in seconds, queueing included.
        priority: ``"interactive"``, or ``"bulk"`` for work that yields to others: the default of `log_prob` and
            `diagnose`.
    """

    solver: str | None
    steps: int | None
    rtol: float | None
    atol: float | None
    version: int | None
    grid: Any
    start: str | None
    error_control: Literal["sample", "batch"]
    controller: str | None
    first_step: float | None
    max_step: float | None
    max_nfe: int
    condition: Any
    conditions: Mapping[str, Any] | None
    negative: Mapping[str, Any] | None
    shape: Mapping[str, int] | None
    guidance: float | Mapping[str, Any] | None
    timeout_s: float | None
    priority: Literal["interactive", "bulk"]


@dataclass(frozen=True)
class Budget:
    """Limits on the cost and error of a request, in place of a solver: the service chooses one within them.

    Attributes:
        max_error: Endpoint error that 95 % of samples stay within, as a share of the spread of the data: 0.01 is 1 %.
        max_nfe: Velocity evaluations of a sample.
        max_ms: Milliseconds of solving at the service's current speed, without the time in the queue.
    """

    max_error: float | None = None
    max_nfe: int | None = None
    max_ms: float | None = None

    def __post_init__(self) -> None:
        if self.max_error is None and self.max_nfe is None and self.max_ms is None:
            raise InvalidValue("Budget() has no limits; give max_error, max_nfe or max_ms, or several", "budget")

    @classmethod
    def parse(cls, text: str) -> Budget:
        """Return the budget of a text such as ``"error=0.01,nfe=8,ms=40"``.

        Raises:
            InvalidValue: The text is not understood.
        """
        kinds: dict[str, Callable[[str], float]] = {"error": float, "nfe": int, "ms": float}
        found: dict[str, Any] = {}
        for part in filter(None, (piece.strip() for piece in text.split(","))):
            name, _, value = part.partition("=")
            name = name.strip().removeprefix("max_")
            try:
                if f"max_{name}" in found:
                    raise ValueError
                found[f"max_{name}"] = kinds[name](value)
            except (KeyError, ValueError):
                example = "write it like error=0.01, nfe=8 or error=0.01,ms=40"
                raise InvalidValue(f"budget {text!r} is not understood at {part!r}; {example}", "budget") from None
        return cls(**found)

    def body(self) -> dict[str, Any]:
        """Return the budget in the form of a request body."""
        return {name: value for name, value in vars(self).items() if value is not None}


class SampleOptions(SolverOptions, total=False):
    """Options of `sample`, `iter_samples`, `stream` and `compare`, in addition to those of `SolverOptions`.

    Attributes:
        seed: Integer in [0, 2**63); drawn by the client if omitted, so that a retry is the same request.
        first_index: Index of the first sample in the seed's stream.
        noise_scale: Factor of the starting noise, its temperature: below 1 for more typical samples.
        x0: Start states, shape (num_samples, *event_shape).
        t_span: Where to start and end; noise is at 0, data at 1.
        trace: How much detail to report about the steps: ``"none"``, ``"summary"`` or ``"full"``.
        save_at: Times at which to return the state too.
        decode: Whether to turn latent states into data.
        budget: A `Budget`, a mapping with its members, or a text such as ``"error=0.01"``, in place of a solver.
        on_timeout: ``"error"``, or ``"partial"`` for the states reached when the time limit passes.
    """

    seed: SupportsIndex | None
    first_index: int
    noise_scale: float
    x0: Any
    t_span: tuple[float, float]
    trace: Literal["none", "summary", "full"]
    save_at: Sequence[float] | np.ndarray | None
    decode: bool
    budget: Budget | Mapping[str, float] | str | None
    on_timeout: Literal["error", "partial"]


_SOLVER, _SAMPLE = tuple(SolverOptions.__annotations__), tuple(SampleOptions.__annotations__)

_MEANT = {
    **dict.fromkeys(("n", "count", "n_samples", "batch_size"), ("num_samples", "total")),
    **dict.fromkeys(("sampler", "method", "scheduler"), ("solver",)),
    **dict.fromkeys(("num_steps", "n_steps", "num_inference_steps"), ("steps",)),
    **dict.fromkeys(("tol", "tolerance"), ("rtol",)),
    **dict.fromkeys(("label", "labels", "class_label", "y"), ("condition",)),
    **dict.fromkeys(("guidance_scale", "cfg_scale", "cfg"), ("guidance",)),
    **dict.fromkeys(("random_state", "generator"), ("seed",)),
    **dict.fromkeys(("size", "sizes", "length", "height", "width"), ("shape",)),
    "timeout": ("timeout_s",),
    "num_samples": ("total",),
}
"""Name of an option in other libraries -> its possible names here."""


def spelled_out(options: type) -> Callable[[F], F]:
    """Show the members of a TypedDict in a method's signature instead of ``**options``, for help and completion."""

    def apply(method: F) -> F:
        signature = inspect.signature(method)
        own = [each for each in signature.parameters.values() if each.kind is not each.VAR_KEYWORD]
        more = [
            inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None)
            for name in options.__annotations__
            if name not in signature.parameters
        ]
        method.__signature__ = signature.replace(parameters=[*own, *more])  # type: ignore[attr-defined]
        return method

    return apply


@dataclass(frozen=True)
class Request:
    """A request of one operation, ready to be sent as often as needed.

    Attributes:
        model: Name of the model.
        operation: The last part of the address: ``sample``, ``encode``, ``log_prob`` or ``diagnose``.
        settings: The members of the body, except states.
        body: The body: JSON, or npz if it has arrays.
        media: Its content type.
    """

    model: str
    operation: str
    settings: Mapping[str, Any]
    body: bytes = field(repr=False)
    media: str

    @property
    def timeout_s(self) -> float | None:
        """The requested time limit in seconds, or None for the service's default."""
        return self.settings.get("timeout_s")


@dataclass(frozen=True)
class SampleRequest(Request):
    """A request for samples.

    Attributes:
        num_samples: How many.
        seed: The seed; drawn by the client if none was given.
        first_index: Index of the first sample in the seed's stream.
        t_end: Time at which the samples end.
        url: Base URL of the service.
    """

    num_samples: int
    seed: int
    first_index: int
    t_end: float
    url: str


@dataclass(frozen=True)
class ReplayRequest(Request):
    """A request for the samples of an earlier response.

    Attributes:
        url: Base URL of the service.
    """

    url: str


def replay_request(answer: Mapping[str, Any], options: Mapping[str, Any], url: str = "") -> ReplayRequest:
    """Build the request for a replay.

    Args:
        answer: The members of the earlier response, without its arrays.
        options: Other members of the body; those that are None are omitted.
        url: Base URL of the service.

    Raises:
        TypeError: JSON cannot represent a value.
        InvalidValue: A number is not finite.
    """
    _check_named(options)
    given = {
        **answer,
        **{name: _plain(value, name in NAMED) for name, value in options.items() if value is not None},
    }
    return ReplayRequest("", "replay", _settings(given), *_encoded(given), url)


def sample_request(model: str, num_samples: int | None, options: Mapping[str, Any], url: str = "") -> SampleRequest:
    """Check what can be checked without the service, and build the request. Only given options are sent.

    Args:
        model: Name of the model.
        num_samples: How many samples; by default the rows of `x0`, else 256.
        options: See `SampleOptions`.
        url: Base URL of the service.

    Raises:
        TypeError: An option is unknown, a count is not an integer, or JSON cannot represent a value.
        InvalidValue: A number is out of range or not finite, or the text of the solver is not understood.
    """
    given = plain_options(options, _SAMPLE, ("num_samples",))
    if num_samples is None:
        num_samples = len(given["x0"]) if isinstance(given.get("x0"), list) else DEFAULT_NUM_SAMPLES
    count, chosen = integer("num_samples", num_samples), chosen_seed(options.get("seed"))
    first = integer("first_index", given.get("first_index", 0))
    body = _encoded({"model": model, "num_samples": count, **given, "seed": chosen})
    span = given.get("t_span")
    end = span[1] if isinstance(span, list) and len(span) == 2 else 1.0
    return SampleRequest(model, "sample", _settings(given), *body, count, chosen, first, end, url)


def operation_request(operation: str, model: str, own: Mapping[str, Any], options: Mapping[str, Any]) -> Request:
    """Build the request of an operation other than sampling; raises as `sample_request` does.

    Args:
        operation: The last part of its address.
        model: Name of the model, which is part of the address.
        own: Arguments that only this operation takes.
        options: See `SolverOptions`.
    """
    given = {**plain_options(own, tuple(own)), **plain_options(options, _SOLVER, tuple(own))}
    return Request(model, operation, _settings(given), *_encoded(given))


def _settings(given: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in given.items() if name not in ("samples", "x0", *NAMED)}  # may be large


def draw_seed() -> int:
    """Draw a seed at random: one that programs which read numbers as doubles (JavaScript, jq) do not round."""
    return secrets.randbelow(DRAWN_LIMIT)


def chosen_seed(seed: SupportsIndex | None) -> int:
    """Return the seed as an integer; a fresh one for None.

    Raises:
        TypeError: It is not an integer.
        InvalidValue: It is out of range.
    """
    chosen = draw_seed() if seed is None else integer("seed", seed)
    if not 0 <= chosen < SEED_LIMIT:
        message = f"seed={chosen} is not allowed; use an integer from 0 to 2**63 - 1, or None for a fresh one"
        raise InvalidValue(message, "seed")
    return chosen


class Pages:
    """Requests that together ask for `total` samples of one seed, `batch` at a time.

    Once `pin` has been called with the version that answered, the others request the same version, so that replacing
    the model meanwhile does not mix two versions in one set of samples.

    Raises:
        TypeError: As `sample_request`; raised here, not at the first page.
        ValueError: A value cannot be paged, or as `sample_request`.
    """

    def __init__(self, model: str, total: int, batch: int, options: Mapping[str, Any], url: str) -> None:
        self.total, self._batch = integer("total", total), integer("batch", batch)
        if self.total < 1 or self._batch < 1:
            raise ValueError(f"total={total} and batch={batch}: both must be at least 1")
        plain_options(options, _SAMPLE, ("total", "batch"))
        options = expand_solver(options)
        if options.get("x0") is not None:
            raise ValueError("x0 cannot be paged; call sample() for each slice of your start states")
        if options.get("error_control") == "batch" and self.total > self._batch:
            raise ValueError(
                f"error_control='batch' couples all samples of a request, so {total} samples cannot be split into "
                f"pages of {batch}; use error_control='sample', or batch={total}"
            )
        self._url = url
        self._model, self._options = model, {**options, "seed": chosen_seed(options.get("seed"))}
        self._start = integer("first_index", options.get("first_index") or 0)
        self._places = list[tuple[str, str]]()  # of conditions with one value for each sample
        self._page(0)  # so that a bad value is reported here

    def __iter__(self) -> Iterator[SampleRequest]:
        return map(self._page, range(0, self.total, self._batch))

    @property
    def depends_on(self) -> tuple[str, int | None] | None:
        """The model and the version that decide whether conditions are for one sample each; None if it is clear."""
        unclear = self.total > self._batch and may_differ(self._options, self.total)
        return (self._model, self._options.get("version")) if unclear else None

    def split(self, takes: Mapping[str, Any]) -> None:
        """Take apart conditions with one value for each sample, given the conditions of the model."""
        self._places = differ(self._options, may_differ(self._options, self.total), takes)

    def pin(self, version: int, solver: str | None = None) -> None:
        """Request this version from now on, and this solver if a budget chose it."""
        self._options["version"] = version
        if solver is not None and self._options.pop("budget", None) is not None:
            self._options["solver"] = solver

    def _page(self, done: int) -> SampleRequest:
        count = min(self._batch, self.total - done)
        options = slice_of(self._options, self._places, slice(done, done + count))
        return sample_request(self._model, count, {**options, "first_index": self._start + done}, self._url)


def plain_options(options: Mapping[str, Any], allowed: Sequence[str], arguments: Sequence[str] = ()) -> dict[str, Any]:
    """Return the options that are not None, as JSON can represent them, with the text of a solver spelled out.

    Args:
        options: By name.
        allowed: Their names.
        arguments: Names of the call's other arguments, which a misspelt option may mean too.

    Raises:
        TypeError: One is not among those allowed, or holds conditions by name and is not a dict.
        InvalidValue: The text of the solver is not understood, or contradicts another option.
    """
    for name in options:
        if name not in allowed:
            near = nearest(name, (*arguments, *allowed))
            advice = f"did you mean {near!r}?" if near else f"allowed: {', '.join(allowed)}"
            raise TypeError(f"unknown option {name!r}; {advice}")
    given = {name: value for name, value in options.items() if value is not None}
    _check_named(given)
    found = {name: _plain(_as_body(name, value), name in NAMED) for name, value in given.items()}
    return expand_solver(found) if "solver" in allowed else found


def _check_named(options: Mapping[str, Any]) -> None:
    """Refuse conditions by name that are not a dict."""
    for name in NAMED:
        value = options.get(name)
        if value is not None and not isinstance(value, Mapping):
            raise TypeError(
                f"{name} is a {type(value).__name__}; use a dict with a value for each name, such as "
                f"{name}={{'text': [0.1, 0.2]}}"
            )


def _as_body(name: str, value: Any) -> Any:
    """Return the value of an option in the form of the request body; only a budget has another form."""
    if name != "budget":
        return value
    budget = Budget.parse(value) if isinstance(value, str) else value
    return budget.body() if isinstance(budget, Budget) else budget


def nearest(name: str, known: Sequence[str]) -> str | None:
    """Return the option that an unknown name probably means: other libraries' name for it, or a misspelling."""
    near = [each for each in _MEANT.get(name, ()) if each in known] or difflib.get_close_matches(name, known, 1)
    return near[0] if near else None


def integer(name: str, value: Any) -> int:
    """Return a count as an integer; raise a TypeError if it is not one, such as 2.0 or True."""
    if not isinstance(value, (bool, np.bool_)):
        try:
            return operator.index(value)
        except TypeError:
            pass
    raise TypeError(f"{name}={value!r} is not allowed; use an integer")


def _encoded(document: Mapping[str, Any]) -> tuple[bytes, str]:
    """Return a body and its content type: JSON, or npz if conditions have arrays.

    Raises:
        TypeError, InvalidValue: JSON cannot represent a value; the message says where it is.
    """
    arrays = {
        f"{member}.{name}": value
        for member in NAMED
        for name, value in (document.get(member) or {}).items()
        if isinstance(value, np.ndarray)
    }
    if arrays:
        rest = {
            member: {k: v for k, v in value.items() if not isinstance(v, np.ndarray)} if member in NAMED else value
            for member, value in document.items()
        }
        archive = io.BytesIO()
        np.savez(archive, request=np.array(_json(rest)), **arrays)  # type: ignore[arg-type]  (names of entries)
        return archive.getvalue(), "application/x-npz"
    return _json(document).encode(), "application/json"


def _json(document: Mapping[str, Any]) -> str:
    try:
        return json.dumps(document, allow_nan=False, separators=(",", ":"))
    except (TypeError, ValueError) as error:
        raise _fault(document, error) from None


def _fault(document: Mapping[str, Any], error: Exception) -> Exception:
    """Return an error that says where a document has a value that json refused, because json does not say so."""
    for name, content in document.items():
        for place, value in _leaves(name, content):
            if isinstance(value, float) and not math.isfinite(value):
                return InvalidValue(f"{place}={value} is not finite; replace NaN and infinity", name)
            if not isinstance(value, (str, int, float, type(None))):
                kind = type(value).__name__
                return TypeError(
                    f"{place} is a {kind}, which cannot be sent; use real numbers, strings, lists or dicts"
                )
    return error


def _leaves(place: str, value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict):
        for key, item in value.items():
            yield from _leaves(f"{place}[{key!r}]", item)
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from _leaves(f"{place}[{index}]", item)
    else:
        yield place, value


def _plain(value: Any, arrays: bool = False) -> Any:
    """Return a value as JSON can represent it; arrays (of any library that NumPy can read) become lists.

    Args:
        value: The value.
        arrays: Whether to return arrays as NumPy arrays instead.
    """
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, Mapping):
        return {str(key): _plain(item, arrays) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if not hasattr(value, "__array__"):
        return value
    found = _array(value)
    return found if arrays else found.tolist()


def _array(value: Any) -> np.ndarray:
    """Return an array of any library as a NumPy array; bfloat16, which NumPy lacks, becomes float32."""
    if hasattr(value, "detach"):  # a torch tensor, perhaps on another device
        value = value.detach().cpu()
        try:
            return np.asarray(value)
        except TypeError:
            return np.asarray(value.float())
    return np.asarray(value)
