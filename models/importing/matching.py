"""Matching of a foreign file with an architecture: the state dict, its prefix, and whether it is averaged or raw."""

import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import Literal

from torch import Tensor

from models.checkpoint.weights import differences
from models.importing.files import ForeignError, ForeignTensor
from models.messages import printable

Which = Literal["ema", "raw"]

_AVERAGED = {"ema", "shadow", "averaged", "swa"}
_SHOWN = 5


def which_of(prefix: str) -> Which:
    """Return `ema` if words in the prefix of a state dict mark averaged weights, else `raw`."""
    return "ema" if _AVERAGED & set(re.split(r"[._]", prefix.lower())) else "raw"


def _prefixes(keys: Collection[str], expected: Collection[str]) -> dict[str, int]:
    """Return the prefixes of an architecture's keys in a file, with the number of keys; the best state dict is first.

    Any prefix will do, such as `ema_model.module.`, as keys are matched by their endings.
    """
    counts: Counter[str] = Counter()
    longest = max((key.count(".") + 1 for key in expected), default=0)
    for key in keys:
        parts = key.split(".")
        for cut in range(max(0, len(parts) - longest), len(parts)):
            if ".".join(parts[cut:]) in expected:
                counts[".".join(parts[:cut]) + ("." if cut else "")] += 1
    best = max(counts.values(), default=0)
    # Unrelated state dicts match a few common keys such as `norm.weight`; they do not count.
    good = [(prefix, count) for prefix, count in counts.items() if 2 * count > best]
    return dict(sorted(good, key=lambda item: (-item[1], len(item[0]))))


def _choose(file: str, prefixes: Mapping[str, int], which: Which | None) -> str:
    """Choose one of the prefixes; a ForeignError if none is of this kind, or it does not say which is meant."""
    if which is None and len(set(map(which_of, prefixes))) > 1:
        raise ForeignError(f"{file}: holds averaged and raw weights, {_list(prefixes)}; add --which ema or --which raw")
    fit = [prefix for prefix in prefixes if which in (None, which_of(prefix))]
    if not fit:
        raise ForeignError(f"{file}: holds no {which} weights, only {_list(prefixes)}; leave --which out")
    if len(fit) > 1 and prefixes[fit[0]] == prefixes[fit[1]]:
        raise ForeignError(f"{file}: holds several networks of this kind, {_list(fit)}; save the one you mean alone")
    return fit[0]


def select(
    file: str, stored: Mapping[str, ForeignTensor], expected: Mapping[str, Tensor], which: Which | None
) -> tuple[str, dict[str, Tensor]]:
    """Select an architecture's tensors from a file.

    Args:
        file: file name, for messages.
        stored: the result of `read_tensors`.
        expected: every key of the architecture, with a tensor of the shape that it must have.
        which: averaged or raw weights; needed only if the file has both.

    Returns:
        The prefix of the state dict chosen, and its tensors, unchanged, by the architecture's keys.

    Raises:
        ForeignError: keys are missing or unexpected (each with the nearest name), or shapes differ.
    """
    prefixes = _prefixes(stored, expected)
    if not prefixes:
        keys, usual = _first(sorted(stored)), _first(sorted(expected))
        raise ForeignError(f"{file}: has none of the keys of this architecture; found {keys}; expected {usual}")
    prefix = _choose(file, prefixes, which)
    groups = {stored[prefix + key][0] for key in expected if prefix + key in stored}
    longer = tuple(other for other in prefixes if len(other) > len(prefix))
    tensors = {
        key.removeprefix(prefix): tensor
        for key, (group, tensor) in stored.items()
        if key.startswith(prefix) and group in groups and not (longer and key.startswith(longer))
    }
    for key, tensor in tensors.items():
        if tensor.is_nested:  # such a tensor has no shape to compare
            raise ForeignError(
                f"{file}: key {printable(key)}: is nested; save plain tensors, such as those of unbind()"
            )
    shapes = {key: ("", list(tensor.shape)) for key, tensor in tensors.items()}
    problems = differences(shapes, expected, 0.6, "nearest is {}")
    if problems is not None:
        where = f" under the prefix {printable(repr(prefix))}" if prefix else ""
        raise ForeignError(f"{file}{where}: {problems}")
    return prefix, tensors


def _list(prefixes: Collection[str]) -> str:
    return _first([f"{which_of(prefix)} under {prefix!r}" for prefix in prefixes])


def _first(names: Sequence[str]) -> str:
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(map(printable, names[:_SHOWN])) + more
