"""Descriptions of the service's models and solvers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from pathline._typed import member_of, typed


@dataclass(frozen=True)
class Axis:
    """The allowed sizes of a free axis.

    Attributes:
        min: The smallest.
        max: The largest.
        multiple: Sizes are multiples of this number.
    """

    min: int
    max: int
    multiple: int = 1


@dataclass(frozen=True)
class ModelInfo:
    """A model that the service offers.

    Attributes:
        name: Its name.
        version: The version that answers by default, or None.
        fields: All members of the service's description.
    """

    name: str
    version: int | None
    fields: Mapping[str, Any] = field(default_factory=dict, repr=False)

    def __getitem__(self, key: str) -> Any:
        return self.fields[key]

    @property
    def fallback_from(self) -> int | None:
        """The version that should answer but cannot be loaded, so that an older one does; usually None."""
        version = self.fields.get("fallback_from")
        return version if isinstance(version, int) else None

    @property
    def event_shape(self) -> tuple[int | str, ...] | None:
        """Shape of the state that the solver moves, with a name for each free axis; None if it is not reported."""
        return _shape(self._described("event_shape"))

    @property
    def data_shape(self) -> tuple[int | str, ...] | None:
        """Shape of a decoded sample, with a name or text such as `256*T` for each free size; None if not reported."""
        return _shape(self._described("data_shape"))

    @property
    def axes(self) -> dict[str, Axis]:
        """The allowed sizes of the free axes of samples and conditions, by name."""
        axes = self._described("axes")
        return {
            name: Axis(bounds.get("min", 1), bounds["max"], bounds.get("multiple", 1))
            for name, bounds in (axes.items() if isinstance(axes, dict) else ())
        }

    @property
    def solver(self) -> str | None:
        """The solver, as text, for requests that name none; None for the service's default."""
        sampling = self._described("sampling")
        return str(sampling["solver"]) if isinstance(sampling, dict) and "solver" in sampling else None

    @property
    def conditions(self) -> Mapping[str, Any]:
        """Conditions of requests, by name: dtype, shape, null, ...; an only, unnamed one is called `condition`."""
        conditions = self._described("conditions")
        return conditions if isinstance(conditions, dict) else {}

    def served(self, version: int | None) -> Mapping[str, Any]:
        """Return the description of a version; empty if it was never loaded."""
        return next((entry for entry in self.fields.get("served", ()) if entry.get("version") == version), {})

    def _described(self, key: str) -> Any:
        """Return a member of the description; for a single model, from its version or its card."""
        if key in self.fields:
            return self.fields[key]
        entry = self.served(self.version)
        return entry[key] if key in entry else entry.get("card", {}).get(key)


class ModelList(list[ModelInfo]):
    """The models that the service offers.

    Attributes:
        passed_over: Entries of the service's repository that are not models: path -> why not, and what to do.
        training: Models being trained, and the seconds that this will take; None if not yet known.
    """

    def __init__(
        self,
        models: Iterable[ModelInfo] = (),
        passed_over: Mapping[str, str] | None = None,
        training: Mapping[str, float | None] | None = None,
    ) -> None:
        super().__init__(models)
        self.passed_over: Mapping[str, str] = passed_over or {}
        self.training: Mapping[str, float | None] = training or {}


@dataclass(frozen=True)
class SolverInfo:
    """A solver that the service offers.

    Attributes:
        name: Its name.
        order: Order of accuracy.
        adaptive: Whether it runs under error control unless `steps` is given.
        cost: Velocity evaluations as a formula.
        fields: All members of the service's description.
    """

    name: str
    order: int | None
    adaptive: bool
    cost: str
    fields: Mapping[str, Any] = field(default_factory=dict, repr=False)

    def __getitem__(self, key: str) -> Any:
        return self.fields[key]


@dataclass(frozen=True)
class ServiceLoad:
    """How much work a service still has to do.

    Attributes:
        accepts: Whether it accepts requests.
        jobs: Requests waiting or running.
        work: Network rows that they still need, over all calls.
        seconds: Until all of them are done, by the service's forecast.
        fields: All members of the response; `models` has the work, budget and speed of each.
    """

    accepts: bool
    jobs: int
    work: float
    seconds: float
    fields: Mapping[str, Any] = field(default_factory=dict, repr=False)

    def __getitem__(self, key: str) -> Any:
        return self.fields[key]


def models_of(document: Any) -> ModelList:
    """Read the response of ``/v1/models``: an object with `models`, a list of descriptions."""
    return ModelList(
        map(model_of, member_of(document, "models", "list")),
        {str(entry["path"]): str(entry["reason"]) for entry in document.get("passed_over") or ()},
        {
            str(run["name"]): None if run.get("left_s") is None else float(run["left_s"])
            for run in document.get("training") or ()
        },
    )


def model_of(item: Any) -> ModelInfo:
    """Read the description of one model."""
    name = member_of(item, "name", "str")
    version = item.get("version", item.get("serving"))
    info = ModelInfo(name, version if isinstance(version, int) else None, item)
    _ = info.event_shape, info.data_shape, info.axes, info.solver, info.conditions  # now rather than when they are used
    return info


def solvers_of(document: Any) -> list[SolverInfo]:
    """Read the response of ``/v1/solvers``: an object with `solvers`, a list of descriptions."""
    return [
        typed(
            SolverInfo,
            item,
            adaptive=item.get("kind") == "adaptive" or item.get("embedded_order") is not None,
            cost=str(item.get("cost", "")),
        )
        for item in member_of(document, "solvers", "list")
    ]


def _shape(value: Any) -> tuple[int | str, ...] | None:
    return tuple(size if isinstance(size, str) else int(size) for size in value) if isinstance(value, list) else None
