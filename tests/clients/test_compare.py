"""Comparisons: what is sent, the table and the verdict of the service, and what cannot be understood."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from pathline import Budget, Client, InvalidRequest
from pathline.errors import ProtocolError

if TYPE_CHECKING:
    from tests.clients.conftest import FakeService


def test_the_service_measures_and_says_which_solver_is_needed(service: FakeService, client: Client) -> None:
    told = list[Any]()
    table = client.compare("moons", ["rk4-20", "euler-8"], 100, seed=5, budget="error=0.02", progress=told.append)
    sent = json.loads(service.seen[0]["body"])
    assert (service.seen[0]["path"], len(service.seen)) == ("/v1/models/moons/frontier", 1)
    assert sent == {"solvers": ["rk4-20", "euler-8"], "num_samples": 100, "seed": 5, "budget": {"max_error": 0.02}}
    assert [row.solver for row in table.rows] == ["euler-8", "rk4-20"]
    assert (table.choice["solver"], table.verdict) == ("rk4-20", "rk4-20: the cheapest")
    assert [row.stored for row in table.rows] == [False, True]
    assert [point["solver"] for point in told] == ["euler-8"]
    assert table["rk4-20"] is table[1]
    with pytest.raises(KeyError, match="'rk4-10' was not measured; use one of euler-8, rk4-20"):
        table["rk4-10"]


def test_the_candidates_are_those_of_the_service(service: FakeService, client: Client) -> None:
    table = client.compare("moons", budget=Budget(max_error=0.06))
    sent = json.loads(service.seen[0]["body"])
    assert sent.keys() == {"seed", "budget"}, "the seed is drawn, so that a retry is the same request"
    assert table.seed == sent["seed"]
    assert len(table) == 3


def test_the_table_prints_what_is_worth_showing_and_the_verdict(client: Client) -> None:
    text = str(client.compare("moons", seed=1)).splitlines()
    assert text[0] == "moons v3: endpoint errors as shares of the spread, against dopri5@1e-07"
    assert " ".join(text[1].split()) == "solver nfe p50 p95 interval of p95 worst failed ms measured"
    assert " ".join(text[2].split()) == "rk4-2 8 1.2 % 2.5 % 1.7 % to 5 % 5 % 0 0.8 now, 512 samples"
    assert text[3].endswith("before, 512 samples")
    assert text[4] == "  and 1 that cheaper or more accurate ones beat"
    assert text[5:] == ["rk4-20: the cheapest", "no plans were tuned"]


def test_another_error_is_looked_up_in_the_table(client: Client) -> None:
    table = client.compare("moons", seed=1)
    solvers = {within: row and row.solver for within in (0.3, 0.05, 0.001) for row in [table.recommend(within)]}
    assert solvers == {0.3: "euler-4", 0.05: "rk4-2", 0.001: None}
    with pytest.raises(ValueError, match="within=0 is not allowed"):
        table.recommend(0)
    assert client.compare("moons", budget="error=1e-6").choice == {}


@pytest.mark.parametrize("solvers", [[], "rk4"])
def test_a_list_of_solvers_is_needed(client: Client, solvers: Any) -> None:
    with pytest.raises(ValueError, match="use a list such as"):
        client.compare("moons", solvers)


def test_what_the_service_refuses_and_what_is_no_comparison(service: FakeService, client: Client) -> None:
    with pytest.raises(InvalidRequest, match="is not understood"):
        client.compare("moons", ["rk5"])
    body = b'event: start\ndata: {}\n\nevent: completed\ndata: {"points": []}\n\n'
    service.replies = [(200, {"content-type": "text/event-stream"}, body)]
    with pytest.raises(ProtocolError, match="there is no 'choice'"):
        client.compare("moons")
