from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from pathline import Client
from pathline._compare import CANDIDATES

if TYPE_CHECKING:
    from tests.clients.conftest import FakeService


def test_results_are_found_by_their_text_and_by_what_was_given(client: Client) -> None:
    table = client.compare("moons", ["RK4-20", {"solver": "euler", "steps": 9}], 2, seed=1)
    assert table["rk4-20"] is table["RK4-20"] is table[0]
    assert table["euler-9"] is table[1]
    with pytest.raises(KeyError, match="'rk4-19' was not compared; use one of rk4-20, euler-9"):
        table["rk4-19"]
    with pytest.raises(TypeError, match="3 is not a solver"):
        client.compare("moons", [3])  # type: ignore[list-item]


def test_the_page_tries_the_same_solvers() -> None:
    finder = (Path(__file__).parents[2] / "service" / "static" / "finder.js").read_text()
    listed = re.search(r"^const CANDIDATES = (\[.*?\]);$", finder, re.DOTALL | re.MULTILINE)
    assert listed is not None
    assert tuple(re.findall(r'"(.*?)"', listed.group(1))) == CANDIDATES


def test_one_noise_for_all_and_distances_of_the_endpoints(service: FakeService, client: Client) -> None:
    table = client.compare("moons", ["euler", "rk4", "dopri5"], 8, seed=2**63 - 1, steps=5)
    sent = [json.loads(seen["body"]) for seen in service.seen if seen["path"] == "/v1/sample"]
    assert [(body["solver"], body.get("steps")) for body in sent] == [("euler", 5), ("rk4", 5), ("dopri5", None)]
    assert {body["seed"] for body in sent} == {2**63 - 1}
    assert all(body["num_samples"] == 8 for body in sent)
    np.testing.assert_allclose(table.distances, [[0, 0.75, 1], [0.75, 0, 0.25], [1, 0.25, 0]])
    np.testing.assert_array_equal(table.distances, table.distances.T)
    np.testing.assert_allclose(table.max_distances, table.distances)
    assert [row.label for row in table.rows] == ["euler-5", "rk4-5", "dopri5@1e-5"]
    assert [row.nfe for row in table.rows] == [56, 56, 56]
    assert table.results[0].samples.shape == (8, 2)


def test_the_catalogue_is_asked_only_where_it_is_needed(service: FakeService, client: Client) -> None:
    client.compare("moons", ["rk4-20", "dopri5@1e-5"], 2)
    assert {seen["path"] for seen in service.seen} == {"/v1/sample"}


def test_failed_samples_are_left_out(service: FakeService, client: Client) -> None:
    def change(arrays: dict[str, Any], meta: dict[str, Any]) -> None:
        if meta["solver"]["name"] == "euler":
            arrays["samples"][0] = np.nan
            arrays["status"] = np.array(["non_finite", "success"])
            meta |= {"status": "non_finite", "failed": [{"index": 0, "status": "non_finite", "t": 0.1}]}

    service.change = change
    table = client.compare("moons", ["euler-2", "rk4-2"], 2, seed=1)
    assert table.rows[0].failed == 1
    assert table.distances[0, 1] == 0.75


def test_a_pair_without_common_success_has_no_distance(service: FakeService, client: Client) -> None:
    service.change = lambda arrays, meta: arrays.update(status=np.full(2, "max_nfe"))
    table = client.compare("moons", ["euler-2", "rk4-2"], 2, seed=1)
    assert np.isnan(table.distances[0, 1])
    assert table.to_dict()["distances"] == [[0.0, None], [None, 0.0]]
    assert json.dumps(table.to_dict(), allow_nan=False)


def test_the_table_prints(client: Client) -> None:
    text = str(client.compare("moons", ["euler-2", "rk4-2"], 2, seed=1)).splitlines()
    assert text[0] == "moons, 2 samples, seed 1"
    assert text[2].split() == ["euler-2", "51", "50.5", "100.0", "100.0", "0"]
    assert text[-1].split() == ["rk4-2", "0.75", "0", "[2]"]


def test_the_cheapest_that_is_near_enough_is_recommended(service: FakeService, client: Client) -> None:
    def change(arrays: dict[str, Any], meta: dict[str, Any]) -> None:
        cost = {"euler": 20, "rk4": 80, "dopri5": 200}[meta["solver"]["name"]]
        arrays["nfe"] = np.full(len(arrays["nfe"]), cost)
        meta["nfe"] = cost

    service.change = change
    table = client.compare("moons", ["dopri5@1e-5", "rk4-20", "euler-20"], 100, seed=1, reference="dopri5@1e-7")
    spread = np.arange(100).std()
    assert [row.distance for row in table.rows] == pytest.approx([0, 0.25, 1])
    assert [row.relative for row in table.rows] == pytest.approx([0, 0.25 / spread, 1 / spread])
    chosen = {within: table.recommend(within).row for within in (0.1, 0.01, 0.001)}
    assert {within: row and row.label for within, row in chosen.items()} == {
        0.1: "euler-20",
        0.01: "rk4-20",
        0.001: "dopri5@1e-5",
    }
    assert str(table).splitlines()[-1].startswith("recommended: rk4-20, 80 NFE: the cheapest of these within 1 % ")
    assert "<td>rk4-20</td>" in table._repr_html_()
    assert table.to_dict()["reference"] == "dopri5@1e-7"


def test_none_is_recommended_where_none_is_near(service: FakeService, client: Client) -> None:
    table = client.compare("moons", ["euler-20", "rk4-20"], 10, seed=1, reference="dopri5@1e-7")
    message = str(table.recommend(0.001))
    assert message.startswith("no recommendation: none of these is within 0.1 % ")
    assert "the closest is rk4-20" in message


def test_a_solver_that_fails_is_never_recommended(service: FakeService, client: Client) -> None:
    def change(arrays: dict[str, Any], meta: dict[str, Any]) -> None:
        arrays["status"] = np.full(2, "max_nfe")
        meta |= {"status": "max_nfe", "failed": [{"index": i, "status": "max_nfe", "t": 0.5} for i in (0, 1)]}

    service.change = change
    table = client.compare("moons", ["rk4-20"], 2, seed=1, reference="dopri5@1e-7")
    assert (table.rows[0].distance, table.recommend().row) == (None, None)
    assert "no sample reached the end with both" in str(table)
    assert json.dumps(table.to_dict(), allow_nan=False)


def test_a_recommendation_needs_a_reference(client: Client) -> None:
    table = client.compare("moons", ["rk4-20"], 2, seed=1)
    with pytest.raises(ValueError, match="there is no reference"):
        table.recommend()
    with pytest.raises(ValueError, match="within=0 is not allowed"):
        client.compare("moons", ["rk4-20"], 2, reference="dopri5").recommend(0)


def test_what_is_neither_text_nor_options_is_no_solver(client: Client) -> None:
    with pytest.raises(TypeError, match="3 is not a solver; use text such as 'rk4-20'"):
        client.compare("moons", ["rk4-20", 3])  # type: ignore[list-item]


@pytest.mark.parametrize("solvers", [[], "rk4"])
def test_a_list_of_solvers_is_needed(client: Client, solvers: Any) -> None:
    with pytest.raises(ValueError, match="use a list such as"):
        client.compare("moons", solvers)
