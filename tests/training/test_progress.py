import os
import signal
import sys
from typing import Any

import pytest

from training import progress
from training.progress import progress_bar, stop_requests


def test_in_a_log_a_line_now_and_then_with_loss_and_time_left(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    clock = iter(range(100))
    monkeypatch.setattr(progress.time, "monotonic", lambda: float(next(clock)))
    with progress_bar("m", total=40, initial=8) as shown:
        for _ in range(32):
            shown(0.5)
    out, err = capsys.readouterr()
    lines = err.splitlines()
    assert out == ""
    assert 1 <= len(lines) < 8
    assert all("loss 0.5000" in line and line.startswith("m: step ") and line.endswith(" s left") for line in lines)


def test_on_a_terminal_one_bar_that_begins_where_the_run_goes_on(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    with progress_bar("m", total=10, initial=4) as shown:
        for loss in (None, None, 0.25, 0.25, 0.125, 0.125):
            shown(loss)
    err = capsys.readouterr().err
    assert "4/10" in err
    assert "10/10" in err
    assert "loss 0.1250" in err
    assert err.count("\n") == 1


def test_a_signal_is_noted_even_while_the_handlers_are_installed(monkeypatch: pytest.MonkeyPatch):
    before, install = signal.getsignal(signal.SIGINT), signal.signal

    def then_interrupt(number: int, handler: Any) -> Any:
        previous = install(number, handler)
        if number == signal.SIGINT and handler != before:
            os.kill(os.getpid(), signal.SIGINT)
        return previous

    monkeypatch.setattr(progress.signal, "signal", then_interrupt)
    with stop_requests() as received:
        assert received == [signal.SIGINT]
        assert signal.getsignal(signal.SIGINT) == before, "a second Ctrl-C stops at once"
