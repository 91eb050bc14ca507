"""The way into the page: columns by name, the model card, real data, defaults that are said, and nothing in the way."""

import json
import shlex
from pathlib import Path

import httpx
import numpy as np
import pytest
from pathline import cli
from playwright.sync_api import Page

from tests.system.conftest import COLUMNS
from tests.system.test_page import PAIR, RK4, SEED, ask, bodies, drawn_again, picture, settled, show

pytestmark = pytest.mark.system
EULER = {"a.solver": "euler", "a.steps": 4}
PLACES = "document.querySelector('#cards canvas').places[0]"


def test_columns_are_chosen_by_name_and_have_scales_of_their_own(page: Page, service: str) -> None:
    show(page, service, model="houses", **EULER)
    names = [name for name, _, _ in COLUMNS]
    assert page.locator("#axis-x option").all_inner_texts() == names
    samples = np.array(ask(service, model="houses", solver="euler", steps=4)["samples"])
    for y in (1, 2):
        page.select_option("#axis-y", str(y))
        places = np.array(page.evaluate(PLACES))
        assert np.ptp(places, axis=0).min() > 100, "both columns fill the figure"
        assert np.corrcoef(places[:, 1], samples[:, y])[0, 1] == pytest.approx(-1)
    assert "y=2" in page.url
    page.reload()
    page.wait_for_selector("body[data-drawn]")
    assert page.input_value("#axis-y") == "2"


def test_the_model_card_and_real_data(page: Page, service: str) -> None:
    show(page, service, model="houses", **EULER)
    page.wait_for_selector("#facts-list li")
    card = page.inner_text("#facts")
    assert "houses.csv; 1,350 samples to train on; 150 held out" in card
    assert "rooms (whole, 0 to 8), area m2 (0 to 200), price (0 to 3000000)" in card
    assert "May 4, 2026, 1,500 steps in 41 s, 1,000 parameters" in card
    assert page.locator("#facts .warning").inner_text() == "column price differs from the data"
    beneath = picture(page)
    page.uncheck("#real")
    assert picture(page) != beneath
    assert "real=no" in page.url
    page.check("#real")
    assert picture(page) == beneath


def test_the_default_solver_is_the_services_or_the_one_that_was_measured(page: Page, service: str) -> None:
    sent = bodies(page)
    show(page, service)
    assert (sent[-1]["solver"], "rtol" in sent[-1]) == ("dopri5", False)
    assert page.inner_text("#cards h2") == "dopri5@1e-5"
    assert page.inner_text("#a-why") == "The default of the service."
    known = httpx.get(f"{service}/v1/models/gaussian").json()
    known["served"][0]["frontier"] = True
    page.route("**/v1/models/gaussian", lambda route: route.fulfill(json=known))
    errors = {"nfe": 4.0, "p50": 0.001, "p95": 0.004, "p95_low": 0.003, "worst": 0.02, "failed": 0, "best": True}
    points = [
        {"solver": f"rk4-{steps}", "nfe_most": 4 * steps, "p95_high": error, **errors}
        for steps, error in ((1, 0.2), (3, 0.009), (5, 0.001))
    ]
    frontier = {"conditions": "", "curves": [{"guidance": None, "samples": 512, "points": points}]}
    page.route("**/v1/models/gaussian/frontier", lambda route: route.fulfill(json=frontier))
    show(page, service)
    assert page.inner_text("#cards h2") == "rk4-3"
    assert page.inner_text("#a-why").startswith("The cheapest that keeps 1 % of the spread")
    assert "12 evaluations (rk4-3) keep 1 %" in page.inner_text("#facts")
    page.fill("#a-steps", "7")
    page.press("#a-steps", "Enter")
    page.wait_for_selector("body[data-drawn*='a.steps=7']")
    assert page.inner_text("#a-why") == ""


def test_an_error_is_gone_when_its_field_changes(page: Page, service: str) -> None:
    show(page, service, **RK4)
    page.fill("#num_samples", "0")
    page.press("#num_samples", "Enter")
    page.wait_for_selector("#problem:not([hidden])")
    page.locator("#num_samples").press_sequentially("1")
    assert page.locator("#problem").is_hidden()
    assert page.get_attribute("#num_samples", "aria-invalid") is None


@pytest.mark.parametrize("solver", ["a.solver=rk4&a.steps=4", "a=rk4-4"], ids=["fields", "text"])
def test_a_drawing_of_minutes_asks_first(page: Page, service: str, solver: str) -> None:
    sent = bodies(page)
    slow = {"model": "gaussian", "operation": "sample", "tick_s": [{"rows": 100, "seconds": 1.0}]}
    page.route("**/v1/load", lambda route: route.fulfill(json={"models": [slow]}))
    page.goto(f"{service}/#model=gaussian&num_samples=900&seed=1&{solver}")
    page.wait_for_selector("#problem:not([hidden])")
    assert "About 3 minutes" in page.inner_text("#problem")
    assert sent == []
    page.click("#problem button")
    settled(page)
    assert len(sent) == 1
    assert page.locator("#problem").is_hidden()


def test_back_returns_to_the_view_before(page: Page, service: str) -> None:
    show(page, service, **RK4)
    page.fill("#a-steps", "6")
    page.press("#a-steps", "Enter")
    page.wait_for_selector("body[data-drawn*='a.steps=6']")
    page.go_back()
    page.wait_for_selector("body[data-drawn*='a.steps=4']")
    assert page.input_value("#a-steps") == "4"


def test_one_field_holds_the_tolerances(page: Page, service: str) -> None:
    show(page, service, **PAIR)
    assert page.input_value("#a-tolerance") == "1e-4"
    sent = bodies(page)
    for text, rtol, atol in (("1e-3/1e-6", 1e-3, 1e-6), ("1e-5", 1e-5, 1e-5)):
        drawn_again(page)
        page.fill("#a-tolerance", text)
        page.press("#a-tolerance", "Enter")
        settled(page)
        assert (sent[-2]["rtol"], sent[-2]["atol"]) == (rtol, atol)


def test_the_command_line_gives_the_samples_that_are_shown(page: Page, service: str, tmp_path: Path) -> None:
    show(page, service, **{**RK4, "a.grid": "shift", "a.grid_value": 3})
    page.click("#tab-shell")
    program, *words = shlex.split(page.inner_text("#code"))
    assert program == "pathline"
    assert cli.main([*words, "-o", str(tmp_path / "out.json")]) == 0
    expected = ask(service, solver="rk4-4/shift(3)")
    drawn = json.loads((tmp_path / "out.json").read_text())
    assert (drawn["samples"], drawn["seed"]) == (expected["samples"], SEED)


def test_both_solvers_settings_are_in_sight(page: Page, service: str) -> None:
    page.set_viewport_size({"width": 1280, "height": 800})
    show(page, service, **PAIR)
    assert page.evaluate("(e => e.scrollHeight - e.clientHeight)(document.getElementById('form'))") <= 0
    actions = page.locator(".actions").bounding_box()
    assert actions is not None
    for side in ("a", "b"):
        box = page.locator(f"#{side}").bounding_box()
        assert box is not None
        assert box["y"] + box["height"] <= actions["y"]
    assert page.evaluate("document.querySelector('#results > section:last-of-type').id") == "trace"
