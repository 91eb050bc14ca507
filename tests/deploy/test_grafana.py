"""The committed dashboard is what the generator makes, and asks only for metrics that there are."""

import itertools
import json
import re
from pathlib import Path

import pytest
import yaml

from deploy.grafana import generate
from deploy.grafana.panels import ROWS, expressions
from service.metrics import Metrics

DEPLOY = Path(__file__).parents[2] / "deploy"


def known_metrics() -> set[str]:
    names: set[str] = set()
    for family in Metrics().registry.collect():
        tails = {"counter": ("_total",), "histogram": ("_bucket", "_sum", "_count"), "gauge": ("",)}[family.type]
        names |= {family.name + tail for tail in tails}
    return names


def rule_expressions() -> list[str]:
    groups = yaml.safe_load((DEPLOY / "prometheus" / "rules.yml").read_text())["groups"]
    return [rule["expr"] for group in groups for rule in group["rules"]]


def test_the_committed_dashboard_is_the_generated_one() -> None:
    assert generate.PATH.read_text() == generate.make(), "run: python -m deploy.grafana.generate"


@pytest.mark.parametrize("query", [*expressions(), *rule_expressions()])
def test_only_metrics_that_the_service_has(query: str) -> None:
    assert set(re.findall(r"pathline_\w+", query)) <= known_metrics()


def test_panels_have_ids_and_places_of_their_own() -> None:
    panels = json.loads(generate.PATH.read_text())["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    places = [panel["gridPos"] for panel in panels]
    for p in places:
        assert 0 <= p["x"] < p["x"] + p["w"] <= 24
    for p, q in itertools.combinations(places, 2):
        apart_x = p["x"] + p["w"] <= q["x"] or q["x"] + q["w"] <= p["x"]
        apart_y = p["y"] + p["h"] <= q["y"] or q["y"] + q["h"] <= p["y"]
        assert apart_x or apart_y, (p, q)
    assert all(sum(panel.width for panel in row) == 24 for row in ROWS.values())


def test_the_dashboard_asks_the_datasource_that_is_provisioned() -> None:
    (source,) = yaml.safe_load((DEPLOY / "grafana/provisioning/datasources/prometheus.yml").read_text())["datasources"]
    panels = json.loads(generate.PATH.read_text())["panels"]
    assert {panel["datasource"]["uid"] for panel in panels if panel["type"] != "row"} == {source["uid"]}
