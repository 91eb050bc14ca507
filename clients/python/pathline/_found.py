"""What `encode`, `log_prob` and `diagnose` return: frozen objects around NumPy arrays."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from pathline._npz import entry, failures_of, latency_of, member
from pathline._result import Failure, Latency, solver_label


@dataclass(frozen=True, eq=False, repr=False)
class Found:
    """What all three have in common.

    Attributes:
        nfe: Sequential velocity evaluations of the slowest sample.
        network_rows: Rows of all network calls.
        status: ``"success"`` when all samples are, else the worst.
        failed: The samples that did not reach the end; their numbers are NaN.
        latency: Where the time went.
        model: Name of the model.
        version: Its version.
        checkpoint: Digest of its files.
        solver: The solver as it was used.
        deterministic: Whether the service promises the same bits for the same request.
    """

    nfe: int
    network_rows: int
    status: str
    failed: tuple[Failure, ...]
    latency: Latency
    model: str
    version: int
    checkpoint: str
    solver: Mapping[str, Any]
    deterministic: bool

    @property
    def ok(self) -> bool:
        """Whether every sample reached the end."""
        return self.status == "success"

    def __repr__(self) -> str:
        return (
            f"{type(self).__name__}({self._what()} of {self.model} v{self.version} by {solver_label(self.solver)}, "
            f"nfe={self.nfe}, status={self.status})"
        )

    def _what(self) -> str:
        raise NotImplementedError


@dataclass(frozen=True, eq=False, repr=False)
class EncodeResult(Found):
    """The noise behind data.

    Attributes:
        x0: The noise, shape (n, *event_shape), as `sample` takes it.
        residual: For each sample, the largest difference from what its state decodes to; None without a decoder.
    """

    x0: np.ndarray
    residual: np.ndarray | None

    def _what(self) -> str:
        return f"{len(self.x0)} samples"


@dataclass(frozen=True, eq=False, repr=False)
class LogProbResult(Found):
    """Log-densities of data.

    Attributes:
        log_prob: In nats, shape (n,), float64.
        standard_error: Of the mean over probes, shape (n,); None for fewer than two probes.
        residual: As in `EncodeResult`.
        divergence: How it was taken: its `method`, and `probes` and `seed` of an estimate.
    """

    log_prob: np.ndarray
    standard_error: np.ndarray | None
    residual: np.ndarray | None
    divergence: Mapping[str, Any]

    def _what(self) -> str:
        return f"{len(self.log_prob)} log-densities"


@dataclass(frozen=True, eq=False, repr=False)
class DiagnoseResult(Found):
    """Jacobians along the paths of samples, n samples at m times, NaN where a sample did not get to.

    Attributes:
        times: Where they were taken, shape (m,).
        eigenvalues: By ascending real part, shape (n, m, numbers of a state), complex128.
        condition_number: Largest over smallest singular value, shape (n, m); infinite for a singular Jacobian.
        stiffness: How fast the fastest direction contracts, as a rate by t, shape (n, m).
        stiffness_ratio: Largest over smallest absolute real part, shape (n, m).
        seed: Seed of the starting noise.
        first_index: Index of the first sample in the seed's stream.
    """

    times: np.ndarray
    eigenvalues: np.ndarray
    condition_number: np.ndarray
    stiffness: np.ndarray
    stiffness_ratio: np.ndarray
    seed: int
    first_index: int

    def _what(self) -> str:
        return f"{len(self.eigenvalues)} samples at {len(self.times)} times"


def encoded(entries: Mapping[str, np.ndarray], meta: Any) -> EncodeResult:
    """Build the result of `encode`; a ProtocolError if something is missing, as for the others."""
    return EncodeResult(**_common(meta), x0=entry(entries, "x0"), residual=entries.get("residual"))


def densities(entries: Mapping[str, np.ndarray], meta: Any) -> LogProbResult:
    """Build the result of `log_prob`."""
    return LogProbResult(
        **_common(meta),
        log_prob=entry(entries, "log_prob"),
        standard_error=entries.get("standard_error"),
        residual=entries.get("residual"),
        divergence=dict(member(meta, "divergence")),
    )


def diagnosis(entries: Mapping[str, np.ndarray], meta: Any) -> DiagnoseResult:
    """Build the result of `diagnose`."""
    return DiagnoseResult(
        **_common(meta),
        times=np.array(member(meta, "times"), np.float64),
        eigenvalues=entry(entries, "eigenvalues_real") + 1j * entry(entries, "eigenvalues_imag"),
        condition_number=entry(entries, "condition_number"),
        stiffness=entry(entries, "stiffness"),
        stiffness_ratio=entry(entries, "stiffness_ratio"),
        seed=int(member(meta, "seed")),
        first_index=int(member(meta, "first_index")),
    )


def _common(meta: Any) -> dict[str, Any]:
    return {
        "nfe": int(member(meta, "nfe")),
        "network_rows": int(member(meta, "network_rows")),
        "status": str(member(meta, "status")),
        "failed": failures_of(meta),
        "latency": latency_of(meta),
        "model": str(member(meta, "model")),
        "version": int(member(meta, "version")),
        "checkpoint": str(member(meta, "checkpoint")),
        "solver": dict(member(meta, "solver")),
        "deterministic": bool(member(meta, "deterministic")),
    }
