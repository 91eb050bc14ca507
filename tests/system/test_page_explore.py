"""The playground's tools: verdict, finder, single samples, field and density, downloads."""

import contextlib
import io
import json
import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from playwright.sync_api import Page

from models.checkpoint.card import read_card
from selection.frontier import FRONTIER_FILE, Curve, StoredFrontier
from tests.selection.support import point
from tests.system.test_page import PAIR, RK4, ask, bodies, colours, drawn_again, picture, settled, show

pytestmark = pytest.mark.system
EXACT: dict[str, Any] = {"solver": "dopri5", "rtol": 1e-14, "atol": 1e-14}  # gaussian is a float64 model


def judged(page: Page) -> None:
    page.wait_for_selector("body[data-judged]")


def errors(service: str, **solver: Any) -> np.ndarray:
    """Return the distance of each sample's end from the reference, as a share of the reference's spread."""
    exact, found = (np.array(ask(service, **options)["samples"]) for options in (EXACT, solver))
    spread = np.sqrt(((exact - exact.mean(0)) ** 2).sum(1).mean())
    return np.linalg.norm(found - exact, axis=1) / spread


def module(page: Page, script: str, argument: Any = None) -> Any:
    """Evaluate a function of modules of the page; `load(name)` imports one."""
    load = "name => import(`/static/${name}.js`)"
    return page.evaluate(f"async (argument) => await ({script})({load}, argument)", argument)


def test_the_verdict_measures_against_a_reference_at_the_floor(page: Page, service: str) -> None:
    show(page, service, **PAIR)
    judged(page)
    coarse, fine = errors(service, solver="euler", steps=5), errors(service, rtol=1e-4, atol=1e-4)
    message = page.inner_text("#verdict")
    shares = [float(share) for share in re.findall(r"([\d.e-]+) %", message) if share != "95"]
    assert shares == pytest.approx([100 * np.quantile(each, 0.95) for each in (coarse, fine)], rel=0.25)
    page.click("text=Worst sample here")
    page.wait_for_selector("body[data-chosen]")
    assert page.input_value("#sample-index") == str(int(coarse.argmax()))


def test_one_solver_alone_has_a_verdict_too(page: Page, service: str) -> None:
    show(page, service, **RK4)
    judged(page)
    words = r"rk4-4: 95 % of these samples end within [\d.]+ % of the spread.* from the exact ends of their paths"
    assert re.match(words + r" \(dopri5@1e-14", page.inner_text("#verdict"))
    assert page.locator(".readout").nth(2).inner_text().startswith("Error")
    show(page, service, **RK4, num_samples=1)  # the spread is measured on more samples than are drawn
    judged(page)
    assert page.inner_text("#verdict").startswith("rk4-4: ")
    show(page, service, **{"a.solver": "euler", "a.steps": 1})
    judged(page)
    assert "with 1 evaluation. " in page.inner_text("#verdict")


def test_a_stochastic_solver_has_no_error_and_the_other_has_its_own(page: Page, service: str) -> None:
    noise = "sde-8 has noise of its own: its paths have no exact ends, and so no error. Show paths from one noise"
    show(page, service, **{"a.solver": "sde", "a.steps": 8})
    judged(page)
    assert page.inner_text("#verdict") == noise
    show(page, service, **RK4, **{"b.solver": "sde", "b.steps": 8})
    judged(page)
    assert page.inner_text("#verdict").startswith("rk4-4: 95 % of these samples end within ")
    assert noise in page.inner_text("#verdict")


def test_paths_of_a_stochastic_solver_from_one_noise(page: Page, service: str) -> None:
    """They begin at one point and end apart; the first is that of the sample itself, to the bit."""
    show(page, service, **{"a.solver": "sde", "a.steps": 8, "f.noise_scale": 0.5}, num_samples=12)
    judged(page)
    before = picture(page)
    with page.expect_response(lambda response: "x0" in (response.request.post_data or "")) as waiting:
        page.click("text=Show paths from one noise")
    page.wait_for_selector("body[data-chosen='0']")
    fan = waiting.value.json()["saved"]["states"]
    own = ask(service, solver="sde-8", num_samples=12, noise_scale=0.5, save_at=[0, 1])
    assert [fan[0][0], fan[0][-1]] == own["saved"]["states"][0]
    assert {tuple(path[0]) for path in fan} == {tuple(fan[0][0])}
    assert len({tuple(path[-1]) for path in fan}) == len(fan) == 24
    away = sum(math.dist(path[-1], fan[0][-1]) for path in fan[1:]) / 23
    assert page.inner_text("#sample-body p") == (
        "Thin lines: 23 paths of sde-8 from the same starting noise, with other noise on the way. "
        f"They end {away:#.3g} from this one, on average."
    )
    assert picture(page) != before


def test_the_reference_of_a_float32_model_is_at_the_floor_of_float32(page: Page, service: str) -> None:
    show(page, service, **RK4, model="moons")
    judged(page)
    assert "exact ends of their paths (dopri5@1e-07" in page.inner_text("#verdict")


def test_equal_costs_and_equal_ends_are_said(page: Page, service: str) -> None:
    show(page, service, a="rk4-4", b="midpoint-8")
    judged(page)
    assert page.inner_text("#verdict strong").startswith("rk4-4: the same 16 evaluations, ")
    show(page, service, a="rk4-4", b="rk4-4")
    judged(page)
    assert page.inner_text("#distance") == "All samples end at the same points with both solvers."


def test_an_error_that_cannot_be_known_is_said_to_be_unknown(page: Page, service: str) -> None:
    show(page, service, a="rk4-4/(0,0.2,0.4,0.6,1)+max_nfe=16", model="shapes", condition="star", guidance="1e308")
    judged(page)
    assert page.inner_text("#verdict").startswith("The error is unknown: ")


def test_a_click_on_a_point_shows_its_path_and_its_steps_with_both_solvers(page: Page, service: str) -> None:
    show(page, service, **PAIR, num_samples=12)
    judged(page)
    before = picture(page)
    x, y = page.evaluate("document.querySelector('#cards canvas').places[0][7]")
    page.locator("#cards canvas").first.click(position={"x": x, "y": y})
    page.wait_for_selector("body[data-chosen='7']")
    alone = [
        ask(service, num_samples=1, first_index=7, trace="full", **s)
        for s in ({"rtol": 1e-4, "atol": 1e-4}, {"solver": "euler", "steps": 5})
    ]
    rows = [row.split("\t") for row in page.locator("#sample-body tbody tr").all_inner_texts()]
    for row, answer in zip(rows, alone, strict=True):
        accepted = answer["trace"]["accepted"]
        assert [int(cell) for cell in row[1:4]] == [sum(accepted), len(accepted) - sum(accepted), answer["nfe"]]
    log_prob = httpx.post(
        f"{service}/v1/models/gaussian/log_prob", json={"samples": alone[0]["samples"]}, timeout=60
    ).json()
    assert float(rows[0][-1]) == pytest.approx(log_prob["log_prob"][0], abs=0.006)
    assert picture(page) != before
    assert "sample=7" in page.url
    assert "sample 7 takes" in page.inner_text("#steps-text")
    page.fill("#sample-index", "3")
    page.press("#sample-index", "Enter")
    page.wait_for_selector("body[data-chosen='3']")
    page.click("#sample-close")
    assert page.locator("#sample").is_hidden()
    assert picture(page) == before


def test_a_path_ends_where_the_sample_does(page: Page, service: str) -> None:
    show(page, service, **RK4)
    script = """async (load, body) => { const [{Run}, {follow}] = [await load('drawing'), await load('sample')];
        return await follow(new Run('a', '', body, [2]), 5) }"""
    for solver in (
        {"rtol": 1e-4, "atol": 1e-4},
        {"solver": "rk4", "steps": 4},
        {"solver": "ab2", "steps": 6, "grid": {"name": "shift", "value": 3}},
    ):
        body = {"model": "gaussian", "num_samples": 9, "seed": 1, **solver}
        answer = httpx.post(f"{service}/v1/sample", json=body, timeout=60).json()
        found = module(page, script, body)
        assert found["path"][-1] == answer["samples"][5]
        assert len(found["steps"]) == sum(found["trace"]["accepted"])


def test_pictures_are_enlarged(page: Page, service: str) -> None:
    show(page, service, **{**PAIR, "model": "digits", "num_samples": 9})
    judged(page)
    box = page.locator("#cards canvas").first.bounding_box()
    assert box is not None
    page.locator("#cards canvas").first.click(position={"x": box["width"] / 2, "y": box["height"] / 2})
    page.wait_for_selector("body[data-chosen='4']")  # the middle one of three by three
    assert page.locator(".enlarged figcaption").count() == 3
    assert "difference" in page.locator(".enlarged figcaption").last.inner_text()


@pytest.mark.parametrize(
    "setting", [{"rtol": 1e-4, "atol": 1e-4}, {"solver": "bosh3", "rtol": 1e-3, "atol": 1e-3, "first_step": 0.01}]
)
def test_points_are_coloured_by_their_own_evaluations(page: Page, service: str, setting: dict[str, Any]) -> None:
    view = {f"a.{key}": value for key, value in {"solver": "dopri5", **setting}.items()}
    show(page, service, **view, model="moons", colour="nfe", seed=7)
    judged(page)
    body = {"model": "moons", "num_samples": 32, "seed": 7, **setting}
    answer = httpx.post(f"{service}/v1/sample", json=body, headers={"Accept": "application/x-npz"}, timeout=60)
    nfe = np.load(io.BytesIO(answer.content))["nfe"]
    counted = module(
        page,
        "async (load, [body, stages, response]) => (await load('sample')).evaluations({body, response}, stages)",
        [body, 4 if setting.get("solver") == "bosh3" else 7, ask(service, **body)],
    )
    assert counted == nfe.tolist()
    assert page.inner_text("#scale") == f"{nfe.min()}{nfe.max()}"
    by_solver = colours(page)
    page.select_option("#colour", "error")
    page.wait_for_function("() => document.getElementById('scale').textContent.includes('%')")
    assert colours(page) != by_solver


def test_the_field_and_the_density_are_those_of_the_model(page: Page, service: str) -> None:
    """The model `gaussian` at t has the density N(2 t, (1 - t)^2 + (t / 2)^2), and a velocity that follows from it."""
    show(page, service, **RK4)
    base = {"model": "gaussian"}
    field = module(
        page,
        "async (load, base) => (await load('field')).velocityField(base, {x: [-2, 4], y: [-2, 4]}, undefined, () => 0)",
        base,
    )
    points = np.array(field["points"])
    assert points.shape == (18 * 18, 2)
    for k in (0, 10, 20):
        t = k / 20
        scale = np.sqrt((1 - t) ** 2 + (0.5 * t) ** 2)
        slope = (-(1 - t) + 0.25 * t) / scale**2
        np.testing.assert_allclose(field["frames"][k], 2 + slope * (points - 2 * t), atol=0.06)
    mesh = module(page, "async (load, base) => (await load('field')).densityMesh(base)", base)
    cells = int(len(mesh["mass"]) ** 0.5)
    assert sum(mesh["mass"]) == pytest.approx(1, abs=2e-3)
    for k in (0, 10, 20):
        t = k / 20
        variance = (1 - t) ** 2 + (0.5 * t) ** 2
        corners = np.array(mesh["frames"][k]).reshape(cells + 1, cells + 1, 2)
        i = j = cells // 2 + 3
        cell = corners[[i, i + 1, i + 1, i], [j, j, j + 1, j + 1]]
        area = np.prod(cell.max(0) - cell.min(0))
        middle = cell.mean(0)
        exact = np.exp(-((middle - 2 * t) ** 2).sum() / (2 * variance)) / (2 * np.pi * variance)
        assert mesh["mass"][i * cells + j] / area == pytest.approx(exact, rel=0.02)


def test_field_and_density_move_along_t(page: Page, service: str) -> None:
    show(page, service, **RK4, velocity=1, density=1)
    page.wait_for_selector("body[data-behind='velocity density']")
    assert page.is_checked("#velocity")
    page.focus("#time")
    pictures = set()
    for key in ("Home", "End"):
        page.press("#time", key)
        pictures.add(picture(page))
        page.click("#density")
        pictures.add(picture(page))
        page.click("#density")
        page.wait_for_selector("body[data-behind='velocity density']")
    assert len(pictures) == 4
    drawn_again(page)
    page.select_option("#model", "digits")
    settled(page)
    assert page.locator("#velocity").is_hidden()


def measured(page: Page) -> None:
    """Let the service measure, and wait for the table."""
    page.click("#find")
    page.wait_for_selector("#find:has-text('Measure again')")


def test_the_finder_shows_what_the_service_measures_and_its_dots_load_solvers(page: Page, service: str) -> None:
    show(page, service, **RK4, num_samples=256)
    measured(page)
    rows = [row.split("\t") for row in page.locator("#candidates tbody tr").all_inner_texts()]
    assert any(row[0] == "rk4-4 yours" for row in rows)
    assert all(row[7].startswith("now, 512 samples") for row in rows)
    point = next(row for row in rows if row[0] == "rk4-4 yours")
    exact = np.array(ask(service, num_samples=512, **EXACT)["samples"])
    spread = np.sqrt(((exact - exact.mean(0)) ** 2).sum(1).mean())
    samples = np.array(ask(service, num_samples=512, solver="rk4", steps=4)["samples"])
    distances = np.linalg.norm(samples - exact, axis=1) / spread
    assert float(point[3].split()[0]) == pytest.approx(100 * np.quantile(distances, 0.95), rel=0.1)
    within = [row for row in rows if float(row[4].split()[0]) <= 1]
    cheapest = min(within, key=lambda row: int(row[1]))
    assert page.inner_text("#recommended").startswith(f"{cheapest[0].removesuffix(' yours')}: {cheapest[1]} evaluation")
    page.select_option("#budget-kind", "nfe")
    page.evaluate(
        "() => { const e = document.getElementById('budget'); e.value = 0; e.dispatchEvent(new Event('input')) }"
    )
    assert ": 1 evaluations" in page.inner_text("#recommended")
    drawn_again(page)
    page.locator("#candidates button").last.click()
    settled(page)
    assert page.locator("#cards h2").all_inner_texts() == [rows[-1][0].removesuffix(" yours")]


def stored(page: Page, service: str, *points: dict[str, Any]) -> None:
    """Show these points as the stored frontier of the model."""
    curve = {"guidance": None, "samples": 512, "points": [point | {"failed": 0, "best": True} for point in points]}
    known = httpx.get(f"{service}/v1/models/gaussian").json()
    known["served"][0]["frontier"] = True
    page.route("**/v1/models/gaussian", lambda route: route.fulfill(json=known))
    frontier = {"conditions": "", "curves": [curve]}
    page.route("**/v1/models/gaussian/frontier", lambda route: route.fulfill(json=frontier))


POINT = {"nfe": 16.0, "nfe_most": 16, "p50": 0.000056, "p95": 0.000099, "p95_low": 0.000073, "worst": 0.00084}


def test_within_a_number_of_evaluations_no_solver_with_error_control_is_recommended(page: Page, service: str) -> None:
    """Other samples may take more evaluations, even if all that were measured took as many."""
    tight = POINT | {"solver": "dopri5@1e-4", "p95_high": 0.0001}
    stored(page, service, tight, POINT | {"solver": "rk4-4", "p95_high": 0.0005})
    show(page, service, **RK4)
    page.select_option("#budget-kind", "nfe")
    assert page.inner_text("#recommended").startswith("rk4-4: 16 evaluations")


def test_long_names_and_numbers_leave_room_for_the_buttons(page: Page, service: str) -> None:
    stored(page, service, POINT | {"solver": "midpoint-8/shift(0.5)", "p95_high": 0.00048})
    for width in (390, 700, 960, 1280):
        page.set_viewport_size({"width": width, "height": 844})
        show(page, service, **RK4)
        page.locator("[aria-label='Use midpoint-8/shift(0.5)']").scroll_into_view_if_needed()
        assert page.locator("#candidates tbody th").inner_text() == "midpoint-8/shift(0.5)"
        assert page.locator(".scroll:has(#candidates)").evaluate("e => e.scrollWidth <= e.clientWidth"), width


def test_a_chosen_budget_stays_when_solvers_are_tried_again(page: Page, service: str) -> None:
    show(page, service, **RK4, num_samples=64)
    measured(page)
    page.evaluate(
        "() => { const e = document.getElementById('budget'); e.value = 0.9; e.dispatchEvent(new Event('input')) }"
    )
    chosen = page.inner_text("#budget-value")
    measured(page)
    assert page.inner_text("#budget-value") == chosen


def test_downloads(page: Page, service: str, tmp_path: Path) -> None:
    show(page, service, **RK4)
    judged(page)

    def get(kind: str) -> bytes:
        page.click("#download summary")
        with page.expect_download() as download:
            page.click(f"[data-download={kind}]")
        path = tmp_path / download.value.suggested_filename
        download.value.save_as(path)
        assert path.name.startswith("gaussian")
        return path.read_bytes()

    expected = ask(service, solver="rk4", steps=4)["samples"]
    assert np.load(io.BytesIO(get("npz")))["samples"].tolist() == expected
    assert get("png").startswith(b"\x89PNG")
    assert len(get("csv").decode().splitlines()) == 33
    notebook = json.loads(get("ipynb"))
    assert notebook["nbformat"] == 4
    names: dict[str, Any] = {}
    with contextlib.redirect_stdout(io.StringIO()):
        for cell in notebook["cells"]:
            if cell["cell_type"] == "code":
                exec("".join(cell["source"]), names)  # noqa: S102  (what the page tells people to run)
    assert names["result"].samples.tolist() == expected


def test_every_term_is_explained(page: Page, service: str) -> None:
    show(page, service, **PAIR)
    unknown = module(
        page,
        """async (load) => { const {explanation} = await load('terms');
        return [...document.querySelectorAll('[data-what]')].map(e => e.dataset.what).filter(t => !explanation(t)) }""",
    )
    assert unknown == []
    page.click("#a [data-what=tolerance]")
    assert page.locator("#term").is_visible()
    assert "1e-5/1e-6" in page.inner_text("#term")
    page.keyboard.press("Escape")
    assert page.locator("#term").is_hidden()
    assert page.inner_text("#a [data-for=cost]") == "About 6 evaluations for each attempt."
    assert page.inner_text("#b [data-for=cost]") == "1 evaluation for each step: 5 in all."


def test_the_introduction_has_three_steps_and_stays_away(page: Page, service: str) -> None:
    page.goto(f"{service}/")
    page.evaluate("localStorage.removeItem('pathline-introduced')")
    page.goto("about:blank")
    page.goto(f"{service}/#num_samples=8")
    for title in ("Noise flows to data", "A solver asks the network", "Error against cost"):
        assert title in page.inner_text("#intro .step:not([hidden]) h2")
        page.click("#intro .primary")
    assert page.locator("#intro").is_hidden()
    page.reload()
    settled(page)
    assert page.locator("#intro").is_hidden()
    page.click("#explain")
    assert "1/3" in page.inner_text("#intro .step:not([hidden]) h2")
    page.click("text=Skip >> nth=-1")
    assert page.locator("#intro").is_hidden()


def test_a_setting_survives_its_text(page: Page, service: str) -> None:
    """A link with a solver as text, or a dot of the finder, is sent as it is; the answer fills the fields."""
    sent = bodies(page)
    for text, fields in {
        "ab3-12/shift(3)+rk": {"solver": "ab3", "steps": 12, "grid": {"name": "shift", "value": 3}, "start": "rk"},
        "rk4-3/(0,0.2,0.6,1)": {"solver": "rk4", "grid": [0, 0.2, 0.6, 1]},
        "tsit5@1e-4/1e-6+batch+max_step=0.05": {
            "solver": "tsit5",
            "rtol": 1e-4,
            "atol": 1e-6,
            "error_control": "batch",
            "max_step": 0.05,
        },
    }.items():
        show(page, service, a=text)
        assert sent[-1]["solver"] == text
        assert page.locator("#cards h2").all_inner_texts() == [text]
        drawn_again(page)
        page.click("#new-seed")
        settled(page)
        assert {key: sent[-1][key] for key in fields} == fields
        assert set(sent[-1]) - {"model", "num_samples", "seed", "save_at", "on_timeout"} == set(fields)
    page.goto("about:blank")
    page.goto(f"{service}/#model=gaussian&num_samples=8&a=ab2-10+rk")  # as users write it
    settled(page)
    assert page.locator("#cards h2").all_inner_texts() == ["ab2-10+rk"]


@pytest.fixture
def frontier(repository: Path) -> Iterator[None]:
    """Give the Gaussian field a measured frontier for one test."""
    folder = repository / "gaussian" / "1"
    points = (
        point("euler-8", 8, 0.06),
        point("rk4-5", 20, 0.005),
    )
    curve = Curve(samples=256, seed=0, spread=0.7, points=points)
    weights = read_card(folder).weights_sha256
    StoredFrontier(weights_sha256=weights, reference="exact", curves=(curve,)).write(folder)
    yield
    (folder / FRONTIER_FILE).unlink()


@pytest.mark.usefixtures("frontier")
def test_a_budget_in_place_of_a_solver(page: Page, service: str) -> None:
    show(page, service, **RK4)
    judged(page)
    page.evaluate("delete document.body.dataset.judged")
    sent = bodies(page)
    drawn_again(page)
    page.select_option("#a-solver", "budget")
    settled(page)
    assert sent[-1]["budget"] == {"max_error": 0.01}
    assert not {"solver", "steps", "rtol", "max_nfe"} & set(sent[-1])
    assert page.locator("#a-steps").is_hidden()
    assert page.locator("#cards h2").all_inner_texts() == ["rk4-5"]
    promise = page.inner_text(".promise")
    assert promise.startswith(
        "The service chose rk4-5: of 2 measured solvers, the cheapest that keeps 1 %; 95 % of samples"
    )
    judged(page)
    assert page.inner_text("#verdict").startswith("rk4-5: ")
    assert '"budget": {"max_error": 0.01}' in page.inner_text("#code")
    page.click("#tab-python")
    assert "budget=Budget(max_error=0.01)" in page.inner_text("#code")
    drawn_again(page)
    page.fill("#a-budget_max_nfe", "10")
    page.fill("#a-budget_max_error", "")
    page.press("#a-budget_max_error", "Enter")
    page.wait_for_function("() => document.querySelector('#cards h2')?.textContent === 'euler-8'")
    assert sent[-1]["budget"] == {"max_nfe": 10}
    assert page.locator("#cards h2").all_inner_texts() == ["euler-8"]
    assert "a.solver=budget" in page.url
    show(page, service, **{"a.solver": "budget", "a.budget_max_nfe": 10, "num_samples": 2500})  # drawn in pages
    assert page.locator("#cards h2").all_inner_texts() == ["euler-8"]
    assert page.input_value("#a-budget_max_nfe") == "10"
    page.fill("#a-budget_max_nfe", "2")
    page.press("#a-budget_max_nfe", "Enter")
    page.wait_for_selector("#problem:not([hidden])")
    assert "no measured solver" in page.inner_text("#problem")
    assert page.get_attribute("#a-budget_max_nfe", "aria-invalid") == "true"
