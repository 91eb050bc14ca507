"""Both clients: a blocking one, and one for asyncio. `Operations` lists what they can do."""

from __future__ import annotations

import inspect
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator, Mapping
from typing import TYPE_CHECKING, Any, Concatenate, Generic, ParamSpec, TypeVar, overload

import httpx

from pathline import _analysis, _bulk, _compare, _fields
from pathline._calls import Calls
from pathline._io import Asynchronous, Blocking, run, values
from pathline._retry import RetryPolicy
from pathline._route import configured

if TYPE_CHECKING:
    from typing_extensions import Self

P = ParamSpec("P")
T = TypeVar("T")
S = TypeVar("S")
A = TypeVar("A")


class Method(Generic[P, S, A]):
    """An operation as a method of both clients, which differ in what they return: the blocking one S, the other A.

    Args:
        operation: Returns a coroutine, or an asynchronous generator if it `streams`.
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
        return self  # of `Operations` itself, which help looks at


def operation(
    coroutine: Callable[Concatenate[Calls, P], Coroutine[Any, Any, T]],
) -> Method[P, T, Coroutine[Any, Any, T]]:
    """Make the method that performs an operation and returns its result."""
    return Method(coroutine)


def streaming(
    generator: Callable[Concatenate[Calls, P], AsyncGenerator[T, None]],
) -> Method[P, Generator[T, None, None], AsyncGenerator[T, None]]:
    """Make the method that performs an operation and yields its results."""
    return Method(generator, streams=True)


class Operations:
    """What a client can do; each client puts functions of its kind in the place of these."""

    sample = operation(Calls.sample)
    replay = operation(Calls.replay)
    iter_samples = streaming(Calls.iter_samples)
    bulk = operation(_bulk.bulk)
    stream = streaming(Calls.stream)
    models = operation(Calls.models)
    model = operation(Calls.model)
    frontier = operation(Calls.frontier)
    load = operation(Calls.load)
    solvers = operation(Calls.solvers)
    compare = operation(_compare.compare)
    encode = operation(_analysis.encode)
    log_prob = operation(_analysis.log_prob)
    diagnose = operation(_analysis.diagnose)

    _calls: Calls

    @property
    def base_url(self) -> str:
        """URL of the service."""
        return self._calls.url


def _described(method: Callable[..., Any], operation: Callable[..., Any], owner: str) -> Callable[..., Any]:
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


def _blocking(operation: Callable[..., Any], streams: bool) -> Callable[..., Any]:
    def method(self: Client, *args: Any, **kwargs: Any) -> Any:
        return (values if streams else run)(operation(self._calls, *args, **kwargs))

    return method


class Client(Operations):
    """A blocking client; safe to share between threads. Use it in a ``with`` block, or call `close`.

    Args:
        base_url: URL of the service; by default ``PATHLINE_URL``, else ``http://127.0.0.1:8000``.
        api_key: Key of the service, sent as ``Authorization: Bearer``; by default ``PATHLINE_API_KEY``, else none.
        timeout: Seconds without network activity before giving up. The head of an answer may take no longer as a whole,
            nor may its body, unless 64 KiB arrive each second. Sampling adds the request's own `timeout_s`.
        retry: When to send a request again; ``RetryPolicy(max_attempts=1)`` turns it off.
        headers: Sent with every request.
        transport: An httpx transport to use instead of sockets; proxies and certificates are then up to it.

    Raises:
        InvalidValue: The environment names a proxy or certificates that cannot be used.
        InvalidValue: The URL is not an http or https URL.
        InvalidValue: The key has characters that are not allowed in a header.
        TypeError: The URL or the key is not a string.
    """

    def __init__(
        self,
        base_url: str | None = None,
        *,
        api_key: str | None = None,
        timeout: float = 10.0,
        retry: RetryPolicy | None = None,
        headers: Mapping[str, str] | None = None,
        transport: httpx.BaseTransport | None = None,
    ) -> None:
        url, route, settings = configured(base_url, api_key, timeout, headers, routed=transport is None)
        self._http = httpx.Client(
            transport=route.transport(httpx.HTTPTransport) if transport is None else transport, **settings
        )
        self._calls = Calls(url, timeout, retry or RetryPolicy(), route, Blocking(self._http))

    def __repr__(self) -> str:
        return f"Client({self.base_url!r}{', closed' if self._http.is_closed else ''})"

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _awaited(operation: Callable[..., Any], streams: bool) -> Callable[..., Any]:
    async def method(self: AsyncClient, *args: Any, **kwargs: Any) -> Any:
        return await operation(self._calls, *args, **kwargs)

    def generator(self: AsyncClient, *args: Any, **kwargs: Any) -> Any:
        return operation(self._calls, *args, **kwargs)

    return generator if streams else method


class AsyncClient(Operations):
    """`Client` for asyncio. Use it in an ``async with`` block, or await `aclose`.

    A cancelled call closes its connection, and the service stops computing within one network call. A client may be
    used in several event loops, as in two calls of `asyncio.run`: each loop has its own connections, which are closed
    when the loop ends, at the latest.

    Args:
        base_url: As for `Client`.
        api_key: As for `Client`.
        timeout: As for `Client`.
        retry: As for `Client`.
        headers: As for `Client`.
        transport: As for `Client`; ``httpx.ASGITransport(app)`` runs a service in the same process.

    Raises:
        InvalidValue: As for `Client`.
        InvalidValue: The URL is not an http or https URL.
        InvalidValue: The key has characters that are not allowed in a header.
        TypeError: The URL or the key is not a string.
    """

    def __init__(
        self,
        base_url: str | None = None,
        *,
        api_key: str | None = None,
        timeout: float = 10.0,
        retry: RetryPolicy | None = None,
        headers: Mapping[str, str] | None = None,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        url, route, settings = configured(base_url, api_key, timeout, headers, routed=transport is None)

        def http() -> httpx.AsyncClient:
            pool = route.transport(httpx.AsyncHTTPTransport) if transport is None else transport
            return httpx.AsyncClient(transport=pool, **settings)

        self._io = Asynchronous(http, own=transport is None)
        self._calls = Calls(url, timeout, retry or RetryPolicy(), route, self._io)

    def __repr__(self) -> str:
        return f"AsyncClient({self.base_url!r})"

    async def aclose(self) -> None:
        """Close the connections."""
        await self._io.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()


for _client, _function_of in ((Client, _blocking), (AsyncClient, _awaited)):
    for _name, _method in vars(Operations).items():
        if isinstance(_method, Method):
            _function = _function_of(_method.operation, _method.streams)
            setattr(_client, _name, _described(_function, _method.operation, _client.__name__))
