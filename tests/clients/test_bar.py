"""The progress bar: its text, and that it is drawn only on a terminal and erased when the work is done."""

import io
import time

import pytest
from pathline import _bar
from pathline._bar import Bar, text


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("share", "elapsed_s", "left", "shown"),
    [
        (0.0, 12.3, None, f"[{' ' * 30}]   0 %, 12 s"),
        (0.2, 12.0, 48.2, f"[{'#' * 6}{' ' * 24}]  20 %, 12 s, about 48 s left"),
        (0.5, 200.0, 200.0, f"[{'#' * 15}{' ' * 15}]  50 %, 3 min 20 s, about 3 min 20 s left"),
        (1.5, 3.0, 0.0, f"[{'#' * 30}] 100 %, 3 s, about 0 s left"),
    ],
)
def test_what_it_says(share: float, elapsed_s: float, left: float | None, shown: str) -> None:
    assert text(share, elapsed_s, left) == shown
    assert len(shown) < 80


@pytest.mark.parametrize("error", [None, ValueError("full")])
def test_it_moves_while_nothing_comes_and_is_gone_at_the_end(
    monkeypatch: pytest.MonkeyPatch, error: Exception | None
) -> None:
    stream = Terminal()
    monkeypatch.setattr("sys.stderr", stream)
    monkeypatch.setattr(_bar, "_EVERY_S", 0.01)
    try:
        with Bar() as shown:
            shown.update(0.25, 3.0)
            end = time.monotonic() + 60
            while stream.getvalue().count("25 %") < 2 and time.monotonic() < end:
                time.sleep(0.01)
            if error:
                raise error
    except ValueError:
        pass
    lines = stream.getvalue().split("\r")
    assert sum("25 %" in line for line in lines) >= 2
    assert not lines[-1]
    assert lines[-2].strip() == ""
    assert len(lines[-2]) == max(map(len, lines))


def test_it_is_drawn_within_the_first_second_before_anything_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    stream, waits = Terminal(), []

    class Clock:
        """The bar's event: time passes at once, and the work is over after the first drawing."""

        def wait(self, timeout: float) -> bool:
            waits.append(timeout)
            return len(waits) > 1

    monkeypatch.setattr("sys.stderr", stream)
    shown = Bar()
    monkeypatch.setattr(shown, "_over", Clock())
    shown._draw()
    assert 0 < waits[0] < 1
    assert stream.getvalue().split("\r")[1] == text(0.0, 0.0, None)


def test_short_work_and_files_see_none_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    for stream in (Terminal(), io.StringIO()):
        monkeypatch.setattr("sys.stderr", stream)
        if not stream.isatty():
            monkeypatch.setattr(_bar, "_EVERY_S", 0.01)
        with Bar() as shown:
            shown.update(0.5, 1.0)
            time.sleep(0.05 if not stream.isatty() else 0)
        assert stream.getvalue() == ""
