import re
from pathlib import Path

from studies.experiments.report import Section, write_report
from studies.experiments.run import EXPERIMENTS
from studies.experiments.sizes import FULL

ROOT = Path(__file__).parents[3]
TIMES = re.compile(
    r"The experiments took (\d+) minutes, including the training they waited for; the training steps took (\d+)\. "
    r"Both are summed over all processes"
)


def test_training_inside_an_experiment_is_not_reported_as_additional_time(tmp_path: Path):
    sections = [Section(EXPERIMENTS[0], None, 120.0, "gone"), Section(EXPERIMENTS[1], None, 180.0, "gone")]
    text = write_report(tmp_path, FULL, sections, training_s=240.0).read_text()
    found = TIMES.search(text)
    assert found is not None
    assert found.groups() == ("5", "4")


def test_the_committed_report_says_it_in_the_same_words():
    found = TIMES.search((ROOT / "studies" / "paper" / "REPORT.md").read_text())
    assert found is not None
    assert found.groups() == ("88", "69")
