"""Request bodies, built once before they are first sent, so that a retry sends the same bytes."""

from __future__ import annotations

import difflib
import io
import json
import math
import operator
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, SupportsIndex

import numpy as np

from pathline._conditions import KNOWN, NAMED
from pathline._fields import FIELDS, OTHER_NAMES, ReplayOptions, SolverOptions
from pathline.errors import InvalidValue

SEED_LIMIT = 2**63
"""Seeds are integers in [0, 2**63)."""

DRAWN_LIMIT = 2**53
"""Drawn seeds are below it."""


@dataclass(frozen=True)
class Budget:
    """Limits on the cost and error of a request, in place of a solver: the service chooses one within them.

    Attributes:
        max_error: Endpoint error that 95 % of samples end within, as a share of the spread: 0.01 is 1 %.
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
        limits: dict[str, Any] = {}
        for part in filter(None, (piece.strip() for piece in text.split(","))):
            name, _, value = part.partition("=")
            name = name.strip().removeprefix("max_")
            try:
                if f"max_{name}" in limits:
                    raise ValueError
                limits[f"max_{name}"] = kinds[name](value)
            except (KeyError, ValueError):
                example = "write it like error=0.01, nfe=8 or error=0.01,ms=40"
                raise InvalidValue(f"budget {text!r} is not understood at {part!r}; {example}", "budget") from None
        return cls(**limits)


_WITH_ARRAYS = (*NAMED, KNOWN)
"""Options that are objects with arrays by name."""

_SAMPLE = tuple(name for name in FIELDS if name not in ("model", "num_samples"))
_SOLVER = tuple(SolverOptions.__annotations__)


@dataclass(frozen=True)
class Request:
    """A request of one operation, ready to be sent as often as needed.

    Attributes:
        model: Name of the model.
        operation: The last part of the address: ``sample``, ``replay``, ``encode``, ...
        settings: The members of the body, except states.
        body: The body: JSON, or npz if it has arrays.
        media: Its content type.
        url: Base URL of the service.
        num_samples, seed, first_index: What a response with samples must say; None where it may say anything.
    """

    model: str
    operation: str
    settings: Mapping[str, Any]
    body: bytes = field(repr=False)
    media: str
    url: str
    num_samples: int | None = None
    seed: int | None = None
    first_index: int | None = None


def replay_request(answer: Mapping[str, Any], options: Mapping[str, Any], url: str = "") -> Request:
    """Build the request for a replay.

    Args:
        answer: The members of the earlier response, without its arrays.
        options: See `ReplayOptions`.
        url: Base URL of the service.

    Raises:
        TypeError: An option is unknown, or JSON cannot represent a value.
        InvalidValue: A number is not finite.
    """
    body = {**answer, **plain_options(options, tuple(ReplayOptions.__annotations__))}
    return Request("", "replay", _settings(body), *_encoded(body), url)


def sample_request(model: str, num_samples: int | None, options: Mapping[str, Any], url: str = "") -> Request:
    """Check what can be checked without the service, and build the request. Only given options are sent.

    Args:
        model: Name of the model.
        num_samples: How many samples; by default the rows of `x0`, else 256.
        options: See `SampleOptions`.
        url: Base URL of the service.

    Raises:
        TypeError: An option is unknown, a count is not an integer, or JSON cannot represent a value.
        InvalidValue: A number is out of range or not finite.
    """
    members = plain_options(options, _SAMPLE, ("num_samples",))
    if not isinstance(model, str):
        raise TypeError(f"model={model!r} is not allowed; use the name of a model")
    if num_samples is None:
        x0 = members.get("x0")
        num_samples = len(x0) if isinstance(x0, list) else FIELDS["num_samples"].default
    count, seed = integer("num_samples", num_samples), chosen_seed(options.get("seed"))
    first = integer("first_index", members.get("first_index", 0))
    body = _encoded({"model": model, "num_samples": count, **members, "seed": seed})
    return Request(model, "sample", _settings(members), *body, url, count, seed, first)


def operation_request(
    operation: str, model: str, own: Mapping[str, Any], options: Mapping[str, Any], kind: type, url: str = ""
) -> Request:
    """Build the request of an operation other than sampling; raises as `sample_request` does.

    Args:
        operation: The last part of its address.
        model: Name of the model, which is part of the address.
        own: Arguments that are no options.
        options: The options.
        kind: The TypedDict that has them.
        url: Base URL of the service.
    """
    names = (*_SOLVER, *kind.__annotations__)
    members = {**plain_options(own, tuple(own)), **plain_options(options, names, tuple(own))}
    if "seed" in names:
        members["seed"] = chosen_seed(members.get("seed"))
    return Request(model, operation, _settings(members), *_encoded(members), url)


def _settings(members: Mapping[str, Any]) -> dict[str, Any]:
    return {
        name: value for name, value in members.items() if name not in ("samples", "x0", *_WITH_ARRAYS)
    }  # may be large


def chosen_seed(seed: SupportsIndex | None) -> int:
    """Return the seed as an integer; for None a fresh one, which programs that read numbers as doubles do not round.

    Raises:
        TypeError: It is not an integer.
        InvalidValue: It is out of range.
    """
    chosen = secrets.randbelow(DRAWN_LIMIT) if seed is None else integer("seed", seed)
    if not 0 <= chosen < SEED_LIMIT:
        message = f"seed={chosen} is not allowed; use an integer from 0 to 2**63 - 1, or None for a fresh one"
        raise InvalidValue(message, "seed")
    return chosen


def paged_options(model: str, total: int, batch: int, options: Mapping[str, Any]) -> dict[str, Any]:
    """Check what asks for `total` samples, `batch` at a time; return the options with the seed and the first index.

    Raises:
        TypeError: As `sample_request`.
        ValueError: A value cannot be paged, or as `sample_request`.
    """
    if total < 1 or batch < 1:
        raise ValueError(f"total={total} and batch={batch}: both must be at least 1")
    plain_options(options, _SAMPLE, ("total", "batch"))
    if options.get("x0") is not None:
        raise ValueError("x0 cannot be paged; call sample() for each slice of your start states")
    refuse_coupled(options, total, batch)
    seed, first_index = chosen_seed(options.get("seed")), integer("first_index", options.get("first_index") or 0)
    members = {**options, "seed": seed, "first_index": first_index}
    sample_request(model, min(batch, total), members)  # so that a bad value is reported now
    return members


def refuse_coupled(solver: Mapping[str, Any], total: int, batch: int) -> None:
    """Refuse several pages with a solver, as an option or in a response, that couples the samples of a request."""
    if solver.get("error_control") == "batch" and total > batch:
        raise ValueError(
            f"error_control='batch' couples all samples of a request, so {total} samples cannot be split into "
            f"pages of {batch}; use error_control='sample', or batch={total}"
        )


def plain_options(options: Mapping[str, Any], allowed: Sequence[str], arguments: Sequence[str] = ()) -> dict[str, Any]:
    """Return the options that are not None, as JSON can represent them.

    Args:
        options: By name.
        allowed: Their names.
        arguments: Names of the call's other arguments, which a misspelt option may mean too.

    Raises:
        TypeError: One is not among those allowed, or holds conditions by name and is not a dict.
    """
    for name in options:
        if name not in allowed:
            near = nearest(name, (*arguments, *allowed))
            advice = f"did you mean {near!r}?" if near else f"allowed: {', '.join(allowed)}"
            raise TypeError(f"unknown option {name!r}; {advice}")
    members = {}
    for name, value in options.items():
        if name in _WITH_ARRAYS and value is not None and not isinstance(value, Mapping):
            example = "'values': y, 'mask': mask" if name == KNOWN else "'text': [0.1, 0.2]"
            kind = type(value).__name__
            raise TypeError(f"{name} is a {kind}; use a dict with a value for each name, such as {name}={{{example}}}")
        if name == "budget" and isinstance(value, str):
            value = Budget.parse(value)
        if isinstance(value, Budget):
            value = {limit: most for limit, most in vars(value).items() if most is not None}
        if value is not None:
            members[name] = _plain(value, name in _WITH_ARRAYS)
    return members


def nearest(name: str, names: Sequence[str]) -> str | None:
    """Return the option that an unknown name probably means: other libraries' name for it, or a misspelling."""
    meant = OTHER_NAMES.get(name, name)
    if meant == "num_samples" and "total" in names:
        meant = "total"
    near = [meant] if meant in names else difflib.get_close_matches(name, names, 1)
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
    """Return a body and its content type: JSON, or npz if conditions or known values have arrays.

    Raises:
        TypeError, InvalidValue: JSON cannot represent a value; the message says where it is.
    """
    arrays = {
        f"{member}.{name}": value
        for member in _WITH_ARRAYS
        for name, value in (document.get(member) or {}).items()
        if isinstance(value, np.ndarray)
    }
    if arrays:
        plain = {
            member: {k: v for k, v in value.items() if not isinstance(v, np.ndarray)}
            if member in _WITH_ARRAYS
            else value
            for member, value in document.items()
        }
        archive = io.BytesIO()
        np.savez(archive, request=np.array(_json(plain)), **arrays)  # type: ignore[arg-type]  (names of entries)
        return archive.getvalue(), "application/x-npz"
    return _json(document).encode(), "application/json"


def _json(document: Mapping[str, Any]) -> str:
    try:
        return json.dumps(document, allow_nan=False, separators=(",", ":"))
    except (TypeError, ValueError) as refusal:  # which does not say where the value is
        for name, content in document.items():
            for place, value in _leaves(name, content):
                if isinstance(value, float) and not math.isfinite(value):
                    raise InvalidValue(f"{place}={value} is not finite; replace NaN and infinity", name) from None
                if not isinstance(value, (str, int, float, type(None))):
                    advice = "which cannot be sent; use real numbers, strings, lists or dicts"
                    raise TypeError(f"{place} is a {type(value).__name__}, {advice}") from None
        raise refusal from None


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
    if hasattr(value, "detach"):  # a torch tensor, perhaps on another device
        value = value.detach().cpu()
    try:
        array = np.asarray(value)
    except TypeError:
        if not hasattr(value, "detach"):
            raise
        array = np.asarray(value.float())  # from bfloat16, which NumPy lacks
    return array if arrays else array.tolist()
