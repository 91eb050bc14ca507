"""The documentation stays short and readable, and the files that it names are there."""

import json
import re
from pathlib import Path

import pytest
import yaml

from tests.docs.conftest import PAGES, ROOT

ALL = [*PAGES, *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "clients/python/README.md"))]
MOST_WORDS = 24_700  # of all pages in docs/
MOST_READ = 12_800  # of those that are not under "Look up"
LONGEST_SENTENCE = 40  # words


def sentences(text: str) -> list[str]:
    """Return the sentences of a page, without tables and programs."""
    text = re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)
    text = re.sub(r"^(    |\|).*$", "", text, flags=re.MULTILINE)
    text = re.sub(r"\]\([^)]*\)", "]", text)
    paragraphs = re.split(r"\n\s*\n|\n(?=- |\d+\. )", text)
    return [part for text in paragraphs for part in re.split(r"(?<=[.!?:;])\s+", " ".join(text.split()))]


@pytest.mark.parametrize("page", ALL, ids=lambda page: page.name)
def test_no_sentence_is_long(page: Path) -> None:
    assert [text for text in sentences(page.read_text()) if len(text.split()) > LONGEST_SENTENCE] == []


def test_the_documentation_is_short() -> None:
    navigation = yaml.safe_load((ROOT / "mkdocs.yml").read_text())["nav"]
    [references] = [section["Look up"] for section in navigation if "Look up" in section]
    looked_up = {name for entry in references for name in entry.values()}
    words = {page.name: len(page.read_text().split()) for page in PAGES}
    assert sum(words.values()) <= MOST_WORDS
    assert sum(count for name, count in words.items() if name not in looked_up) <= MOST_READ
    assert words["training.md"] <= 2000
    assert words["tuned-plans.md"] <= 800


def test_the_notebook_shows_its_outputs() -> None:
    cells = json.loads((ROOT / "examples" / "solvers.ipynb").read_text("utf-8"))["cells"]
    outputs = [cell["outputs"] for cell in cells if cell["cell_type"] == "code"]
    assert outputs
    assert all(outputs)


@pytest.mark.parametrize("page", ALL, ids=lambda page: page.name)
def test_files_that_are_named_are_there(page: Path) -> None:
    named = set(re.findall(r"`((?:[a-z_]+/)+[a-z_0-9]+\.(?:py|md|toml|ipynb))`", page.read_text()))
    missing = {path for path in named if not any((ROOT / room / path).exists() for room in ("", "service", "docs"))}
    assert missing == set()
