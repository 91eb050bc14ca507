"""The reference pages are complete: metrics, options and exit codes of the command line, members of a card."""

from __future__ import annotations

import argparse
import re
from pathlib import Path

from pathline import cli
from pathline.cli.arguments import parser

from models.checkpoint.card import Card
from service import metrics

DOCS = Path(__file__).parents[2] / "docs"


def rows(page: str) -> list[list[str]]:
    lines = [line for line in (DOCS / page).read_text().splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def test_the_table_of_metrics_is_what_the_service_has() -> None:
    text = (DOCS / "metrics.md").read_text()
    assert metrics.table() in text
    named = {family.name for family in metrics.Metrics().registry.collect() if family.name.startswith("pathline_")}
    assert named == {name.removesuffix("_total") for name in re.findall(r"^\| `(pathline_\w+)`", text, re.MULTILINE)}


def options(command: argparse.ArgumentParser) -> set[str]:
    return {text for action in command._actions for text in action.option_strings} - {"-h", "--help"}


def test_the_command_line_as_help_shows_it() -> None:
    text = (DOCS / "cli.md").read_text()
    top = parser()
    [subs] = [action for action in top._actions if isinstance(action, argparse._SubParsersAction)]
    named = set(re.findall(r"(?<![\w-])(--?[a-z][a-z-]*)", text)) - {"--help"}
    assert named == set().union(options(top), *map(options, subs.choices.values()))
    assert set(re.findall(r"`pathline ([a-z]+)", text)) == set(subs.choices)


def test_exit_codes_are_those_of_the_program() -> None:
    written = {row[0] for row in rows("cli.md") if row[0].isdigit()}
    assert written == set(re.findall(r"\b(\d+) [a-z]", (cli.__doc__ or "").replace("Exit status: ", "")))


def test_every_member_of_a_card_is_explained() -> None:
    written = {name for row in rows("checkpoint.md") for name in re.findall(r"`([a-z_0-9]+)`", row[0])}
    assert written == set(Card.model_fields)
