"""The playground while samples arrive, when a drawing is cancelled or late, and when the service stops and returns."""

import json
from typing import Any
from urllib.parse import urlencode

import pytest
from playwright.sync_api import Page, Route

from tests.system.test_page import PAIR, RK4, SEED, ask, bodies, drawn_again, hold, picture, settled, show

pytestmark = pytest.mark.system
TIGHT = {"a.solver": "dopri5", "a.rtol": "1e-7", "a.atol": "1e-7"}
MODELS = "**/v1/models"


def text(page: Page, selector: str) -> str:
    return page.locator(selector).inner_text()


def test_samples_arrive_on_their_way_from_noise_to_data(page: Page, service: str) -> None:
    held = hold(page, after=10)
    page.emulate_media(reduced_motion="no-preference")
    page.goto("about:blank")
    page.goto(f"{service}/#{urlencode({'model': 'moons', 'num_samples': 64, 'seed': 1, **TIGHT})}")
    held()
    between = "() => { const t = Number(document.getElementById('time-value').textContent); return 0 < t && t < 1 }"
    page.wait_for_function(between)  # the points move towards the received states, and the slider with them
    on_their_way = picture(page)
    page.evaluate("window.release()")
    settled(page)
    assert text(page, "#time-value") == "1.00"
    assert picture(page) != on_their_way


def test_a_large_drawing_comes_in_pages_and_is_the_same_as_in_one(page: Page, service: str) -> None:
    sent = bodies(page)
    show(page, service, **RK4, num_samples=2500)
    assert [(body.get("first_index", 0), body["num_samples"]) for body in sent] == [
        (0, 1000),
        (1000, 1000),
        (2000, 500),
    ]
    answer = ask(service, num_samples=2500, solver="rk4", steps=4)
    with page.expect_download() as download:
        page.click("#download summary")
        page.click("[data-download=csv]")
    rows = download.value.path().read_text().split()[1:]
    assert [[float(x) for x in row.split(",")] for row in rows] == answer["samples"]
    assert text(page, "#cards dd >> nth=0") == str(answer["nfe"])


def test_shared_steps_are_never_cut_into_pages(page: Page, service: str) -> None:
    sent = bodies(page)
    show(page, service, **{"a.solver": "dopri5", "a.rtol": "1e-3", "a.error_control": "batch"}, num_samples=1500)
    assert [body["num_samples"] for body in sent] == [1500]


def test_a_drawing_says_how_far_it_is_and_can_be_cancelled(page: Page, service: str) -> None:
    page.emulate_media(reduced_motion="reduce")
    held = hold(page, after=41 + 5)  # the first of five pages, and some of the second
    page.goto("about:blank")
    page.goto(f"{service}/#{urlencode({'model': 'moons', 'num_samples': 5000, 'seed': 1, **TIGHT})}")
    held()
    page.wait_for_function("() => /^2\\d %/.test(document.getElementById('busy').textContent)")
    assert page.locator("#share").is_visible()
    page.wait_for_function(
        "() => document.querySelector('#cards').textContent.includes('1,000 of 5,000 samples so far')"
    )
    page.wait_for_timeout(1200)  # a rate is shown from the first second on
    page.evaluate("release(41)")
    held()
    page.wait_for_function("() => /^4\\d %, about \\d+ s left/.test(document.getElementById('busy').textContent)")
    page.click("#cancel")
    settled(page)
    assert "Cancelled" in text(page, "#busy")
    assert "2,000 of 5,000 samples were drawn" in text(page, "#cards")
    assert page.locator("#cancel").is_hidden()
    assert page.locator("#draw").is_visible()
    page.evaluate("release()")
    drawn_again(page)
    page.fill("#num_samples", "8")
    page.press("#num_samples", "Enter")
    settled(page)
    assert page.locator("#busy").inner_text() == ""


def test_what_arrived_before_a_deadline_is_kept_and_two_minutes_are_offered(page: Page, service: str) -> None:
    limits: list[Any] = []

    def hurry(route: Route) -> None:
        body = json.loads(route.request.post_data or "")
        limits.append(body.get("timeout_s"))
        later = "first_index" in body  # the first page has enough time; the second has less than it can need
        route.continue_(post_data=json.dumps({**({"timeout_s": 0.001} if later else {}), **body}))

    page.route("**/v1/sample/stream", hurry)
    page.emulate_media(reduced_motion="reduce")
    page.goto("about:blank")
    page.goto(f"{service}/#{urlencode({'model': 'moons', 'num_samples': 5000, 'seed': 1, **TIGHT})}")
    settled(page)
    assert text(page, "#problem h2") == "The time limit was reached"
    assert "1,000 of 5,000 samples of dopri5@1e-7 were finished in time" in text(page, "#problem")
    assert page.locator("#cards canvas").count() == 1
    drawn_again(page)
    held = hold(page, after=41 + 5)
    page.click("text=Allow two minutes")
    held()
    page.wait_for_selector("#cancel:not([hidden])")
    page.wait_for_function("() => document.getElementById('share').value > 0")
    page.click("#cancel")
    settled(page)
    assert limits == [None, None, 120, 120]


def test_a_service_that_is_down_is_waited_for(page: Page, service: str) -> None:
    page.route(MODELS, lambda route: route.abort())
    page.goto(f"{service}/#{urlencode({'model': 'gaussian', 'num_samples': 8, **RK4})}")
    page.wait_for_selector("body[data-state=down]")
    assert text(page, "#state h2") == "No connection to the service"
    assert page.locator("#figures").is_hidden()
    page.unroute(MODELS)
    settled(page)
    assert page.locator("#state").is_hidden()
    assert page.locator("#figures").is_visible()


def test_a_service_without_models_says_how_to_get_one(page: Page, service: str) -> None:
    page.route(MODELS, lambda route: route.fulfill(json={"models": [], "passed_over": [], "more_passed_over": 0}))
    page.goto(f"{service}/")
    page.wait_for_selector("body[data-state=empty]")
    assert "make models" in text(page, "#state")
    assert page.locator("#problem").is_hidden()
    page.unroute(MODELS)
    page.click("text=Try now")
    settled(page)


def test_a_service_that_starts_names_what_it_waits_for(page: Page, service: str) -> None:
    line = {"name": "moons", "status": "loading", "version": None, "dtype": None, "data_shape": None}
    page.route(MODELS, lambda route: route.fulfill(json={"models": [line]}))
    page.goto(f"{service}/")
    page.wait_for_selector("body[data-state=starting]")
    assert "Still to load: moons" in text(page, "#state")
    page.unroute(MODELS)
    settled(page)


def test_models_are_looked_for_when_somebody_comes_back(page: Page, service: str) -> None:
    show(page, service, **RK4)

    def more(route: Route) -> None:
        found = route.fetch().json()
        found["models"].append({**found["models"][-1], "name": "spiral"})
        route.fulfill(json=found)

    page.route(MODELS, more)
    page.evaluate("dispatchEvent(new Event('focus'))")
    page.wait_for_selector("#model option[value=spiral]", state="attached")
    assert page.input_value("#model") == "gaussian"
    page.wait_for_function("() => document.getElementById('service').textContent.includes('6 models')")


def test_a_connection_that_breaks_on_the_way_keeps_the_old_figure(page: Page, service: str) -> None:
    show(page, service, **PAIR)
    before = picture(page)
    page.route(
        "**/v1/sample/stream", lambda route: route.fulfill(content_type="text/event-stream", body=": nothing\n\n")
    )
    page.fill("#seed", str(SEED - 1))
    page.press("#seed", "Enter")
    page.wait_for_selector("#problem:not([hidden])")
    assert picture(page) == before
    assert page.locator("#draw").is_visible()


def test_a_service_that_went_away_is_noticed_and_so_is_its_return(page: Page, service: str) -> None:
    show(page, service, **RK4)
    page.wait_for_selector("body[data-judged]")
    for address in ("**/v1/**", "**/livez"):
        page.route(address, lambda route: route.abort())
    page.click("#new-seed")
    page.wait_for_selector("#problem:not([hidden])")
    assert text(page, "#service") == "not reachable"
    page.click("#find")
    page.wait_for_function("() => document.getElementById('finder-busy').textContent.includes('cannot be reached')")
    for address in ("**/v1/**", "**/livez"):
        page.unroute(address)
    page.wait_for_selector("text=The service is back")
    assert text(page, "#service").startswith("ready on cpu")
    drawn_again(page)
    page.click("text=Draw again")
    settled(page)
    assert page.locator("#problem").is_hidden()


def test_models_that_are_being_loaded_appear_without_a_reload(page: Page, service: str) -> None:
    def some(route: Route) -> None:
        found = route.fetch().json()
        for model in found["models"]:
            if model["name"] == "moons":
                model["status"] = "loading"
        route.fulfill(json=found)

    page.route(MODELS, some)
    show(page, service, **RK4)
    page.wait_for_function("() => document.getElementById('service').textContent.startsWith('4 of 5 models loaded')")
    assert "moons (loading)" in page.locator("#model option").all_inner_texts()
    page.unroute(MODELS)
    page.wait_for_function("() => document.getElementById('service').textContent.startsWith('ready on cpu, 5 models')")
    assert "moons" in page.locator("#model option").all_inner_texts()
