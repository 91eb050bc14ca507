"""Grids are the very times of diffusers' schedulers, as recorded from its classes."""

import json
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from models.checkpoint.card import SamplingCard
from models.conventions import Adapted
from models.importing.declared import Declared
from models.importing.files import ForeignError
from models.scheduler import Chain, FlowMatchEuler, read_scheduler
from models.shapes import FreeAxis
from tests.models.scheduler_times import CASES, DDIM, DPM, FILE, FLOW, STABLE

AXES = {"H": FreeAxis(min=2, max=128, multiple=2), "W": FreeAxis(min=2, max=128, multiple=2)}
RECORDED = json.loads(FILE.read_text())


class Recorded(nn.Module):
    """Keeps the times that it is asked for."""

    def forward(self, x: Tensor, t: Tensor, condition: Any = None) -> Tensor:
        self.times = t
        return torch.zeros_like(x)


@pytest.mark.parametrize("number", range(len(CASES)), ids=lambda k: str(CASES[k]))
def test_the_grid_has_the_times_and_sigmas_of_diffusers(number: int) -> None:
    case, theirs = CASES[number], RECORDED[number]
    steps, size = case["steps"], dict(zip("HW", case.get("size", [16, 16]), strict=True))
    declared = Declared().scheduled(case["config"], f"euler-{steps}", 2 if "size" in case else None)
    time, sampling = declared.card(), declared.sampling
    assert sampling is not None
    assert sampling.scheduler is not None
    sampling.scheduler.check(time, (16, "H", "W"), AXES)
    grid = sampling.scheduler.times(steps, time, (16, "H", "W"), size)
    assert (grid[0], grid[-1]) == (0.0, 1.0)
    network = Recorded()
    Adapted(network, time)(torch.zeros(len(grid) - 1, 1), torch.tensor(grid[:-1]))
    times = network.times.tolist()
    if case["config"]["_class_name"] == FLOW:
        assert times == pytest.approx(theirs["times"], abs=1e-3)  # of 1000
        t = theirs["sigmas"] if time.noise_at == 0 else [1 - sigma for sigma in theirs["sigmas"]]
        assert grid == pytest.approx(t, abs=1e-6)
        return
    if sampling.scheduler.spread is None:  # else diffusers rounds the times of its noises
        assert times == theirs["times"]
    else:
        assert times == pytest.approx(theirs["times"], abs=1.0)
    (a, b), (a1, b1) = time.first_state, time.last_state
    sigmas = [(b + t * (b1 - b)) / (a + t * (a1 - a)) for t in grid]
    if theirs["sigmas"]:
        assert sigmas == pytest.approx(theirs["sigmas"], rel=1e-3, abs=1e-9)
    else:
        noisy = case["config"].get("set_alpha_to_one") is False
        assert sigmas[-1] == pytest.approx(time.shape.sigma(0.0) if noisy else 0.0, abs=1e-12)


def test_a_static_shift_is_not_the_grid_of_that_name() -> None:
    """The last call is at sigma 0.0089, not 0.1, as the scheduler shifts its smallest sigma twice."""
    scheduler, fields = read_scheduler({"_class_name": FLOW, "shift": 3.0})
    time = Declared(**fields).card()
    assert 1 - scheduler.times(28, time, (2,), {})[-2] == pytest.approx(0.00893, abs=1e-5)


def test_an_axis_that_occurs_twice_counts_twice() -> None:
    scheduler = FlowMatchEuler(use_dynamic_shifting=True, patch=2)
    time = Declared(predicts="velocity").card()
    assert scheduler.times(4, time, (4, "T", "T"), {"T": 64}) == scheduler.times(
        4, time, (4, "H", "W"), {"H": 64, "W": 64}
    )


def test_a_chain_starts_where_its_steps_do_unless_that_is_noisier() -> None:
    declared = Declared().scheduled({"_class_name": DDIM, **STABLE}, "euler-50")
    assert (declared.start, declared.predicts, declared.stop) == (981.0, "eps", None)
    sampling = declared.sampling
    assert sampling is not None
    assert isinstance(sampling.scheduler, Chain)
    scheduler, time = sampling.scheduler, declared.card()
    assert len(scheduler.times(50, time, (2,), {})) == 51
    assert scheduler.start_time(50, time) is None
    assert scheduler.start_time(20, time) == 951.0
    grid = scheduler.times(20, time, (2,), {})
    assert (len(grid), grid[0]) == (21, time.begin(951.0)[0])
    with pytest.raises(
        ValueError, match="100 steps of this scheduler start at 991, but the model was imported to start"
    ):
        scheduler.times(100, time, (2,), {})


def test_declared_conventions_come_first() -> None:
    declared = Declared(scale=1.0, sign=-1).scheduled({"_class_name": FLOW}, "euler-4")
    assert (declared.scale, declared.sign, declared.noise_at) == (1.0, -1, 1)


@pytest.mark.parametrize(
    ("config", "solver", "message"),
    [
        ({"_class_name": FLOW}, None, "needs --solver"),
        ({"_class_name": FLOW}, "euler-28/shift(3)", "give one of them"),
        ({"_class_name": FLOW}, "dopri5@1e-4", "fixed steps"),
        ({"_class_name": FLOW}, "tuned-6", "a solver with a grid"),
        ({"_class_name": FLOW, "shift": 0}, "euler-4", "shift"),
        ({"_class_name": FLOW, "use_karras_sigmas": True, "use_beta_sigmas": True}, "euler-4", "only one of"),
        ({"_class_name": FLOW, "stochastic_sampling": True}, "euler-4", "stochastic_sampling is set"),
        ({"_class_name": "PNDMScheduler"}, "euler-4", "'PNDMScheduler'; use one of FlowMatchEuler"),
        ({"_class_name": DPM, "algorithm_type": "sde-dpmsolver++"}, "euler-4", "algorithm_type is set"),
        ({"_class_name": DPM, "use_flow_sigmas": True}, "euler-4", "use_flow_sigmas is set"),
        ({"_class_name": DDIM, "rescale_betas_zero_snr": True}, "euler-4", "rescale_betas_zero_snr is set"),
        ({"_class_name": DDIM, "prediction_type": "flow_prediction"}, "euler-4", "'flow_prediction'; use one of eps"),
        ({"_class_name": DDIM, "beta_schedule": "sigmoid"}, "euler-4", "convention is not valid"),
        ({"_class_name": DDIM}, "euler-2000", "too many for a chain of 1000"),
    ],
)
def test_what_is_not_served_is_refused(config: dict[str, Any], solver: str | None, message: str) -> None:
    with pytest.raises(ForeignError, match=message):
        Declared().scheduled(config, solver)


def test_states_that_do_not_fit_are_refused() -> None:
    straight, chain = Declared(predicts="velocity").card(), Declared(predicts="eps", path="vp").card()
    scheduler = FlowMatchEuler(use_dynamic_shifting=True)
    with pytest.raises(ValueError, match="needs a free axis"):
        scheduler.check(straight, (16, 64, 64), {})
    scheduler.check(straight, (16, "H", "W"), AXES)
    with pytest.raises(ValueError, match="has the shift"):
        FlowMatchEuler(use_dynamic_shifting=True, max_image_seq_len=512).check(straight, (16, "H", "W"), AXES)
    with pytest.raises(ValueError, match="larger than the smallest state"):
        FlowMatchEuler(use_dynamic_shifting=True, patch=4).check(straight, (16, "H", "W"), AXES)
    with pytest.raises(ValueError, match="must be below max_image_seq_len"):
        FlowMatchEuler(use_dynamic_shifting=True, base_image_seq_len=4096).check(straight, (16, "H", "W"), AXES)
    with pytest.raises(ValueError, match="velocities of the straight path"):
        FlowMatchEuler().check(chain, (2,), {})
    with pytest.raises(ValueError, match="must be of kind steps"):
        Chain(kind="ddim").check(chain, (2,), {})


def test_a_card_without_a_scheduler_does_not_name_one() -> None:
    assert SamplingCard(solver="euler-28/shift(3)").model_dump() == {"solver": "euler-28/shift(3)"}
    assert "scheduler" in SamplingCard(solver="euler-28", scheduler=FlowMatchEuler.model_validate({})).model_dump()
