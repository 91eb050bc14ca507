"""States and data in a request: from nested lists of JSON to an array of the right shape."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from models.nested import NestedError, to_floats
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
    wanted = f"(num_samples, *{event}) = {list(shape)}"
    if not isinstance(x0, np.ndarray):
        try:
            return to_floats(x0, shape, name, wanted)
        except NestedError as error:
            raise invalid(name, str(error)) from None
    if x0.shape != shape:
        raise invalid(name, f"{name} has the shape {list(x0.shape)}; it must be {wanted}")
    return x0.astype(np.float64)
