"""Matching of a foreign file with an architecture: the state dict, its prefix, and whether it is averaged or raw."""

import re
from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from models.checkpoint.weights import differences
from models.importing.files import ForeignError, ForeignTensor
from models.messages import printable

Which = Literal["ema", "raw"]

_AVERAGED = {"ema", "shadow", "averaged", "swa"}
_SHOWN = 5


@dataclass(frozen=True)
class Candidate:
    """One state dict in a file.

    Attributes:
        prefix: the text before the architecture's own keys, such as `ema_model.module.`.
        matched: number of the architecture's keys in it.
    """

    prefix: str
    matched: int

    @property
    def which(self) -> Which:
        """`ema` if words in the prefix mark averaged weights, else `raw`."""
        return "ema" if _AVERAGED & set(re.split(r"[._]", self.prefix.lower())) else "raw"


def _candidates(keys: Collection[str], expected: Collection[str]) -> list[Candidate]:
    """Return the state dicts in a file with most of an architecture's keys, best first.

    Any prefix will do, as keys are matched by their endings.
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
    good = [Candidate(prefix, count) for prefix, count in counts.items() if 2 * count > best]
    return sorted(good, key=lambda candidate: (-candidate.matched, len(candidate.prefix)))


def _choose(file: str, candidates: list[Candidate], which: Which | None) -> Candidate:
    """Choose one of the candidates; a ForeignError if none is of this kind, or it does not say which is meant."""
    if which is None and len({candidate.which for candidate in candidates}) > 1:
        raise ForeignError(
            f"{file}: holds averaged and raw weights, {_list(candidates)}; add --which ema or --which raw"
        )
    fit = [candidate for candidate in candidates if which in (None, candidate.which)]
    if not fit:
        raise ForeignError(f"{file}: holds no {which} weights, only {_list(candidates)}; leave --which out")
    if len(fit) > 1 and fit[0].matched == fit[1].matched:
        raise ForeignError(f"{file}: holds several networks of this kind, {_list(fit)}; save the one you mean alone")
    return fit[0]


def select(
    file: str, stored: Mapping[str, ForeignTensor], expected: Mapping[str, Tensor], which: Which | None
) -> tuple[Candidate, dict[str, Tensor]]:
    """Select an architecture's tensors from a file.

    Args:
        file: file name, for messages.
        stored: the result of `read_tensors`.
        expected: every key of the architecture, with a tensor of the shape that it must have.
        which: averaged or raw weights; needed only if the file has both.

    Returns:
        The state dict chosen, and its tensors, unchanged, by the architecture's keys.

    Raises:
        ForeignError: keys are missing or unexpected (each with the nearest name), or shapes differ.
    """
    candidates = _candidates(stored, expected)
    if not candidates:
        raise ForeignError(
            f"{file}: has none of the keys of this architecture; found {_names(stored)}; expected {_names(expected)}"
        )
    chosen = _choose(file, candidates, which)
    groups = {stored[chosen.prefix + key].group for key in expected if chosen.prefix + key in stored}
    longer = tuple(candidate.prefix for candidate in candidates if len(candidate.prefix) > len(chosen.prefix))
    tensors = {
        key.removeprefix(chosen.prefix): entry.tensor
        for key, entry in stored.items()
        if key.startswith(chosen.prefix) and entry.group in groups and not (longer and key.startswith(longer))
    }
    for key, tensor in tensors.items():
        if tensor.is_nested:  # such a tensor has no shape to compare
            raise ForeignError(
                f"{file}: key {printable(key)}: is nested; save plain tensors, such as those of unbind()"
            )
    shapes = {key: ("", list(tensor.shape)) for key, tensor in tensors.items()}
    problems = differences(shapes, expected, 0.6, "nearest is {}")
    if problems is not None:
        where = f" under the prefix {printable(repr(chosen.prefix))}" if chosen.prefix else ""
        raise ForeignError(f"{file}{where}: {problems}")
    return chosen, tensors


def _names(keys: Mapping[str, object]) -> str:
    first = [printable(key) for key in sorted(keys)[:_SHOWN]]
    return ", ".join(first) + (f" and {len(keys) - _SHOWN} more" if len(keys) > _SHOWN else "")


def _list(candidates: list[Candidate]) -> str:
    listed = ", ".join(f"{c.which} under {printable(repr(c.prefix))}" for c in candidates[:_SHOWN])
    return listed + (f" and {len(candidates) - _SHOWN} more" if len(candidates) > _SHOWN else "")
