"""Jobs as the engine receives them."""

import gc
import json
import weakref
from dataclasses import replace
from typing import Any

import pytest

from service.errors import ProblemError
from service.http.context import Context
from service.registry.version import ModelVersion
from service.requests import validation
from service.requests.schemas import SampleRequest
from service.requests.solver import plan_of
from service.requests.validation import Validated, sample_request, validate_sample
from service.responses import samples
from service.responses.arrays import ENCODERS
from service.settings import Settings
from solvers import resolve
from solvers.plan import Plan
from tests.service.conftest import asking

JSON = ENCODERS["application/json"]


def test_job(moons: ModelVersion, settings: Settings) -> None:
    request = SampleRequest(model="moons", num_samples=3, seed=7, first_index=5, on_timeout="partial", trace="none")
    job = validate_sample(request, moons, settings, JSON, asking()).job
    assert (job.model, job.version, job.num_samples, job.seed, job.first_index) == ("moons", 2, 3, 7, 5)
    assert (job.partial, job.trace, job.x0, job.save_at) == (True, "none", None, None)
    assert job.plan is resolve()  # equal requests share one compiled solver


def test_limits_are_inclusive(moons: ModelVersion, settings: Settings) -> None:
    limits = settings.model_copy(update={"max_samples": 5, "max_steps": 6, "max_nfe": 24})
    request = SampleRequest(model="moons", num_samples=5, solver="rk4", steps=6, max_nfe=24)
    assert validate_sample(request, moons, limits, JSON, asking()).job.num_samples == 5


def test_the_default_of_max_nfe_is_within_every_limit(moons: ModelVersion, settings: Settings) -> None:
    limits = settings.model_copy(update={"max_nfe": 24})

    def plan(**body: Any) -> Plan:
        return validate_sample(SampleRequest(model="moons", **body), moons, limits, JSON, asking()).job.plan

    assert plan().spec.max_nfe == plan(solver="rk4-6").spec.max_nfe == 24
    assert plan(solver="dopri5+max_nfe=20").spec.max_nfe == 20
    for body in ({"max_nfe": 25}, {"solver": "dopri5+max_nfe=25"}):
        with pytest.raises(ProblemError, match="max_nfe = 25 is over the limit of 24"):
            plan(**body)


@pytest.fixture
def decided(monkeypatch: pytest.MonkeyPatch) -> list[SampleRequest]:
    """The requests for which a solver was compiled."""
    found: list[SampleRequest] = []

    def noting(request: SampleRequest, *rest: Any) -> Any:
        found.append(request)
        return plan_of(request, *rest)

    monkeypatch.setattr(validation, "plan_of", noting)
    return found


BODY: dict[str, Any] = {"model": "moons", "num_samples": 3, "solver": "rk4-10"}


def validated(
    http: Context, model: ModelVersion, settings: Settings, media: str = JSON.media_type, **body: Any
) -> Validated:
    """Return a request as the endpoint does it."""
    http.media_type, http.alike = media, None
    request = sample_request(http, json.dumps(BODY | body).encode())
    return validate_sample(request, model, settings, ENCODERS[media], http)


def test_what_a_request_needs_is_decided_once(
    moons: ModelVersion, settings: Settings, decided: list[SampleRequest]
) -> None:
    http = asking()
    first = validated(http, moons, settings, seed=1)
    again = validated(http, moons, settings, seed=2, first_index=9, timeout_s=3.0)
    assert len(decided) == 1
    assert again.job.plan is first.job.plan
    assert (again.max_bytes, again.job.seed, again.job.first_index) == (first.max_bytes, 2, 9)


@pytest.mark.parametrize(
    ("changed", "media"),
    [
        ({"num_samples": 4}, "application/json"),
        ({"solver": "rk4-11"}, "application/json"),
        ({"trace": "none"}, "application/json"),
        ({"decode": False}, "application/json"),
        ({"max_nfe": 9000}, "application/json"),
        ({"priority": "bulk"}, "application/json"),
        ({"on_timeout": "partial"}, "application/json"),
        ({"version": 2}, "application/json"),
        ({}, "application/x-npz"),
    ],
)
def test_another_request_is_decided_anew(
    moons: ModelVersion, settings: Settings, decided: list[SampleRequest], changed: dict[str, Any], media: str
) -> None:
    http = asking()
    validated(http, moons, settings)
    validated(http, moons, settings, media, **changed)
    assert len(decided) == 2


def test_another_version_of_the_model_is_decided_anew(
    moons: ModelVersion, settings: Settings, decided: list[SampleRequest]
) -> None:
    http = asking()
    for model in (moons, replace(moons), moons):
        validated(http, model, settings)
    assert len(decided) == 3


def test_an_error_is_told_each_time(moons: ModelVersion, settings: Settings) -> None:
    http = asking()
    for _ in range(2):
        with pytest.raises(ProblemError, match="max_nfe"):
            validated(http, moons, settings, solver="rk4", steps=20, max_nfe=10)


def test_the_needs_of_requests_do_not_keep_their_model(moons: ModelVersion, settings: Settings) -> None:
    http, model = asking(), replace(moons)
    validated(http, model, settings)
    gone = weakref.ref(model)
    del model
    gc.collect()
    assert gone() is None


def test_what_is_kept_of_requests_does_not_keep_their_plans(moons: ModelVersion, settings: Settings) -> None:
    solves = [
        weakref.ref(
            validate_sample(SampleRequest(model="moons", solver=f"ab4-{n}"), moons, settings, JSON, asking()).job.plan
        )
        for n in range(9_000, 9_020)
    ]
    gc.collect()
    assert sum(solve() is not None for solve in solves) <= 16  # as many as the cache of plans keeps


def test_the_columns_of_a_grid_do_not_keep_its_plan() -> None:
    solve = resolve(solver="ab4", steps=9_999)
    assert len(samples.view("summary", solve, None)["t"]) == 9_999  # type: ignore[index, arg-type]
    assert samples._grid(solve) is samples._grid(solve)
    gone = weakref.ref(solve)
    for n in range(9_500, 9_530):  # drives it out of the cache
        resolve(solver="ab4", steps=n)
    del solve
    gc.collect()
    assert gone() is None
