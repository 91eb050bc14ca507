"""An HTTP answer as the core sees it."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import httpx

from pathline._route import Route


@dataclass(frozen=True)
class Answer:
    """An answer that was read to its end.

    It holds its bytes alone: an `httpx.Response` that was read keeps them in a reference cycle, where a large page
    would stay until the garbage collector happens to come by.

    Attributes:
        url: Where it came from.
        status: HTTP status.
        reason: Reason phrase of the status.
        headers: Its headers; names in any case.
        content: Its body; empty where it is still to be read.
        route: The way it came.
        open: The response, where its body is a stream that is still to be read; whoever reads it closes it.
    """

    url: str
    status: int
    reason: str
    headers: httpx.Headers
    content: bytes
    route: Route = field(default_factory=Route)
    open: httpx.Response | None = None

    @classmethod
    def of(cls, response: httpx.Response, content: bytes, route: Route) -> Answer:
        """Return the answer made of a response's head and the bytes of its body."""
        url = str(response.request.url)
        return cls(url, response.status_code, response.reason_phrase, response.headers, content, route)

    @classmethod
    def opened(cls, response: httpx.Response, route: Route) -> Answer:
        """Return the answer made of a response's head, with its body still to come."""
        return replace(cls.of(response, b"", route), open=response)

    @property
    def is_success(self) -> bool:
        """Whether the status is 2xx."""
        return 200 <= self.status < 300

    @property
    def media_type(self) -> str:
        """The media type in lower case, without parameters."""
        return self.headers.get("content-type", "").partition(";")[0].strip().lower()
