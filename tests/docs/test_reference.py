"""The reference pages are complete: solvers, settings, metrics, members of requests and cards, the command line.

``RECORD=1 pytest tests/docs/test_reference.py`` writes the tables of solvers, settings and metrics into their pages.
"""

from __future__ import annotations

import argparse
import os
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from pathline import cli
from pathline._fields import FIELDS
from pathline.cli.arguments import parser

import solvers.__main__
from models.checkpoint.card import Card
from service import metrics, settings
from service.requests.schemas import SOLVER_FIELDS

DOCS = Path(__file__).parents[2] / "docs"


def rows(page: str) -> list[list[str]]:
    lines = [line for line in (DOCS / page).read_text().splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


@pytest.mark.parametrize(
    ("page", "table"),
    [("solvers.md", solvers.__main__.table), ("settings.md", settings.table), ("metrics.md", metrics.table)],
)
def test_tables_are_printed_from_the_code(page: str, table: Callable[[], str]) -> None:
    file, printed = DOCS / page, table().rstrip()
    if os.environ.get("RECORD"):
        head = re.escape(printed.splitlines()[0])
        file.write_text(re.sub(rf"{head}(\n\|.*)*", lambda _: printed, file.read_text()))
    assert f"{printed}\n\n" in file.read_text()


def test_every_member_of_a_request_is_explained() -> None:
    """Members of solvers are explained with the solvers, all others with the request."""
    request, text = " ".join(row[0] for row in rows("http.md")), (DOCS / "solvers.md").read_text()
    for name in FIELDS:
        assert f"`{name}`" in request or (name in SOLVER_FIELDS and re.search(rf"\b{name}\b", text)), name


def options(command: argparse.ArgumentParser, members: bool = True) -> set[str]:
    """Return the options of a command, with or without those that are members of a request."""
    actions = [action for action in command._actions if members or action.dest not in FIELDS]
    return {text for action in actions for text in action.option_strings} - {"-h", "--help"}


def test_the_command_line_as_help_shows_it() -> None:
    text = (DOCS / "cli.md").read_text()
    top = parser()
    [subs] = [action for action in top._actions if isinstance(action, argparse._SubParsersAction)]
    named = set(re.findall(r"(?<![\w-])(--?[a-z][a-z-]*)", text)) - {"--help"}
    commands = [top, *subs.choices.values()]
    assert set().union(*(options(command, members=False) for command in commands)) <= named
    assert named <= set().union(*map(options, commands))
    assert set(re.findall(r"`pathline ([a-z]+)", text)) == set(subs.choices)


def test_exit_codes_are_those_of_the_program() -> None:
    written = {row[0] for row in rows("cli.md") if row[0].isdigit()}
    assert written == set(re.findall(r"\b(\d+) [a-z]", (cli.__doc__ or "").replace("Exit status: ", "")))


def test_every_member_of_a_card_is_explained() -> None:
    written = {name for row in rows("checkpoint.md") for name in re.findall(r"`([a-z_0-9]+)`", row[0])}
    assert written == set(Card.model_fields)
