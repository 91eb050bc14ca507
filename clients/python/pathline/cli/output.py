"""Output of the commands: standard output, and writers that put samples into a file page by page."""

from __future__ import annotations

import json
import sys
import zipfile
from collections.abc import Callable, Iterable, Iterator
from typing import IO, Any

import numpy as np

from pathline._files import numbers, write_csv
from pathline._plot import draw, refusal
from pathline._response import printable
from pathline._results import SampleResult

STDOUT = "standard output"

_OF_A_PAGE = ("first_index", "shape", "status", "digest", "request")
_COLUMNS = ("sample", "t", "h", "error", "accepted")


def show(text: str) -> None:
    """Print to standard output, without buffering.

    Raises:
        BrokenPipeError: The reader has gone.
        OSError: It cannot be written; the error's `filename` is `STDOUT`.
    """
    try:
        print(printable(text), flush=True)
    except BrokenPipeError:
        raise
    except OSError as error:
        raise OSError(error.errno, error.strerror, STDOUT) from error


def note(text: str) -> None:
    """Print to standard error what is not the result."""
    print(printable(text), file=sys.stderr)


class Tally:
    """Passes pages on and keeps everything except their samples, so that a million need the memory of one page.

    Args:
        pages: The results, in order.
        total: Number of samples in all pages together.
    """

    def __init__(self, pages: Iterable[SampleResult], total: int) -> None:
        self.total = total
        self._pages = pages
        self._done = 0
        self._metas: list[dict[str, Any]] = []
        self._arrays: dict[str, list[np.ndarray]] = {name: [] for name in ("nfe", "t", "status")}
        self._trace: dict[str, list[np.ndarray]] = {name: [] for name in _COLUMNS}
        self.failed: list[dict[str, Any]] = []

    def pages(self) -> Iterator[SampleResult]:
        """Yield each page, then record everything except its samples."""
        for page in self._pages:
            yield page
            for name, array in {"nfe": page.nfe_per_sample, "t": page.t, "status": page.status_per_sample}.items():
                self._arrays[name].append(array)
            if page.log_prob is not None:
                self._arrays.setdefault("log_prob", []).append(page.log_prob)
            for name in _COLUMNS:
                column = getattr(page.trace, name)
                self._trace[name].append(column + self._done if name == "sample" else column)
            self.failed += [{**vars(failure), "index": failure.index + self._done} for failure in page.failed]
            self._metas.append(page.describe())
            self._done += len(page)

    @property
    def status(self) -> str:
        """``success`` if that of every page is, else the status of the first page that failed."""
        return next((meta["status"] for meta in self._metas if meta["status"] != "success"), "success")

    def describe(self) -> dict[str, Any]:
        """Return everything except the arrays, as plain values; times are summed over the pages."""
        metas = self._metas
        latency = {key: sum(meta["latency"][key] or 0.0 for meta in metas) for key in metas[0]["latency"]}
        whole: dict[str, Any] = {"num_samples": self._done, "nfe": max(meta["nfe"] for meta in metas)}
        whole["status"] = self.status
        if len(metas) > 1:  # each page has its own
            whole["pages"] = [{name: meta[name] for name in _OF_A_PAGE if name in meta} for meta in metas]
            whole["shape"] = [self._done, *metas[0]["shape"][1:]]
        return {**metas[0], **whole, "failed": self.failed, "latency": latency}

    def log_densities(self) -> dict[str, Any]:
        """Return the log-densities of steps as nested lists, null where not finite; empty without them."""
        pages = self._arrays.get("log_prob")
        return {} if pages is None else {"log_prob": numbers(np.concatenate(pages))}

    def entries(self) -> dict[str, np.ndarray]:
        """Return the arrays of an npz file other than the samples."""
        meta = self.describe()
        arrays = {name: np.concatenate(parts) for name, parts in self._arrays.items()}
        arrays |= {f"trace_{name}": np.concatenate(parts) for name, parts in self._trace.items()}
        return {**arrays, "meta": np.frombuffer(json.dumps(meta).encode(), np.uint8)}

    def summary(self) -> str:
        """Return a summary of two lines."""
        meta = self.describe()
        mean = np.concatenate(self._arrays["nfe"]).mean()
        return (
            f"{meta['model']} v{meta['version']}, {meta['num_samples']} samples by {meta['solver']['text']}, "
            f"seed {meta['seed']}\nnfe {meta['nfe']} (mean {mean:.1f}), {1000 * meta['latency']['total_s']:.1f} ms "
            f"in the service, {meta['status']}"
        )


def write_npy(file: IO[bytes], tally: Tally) -> None:
    """Write the samples alone as one array."""
    for number, page in enumerate(tally.pages()):
        samples = np.ascontiguousarray(page.samples)
        if number == 0:
            header = np.lib.format.header_data_from_array_1_0(samples)
            np.lib.format.write_array_header_1_0(file, {**header, "shape": (tally.total, *samples.shape[1:])})
        file.write(samples.reshape(-1).view(np.uint8).data)


def write_rows(file: IO[bytes], tally: Tally) -> None:
    """Write one line for each sample, one column for each number, after a line of names: the model's or ``x0,x1``."""
    for number, page in enumerate(tally.pages()):
        write_csv(file, page.named(page.samples, written=True), head=number == 0)


def write_npz(file: IO[bytes], tally: Tally) -> None:
    """Write the whole response, with the entries of the service's own npz: samples, nfe, t, status, trace_*, meta."""
    with zipfile.ZipFile(file, "w") as archive:
        with archive.open("samples.npy", "w", force_zip64=True) as entry:
            write_npy(entry, tally)
        for name, array in tally.entries().items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as entry:
                np.lib.format.write_array(entry, array, allow_pickle=False)


def write_json(file: IO[bytes], tally: Tally) -> None:
    """Write one object: the samples as nested lists (null where not finite), then the rest of the responses."""
    for number, page in enumerate(tally.pages()):
        rows = json.dumps(numbers(page.samples), allow_nan=False, separators=(",", ":"))[1:-1]
        file.write((('{"samples":[' if number == 0 else ",\n") + rows).encode())
    meta = json.dumps(tally.describe() | tally.log_densities(), allow_nan=False)
    file.write(b"],\n" + meta[1:].encode() + b"\n")


def write_png(file: IO[bytes], tally: Tally) -> None:
    """Write a picture: a scatter plot of points in the plane, or a sheet of pictures."""
    pages = []
    for page in tally.pages():
        if why := refusal(tally.total, page.samples.shape[1:]):
            raise ValueError(why)
        pages.append(page.samples)
    file.write(draw(np.concatenate(pages), scale=3))


FORMATS: dict[str, Callable[[IO[bytes], Tally], None]] = {
    ".npz": write_npz,
    ".npy": write_npy,
    ".png": write_png,
    ".csv": write_rows,
    ".json": write_json,
}
"""Writer for each extension."""
