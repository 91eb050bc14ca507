"""Matching of a foreign file with an architecture: the state dict, its prefix, and whether it is averaged or raw."""

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from models.checkpoint.weights import differences
from models.importing.files import ForeignError, Found
from models.messages import printable

Which = Literal["ema", "raw"]

_AVERAGED = {"ema", "shadow", "averaged", "swa"}
_SHOWN = 5


@dataclass(frozen=True)
class Candidate:
    """One state dict in a file.

    Attributes:
        prefix: the text before the architecture's own keys, such as `ema_model.module.`.
        which: `ema` if words in the prefix mark averaged weights, else `raw`.
        matched: number of the architecture's keys found.
    """

    prefix: str
    which: Which
    matched: int


def candidates(found: Mapping[str, Found], expected: Mapping[str, Tensor]) -> list[Candidate]:
    """Return the state dicts in a file with most of an architecture's keys, best first.

    Any prefix is found, as keys are matched by their endings.
    """
    counts: Counter[str] = Counter()
    longest = max((key.count(".") + 1 for key in expected), default=0)
    for key in found:
        parts = key.split(".")
        for cut in range(max(0, len(parts) - longest), len(parts)):
            if ".".join(parts[cut:]) in expected:
                counts[".".join(parts[:cut]) + ("." if cut else "")] += 1
    best = max(counts.values(), default=0)
    # Unrelated state dicts match a few common keys such as `norm.weight`; they do not count.
    good = [(prefix, count) for prefix, count in counts.items() if 2 * count > best]
    return [Candidate(p, _which(p), count) for p, count in sorted(good, key=lambda each: (-each[1], len(each[0])))]


def _which(prefix: str) -> Which:
    return "ema" if _AVERAGED & set(re.split(r"[._]", prefix.lower())) else "raw"


def choose(file: str, there: list[Candidate], which: Which | None) -> Candidate:
    """Choose one of the candidates.

    Raises:
        ForeignError: there is none of this kind, or there are both kinds and `which` is None.
    """
    kinds = {candidate.which for candidate in there}
    if which is None and len(kinds) > 1:
        raise ForeignError(f"{file}: holds averaged and raw weights, {_list(there)}; add --which ema or --which raw")
    fit = [candidate for candidate in there if which in (None, candidate.which)]
    if there and not fit:
        raise ForeignError(f"{file}: holds no {which} weights, only {_list(there)}; leave --which out")
    if len(fit) > 1 and fit[0].matched == fit[1].matched:
        raise ForeignError(f"{file}: holds several networks of this kind, {_list(fit)}; save the one you mean alone")
    return fit[0]


def select(
    file: str, found: Mapping[str, Found], expected: Mapping[str, Tensor], which: Which | None
) -> tuple[Candidate, dict[str, Tensor]]:
    """Select an architecture's tensors from a file.

    Args:
        file: file name, for messages.
        found: the result of `read_tensors`.
        expected: every key of the architecture, with a tensor of the shape that it must have.
        which: averaged or raw weights; needed only if the file has both.

    Returns:
        The state dict chosen, and its tensors, unchanged, by the architecture's keys.

    Raises:
        ForeignError: keys are missing or unexpected (each with the nearest name), or shapes differ.
    """
    there = candidates(found, expected)
    if not there:
        raise ForeignError(
            f"{file}: has none of the keys of this architecture; found {_names(found)}; expected {_names(expected)}"
        )
    chosen = choose(file, there, which)
    groups = {found[chosen.prefix + key].group for key in expected if chosen.prefix + key in found}
    others = tuple(each.prefix for each in there if len(each.prefix) > len(chosen.prefix))
    mine = {
        key.removeprefix(chosen.prefix): each.tensor
        for key, each in found.items()
        if key.startswith(chosen.prefix) and each.group in groups and not (others and key.startswith(others))
    }
    for key, tensor in mine.items():
        if tensor.is_nested:  # such a tensor has no shape to compare
            raise ForeignError(
                f"{file}: key {printable(key)}: is nested; save plain tensors, such as those of unbind()"
            )
    shapes = {key: ("", list(tensor.shape)) for key, tensor in mine.items()}
    problems = differences(shapes, expected, 0.6, "nearest is {}")
    if problems is not None:
        where = f" under the prefix {printable(repr(chosen.prefix))}" if chosen.prefix else ""
        raise ForeignError(f"{file}{where}: {problems}")
    return chosen, mine


def _names(keys: Mapping[str, object]) -> str:
    first = [printable(key) for key in sorted(keys)[:_SHOWN]]
    return ", ".join(first) + (f" and {len(keys) - _SHOWN} more" if len(keys) > _SHOWN else "")


def _list(there: list[Candidate]) -> str:
    listed = ", ".join(f"{each.which} under {printable(repr(each.prefix))}" for each in there[:_SHOWN])
    return listed + (f" and {len(there) - _SHOWN} more" if len(there) > _SHOWN else "")
