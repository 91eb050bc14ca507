"""Accessibility of the playground: keyboard, dark and light themes, narrow and wide screens, names of controls."""

import re
from typing import Any

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Page

pytestmark = pytest.mark.system
SIZES = [(1440, 900), (1280, 720), (820, 1180), (390, 844)]
VIEW = "#model=gaussian&num_samples=16&seed=1&a.solver=dopri5&a.rtol=1e-3&a.atol=1e-3&b.solver=ab2&b.steps=6"


def show(page: Page, service: str) -> None:
    page.goto("about:blank")
    page.goto(f"{service}/{VIEW}")
    page.wait_for_selector("body[data-drawn]")


def luminance(colour: str) -> float:
    channels = [int(part) / 255 for part in re.findall(r"\d+", colour)[:3]]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(first: str, second: str) -> float:
    """WCAG 2 contrast ratio."""
    low, high = sorted((luminance(first), luminance(second)))
    return (high + 0.05) / (low + 0.05)


COLOURS = """name => { const e = document.createElement('i'); e.style.color = `var(${name})`; document.body.append(e);
    const found = getComputedStyle(e).color; e.remove(); return found }"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_can_be_read(page: Page, service: str, scheme: Any) -> None:
    page.emulate_media(color_scheme=scheme)
    show(page, service)
    paint = {name: page.evaluate(COLOURS, f"--{name}") for name in ("bg", "card", "text", "quiet", "a", "b", "bad")}
    assert (luminance(paint["bg"]) < 0.2) == (scheme == "dark")
    for back in ("bg", "card"):
        for name in ("text", "quiet", "a", "b", "bad"):
            assert contrast(paint[name], paint[back]) >= 4.5, (name, back)


def test_the_theme_can_be_chosen_and_stays(page: Page, service: str) -> None:
    page.emulate_media(color_scheme="light")
    show(page, service)
    before = page.evaluate(COLOURS, "--bg")
    page.click("#theme")
    page.click("#theme")
    assert page.inner_text("#theme") == "Theme: dark"
    dark = page.evaluate(COLOURS, "--bg")
    assert dark != before
    show(page, service)
    assert page.evaluate(COLOURS, "--bg") == dark
    page.click("#theme")
    assert page.inner_text("#theme") == "Theme: auto"


@pytest.mark.parametrize("width", [320, 390, 768, 1280, 2000])
def test_nothing_sticks_out(page: Page, service: str, width: int) -> None:
    page.set_viewport_size({"width": width, "height": 800})
    show(page, service)
    assert page.evaluate("document.documentElement.scrollWidth") <= width


@pytest.mark.parametrize("size", [(640, 360), (844, 390)])  # 1280x720 at a zoom of 200 %, and a phone on its side
def test_nothing_lies_over_the_figure_in_a_low_window(page: Page, service: str, size: tuple[int, int]) -> None:
    page.set_viewport_size({"width": size[0], "height": size[1]})
    page.goto(f"{service}/")
    page.evaluate("localStorage.setItem('pathline-introduced', 'yes')")
    show(page, service)
    page.locator("#cards canvas").first.evaluate("canvas => canvas.scrollIntoView({block: 'center'})")
    over = """canvas => { const { left, width, top, height } = canvas.getBoundingClientRect();
        const heights = [0.05, 0.25, 0.5, 0.75, 0.95].map(share => top + share * height);
        return heights.filter(y => y > 0 && y < innerHeight).map(y => document.elementFromPoint(left + width / 2, y))
            .filter(e => e !== canvas).map(e => e.outerHTML) }"""
    assert page.locator("#cards canvas").first.evaluate(over) == []


@pytest.mark.parametrize("size", SIZES)
def test_what_matters_is_in_sight(page: Page, service: str, size: tuple[int, int]) -> None:
    """Compare, New seed, Draw, the error and the time slider are visible without scrolling and not covered."""
    width, height = size
    page.set_viewport_size({"width": width, "height": height})
    page.goto(f"{service}/")
    page.evaluate("localStorage.setItem('pathline-introduced', 'yes')")
    show(page, service)
    page.wait_for_selector("body[data-judged]")
    for selector in ("#compare", "#draw", "#new-seed", "#verdict strong", "#time"):
        box = page.locator(selector).bounding_box()
        assert box is not None
        assert 0 <= box["x"] <= width - box["width"], selector
        assert 0 <= box["y"] <= height - box["height"], selector
        page.click(selector, trial=True, force=selector.startswith("#verdict"))
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    canvas = page.locator("#cards canvas").first.bounding_box()
    stage = page.locator("#stage").bounding_box()
    assert canvas is not None
    assert stage is not None
    assert canvas["y"] + canvas["height"] <= stage["y"] + 40  # nearly all of the figure too


@pytest.mark.parametrize("size", SIZES)
def test_figures_fill_their_cards_and_nothing_lies_over_them_on_a_first_visit(
    page: Page, service: str, size: tuple[int, int]
) -> None:
    page.set_viewport_size({"width": size[0], "height": size[1]})
    page.goto(f"{service}/")
    page.evaluate("localStorage.removeItem('pathline-introduced')")
    show(page, service)
    page.wait_for_selector("body[data-judged]")
    assert page.locator("#intro").is_visible()
    for canvas in page.locator("#cards canvas").all():
        empty = "c => c.closest('article').getBoundingClientRect().bottom - c.getBoundingClientRect().bottom"
        assert canvas.evaluate(empty) < 40
    over = """() => [...document.querySelectorAll('#cards canvas')].flatMap(canvas => {
        const { left, width, top, height } = canvas.getBoundingClientRect();
        return [0.1, 0.3, 0.5, 0.7, 0.9].map(share => top + share * height).filter(y => y > 0 && y < innerHeight)
            .map(y => document.elementFromPoint(left + width / 2, y)).filter(e => e !== canvas)
            .map(e => e.outerHTML) })"""
    for _ in range(6):
        assert page.evaluate(over) == []
        page.evaluate("scrollBy(0, 150)")
    cut = "all => all.filter(e => e.scrollWidth > e.clientWidth).map(e => e.textContent)"
    assert page.locator(".readout dd").evaluate_all(cut) == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("size", SIZES)
def test_axe_finds_nothing(page: Page, service: str, size: tuple[int, int], scheme: Any) -> None:
    page.set_viewport_size({"width": size[0], "height": size[1]})
    page.emulate_media(color_scheme=scheme, reduced_motion="reduce")
    show(page, service)
    page.wait_for_selector("body[data-judged]")
    page.click("text=Worst sample here")
    page.wait_for_selector("body[data-chosen]")
    page.evaluate("document.querySelectorAll('details').forEach(details => details.open = true)")
    page.click("[data-what=seed]")
    found = Axe().run(page)
    assert found.response["violations"] == []
    assert page.evaluate("document.documentElement.scrollWidth") <= size[0]


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing_in_an_error_and_an_empty_page(page: Page, service: str, scheme: Any) -> None:
    page.emulate_media(color_scheme=scheme)
    page.goto(f"{service}/#model=nobody&a=rk4-5")
    page.wait_for_selector("#problem:not([hidden])")
    assert Axe().run(page).response["violations"] == []
    page.route("**/v1/models", lambda route: route.fulfill(json={"models": []}))
    page.reload()
    page.wait_for_selector("body[data-state=empty]")
    assert Axe().run(page).response["violations"] == []


def test_by_keyboard_alone(page: Page, service: str) -> None:
    show(page, service)
    page.evaluate("document.activeElement.blur()")
    seen: list[str] = []
    for _ in range(90):
        page.keyboard.press("Tab")
        seen.append(page.evaluate("document.activeElement.id"))
    wanted = [
        "theme",
        "model",
        "num_samples",
        "seed",
        "a-solver",
        "a-tolerance",
        "b-solver",
        "b-steps",
        "draw",
        "new-seed",
    ]
    wanted += ["compare", "side", "over", "colour", "velocity", "density", "play", "time", "find"]
    wanted += ["tab-curl", "copy-code", "copy-link", "code"]
    assert [name for name in seen if name in wanted][: len(wanted)] == wanted
    outline = "getComputedStyle(document.activeElement).outlineStyle"
    page.focus("#draw")
    page.keyboard.press("Tab")
    assert page.evaluate(outline) == "solid"
    page.evaluate("delete document.body.dataset.drawn")
    page.focus("#num_samples")
    page.keyboard.press("Control+A")
    page.keyboard.type("17")
    page.keyboard.press("Enter")
    page.wait_for_selector("body[data-drawn*='num_samples=17']")


def test_everything_has_a_name(page: Page, service: str) -> None:
    show(page, service)
    nameless = page.evaluate(
        """() => [...document.querySelectorAll('input, select, button, canvas, [role=img]')].filter(e => !(
            e.labels?.length || e.ariaLabel || e.getAttribute('aria-labelledby') || e.textContent.trim()
        )).map(e => e.outerHTML)"""
    )
    assert nameless == []
    assert page.get_by_role("alert").count() == 0  # until there is something to announce
    assert page.get_by_role("tab", selected=True).inner_text() == "curl"


def test_less_motion_for_those_who_ask_for_it(page: Page, service: str) -> None:
    page.emulate_media(reduced_motion="reduce")
    show(page, service)
    page.click("#play")
    assert page.inner_text("#time-value") == "1.00"
    assert page.get_attribute("#play", "aria-label") == "Play"


@pytest.mark.parametrize("size", [(1440, 900), (1280, 720), (390, 844)])
@pytest.mark.parametrize(
    ("address", "introduced"), [("", True), ("", False), (VIEW, True), (VIEW, False), (f"{VIEW}&layout=over", True)]
)
def test_the_layout_stays_where_it_was_first_painted(
    page: Page, service: str, size: tuple[int, int], address: str, introduced: bool
) -> None:
    page.set_viewport_size({"width": size[0], "height": size[1]})
    change = "setItem('pathline-introduced', 'yes')" if introduced else "removeItem('pathline-introduced')"
    page.add_init_script(f"""window.shift = 0; new PerformanceObserver(list => list.getEntries().forEach(
        e => {{ if (!e.hadRecentInput) window.shift += e.value }})).observe({{type: 'layout-shift', buffered: true}});
        if (location.protocol == 'http:') localStorage.{change}""")
    page.goto(f"{service}/{address}")
    page.wait_for_selector("body[data-judged]")
    assert page.locator("#intro").is_visible() != introduced
    assert page.evaluate("window.shift") < 0.1  # "good" by Core Web Vitals
