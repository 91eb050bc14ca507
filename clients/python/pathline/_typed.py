"""Documents of the service as dataclasses: their members are checked against the annotations of the fields."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import MISSING, fields
from typing import Any, TypeVar, cast

import numpy as np

from pathline.errors import PathlineError, ProtocolError

D = TypeVar("D")

_KINDS: Mapping[str, type | tuple[type, ...]] = {
    "int": int,
    "float": (int, float),
    "str": str,
    "bool": bool,
    "np.ndarray": np.ndarray,
    "Mapping": Mapping,
    "Sequence": (list, tuple),
    "tuple": (list, tuple),
    "list": list,
}


@contextmanager
def understood(what: str) -> Iterator[None]:
    """Turn whatever an invalid document raises into a ProtocolError; `what` names the document."""
    try:
        yield
    except PathlineError:
        raise
    except Exception as error:  # whatever damaged bytes raise in zipfile, zlib, numpy and json
        raise ProtocolError(
            f"{what} is not understood ({type(error).__name__}: {str(error)[:200]}); it was damaged on the way, or is "
            "the service older than this SDK?"
        ) from error


def parsed(content: bytes) -> Any:
    """Read JSON (RFC 8259, so without NaN); raise a ValueError if it is something else."""
    try:
        return json.loads(content, parse_constant=_refuse)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def _refuse(constant: str) -> None:
    raise ValueError(f"it has {constant}")


def typed(kind: type[D], document: Any, arrays: Mapping[str, np.ndarray] | None = None, **own: Any) -> D:
    """Build a dataclass from the members and arrays of a response under the names of its fields.

    A field called `fields` gets the whole document.

    Args:
        kind: The dataclass.
        document: The members.
        arrays: The arrays.
        own: Fields that are not simply one of them.

    Raises:
        ProtocolError: One is missing, or has another type.
    """
    for entry in fields(cast("Any", kind)):
        name, annotation = entry.name, str(entry.type)
        source = (arrays or {}) if "ndarray" in annotation else document
        if name == "fields":
            own.setdefault(name, document)
        if name in own or (name not in source and (entry.default, entry.default_factory) != (MISSING, MISSING)):
            continue
        if name not in source and annotation.endswith("| None"):
            own[name] = None
        else:
            own[name] = member_of(source, name, annotation)
    return kind(**own)


def member_of(document: Any, name: str, annotation: str = "") -> Any:
    """Return a member of a document, or an array of a response.

    Raises:
        ProtocolError: It is missing, or has another type than the annotation says.
    """
    if not isinstance(document, Mapping) or name not in document:
        raise ProtocolError(f"there is no {name!r}; is the service older than this SDK?")
    return _checked(document[name], annotation, name)


def _checked(value: Any, annotation: str, name: str) -> Any:
    base, _, inner = annotation.removesuffix(" | None").partition("[")
    if base not in _KINDS or (value is None and annotation.endswith("| None")):
        return value
    if not isinstance(value, _KINDS[base]) or (isinstance(value, bool) and base != "bool"):
        raise ProtocolError(f"{name} = {str(value)[:100]!r} is no {annotation}")
    content: Any = value
    if base == "Mapping":
        of = inner.removesuffix("]").partition(", ")[2]
        return {key: _checked(item, of, f"{name}.{key}") for key, item in content.items()} if of != "Any" else content
    if inner:
        items = [_checked(item, inner.removesuffix("]").removesuffix(", ..."), name) for item in content]
        return tuple(items) if base == "tuple" else items
    return float(content) if base == "float" else content
