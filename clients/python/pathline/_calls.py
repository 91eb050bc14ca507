"""The service's operations, each described once for both clients, as flows (see `_flow`)."""

from __future__ import annotations

import contextlib
import os
import re
import uuid
from base64 import b64encode
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any, TypeVar, cast
from urllib.parse import quote

import httpx
import numpy as np

from pathline import _decode, _events, _frontier, _info
from pathline._answers import Replayable, answer_of
from pathline._bar import Follow, following
from pathline._fields import ReplayOptions, SampleOptions
from pathline._flow import Call, Emit, Flow, ReadMore, Stream, Wait
from pathline._request import Pages, Request, integer, operation_request, replay_request, sample_request
from pathline._response import Response, came, problem
from pathline._results import SampleResult
from pathline._retry import RequestAttempts, RetryPolicy
from pathline._typed import member_of, parsed, understood
from pathline.errors import DeadlineExceeded, InvalidRequest, InvalidValue, PathlineError, ProtocolError, TransportError

if TYPE_CHECKING:
    from typing_extensions import Unpack

T = TypeVar("T")

try:
    VERSION = version("pathline")
except PackageNotFoundError:  # copied, not installed, as in the server's image
    VERSION = "0+copied"
AGENT = f"pathline-python/{VERSION}"
DEFAULT_URL = "http://127.0.0.1:8000"
SERVICE_TIMEOUT_S = 30.0  # the service's limit for a request without timeout_s

_LONGEST_S = 1e6  # of a timeout: sockets take no more than some platforms' time_t


@dataclass(frozen=True)
class Calls:
    """The operations of a client, and its settings.

    Attributes:
        url: Base URL of the service.
        timeout: See `Client`.
        retry: When to send a request again.
        login: Name and password of the URL, as an Authorization header; kept out of `url`, which results and messages
            show.
    """

    url: str
    timeout: float = 10.0
    retry: RetryPolicy = field(default_factory=RetryPolicy)
    login: str = field(default="", repr=False)

    def sample(
        self,
        model: str,
        num_samples: int | None = None,
        *,
        progress: bool | Follow | None = None,
        **options: Unpack[SampleOptions],
    ) -> Flow[SampleResult]:
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
        return self._sample(sample_request(model, num_samples, options, self.url), progress)

    def sampled(self, request: Request) -> Flow[SampleResult]:
        """Draw the samples of a request."""
        return self._requested(request, _decode.decode_npz)

    def _sample(self, request: Request, progress: bool | Follow | None) -> Flow[SampleResult]:
        return self._followed(request, progress) if progress else self.sampled(request)

    def replay(self, answer: Replayable, **options: Unpack[ReplayOptions]) -> Flow[SampleResult]:
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
        return self._requested(replay_request(answer_of(answer), options, self.url), _decode.decode_npz)

    def iter_samples(
        self,
        model: str,
        total: int,
        batch: int = 10_000,
        *,
        progress: bool | Follow | None = None,
        **options: Unpack[SampleOptions],
    ) -> Stream[SampleResult]:
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
        return Stream(self._paged(Pages(model, total, batch, options, self.url), progress))

    def _paged(self, pages: Pages, progress: bool | Follow | None) -> Flow[None]:
        if pages.depends_on is not None:
            pages.split(*(yield from self.shapes(*pages.depends_on)))
        with following(progress or (lambda _: None)) as tell:
            done, forecast = 0, _events.Forecast()
            for request in pages:
                before, part = done / pages.total, (request.num_samples or 0) / pages.total

                def overall(page: _events.Progress, before: float = before, part: float = part) -> None:
                    share = before + part * page.share
                    tell(replace(page, share=share, seconds_left=forecast.left(share)))

                try:
                    result = yield from self._sample(request, overall if progress else None)
                except DeadlineExceeded as error:
                    error.share = None if error.share is None else before + part * error.share
                    raise
                pages.refuse_coupled(result.solver)
                pages.pin(result.version, result.budget.get("solver"))
                done += len(result)
                yield Emit(result)
                del result  # frees this page's memory before the next page arrives

    def stream(
        self, model: str, num_samples: int | None = None, **options: Unpack[SampleOptions]
    ) -> Stream[_events.Event]:
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
        return Stream(self._streamed(sample_request(model, num_samples, options, self.url)))

    def _streamed(self, request: Request) -> Flow[None]:
        response = yield from self._retried(lambda: self._opened(request))
        reader = _events.Reader(response, request)
        while (part := (yield ReadMore())) is not None:
            for event in reader.feed(part):
                yield Emit(event)
        reader.close()

    def _followed(self, request: Request, progress: bool | Follow) -> Flow[SampleResult]:
        """Draw samples as a stream and return its result."""
        last = _events.Progress(0, 0.0)

        def attempt() -> Flow[SampleResult]:
            nonlocal last
            reader = _events.Reader((yield from self._opened(request)), request)
            result = None
            while (part := (yield ReadMore())) is not None:
                for event in reader.feed(part):
                    if isinstance(event, _events.Progress):
                        last = event
                        tell(event)
                    elif isinstance(event, _events.Completed):
                        result = event.result
            reader.close()
            return cast("SampleResult", result)

        with following(progress) as tell:
            try:
                return (yield from self._retried(attempt))
            except DeadlineExceeded as error:
                error.share = last.share
                raise

    def _opened(self, request: Request) -> Flow[Response]:
        headers = {"Accept": _events.ACCEPT, "Cache-Control": "no-store", "Content-Type": request.media}
        call = self._call("POST", "/v1/sample/stream", headers, request)
        response = yield replace(call, stream=True)
        _expect(response, _events.MEDIA_TYPE)
        return response

    def told(self, request: Request, tell: Callable[[str, Mapping[str, Any]], None]) -> Flow[None]:
        """Send a request of an operation that answers with a stream; call `tell` with each event's name and content."""
        headers = {"Accept": _events.MEDIA_TYPE, "Cache-Control": "no-store", "Content-Type": request.media}
        call = self._call("POST", f"{_path_of(request.model)}/{request.operation}", headers, request)

        def attempt() -> Flow[None]:
            response = yield replace(call, stream=True)
            _expect(response, _events.MEDIA_TYPE)
            reader = _events.Documents(response)
            while (part := (yield ReadMore())) is not None:
                for name, document in reader.feed(part):
                    tell(name, document)
            reader.close()

        return self._retried(attempt)

    def operate(
        self,
        operation: str,
        model: str,
        own: Mapping[str, Any],
        options: Mapping[str, Any],
        kind: type,
        build: Callable[[Mapping[str, np.ndarray], Any], T],
    ) -> Flow[T]:
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
        return self._requested(request, lambda content, _: _decode.read(content, build))

    def _requested(self, request: Any, decode: Callable[[bytes, Any], T]) -> Flow[T]:
        """Send a request for a binary response."""
        headers = {"Accept": _decode.MEDIA_TYPE, "Accept-Encoding": "identity", "Content-Type": request.media}
        whole = request.operation in ("sample", "replay")
        path = f"/v1/{request.operation}" if whole else f"{_path_of(request.model)}/{request.operation}"
        call = self._call("POST", path, headers, request)

        def attempt() -> Flow[T]:
            response = yield call
            _expect(response, _decode.MEDIA_TYPE)
            return decode(response.content, request)

        return self._retried(attempt)

    def models(self) -> Flow[_info.ModelList]:
        """Return the models that the service offers, and the entries of its repository that are not models."""
        return self._get("/v1/models", _info.models_of)

    def model(self, name: str) -> Flow[_info.ModelInfo]:
        """Return the service's description of one model."""
        return self._get(_path_of(name), _info.model_of)

    def shapes(
        self, name: str, version: int | None, timeout_s: float | None = None
    ) -> Flow[tuple[Mapping[str, Any], list[Any]]]:
        """Return the conditions of a version by name, and the shapes of one sample and of its state.

        A version that was never loaded is loaded first.
        """
        info = yield from self.model(name)
        version = info.version if version is None else version
        if version is not None and not info.served(version):
            with contextlib.suppress(InvalidRequest):
                options: SampleOptions = {"version": version, "solver": "euler-1", "timeout_s": timeout_s}
                yield from self.sampled(sample_request(name, 1, options, self.url))
            info = yield from self.model(name)
        with understood(f"the description of {name}"):
            served = info.served(version)
            takes, card = served.get("conditions") or {}, served.get("card") or {}
            for entry in takes.values():
                member_of(entry, "shape", "list")
            return takes, [card[shape] for shape in ("data_shape", "event_shape") if shape in card]

    def frontier(self, name: str, version: int | None = None) -> Flow[_frontier.Frontier]:
        """Return the cost of each measured solver on a model, and its distance from the exact end of the path.

        Args:
            name: Name of the model.
            version: Its version; by default the one that answers.

        Raises:
            NotFound: It has not been measured; the message names the command that does so.
            PathlineError: See `pathline.errors`.
        """
        query = "" if version is None else f"?version={integer('version', version)}"
        return self._get(f"{_path_of(name)}/frontier{query}", _frontier.frontier_of)

    def load(self) -> Flow[_info.ServiceLoad]:
        """Return how much work the service still has to do."""
        return self._get("/v1/load", _info.load_of)

    def solvers(self) -> Flow[list[_info.SolverInfo]]:
        """Return the solvers that the service offers."""
        return self._get("/v1/solvers", _info.solvers_of)

    def _get(self, path: str, read: Callable[[Any], T]) -> Flow[T]:
        call = self._call("GET", path, {"Accept": "application/json"})

        def attempt() -> Flow[T]:
            response = yield call
            _expect(response, "application/json")
            with understood(f"the response of {self.url}{path}"):
                return read(parsed(response.content))

        return self._retried(attempt)

    def _call(self, method: str, path: str, headers: dict[str, str], request: Request | None = None) -> Call:
        allowed = 0.0
        if request is not None:
            limit = request.settings.get("timeout_s")
            allowed = SERVICE_TIMEOUT_S if limit is None else min(float(limit), _LONGEST_S)
        timeout = httpx.Timeout(self.timeout, read=self.timeout + allowed)
        content = None if request is None else request.body
        return Call(method, path, {**headers, "X-Request-ID": uuid.uuid4().hex}, content, timeout)

    def _retried(self, attempt: Callable[[], Flow[T]]) -> Flow[T]:
        """Make attempts until one succeeds or the policy gives up."""
        attempts = RequestAttempts(self.retry)
        while True:
            try:
                return (yield from attempt())
            except PathlineError as error:
                wait = attempts.wait_after(error)
                if wait is None:
                    raise
            yield Wait(wait)


def _path_of(model: str) -> str:
    if not isinstance(model, str):
        raise TypeError(f"model={model!r} is not allowed; use the name of a model")
    if not model.strip("."):
        raise ValueError(f"{model!r} cannot be the name of a model; models() lists the models")
    return f"/v1/models/{quote(model, safe='')}"


def _expect(response: Response, media: str) -> None:
    if response.status == 407 and response.route.via:  # only a proxy answers with this status
        asks = f"cannot connect to {response.url}{response.route.via}, which asks for a password"
        raise TransportError(f"{asks}; {response.route.detour}", connected=False, retryable=False)
    if response.status >= 400:
        raise problem(response)
    if response.is_success and response.media_type == media:
        return
    kind = f"status {response.status}" if not response.is_success else response.media_type or "no stated type"
    moved = _address(response.headers.get("location", ""))
    hint = f"it moved to {moved}; use that as the URL" if moved else "is it a Pathline service, and not an older one?"
    raise ProtocolError(f"{response.url} answered with {kind} instead of {media}; {hint}{came(response.route)}")


def _address(location: str) -> str:
    """Return the base URL of the service that a redirect points to: without its route, and without a password."""
    route = re.match(r"(https?://)(?:[^/@]*@)?(.*?)/?(?:/v[12]/.*)?$", location)
    return f"{route[1]}{route[2]}" if route else ""


def headers(api_key: str | None, own: Mapping[str, str] | None, login: str = "") -> dict[str, str]:
    """Return the headers of every request: the user agent, the key, and the user's own, which take precedence.

    Args:
        api_key: The key, or None for PATHLINE_API_KEY.
        own: The user's own headers.
        login: The Authorization header that a name and password in the URL make; the key then goes as X-API-Key.

    Raises:
        TypeError: The key is not a string.
        InvalidValue: It has characters that are not allowed in a header; the message does not repeat it.
    """
    key = os.environ.get("PATHLINE_API_KEY", "") if api_key is None else api_key
    if not isinstance(key, str):
        raise TypeError(f"api_key is a {type(key).__name__}; use a string, or None for PATHLINE_API_KEY")
    key = key.strip()
    if not all("!" <= letter <= "~" for letter in key):
        raise InvalidValue(
            "the API key (api_key or PATHLINE_API_KEY) has a character that is not allowed in a header; use visible "
            "ASCII without spaces, exactly as you were given it"
        )
    shown = {"Authorization": login} if login else {}
    if key:
        shown |= {"X-API-Key": key} if login else {"Authorization": f"Bearer {key}"}
    return {"User-Agent": AGENT, **shown, **(own or {})}


def configured(url: str | None, timeout: float, retry: RetryPolicy | None) -> Calls:
    """Return the operations of a client with these settings.

    Raises:
        InvalidValue: The URL is not an http or https URL.
        TypeError: The URL is not a string.
        ValueError: The timeout is not above 0.
    """
    if not 0 < timeout <= _LONGEST_S:
        raise ValueError(f"timeout={timeout} is not allowed; use seconds above 0, at most {_LONGEST_S:,.0f}")
    base, login = base_url(url)
    return Calls(base, timeout, retry or RetryPolicy(), login)


def base_url(address: str | None) -> tuple[str, str]:
    """Return the URL to use, and the Authorization header that its name and password make; the URL is without them.

    It is the given one, else PATHLINE_URL, else the default of `make serve`.

    Raises:
        InvalidValue: It is not an http or https URL, or its port is out of range.
        TypeError: It is not a string.
    """
    if address is not None and not isinstance(address, str):
        raise TypeError(f"base_url={address!r} is not allowed; use a string like {DEFAULT_URL!r}")
    text = address if address is not None else os.environ.get("PATHLINE_URL", "").strip() or DEFAULT_URL
    shown = re.sub(r"//[^/]*@", "//...@", text)  # a message repeats no password
    try:
        url = httpx.URL(text.strip())
    except (httpx.InvalidURL, ValueError) as error:
        reason = f" ({error})" if shown == text else ""
        raise InvalidValue(f"{shown!r} is not a URL{reason}; use one like {DEFAULT_URL}") from None
    if url.scheme not in ("http", "https") or not url.host:
        raise InvalidValue(f"{shown!r} is not an http or https URL; use one like {DEFAULT_URL}")
    if url.port is not None and not 0 < url.port < 65536:
        raise InvalidValue(f"{shown!r} has the port {url.port}; use one from 1 to 65535, as in {DEFAULT_URL}")
    login = b64encode(f"{url.username}:{url.password}".encode()).decode() if url.userinfo else ""
    return str(url.copy_with(userinfo=b"")).rstrip("/"), f"Basic {login}" if login else ""
