"""An HTTP answer as the core sees it."""

from __future__ import annotations

from dataclasses import dataclass, replace

import httpx


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
        open: The response, where its body is a stream that is still to be read; whoever reads it closes it.
    """

    url: str
    status: int
    reason: str
    headers: httpx.Headers
    content: bytes
    open: httpx.Response | None = None

    @classmethod
    def of(cls, response: httpx.Response, content: bytes) -> Answer:
        """Return the answer made of a response's head and the bytes of its body."""
        url = str(response.request.url)
        return cls(url, response.status_code, response.reason_phrase, response.headers, content)

    @classmethod
    def opened(cls, response: httpx.Response) -> Answer:
        """Return the answer made of a response's head, with its body still to come."""
        return replace(cls.of(response, b""), open=response)

    @property
    def is_success(self) -> bool:
        """Whether the status is 2xx."""
        return 200 <= self.status < 300

    @property
    def media_type(self) -> str:
        """The media type in lower case, without parameters."""
        return self.headers.get("content-type", "").partition(";")[0].strip().lower()
