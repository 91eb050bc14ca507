"""The blocking client. All logic is in `_core`; it only moves bytes and waits."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, SupportsIndex, TypeVar

import httpx

from pathline._answer import Answer
from pathline._compare import CANDIDATES, Spec, compare
from pathline._comparison import Comparison
from pathline._core import Call, Flow, configured, resume
from pathline._core import headers as all_headers
from pathline._events import Event, Reader
from pathline._info import ModelInfo, ModelList, SolverInfo
from pathline._operations import Operations
from pathline._problems import reading, sending
from pathline._request import Pages, SampleOptions, common, sample_request
from pathline._result import SampleResult
from pathline._retry import RetryPolicy
from pathline._route import Route, route_to
from pathline.errors import PathlineError

if TYPE_CHECKING:
    from typing_extensions import Self, Unpack

T = TypeVar("T")


class Client(Operations):
    """A blocking client; safe to share between threads. Use it in a ``with`` block, or call `close`.

    Args:
        base_url: URL of the service; where left out, ``PATHLINE_URL``, else ``http://127.0.0.1:8000``.
        api_key: Key of the service, sent as ``Authorization: Bearer``; where left out, ``PATHLINE_API_KEY``, else none.
        timeout: Longest silence of the network in seconds; sampling adds the request's own `timeout_s`.
        retry: When to send a request again; ``RetryPolicy(max_attempts=1)`` turns it off.
        headers: Sent with every request.
        transport: Another way to move bytes than sockets, as httpx knows them; proxies and certificates are its own
            business then.

    Raises:
        InvalidEnvironment: A proxy or the certificates that the environment names cannot be used.
        InvalidURL: The URL is no http or https URL.
        InvalidKey: The key has characters that no header can carry.
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
        self._core = configured(base_url, timeout, retry)
        self._route = route_to(self._core.url) if transport is None else Route()
        self._http = httpx.Client(
            base_url=self._core.url,
            headers=all_headers(api_key, headers),
            transport=self._route.transport() if transport is None else transport,
            trust_env=False,  # the route has looked at it
        )

    @property
    def base_url(self) -> str:
        """URL of the service."""
        return self._core.url

    def sample(
        self,
        model: str,
        num_samples: int | None = None,
        *,
        solver: str | None = None,
        steps: int | None = None,
        rtol: float | None = None,
        atol: float | None = None,
        seed: SupportsIndex | None = None,
        **options: Unpack[SampleOptions],
    ) -> SampleResult:
        """Draw samples.

        Args:
            model: Name of the model.
            num_samples: How many; where left out, the rows of `x0`, else 256.
            solver: Name from `solvers`; the service's default is dopri5.
            steps: Number of fixed steps.
            rtol: Relative tolerance of error control.
            atol: Absolute tolerance of error control.
            seed: Integer in [0, 2**63); drawn here where left out, so that a retry is the same request.
            **options: See `SampleOptions`.

        Raises:
            PathlineError: See `pathline.errors`.
            TypeError: An option is unknown, a count is not an integer, or a value is none that JSON knows.
            InvalidValue: The seed is out of range, or a number is not finite; also a ValueError.
        """
        given = common(solver, steps, rtol, atol, options)
        return self._run(self._core.sample(sample_request(model, num_samples, seed, given)))

    def iter_samples(
        self,
        model: str,
        total: int,
        batch: int = 10_000,
        *,
        solver: str | None = None,
        steps: int | None = None,
        rtol: float | None = None,
        atol: float | None = None,
        seed: SupportsIndex | None = None,
        **options: Unpack[SampleOptions],
    ) -> Iterator[SampleResult]:
        """Draw `total` samples of one seed, page by page, holding one page in memory.

        The samples are those that one call of `sample` would give, whatever `batch` is.

        Args:
            model: Name of the model.
            total: How many samples in all.
            batch: How many at a time.
            solver: As for `sample`.
            steps: As for `sample`.
            rtol: As for `sample`.
            atol: As for `sample`.
            seed: As for `sample`; one seed serves all pages.
            **options: See `SampleOptions`; `x0` cannot be paged, `error_control="batch"` needs one page.

        Raises:
            PathlineError: See `pathline.errors`.
            TypeError, ValueError: As for `sample`; raised by the call, not by the first page.
        """
        plan = Pages(model, total, batch, seed, common(solver, steps, rtol, atol, options))

        def drawn() -> Iterator[SampleResult]:
            for page in plan:
                result = self._run(self._core.sample(page))
                plan.pin(result.version)
                yield result

        return drawn()

    def stream(
        self,
        model: str,
        num_samples: int | None = None,
        *,
        solver: str | None = None,
        steps: int | None = None,
        rtol: float | None = None,
        atol: float | None = None,
        seed: SupportsIndex | None = None,
        **options: Unpack[SampleOptions],
    ) -> Generator[Event, None, None]:
        """Draw samples and follow them on their way.

        The first event is `Started`, the last `Completed` with the result; between them come `Progress` and, for each
        time of `save_at`, a `State`. Leaving the loop early (`break`, then `close` of the iterator or its end of life)
        closes the connection, and the service stops computing.

        Args:
            model: As for `sample`, like all that follow.
            num_samples: How many.
            solver: Name from `solvers`.
            steps: Number of fixed steps.
            rtol: Relative tolerance.
            atol: Absolute tolerance.
            seed: Integer in [0, 2**63).
            **options: See `SampleOptions`.

        Raises:
            PathlineError: See `pathline.errors`; `IncompleteAnswer` when the connection is cut half-way. A stream that
                has begun is not begun again.
            TypeError, ValueError: As for `sample`; raised by the call, not by the first event.
        """
        request = sample_request(model, num_samples, seed, common(solver, steps, rtol, atol, options))

        def events() -> Generator[Event, None, None]:
            answer = self._run(self._core.stream(request))
            assert answer.open is not None  # noqa: S101 - what a driver gives for an open stream
            reader = Reader(answer, request)
            try:
                with reading(self.base_url):
                    for part in answer.open.iter_bytes():
                        yield from reader.feed(part)
                reader.close()
            finally:
                answer.open.close()

        return events()

    def models(self) -> ModelList:
        """Return the models that the service offers, and what it passes over in its repository."""
        return self._run(self._core.models())

    def model(self, name: str) -> ModelInfo:
        """Return what the service says about one model."""
        return self._run(self._core.model(name))

    def solvers(self) -> list[SolverInfo]:
        """Return the solvers that the service offers."""
        return self._run(self._core.solvers())

    def compare(
        self,
        model: str,
        solvers: Sequence[Spec] = CANDIDATES,
        num_samples: int = 256,
        *,
        seed: SupportsIndex | None = None,
        steps: int = 20,
        reference: Spec | None = None,
        progress: Callable[[int, int], None] | None = None,
        **options: Unpack[SampleOptions],
    ) -> Comparison:
        """Run several solvers on the same noise and compare cost and endpoints.

        Args:
            model: Name of the model.
            solvers: Each a name (``"dopri5"``), a name with steps (``"rk4-20"``), a name with a tolerance for both
                rtol and atol (``"dopri5@1e-8"``), or a mapping of options of `sample`.
            num_samples: How many samples each draws.
            seed: Seed of the common noise; drawn where left out.
            steps: Steps of a solver that is given by its bare name and has no error control.
            reference: A tight solver, such as ``"dopri5@1e-7"``, that all are measured by; `Comparison.recommend` then
                says which solver the model needs.
            progress: Called with how many answers came and how many will.
            **options: See `SampleOptions`; they hold for all solvers.

        Raises:
            PathlineError: See `pathline.errors`.
            TypeError, ValueError: An option or the description of a solver is not allowed.
        """
        flow = compare(self._core, model, solvers, num_samples, seed, steps, options, reference, progress)
        return self._run(flow)

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _run(self, flow: Flow[T]) -> T:
        outcome: Answer | PathlineError | None = None
        try:
            while True:
                step = resume(flow, outcome)
                try:
                    outcome = self._send(step) if isinstance(step, Call) else time.sleep(step.seconds)
                except PathlineError as error:
                    outcome = error
        except StopIteration as stop:
            return stop.value

    def _send(self, call: Call) -> Answer:
        request = self._http.build_request(
            call.method, call.path, headers=call.headers, content=call.content, timeout=call.timeout
        )
        with sending(self.base_url, self._route):
            response = self._http.send(request, stream=True)
        if call.stream and response.is_success:
            return Answer.opened(response, self._route)
        try:
            with reading(self.base_url):
                return Answer.of(response, b"".join(response.iter_bytes()), self._route)
        finally:
            response.close()
