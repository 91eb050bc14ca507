"""What both clients share: each operation is a generator that knows nothing of threads, loops or sockets.

It yields a `Call` to be sent (and gets the `Answer`, or the error, back) or a `Wait`, and returns the result. A
client only drives it: blocking or with await.
"""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, field, replace
from importlib.metadata import version
from typing import Any, TypeVar
from urllib.parse import quote

import httpx
import numpy as np

from pathline import _events, _info, _npz
from pathline._answer import Answer
from pathline._problems import came, problem
from pathline._request import OperationRequest, SampleRequest
from pathline._result import SampleResult
from pathline._retry import Attempts, RetryPolicy
from pathline.errors import InvalidKey, InvalidURL, PathlineError, ProtocolError, ProxyRefused

T = TypeVar("T")

AGENT = f"pathline-python/{version('pathline')}"
DEFAULT_URL = "http://127.0.0.1:8000"
SERVICE_TIMEOUT_S = 30.0  # what the service allows a request that names no timeout_s


@dataclass(frozen=True)
class Call:
    """One HTTP request: method, path, headers, body, the longest silence in seconds, and whether it is left open."""

    method: str
    path: str
    headers: dict[str, str]
    content: bytes | None
    timeout: httpx.Timeout
    stream: bool = False


@dataclass(frozen=True)
class Wait:
    """A pause of so many seconds."""

    seconds: float


Flow = Generator["Call | Wait", "Answer | None", T]


@dataclass(frozen=True)
class Core:
    """The operations of a client, and its settings.

    Attributes:
        url: Base URL of the service.
        timeout: Longest silence of the network in seconds; sampling adds the request's own time limit.
        retry: When to send a request again.
    """

    url: str
    timeout: float = 10.0
    retry: RetryPolicy = field(default_factory=RetryPolicy)

    def sample(self, request: SampleRequest) -> Flow[SampleResult]:
        """Ask for samples."""
        headers = {"Accept": _npz.MEDIA_TYPE, "Accept-Encoding": "identity", "Content-Type": "application/json"}
        allowed = SERVICE_TIMEOUT_S if request.timeout_s is None else float(request.timeout_s)
        call = self._call("POST", "/v1/sample", headers, request.body, allowed)

        def parse(answer: Answer) -> SampleResult:
            _expect(answer, _npz.MEDIA_TYPE)
            return _npz.decode(answer.content, request)

        return self._exchange(call, parse)

    def operate(self, request: OperationRequest, build: Callable[[Mapping[str, np.ndarray], Any], T]) -> Flow[T]:
        """Ask a model for something else than samples."""
        headers = {"Accept": _npz.MEDIA_TYPE, "Accept-Encoding": "identity", "Content-Type": "application/json"}
        allowed = SERVICE_TIMEOUT_S if request.timeout_s is None else float(request.timeout_s)
        path = f"{self._path_of(request.model)}/{request.operation}"
        call = self._call("POST", path, headers, request.body, allowed)

        def parse(answer: Answer) -> T:
            _expect(answer, _npz.MEDIA_TYPE)
            return _npz.read(answer.content, build)

        return self._exchange(call, parse)

    def stream(self, request: SampleRequest) -> Flow[Answer]:
        """Ask for samples as a stream; it begins once the service has taken the request, and is then open."""
        headers = {"Accept": _events.MEDIA_TYPE, "Cache-Control": "no-store", "Content-Type": "application/json"}
        allowed = SERVICE_TIMEOUT_S if request.timeout_s is None else float(request.timeout_s)
        call = replace(self._call("POST", "/v1/sample/stream", headers, request.body, allowed), stream=True)

        def parse(answer: Answer) -> Answer:
            _expect(answer, _events.MEDIA_TYPE)
            return answer

        return self._exchange(call, parse)

    def models(self) -> Flow[_info.ModelList]:
        """Ask which models there are."""
        return self._get("/v1/models", _info.models_of)

    def model(self, name: str) -> Flow[_info.ModelInfo]:
        """Ask about one model."""
        return self._get(self._path_of(name), _info.model_of)

    @staticmethod
    def _path_of(name: str) -> str:
        if not name.strip("."):
            raise ValueError(f"{name!r} cannot be the name of a model; models() lists what there is")
        return f"/v1/models/{quote(name, safe='')}"

    def solvers(self) -> Flow[list[_info.SolverInfo]]:
        """Ask which solvers there are."""
        return self._get("/v1/solvers", _info.solvers_of)

    def _get(self, path: str, read: Callable[[Any], T]) -> Flow[T]:
        def parse(answer: Answer) -> T:
            _expect(answer, "application/json")
            try:
                document = json.loads(answer.content)
            except ValueError as error:
                raise ProtocolError(f"the answer of {self.url}{path} is not valid JSON ({error})") from error
            return read(document)

        return self._exchange(self._call("GET", path, {"Accept": "application/json"}), parse)

    def _call(
        self, method: str, path: str, headers: dict[str, str], content: bytes | None = None, allowed: float = 0.0
    ) -> Call:
        timeout = httpx.Timeout(self.timeout, read=self.timeout + allowed)
        return Call(method, path, {**headers, "X-Request-ID": uuid.uuid4().hex}, content, timeout)

    def _exchange(self, call: Call, parse: Callable[[Answer], T]) -> Flow[T]:
        """Send a call until it is answered or given up."""
        attempts = Attempts(self.retry)
        while True:
            try:
                answer = yield call
                assert answer is not None  # noqa: S101 - what a driver gives for a Call
                return parse(answer)
            except PathlineError as error:
                wait = attempts.wait_after(error)
                if wait is None:
                    raise
            yield Wait(wait)


def _expect(answer: Answer, media: str) -> None:
    if answer.status == 407 and answer.route.via:  # that is always a proxy's
        raise ProxyRefused(
            f"cannot connect to {answer.url}{answer.route.via}, which asks for a password; {answer.route.detour}"
        )
    if answer.status >= 400:
        raise problem(answer)
    if answer.is_success and answer.media_type == media:
        return
    found = f"status {answer.status}" if not answer.is_success else answer.media_type or "no stated type"
    moved = answer.headers.get("location")
    hint = f"it points to {moved}; use that as the URL" if moved else "is it a Pathline service, and not an older one?"
    raise ProtocolError(f"{answer.url} answered with {found} instead of {media}; {hint}{came(answer.route)}")


def resume(flow: Flow[T], outcome: Answer | PathlineError | None) -> Call | Wait:
    """Tell a flow how its last step went and return the next one; StopIteration carries its result."""
    return flow.throw(outcome) if isinstance(outcome, PathlineError) else flow.send(outcome)


def headers(api_key: str | None, given: Mapping[str, str] | None) -> dict[str, str]:
    """Return what is sent with every request: who asks, the key, and what the user adds (which wins).

    Raises:
        TypeError: The key is not a string.
        InvalidKey: It holds what no header can carry; the message does not repeat it.
    """
    key = os.environ.get("PATHLINE_API_KEY", "") if api_key is None else api_key
    if not isinstance(key, str):
        raise TypeError(f"api_key is a {type(key).__name__}; use a string, or None for PATHLINE_API_KEY")
    key = key.strip()
    if not all("!" <= letter <= "~" for letter in key):
        raise InvalidKey(
            "the API key (api_key or PATHLINE_API_KEY) has a character that no header can carry; use visible ASCII "
            "without spaces, exactly as whoever runs the service gave it"
        )
    return {"User-Agent": AGENT, **({"Authorization": f"Bearer {key}"} if key else {}), **(given or {})}


def configured(url: str | None, timeout: float, retry: RetryPolicy | None) -> Core:
    """Return the core of a client with these settings.

    Raises:
        InvalidURL: The URL is no http or https URL.
        TypeError: The URL is not a string.
        ValueError: The timeout is not above 0.
    """
    if not timeout > 0:
        raise ValueError(f"timeout={timeout} is not allowed; use seconds above 0")
    return Core(base_url(url), timeout, retry or RetryPolicy())


def base_url(given: str | None) -> str:
    """Return the URL to use: the given one, else PATHLINE_URL, else the default of `make serve`.

    Raises:
        InvalidURL: It is no http or https URL, or its port is out of range.
        TypeError: It is not a string.
    """
    if given is not None and not isinstance(given, str):
        raise TypeError(f"base_url={given!r} is not allowed; use a string like {DEFAULT_URL!r}")
    text = given if given is not None else os.environ.get("PATHLINE_URL", "").strip() or DEFAULT_URL
    try:
        url = httpx.URL(text.strip())
    except (httpx.InvalidURL, ValueError) as error:
        raise InvalidURL(f"{text!r} is not a URL ({error}); use one like {DEFAULT_URL}") from None
    if url.scheme not in ("http", "https") or not url.host:
        raise InvalidURL(f"{text!r} is not an http or https URL; use one like {DEFAULT_URL}")
    if url.port is not None and not 0 < url.port < 65536:
        raise InvalidURL(f"{text!r} has the port {url.port}; use one from 1 to 65535, as in {DEFAULT_URL}")
    return str(url).rstrip("/")
