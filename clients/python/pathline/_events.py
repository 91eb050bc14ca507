"""Streamed responses: server-sent events (WHATWG HTML, section 9.2) as progress, states and the result.

They are parsed here rather than by httpx-sse, which would be a third dependency to save twenty lines.
"""

from __future__ import annotations

import time
from base64 import b64decode
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from pathline._decode import decode_npz, states_of
from pathline._request import Request
from pathline._response import Response, problem_of
from pathline._results import SampleResult
from pathline._typed import parsed, understood
from pathline.errors import ProtocolError

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


class Documents:
    """Turns the bytes of a stream into its events as they arrive: their names and contents."""

    def __init__(self, response: Response) -> None:
        self._response = response
        self._parts: list[bytes] = []  # of a line that is not complete
        self._name, self._data = "", [b""] * 0
        self.ended = False

    def feed(self, content: bytes) -> Iterator[Any]:
        """Yield the events that these bytes complete.

        Raises:
            APIError: The service reports that the request failed.
            ProtocolError: An event is not valid.
        """
        head, *lines = content.split(b"\n")
        self._parts.append(head)
        for line in lines:
            whole, self._parts = b"".join(self._parts).removesuffix(b"\r"), [line]
            if whole:
                self._note(whole)
            elif self._data:
                name, data = self._name, b"\n".join(self._data)
                self._name, self._data = "", []
                event = self._event(name, data)
                if event is not None:
                    yield event

    def close(self) -> None:
        """Check that the result has arrived; call it at the end of the stream.

        Raises:
            ProtocolError: The last event was not the result.
        """
        if not self.ended:
            message = f"the stream of {self._response.url} ended before its result; repeat the request"
            raise ProtocolError(message, cut_off=True)

    def _note(self, line: bytes) -> None:
        name, _, value = line.partition(b":")  # a line that begins with a colon only keeps the connection open
        value = value.removeprefix(b" ")
        if name == b"event":
            self._name = value.decode("utf-8", "replace")
        elif name == b"data":
            self._data.append(value)

    def _event(self, name: str, data: bytes) -> Any:
        with understood(f"the event {name!r} of {self._response.url}"):
            content = parsed(data)
            if not isinstance(content, dict):
                raise TypeError(f"it is a {type(content).__name__}")
            if name == "error":
                raise problem_of(content, self._response)
            return self._built(name, content)

    def _built(self, name: str, content: dict[str, Any]) -> Any:
        self.ended = self.ended or name == "completed"
        return name, content


class Reader(Documents):
    """Turns the bytes of a stream of samples into events; unknown kinds are skipped."""

    def __init__(self, response: Response, request: Request) -> None:
        super().__init__(response)
        self._request, self._forecast = request, Forecast()

    def _built(self, name: str, content: dict[str, Any]) -> Event | None:
        if name == "start":
            return Started(content)
        if name == "progress":
            share = float(content.get("share", content["t"]))
            left = None if content.get("queued") else self._forecast.left(share)
            return Progress(int(content["nfe"]), float(content["t"]), share, left, content)
        if name == "sample":
            others = {key: value for key, value in content.items() if key not in ("t", "states")}
            return State(float(content["t"]), states_of(content["states"]), others)
        if name == "completed":
            self.ended = True
            return Completed(decode_npz(b64decode(content["npz"]), self._request))
        return None
