from __future__ import annotations

import re
from pathlib import Path

import pytest

README = Path(__file__).parents[2] / "clients" / "python" / "README.md"
BLOCKS = re.findall(r"^```python\n(.*?)^```", README.read_text(), re.MULTILINE | re.DOTALL)


@pytest.mark.usefixtures("live")
def test_the_examples_run_one_after_the_other(capsys: pytest.CaptureFixture[str]) -> None:
    assert len(BLOCKS) == 3
    names: dict[str, object] = {}
    for block in BLOCKS:
        exec(compile(block, README.name, "exec"), names)  # noqa: S102 - our own text
    out = capsys.readouterr().out
    assert "moons v3, rk4-20, seed 0" in out
    assert "ab3-12: the cheapest" in out
    assert "\n950000 " in out
