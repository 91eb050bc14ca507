"""Export: the rows of a job in one file, as `training` reads data and pairs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from fleet.bulk.target import Target
from fleet.errors import FleetError, UsageError


def export(target: Target, file: Path) -> int:
    """Write all samples of a complete job to a .npy file, or with their labels or conditions to a .npz file.

    Returns:
        The number of rows.

    Raises:
        UsageError: there is no job, it is not complete, or the file's name ends otherwise.
        FleetError: the file cannot be written.
    """
    spec = target.spec()
    if spec is None:
        raise UsageError(f"{target.url}: holds no job")
    if file.suffix not in (".npy", ".npz"):
        raise UsageError(f"{file}: give a name that ends in .npy (samples alone) or .npz (with labels or conditions)")
    done = target.done()
    if len(done) < spec.shards:
        raise UsageError(f"{target.url}: {spec.shards - len(done)} shards are missing; make them first")
    parts = [target.read(spec, shard) for shard in range(spec.shards)]
    samples = np.concatenate([part.samples for part in parts])
    given = [part.condition for part in parts if part.condition is not None]
    named: dict[str, Any] = {"samples": samples.reshape(len(samples), -1) if file.suffix == ".npz" else samples}
    if given:
        conditions = np.concatenate(given)
        named["labels" if conditions.ndim == 1 else "conditions"] = conditions
    temporary = file.with_name(f".{file.name}.part")
    try:
        with temporary.open("wb") as handle:
            np.savez(handle, **named) if file.suffix == ".npz" else np.save(handle, samples)
        temporary.replace(file)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise FleetError(f"{file}: cannot be written: {error.strerror}; make room or name another place") from None
    return len(samples)
