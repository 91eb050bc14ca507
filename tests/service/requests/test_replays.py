"""What an answer says of its request: the members that a replay needs, and that no field is forgotten."""

from service import examples
from service.requests.replays import Answer, Asked
from service.requests.schemas import SOLVER_FIELDS, SampleRequest
from service.routes.replay import ReplayRequest

_ANSWER = examples.answers("POST", "/v1/sample")["fixed"]


def test_the_example_is_an_answer() -> None:
    answer = Answer.model_validate(_ANSWER)
    members = {"model": "moons", "version": 2, "seed": 0, "first_index": 0, "num_samples": 2}
    assert answer.members() == members | {"solver": "rk4", "steps": 4, "grid": "uniform", "max_nfe": 10_000}
    assert answer.digest == _ANSWER["digest"]


def test_every_field_that_samples_depend_on_is_in_an_answer_or_sent_again() -> None:
    stated = {"model", "version", "seed", "first_index", "num_samples", "save_at", *SOLVER_FIELDS}
    harmless = {"timeout_s", "on_timeout", "priority", "budget"}  # `solver` has what was chosen for a budget
    repeated = (Asked.model_fields.keys() | ReplayRequest.model_fields.keys()) & SampleRequest.model_fields.keys()
    assert SampleRequest.model_fields.keys() <= repeated | stated | harmless
