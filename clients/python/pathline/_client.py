"""The blocking client: it moves the bytes and waits. `_operations` lists what it can do."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Generator, Iterator, Mapping
from queue import SimpleQueue
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar

import httpx

from pathline._calls import configured
from pathline._calls import headers as all_headers
from pathline._flow import Call, Do, Emit, Flow, FlowRun, Together, Wait
from pathline._operations import Operations
from pathline._response import Intake, Response, reading, sending
from pathline._retry import RetryPolicy
from pathline._route import Route, route_to
from pathline.errors import PathlineError

if TYPE_CHECKING:
    from typing_extensions import Self

T = TypeVar("T")


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
        self._calls = configured(base_url, timeout, retry)
        self._route = route_to(self._calls.url) if transport is None else Route()
        self._http = httpx.Client(
            base_url=self._calls.url,
            headers=all_headers(api_key, headers, self._calls.login),
            transport=self._route.transport() if transport is None else transport,
            trust_env=False,  # the route has read the environment already
        )

    def __repr__(self) -> str:
        return f"Client({self.base_url!r}{', closed' if self._http.is_closed else ''})"

    @property
    def base_url(self) -> str:
        """URL of the service."""
        return self._calls.url

    @staticmethod
    def _method(operation: Callable[..., Flow[Any]]) -> Callable[..., Any]:
        def method(self: Client, *args: Any, **kwargs: Any) -> Any:
            return self._run(operation(self._calls, *args, **kwargs))

        return method

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _together(self, step: Together) -> None:
        """Drive flows in threads; if one fails or waiting for them is interrupted, the others stop."""
        ended: SimpleQueue[BaseException | None] = SimpleQueue()

        def work(flow: Flow[None]) -> None:
            try:
                self._run(flow)
            except BaseException as error:
                step.stop()
                ended.put(error)
            else:
                ended.put(None)

        for flow in step.flows:
            threading.Thread(target=work, args=(flow,), name="pathline-bulk", daemon=True).start()
        try:
            errors = [ended.get() for _ in step.flows]
        except BaseException:  # Ctrl-C: the threads stop after the response that they are waiting for
            step.stop()
            raise
        for error in filter(None, errors):
            raise error

    def _run(self, flow: Flow[T]) -> T:
        run = FlowRun(flow)
        for _ in self._drive(run):
            pass
        return run.result

    def _drive(self, run: FlowRun[Any]) -> Generator[Any, None, None]:
        """Perform the steps of a flow and yield the values that it emits."""
        outcome: Any = None
        opened: tuple[httpx.Response, Iterator[bytes]] | None = None
        try:
            while (step := run.advance(outcome)) is not None:
                outcome = None
                if isinstance(step, Emit):
                    yield step.value
                    continue
                try:
                    if isinstance(step, Wait):
                        time.sleep(step.seconds)
                    elif isinstance(step, Do):
                        outcome = step.call()
                    elif isinstance(step, Together):
                        self._together(step)
                    elif isinstance(step, Call):
                        if opened is not None:  # a stream that is given up for another attempt
                            opened[0].close()
                        opened, response = None, self._send(step)
                        intake = Intake(response)
                        if step.stream and response.is_success:
                            opened = response, map(intake.add, response.iter_bytes())
                            outcome = Response.of(response, b"", self._route)
                        else:
                            outcome = self._read(response, intake)
                    elif opened is not None:
                        with reading(self.base_url):
                            outcome = next(opened[1], None)
                except PathlineError as error:
                    outcome = error
        finally:
            if opened is not None:
                opened[0].close()
            run.close()

    def _send(self, call: Call) -> httpx.Response:
        request = self._http.build_request(
            call.method, call.path, headers=call.headers, content=call.content, timeout=call.timeout
        )
        with sending(self.base_url, self._route):
            return self._http.send(request, stream=True)

    def _read(self, response: httpx.Response, intake: Intake) -> Response:
        try:
            with reading(self.base_url):
                return Response.of(response, b"".join(map(intake.add, response.iter_bytes())), self._route)
        finally:
            response.close()
