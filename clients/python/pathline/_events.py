"""Streamed responses: server-sent events (WHATWG HTML, section 9.2) as progress, states and the result.

They are parsed here rather than by httpx-sse, which would be a third dependency to save twenty lines.
"""

from __future__ import annotations

import time
from base64 import b64decode
from collections.abc import AsyncGenerator, AsyncIterable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np

from pathline._decode import decode_npz, states_of
from pathline._request import Request
from pathline._response import Response, problem_of
from pathline._results import SampleResult
from pathline._typed import parsed, understood
from pathline.errors import ProtocolError

T = TypeVar("T")

MEDIA_TYPE = "text/event-stream"
ACCEPT = f"{MEDIA_TYPE}; completed=npz"
"""Requests the result as npz, so that it has the same bits and the same numbers for each sample as from `sample`."""


@dataclass(frozen=True)
class Started:
    """The request was accepted; `fields` has the service's reading of it (model, version, seed, solver, ...)."""

    fields: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Progress:
    """The progress of a request.

    Attributes:
        nfe: Velocity evaluations so far of the sample with the most.
        t: Time reached by the sample that is furthest behind.
        share: Share of the work that is done, from 0 to 1.
        seconds_left: Estimated seconds until the end; the estimate never grows. None until there is one.
        fields: All members of the event.
    """

    nfe: int
    t: float
    share: float = 0.0
    seconds_left: float | None = None
    fields: Mapping[str, Any] = field(default_factory=dict, repr=False)


@dataclass(frozen=True, eq=False)
class State:
    """Intermediate states of the samples.

    Attributes:
        t: The time, one of `save_at`.
        samples: The states, shape (n, *data_shape), float64; NaN for samples that did not reach this time.
        fields: Other members of the event.
    """

    t: float
    samples: np.ndarray
    fields: Mapping[str, Any] = field(default_factory=dict, repr=False)

    def __repr__(self) -> str:
        return f"State(t={self.t:g}, samples of shape {self.samples.shape})"


@dataclass(frozen=True, eq=False)
class Completed:
    """The end of a stream: `result` is what `sample` would have returned."""

    result: SampleResult


Event = Started | Progress | State | Completed


class Forecast:
    """Estimates the seconds left from the share of the work that is done; the estimate never grows.

    Error control takes its shortest steps near the data, so early estimates are raised: by half at the beginning, by
    nothing at the end.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._began: tuple[float, float] | None = None  # when progress was first reported, and its share
        self._left: float | None = None

    def left(self, share: float) -> float | None:
        """Return the seconds left; None until the share has grown."""
        now = self._clock()
        if self._began is None:
            self._began = now, share
        began, first = self._began
        if share > first:
            left = (now - began) * (1 - share) / (share - first) * (1.5 - 0.5 * share)
            self._left = left if self._left is None else min(self._left, left)
        return self._left


async def events(
    parts: AsyncIterable[bytes], response: Response, build: Callable[[str, Any], T | None]
) -> AsyncGenerator[T, None]:
    """Yield what `build` makes of the names and contents of a stream's events, as they arrive.

    Args:
        parts: The bytes of the stream.
        response: Its head.
        build: Returns None for an event that is to be skipped.

    Raises:
        APIError: The service reports that the request failed.
        ProtocolError: An event is not valid, or the last one was not the result.
    """
    unfinished: list[bytes] = []  # of a line that is not complete
    name, data, ended = "", [b""] * 0, False
    async for part in parts:
        head, *lines = part.split(b"\n")
        unfinished.append(head)
        for begun in lines:
            line, unfinished = b"".join(unfinished).removesuffix(b"\r"), [begun]
            field, _, value = line.partition(b":")  # a line that begins with a colon only keeps the connection open
            if field == b"event":
                name = value.removeprefix(b" ").decode("utf-8", "replace")
            elif field == b"data":
                data.append(value.removeprefix(b" "))
            elif not line and data:
                with understood(f"the event {name!r} of {response.url}"):
                    content = parsed(b"\n".join(data))
                    if not isinstance(content, dict):
                        raise TypeError(f"it is a {type(content).__name__}")
                    if name == "error":
                        raise problem_of(content, response)
                    event = build(name, content)
                ended = ended or name == "completed"
                name, data = "", []
                if event is not None:
                    yield event
    if not ended:
        raise ProtocolError(f"the stream of {response.url} ended before its result; repeat the request", cut_off=True)


def reader(request: Request) -> Callable[[str, Any], Event | None]:
    """Return a function that builds the events of a stream of samples; None for unknown kinds."""
    forecast = Forecast()

    def build(name: str, content: dict[str, Any]) -> Event | None:
        nonlocal forecast
        if name == "start":
            forecast = Forecast()  # of this attempt
            return Started(content)
        if name == "progress":
            share = float(content.get("share", content["t"]))
            left = None if content.get("queued") else forecast.left(share)
            return Progress(int(content["nfe"]), float(content["t"]), share, left, content)
        if name == "sample":
            members = {key: value for key, value in content.items() if key not in ("t", "states")}
            return State(float(content["t"]), states_of(content["states"]), members)
        if name == "completed":
            return Completed(decode_npz(b64decode(content["npz"]), request))
        return None

    return build
