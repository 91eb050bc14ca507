"""States and data in a request: from nested lists of JSON to an array of the right shape."""

from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

from service.errors import invalid


def to_array(x0: Any, shape: tuple[int, ...], name: str = "x0", event: str = "event_shape") -> NDArray[np.float64]:
    """Return nested lists of numbers, or an array of them, as an array.

    Args:
        x0: what the client sent.
        shape: the shape it must have, (num_samples, *event_shape).
        name, event: what the member and the shape of one sample are called.

    Raises:
        ProblemError: 422 for another shape, for what is no number (booleans are none), and for an integer that a
            double cannot hold.
    """
    try:
        array = np.array(x0)
    except OverflowError:
        raise _too_large(name, shape) from None
    except ValueError:
        raise invalid(name, f"{name} is ragged; it must have the shape {list(shape)}") from None
    if array.dtype.kind not in "fiuO":  # O: integers beyond 64 bits, or what is no number
        raise _no_numbers(name, shape)
    if array.shape != shape:
        raise invalid(
            name, f"{name} has the shape {list(array.shape)}; it must be (num_samples, *{event}) = {list(shape)}"
        )
    if isinstance(x0, np.ndarray):
        return array.astype(np.float64)
    numbers = x0
    for _ in shape[1:]:
        numbers = chain.from_iterable(numbers)
    if not set(map(type, numbers)) <= {int, float}:  # numpy would take true for 1 among numbers
        raise _no_numbers(name, shape)
    try:
        return array.astype(np.float64)
    except OverflowError:
        raise _too_large(name, shape) from None


def _no_numbers(name: str, shape: tuple[int, ...]) -> Exception:
    return invalid(name, f"{name} must hold numbers only, in the shape {list(shape)}")


def _too_large(name: str, shape: tuple[int, ...]) -> Exception:
    return invalid(
        name,
        f"{name} holds an integer that is too large for a double; give numbers below 1.8e308, in shape {list(shape)}",
    )
