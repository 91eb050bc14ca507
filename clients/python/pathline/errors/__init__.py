"""Everything the SDK raises, one class for each problem type of the service.

::

    PathlineError
     +- InvalidURL                     the base URL is not one (also a ValueError)
     +- InvalidEnvironment             the environment names an unusable proxy or certificates (also a ValueError)
     +- InvalidKey                     the API key cannot be sent (also a ValueError)
     +- InvalidValue                   the value cannot be sent, and nothing was (also a ValueError)
     +- APIError                       the service answered with a problem
     |   +- InvalidRequest             422 invalid-request
     |   |   +- BadRequest             400 bad-request
     |   |       +- MalformedJSON      400 malformed-json
     |   +- Unauthorized               401 unauthorized
     |   +- Forbidden                  403 forbidden
     |   +- NotFound                   404
     |   |   +- NoSuchRoute            404 no-such-route
     |   |   +- UnknownModel           404 unknown-model
     |   |   +- UnknownVersion         404 unknown-version
     |   +- MethodNotAllowed           405 method-not-allowed
     |   +- Unsupported
     |   |   +- NotAcceptable          406 not-acceptable
     |   |   +- UnsupportedMediaType   415 unsupported-media-type
     |   +- SlowRequest         (r)    408 request-timeout
     |   +- TooLarge                   413 body-too-large
     |   |   +- JobTooLarge            413 job-too-large
     |   |   +- HeadTooLarge           431 head-too-large
     |   +- Overloaded          (r)    429 overloaded
     |   +- DeadlineExceeded           504 deadline-exceeded
     |   +- ServerError                500 internal-error, and every other 5xx
     |   |   +- EngineFailed           500 engine-failed
     |   +- Unavailable         (r)    502, 503
     |       +- Draining        (r)    503 draining
     |       +- NotReady        (r)    503 not-ready
     |       +- TooManyConnections (r) 503 too-many-connections
     |       +- ModelUnavailable       503 model-unavailable (its files are damaged: waiting does not help)
     +- TransportError                 no response arrived
     |   +- ConnectError        (r)    nothing listens there, or the name is unknown (also a ConnectionError)
     |   |   +- InsecureConnection     the other side does not speak TLS, or its certificate is not trusted
     |   |   +- ProxyRefused           the proxy refuses the connection
     |   +- ConnectionLost      (r)    the connection broke before a response (also a ConnectionError)
     |   +- RequestTimeout             no response in time (also a TimeoutError)
     +- ProtocolError                  the response is not valid: an older service, another server, damage
         +- IncompleteAnswer    (r)    the response was cut off half-way

Those marked (r) are retried within the bounds of the `RetryPolicy`; a retry is the same request, because the seed
is drawn before it is first sent.
"""

from pathline.errors.api import (
    APIError,
    BadRequest,
    DeadlineExceeded,
    Draining,
    EngineFailed,
    Forbidden,
    HeadTooLarge,
    InvalidRequest,
    JobTooLarge,
    MalformedJSON,
    MethodNotAllowed,
    ModelUnavailable,
    NoSuchRoute,
    NotAcceptable,
    NotFound,
    NotReady,
    Overloaded,
    ServerError,
    SlowRequest,
    TooLarge,
    TooManyConnections,
    Unauthorized,
    Unavailable,
    UnknownModel,
    UnknownVersion,
    Unsupported,
    UnsupportedMediaType,
)
from pathline.errors.base import (
    ConnectError,
    ConnectionLost,
    IncompleteAnswer,
    InsecureConnection,
    InvalidEnvironment,
    InvalidKey,
    InvalidURL,
    InvalidValue,
    PathlineError,
    ProtocolError,
    ProxyRefused,
    RequestTimeout,
    TransportError,
)

__all__ = [
    "APIError",
    "BadRequest",
    "ConnectError",
    "ConnectionLost",
    "DeadlineExceeded",
    "Draining",
    "EngineFailed",
    "Forbidden",
    "HeadTooLarge",
    "IncompleteAnswer",
    "InsecureConnection",
    "InvalidEnvironment",
    "InvalidKey",
    "InvalidRequest",
    "InvalidURL",
    "InvalidValue",
    "JobTooLarge",
    "MalformedJSON",
    "MethodNotAllowed",
    "ModelUnavailable",
    "NoSuchRoute",
    "NotAcceptable",
    "NotFound",
    "NotReady",
    "Overloaded",
    "PathlineError",
    "ProtocolError",
    "ProxyRefused",
    "RequestTimeout",
    "ServerError",
    "SlowRequest",
    "TooLarge",
    "TooManyConnections",
    "TransportError",
    "Unauthorized",
    "Unavailable",
    "UnknownModel",
    "UnknownVersion",
    "Unsupported",
    "UnsupportedMediaType",
]
