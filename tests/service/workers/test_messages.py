"""Messages: jobs, outcomes and models are the same on the other side, bit for bit."""

from dataclasses import fields as fields_of
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import solvers
from engine.job import (
    DeadlineExceeded,
    Draining,
    EngineFailed,
    Job,
    JobResult,
    Outcome,
    Overloaded,
    Priority,
    TooSlow,
)
from engine.result_builder import NAMES
from models.architectures.residual_mlp import ResidualMLP, ResidualMLPConfig
from models.checkpoint.loading import load
from models.checkpoint.saving import save
from models.conditions import LabelCondition
from models.decoder import Decoder
from models.guidance import Guidance, Term
from models.named_conditions import Distinct
from service.errors import Kind, ProblemError, problem_of
from service.registry.version import Leases, ModelVersion, PlansFile
from service.workers.link import Arrays, Fields, _Decoder, encoded
from service.workers.messages import (
    can_serve,
    job_message,
    job_of,
    model_message,
    model_of,
    outcome_message,
    outcome_of,
    plan_of,
    spec_text,
)
from solvers import SolverSpec, catalogue
from solvers.trace import Trace
from solvers.tuned import TunedPlan, TunedPlans

TUNED = TunedPlans(
    {2: TunedPlan(np.array([0, 0.4, 1.0]), np.tril(np.full((2, 2), 0.3)), np.array([0.0, 1e-3]))},
    {"ab4-3": TunedPlan(np.array([0, 0.1, 0.5, 1.0]))},
)


def crossed(message: tuple[Fields, list[np.ndarray]]) -> tuple[Fields, Arrays]:
    """Return a message as the other side receives it."""
    [found] = _Decoder().messages(b"".join(encoded(*message)))
    return found


@pytest.fixture
def model(tmp_path: Path) -> ModelVersion:
    torch.manual_seed(0)
    net = ResidualMLP(ResidualMLPConfig(dim=3, hidden=32, blocks=1, condition=LabelCondition(classes=4)))
    decoder = Decoder.pca(torch.randn(8), torch.randn(3, 8), torch.rand(3), (2, 4), clip=(-1.0, 1.0))
    folder = save(tmp_path, "net", net, decoder, dataset={}, training={}, seed=0)
    checkpoint = load(folder, torch.device("cpu"))
    return ModelVersion.of("net", 1, checkpoint, True, "fused", "", plans_file=PlansFile(TUNED, "a fault"))


def test_a_model_decodes_to_the_same_bits(model: ModelVersion) -> None:
    leases = Leases(lambda: None)
    other = model_of(*crossed(model_message(model)), leases)
    for each in fields_of(ModelVersion):
        if each.name not in ("decoder", "decode", "plans_file", "leases", "pace", "signature", "frontier_file"):
            assert getattr(other, each.name) == getattr(model, each.name), each.name
    x = torch.randn(37, 3)
    assert torch.equal(other.decode(x), model.decode(x))
    assert other.decode.agreement == model.decode.agreement
    assert other.plans is not None
    assert other.plans.digests == TUNED.digests
    assert other.plans.texts == TUNED.texts
    assert other.plans_file.fault == "a fault"
    assert other.leases is leases
    assert can_serve(model)


@pytest.mark.parametrize("name", list(catalogue.solvers()))
def test_every_solver_compiles_to_the_same_plan(model: ModelVersion, name: str) -> None:
    texts = [f"{name}-7"] if catalogue.solvers()[name].describe()["embedded_order"] is None else [name, f"{name}-7"]
    for text in texts:
        plan = solvers.compile(SolverSpec.parse(text), model.dtype, TUNED)
        assert plan_of(spec_text(plan), model) is plan


@pytest.mark.parametrize(
    "spec",
    [
        SolverSpec("dopri5", rtol=3e-4, atol=1e-7, controller="pi", first_step=0.01, max_step=0.3, max_nfe=999),
        SolverSpec("bosh3", rtol=1e-3, error_control="batch", t_span=(1.0, 0.25)),
        SolverSpec("ab3", steps=6, start="rk"),
        SolverSpec("rk4", steps=5, grid="shift(3)"),
        SolverSpec("heun2", grid=(0.0, 0.1, 1 / 3, 1.0)),
        SolverSpec("ab4", steps=3, grid="tuned"),
        SolverSpec.parse("tuned-2"),
    ],
    ids=repr,
)
def test_every_field_of_a_spec_crosses(model: ModelVersion, spec: SolverSpec) -> None:
    plan = solvers.compile(spec, model.dtype, TUNED)
    assert plan_of(spec_text(plan), model) is plan


@pytest.mark.parametrize("plans", [None, TunedPlans({2: TunedPlan(np.array([0, 0.5, 1.0]), np.eye(2) / 2)})])
def test_a_tuned_plan_that_was_replaced_is_refused(model: ModelVersion, plans: TunedPlans | None) -> None:
    text = spec_text(solvers.compile(SolverSpec.parse("tuned-2"), model.dtype, TUNED))
    later = ModelVersion(**{**vars(model), "plans_file": PlansFile(plans)})
    with pytest.raises(ProblemError, match="have just been replaced; send the request again") as caught:
        plan_of(text, later)
    assert caught.value.kind is Kind.NOT_READY


def test_a_job_crosses_with_all_that_it_holds(model: ModelVersion) -> None:
    plan = solvers.compile(SolverSpec("rk4", steps=4), model.dtype)
    job = Job(
        "net",
        1,
        plan,
        5,
        2**63 - 5,
        2**62,
        x0=torch.randn(5, 3),
        save_at=np.array([0.25, 1.0]),
        deadline=12.125,
        partial=True,
        trace="full",
        conditions={"y": Distinct(torch.tensor([[1], [2]]), np.array([0, 1, 1, 0, 1]))},
        guidance=Guidance((Term(2.5), Term(-1.5, frozenset(("y",)))), (0.1, 0.9), 2),
        negative={"y": Distinct(torch.tensor([[0]]))},
        priority=Priority.BULK,
        bytes=1234,
        condition_bytes=56,
    )
    calls: list[int] = []
    found = job_of(*crossed(job_message(job)), model, plan, calls.append)
    assert found.on_logged is not None
    for each in fields_of(Job):
        one, other = getattr(job, each.name), getattr(found, each.name)
        if each.name == "on_logged":
            continue
        if isinstance(one, torch.Tensor | np.ndarray):
            assert type(one) is type(other)
            assert (one == other).all()
        elif isinstance(one, dict):
            assert one.keys() == other.keys()
            for name, distinct in one.items():
                assert torch.equal(distinct.rows, other[name].rows)
                assert distinct.rows.dtype == other[name].rows.dtype
                assert np.array_equal(distinct.index, other[name].index)
        else:
            assert one == other, each.name


def test_a_plain_job_crosses_without_what_it_lacks(model: ModelVersion) -> None:
    plan = solvers.compile(SolverSpec("euler", steps=4), model.dtype)
    job = Job("net", 1, plan, 1, guidance=0.5)
    fields, arrays = job_message(job)
    assert not arrays
    found = job_of(*crossed((fields, arrays)), model, plan)
    assert all(getattr(found, each.name) == getattr(job, each.name) for each in fields_of(Job))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16])
def test_a_result_crosses_bit_for_bit(dtype: torch.dtype) -> None:
    steps = np.random.default_rng(0).normal(size=(4, 5))
    steps[1, 2:] = np.nan, 1.0, np.inf
    x, saved = torch.randn(3, 2, 2).to(dtype), torch.full((3, 2, 2, 2), torch.nan, dtype=dtype)
    x[1] = torch.nan
    status = np.array(["success", "non_finite", "deadline"])
    trace = Trace.build(np.array([0, 0, 1, 2]), steps)
    result = JobResult(
        x, saved, np.array([1.0, 0.5, 0.1]), np.array([8, 4, 2]), status, trace, 14, 0.1, 0.2, 0.15, None, 0.01
    )
    found = outcome_of(*crossed(outcome_message(result)))
    assert isinstance(found, JobResult)
    for name in ("x", "saved"):
        one, other = getattr(result, name), getattr(found, name)
        assert one.dtype == other.dtype
        assert torch.equal(one.view(torch.uint8), other.view(torch.uint8))
    for name in ("t", "nfe", "status"):
        assert np.array_equal(getattr(result, name), getattr(found, name))
    for each in fields_of(Trace):
        assert np.array_equal(getattr(trace, each.name), getattr(found.trace, each.name), equal_nan=True)
    rest = ("rows", "queue_s", "solve_s", "network_s", "prelude_s", "decoder_s", "data", "saved_data")
    assert [getattr(found, name) for name in rest] == [getattr(result, name) for name in rest]
    found.x.add_(1)  # its own memory


def test_a_plain_result_crosses() -> None:
    n = 4
    success = np.full(n, "success", NAMES.dtype)
    result = JobResult(torch.zeros(n, 2), None, np.ones(n), np.full(n, 8), success, Trace.empty(), 32, 0, 0, 0)
    found = outcome_of(*crossed(outcome_message(result)))
    assert isinstance(found, JobResult)
    assert found.saved is None
    assert len(found.trace) == 0
    assert found.status.tolist() == success.tolist()
    assert found.status.dtype == success.dtype


@pytest.mark.parametrize(
    "error",
    [
        Overloaded("the queue is full", 1.5),
        TooSlow(12.5),
        Draining(),
        DeadlineExceeded(),
        EngineFailed("the network raised"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_the_engines_exceptions_become_the_same_problems(error: Exception) -> None:
    found = outcome_of(*crossed(outcome_message(error)))
    assert isinstance(found, Exception)
    assert type(found) is type(error)
    one, other = problem_of(error), problem_of(found)
    assert one.body("id") == other.body("id")
    assert one.headers == other.headers


def test_a_problem_and_a_cancellation_cross() -> None:
    problem = ProblemError(
        Kind.OVERLOADED, "full", errors=[{"field": "x", "message": "m"}], headers={"Retry-After": "3"}, retry_after_s=3
    )
    found = outcome_of(*crossed(outcome_message(problem)))
    assert isinstance(found, ProblemError)
    assert (found.body("id"), found.headers) == (problem.body("id"), problem.headers)
    assert outcome_of(*crossed(outcome_message(None))) is None


def test_any_other_exception_is_a_failure_of_the_engine() -> None:
    found: Outcome = outcome_of(*crossed(outcome_message(KeyError("net"))))
    assert isinstance(found, EngineFailed)
    assert "net" in str(found)
    silent: Any = outcome_of(*crossed(outcome_message(ValueError())))
    assert str(silent) == "ValueError"
