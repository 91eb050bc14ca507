"""The page of a training's report, in a browser."""

import numpy as np
import pytest
import torch
from playwright.sync_api import BrowserContext

from models.decoder import ColumnCard, Decoder
from training.comparison import report_on
from training.dataset import DataSet
from training.evaluation import Draw
from training.page import page


@pytest.mark.parametrize("width", [1280, 390])
def test_wide_tables_scroll_by_themselves_and_names_are_text(browser: BrowserContext, width: int) -> None:
    names = ["<script>alert(1)</script>", "\"' onmouseover='alert(1)", "{{ 7 * 7 }} %s", "</style>&amp;"]
    names += [f"a_long_name_of_column_{k}" for k in range(4)]
    columns = tuple(ColumnCard(name=name, low=-5, high=5) for name in names)
    rows = np.random.default_rng(0).normal(size=(100, len(names))).astype(np.float32)
    decoder = Decoder.affine(torch.ones(len(names)), torch.zeros(len(names)), columns=columns)
    data = DataSet(rows, rows[:50], rows, "held-out rows", decoder)
    drawn = Draw(rows[50:].astype(np.float64), np.arange(50), 50, "euler-1", np.ones(50, int))
    tab = browser.new_page()
    try:
        tab.set_viewport_size({"width": width, "height": 800})
        tab.set_content(page("houses v1", report_on(drawn, data, 0), drawn, data, real=True))
        assert tab.evaluate("document.documentElement.scrollWidth") <= width
        assert tab.locator("script, [onmouseover]").count() == 0
        for name in names:
            assert tab.get_by_role("cell", name=name, exact=True).count() == 3, name
        assert tab.locator("figure th", has_text=names[0]).count() == 2
    finally:
        tab.close()
