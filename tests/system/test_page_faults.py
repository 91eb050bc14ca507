"""Former faults of the playground, each covered by a test in a real browser."""

import json
from typing import Any
from urllib.parse import urlencode

import pytest
from playwright.sync_api import Page, Request, expect

from tests.system.test_page import PAIR, RK4, bodies, drawn_again, settled, show

pytestmark = pytest.mark.system


def titles(page: Page) -> list[str]:
    return page.locator("#cards h2").all_inner_texts()


def background(page: Page, selector: str) -> str:
    return page.evaluate("s => getComputedStyle(document.querySelector(s)).backgroundColor", selector)


@pytest.mark.parametrize("width", [1280, 1440])
def test_the_chart_of_steps_follows_the_width_of_its_card(page: Page, service: str, width: int) -> None:
    page.set_viewport_size({"width": width, "height": 800})
    show(page, service, **RK4)
    fits = """() => { const box = document.getElementById('steps'), drawn = box.querySelector('svg.chart');
        return Math.abs(box.clientWidth - drawn.getBoundingClientRect().width) < 2 }"""
    for ticked in (True, False, True):
        drawn_again(page)
        page.set_checked("#compare", ticked)
        settled(page)
        page.wait_for_function(fits)
        assert page.evaluate("document.documentElement.scrollWidth") <= width


@pytest.mark.parametrize(
    ("view", "expected"),
    [
        ({"a.solver": "dopri5", "a.rtol": "1e-3", "a.atol": "1e-3"}, "dopri5@1e-3"),
        ({"a.solver": "dopri5", "a.rtol": "1e-3", "a.atol": "1e-6"}, "dopri5@1e-3/1e-6"),
        ({"a.solver": "dopri5", "a.rtol": "1e-3"}, "dopri5@1e-3/1e-5"),
        ({"a.solver": "dopri5", "a.atol": "1e-3"}, "dopri5@1e-5/1e-3"),
        ({"a.solver": "dopri5", "a.max_step": "0.05"}, "dopri5@1e-5+max_step=0.05"),
        ({"a.solver": "rk4", "a.steps": "10"}, "rk4-10"),
        ({"a.solver": "rk4", "a.steps": "10", "a.grid": "shift", "a.grid_value": "3"}, "rk4-10/shift(3)"),
        ({"a.solver": "ab2", "a.steps": "10", "a.start": "rk"}, "ab2-10+rk"),
        ({"a": "rk4-3/(0,0.2,0.6,1)"}, "rk4-3/(0,0.2,0.6,1)"),
    ],
)
def test_a_card_is_titled_by_all_settings_of_its_solver(
    page: Page, service: str, view: dict[str, str], expected: str
) -> None:
    show(page, service, **view)
    assert titles(page) == [expected]


def test_the_latency_bar_of_solver_b_has_its_colour(page: Page, service: str) -> None:
    show(page, service, **PAIR)
    assert background(page, ".summary.a .network_s") == background(page, ".a > .key")
    assert background(page, ".summary.b .network_s") == background(page, ".b > .key")


def test_a_number_and_enter_draw_once(page: Page, service: str) -> None:
    show(page, service, **RK4)
    sent = bodies(page)
    drawn_again(page)
    page.focus("#a-steps")
    page.keyboard.press("Control+A")
    page.keyboard.type("7")
    page.keyboard.press("Enter")
    settled(page)
    page.wait_for_selector("body[data-judged*='a.steps=7']")
    assert [body["steps"] for body in sent] == [7]


def test_a_number_and_a_press_of_draw_draw_once(page: Page, service: str) -> None:
    show(page, service, **RK4)
    sent = bodies(page)
    drawn_again(page)
    page.fill("#a-steps", "7")
    page.click("#draw", delay=300)  # leaving the field has drawn already
    page.wait_for_selector("body[data-judged*='a.steps=7']")
    assert [body["steps"] for body in sent] == [7]
    drawn_again(page)
    page.click("#draw")  # pressing it again is intended
    settled(page)
    assert [body["steps"] for body in sent] == [7, 7]


def test_a_broken_connection_is_no_fault_of_a_solver(page: Page, service: str) -> None:
    show(page, service, **PAIR)
    page.route("**/v1/sample/stream", lambda route: route.abort())
    page.click("#draw")
    page.wait_for_selector("#problem:not([hidden])")
    assert page.inner_text("#problem h2") == "The service cannot be reached"


def test_a_fault_of_one_setting_says_of_which(page: Page, service: str) -> None:
    page.goto("about:blank")
    page.goto(f"{service}/#{urlencode({'model': 'gaussian', **RK4, 'b.solver': 'rk4', 'b.steps': 'many'})}")
    page.wait_for_selector("#problem:not([hidden])")
    assert page.inner_text("#problem h2").endswith("(solver B)")
    assert titles(page) == ["rk4-4"]  # solver A's drawing stays, and no card is blank
    assert page.evaluate("[...document.querySelectorAll('[aria-invalid]')].map(e => e.id)") == ["b-steps"]


def test_snippets_do_not_ask_what_only_the_page_needs(page: Page, service: str) -> None:
    show(page, service, **RK4)
    body = json.loads(page.inner_text("#code").split("-d '")[1].rsplit("'", 1)[0])
    assert set(body) == {"model", "num_samples", "seed", "solver", "steps"}


def test_no_field_that_the_page_lacks_is_asked_for(page: Page, service: str) -> None:
    """The message for a deadline once named a field of the HTTP interface."""
    found: list[Any] = []

    def keep(request: Request) -> None:
        if request.url.endswith("/stream"):
            found.append(json.loads(request.post_data or ""))

    page.on("request", keep)
    show(page, service, **RK4)
    assert [body["on_timeout"] for body in found] == ["partial"]
    assert "timeout_s" not in found[0]


@pytest.mark.parametrize(
    "address",
    [
        "%%%=&&a.b.c=1&=&a.constructor=2&__proto__=3",
        "layout=weird&colour=rainbow&velocity=0&density=no&timeout=NaN&sample=2.5",
        "timeout=1e9&sample=-1&a.steps=3",
    ],
)
def test_what_an_address_says_in_vain_is_ignored(page: Page, service: str, address: str) -> None:
    page.emulate_media(reduced_motion="reduce")
    page.goto("about:blank")
    page.goto(f"{service}/#model=gaussian&num_samples=8&{address}")
    page.wait_for_selector("body[data-judged]")
    assert page.locator("#problem").is_hidden()
    assert page.input_value("#a-solver") == "dopri5"
    assert page.locator("#sample").is_hidden()
    for nonsense in ("weird", "rainbow", "constructor", "timeout", "sample=", "velocity"):
        assert nonsense not in page.url


def test_a_message_names_fields_as_the_page_does_and_opens_what_they_are_in(page: Page, service: str) -> None:
    page.goto("about:blank")
    view = {"model": "gaussian", "num_samples": 8, "a.solver": "rk4", "a.steps": 5, "a.max_nfe": 3}
    page.goto(f"{service}/#{urlencode(view)}")
    page.wait_for_selector("#problem:not([hidden])")
    assert "over Max NFE = 3" in page.inner_text("#problem")
    assert page.locator("#a-max_nfe[aria-invalid]").is_visible()
    page.goto("about:blank")
    page.goto(
        f"{service}/#{urlencode({'model': 'gaussian', 'a.solver': 'rk4', 'a.grid': 'times', 'a.grid_times': '0,x,1'})}"
    )
    page.wait_for_selector("#problem:not([hidden])")
    assert "save_at" not in page.inner_text("#problem")
    assert page.locator("#a-grid_times[aria-invalid]").is_visible()
    page.goto("about:blank")
    page.goto(f"{service}/#{urlencode({'model': 'gaussian', 'num_samples': 8, **RK4})}")
    settled(page)
    answer = {"title": "The deadline passed", "status": 504, "detail": "raise timeout_s or set on_timeout to 'partial'"}
    page.route("**/v1/sample/stream", lambda route: route.fulfill(status=504, json=answer))
    page.click("#draw")
    page.wait_for_selector("#problem:not([hidden])")
    assert "within the time limit" in page.inner_text("#problem")
    assert "on_timeout" not in page.inner_text("#problem")
    assert page.locator("text=Allow two minutes").is_visible()


@pytest.mark.parametrize(("width", "introduced"), [(1280, "yes"), (390, ""), (390, "yes")])
def test_no_button_moves_while_a_drawing_reports_progress(
    page: Page, service: str, width: int, introduced: str
) -> None:
    page.set_viewport_size({"width": width, "height": 844})
    page.goto(f"{service}/")
    page.evaluate("yes => localStorage[yes ? 'setItem' : 'removeItem']('pathline-introduced', 'yes')", introduced)
    show(page, service, **RK4)
    page.wait_for_selector("body[data-judged]")
    assert page.locator("#intro").is_hidden() == bool(introduced)
    before = page.locator("#new-seed").bounding_box(), page.locator("#results").bounding_box()
    page.route("**/v1/sample/stream", lambda route: None)  # no answer
    page.click("#draw")
    page.wait_for_selector("#cancel:not([hidden])")
    assert (page.locator("#new-seed").bounding_box(), page.locator("#results").bounding_box()) == before
    page.click("#cancel")


@pytest.mark.parametrize("width", [1440, 1280, 390])
@pytest.mark.parametrize(
    "view", [RK4, PAIR, {"a.solver": "dopri5", "a.rtol": "1e-3", "a.atol": "1e-3", "model": "moons"}]
)
def test_the_verdict_finds_its_room_kept(page: Page, service: str, width: int, view: dict[str, Any]) -> None:
    """The layout stays in place when the error, which is measured in the background, becomes known."""
    page.set_viewport_size({"width": width, "height": 844})
    page.route("**/v1/sample", lambda route: None)  # the reference waits until this route is removed
    show(page, service, **view)
    places = (
        "() => [...document.querySelectorAll('#results > section')].map(e => JSON.stringify(e.getBoundingClientRect()))"
    )
    before = page.evaluate(places)
    page.unroute("**/v1/sample")
    page.wait_for_selector("body[data-judged]")
    assert "of the spread" in page.inner_text("#verdict")
    assert page.evaluate(places) == before


def test_a_link_to_overlaid_points_keeps_the_room_of_one_figure(page: Page, service: str) -> None:
    page.set_viewport_size({"width": 1280, "height": 900})
    waiting: list[Any] = []
    page.goto(f"{service}/livez")
    page.evaluate("localStorage.setItem('pathline-introduced', '')")  # the introduction takes room, too
    page.route("**/v1/sample/stream", lambda route: waiting.append(route))  # until it is unrouted
    page.goto(f"{service}/#{urlencode({'model': 'gaussian', 'num_samples': 32, 'layout': 'over', **PAIR})}")
    page.wait_for_selector("#cancel:not([hidden])")
    room = page.locator("#cards").bounding_box()
    page.unroute("**/v1/sample/stream")
    settled(page)
    taken = page.locator("#cards").bounding_box()
    assert room is not None
    assert taken is not None
    assert room["height"] == pytest.approx(taken["height"], abs=30)
    summaries = [page.locator(f".summary.{side}").bounding_box() for side in "ab"]
    assert sum(box["width"] for box in summaries if box) > 0.9 * (taken["width"] - 60)  # both at full width


def test_impatience_does_no_harm(page: Page, service: str) -> None:
    show(page, service, **RK4)
    drawn_again(page)
    page.dblclick("#draw")
    page.dblclick("#new-seed")
    for _ in range(9):
        page.click("#compare")
    page.focus("#num_samples")
    for _ in range(9):
        page.keyboard.press("Enter")
    page.wait_for_selector("body[data-judged*='b.solver']")
    assert page.locator("#problem").is_hidden()
    both = expect(page.locator("#cards h2"))
    both.to_have_text(["rk4-4", "euler-10"], timeout=30_000)
    page.wait_for_selector("#cancel", state="hidden")  # one more drawing may be in progress, for the last press
    both.to_have_text(["rk4-4", "euler-10"], timeout=30_000)
