"""Overload on a simulated clock: accepted jobs finish in time, and refusals are truthful."""

from random import Random
from typing import Any

import pytest
import torch

from engine.job import Priority
from models.architectures.analytic import Mixture
from models.checkpoint.loading import Checkpoint, load
from models.checkpoint.saving import save
from models.decoder import Decoder

from .simulation import START, Attempt, Service

DOPRI5 = {"num_samples": 20, "solver": "dopri5"}
SATURATION = 10.7
"""Requests per second that keep the simulated device busy: 58 calls per sample, 80 microseconds per row."""


@pytest.fixture(scope="module")
def mixture(tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    """Samples under error control take 50 to 110 calls, so that forecasts cannot be exact."""
    path = tmp_path_factory.mktemp("mixture")
    return load(save(path, "net", Mixture(), Decoder.identity((2,)), dataset={}, training={}, seed=0))


def loaded(mixture: Checkpoint, rate: float, *kinds: dict[str, Any], seconds: float = 15, **world: Any) -> Service:
    """Send requests of several kinds, equally likely, for some seconds."""
    service, seeds = Service(mixture, **world), iter(range(10**6))

    def draw(chance: Random) -> dict[str, Any]:
        return {"dtype": torch.float64, "seed": next(seeds), **chance.choice(kinds)}

    service.arrivals(rate, seconds, 1, draw)
    service.run()
    assert {attempt.outcome for attempt in service.attempts} <= {"200", "429", "504"}
    return service


def late_share(attempts: list[Attempt]) -> float:
    taken = [each for each in attempts if each.outcome in ("200", "504")]
    return sum(each.outcome == "504" for each in taken) / len(taken)


def test_goodput_holds_at_up_to_ten_times_what_can_be_done(mixture: Checkpoint) -> None:
    full = loaded(mixture, SATURATION, DOPRI5).count("200")
    for times in (2, 4.5, 10):
        service = loaded(mixture, times * SATURATION, DOPRI5)
        assert service.count("200") >= 0.85 * full
        assert late_share(service.attempts) < 0.02
        assert all(attempt.answered <= attempt.began + 2.05 for attempt in service.attempts)


def test_a_machine_that_is_slow_for_some_seconds_costs_few(mixture: Checkpoint) -> None:
    usual = loaded(mixture, 2 * SATURATION, DOPRI5)
    slow = loaded(mixture, 2 * SATURATION, DOPRI5, slower=[(START + 5, START + 10, 1.5)])
    assert slow.count("200") > 0.75 * usual.count("200")
    assert late_share(slow.attempts) < 0.1


MIXES = [
    [DOPRI5, {"num_samples": 1, "solver": "rk4", "steps": 5}],
    [DOPRI5, {"num_samples": 300, "solver": "euler", "steps": 30, "limit_s": 40.0}],  # large: it gets an eighth
    [DOPRI5, {"num_samples": 5, "solver": "euler", "steps": 800, "limit_s": 8.0}],
    [DOPRI5, {"num_samples": 20, "solver": "rk4", "steps": 20, "priority": Priority.BULK, "limit_s": 20.0}],
    [{"num_samples": 20, "solver": "rk4", "steps": 15}, {"num_samples": 40, "solver": "heun2", "steps": 10}],
]


@pytest.mark.parametrize("kinds", MIXES)
def test_mixed_loads_keep_their_promises_and_starve_nobody(mixture: Checkpoint, kinds: list[dict[str, Any]]) -> None:
    service = loaded(mixture, 2 * SATURATION, *kinds)
    assert late_share(service.attempts) < 0.02
    for kind in kinds:
        of_kind = [attempt for attempt in service.attempts if attempt.job.num_samples == kind["num_samples"]]
        assert sum(attempt.outcome == "200" for attempt in of_kind) >= 3


@pytest.mark.parametrize("limit_s", [0.6, 2.0, 10.0])
@pytest.mark.parametrize("first", [20, 100])
def test_retry_after_is_true_within_a_factor_of_two(mixture: Checkpoint, limit_s: float, first: int) -> None:
    """Without other requests, the same request, sent again and again, is accepted at about the promised time."""
    settings = {"num_samples": 20, "solver": "rk4", "steps": 15, "limit_s": limit_s, "dtype": torch.float64}
    service = Service(mixture)
    service.ask(**settings | {"num_samples": first})
    refused, world = service.ask(**settings), service.world
    while refused.outcome != "429":
        refused = service.ask(**settings)
    again = refused

    def ask_again() -> None:
        nonlocal again
        again = service.ask(**settings)
        if again.outcome == "429":
            world.at(world.now + 0.005, ask_again)

    world.at(world.now + 0.005, ask_again)
    service.run()
    truth = again.began - refused.began
    assert again.outcome == "200"
    assert 0.5 * truth - 0.05 <= refused.retry_s <= max(2 * truth, 0.1)


def test_half_of_what_are_refused_at_once_get_in_when_they_come_back_as_told(mixture: Checkpoint) -> None:
    service = Service(mixture)
    settings = {"num_samples": 20, "solver": "rk4", "steps": 15, "dtype": torch.float64}
    refused = [each for each in (service.ask(**settings) for _ in range(100)) if each.outcome == "429"]
    for attempt in refused:
        service.world.at(attempt.began + attempt.retry_s, lambda: service.ask(**settings))
    service.run()
    assert len(refused) > 70
    assert sum(each.outcome == "200" for each in service.attempts[100:]) > 0.5 * len(refused)


def test_none_is_refused_at_four_fifths_of_saturation(mixture: Checkpoint) -> None:
    # More rows in a tick would be a tenth cheaper each, but later, so the service does nine tenths.
    service = loaded(mixture, 0.8 * 0.9 * 4 * SATURATION, {**DOPRI5, "num_samples": 5}, seconds=8)
    assert {each.outcome for each in service.attempts} == {"200"}


def test_what_is_too_slow_even_alone_is_refused_unless_a_part_is_of_use(mixture: Checkpoint) -> None:
    service = Service(mixture)
    slow = {"num_samples": 20, "solver": "euler", "steps": 2000, "dtype": torch.float64}  # 4.2 s
    assert service.ask(**slow).outcome == "422"
    partial, enough = service.ask(**slow, partial=True), service.ask(**slow, limit_s=60.0)
    service.run()
    assert partial.future is not None
    assert set(partial.future.result().status) == {"deadline"}
    assert enough.outcome == "200"


def test_a_kind_of_error_control_that_was_seen_is_known_to_be_too_slow(mixture: Checkpoint) -> None:
    service, settings = Service(mixture), {**DOPRI5, "dtype": torch.float64, "limit_s": 0.1}
    unknown = service.ask(**settings)
    service.run()
    assert unknown.outcome == "504"  # this could not be known before
    service.ask(**settings | {"limit_s": 5.0})
    service.run()
    assert service.ask(**settings).outcome == "422"


def test_a_job_of_one_sample_does_not_wait_for_one_of_a_hundred_thousand(mixture: Checkpoint) -> None:
    service, euler = Service(mixture), {"solver": "euler", "dtype": torch.float64}
    large = service.ask(num_samples=100_000, steps=10, limit_s=600.0, **euler)
    service.run(lambda: len(service.calls) > 5)
    one = service.ask(num_samples=1, steps=10, **euler)
    calls = len(service.calls)
    service.run(lambda: bool(one.outcome))
    assert one.outcome == "200"
    assert len(service.calls) - calls <= 12
    assert not large.outcome


SMALL = [
    {"num_samples": 1, "solver": "rk4", "steps": 5, "limit_s": 1.0},
    {"num_samples": 20, "solver": "rk4", "steps": 10, "limit_s": 2.0},
]


@pytest.mark.parametrize("priority", Priority)
@pytest.mark.parametrize("kind", SMALL)
def test_small_requests_beside_one_of_fifty_thousand_take_three_times_as_long_at_most(
    mixture: Checkpoint, kind: dict[str, Any], priority: Priority
) -> None:
    def seconds(large: bool) -> float:
        service, kinds = Service(mixture), dict[str, Any](dtype=torch.float64)
        if large:
            service.ask(num_samples=50_000, solver="rk4", steps=20, limit_s=3600.0, priority=priority, **kinds)
            service.run(lambda: len(service.calls) > 5)
        small = service.attempts[1:] = []
        for _ in range(25):
            attempt = service.ask(**kind, **kinds)
            small.append(attempt)
            service.run(lambda attempt=attempt: bool(attempt.outcome))
        assert {each.outcome for each in small} == {"200"}
        return sum(each.answered - each.began for each in small)

    assert seconds(large=True) <= 3 * seconds(large=False)


def test_a_long_request_with_little_time_to_spare_keeps_short_ones_from_nothing(mixture: Checkpoint) -> None:
    service = Service(mixture)
    kind: dict[str, Any] = {"dtype": torch.float64}
    service.ask(num_samples=3, solver="euler", steps=10_000, limit_s=9.0, **kind)  # 7.4 s alone
    service.run(lambda: len(service.calls) > 5)
    short = [service.ask(num_samples=1, solver="rk4", steps=5, **kind) for _ in range(20)]
    service.run()
    assert {attempt.outcome for attempt in short} == {"200"}


def test_on_a_machine_that_becomes_slower_the_first_are_still_in_time(mixture: Checkpoint) -> None:
    """The machine becomes three times slower once eight jobs have been accepted."""
    service = Service(mixture, slower=[(START + 0.05, START + 100, 3.0)])
    attempts = [service.ask(num_samples=20, solver="rk4", steps=15, dtype=torch.float64) for _ in range(8)]
    service.run()
    assert {each.outcome for each in attempts} == {"200", "504"}
    assert sum(each.outcome == "200" for each in attempts) >= 3  # if all shared their ticks, none
