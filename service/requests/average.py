"""Fields of average velocity: the requests that they can answer.

Such a network was trained for steps from noise towards data: asked with the start and the end of a step, it returns the
velocity that leads from one to the other. So a step is one network call, and `euler`, on any grid, is its solver.
"""

from service.errors import invalid
from service.registry.version import ModelVersion
from service.requests.schemas import Solving
from solvers.errors import SolverError
from solvers.spec import read_solver

SOLVER = "euler"


def solver_of(request: Solving, model: ModelVersion, t_span: tuple[float, float]) -> tuple[str, int | None]:
    """Return the text of the solver, and the steps where the request names none; `euler-1` where it names nothing.

    Raises:
        ProblemError: 422 for another solver, and for a span that runs backwards.
    """
    if t_span[1] < t_span[0]:
        raise invalid(
            "t_span",
            f"t_span = [{t_span[0]:g}, {t_span[1]:g}] runs backwards; {_what(model)}: it goes from noise to data only",
        )
    if request.guidance not in (None, 1):
        raise invalid(
            "guidance",
            f"guidance was given; {_what(model)}, and guided in training only: leave guidance out",
        )
    text = request.solver if "solver" in request.model_fields_set else SOLVER
    try:
        said = read_solver(text)
    except SolverError as error:
        raise invalid(error.field, str(error)) from None
    if said["solver"] != SOLVER:
        raise invalid(
            "solver",
            f"solver is {text!r}; {_what(model)}: each step is one network call that leads to its end, so there are no "
            f"stages and no local error. Use {SOLVER!r} with 1 step (the default), 2 or 4, on any grid",
        )
    named = "steps" in said or request.steps is not None or isinstance(request.grid, list)
    return text, None if named else 1


def refuse_average(model: ModelVersion, does: str) -> None:
    """Refuse what needs a velocity at one time.

    Args:
        model: the requested model.
        does: what was asked for, as in "encode follows ...".

    Raises:
        ProblemError: 422 for a field of average velocity.
    """
    if model.card.average:
        student = model.card.dataset.get("student")
        parent = student.get("parent") if isinstance(student, dict) else None
        asked = f"ask {parent!r}, the model that it was trained on" if parent else "ask a model that has one"
        raise invalid("name", f"{does} the velocity of an ODE; {_what(model)} and has none: {asked}")


def _what(model: ModelVersion) -> str:
    return f"model {model.name!r} is a field of average velocity (`field` of its card)"
