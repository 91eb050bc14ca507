"""The service's operations, each described once for both clients, as coroutines and asynchronous generators."""

from __future__ import annotations

import contextlib
import re
import time
import uuid
from collections.abc import AsyncGenerator, Callable, Coroutine, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar, cast
from urllib.parse import quote

import httpx
import numpy as np

from pathline import _decode, _events, _frontier, _info
from pathline._answers import Replayable, answer_of
from pathline._bar import Follow, following
from pathline._conditions import differ, may_differ, slice_of
from pathline._fields import ReplayOptions, SampleOptions
from pathline._io import Asynchronous, Blocking
from pathline._request import (
    Request,
    integer,
    operation_request,
    paged_options,
    refuse_coupled,
    replay_request,
    sample_request,
)
from pathline._response import MAX_ERROR_BYTES, Response, came, problem, reading, sending
from pathline._results import SampleResult
from pathline._retry import RetryPolicy
from pathline._route import LONGEST_S, Route
from pathline._typed import member_of, parsed, typed, understood
from pathline._wire import MAX_BYTES
from pathline.errors import DeadlineExceeded, InvalidRequest, PathlineError, ProtocolError, TransportError

if TYPE_CHECKING:
    from typing_extensions import Unpack

T = TypeVar("T")

SERVICE_TIMEOUT_S = 30.0  # the service's limit for a request without timeout_s


@dataclass(frozen=True)
class Calls:
    """The operations of a client, and its settings.

    Attributes:
        url: Base URL of the service, without a name and password: results and messages show it.
        timeout: See `Client`.
        retry: When to send a request again.
        route: The route to the service.
        io: Moves the bytes and waits.
    """

    url: str
    timeout: float
    retry: RetryPolicy
    route: Route
    io: Blocking | Asynchronous

    async def sample(
        self,
        model: str,
        num_samples: int | None = None,
        *,
        progress: bool | Follow | None = None,
        **options: Unpack[SampleOptions],
    ) -> SampleResult:
        """Draw samples.

        Args:
            model: Name of the model.
            num_samples: How many; by default the rows of `x0`, else 256.
            progress: True draws a progress bar on stderr; a function is called with each `Progress`, which has the
                `share` of the work done and the `seconds_left`.
            **options: See `SampleOptions`: ``solver="rk4-20"``, or `solver`, `steps`, `rtol`, `atol` and so on
                separately; `seed`, `condition`, `guidance`, `save_at`, `timeout_s`.

        Raises:
            PathlineError: See `pathline.errors`.
            TypeError: An option is unknown, a count is not an integer, or JSON cannot represent a value.
            InvalidValue: The seed is out of range, or a number is not finite; also a ValueError.
        """
        return await self.sampled(sample_request(model, num_samples, options, self.url), progress)

    async def sampled(self, request: Request, progress: bool | Follow | None = None) -> SampleResult:
        """Draw the samples of a request; with `progress`, as a stream."""
        if not progress:
            return await self._requested(request, _decode.decode_npz)
        last, result = _events.Progress(0, 0.0), None

        def note(event: _events.Event) -> None:
            nonlocal last, result
            if isinstance(event, _events.Progress):
                last = event
                tell(event)
            elif isinstance(event, _events.Completed):
                result = event.result

        with following(progress) as tell:
            try:
                await self.follow(request, _events.ACCEPT, _events.reader(request), note)
            except DeadlineExceeded as error:
                error.share = last.share
                raise
        return cast("SampleResult", result)

    async def replay(self, answer: Replayable, **options: Unpack[ReplayOptions]) -> SampleResult:
        """Reproduce the samples of an earlier response, bit for bit.

        Args:
            answer: The result, the document of a response (its samples may be missing), or the path of a .json or
                .npz file of either.
            **options: `force` to sample even if the bits cannot be promised; `SampleResult.digest_matches` says
                whether they match. `condition` and `x0` as in the first call, if they were more than 64 numbers;
                `conditions` and `negative` for a model with named conditions, ``{}`` if the first call gave none.
                `timeout_s` and `priority`.

        Raises:
            ReplayDiffers: The bits cannot be promised here; its `differences` say why.
            PathlineError: See `pathline.errors`.
            TypeError, InvalidValue: As for `sample`.
        """
        return await self.sampled(replay_request(answer_of(answer), options, self.url))

    def iter_samples(
        self,
        model: str,
        total: int,
        batch: int = 10_000,
        *,
        progress: bool | Follow | None = None,
        **options: Unpack[SampleOptions],
    ) -> AsyncGenerator[SampleResult, None]:
        """Draw `total` samples of one seed, page by page, holding one page in memory.

        The samples are those that one call of `sample` would give, whatever `batch` is.

        Args:
            model: Name of the model.
            total: How many samples in all.
            batch: How many at a time.
            progress: As for `sample`, for all pages together.
            **options: See `SampleOptions`; one `seed` serves all pages, conditions and known values may have one value
                for each of the `total` samples, `x0` cannot be paged, and `error_control="batch"` needs one page.

        Raises:
            PathlineError: See `pathline.errors`.
            TypeError, ValueError: As for `sample`; raised by the call, not by the first page.
        """
        total, batch = integer("total", total), integer("batch", batch)
        return self._paged(model, total, batch, paged_options(model, total, batch, options), progress)

    async def _paged(
        self, model: str, total: int, batch: int, options: dict[str, Any], progress: bool | Follow | None
    ) -> AsyncGenerator[SampleResult, None]:
        differing = list[tuple[str, str]]()  # the arrays with one value for each sample
        if total > batch and (places := may_differ(options, total)):
            differing = differ(options, places, *(await self.shapes(model, options.get("version"))))
        with following(progress or (lambda _: None)) as tell:
            forecast = _events.Forecast()
            for done in range(0, total, batch):
                count = min(batch, total - done)
                members = slice_of(options, differing, slice(done, done + count))
                members["first_index"] += done
                request = sample_request(model, count, members, self.url)
                before, part = done / total, count / total

                def overall(page: _events.Progress, before: float = before, part: float = part) -> None:
                    share = before + part * page.share
                    tell(replace(page, share=share, seconds_left=forecast.left(share)))

                try:
                    result = await self.sampled(request, overall if progress else None)
                except DeadlineExceeded as error:
                    error.share = None if error.share is None else before + part * error.share
                    raise
                refuse_coupled(result.solver, total, batch)
                options["version"] = result.version  # a new one does not answer further pages, nor does another solver
                if (solver := result.budget.get("solver")) is not None and options.pop("budget", None) is not None:
                    options["solver"] = solver
                yield result
                del result  # frees this page's memory before the next page arrives

    def stream(
        self, model: str, num_samples: int | None = None, **options: Unpack[SampleOptions]
    ) -> AsyncGenerator[_events.Event, None]:
        """Draw samples as a stream of events.

        The first event is `Started`, the last `Completed` with the result; between them come `Progress` and, for each
        time of `save_at`, a `State`. Leaving the loop early (`break`, then closing or dropping the iterator) closes
        the connection, and the service stops computing.

        Args:
            model: Name of the model.
            num_samples: As for `sample`.
            **options: See `SampleOptions`.

        Raises:
            PathlineError: See `pathline.errors`; `ProtocolError` if the connection breaks half-way. A stream that
                has begun is not retried.
            TypeError, ValueError: As for `sample`; raised by the call, not by the first event.
        """
        return self._streamed(sample_request(model, num_samples, options, self.url))

    async def _streamed(self, request: Request) -> AsyncGenerator[_events.Event, None]:
        head = await self._retried(partial(self._open_stream, self._post(request, _events.ACCEPT)))
        try:
            async for event in self._events(head, _events.reader(request)):
                yield event
        finally:
            await self.io.close(head)

    async def follow(
        self, request: Request, accept: str, build: Callable[[str, Any], T | None], tell: Callable[[T], None]
    ) -> None:
        """Send a request that is answered with a stream; call `tell` with what `build` makes of each event."""
        call = self._post(request, accept)

        async def attempt() -> None:
            head = await self._open_stream(call)
            try:
                async for event in self._events(head, build):
                    tell(event)
            finally:
                await self.io.close(head)

        await self._retried(attempt)

    async def operate(
        self,
        operation: str,
        model: str,
        own: Mapping[str, Any],
        options: Mapping[str, Any],
        kind: type,
        build: Callable[[Mapping[str, np.ndarray], Any], T],
    ) -> T:
        """Perform an operation on a model, other than sampling.

        Args:
            operation: The last part of its address.
            model: Name of the model.
            own: Arguments that are no options.
            options: The options.
            kind: The TypedDict that has them.
            build: Builds the result from the arrays and the metadata of a response.
        """
        request = operation_request(operation, model, own, options, kind, self.url)
        return await self._requested(request, lambda content, _: _decode.read(content, build))

    async def _requested(self, request: Request, decode: Callable[[bytes, Request], T]) -> T:
        """Send a request for a binary response."""
        call = self._post(request, _decode.MEDIA_TYPE)

        async def attempt() -> T:
            return decode(await self._content(call, _decode.MEDIA_TYPE), request)

        return await self._retried(attempt)

    async def models(self) -> _info.ModelList:
        """Return the models that the service offers, and the entries of its repository that are not models."""
        return await self._get("/v1/models", _info.models_of)

    async def model(self, name: str) -> _info.ModelInfo:
        """Return the service's description of one model."""
        return await self._get(_path_of(name), _info.model_of)

    async def shapes(
        self, name: str, version: int | None, timeout_s: float | None = None
    ) -> tuple[Mapping[str, Any], list[Any]]:
        """Return the conditions of a version by name, and the shapes of one sample and of its state.

        A version that was never loaded is loaded first.
        """
        info = await self.model(name)
        version = info.version if version is None else version
        if version is not None and not info.served(version):
            with contextlib.suppress(InvalidRequest):
                await self.sample(name, 1, version=version, solver="euler-1", timeout_s=timeout_s)
            info = await self.model(name)
        with understood(f"the description of {name}"):
            served = info.served(version)
            takes, card = served.get("conditions") or {}, served.get("card") or {}
            for entry in takes.values():
                member_of(entry, "shape", "list")
            return takes, [card[shape] for shape in ("data_shape", "event_shape") if shape in card]

    async def frontier(self, name: str, version: int | None = None) -> _frontier.Frontier:
        """Return the cost of each measured solver on a model, and its distance from the exact end of the path.

        Args:
            name: Name of the model.
            version: Its version; by default the one that answers.

        Raises:
            NotFound: It has not been measured; the message names the command that does so.
            PathlineError: See `pathline.errors`.
        """
        query = "" if version is None else f"?version={integer('version', version)}"
        return await self._get(f"{_path_of(name)}/frontier{query}", _frontier.frontier_of)

    async def load(self) -> _info.ServiceLoad:
        """Return how much work the service still has to do."""
        return await self._get("/v1/load", partial(typed, _info.ServiceLoad))

    async def solvers(self) -> list[_info.SolverInfo]:
        """Return the solvers that the service offers."""
        return await self._get("/v1/solvers", _info.solvers_of)

    async def _get(self, path: str, read: Callable[[Any], T]) -> T:
        call = self._call("GET", path, {"Accept": "application/json"})

        async def attempt() -> T:
            content = await self._content(call, "application/json")
            with understood(f"the response of {self.url}{path}"):
                return read(parsed(content))

        return await self._retried(attempt)

    def _post(self, request: Request, accept: str) -> dict[str, Any]:
        """Return the call that sends a request, and accepts npz or a stream of events."""
        whole = request.operation in ("sample", "replay")
        path = f"/v1/{request.operation}" if whole else f"{_path_of(request.model)}/{request.operation}"
        if accept == _decode.MEDIA_TYPE:
            own = {"Accept-Encoding": "identity"}
        else:
            own = {"Cache-Control": "no-store"}
            path += "/stream" if whole else ""
        return self._call("POST", path, {"Accept": accept, "Content-Type": request.media, **own}, request)

    def _call(
        self, method: str, path: str, headers: Mapping[str, str], request: Request | None = None
    ) -> dict[str, Any]:
        """Return the arguments of an httpx request, the same for each attempt."""
        allowed = 0.0
        if request is not None:
            limit = request.settings.get("timeout_s")
            allowed = SERVICE_TIMEOUT_S if limit is None else min(float(limit), LONGEST_S)
        return {
            "method": method,
            "url": path,
            "headers": {**headers, "X-Request-ID": uuid.uuid4().hex},
            "content": None if request is None else request.body,
            "timeout": httpx.Timeout(self.timeout, read=self.timeout + allowed),
        }

    async def _retried(self, attempt: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Make attempts until one succeeds or the policy gives up."""
        count, begin = 1, time.monotonic()
        while True:
            try:
                return await attempt()
            except PathlineError as error:
                wait = self.retry.wait_after(error, count, time.monotonic() - begin)
                if wait is None:  # the message says what to do; a traceback through the SDK would only hide that
                    raise error.with_traceback(None) from error.__cause__
            count += 1
            await self.io.sleep(wait)

    async def _open(self, call: Mapping[str, Any]) -> httpx.Response:
        with sending(self.url, self.route):
            return await self.io.open(**call)

    async def _open_stream(self, call: Mapping[str, Any]) -> httpx.Response:
        """Send a request, and return the response if it is a stream of events, still to be read and closed."""
        head = await self._open(call)
        try:
            _expect(Response(head, b"", self.route) if head.is_success else await self._read(head), _events.MEDIA_TYPE)
        except BaseException:
            await self.io.close(head)
            raise
        return head

    async def _content(self, call: Mapping[str, Any], media: str) -> bytes:
        """Send a request, and return the body of the response, which must be of a media type."""
        head = await self._open(call)
        try:
            response = await self._read(head)
        finally:
            await self.io.close(head)
        _expect(response, media)
        return response.content

    async def _read(self, head: httpx.Response) -> Response:
        return Response(head, b"".join([part async for part in self._parts(head)]), self.route)

    async def _parts(self, head: httpx.Response) -> AsyncGenerator[bytes, None]:
        """Yield the body of a response, whose bytes as unpacked are bounded; an error is short."""
        left = most = MAX_BYTES if head.is_success else MAX_ERROR_BYTES
        with reading(self.url):
            async for part in self.io.parts(head):
                left -= len(part)
                if left < 0:
                    raise ProtocolError(
                        f"{head.request.url} sent more than {most:,} bytes; ask for fewer samples at a time, with "
                        "iter_samples or bulk"
                    )
                yield part

    def _events(self, head: httpx.Response, build: Callable[[str, Any], T | None]) -> AsyncGenerator[T, None]:
        return _events.events(self._parts(head), Response(head, b"", self.route), build)


def _path_of(model: str) -> str:
    if not isinstance(model, str):
        raise TypeError(f"model={model!r} is not allowed; use the name of a model")
    if not model.strip("."):
        raise ValueError(f"{model!r} cannot be the name of a model; models() lists the models")
    return f"/v1/models/{quote(model, safe='')}"


def _expect(response: Response, media: str) -> None:
    head = response.head
    if head.status_code == 407 and response.route.via:  # only a proxy answers with this status
        asks = f"cannot connect to {response.url}{response.route.via}, which asks for a password"
        raise TransportError(f"{asks}; {response.route.detour}", connected=False, retryable=False)
    if head.status_code >= 400:
        raise problem(response)
    if head.is_success and response.media_type == media:
        return
    kind = f"status {head.status_code}" if not head.is_success else response.media_type or "no stated type"
    # A redirect points to an address of the service; its base URL is shown, without a password.
    location = re.match(r"(https?://)(?:[^/@]*@)?(.*?)/?(?:/v[12]/.*)?$", head.headers.get("location", ""))
    moved = "".join(location.groups()) if location else ""
    hint = f"it moved to {moved}; use that as the URL" if moved else "is it a Pathline service, and not an older one?"
    raise ProtocolError(f"{response.url} answered with {kind} instead of {media}; {hint}{came(response.route)}")
