"""The playground in changing conditions: a model that is removed, two tabs, a slow connection, a path prefix."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from playwright.sync_api import Page

from tests.service.serving import serving
from tests.system.support import until
from tests.system.test_page import RK4, ask, drawn_again, hold, settled, show

pytestmark = pytest.mark.system


@pytest.fixture(scope="module")
def copy(repository: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Copy the repository, so that a model can be removed."""
    return Path(shutil.copytree(repository, tmp_path_factory.mktemp("trouble") / "checkpoints"))


@pytest.fixture(scope="module")
def service(copy: Path) -> Iterator[str]:
    """Serve the copy under a path."""
    with serving(copy, root_path="/pathline") as (url, _):
        yield f"{url}/pathline"


def test_addresses_hold_under_a_path(page: Page, service: str) -> None:
    show(page, service, **RK4)
    page.wait_for_selector("body[data-judged]")
    assert f"curl -s {service}/v1/sample" in page.inner_text("#code")
    for name in ("docs", "metrics"):
        assert httpx.get(page.evaluate(f"document.querySelector('nav a[href={name}]').href")).status_code == 200
    problem = httpx.post(f"{service}/v1/sample", json={"model": "nobody"})
    explained = httpx.get(problem.url.join(problem.json()["type"]), headers={"Accept": "text/html"})
    assert explained.status_code == 200
    page.goto(str(explained.url))
    links = page.eval_on_selector_all("a", "all => all.map(a => a.href)")
    assert links
    assert {httpx.get(link).status_code for link in links if link.startswith(service.removesuffix("/pathline"))} <= {
        200
    }


def test_two_tabs_draw_side_by_side(page: Page, service: str) -> None:
    other = page.context.new_page()
    held = hold(page, after=3)
    page.emulate_media(reduced_motion="reduce")
    page.goto(f"{service}/#model=gaussian&num_samples=32&seed=1&a=rk4-8")
    held()
    show(other, service, **RK4)
    assert other.locator("#cards h2").all_inner_texts() == ["rk4-4"]
    page.evaluate("release()")
    settled(page)
    assert page.locator("#cards h2").all_inner_texts() == ["rk4-8"]
    other.close()


def test_a_slow_line_shows_what_has_come(page: Page, service: str) -> None:
    """Chromium's own throttling: 100 kB/s and 200 ms each way."""
    line = page.context.new_cdp_session(page)
    line.send("Network.enable")
    slow = {"offline": False, "latency": 200, "downloadThroughput": 100_000, "uploadThroughput": 100_000}
    line.send("Network.emulateNetworkConditions", slow)
    show(page, service, **RK4, num_samples=2500)
    assert page.locator("#problem").is_hidden()
    nfe = page.inner_text("#cards dd >> nth=0")
    assert nfe == str(ask(service, num_samples=2500, solver="rk4-4")["nfe"])
    assert page.locator("#cancel").is_hidden()


def test_a_model_that_is_removed_while_it_is_drawn(page: Page, service: str, copy: Path) -> None:
    held = hold(page, after=5)
    page.emulate_media(reduced_motion="reduce")
    page.goto("about:blank")
    page.goto(f"{service}/#model=gaussian&num_samples=2500&seed=1&a=rk4-20")
    held()  # in the first of three pages
    shutil.rmtree(copy / "gaussian")
    until("its removal", lambda: httpx.get(f"{service}/v1/models/gaussian").status_code == 404)
    page.evaluate("release()")
    page.wait_for_selector("#problem:not([hidden])")
    settled(page)
    assert "gaussian" in page.inner_text("#problem")
    assert "1,000 of 2,500 samples were drawn" in page.inner_text("#cards")  # the received samples stay
    page.wait_for_function(
        "() => ![...document.querySelectorAll('#model option')].some(o => o.textContent == 'gaussian')"
    )
    drawn_again(page)
    page.select_option("#model", "moons")
    page.fill("#num_samples", "8")
    page.press("#num_samples", "Enter")
    settled(page)
    assert page.locator("#problem").is_hidden()
