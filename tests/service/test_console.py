"""The console: progress lines, commands with the address that users reach, and a log that cannot be forged."""

import logging
import sys
import threading
from pathlib import Path

import pytest

from service import console
from service.console import EscapingFormatter, ProgressPrinter, flush, greeting, opening
from service.settings import Settings


def test_a_line_for_each_change(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(console, "_POLL_S", 0.001)
    seen, last = [["a", "b", "c"], ["a", "b", "c"], ["c"], []], threading.Event()

    def pending() -> list[str]:
        if len(seen) > 1:
            return seen.pop(0)
        last.set()
        return seen[0]

    printer = ProgressPrinter()
    printer.start(3, pending)
    assert last.wait(60)
    printer.stop()
    flush()
    assert capfd.readouterr().out.splitlines() == [
        "Models: 0 of 3 done; loading and measuring a ...",
        "Models: 2 of 3 done; loading and measuring c ...",
        "Models: 3 of 3 done",
    ]


def test_the_last_state_is_printed_however_fast_it_comes(capfd: pytest.CaptureFixture[str]) -> None:
    printer, pending = ProgressPrinter(), ["a"]
    printer.stop()  # not started: nothing happens
    printer = ProgressPrinter()
    printer.start(1, lambda: list(pending))
    pending.clear()
    printer.stop()
    printer.stop()
    flush()
    assert capfd.readouterr().out.splitlines()[-1] == "Models: 1 of 1 done"


def test_pages_come_first_and_every_address_is_the_one_that_users_reach() -> None:
    base = "https://lab.example/pathline"
    lines = [line for line in greeting(base, ["digits"], needs_key=False).splitlines() if line]
    assert base in lines[0]
    assert [line.split()[-1] for line in lines[1:3]] == [f"{base}/", f"{base}/docs"]
    addresses = [line for line in lines if "://" in line]
    assert all(base in line for line in addresses)
    assert len(addresses) == 6
    assert "Authorization" not in "".join(lines)


def test_the_interpreter_is_one_that_is_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # such as a container
    assert "\n  python -c 'from pathline" in greeting("http://x", ["moons"], needs_key=False)


def test_only_changed_settings_are_printed() -> None:
    assert "All settings are at their defaults." in opening(Settings.model_construct())
    changed = Settings.model_construct(port=9001)
    assert opening(changed).splitlines()[:2] == ["Settings that differ from the defaults:", "  PATHLINE_PORT = 9001"]


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
