"""Python client for Pathline, the sampling server for flow-matching models.

    from pathline import Client

    with Client("http://127.0.0.1:8000") as client:
        result = client.sample("moons", num_samples=256, solver="rk4", steps=20, seed=0)
        print(result)
        result.samples  # np.ndarray of shape (256, 2)

`AsyncClient` has the same methods, to be awaited. The docstring of `pathline.errors` shows the tree of errors, all of
which can be imported from here.
"""

from importlib.metadata import version as _version

from pathline._async_client import AsyncClient
from pathline._bulk import BulkResult
from pathline._client import Client
from pathline._compare import Comparison, ComparisonRow, Recommendation
from pathline._events import Completed, Event, Progress, Started, State
from pathline._frontier import Frontier, FrontierCurve, FrontierPoint
from pathline._info import Axis, ModelInfo, ModelList, ServiceLoad, SolverInfo
from pathline._request import Budget, SampleOptions, SolverOptions
from pathline._results import (
    DiagnoseResult,
    EncodeResult,
    Failure,
    Latency,
    LogProbResult,
    SampleResult,
    Trace,
)
from pathline._retry import RetryPolicy
from pathline.errors import (
    APIError,
    BadRequest,
    BulkConflict,
    BulkIncomplete,
    ConnectError,
    ConnectionLost,
    DeadlineExceeded,
    Draining,
    EngineFailed,
    Forbidden,
    HeadTooLarge,
    IncompleteAnswer,
    InsecureConnection,
    InvalidEnvironment,
    InvalidKey,
    InvalidRequest,
    InvalidURL,
    InvalidValue,
    JobTooLarge,
    MalformedJSON,
    MethodNotAllowed,
    ModelUnavailable,
    NoFrontier,
    NoSuchRoute,
    NotAcceptable,
    NotFound,
    NotReady,
    Overloaded,
    PathlineError,
    ProtocolError,
    ProxyRefused,
    ReplayDiffers,
    RequestTimeout,
    ServerError,
    SlowRequest,
    TooLarge,
    TooManyConnections,
    TransportError,
    Unauthorized,
    Unavailable,
    UnknownModel,
    UnknownVersion,
    Unsupported,
    UnsupportedMediaType,
)

__version__ = _version("pathline")

__all__ = [
    "APIError",
    "AsyncClient",
    "Axis",
    "BadRequest",
    "Budget",
    "BulkConflict",
    "BulkIncomplete",
    "BulkResult",
    "Client",
    "Comparison",
    "ComparisonRow",
    "Completed",
    "ConnectError",
    "ConnectionLost",
    "DeadlineExceeded",
    "DiagnoseResult",
    "Draining",
    "EncodeResult",
    "EngineFailed",
    "Event",
    "Failure",
    "Forbidden",
    "Frontier",
    "FrontierCurve",
    "FrontierPoint",
    "HeadTooLarge",
    "IncompleteAnswer",
    "InsecureConnection",
    "InvalidEnvironment",
    "InvalidKey",
    "InvalidRequest",
    "InvalidURL",
    "InvalidValue",
    "JobTooLarge",
    "Latency",
    "LogProbResult",
    "MalformedJSON",
    "MethodNotAllowed",
    "ModelInfo",
    "ModelList",
    "ModelUnavailable",
    "NoFrontier",
    "NoSuchRoute",
    "NotAcceptable",
    "NotFound",
    "NotReady",
    "Overloaded",
    "PathlineError",
    "Progress",
    "ProtocolError",
    "ProxyRefused",
    "Recommendation",
    "ReplayDiffers",
    "RequestTimeout",
    "RetryPolicy",
    "SampleOptions",
    "SampleResult",
    "ServerError",
    "ServiceLoad",
    "SlowRequest",
    "SolverInfo",
    "SolverOptions",
    "Started",
    "State",
    "TooLarge",
    "TooManyConnections",
    "Trace",
    "TransportError",
    "Unauthorized",
    "Unavailable",
    "UnknownModel",
    "UnknownVersion",
    "Unsupported",
    "UnsupportedMediaType",
]
