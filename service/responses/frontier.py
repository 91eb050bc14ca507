"""Frontiers: what was measured of a model's solvers as the response of ``/v1/models/{name}/frontier``."""

from pathlib import Path
from typing import Any

from models.checkpoint.frontier import Curve, pareto
from service.errors import Kind, ProblemError
from service.registry.version import ModelVersion


def frontier_response(model: ModelVersion, models_dir: Path) -> dict[str, Any]:
    """Return the frontier of a version.

    Args:
        model: the version.
        models_dir: where it lies, for the command that measures it.

    Raises:
        ProblemError: 404 if it has none, cannot have one, or has one that cannot be used.
    """
    if model.card.average:
        detail = (
            f"model {model.name!r} is a field of average velocity: it has no endpoint error, so no frontier; compare "
            "its samples with data: python -m training evaluate"
        )
        raise ProblemError(Kind.NO_FRONTIER, detail)
    frontier, fault = model.frontier()
    if frontier is None:
        command = f"python -m models measure {models_dir.name}/{model.name}/{model.version}"
        why = f"cannot be used: {fault}" if fault else "was not measured"
        detail = f"the frontier of model {model.name!r} version {model.version} {why}; measure it with: {command}"
        raise ProblemError(Kind.NO_FRONTIER, detail)
    return {
        "model": model.name,
        "version": model.version,
        "checkpoint": model.digest,
        "tight": frontier.tight,
        "conditions": frontier.conditions,
        "curves": [_described(curve) for curve in frontier.curves],
    }


def _described(curve: Curve) -> dict[str, Any]:
    best = {point.solver for point in pareto(curve.points)}
    points = [point.model_dump() | {"best": point.solver in best} for point in curve.points]
    return curve.model_dump(exclude={"points"}) | {"points": points}
