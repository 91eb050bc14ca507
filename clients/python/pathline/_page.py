"""Links to the service's page; the part of the address after # says what it shows."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import urlencode

_COMMON = ("model", "num_samples", "seed", "condition", "guidance")
_AS_THEY_ARE = "/(),@="  # allowed in a fragment; a plus would be read as a space


def page_url(url: str, common: Mapping[str, Any], *solvers: str) -> str:
    """Return the address of the page that shows one solver, or two side by side.

    Args:
        url: Base URL of the service.
        common: The request's `model`, `num_samples`, `seed`, `condition` and `guidance`, if given.
        solvers: As text, with all their settings.
    """
    parts = {name: _text(common[name]) for name in _COMMON if common.get(name) is not None}
    parts |= dict(zip("ab", solvers, strict=False))
    return f"{url}/#{urlencode(parts, safe=_AS_THEY_ARE)}"


def _text(value: Any) -> str:
    if isinstance(value, float):
        return repr(value).removesuffix(".0")
    return json.dumps(value) if isinstance(value, Sequence) and not isinstance(value, str) else str(value)
