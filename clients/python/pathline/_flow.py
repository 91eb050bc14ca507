"""Flows: operations that perform no I/O, so that both clients can share them.

A flow is a generator. It yields steps (a request to send, bytes to read, a pause, a file to write, a value for the
user), is resumed with the outcome of each, and returns the result. A client only drives it: blocking, or with await.
"""

from __future__ import annotations

import inspect
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Concatenate, Generic, ParamSpec, TypeVar, overload

import httpx

from pathline import _fields
from pathline.errors import PathlineError

if TYPE_CHECKING:
    from pathline._async_client import AsyncClient
    from pathline._calls import Calls
    from pathline._client import Client

P = ParamSpec("P")
T = TypeVar("T")
S = TypeVar("S")
A = TypeVar("A")


@dataclass(frozen=True)
class Call:
    """A step: send one HTTP request; the outcome is its `Response`.

    Attributes:
        timeout: See `Client`; that of reads has the request's own time limit, too.
        stream: Leave the body of a successful response to be read by `ReadMore`.
    """

    method: str
    path: str
    headers: dict[str, str]
    content: bytes | None
    timeout: httpx.Timeout
    stream: bool = False


@dataclass(frozen=True)
class ReadMore:
    """A step: read more of the open response; the outcome is bytes, or None at the end."""


@dataclass(frozen=True)
class Wait:
    """A step: pause for this number of seconds."""

    seconds: float


@dataclass(frozen=True)
class Do:
    """A step: call a function that reads or writes files; the outcome is what it returns."""

    call: Callable[[], Any]


@dataclass(frozen=True)
class Emit:
    """A step: hand a value to the user."""

    value: Any


@dataclass(frozen=True)
class Together:
    """A step: drive flows at the same time until all have ended.

    Attributes:
        flows: They may be driven in threads.
        stop: Called if one fails or waiting is interrupted, so that the others end soon.
    """

    flows: Sequence[Flow[None]]
    stop: Callable[[], None]


Step = Call | ReadMore | Wait | Do | Emit | Together
Flow = Generator[Step, Any, T]


@dataclass(frozen=True)
class Stream(Generic[T]):
    """A flow that emits values for the user."""

    flow: Flow[None]


class FlowRun(Generic[T]):
    """One flow being driven.

    Attributes:
        result: What it returned, once `advance` has returned None.
    """

    result: T

    def __init__(self, flow: Flow[T]) -> None:
        self._flow = flow

    def advance(self, outcome: Any) -> Step | None:
        """Resume the flow with the outcome of its last step, and return the next step; None at the end.

        Args:
            outcome: A value, or the error that the step ended with.
        """
        try:
            return self._flow.throw(outcome) if isinstance(outcome, PathlineError) else self._flow.send(outcome)
        except StopIteration as stop:
            self.result = stop.value
            return None
        except PathlineError as error:  # its message says what to do; a traceback through the SDK would only hide that
            raise error.with_traceback(None) from error.__cause__

    def close(self) -> None:
        """Abandon the flow, unless it has ended."""
        self._flow.close()


class Method(Generic[P, S, A]):
    """An operation as a method of both clients, which differ in what they return: the blocking one S, the other A.

    Args:
        operation: Returns the flow.
    """

    def __init__(self, operation: Callable[Concatenate[Calls, P], Any], streams: bool = False) -> None:
        self.operation, self.streams = operation, streams

    @overload
    def __get__(self, client: Client, owner: Any = None) -> Callable[P, S]: ...
    @overload
    def __get__(self, client: AsyncClient, owner: Any = None) -> Callable[P, A]: ...
    @overload
    def __get__(self, client: None, owner: Any) -> Callable[..., Any]: ...
    def __get__(self, client: Any, owner: Any = None) -> Any:
        """Return the method, for type checkers: each client puts a function in the place of this object."""
        raise NotImplementedError


def operation(flow: Callable[Concatenate[Calls, P], Flow[T]]) -> Method[P, T, Coroutine[Any, Any, T]]:
    """Make the method that performs a flow and returns its result."""
    return Method(flow)


def streaming(
    flow: Callable[Concatenate[Calls, P], Stream[T]],
) -> Method[P, Generator[T, None, None], AsyncGenerator[T, None]]:
    """Make the method that performs a flow and yields what it emits."""
    return Method(flow, streams=True)


def described_as(method: Callable[..., Any], operation: Callable[..., Any], owner: str) -> Callable[..., Any]:
    """Give a method of a client the name, the documentation and the signature of its operation, as help shows them.

    Options that the operation takes as members of a TypedDict are shown one by one.
    """
    method.__name__, method.__doc__ = operation.__name__, operation.__doc__
    method.__qualname__ = f"{owner}.{operation.__name__}"
    method.__annotations__ = operation.__annotations__
    first, *parameters = inspect.signature(operation).parameters.values()
    own = [inspect.Parameter("self", first.kind)]
    for parameter in parameters:
        if parameter.kind is not parameter.VAR_KEYWORD:
            own.append(parameter)
            continue
        options = getattr(_fields, str(parameter.annotation).removeprefix("Unpack[").rstrip("]"))
        own += [
            inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None) for name in options.__annotations__
        ]
    method.__signature__ = inspect.Signature(own)  # type: ignore[attr-defined]
    return method
