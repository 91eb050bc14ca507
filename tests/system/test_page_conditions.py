"""The playground with a model that takes named conditions and has tuned plans: fields for both."""

from collections.abc import Iterator
from typing import Any

import httpx
import pytest
import torch
from playwright.sync_api import Page
from torch import Tensor, nn

from models.checkpoint.card import read_card
from models.checkpoint.plans import Plans, StoredPlan
from models.importing.declared import Declared
from models.importing.weights import import_program
from tests.service.serving import serving
from tests.system.test_page import RK4, bodies, drawn_again, settled, show

pytestmark = pytest.mark.system
NAMES = ["left", "right"]
MODEL = {"model": "pushed"}
ENOUGH = {"c.side": "right", "c.push": "[1, -1]"}
TOLD = {"side": "right", "push": [1, -1]}
LEARNED = StoredPlan(
    solver="tuned-2", times=(0.0, 0.4, 1.0), weights=((0.4,), (-0.1, 0.7)), error=0.01, start_error=0.02,
    tuning={}, libraries={},
)  # fmt: skip
GRID = StoredPlan(solver="ab2-3/tuned", times=(0.0, 0.2, 0.5, 1.0), error=0.01, start_error=0.02)


class Pushed(nn.Module):
    """Moves points by its conditions: a side, a push in the plane, and a strength."""

    def forward(self, x: Tensor, t: Tensor, side: Tensor, push: Tensor, strength: Tensor) -> Tensor:
        """Return velocities (rows, 2)."""
        return strength[:, None] * (push + 2 * side[:, None].to(x.dtype) - 1) - x * t[:, None]


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Serve a model with three conditions: labels, numbers, and one with a default."""
    folder = tmp_path_factory.mktemp("pushed")
    rows = torch.export.Dim("rows", min=1, max=512)
    given = (torch.randn(4, 2), torch.rand(4), torch.tensor([0, 1, 0, 1]), torch.randn(4, 2), torch.rand(4))
    torch.export.save(torch.export.export(Pushed(), given, dynamic_shapes=({0: rows},) * 5), folder / "pushed.pt2")
    conditions: dict[str, Any] = {"side": {"classes": 2, "names": NAMES}, "strength": {"default": 1.0}}
    found = import_program(
        *(folder / "pushed.pt2", folder / "checkpoints", "pushed"),
        inputs=["x", "t", "side", "push", "strength"],
        conditions=conditions,
        declared=Declared(noise_at=0, scale=1.0, sign=1),
    )
    free, rows = torch.export.Dim("free", min=2, max=8), torch.export.Dim("rows", min=1, max=64)
    given = (torch.randn(4, 3, 2), torch.rand(4))
    program = torch.export.export(Free(), given, dynamic_shapes=({0: rows, 1: free}, {0: rows}))
    torch.export.save(program, folder / "free.pt2")
    import_program(
        *(folder / "free.pt2", folder / "checkpoints", "free"),
        event_shape=("N", 2),
        axes={"N": {"min": 2, "max": 8, "multiple": 2}},
        declared=Declared(noise_at=0, scale=1.0, sign=1),
    )
    Plans(weights_sha256=read_card(found.path).weights_sha256, plans=(LEARNED, GRID)).write(found.path)
    with serving(folder / "checkpoints", allow_programs="true") as (url, _):
        yield url


class Free(nn.Module):
    """Points (rows, N, 2), with N set by the request, each moved on its own."""

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        """Return velocities (rows, N, 2)."""
        return 1 - x * t[:, None, None]


def ask(service: str, **body: Any) -> Any:
    answer = httpx.post(f"{service}/v1/sample", json={**MODEL, "num_samples": 32, "seed": 3, **body}, timeout=60)
    return answer.raise_for_status().json()


def shown(page: Page) -> Any:
    """Return the samples of the first figure, from the page's module for downloads."""
    with page.expect_download() as download:
        page.click("#download summary")
        page.click("[data-download=csv]")
    rows = download.value.path().read_text().split()[1:]
    return [[float(x) for x in row.split(",")] for row in rows]


def test_a_condition_that_is_missing_is_named_and_can_be_given(page: Page, service: str) -> None:
    page.goto("about:blank")
    page.goto(f"{service}/#model=pushed&num_samples=32&seed=3&a=rk4-4")
    page.wait_for_selector("#problem:not([hidden])")
    assert "conditions.push" in page.inner_text("#problem")
    page.wait_for_selector("#conditions-push[aria-invalid]")
    assert page.locator("#inputs label").all_inner_texts() == ["push", "side", "strength"]
    hints = page.locator("#inputs .hint").all_inner_texts()
    assert hints == ["float32, 2", "2 classes", "float32; may be left out"]
    assert page.locator("#conditions-side option").all_inner_texts() == ["choose …", *NAMES]
    page.select_option("#conditions-side", "right")
    page.fill("#conditions-push", "[1, -1]")
    page.press("#conditions-push", "Enter")
    settled(page)
    assert page.locator("#problem").is_hidden()
    assert page.locator("[aria-invalid]").count() == 0
    assert shown(page) == ask(service, solver="rk4-4", conditions=TOLD)["samples"]
    page.fill("#conditions-push", "[1, 2, 3]")
    page.press("#conditions-push", "Enter")
    page.wait_for_selector("#conditions-push[aria-invalid]")
    assert "[2]" in page.inner_text("#problem")
    assert page.locator("[aria-invalid]").count() == 1


def test_a_link_keeps_conditions_and_everything_shown_is_of_them(page: Page, service: str) -> None:
    sent = bodies(page)
    show(page, service, **MODEL, **ENOUGH, **RK4, num_samples=96, seed=3)
    page.wait_for_selector("body[data-judged]")
    assert sent[-1]["conditions"] == TOLD
    assert page.inner_text("#verdict").startswith("rk4-4: ")
    page.wait_for_selector("#conditions-side")
    assert page.input_value("#conditions-side") == "right"
    assert '"conditions": {"side": "right", "push": [1, -1]}' in page.inner_text("#code")
    page.fill("#conditions-strength", "0.5")
    drawn_again(page)
    page.press("#conditions-strength", "Enter")
    settled(page)
    assert sent[-1]["conditions"] == {**TOLD, "strength": 0.5}
    assert "c.strength=0.5" in page.url
    page.check("#velocity")
    page.wait_for_selector("body[data-behind=velocity]")
    x, y = page.evaluate("document.querySelector('#cards canvas').places[0][5]")
    page.locator("#cards canvas").first.click(position={"x": x, "y": y})
    page.wait_for_selector("body[data-chosen='5']")
    row = page.inner_text("#sample-body tbody tr").split("\t")
    assert row[1] == "4"
    assert page.locator("#problem").is_hidden()


def test_conditions_sample_by_sample(page: Page, service: str) -> None:
    pushes = [[1, 0], [0, 1], [0, 0]]
    given = {"num_samples": 3, "seed": 3, "c.push": str(pushes), "c.side": "left"}
    show(page, service, **MODEL, **RK4, **given)
    page.wait_for_selector("body[data-judged]")
    expected = ask(service, num_samples=3, solver="rk4-4", conditions={"push": pushes, "side": "left"})["samples"]
    assert shown(page) == expected
    assert "3 is too few" in page.inner_text("#verdict")
    x, y = page.evaluate("document.querySelector('#cards canvas').places[0][2]")
    page.locator("#cards canvas").first.click(position={"x": x, "y": y})
    page.wait_for_selector("body[data-chosen='2']")
    page.fill("#sample-index", "1")
    page.press("#sample-index", "Enter")
    page.wait_for_selector("body[data-chosen='1']")  # alone, it has its own condition
    assert page.locator("#problem").is_hidden()


def test_tuned_plans_are_among_the_solvers(page: Page, service: str) -> None:
    sent = bodies(page)
    show(page, service, **MODEL, **ENOUGH, **RK4, num_samples=32, seed=3)
    assert page.locator("#a-solver optgroup.tuned option").all_inner_texts() == ["tuned-2", "ab2-3/tuned"]
    for text in ("tuned-2", "ab2-3/tuned"):
        drawn_again(page)
        page.select_option("#a-solver", text)
        settled(page)
        assert page.locator("#problem").is_hidden()
        assert sent[-1]["solver"] == text
        assert page.locator("#cards h2").all_inner_texts() == [text]
        assert shown(page) == ask(service, solver=text, conditions=TOLD)["samples"]


def test_a_free_axis_has_a_field(page: Page, service: str) -> None:
    page.goto("about:blank")
    page.goto(f"{service}/#model=free&num_samples=4&seed=3&a=rk4-4")
    page.wait_for_selector("#problem:not([hidden])")
    page.wait_for_selector("#shape-N")
    assert page.locator("#inputs label").all_inner_texts() == ["Size of N"]
    assert page.get_attribute("#shape-N", "placeholder") == "2 to 8"
    assert page.locator("#inputs .hint").all_inner_texts() == ["multiples of 2"]
    sent = bodies(page)
    page.fill("#shape-N", "6")
    page.press("#shape-N", "Enter")
    settled(page)
    page.wait_for_selector("body[data-judged]")
    assert page.locator("#problem").is_hidden()
    assert sent[-1]["shape"] == {"N": 6}
    assert "s.N=6" in page.url
    expected = ask(service, model="free", num_samples=4, solver="rk4-4", shape={"N": 6})["samples"]
    assert shown(page) == [[x for point in sample for x in point] for sample in expected]
