"""Whether "which solver" has one answer wherever it is asked: `python -m studies.doors REPOSITORY MODEL...`.

Each question goes to the checkpoint's file, to HTTP, to the SDK and the command line (for samples, and by a comparison
with one fresh measurement), and to the page, in Chromium. The table says what each answered. A file knows no
milliseconds, the command line and the slider ask for an error or NFE. The limit in milliseconds is generous, because
the speed of a machine varies from request to request.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import httpx
from pathline import Client
from playwright.sync_api import Page, sync_playwright

from models.checkpoint.card import read_card
from selection.choice import BudgetLimits, Evidence, choose
from selection.frontier import percent, read_frontier
from tests.service.serving import serving

SAMPLES = 100
FRESH = "euler-1"
CHROMIUM = "/usr/bin/chromium"

Budget = dict[str, Any]


def stored(root: Path, model: str, budget: Budget) -> str:
    """Ask the file."""
    folder = root / model / "1"
    frontier = read_frontier(folder, read_card(folder))
    curve = frontier and frontier.curve(None)
    if curve is None or "max_ms" in budget:
        return ""
    choice = choose([Evidence(curve)], BudgetLimits(**budget))[0]
    return _answer(choice.point.solver, choice.point.p95_high)


def http(url: str, model: str, budget: Budget) -> str:
    """Ask for samples by HTTP."""
    body = {"model": model, "num_samples": SAMPLES, "seed": 0, "budget": budget}
    return _chosen(httpx.post(f"{url}/v1/sample", json=body, timeout=60).json()["budget"])


def sdk(client: Client, model: str, budget: Budget) -> Iterator[str]:
    """Ask for samples and for a comparison by the SDK."""
    sampled = client.sample(model, SAMPLES, seed=0, budget=budget).budget
    yield _chosen(sampled or {})
    yield _chosen(client.compare(model, [FRESH], SAMPLES, seed=1, budget=budget, timeout_s=60).choice)


def command_line(url: str, model: str, budget: Budget) -> str:
    """Ask for a comparison on the command line, which takes an error and the default budget only."""
    [(name, value)] = budget.items()
    if name != "max_error":
        return ""
    command = ["compare", model, "-n", str(SAMPLES), "--solvers", FRESH, "--seed", "1", "--json", "--timeout", "60"]
    command += ["--within", f"{100 * value:g}"]
    program = [sys.executable, "-m", "pathline", "--url", url, *command]
    return _chosen(json.loads(subprocess.run(program, capture_output=True, text=True, check=True).stdout)["choice"])


def page(tab: Page, url: str, model: str, budget: Budget) -> Iterator[str]:
    """Ask the page's form, and its slider."""
    [(name, value)] = budget.items()
    tab.goto("about:blank")
    tab.goto(f"{url}/#model={model}&num_samples={SAMPLES}&seed=0&a.solver=budget&a.budget_{name}={value}")
    tab.wait_for_selector(".promise strong", timeout=60_000)
    form = tab.inner_text(".promise")
    yield f"`{form.removeprefix('The service chose ').partition(':')[0]}`, {_promised(form)}"
    if name == "max_ms":
        yield ""
        return
    tab.wait_for_selector("#recommended strong", timeout=60_000)
    tab.select_option("#budget-kind", "error" if name == "max_error" else "nfe")
    text = tab.inner_text("#recommended")
    yield f"`{text.partition(':')[0]}`, {_promised(text)}"


def _promised(text: str) -> str:
    return text.partition("samples end within ")[2].partition(" %")[0] + " %"


def _chosen(choice: Any) -> str:
    return _answer(choice["solver"], choice["promised_error"])


def _answer(solver: str, error: float) -> str:
    return f"`{solver}`, {percent(error)}"


QUESTIONS: dict[str, Budget] = {
    "keeps 1 %": {"max_error": 0.01},
    "within 40 NFE": {"max_nfe": 40},
    "within 30 s": {"max_ms": 30_000},
}
HEAD = (
    "model",
    "question",
    "stored",
    "HTTP",
    "SDK, samples",
    "SDK, compare",
    "CLI, compare",
    "page, form",
    "page, slider",
)


def rows(root: Path, models: Sequence[str]) -> Iterator[tuple[str, ...]]:
    """Yield the rows of the table."""
    with serving(root) as (url, _), Client(url) as client, sync_playwright() as player:
        browser = player.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        tab = browser.new_page()
        for model in models:
            for question, budget in QUESTIONS.items():
                answers = [stored(root, model, budget), http(url, model, budget), *sdk(client, model, budget)]
                answers += [command_line(url, model, budget), *page(tab, url, model, budget)]
                yield model, question, *(answer or "-" for answer in answers)
        browser.close()


def main() -> int:
    """Ask, print a table, and return 1 if two answers to one question differ."""
    parser = argparse.ArgumentParser(description="Ask which solver to take, wherever it can be asked.")
    parser.add_argument("repository", type=Path)
    parser.add_argument("models", nargs="+", metavar="MODEL")
    options = parser.parse_args()
    for cells in (HEAD, ("---",) * len(HEAD)):
        print(f"| {' | '.join(cells)} |", flush=True)
    differ = 0
    for row in rows(options.repository, options.models):
        print(f"| {' | '.join(row)} |", flush=True)
        differ += len({*row[2:]} - {"-"}) > 1
    print(f"questions with different answers: {differ}")
    return int(differ > 0)


if __name__ == "__main__":
    sys.exit(main())
