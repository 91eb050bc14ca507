"""The playground in a real browser, with the real service: the page shows the service's results."""

import contextlib
import io
import json
import math
import re
import subprocess
from collections.abc import Callable
from typing import Any
from urllib.parse import urlencode

import httpx
import numpy as np
import pytest
from playwright.sync_api import Page, Request, Route

from tests.system.conftest import NAMES

pytestmark = pytest.mark.system
SEED = 2**63 - 1  # a JavaScript number would round it
RK4 = {"a.solver": "rk4", "a.steps": 4}
PAIR = {"a.solver": "dopri5", "a.rtol": "1e-4", "a.atol": "1e-4", "b.solver": "euler", "b.steps": 5}


def show(page: Page, service: str, **view: Any) -> None:
    """Open a view and wait until all of it is drawn, without animations to wait for."""
    page.emulate_media(reduced_motion="reduce")
    page.goto("about:blank")
    page.goto(f"{service}/#{urlencode({'model': 'gaussian', 'num_samples': 32, 'seed': SEED, **view})}")
    page.wait_for_selector("body[data-drawn]")


def drawn_again(page: Page) -> None:
    """Forget that the page was drawn, so that the next `settled` waits for a new drawing."""
    page.evaluate("delete document.body.dataset.drawn")


def settled(page: Page) -> None:
    page.wait_for_selector("body[data-drawn]")


def ask(service: str, **body: Any) -> dict[str, Any]:
    request = {"model": "gaussian", "num_samples": 32, "seed": SEED, **body}
    return httpx.post(f"{service}/v1/sample", json=request, timeout=60).raise_for_status().json()


def bodies(page: Page) -> list[dict[str, Any]]:
    """Collect the request bodies of drawings from now on, without the page's requests in the background."""
    found: list[dict[str, Any]] = []

    def keep(request: Request) -> None:
        if request.url.endswith("/v1/sample/stream"):
            found.append(json.loads(request.post_data or ""))

    page.on("request", keep)
    return found


HOLD = """(after => {
    const ask = window.ask ??= fetch;
    let [states, wake] = [0, () => {}];
    window.held = false;
    window.release = (more = Infinity) => { after += more; window.held = false; wake() };
    window.fetch = async (path, options) => {
        const answer = await ask(path, options);
        if (!String(path).endsWith('v1/sample/stream') || !answer.ok) return answer;
        const left = new Promise((_, reject) =>
            options.signal?.addEventListener('abort', () => reject(options.signal.reason)));
        left.catch(() => {});
        let text = '';
        const gate = new TransformStream({ async transform(piece, out) {
            text += piece;
            for (let end; (end = text.indexOf('\\n\\n')) >= 0; text = text.slice(end + 2)) {
                if (text.startsWith('event: sample')) states++;
                while (states > after) {
                    window.held = true;
                    await Promise.race([new Promise(resolve => wake = resolve), left]);
                }
                out.enqueue(text.slice(0, end + 2));
            }
        } });
        const body = answer.body.pipeThrough(new TextDecoderStream()).pipeThrough(gate);
        return new Response(body.pipeThrough(new TextEncoderStream()), answer);
    };
})"""


def hold(page: Page, after: int) -> Callable[[], None]:
    """Let that many states of drawings through; `release(more)` in the page lets more through, `release()` the rest.

    Returns a function that waits until states are held back: a drawing is then in progress, however fast the service.
    """
    page.add_init_script(f"{HOLD}({after})")
    page.evaluate(f"{HOLD}({after})")
    return lambda: page.wait_for_function("() => window.held") and None


def picture(page: Page) -> str:
    return page.evaluate("document.querySelector('#cards canvas').toDataURL()")


SERIES = "document.getElementById('steps').chart.series.map(({name, x, y}) => ({name, x, y}))"


def colours(page: Page) -> int:
    """Count the colours of the first figure."""
    script = """() => { const c = document.querySelector('#cards canvas');
        return new Set(new Uint32Array(c.getContext('2d').getImageData(0, 0, c.width, c.height).data.buffer)).size }"""
    return page.evaluate(script)


def test_the_first_look_shows_samples_of_a_model(page: Page, service: str) -> None:
    page.goto(f"{service}/")
    page.wait_for_selector("body[data-drawn]")
    assert page.input_value("#model") == "moons"
    assert colours(page) > 10
    assert page.input_value("#num_samples") == "500"
    page.wait_for_function("() => document.getElementById('service').textContent.startsWith('ready on cpu')")
    assert page.inner_text("#service") == "ready on cpu, 5 models, 1 unavailable"
    assert page.locator("#problem").is_hidden()
    names = page.locator("#model option").all_inner_texts()
    assert names == ["broken (unavailable)", "digits", "gaussian", "houses", "moons", "shapes"]


def test_a_seed_of_63_bits_arrives_and_comes_back_whole(page: Page, service: str) -> None:
    sent = bodies(page)
    show(page, service, **RK4)
    assert [body["seed"] for body in sent] == [SEED]
    assert f"seed {SEED}" in page.inner_text("#cards")
    assert page.inner_text("#cards dd >> nth=0") == str(ask(service, solver="rk4", steps=4)["nfe"])
    drawn_again(page)
    page.click("#new-seed")
    settled(page)
    assert 0 <= sent[-1]["seed"] < 2**31  # a new one fits in its field
    assert page.input_value("#seed") == str(sent[-1]["seed"])


def test_the_trace_is_that_of_the_answer(page: Page, service: str) -> None:
    show(page, service, **PAIR, num_samples=8)
    answer = ask(service, num_samples=8, rtol=1e-4, atol=1e-4)
    t, h, accepted = (answer["trace"][name] for name in ("t", "h", "accepted"))
    taken = [(a, b) for a, b, good in zip(t, h, accepted, strict=True) if good]
    plots = {p["name"]: p for p in page.evaluate(SERIES)}
    assert list(zip(plots["dopri5@1e-4"]["x"], plots["dopri5@1e-4"]["y"], strict=True))[:-1] == taken
    assert plots["euler-5"]["y"][:-1] == ask(service, num_samples=8, solver="euler", steps=5)["trace"]["h"]
    assert f"takes {len(taken)} steps" in page.inner_text("#steps-text")


def test_rejected_steps_are_marked(page: Page, service: str) -> None:
    # a rejected step needs a field that turns: a network, and a tolerance too tight for the first guess
    for tolerance in ("1e-3", "1e-4", "1e-5", "1e-6", "1e-7"):
        answer = ask(service, model="moons", num_samples=1, rtol=float(tolerance), atol=float(tolerance))
        if not all(answer["trace"]["accepted"]):
            break
    else:
        answer = ask(service, model="moons", num_samples=1)
    trace = answer["trace"]
    rejected = [h for h, good in zip(trace["h"], trace["accepted"], strict=True) if not good]
    show(
        page,
        service,
        **{"model": "moons", "num_samples": 1, "a.solver": "dopri5"},
        **{"a.rtol": tolerance, "a.atol": tolerance},
    )
    marks = [one["y"] for one in page.evaluate(SERIES) if "rejected" in one["name"]]
    assert marks == ([rejected] if rejected else [])


def test_equal_steps_are_a_level_line(page: Page, service: str) -> None:
    show(page, service, **{"a.solver": "euler", "a.steps": 10})  # ten tenths differ in the last bit
    low, high = (math.log10(h) for h in page.evaluate("document.getElementById('steps').chart.y.range"))
    assert 0.5 < high - low < 0.7
    assert low < -1.2 < -0.8 < high


def test_a_conditional_model_has_a_class_and_guidance(page: Page, service: str) -> None:
    sent = bodies(page)
    show(page, service, **RK4, model="shapes")
    assert "condition" not in sent[-1]
    page.wait_for_selector("#conditional:not([hidden])")
    assert page.evaluate("[...document.querySelectorAll('#classes option')].map(o => o.value)") == list(NAMES)
    assert page.get_attribute("#condition", "placeholder") == "circle … star, or none"
    pictures = {picture(page)}
    for condition, guidance in (("square", ""), ("square", "2.5"), ("star", "2.5")):
        drawn_again(page)
        page.fill("#condition", condition)
        page.fill("#guidance", guidance)
        page.press("#guidance", "Enter")
        page.wait_for_selector(f"body[data-drawn*='condition={condition}']")
        settled(page)
        assert (sent[-1]["condition"], sent[-1].get("guidance")) == (condition, float(guidance) if guidance else None)
        pictures.add(picture(page))
    assert len(pictures) == 4
    assert "condition=star&guidance=2.5" in page.url
    assert '"condition": "star", "guidance": 2.5' in page.inner_text("#code")
    drawn_again(page)
    page.select_option("#model", "gaussian")
    settled(page)
    page.wait_for_selector("#conditional", state="hidden")  # the model is described after its samples were requested
    assert not {"condition", "guidance"} & set(sent[-1])


def test_a_class_that_is_none_is_told(page: Page, service: str) -> None:
    page.goto("about:blank")
    page.goto(f"{service}/#{urlencode({'model': 'shapes', 'condition': 'triangle', **RK4})}")
    page.wait_for_selector("#problem:not([hidden])")
    assert "circle" in page.inner_text("#problem")
    assert page.evaluate("[...document.querySelectorAll('[aria-invalid]')].map(e => e.id)") == ["condition"]


def test_two_solvers_on_the_same_noise(page: Page, service: str) -> None:
    show(page, service, **PAIR)
    assert page.locator("#cards canvas").count() == 2
    first, second = ask(service, rtol=1e-4, atol=1e-4), ask(service, solver="euler", steps=5)
    apart = np.linalg.norm(np.array(first["samples"]) - np.array(second["samples"]), axis=1)
    page.wait_for_selector("body[data-judged]")
    text = page.inner_text("#distance")
    assert float(re.search(r"mean ([\d.e-]+)", text)[1]) == pytest.approx(apart.mean(), rel=6e-3)  # type: ignore[index]
    assert float(re.search(r"greatest ([\d.e-]+)\.", text)[1]) == pytest.approx(apart.max(), rel=6e-3)  # type: ignore[index]
    times = first["nfe"] / second["nfe"]
    assert f"euler-5: {times:.0f}\N{MULTIPLICATION SIGN} fewer evaluations" in page.inner_text("#verdict")
    page.click("#over")
    assert page.locator("#cards canvas").count() == 1
    assert "layout=over" in page.url


def test_pictures(page: Page, service: str) -> None:
    show(page, service, **{**PAIR, "model": "digits", "num_samples": 9})
    assert page.locator("#cards canvas").count() == 2
    assert "9 samples of digits by euler-5 as pictures of 4 by 4" in page.inner_html("#cards")
    assert colours(page) > 10
    sheet = picture(page)
    page.click("#over")
    assert page.inner_text("#over") == "Difference"
    assert page.locator("#cards canvas").count() == 1
    assert picture(page) != sheet


@pytest.mark.parametrize(
    ("view", "field"),
    [
        ({"a.solver": "rk4", "a.steps": "many"}, "a-steps"),
        ({"a.solver": "rk5", "a.steps": 3}, "a-solver"),
        ({"a.solver": "dopri5", "a.rtol": "1e-30"}, "a-tolerance"),
        ({"seed": "9223372036854775808", **RK4}, "seed"),
        ({"num_samples": 0, **RK4}, "num_samples"),
        ({"model": "nobody", **RK4}, None),
        ({"model": "broken", **RK4}, None),
    ],
)
def test_errors_are_the_services_words(page: Page, service: str, view: dict[str, Any], field: str | None) -> None:
    answers: list[Any] = []
    page.on("response", lambda answer: answers.append(answer) if answer.request.method == "POST" else None)
    page.goto("about:blank")
    page.goto(f"{service}/#{urlencode({'model': 'gaussian', **view})}")
    page.wait_for_selector("#problem:not([hidden])")
    (answer,) = answers
    assert page.locator("#cards canvas").count() == 0  # and no card stays blank
    problem = answer.json()
    for part in ("title", "detail"):  # fields have the names that the page shows
        assert problem[part].replace("num_samples", "How many") in page.inner_text("#problem")
    assert problem["request_id"] in page.inner_text("#problem")
    marked = page.evaluate("[...document.querySelectorAll('[aria-invalid]')].map(e => e.id)")
    assert marked == ([field] if field else [])


def test_an_error_goes_away_with_its_cause(page: Page, service: str) -> None:
    page.goto("about:blank")
    page.goto(f"{service}/#{urlencode({'model': 'gaussian', 'a.solver': 'rk4', 'a.steps': 0})}")
    page.wait_for_selector("#problem:not([hidden])")
    page.fill("#a-steps", "3")
    page.press("#a-steps", "Enter")
    settled(page)
    assert page.locator("#problem").is_hidden()
    assert page.locator("[aria-invalid]").count() == 0


def test_a_service_that_is_gone_is_said_to_be_gone(page: Page, service: str) -> None:
    show(page, service, **RK4)
    page.route("**/v1/sample/stream", lambda route: route.abort())
    page.click("#draw")
    page.wait_for_selector("#problem:not([hidden])")
    assert "The service cannot be reached" in page.inner_text("#problem")
    assert "make serve" in page.inner_text("#problem")


def test_a_link_reproduces_the_view(page: Page, service: str) -> None:
    show(page, service, **{**PAIR, "model": "moons", "b.grid": "shift", "b.grid_value": "2.5", "layout": "over"})
    first, address = picture(page), page.url
    page.click("#copy-link")
    assert page.evaluate("navigator.clipboard.readText()") == address
    page.goto("about:blank")
    page.goto(address)
    settled(page)
    assert page.url == address
    assert page.input_value("#b-grid_value") == "2.5"
    assert picture(page) == first


def test_samples_move_along_t(page: Page, service: str) -> None:
    sent = bodies(page)
    show(page, service, **PAIR)
    assert len(sent) == 2  # one for each solver, in between as at the end
    end = picture(page)
    page.focus("#time")
    page.press("#time", "Home")
    assert page.inner_text("#time-value") == "0.00"
    start = picture(page)
    page.press("#time", "End")
    assert page.inner_text("#time-value") == "1.00"
    assert picture(page) == end != start
    assert len(sent) == 2


def test_snippets_give_the_samples_that_are_shown(page: Page, service: str) -> None:
    show(page, service, **{**RK4, "b.solver": "dopri5", "b.rtol": "1e-3", "b.atol": "1e-3"})
    first = page.inner_text("#code").split("\n\n")[0]
    done = subprocess.run(["/bin/sh", "-c", first], capture_output=True, text=True, check=True)
    expected = ask(service, solver="rk4", steps=4)["samples"]
    assert json.loads(done.stdout)["samples"] == expected
    page.press("#tab-curl", "ArrowRight")
    names: dict[str, Any] = {}
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        exec(page.inner_text("#code"), names)  # noqa: S102  (what the page tells people to run)
    assert names["a"].samples.tolist() == expected
    mean = float(printed.getvalue().split()[-1])
    page.wait_for_selector("#distance")
    assert f"mean {mean:.3g}" in page.inner_text("#distance")


def test_the_newest_request_wins(page: Page, service: str) -> None:
    show(page, service, **RK4)
    drawn_again(page)
    for steps in range(5, 12):
        page.fill("#a-steps", str(steps))
        page.dispatch_event("#a-steps", "change")
    page.wait_for_selector("body[data-drawn*='a.steps=11']")
    assert "rk4-11" in page.inner_text("#cards")
    assert page.locator("#problem").is_hidden()


def test_where_a_key_is_asked_for_it_can_be_given(page: Page, service: str) -> None:
    refusal = {"type": "/problems/unauthorized", "title": "A key is needed", "status": 401, "detail": "send it"}

    def guard(route: Route) -> None:
        if route.request.headers.get("authorization") == "Bearer sesame":
            route.continue_()
        else:
            route.fulfill(status=401, content_type="application/problem+json", body=json.dumps(refusal))

    page.route("**/v1/**", guard)
    page.goto(f"{service}/#model=gaussian&num_samples=4&a.solver=rk4&a.steps=2")
    page.wait_for_selector("body[data-state=locked]")
    assert page.inner_text("#state h2") == "This service needs an API key"
    assert page.inner_text("#service") == "API key needed"
    assert page.locator("#figures").is_hidden()
    page.fill("#key", "wrong")
    page.press("#key", "Enter")
    page.wait_for_selector("text=does not accept this API key")
    page.fill("#key", " sesame ")  # as pasted
    page.press("#key", "Enter")
    settled(page)
    assert page.locator("#state").is_hidden()
    assert "Bearer $PATHLINE_API_KEY" in page.inner_text("#code")
    assert "sesame" not in page.inner_text("#code")
    page.evaluate("sessionStorage.setItem('pathline-key', 'withdrawn')")
    page.click("#new-seed")
    page.wait_for_selector("#problem #key")
    assert page.locator("#cards canvas").count() == 1


def test_a_stream_that_is_cut_is_told(page: Page, service: str) -> None:
    show(page, service, **RK4)
    page.route(
        "**/v1/sample/stream", lambda route: route.fulfill(content_type="text/event-stream", body=": nothing\n\n")
    )
    page.click("#draw")
    page.wait_for_selector("#problem:not([hidden])")
    assert "The stream ended before the samples were done" in page.inner_text("#problem")
