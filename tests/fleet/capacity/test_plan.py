"""Capacity plans against queueing theory and arithmetic."""

import json
import random
import re
from pathlib import Path
from typing import Any

import pytest

from fleet.__main__ import main
from fleet.capacity import measure as measuring
from fleet.capacity.measure import Speed
from fleet.capacity.mix import read_mix
from fleet.capacity.plan import least_replicas, plan
from fleet.capacity.simulation import Replica, World, simulate
from tests.service.serving import serving

SPEED = Speed(0.75e-3, 26.4e-6, 2e-3)
ONE = [{"share": 1, "num_samples": 16, "solver": "rk4-5"}]


def mix_of(folder: Path, content: Any) -> Path:
    path = folder / "mix.json"
    path.write_text(json.dumps(content))
    return path


def test_a_single_request_takes_the_time_of_its_calls(tmp_path: Path) -> None:
    found = simulate(read_mix(mix_of(tmp_path, ONE)), 0.1, SPEED, 20, 30.0)
    assert found.refused == 0
    assert found.quantile(0.5) == pytest.approx(20 * SPEED.call(16) + SPEED.request_s, rel=1e-6)
    assert found.busy < 0.01


def test_a_replica_advances_to_a_time_and_no_further(tmp_path: Path) -> None:
    [kind] = read_mix(mix_of(tmp_path, ONE))
    replica, ends = Replica(SPEED, 30.0), list[float | None]()
    replica.send(kind, 1.0, ends.append)
    replica.advance(0.5)
    assert (replica.now, replica.busy, ends) == (pytest.approx(0.5), 0, [])
    replica.advance()
    replica.stop()
    assert ends == [pytest.approx(1.0 + 20 * SPEED.call(16) + SPEED.request_s)]


def test_time_goes_on_where_rounding_leaves_a_remainder() -> None:
    world, chance = World(), random.Random(0)
    world.now = world.handled = begin = 2e5  # after 2000 requests at one in 100 s
    wanted = 0.0
    for _ in range(100):
        seconds = chance.uniform(0, 1e-3)
        for _ in range(3):
            world.at(world.now + chance.uniform(0, seconds), lambda: None)
        world.spend(seconds)
        wanted += seconds
    assert world.now - begin == pytest.approx(wanted, rel=1e-6)


def test_a_request_blocks_others_while_it_is_handled(tmp_path: Path) -> None:
    kinds = read_mix(mix_of(tmp_path, ONE))
    free, held = (simulate(kinds, 60, Speed(1e-4, 1e-6, 3e-3, handling), 300, 30.0) for handling in (0.0, 3e-3))
    assert free.quantile(0.5) == pytest.approx(20 * 1.16e-4 + 3e-3, rel=0.2)
    assert held.latencies[0] == pytest.approx(free.latencies[0], rel=1e-6)  # alone, the same
    assert held.quantile(0.99) > free.quantile(0.99) + 3e-3
    assert held.busy > free.busy


def test_latency_rises_with_load_and_requests_share_calls(tmp_path: Path) -> None:
    kinds = read_mix(mix_of(tmp_path, ONE))
    light, heavy = (simulate(kinds, rate, SPEED, 300, 30.0) for rate in (5, 80))
    assert light.quantile(0.5) < heavy.quantile(0.5) < heavy.quantile(0.99)
    assert heavy.refused == 0
    assert heavy.busy < 80 * 20 * SPEED.call(16)  # what it would be without sharing


def test_the_fewest_replicas_are_found(tmp_path: Path) -> None:
    kinds = read_mix(mix_of(tmp_path, ONE))
    found = plan(kinds, 300, 0.1, SPEED, requests=300)
    assert found.replicas >= least_replicas(kinds, 300, SPEED) == 3
    assert found.p99 <= 0.1
    fewer = simulate(kinds, 300 / (found.replicas - 1), SPEED, 300, 30.0)
    assert fewer.refused or fewer.quantile(0.99) > 0.1


def test_the_command_prints_replicas_and_cost(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["plan", "--rate", "5", "--p99", "0.5", "--mix", str(mix_of(tmp_path, ONE)), "--call-ms", "0.75"]
    assert main([*arguments, "--row-us", "26.4", "--price", "3.6"]) == 0
    message = capsys.readouterr().out
    assert "t(n) = 0.75 ms + 26.4 us n" in message
    assert "1 replicas" in message
    assert "0.0125 for a thousand samples" in message  # 3.6 / 3600 / (5 x 16) x 1000


def test_the_command_measures_a_live_service(
    trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    read, more = measuring._Service.cpu, iter((0.0, 60.0))

    def cpu(self: Any) -> float:  # on a busy machine, its processes may get less than the time that calls take
        spent = read(self)
        assert spent is not None
        return spent + next(more)

    monkeypatch.setattr(measuring._Service, "cpu", cpu)
    monkeypatch.setattr(measuring, "_REPEATS", 3)
    mix = mix_of(tmp_path, [ONE[0] | {"solver": "euler-1"}])  # simulated in a second
    arguments = ["plan", "--rate", "0.01", "--p99", "60", "--mix", str(mix), "--model", "net"]
    with serving(trained) as (url, _):
        assert main([*arguments, "--service", url]) == 0
    number = r"[\d.]+(?:e[+-]?\d+)?"
    lines = [
        rf"t\(n\) = {number} ms \+ {number} us n for a network call of n rows",
        rf"{number} ms of a request outside its network calls; in {number} ms of them it blocks the others",
        rf"CPU time of a request outside its network calls: {number} ms",
        r"\d+ replicas, each busy \d+% of the time \(simulated\)",
        rf"p50 {number} ms, p99 {number} ms, refused \d+\.\d\d%",
    ]
    assert re.fullmatch("\n".join(lines) + "\n", capsys.readouterr().out)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ([], "at least one"),
        ({}, "must be a list"),
        ([{"share": 1}], "entry 0 (counted from 0): needs share, num_samples and solver"),
        ([{"share": 0, "num_samples": 1, "solver": "rk4-5"}], "share must be above 0"),
        ([{"share": 1, "num_samples": 1, "solver": "rk5-5"}], "rk5"),
        ([{"share": 1, "num_samples": 1, "solver": "dopri5"}], "has no fixed cost"),
    ],
)
def test_faults_in_a_mix_are_named(
    tmp_path: Path, content: Any, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["plan", "--rate", "5", "--p99", "0.5", "--mix", str(mix_of(tmp_path, content))]
    assert main(arguments) == 2
    assert message in capsys.readouterr().err


def test_impossible_plans_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    mix = ["--mix", str(mix_of(tmp_path, ONE))]
    assert main(["plan", "--rate", "0", "--p99", "1", *mix]) == 2
    assert main(["plan", "--rate", "1", "--p99", "1", *mix]) == 2
    assert "give --service URL" in capsys.readouterr().err
    assert main(["plan", "--rate", "1", "--p99", "0.01", *mix, "--call-ms", "0.75", "--row-us", "26"]) == 1
    assert (
        "no number of replicas meets a p99 of 0.01 s: even alone, one request in 100 takes 0.0233 s"
        in capsys.readouterr().err
    )
    assert main(["plan", "--rate", "1", "--p99", "1", *mix, "--service", "http://127.0.0.1:9"]) == 1
    assert "does not answer" in capsys.readouterr().err
