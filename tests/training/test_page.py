"""The page of a report: one file with words, tables and pictures."""

import re
from html.parser import HTMLParser

import numpy as np
import pytest
import torch

from models.conditions import NamedCondition
from models.decoder import ColumnCard, Decoder
from training.comparison import report_on
from training.dataset import DataSet
from training.evaluation import Draw
from training.page import page

RNG = np.random.default_rng(2)


class Tags(HTMLParser):
    """Collects the text of a page, and checks that nothing is fetched or run."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.text: list[str] = []
        self.images: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert tag not in ("script", "link", "iframe")
        if tag == "img":
            source = dict(attrs)["src"] or ""
            assert source.startswith("data:image/png;base64,")
            self.images.append(source)

    def handle_data(self, data: str) -> None:
        self.text.append(data.strip())


def drawn(states: np.ndarray) -> Draw:
    return Draw(states.astype(np.float64), np.arange(len(states)), len(states), "euler-1", np.ones(len(states), int))


def data_of(rows: np.ndarray, held_out: np.ndarray, decoder: Decoder, classes: int = 0) -> DataSet:
    labels = [RNG.integers(0, classes, len(part)) if classes else None for part in (rows, held_out)]
    condition = NamedCondition.label(classes, ("cat", "<dog>")) if classes else None
    train, unseen = rows.astype(np.float32), held_out.astype(np.float32)
    return DataSet(train, unseen, train, "held-out rows", decoder, {}, condition, labels[0], labels[1])


def test_rows_have_all_tables_and_their_names_are_text():
    def rows(count: int) -> np.ndarray:
        x = RNG.normal(size=(count, 3))
        x[:, 1] += 2 * x[:, 0]
        return x

    names = ("area", "<b>price</b>", "n")
    columns = tuple(ColumnCard(name=name, low=-5, high=5) for name in names)
    decoder = Decoder.affine(torch.ones(3), torch.zeros(3), columns=columns)
    data, samples = data_of(rows(500), rows(200), decoder, classes=2), drawn(rows(200))
    report = report_on(samples, data, 0)
    text = page("houses v1", report, samples, data, real=True)
    shown = Tags(text)
    for word in ("All samples", "By column", "By class", "Correlations (Spearman's)", "<b>price</b>", "<dog>"):
        assert word in shown.text, word
    assert shown.images == []
    assert text.count("<svg") == 3
    assert f"{report.told_apart:.1%}" in shown.text
    assert report.correlations is not None
    assert shown.text.count(f"{report.correlations.samples[0][1]:.2f}") >= 2
    words = [line for line in report.lines() if "correlated as in the data" in line]
    assert re.search(r"area and <b>price</b> 0\.\d\d \(0\.\d\d\)", words[0])
    praise = "\n".join(report.lines())
    for sentence in (
        "each column is as in the data: the worst",
        "by class, the judge is right in",
        "no sign of memorising",
    ):
        assert sentence in praise
    assert not any(line.startswith("WARNING") for line in report.lines())


def test_pictures_are_beside_real_ones_unless_these_are_private():
    def pictures(count: int) -> np.ndarray:
        return RNG.uniform(-1, 1, (count, 64))

    decoder = Decoder.affine(torch.full((64,), 0.5), torch.full((64,), 0.5), data_shape=(8, 8), clip=(0.0, 1.0))
    data, samples = data_of(pictures(60), pictures(30), decoder), drawn(pictures(30))
    report = report_on(samples, data, 0)
    for real in (True, False):
        shown = Tags(page("shapes v1", report, samples, data, real))
        assert len(shown.images) == 1 + real
        assert ("unseen data" in shown.text) is real


def test_of_large_pictures_the_sheets_have_fewer(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("models.pictures.MAX_PIXELS", 1 << 16)
    side = 64
    decoder = Decoder.pca(torch.zeros(side**2), torch.ones(2, side**2), torch.ones(2), (side, side), (0.0, 1.0))
    data, samples = (
        data_of(RNG.normal(size=(60, 2)), RNG.normal(size=(20, 2)), decoder),
        drawn(RNG.normal(size=(20, 2))),
    )
    shown = Tags(page("maps v1", report_on(samples, data, 0), samples, data, real=False))
    assert len(shown.images) == 1
