"""Results of the clients: frozen objects around NumPy arrays that notebooks can show, draw and convert."""

from __future__ import annotations

from abc import ABC, abstractmethod
from base64 import b64encode
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from pathline import _plot
from pathline._files import save
from pathline._plot import draw
from pathline._show import page_url

if TYPE_CHECKING:
    from os import PathLike

    import torch
    from matplotlib.axes import Axes

_SHOWN_POINTS, _SHOWN_PICTURES = 20_000, 64  # in a notebook
_DISPLAY_SCALE = 2  # pixels of a picture for each pixel of a notebook, for sharp screens


@dataclass(frozen=True)
class Latency:
    """Where the time of a request went, in seconds, as the service measured it; None if not reported.

    Attributes:
        queue_s: Waiting for the first network call.
        solve_s: From the first to the last network call.
        network_s: Wall time of the network calls the request took part in.
        prelude_s, decoder_s: Wall time of the model's prelude and decoder program, if it has them.
        encode_s: Encoding the response.
        total_s: All together.
    """

    queue_s: float | None = None
    solve_s: float | None = None
    network_s: float | None = None
    encode_s: float | None = None
    total_s: float | None = None
    prelude_s: float | None = None
    decoder_s: float | None = None

    def __str__(self) -> str:
        parts = {name[:-2]: value for name, value in vars(self).items() if value is not None}
        return ", ".join(f"{name} {1000 * value:.1f} ms" for name, value in parts.items()) or "not reported"


@dataclass(frozen=True, eq=False)
class Trace:
    """Attempted steps, one entry each; empty if none were requested.

    Attributes:
        sample: Row of the sample, int64.
        t: Time at which the step began.
        h: Its size.
        error: Its error estimate in units of the tolerance; NaN for fixed steps.
        accepted: Whether it was accepted.
        quantiles: Quantiles of h over t of all samples (adaptive summaries only).
    """

    sample: np.ndarray
    t: np.ndarray
    h: np.ndarray
    error: np.ndarray
    accepted: np.ndarray
    quantiles: Mapping[str, np.ndarray] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.sample)

    def __repr__(self) -> str:
        rejected = int(np.count_nonzero(~self.accepted))
        return f"Trace({len(self)} steps of {len(np.unique(self.sample))} samples, {rejected} rejected)"

    def to_dataframe(self) -> Any:
        """Return a pandas DataFrame with one row for each attempted step; needs pandas."""
        columns = ("sample", "t", "h", "error", "accepted")
        return _plot.needed("pandas", "to_dataframe").DataFrame({name: getattr(self, name) for name in columns})

    def plot(self, ax: Axes | None = None) -> Axes:
        """Draw step sizes over t, rejected steps as crosses; needs matplotlib.

        Args:
            ax: Where to draw; by default a new figure.

        Raises:
            ValueError: There are no steps; `sample` reports them with ``trace="summary"`` or ``"full"``.
        """
        return _plot.steps(self.sample, self.t, self.h, self.accepted, ax)


@dataclass(frozen=True)
class Failure:
    """A sample that did not reach the end.

    Attributes:
        index: Its row in the response.
        status: Why: max_nfe, non_finite, step_underflow, cancelled or deadline.
        t: The time it reached, or None.
    """

    index: int
    status: str
    t: float | None


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class ArrayResult(ABC):
    """Base of all results: each acts as its main array, and has its other arrays by name.

    ``np.asarray(result)``, ``len(result)`` and ``result[:10]`` are those of the main array; ``result["nfe"]`` is the
    array of that name.

    Attributes:
        nfe: Sequential velocity evaluations of the slowest sample.
        status: ``"success"`` if that of all samples is, else the worst.
        failed: The samples that did not reach the end.
        latency: Where the time went.
        model: Name of the model.
        version: Its version.
        checkpoint: Digest of its files.
        solver: The solver as it was used: its name and all its parameters.
        deterministic: Whether the service promises the same bits for the same request.
    """

    nfe: int
    status: str
    failed: tuple[Failure, ...]
    latency: Latency
    model: str
    version: int
    checkpoint: str
    solver: Mapping[str, Any]
    deterministic: bool

    def arrays(self) -> dict[str, np.ndarray]:
        """Return all arrays by name, the main one first; those that the service has not sent are left out."""
        return {name: value for name, value in vars(self).items() if isinstance(value, np.ndarray)}

    @property
    def solver_text(self) -> str:
        """The solver with its settings as text, which `sample` takes: ``rk4-20``, ``dopri5@1e-5``."""
        return str(self.solver["text"])

    @property
    def ok(self) -> bool:
        """Whether every sample reached the end."""
        return self.status == "success"

    @property
    def _main(self) -> np.ndarray:
        return next(iter(self.arrays().values()))

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        main = self._main
        array = main if dtype is None else main.astype(dtype, copy=False)
        if copy is False and array is not main:
            raise ValueError(f"an array of {main.dtype} cannot become one of {np.dtype(dtype)} without a copy")
        return array.copy() if copy and array is main else array

    def __getitem__(self, key: Any) -> Any:
        if not isinstance(key, str):
            return self._main[key]
        arrays = self.arrays()
        if key not in arrays:
            raise KeyError(f"{key!r} is not an array of this result; use one of {', '.join(arrays)}")
        return arrays[key]

    def __len__(self) -> int:
        return len(self._main)

    def __iter__(self) -> Iterator[Any]:
        return iter(self._main)

    def to_torch(self) -> torch.Tensor:
        """Return the main array as a tensor that shares its memory; needs torch."""
        return _plot.needed("torch", "to_torch").from_numpy(self._main)

    def to_dataframe(self) -> Any:
        """Return a pandas DataFrame with one row for each sample; needs pandas."""
        return _plot.needed("pandas", "to_dataframe").DataFrame(self._columns())

    def _columns(self, written: bool = False) -> dict[str, np.ndarray]:
        """Return the columns of the table; a main array with several numbers per sample becomes columns (`named`)."""
        columns: dict[str, np.ndarray] = {}
        for name, array in self.arrays().items():
            if array.ndim > 1 and array is self._main:
                columns |= self.named(array, written)
            elif array.shape == (len(self),):
                columns[name] = array
        return columns

    def named(self, rows: np.ndarray, written: bool = False) -> dict[str, np.ndarray]:
        """Return the numbers of rows (n, *shape) by column, (n,) each: x0, x1, ... or the names that the model has.

        Whole and yes/no columns become int64. A name that an array of the result has too gets a line below.

        Args:
            rows: Samples.
            written: As in a CSV file: names have their unit, as in price [EUR], and numbers become text with the
                decimal places of the data, where the model knows them.
        """
        flat = rows.reshape(len(rows), -1)
        described = getattr(self, "extra", {}).get("columns") or []
        if len(described) != flat.shape[1]:
            return {f"x{place}": flat[:, place] for place in range(flat.shape[1])}
        columns = {}
        for place, column in enumerate(described):
            whole = column["kind"] != "number" and np.isfinite(flat[:, place]).all()
            name = column["name"] + "_" * (column["name"] in self.arrays())
            values = flat[:, place].astype(np.int64) if whole else flat[:, place]
            if written and "decimals" in column:
                values = np.char.mod(f"%.{column['decimals']:d}f", values)
            unit = column.get("unit") if written else None
            columns[f"{name} [{unit}]" if unit else name] = values
        return columns

    def save(self, path: str | PathLike[str]) -> Path:
        """Write the result to a file that appears under its name only when it is complete.

        Args:
            path: Ends in .npz (all arrays, and `meta` with the rest as JSON), .npy (the main array), .csv (the table of
                `to_dataframe`), .json, or .png (points or pictures).

        Returns:
            The path.

        Raises:
            ValueError: The extension is none of these, or the result cannot be drawn.
            OSError: The file cannot be written.
        """
        return save(Path(path), self.arrays(), self.describe(), self._columns(written=True), self.picture)

    def describe(self) -> dict[str, Any]:
        """Return everything but the arrays, as plain values."""
        names = ("model", "version", "checkpoint", "seed", "first_index", "deterministic", "nfe", "status")
        values = {name: getattr(self, name) for name in names if hasattr(self, name)}
        values |= {
            name: value
            for name in ("budget", "digest", "request", "environment", "digest_matches")
            if (value := getattr(self, name, None)) not in ("", None, {})
        }
        if columns := getattr(self, "extra", {}).get("columns"):
            values["columns"] = columns
        failed = [vars(failure) for failure in self.failed]
        return {**values, "failed": failed, "solver": dict(self.solver), "latency": vars(self.latency)}

    def picture(self, most: int | None = None, *, scale: int = 3) -> bytes:
        """Return the main array as a PNG: points in the plane as a scatter plot, pictures as a sheet.

        Args:
            most: Draw only the first samples, up to this number.
            scale: Size: a scatter plot is 480 times this many pixels wide; the default, 1440, is 12 cm at 300 dpi.

        Raises:
            ValueError: Samples of this shape or number cannot be drawn; the message says which can.
            ImportError: matplotlib is not installed.
        """
        return draw(self._main[:most], scale)

    def plot(self, ax: Axes | None = None) -> Axes:
        """Draw the main array: points as a scatter plot, pictures as a sheet, numbers as a histogram.

        Args:
            ax: Where to draw; by default a new figure. Needs matplotlib.

        Raises:
            ValueError: Samples of this shape cannot be drawn.
        """
        return _plot.samples(self._main, ax, f"{self.model}, {self.solver_text}")

    def _repr_png_(self) -> bytes | None:
        try:
            return self.picture(_SHOWN_POINTS if self._main.shape[1:] == (2,) else _SHOWN_PICTURES, scale=2)
        except (ValueError, ImportError):  # no picture, or no matplotlib
            return None

    def __repr__(self) -> str:
        return (
            f"{type(self).__name__}({self._what()} of {self.model} v{self.version} by {self.solver_text}, "
            f"nfe={self.nfe}, status={self.status})"
        )

    @abstractmethod
    def _what(self) -> str:
        """Return what the arrays are, and how many."""

    @abstractmethod
    def _facts(self) -> dict[str, str]:
        """Return the lines of the summary, by name."""

    def _title(self) -> str:
        return f"{self.model} v{self.version}, {self.solver_text}"

    def __str__(self) -> str:
        facts = self._facts()
        width = max(map(len, facts))
        return "\n".join([self._title(), *(f"  {name:<{width}}  {value}" for name, value in facts.items())])

    def _repr_html_(self) -> str:
        rows = "".join(
            f'<tr><th style="text-align:left">{escape(name)}</th><td style="text-align:left">{escape(value)}</td></tr>'
            for name, value in self._facts().items()
        )
        url, title = getattr(self, "url", ""), escape(self._title())
        head = f'<a href="{escape(url)}" target="_blank">{title}</a>' if url else title
        png = self._repr_png_()
        image = ""
        if png is not None:
            width = int.from_bytes(png[16:20], "big") // _DISPLAY_SCALE
            data = b64encode(png).decode()
            image = f'<img alt="samples" width="{width}" src="data:image/png;base64,{data}">'
        return f"<div><b>{head}</b><table>{rows}</table>{image}</div>"


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class SampleResult(ArrayResult):
    """Samples, their cost, and everything needed to reproduce them.

    Attributes:
        samples: The samples, shape (n, *data_shape).
        nfe_per_sample: Velocity evaluations of each sample, shape (n,), int64.
        status_per_sample: Status of each sample, shape (n,), strings.
        t: Time that each sample reached, shape (n,), float64.
        trace: The steps taken.
        seed: Seed of the starting noise; with it, the call can be repeated exactly.
        first_index: Index of the first sample in the seed's stream.
        budget: The service's choice for a `Budget`: `solver`, `promised_error`, `reason` and more; empty without one.
        digest: SHA-256 of the bytes of `samples`; empty if the service did not report it.
        request: What else the request said, as `Client.replay` sends it back; long arrays as hashes.
        environment: Versions, device and machine of the service, on which the bits depend.
        digest_matches: For a replay: whether the samples have the bits of the original response; None otherwise.
        differences: For a replay with `force`: why the same bits could not be promised; each has `what`, `answer`,
            `here` and `reason`.
        saved: States at the times of `save_at`, shape (n, times, *data_shape), or None.
        saved_t: Those times, or None.
        log_prob: Log-density of each step, shape (n, steps), with `log_prob` in the request; else None.
        extra: Members of the response that this version of the SDK does not know.
        page: The service's URL and the settings of the request other than the solver, from which `url` is made.
    """

    samples: np.ndarray
    nfe_per_sample: np.ndarray
    status_per_sample: np.ndarray
    t: np.ndarray
    trace: Trace
    seed: int
    first_index: int
    budget: Mapping[str, Any] = field(default_factory=dict)
    digest: str = ""
    request: Mapping[str, Any] = field(default_factory=dict, repr=False)
    environment: Mapping[str, str] = field(default_factory=dict, repr=False)
    digest_matches: bool | None = None
    differences: tuple[Mapping[str, str], ...] = ()
    saved: np.ndarray | None = None
    saved_t: np.ndarray | None = None
    log_prob: np.ndarray | None = None
    extra: Mapping[str, Any] = field(default_factory=dict)
    page: tuple[str, Mapping[str, Any]] = field(default=("", {}), repr=False)

    @property
    def url(self) -> str:
        """Link that opens this request on the service's page, as far as the page has its settings."""
        settings = {"model": self.model, "num_samples": len(self), "seed": self.seed}
        return page_url(self.page[0], {**self.page[1], **settings}, self.solver_text)

    @property
    def fallback_from(self) -> int | None:
        """The version that should have answered but cannot be loaded, so that an older one did; usually None."""
        return self.extra.get("fallback_from")

    def arrays(self) -> dict[str, np.ndarray]:
        """Return all arrays by name: samples, nfe, t, status, and saved and saved_t where states were saved."""
        arrays = {"samples": self.samples, "nfe": self.nfe_per_sample, "t": self.t, "status": self.status_per_sample}
        if self.saved is not None and self.saved_t is not None:
            arrays |= {"saved": self.saved, "saved_t": self.saved_t}
        if self.log_prob is not None:
            arrays["log_prob"] = self.log_prob
        return arrays

    def describe(self) -> dict[str, Any]:
        """Return everything but the arrays, as plain values; enough for `Client.replay`."""
        return {**super().describe(), "shape": list(self.samples.shape)}

    def __repr__(self) -> str:
        return f"{super().__repr__()[:-1]}, seed={self.seed})"

    def _what(self) -> str:
        return f"{len(self)} samples"

    def _title(self) -> str:
        since = f", from index {self.first_index}" if self.first_index else ""
        return f"{super()._title()}, seed {self.seed}{since}"

    def _facts(self) -> dict[str, str]:
        nfe = self.nfe_per_sample
        spread = f" (per sample: min {nfe.min()}, mean {nfe.mean():.1f}, max {nfe.max()})" if len(nfe) else ""
        chosen = {"budget": f"{self.budget['solver']}: {self.budget['reason']}"} if "reason" in self.budget else {}
        facts = {
            **chosen,
            "samples": f"{self.samples.shape} {self.samples.dtype}",
            "nfe": f"{self.nfe}{spread}",
            "status": self.status + (f" ({len(self.failed)} of {len(self)} failed)" if self.failed else ""),
            "latency": str(self.latency),
        }
        notes = []
        if self.fallback_from is not None:
            notes.append(f"version {self.fallback_from} cannot be loaded; this is an older one")
        if not self.deterministic:
            notes.append("not deterministic: the service cannot promise the same bits again")
        return facts | ({"note": "; ".join(notes)} if notes else {})
