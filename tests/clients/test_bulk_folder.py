"""The folder of a bulk job: fingerprints, receipts under the wrong number, and folders whose names are patterns."""

import dataclasses
import io
import json
import random
import shutil
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pathline._bulk_conditions import Arrays
from pathline._bulk_spec import JobSpec, Receipt, ShardRows, Summary, fingerprint, shard_rows
from pathline.bulk_folder import FORMATS, Folder, JobStore
from pathline.errors import BulkConflict, InvalidValue

ROWS = np.random.default_rng(0).normal(size=(300, 3)).astype(np.float32)


@given(st.lists(st.integers(0, 4), unique=True))
def test_fingerprint_does_not_depend_on_the_shards_or_their_order(cuts: list[int]) -> None:
    edges = [0, *sorted(64 * cut for cut in cuts if cut), 300]
    parts = [fingerprint(a, ROWS[a:b]) for a, b in pairwise(edges)]
    summary = Summary()
    for part in reversed(parts):
        summary.add(Receipt("", 0, 0, 0, 0, {}, [], part, True, 0.0))
    assert summary.fingerprint == fingerprint(0, ROWS)


@pytest.mark.parametrize("change", ["bit", "swap", "double", "lose", "shift"])
def test_fingerprint_detects_every_accident(change: str) -> None:
    rows, first = ROWS.copy(), 0
    if change == "bit":
        rows.view(np.int32)[200, 1] ^= 1
    elif change == "swap":
        rows[[0, 128]] = rows[[128, 0]]
    elif change == "double":
        rows[64:128] = rows[:64]
    elif change == "lose":
        rows = rows[:-1]
    else:
        first = 64
    assert fingerprint(first, rows) != fingerprint(0, ROWS)


SPEC = JobSpec(
    model="net", version=1, checkpoint="sha256:0", path="fused", threads=0, noise="philox", request={}, plan="",
    seed=1, first_index=0, total=300, table="", arrays={}, shape=(3,), dtype="float32", format="npy", shard_rows=64,
)  # fmt: skip


def test_a_parquet_shard_names_the_columns_of_its_samples() -> None:
    names = ("rooms", "area", "price")
    columns = tuple({"name": name, "kind": "number", "unit": "EUR", "decimals": 2} for name in names)
    spec = dataclasses.replace(SPEC, format="parquet", columns=columns)
    assert JobSpec.from_json(json.dumps(spec.plain()).encode()) == spec
    file = io.BytesIO()
    write, _ = FORMATS["parquet"]
    write(spec, ShardRows(0, ROWS[:64], np.full(64, 4, np.int32), np.full(64, "success")), file)
    metadata = pq.read_schema(io.BytesIO(file.getvalue())).metadata
    assert json.loads(metadata[b"pathline"])["columns"] == list(columns)


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    """A complete job of five shards, in a folder whose name is a pattern."""
    folder = Folder(JobStore(tmp_path / "run[1]"))
    folder.create(SPEC, Arrays({}, SPEC.total))
    for shard in range(SPEC.shards):
        first, count = SPEC.range(shard)
        made = ShardRows(first, ROWS[first : first + count], np.full(count, 4, np.int32), np.full(count, "success"))
        folder.commit(SPEC, made, Receipt.of(SPEC, shard, made, True, 0.5))
    return folder


def faults(folder: Folder) -> dict[int, str]:
    return {shard: outcome for shard, outcome in folder.verify(SPEC) if isinstance(outcome, str)}


def test_a_folder_named_like_a_pattern_is_read_back(folder: Folder) -> None:
    assert folder.spec() == SPEC
    assert folder.done() == {0, 1, 2, 3, 4}
    assert faults(folder) == {}
    summary = folder.summary(SPEC)
    assert (summary.rows, summary.nfe, summary.fingerprint) == (300, 1200, fingerprint(0, ROWS))


def test_a_receipt_under_the_number_of_another_shard_is_a_fault(folder: Folder) -> None:
    receipts = Path(folder.address) / "receipts"
    shutil.copy(receipts / "00001.json", receipts / "00003.json")
    (Path(folder.address) / "shards" / "00003.npy").unlink()
    assert set(faults(folder)) == {3}
    assert "is the receipt of shard 1; delete it to remake the shard" in faults(folder)[3]
    with pytest.raises(BulkConflict, match=r"00003.json: is the receipt of shard 1"):
        folder.summary(SPEC)


def test_a_copied_shard_whose_receipt_was_copied_and_renumbered_is_a_fault(folder: Folder) -> None:
    root = Path(folder.address)
    shutil.copy(root / "shards" / "00001.npy", root / "shards" / "00003.npy")
    copied = json.loads((root / "receipts" / "00001.json").read_text()) | {"shard": 3}
    (root / "receipts" / "00003.json").write_text(json.dumps(copied))
    assert faults(folder) == {3: "its receipt is for 64 rows from 64, which belong to other shards"}


@pytest.mark.parametrize(
    "name", ["000003.json", "00003.json.bak", "00003.json~", "3.json", "x00003.json", ".00003.json.part"]
)
def test_only_a_whole_name_is_a_receipt(folder: Folder, name: str) -> None:
    receipts = Path(folder.address) / "receipts"
    (receipts / "00003.json").rename(receipts / name)
    assert folder.done() == {0, 1, 2, 4}
    assert faults(folder) == {}


def test_a_file_that_is_missing_and_a_shard_beyond_the_job_are_faults(folder: Folder) -> None:
    root = Path(folder.address)
    (root / "shards" / "00002.npy").unlink()
    beyond = json.loads((root / "receipts" / "00001.json").read_text()) | {"shard": 9}
    (root / "receipts" / "00009.json").write_text(json.dumps(beyond))
    assert faults(folder) == {2: "its file is missing", 9: "the job has only 5 shards"}


@pytest.mark.parametrize(
    "change",
    [{"total": 0}, {"total": True}, {"shard_rows": 65}, {"dtype": "float16"}, {"bulk": 2}, {"more": 1}, {"seed": -1},
     {"shape": 3}, {"request": []}],
)  # fmt: skip
def test_a_spec_of_another_release_or_damaged_is_refused(folder: Folder, change: dict[str, object]) -> None:
    job = Path(folder.address) / "job.json"
    job.write_text(json.dumps(SPEC.plain() | change))
    with pytest.raises(BulkConflict, match="is not a job of this release"):
        folder.spec()


@pytest.mark.parametrize(
    "change", [{"seconds": "x"}, {"seconds": None}, {"status": {"success": "x"}}, {"failed": [None]}, {"nfe": 1.5},
     {"deterministic": 1}, {"fingerprint": "x"}],
)  # fmt: skip
def test_a_receipt_with_members_of_other_types_is_damaged(folder: Folder, change: dict[str, object]) -> None:
    receipt = Path(folder.address) / "receipts" / "00003.json"
    receipt.write_text(json.dumps(json.loads(receipt.read_text()) | change))
    assert set(faults(folder)) == {3}
    with pytest.raises(BulkConflict, match=r"00003.json: is damaged; delete it"):
        folder.summary(SPEC)


def test_json_that_is_nested_very_deeply_is_damaged(folder: Folder) -> None:
    deep, root = "[" * 200_000 + "]" * 200_000, Path(folder.address)
    (root / "receipts" / "00003.json").write_text(deep)
    assert "is damaged" in faults(folder)[3]
    (root / "job.json").write_text(deep)
    with pytest.raises(BulkConflict, match="nested too deeply"):
        folder.spec()


def test_a_job_has_at_most_four_million_shards() -> None:
    with pytest.raises(InvalidValue, match="at most 4194304 are possible"):
        dataclasses.replace(SPEC, total=10**18)
    assert shard_rows(rate=0.1, total=10**12, workers=1, row_bytes=8) == 238_464
    assert dataclasses.replace(SPEC, total=10**12, shard_rows=238_464).shards <= 1 << 22


def _claiming(rows: int) -> bytes:
    file = io.BytesIO()
    np.lib.format.write_array_header_1_0(file, {"descr": "<f4", "fortran_order": False, "shape": (rows, 3)})
    return file.getvalue() + bytes(64)


def _archive() -> bytes:
    file = io.BytesIO()
    np.savez(file, a=ROWS[:64])
    return file.getvalue()


@pytest.mark.parametrize("content", [b"", b"\x1b[2J", _claiming(1 << 40), _claiming(-1), _archive()])
def test_a_shard_that_is_no_array_of_its_size_is_damaged(folder: Folder, content: bytes) -> None:
    (Path(folder.address) / "shards" / "00003.npy").write_bytes(content)
    [(shard, fault)] = faults(folder).items()
    assert (shard, fault.startswith("is damaged: ")) == (3, True)
    assert fault.isprintable()


def _damages(content: bytes) -> Iterator[bytes]:
    draw = random.Random(0)
    for _ in range(300):
        damaged = bytearray(content)
        for _ in range(draw.randint(1, 3)):
            damaged[draw.randrange(len(damaged))] = draw.randrange(256)
        yield bytes(damaged[: draw.choice([None, draw.randrange(len(damaged))])])


@pytest.mark.parametrize("name", FORMATS)
def test_whatever_bytes_are_damaged_a_shard_is_read_or_a_value_error(name: str) -> None:
    file, refused, (write, read) = io.BytesIO(), 0, FORMATS[name]
    rows = ShardRows(0, ROWS[:64], np.full(64, 4, np.int32), np.full(64, "success"))
    write(SPEC, rows, file)
    for content in _damages(file.getvalue()):
        try:
            read(SPEC, 0, content)
        except ValueError:
            refused += 1
    assert refused > 100


def test_settings_of_another_job_are_named() -> None:
    SPEC.refuse_other({"seed": 1, "total": None})
    with pytest.raises(BulkConflict, match="its seed is 1, not 2; choose another place"):
        SPEC.refuse_other({"seed": 2})
    assert dataclasses.replace(SPEC, seed=2).digest != SPEC.digest


@pytest.mark.parametrize(
    ("rate", "total", "workers", "row_bytes", "rows"),
    [(100.0, 1 << 20, 1, 8, 12032), (100.0, 1000, 1, 8, 256), (1e6, 1 << 30, 1, 1 << 20, 512), (0.01, 100, 8, 8, 64)],
)
def test_a_shard_takes_two_minutes_unless_the_job_is_small_or_its_samples_large(
    rate: float, total: int, workers: int, row_bytes: int, rows: int
) -> None:
    assert shard_rows(rate, total, workers, row_bytes) == rows
