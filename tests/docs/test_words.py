"""The documentation stays short and readable, and the files that it names are there."""

import re
from pathlib import Path

import pytest

from tests.docs.conftest import PAGES, ROOT

ALL = [*PAGES, *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "clients/python/README.md"))]
MOST_WORDS = 30_000  # of all pages in docs/
LONGEST_SENTENCE = 40  # words


def sentences(text: str) -> list[str]:
    """Return the sentences of a page, without tables and programs."""
    text = re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)
    text = re.sub(r"^(    |\|).*$", "", text, flags=re.MULTILINE)
    text = re.sub(r"\]\([^)]*\)", "]", text)
    paragraphs = re.split(r"\n\s*\n|\n(?=- |\d+\. )", text)
    return [part for each in paragraphs for part in re.split(r"(?<=[.!?:;])\s+", " ".join(each.split()))]


@pytest.mark.parametrize("page", ALL, ids=lambda page: page.name)
def test_no_sentence_is_long(page: Path) -> None:
    assert [each for each in sentences(page.read_text()) if len(each.split()) > LONGEST_SENTENCE] == []


def test_the_documentation_is_short() -> None:
    assert sum(len(page.read_text().split()) for page in PAGES) <= MOST_WORDS


@pytest.mark.parametrize("page", ALL, ids=lambda page: page.name)
def test_files_that_are_named_are_there(page: Path) -> None:
    named = set(re.findall(r"`((?:[a-z_]+/)+[a-z_0-9]+\.(?:py|md|toml|ipynb))`", page.read_text()))
    missing = {path for path in named if not any((ROOT / room / path).exists() for room in ("", "service", "docs"))}
    assert missing == set()
