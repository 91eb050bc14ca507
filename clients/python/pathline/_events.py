"""Reading a streamed answer: server-sent events (WHATWG HTML, section 9.2) as progress, states and the result."""

from __future__ import annotations

import codecs
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from pathline import _json
from pathline._answer import Answer
from pathline._problems import problem_of
from pathline._request import SampleRequest
from pathline._result import SampleResult
from pathline.errors import IncompleteAnswer, ProtocolError

MEDIA_TYPE = "text/event-stream"


@dataclass(frozen=True)
class Started:
    """The request was taken; `fields` says what the service made of it (model, version, seed, solver, ...)."""

    fields: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Progress:
    """How far the request has come.

    Attributes:
        nfe: Most velocity evaluations that one of its samples has taken so far.
        t: The time that the sample furthest behind has reached.
        fields: All members of the event.
    """

    nfe: int
    t: float
    fields: Mapping[str, Any] = field(default_factory=dict, repr=False)


@dataclass(frozen=True, eq=False)
class State:
    """The samples on their way.

    Attributes:
        t: The time, one of `save_at`.
        samples: Their states, shape (n, *data_shape), float64; NaN where a sample did not get there.
        fields: Other members of the event.
    """

    t: float
    samples: np.ndarray
    fields: Mapping[str, Any] = field(default_factory=dict, repr=False)

    def __repr__(self) -> str:
        return f"State(t={self.t:g}, samples of shape {self.samples.shape})"


@dataclass(frozen=True, eq=False)
class Completed:
    """The end: `result` is what `sample` would have returned, but for `nfe_per_sample`, which streams do not carry."""

    result: SampleResult


Event = Started | Progress | State | Completed


class Reader:
    """Takes the bytes of a stream as they come and gives events; unknown kinds are passed over."""

    def __init__(self, answer: Answer, request: SampleRequest) -> None:
        self._answer, self._request = answer, request
        self._decode = codecs.getincrementaldecoder("utf-8")("replace").decode
        self._rest = ""
        self._name, self._data = "", [""] * 0
        self.ended = False

    def feed(self, content: bytes) -> Iterator[Event]:
        """Yield the events that are complete with these bytes.

        Raises:
            APIError: The service reports that the request failed.
            ProtocolError: An event is not what was promised.
        """
        lines = (self._rest + self._decode(content)).replace("\r\n", "\n").split("\n")
        self._rest = lines.pop()
        for line in lines:
            if line:
                self._note(line)
            elif self._data:
                event = self._event(self._name, "\n".join(self._data))
                self._name, self._data = "", []
                if event is not None:
                    yield event

    def close(self) -> None:
        """Say that nothing more will come.

        Raises:
            IncompleteAnswer: The last event was not the result.
        """
        if not self.ended:
            raise IncompleteAnswer(f"the stream of {self._answer.url} ended before its result; ask again")

    def _note(self, line: str) -> None:
        name, _, value = line.partition(":")  # a line that begins with a colon only keeps the connection open
        value = value.removeprefix(" ")
        if name == "event":
            self._name = value
        elif name == "data":
            self._data.append(value)

    def _event(self, name: str, data: str) -> Event | None:
        try:
            found = json.loads(data)
            if not isinstance(found, dict):
                raise TypeError(f"it is a {type(found).__name__}")
            if name == "error":
                raise problem_of(found, self._answer)
            self.ended = name == "completed"
            return _KINDS[name](found, self._request) if name in _KINDS else None
        except (ValueError, TypeError, KeyError) as error:
            if isinstance(error, ProtocolError):
                raise
            raise ProtocolError(
                f"the event {name!r} of {self._answer.url} is not understood ({type(error).__name__}: {error}); "
                "is the service older or newer than this SDK?"
            ) from error


def _started(found: dict[str, Any], request: SampleRequest) -> Started:
    return Started(found)


def _progress(found: dict[str, Any], request: SampleRequest) -> Progress:
    return Progress(int(found["nfe"]), float(found["t"]), found)


def _state(found: dict[str, Any], request: SampleRequest) -> State:
    rows = found["states"] if "states" in found else found["samples"]
    rest = {key: value for key, value in found.items() if key not in ("t", "states", "samples")}
    return State(float(found["t"]), _json.states(rows), rest)


def _completed(found: dict[str, Any], request: SampleRequest) -> Completed:
    return Completed(_json.decode(found, request))


_KINDS = {"start": _started, "progress": _progress, "sample": _state, "completed": _completed}
