"""The operations of a service, each defined once; both clients get their methods from here."""

from __future__ import annotations

import inspect
from abc import abstractmethod
from collections.abc import Callable
from typing import Any

from pathline import _bulk, _compare
from pathline._analysis import Analysis
from pathline._calls import Calls
from pathline._flow import Flow, FlowRun, Method, described_as, operation, streaming


class Operations(Analysis):
    """What a client can do; a subclass moves the bytes, and puts its own functions in the place of these."""

    sample = operation(Calls.sample)
    replay = operation(Calls.replay)
    iter_samples = streaming(Calls.iter_samples)
    bulk = operation(_bulk.bulk)
    stream = streaming(Calls.stream)
    models = operation(Calls.models)
    model = operation(Calls.model)
    frontier = operation(Calls.frontier)
    load = operation(Calls.load)
    solvers = operation(Calls.solvers)
    compare = operation(_compare.compare)

    _calls: Calls

    def __init_subclass__(cls) -> None:
        for name in dir(cls):
            if isinstance(method := inspect.getattr_static(cls, name), Method):
                function = cls._streaming(method.operation) if method.streams else cls._method(method.operation)
                setattr(cls, name, described_as(function, method.operation, cls.__name__))

    @staticmethod
    @abstractmethod
    def _method(operation: Callable[..., Flow[Any]]) -> Callable[..., Any]:
        """Return the method that performs an operation."""

    @staticmethod
    def _streaming(operation: Callable[..., Any]) -> Callable[..., Any]:
        """Return the method that performs an operation and yields what it emits."""

        def method(self: Any, *args: Any, **kwargs: Any) -> Any:
            return self._drive(FlowRun(operation(self._calls, *args, **kwargs).flow))

        return method
