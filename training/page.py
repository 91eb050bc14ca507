"""The report on a model as one page of HTML, `report.html` beside its weights: words, tables and pictures.

It needs no network and no script. The service does not serve it.
"""

import base64
from collections.abc import Iterator, Sequence
from html import escape

import numpy as np
import torch
from numpy.typing import NDArray

from models import pictures
from training.dataset import DataSet
from training.evaluation import Draw
from training.report import Correlations, GroupReport, SampleReport

PAGE_FILE = "report.html"

_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; max-width: 68rem; margin: 1.5rem auto; padding: 0 1rem; }
:root { color-scheme: light dark; } .warning { color: #c33; } h2 { margin: 1.6rem 0 .4rem; font-size: 1.1rem; }
table { border-collapse: collapse; display: block; overflow-x: auto; } td, th { padding: .15rem .7rem .15rem 0; }
td, th { text-align: right; vertical-align: bottom; } td { white-space: nowrap; vertical-align: middle; }
td:first-child, th:first-child { text-align: left; white-space: normal; }
.pair { display: flex; flex-wrap: wrap; gap: 1.5rem; } figure { margin: 0; } img { max-width: 100%; width: 26rem; }
svg { width: 8rem; min-width: 8rem; height: 1.8rem; vertical-align: middle; overflow: visible; }
polyline { fill: none; stroke-width: 2; }
.data { stroke: #888; color: #888; } .samples { stroke: #e07; color: #e07; }
.cell td:not(:first-child) { padding: .15rem .5rem; }
"""

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
    lines = [
        f"<li{' class=warning' * line.startswith('WARNING: ')}>"
        + escape(line.removeprefix("is it any good? ").removeprefix("WARNING: "))
        for line in report.lines()
    ]
    parts = [
        "<!doctype html><html lang=en><meta charset=utf-8><meta name=viewport content='width=device-width'>",
        f"<title>{escape(title)}</title><style>{_STYLE}</style><h1>{escape(title)}: is it any good?</h1>",
        "<ul>", *lines, "</ul>",
        *_sheets(samples, held_out, data, real),
        *_overall(report),
        *_columns(report, samples, held_out),
        *_groups("By class", report.classes), *_groups("By condition", report.ranges),
        *(_correlations(report.correlations) if report.correlations else ()),
    ]  # fmt: skip
    return "\n".join(parts)


def _table(head: Sequence[str], rows: Sequence[Sequence[str]], kind: str = "") -> str:
    """Return a table; cells are HTML."""
    lines = [f"<table class='{kind}'><tr>", *(f"<th>{name}" for name in head)]
    for row in rows:
        lines += ["<tr>", *(cell if cell.startswith("<td") else f"<td>{cell}" for cell in row)]
    return "".join([*lines, "</table>"])


def _overall(report: SampleReport) -> Iterator[str]:
    yield "<h2>All samples</h2>"
    rows = [
        ("a judge tells samples from unseen data in", f"{report.told_apart:.1%}", "50%"),
        ("it may do so by chance in up to", f"{report.by_chance:.1%}", ""),
        ("it tells training data from unseen data in", f"{report.real_told_apart:.1%}", "50%"),
        ("samples nearer to training data than half of the unseen data are", f"{report.nearer:.1%}", "50%"),
        ("samples that did not reach t = 1", str(report.failed), "0"),
    ]
    yield _table(("", "", "right"), rows)


def _columns(report: SampleReport, samples: NDArray[np.float64], real: NDArray[np.float64]) -> Iterator[str]:
    if not report.columns:
        return
    yield "<h2>By column</h2><p><b class=samples>samples</b>, <b class=data>unseen rows</b>"
    rows = [
        [
            f"<td{' class=warning' if column.far else ''}>{escape(column.name)}",
            _histogram(samples[:, place], real[:, place]),
            f"{column.distance:.2f}",
            *(
                "{} ... <b>{}</b> ... {}".format(*map(_number, quantiles))
                for quantiles in (column.samples, column.data)
            ),
        ]
        for place, column in enumerate(report.columns[:_COLUMNS])
    ]
    by_chance = f"distance (chance: {report.columns[0].by_chance:.2f})"
    yield _table(("column", "", by_chance, "95% and median of samples", "of unseen rows"), rows)


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 10_000 else f"{value:.4g}"


def _histogram(samples: NDArray[np.float64], real: NDArray[np.float64]) -> str:
    low, high = np.quantile(real, [0.02, 0.98])
    edges = np.linspace(low, high if high > low else low + 1, _BINS + 1)
    shares = [np.histogram(values.clip(edges[0], edges[-1]), edges)[0] / len(values) for values in (real, samples)]
    most = max(float(share.max()) for share in shares)
    lines = [
        f"<polyline class={name} points='"
        + " ".join(f"{x * 100 / (_BINS - 1):.1f},{24 * (1 - y / most):.1f}" for x, y in enumerate(share))
        + "'/>"
        for name, share in zip(("data", "samples"), shares, strict=True)
    ]
    return f"<svg viewBox='0 0 100 24' preserveAspectRatio=none>{''.join(lines)}</svg>"


def _groups(title: str, groups: Sequence[GroupReport]) -> Iterator[str]:
    if not groups:
        return
    yield f"<h2>{title}</h2>"
    rows = [
        [
            f"<td{' class=warning' if group.far or group.lost else ''}>{escape(group.name)}",
            f"{group.trained:,}",
            f"{group.rows:,}",
            *(
                "-" if share is None else f"{share:.0%}"
                for share in (group.told_apart, group.recognised, group.recognised_real)
            ),
        ]
        for group in groups
    ]
    head = ("", "rows to train on", "unseen rows", "judge is right", "samples recognised", "unseen rows recognised")
    yield _table(head, rows)


def _correlations(correlations: Correlations) -> Iterator[str]:
    yield "<h2>Correlations (Spearman's)</h2><div class=pair>"
    for title, matrix in (("samples", correlations.samples), ("training rows", correlations.data)):
        rows = [
            [escape(name), *(f"<td style='background:{_colour(value)}'>{value:.2f}" for value in row)]
            for name, row in zip(correlations.columns, matrix, strict=True)
        ]
        table = _table(("", *map(escape, correlations.columns)), rows, "cell")
        yield f"<figure><figcaption>{title}</figcaption>{table}</figure>"
    yield "</div>"


def _colour(value: float) -> str:
    return f"rgb({'238 0 119' if value > 0 else '0 120 238'} / {abs(value) * 0.6:.2f})"


def _sheets(samples: NDArray[np.float64], held_out: NDArray[np.float64], data: DataSet, real: bool) -> Iterator[str]:
    """Yield sheets of samples and of real pictures, or scatter plots of points in the plane; nothing for other data."""
    try:
        most = pictures.most(samples.shape[1:])
    except pictures.PictureError:
        return
    count = min(len(samples), len(held_out), most)
    if not count:
        return
    yield "<h2>Samples beside real data</h2><div class=pair>"
    for title, shown in (("samples", samples), ("unseen data", held_out)) if real else (("samples", samples),):
        drawing = base64.b64encode(pictures.draw(shown[:count], data.decoder.config.clip)).decode()
        image = f"<img alt='{title}' src='data:image/png;base64,{drawing}'>"
        yield f"<figure><figcaption>{title}</figcaption>{image}</figure>"
    yield "</div>"
