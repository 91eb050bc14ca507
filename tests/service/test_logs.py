"""No line of a record can be taken for another record."""

import logging
import sys

import pytest

from service.logs import EscapingFormatter


@pytest.mark.parametrize("evil", ["\n", "\r\n", "\x1b[2J", "\x85", "\u2028", "\x00"])
def test_control_characters_are_escaped(evil: str) -> None:
    forged = f"/a{evil}ERROR: the disk is full"
    try:
        raise ValueError(forged)
    except ValueError:
        record = logging.LogRecord("x", logging.INFO, "f", 1, "%s failed", (forged,), sys.exc_info())
    lines = EscapingFormatter("%(levelname)s: %(message)s").format(record).splitlines()
    assert lines[0].startswith("INFO: /a\\")
    assert lines[0].endswith("ERROR: the disk is full failed")
    assert all(line.startswith("  ") for line in lines[1:])
    assert not any(evil in line for line in lines)


def test_other_text_stays() -> None:
    record = logging.LogRecord("x", logging.INFO, "f", 1, "modèle %d", (3,), None)
    assert EscapingFormatter("%(levelname)s: %(message)s").format(record) == "INFO: modèle 3"
