"""The command `python -m studies`."""

from pathlib import Path

import pytest

from studies.__main__ import main


def test_paper_refuses_what_it_does_not_know(capsys: pytest.CaptureFixture[str], tmp_path: Path):
    out = str(tmp_path / "out")
    assert main(["paper", "--only", "figure1", "--out", out]) == 2
    assert "--only is 'figure1'; experiments are convergence" in capsys.readouterr().err
    assert main(["paper", "--threads", "0", "--out", out]) == 2
    assert "--threads is 0; it must be 1 or more" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_paper_writes_a_report(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    assert main(["paper", "--quick", "--only", "numbers", "--out", str(tmp_path)]) == 0
    assert "quick run at reduced size" in (tmp_path / "quick" / "REPORT.md").read_text()
    (tmp_path / "file").touch()
    assert main(["paper", "--only", "numbers", "--out", str(tmp_path / "file")]) == 1
    assert "cannot be written to" in capsys.readouterr().err
