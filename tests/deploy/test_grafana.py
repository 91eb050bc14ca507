"""The committed dashboard is the generated one, uses metrics that exist, and alerts have runbooks."""

import itertools
import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from deploy.grafana import generate
from deploy.grafana.panels import LABELS, ROWS, VARIABLES, expressions, resolved
from service.metrics import METRICS, Metrics

DEPLOY = Path(__file__).parents[2] / "deploy"


def known_metrics() -> set[str]:
    names: set[str] = set()
    for family in Metrics().registry.collect():
        tails = {"counter": ("_total",), "histogram": ("_bucket", "_sum", "_count"), "gauge": ("",)}[family.type]
        names |= {family.name + tail for tail in tails}
    return names


def rules() -> list[dict[str, Any]]:
    groups = yaml.safe_load((DEPLOY / "prometheus" / "rules.yml").read_text())["groups"]
    return [rule for group in groups for rule in group["rules"]]


@pytest.mark.parametrize("rule", rules(), ids=lambda rule: rule["alert"])
def test_every_alert_has_a_runbook(rule: dict[str, Any]) -> None:
    base, _, place = rule["annotations"]["runbook_url"].partition("}}")
    assert base == "{{ $externalLabels.runbooks "  # the URL of the repository, with a trailing slash
    path, _, anchor = place.partition("#")
    headings = re.findall(r"^#+ (.*)$", (DEPLOY.parent / path).read_text(), re.MULTILINE)
    assert rule["alert"] in headings
    assert anchor == rule["alert"].lower()


def test_the_committed_dashboard_is_the_generated_one() -> None:
    assert generate.PATH.read_text() == generate.make(), "run: python -m deploy.grafana.generate"


@pytest.mark.parametrize("query", [*expressions(), *(rule["expr"] for rule in rules())])
def test_only_metrics_that_the_service_has(query: str) -> None:
    assert set(re.findall(r"\b(?:pathline|process)_\w+", query)) <= known_metrics()


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


def test_metrics_are_filtered_by_every_variable_that_is_a_label_of_theirs() -> None:
    for name, metric in METRICS.items():
        labels, full = {"model", "solver"} & set(metric.labels), f"pathline_{name}"
        assert set(LABELS.get(full, ())) == labels or full not in " ".join(expressions()), name


@pytest.mark.parametrize("query", expressions())
def test_every_selector_is_filtered_by_instance(query: str) -> None:
    selectors = re.findall(r"\b(?:pathline|process)_\w+(\{[^}]*\})?", query)
    assert all('instance=~"$instance"' in selector for selector in selectors)
    assert "$" not in resolved(query)


def test_variables_are_on_the_dashboard() -> None:
    listed = json.loads(generate.PATH.read_text())["templating"]["list"]
    assert {each["name"]: each["query"] for each in listed} == VARIABLES
    assert all(each["multi"] and each["includeAll"] for each in listed)
    assert [each.get("allValue") for each in listed] == [None, ".*", ".*"]
    assert all(set(re.findall(r"pathline_\w+", query)) <= known_metrics() for query in VARIABLES.values())


def test_the_dashboard_asks_the_datasource_that_is_provisioned() -> None:
    (source,) = yaml.safe_load((DEPLOY / "grafana/provisioning/datasources/prometheus.yml").read_text())["datasources"]
    panels = json.loads(generate.PATH.read_text())["panels"]
    assert {panel["datasource"]["uid"] for panel in panels if panel["type"] != "row"} == {source["uid"]}
