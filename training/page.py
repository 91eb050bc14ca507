"""The report on a model as one page of HTML, `report.html` beside its weights: words, tables and pictures.

`page.html` is its template, in which Jinja escapes all names. The page needs no network and no script. The service does
not serve it.
"""

import base64
from pathlib import Path

import numpy as np
import torch
from jinja2 import StrictUndefined, Template
from numpy.typing import NDArray

from models import pictures
from training.dataset import DataSet
from training.evaluation import Draw
from training.report import SampleReport

PAGE_FILE = "report.html"

_BINS, _COLUMNS, _PICTURES = 24, 60, 36
"""Bins of a histogram, columns in the table, pictures on each of the two sheets."""


def page(title: str, report: SampleReport, drawn: Draw, data: DataSet, real: bool) -> str:
    """Return the page.

    Args:
        title: name and version of the model.
        report: what was found.
        drawn: the samples.
        data: what they were compared with.
        real: whether pictures of the held-out data may be shown.
    """
    shown = _PICTURES if len(data.decoder.data_shape) > 1 else None  # decoded pictures may be large; of rows, all count
    samples, held_out = (
        data.decoder.decode(torch.from_numpy(np.asarray(states[:shown], np.float32))).double().numpy()
        for states in (drawn.states, data.reference)
    )
    columns = [
        (column, *_histograms(held_out[:, place], samples[:, place]))
        for place, column in enumerate(report.columns[:_COLUMNS])
    ]
    template = Template(Path(__file__).with_suffix(".html").read_text(), autoescape=True, undefined=StrictUndefined)
    return template.render(title=title, report=report, sheets=_sheets(samples, held_out, data, real), columns=columns)


def _histograms(real: NDArray[np.float64], samples: NDArray[np.float64]) -> list[str]:
    """Return the histograms of a column in held-out rows and in samples as points of lines, 100 wide and 24 high."""
    low, high = np.quantile(real, [0.02, 0.98])
    edges = np.linspace(low, high if high > low else low + 1, _BINS + 1)
    shares = [np.histogram(values.clip(edges[0], edges[-1]), edges)[0] / len(values) for values in (real, samples)]
    most = max(float(share.max()) for share in shares)
    return [
        " ".join(f"{x * 100 / (_BINS - 1):.1f},{24 * (1 - y / most):.1f}" for x, y in enumerate(share))
        for share in shares
    ]


def _sheets(
    samples: NDArray[np.float64], held_out: NDArray[np.float64], data: DataSet, real: bool
) -> list[tuple[str, str]]:
    """Return sheets of samples and of real pictures, or scatter plots of points in the plane; none for other data."""
    try:
        count = min(len(samples), len(held_out), pictures.most(samples.shape[1:]))
    except pictures.PictureError:
        return []
    sets = (("samples", samples), ("unseen data", held_out))[: 1 + real if count else 0]
    return [
        (caption, base64.b64encode(pictures.draw(shown[:count], data.decoder.config.clip)).decode())
        for caption, shown in sets
    ]
