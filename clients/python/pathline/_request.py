"""Building the body of a sample request: once, before it is first sent, so that a retry is the same bytes."""

from __future__ import annotations

import difflib
import json
import math
import operator
import secrets
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, SupportsIndex, TypedDict

import numpy as np

from pathline.errors import InvalidValue

SEED_LIMIT = 2**63
"""Seeds are integers in [0, 2**63)."""

DEFAULT_NUM_SAMPLES = 256


class CommonOptions(TypedDict, total=False):
    """Options of every operation; left out, the service's defaults hold.

    Attributes:
        version: Version of the model; the highest where left out.
        grid: Time grid of fixed steps: a name, an object with the name and its parameters, or explicit times.
        start: Start of a multistep method: ``"ramp"`` or ``"rk"``.
        error_control: ``"sample"`` (each sample its own steps) or ``"batch"`` (one for the request).
        controller: Step-size controller: ``"paper"``, ``"i"`` or ``"pi"``.
        first_step: Size of the first step of error control; automatic where left out.
        max_step: Longest step of error control, in units of t; no bound where left out.
        max_nfe: Most velocity evaluations of a sample.
        condition: Class label or vector of a conditional model.
        guidance: Strength of classifier-free guidance.
        timeout_s: Time limit in seconds, waiting included.
        priority: ``"interactive"``, or ``"bulk"`` for work that lets others go first: the default of `log_prob` and
            `diagnose`.
    """

    version: int | None
    grid: Any
    start: str | None
    error_control: Literal["sample", "batch"]
    controller: str | None
    first_step: float | None
    max_step: float | None
    max_nfe: int
    condition: Any
    guidance: float | None
    timeout_s: float | None
    priority: Literal["interactive", "bulk"]


class SampleOptions(CommonOptions, total=False):
    """Options of `sample`, `iter_samples` and `compare`; see `CommonOptions` for the others.

    Attributes:
        first_index: Index of the first sample in the seed's stream.
        x0: Start states, shape (num_samples, *event_shape).
        t_span: Where to start and end; noise is at 0, data at 1.
        trace: How much of the steps to report: ``"none"``, ``"summary"`` or ``"full"``.
        save_at: Times at which to report the state too.
        decode: Whether to turn latent states into data.
        on_timeout: ``"error"``, or ``"partial"`` for the states reached when the limit passes.
    """

    first_index: int
    x0: Any
    t_span: tuple[float, float]
    trace: Literal["none", "summary", "full"]
    save_at: Sequence[float] | np.ndarray | None
    decode: bool
    on_timeout: Literal["error", "partial"]


COMMON = ("solver", "steps", "rtol", "atol")
_ALLOWED = (*COMMON, *SampleOptions.__annotations__)


@dataclass(frozen=True)
class SampleRequest:
    """One request, ready to be sent as often as needed.

    Attributes:
        model: Name of the model.
        num_samples: How many samples.
        seed: The seed, drawn here where none was given.
        first_index: Index of the first sample in the seed's stream.
        timeout_s: Time limit asked of the service in seconds, or None for its default.
        t_end: Where the samples end.
        body: The JSON body.
    """

    model: str
    num_samples: int
    seed: int
    first_index: int
    timeout_s: float | None
    t_end: float
    body: bytes


@dataclass(frozen=True)
class OperationRequest:
    """A request of another operation than sampling, ready to be sent as often as needed.

    Attributes:
        model: Name of the model.
        operation: The last part of the address.
        timeout_s: Time limit asked of the service in seconds, or None for its default.
        body: The JSON body.
    """

    model: str
    operation: str
    timeout_s: float | None
    body: bytes


def common(
    solver: str | None, steps: int | None, rtol: float | None, atol: float | None, options: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the common options and the others as one mapping."""
    return {"solver": solver, "steps": steps, "rtol": rtol, "atol": atol, **options}


def draw_seed() -> int:
    """Return a fresh seed in [0, 2**63) from the operating system's entropy."""
    return secrets.randbelow(SEED_LIMIT)


def sample_request(
    model: str, num_samples: int | None, seed: SupportsIndex | None, options: Mapping[str, Any]
) -> SampleRequest:
    """Build a request; only what was given is sent, so an older service is not bothered with newer fields.

    Raises:
        TypeError: An option is unknown, a count or the seed is not an integer, or a value is none that JSON knows.
        InvalidValue: A number is not finite, or the seed is out of range.
    """
    fields = given(options, _ALLOWED)
    if num_samples is None:
        num_samples = len(fields["x0"]) if isinstance(fields.get("x0"), list) else DEFAULT_NUM_SAMPLES
    count = _integer("num_samples", num_samples)
    first = _integer("first_index", fields.get("first_index", 0))
    chosen = chosen_seed(seed)
    body = encoded({"model": model, "num_samples": count, "seed": chosen, **fields})
    span = fields.get("t_span")
    end = span[1] if isinstance(span, list) and len(span) == 2 else 1.0
    return SampleRequest(model, count, chosen, first, fields.get("timeout_s"), end, body)


def chosen_seed(seed: SupportsIndex | None) -> int:
    """Return the seed as an integer; a fresh one for None.

    Raises:
        TypeError: It is not an integer.
        InvalidValue: It is out of range.
    """
    chosen = draw_seed() if seed is None else _integer("seed", seed)
    if not 0 <= chosen < SEED_LIMIT:
        message = f"seed={chosen} is not allowed; use an integer from 0 to 2**63 - 1, or None for a fresh one"
        raise InvalidValue(message, "seed")
    return chosen


def encoded(document: Mapping[str, Any]) -> bytes:
    """Return a body as JSON.

    Raises:
        TypeError: A value is none that JSON knows.
        InvalidValue: A number is not finite.
    """
    try:
        return json.dumps(document, allow_nan=False, separators=(",", ":")).encode()
    except (TypeError, ValueError) as error:
        raise _fault(document, error) from None


class Pages:
    """The requests that together ask for `total` samples of one seed, `batch` at a time.

    Once `pin` was told which version answered, the rest asks for the same, so that a model that is replaced
    meanwhile does not mix two versions into one set of samples.

    Raises:
        TypeError: As `sample_request`; raised here, not at the first page.
        ValueError: A value cannot be paged, or as `sample_request`.
    """

    def __init__(
        self, model: str, total: int, batch: int, seed: SupportsIndex | None, options: Mapping[str, Any]
    ) -> None:
        self._total, self._batch = _integer("total", total), _integer("batch", batch)
        if self._total < 1 or self._batch < 1:
            raise ValueError(f"total={total} and batch={batch}: both must be at least 1")
        if options.get("x0") is not None:
            raise ValueError("x0 cannot be paged; call sample() for each slice of your start states")
        if options.get("error_control") == "batch" and self._total > self._batch:
            raise ValueError(
                f"error_control='batch' couples all samples of a request, so {total} samples cannot come in pages "
                f"of {batch}; use error_control='sample', or batch={total}"
            )
        self._model, self._options = model, dict(options)
        self._seed = draw_seed() if seed is None else seed
        self._start = _integer("first_index", options.get("first_index", 0))
        self._page(0)  # so that a bad value is reported here

    def __iter__(self) -> Iterator[SampleRequest]:
        return map(self._page, range(0, self._total, self._batch))

    def pin(self, version: int) -> None:
        """Ask for this version from now on."""
        self._options["version"] = version

    def _page(self, done: int) -> SampleRequest:
        count = min(self._batch, self._total - done)
        return sample_request(self._model, count, self._seed, {**self._options, "first_index": self._start + done})


def given(options: Mapping[str, Any], allowed: Sequence[str]) -> dict[str, Any]:
    """Return the options that are not None, as json knows them.

    Raises:
        TypeError: One is not among those allowed.
    """
    for name in options:
        if name not in allowed:
            near = difflib.get_close_matches(name, allowed, n=1)
            advice = f"did you mean {near[0]!r}?" if near else f"allowed: {', '.join(allowed)}"
            raise TypeError(f"unknown option {name!r}; {advice}")
    return {name: _plain(value) for name, value in options.items() if value is not None}


def _integer(name: str, value: Any) -> int:
    if not isinstance(value, (bool, np.bool_)):
        try:
            return operator.index(value)
        except TypeError:
            pass
    raise TypeError(f"{name}={value!r} is not allowed; use an integer")


def _fault(document: Mapping[str, Any], error: Exception) -> Exception:
    """Return what to raise for a document that json refused: it says that something is wrong, but not where."""
    for field, content in document.items():
        for place, value in _leaves(field, content):
            if isinstance(value, float) and not math.isfinite(value):
                return InvalidValue(f"{place}={value} is not finite; replace NaN and infinity", field)
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


def _plain(value: Any) -> Any:
    """Return a value as json knows it; arrays (of any library that NumPy can read) become lists."""
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return np.asarray(value).tolist() if hasattr(value, "__array__") else value
