# The names say what happened and read well in an `except` clause (as in httpx), so they do not all end in Error.
# ruff: noqa: N818
"""The root of all errors, and those that no answer of the service is behind."""

from __future__ import annotations

from typing import ClassVar


class PathlineError(Exception):
    """Anything the SDK raises; `attempts` is how often the request was sent before it gave up."""

    retryable: ClassVar[bool] = False
    attempts: int = 1

    def __str__(self) -> str:
        text = str(self.args[0]) if self.args else type(self).__name__
        return f"{text} (gave up after {self.attempts} attempts)" if self.attempts > 1 else text


class InvalidURL(PathlineError, ValueError):
    """The base URL cannot be used."""


class InvalidKey(PathlineError, ValueError):
    """The API key cannot be sent in a header."""


class InvalidEnvironment(PathlineError, ValueError):
    """A proxy or the certificates that a variable of the environment names cannot be used; the message says which."""


class InvalidValue(PathlineError, ValueError):
    """A field of a request has a value that cannot be sent; nothing was.

    Attributes:
        field: Name of the field.
    """

    def __init__(self, message: str, field: str = "") -> None:
        super().__init__(message)
        self.field = field


class TransportError(PathlineError):
    """No answer arrived."""


class ConnectError(TransportError, ConnectionError):
    """No connection could be made."""

    retryable = True


class InsecureConnection(ConnectError):
    """TLS could not be agreed on: the other side does not speak it, or its certificate is not trusted."""

    retryable = False


class ProxyRefused(ConnectError):
    """The proxy that the environment names does not let this through, or asks for a password."""

    retryable = False


class ConnectionLost(TransportError, ConnectionError):
    """The connection broke before a response arrived."""

    retryable = True


class RequestTimeout(TransportError, TimeoutError):
    """Nothing arrived in the time allowed."""


class ProtocolError(PathlineError):
    """The answer is not what was promised."""


class IncompleteAnswer(ProtocolError):
    """The response was cut off half-way."""

    retryable = True
