"""Verification: read every row of a job and check it against the receipts."""

from __future__ import annotations

import sys
from dataclasses import dataclass

import numpy as np
from tqdm import tqdm

from fleet.bulk.fingerprint import fingerprint, together
from fleet.bulk.spec import JobSpec
from fleet.bulk.target import Receipt, Target
from fleet.errors import UsageError


@dataclass(frozen=True)
class Verdict:
    """The result of a verification.

    Attributes:
        spec: the job.
        rows: number of correct rows.
        fingerprint: of the correct rows.
        faults: one line each.
        missing: shards without a receipt.
    """

    spec: JobSpec
    rows: int
    fingerprint: str
    faults: list[str]
    missing: list[int]


def verify(target: Target, quiet: bool = False) -> Verdict:
    """Read all shards and check them.

    Raises:
        UsageError: there is no job.
        TargetError: it cannot be read.
    """
    spec = target.spec()
    if spec is None:
        raise UsageError(f"{target.url}: holds no job; check the address")
    done, faults, prints, rows = target.done(), [], [], 0
    for receipt in tqdm(target.receipts(done), total=len(done), unit="shard", disable=quiet, file=sys.stderr):
        found, fault = _check(spec, target, receipt)
        if fault:
            faults.append(f"shard {receipt.shard}: {fault}")
        else:
            prints.append(found)
            rows += receipt.rows
    beyond = sorted(shard for shard in done if shard >= spec.shards)
    faults += [f"shard {shard}: the job has only {spec.shards} shards" for shard in beyond]
    return Verdict(spec, rows, together(prints), faults, sorted(set(range(spec.shards)) - done))


def _check(spec: JobSpec, target: Target, receipt: Receipt) -> tuple[str, str]:
    """Return the fingerprint of a shard, and its fault or an empty string."""
    if receipt.job != spec.digest:
        return "", "its receipt belongs to another job"
    first, count = spec.range(receipt.shard)
    if (receipt.first, receipt.rows) != (first, count):
        return (
            "",
            f"its receipt is for {receipt.rows} rows from {receipt.first}, which belong to other shards",
        )
    try:
        stored = target.read(spec, receipt.shard)
    except ValueError as error:
        return "", f"is damaged: {error}"
    if stored.samples.shape != (count, *spec.shape) or stored.samples.dtype != np.dtype(spec.dtype):
        return "", f"holds {stored.samples.dtype} {list(stored.samples.shape)}, not {spec.dtype} {[count, *spec.shape]}"
    begin = spec.first_index + first
    if stored.index is not None and not np.array_equal(stored.index, np.arange(begin, begin + count)):
        return "", "holds rows of another shard"
    if stored.nfe is not None and int(stored.nfe.sum(dtype=np.int64)) != receipt.nfe:
        return "", "its NFE does not match the receipt"
    found = fingerprint(first, stored.samples)
    return found, "" if found == receipt.fingerprint else "its samples do not match the receipt"
