"""Which noise goes to which sample of a batch."""

import numpy as np
from numpy.typing import NDArray


def optimal(x0: NDArray[np.float32], x1: NDArray[np.float32]) -> NDArray[np.int64]:
    """The pairing of noise and samples with the least sum of squared distances, exact for the batch.

    Pooladian et al., "Multisample flow matching", ICML 2023; Tong et al., "Improving and generalizing flow-based
    generative models with minibatch optimal transport", TMLR 2024.

    Args:
        x0: noise, (rows, *event).
        x1: samples, (rows, *event).

    Returns:
        The row of x0 that goes to each row of x1, (rows,).
    """
    from scipy.optimize import linear_sum_assignment

    a, b = (x.reshape(len(x), -1).astype(np.float64) for x in (x1, x0))
    # |a - b|^2 = |a|^2 + |b|^2 - 2 a.b, and the first two add up to the same for every pairing.
    return linear_sum_assignment(-(a @ b.T))[1].astype(np.int64)
