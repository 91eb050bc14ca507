"""What the clients return: frozen objects around NumPy arrays."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Mapping
from dataclasses import dataclass, field
from html import escape
from typing import Any

import numpy as np

from pathline._picture import draw

_SHOWN_POINTS, _SHOWN_PICTURES = 20_000, 64  # that a notebook shows


@dataclass(frozen=True)
class Latency:
    """Where the time of a request went, in seconds, as the service measured it; None where it did not say.

    Attributes:
        queue_s: Waiting for the first network call.
        solve_s: From the first to the last network call.
        network_s: Wall time of the network calls the request took part in.
        encode_s: Encoding the answer.
        total_s: All together.
    """

    queue_s: float | None = None
    solve_s: float | None = None
    network_s: float | None = None
    encode_s: float | None = None
    total_s: float | None = None

    def __str__(self) -> str:
        parts = {name[:-2]: value for name, value in vars(self).items() if value is not None}
        return ", ".join(f"{name} {1000 * value:.1f} ms" for name, value in parts.items()) or "not reported"


@dataclass(frozen=True, eq=False)
class Trace:
    """Attempted steps, one entry each; empty where none was asked for.

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


@dataclass(frozen=True)
class Failure:
    """A sample that did not reach the end.

    Attributes:
        index: Its row in the answer.
        status: Why: max_nfe, non_finite, step_underflow, cancelled or deadline.
        t: The time it reached, or None.
    """

    index: int
    status: str
    t: float | None


@dataclass(frozen=True, eq=False, repr=False)
class SampleResult:
    """Samples, what they cost, and how to get them again.

    Attributes:
        samples: The samples, shape (n, *data_shape).
        nfe: Sequential velocity evaluations of the slowest sample.
        nfe_per_sample: Velocity evaluations of each sample, shape (n,), int64; -1 in a streamed result.
        status: ``"success"`` when all samples are, else the worst.
        status_per_sample: Status of each sample, shape (n,), strings.
        t: Time that each sample reached, shape (n,), float64.
        failed: The samples that did not reach the end.
        trace: The steps taken.
        latency: Where the time went.
        model: Name of the model.
        version: Its version.
        checkpoint: Digest of its files.
        seed: Seed of the starting noise; with it, the call can be repeated exactly.
        first_index: Index of the first sample in the seed's stream.
        solver: The solver as it was used: its name and every parameter that belongs to it.
        deterministic: Whether the service promises the same bits for the same request.
        saved: States at the times of `save_at`, shape (n, times, *data_shape), or None.
        saved_t: Those times, or None.
        extra: Members of the answer that this version of the SDK does not know.
    """

    samples: np.ndarray
    nfe: int
    nfe_per_sample: np.ndarray
    status: str
    status_per_sample: np.ndarray
    t: np.ndarray
    failed: tuple[Failure, ...]
    trace: Trace
    latency: Latency
    model: str
    version: int
    checkpoint: str
    seed: int
    first_index: int
    solver: Mapping[str, Any]
    deterministic: bool
    saved: np.ndarray | None = None
    saved_t: np.ndarray | None = None
    extra: Mapping[str, Any] = field(default_factory=dict)

    @property
    def fallback_from(self) -> int | None:
        """The version that should have answered but cannot be loaded, so that an older one did; None as a rule."""
        return self.extra.get("fallback_from")

    @property
    def ok(self) -> bool:
        """Whether every sample reached the end."""
        return self.status == "success"

    def __len__(self) -> int:
        return len(self.samples)

    def __repr__(self) -> str:
        return (
            f"SampleResult({len(self)} samples of {self.model} v{self.version} by {solver_label(self.solver)}, "
            f"nfe={self.nfe}, status={self.status}, seed={self.seed})"
        )

    def picture(self, most: int | None = None) -> bytes:
        """Return the samples as a PNG: points in the plane as a scatter plot, pictures as a sheet.

        Args:
            most: Draw only the first so many.

        Raises:
            ValueError: Samples of this shape, or so many, cannot be drawn; the message says what can.
        """
        return draw(self.samples[:most])

    def _repr_png_(self) -> bytes | None:
        """Return the picture that a notebook shows, or None where there is none to show."""
        try:
            return self.picture(_SHOWN_POINTS if self.samples.shape[1:] == (2,) else _SHOWN_PICTURES)
        except ValueError:
            return None

    def _repr_html_(self) -> str:
        """Return what a notebook shows: the summary and the picture."""
        png = self._repr_png_()
        image = "" if png is None else f'<img alt="samples" src="data:image/png;base64,{b64encode(png).decode()}">'
        return f"<pre>{escape(str(self))}</pre>{image}"

    def __str__(self) -> str:
        nfe = self.nfe_per_sample
        spread = (
            f" (per sample: min {nfe.min()}, mean {nfe.mean():.1f}, max {nfe.max()})"
            if len(nfe) and nfe.min() >= 0
            else ""
        )
        lines = [
            f"{self.model} v{self.version}, {solver_label(self.solver)}, seed {self.seed}"
            + (f", from index {self.first_index}" if self.first_index else ""),
            f"  samples  {self.samples.shape} {self.samples.dtype}",
            f"  nfe      {self.nfe}{spread}",
            f"  status   {self.status}" + (f" ({len(self.failed)} of {len(self)} failed)" if self.failed else ""),
            f"  latency  {self.latency}",
        ]
        if self.fallback_from is not None:
            lines.append(f"  note     version {self.fallback_from} cannot be loaded; this is an older one")
        if not self.deterministic:
            lines.append("  note     not deterministic: the service cannot promise the same bits again")
        return "\n".join(lines)


def solver_label(solver: Mapping[str, Any]) -> str:
    """Return a short name of a solver as it was used, as `compare` takes it: ``rk4-20`` or ``dopri5@1e-5``.

    Where the two tolerances differ it is ``dopri5 (rtol 1e-5, atol 1e-7)``, for people only.
    """
    name = str(solver.get("name", "?"))
    if solver.get("steps") is not None:
        return f"{name}-{solver['steps']}"
    given = {key: _short(solver[key]) for key in ("rtol", "atol") if isinstance(solver.get(key), (int, float))}
    if len(given) == 2 and given["rtol"] == given["atol"]:
        return f"{name}@{given['rtol']}"
    return f"{name} ({', '.join(f'{key} {value}' for key, value in given.items())})" if given else name


def _short(value: float) -> str:
    """Return a tolerance as people write it: 1e-5, not 1e-05 and not 0.00001."""
    power = f"{value:.0e}"
    mantissa, _, exponent = (power if float(power) == value else f"{value:g}").partition("e")
    return f"{mantissa}e{int(exponent)}" if exponent else mantissa
