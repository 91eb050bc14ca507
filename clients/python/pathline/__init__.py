"""Python client for Pathline, the sampling server for flow-matching models.

    from pathline import Client

    with Client("http://127.0.0.1:8000") as client:
        result = client.sample("moons", num_samples=256, solver="rk4", steps=20, seed=0)
        print(result)
        result.samples  # np.ndarray of shape (256, 2)

`AsyncClient` has the same methods, to be awaited. The docstring of `pathline.errors` shows the tree of errors, all of
which can be imported from here.
"""

from pathline import _analysis, errors
from pathline._analysis import *  # noqa: F403 - their own lists say what is public
from pathline._bulk import BulkResult
from pathline._clients import AsyncClient, Client
from pathline._compare import Comparison, ComparisonRow
from pathline._events import Completed, Event, Progress, Started, State
from pathline._fields import SampleOptions, SolverOptions
from pathline._frontier import Frontier, FrontierCurve, FrontierPoint
from pathline._info import Axis, ModelInfo, ModelList, ServiceLoad, SolverInfo
from pathline._request import Budget
from pathline._results import Failure, Latency, SampleResult, Trace
from pathline._retry import RetryPolicy
from pathline._route import VERSION
from pathline.errors import *  # noqa: F403

__version__ = VERSION

__all__ = [
    "AsyncClient",
    "Axis",
    "Budget",
    "BulkResult",
    "Client",
    "Comparison",
    "ComparisonRow",
    "Completed",
    "Event",
    "Failure",
    "Frontier",
    "FrontierCurve",
    "FrontierPoint",
    "Latency",
    "ModelInfo",
    "ModelList",
    "Progress",
    "RetryPolicy",
    "SampleOptions",
    "SampleResult",
    "ServiceLoad",
    "SolverInfo",
    "SolverOptions",
    "Started",
    "State",
    "Trace",
]
__all__ += _analysis.__all__
__all__ += errors.__all__
