"""Complete bulk jobs in this process: rows, receipts, resumption and refusals."""

import io
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pyarrow.parquet as pq
import pytest
import zarr
from pathline.bulk_folder import ShardQueue

from fleet.maker import Maker
from fleet.store import Target
from fleet.workers import InProcess
from service.app import create_app
from service.settings import load_settings
from tests.fleet.conftest import Fleet, write_net

Capsys = pytest.CaptureFixture[str]
Patch = pytest.MonkeyPatch

pytestmark = pytest.mark.anyio


def printed(capsys: Capsys) -> str:
    """Return the fingerprint that the last command printed."""
    return capsys.readouterr().out.split("fingerprint ")[-1].strip()


def rows_of(folder: Path) -> np.ndarray[Any, Any]:
    files = sorted((folder / "shards").iterdir())
    return np.concatenate([np.array(pq.read_table(file)["sample"].to_pylist(), np.float32) for file in files])


@pytest.mark.parametrize("solving", [{"solver": "rk4-4"}, {"solver": "sde-4", "diffusion": {"scale": 0.5}}])
async def test_rows_equal_those_of_the_service_bit_for_bit(
    fleet: Fleet, job: dict[str, Any], tmp_path: Path, solving: dict[str, Any]
) -> None:
    options = job | {name: value if isinstance(value, str) else json.dumps(value) for name, value in solving.items()}
    assert fleet("sample", "net", to=tmp_path / "job", first_index=1000, **options) == 0
    (tmp_path / "job" / "receipts" / "00001.json").unlink()
    assert fleet("sample", to=tmp_path / "job") == 0
    rows = rows_of(tmp_path / "job")
    app = create_app(load_settings(threads=1))
    async with (
        app.router.lifespan_context(app),
        httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://test") as http,
    ):
        body = {"model": "net", "seed": 5, "first_index": 1050, "num_samples": 100, **solving}
        answer = await http.post("/v1/sample", json=body, headers={"Accept": "application/x-npy"})
    page = np.load(io.BytesIO(answer.content))
    assert page.tobytes() == rows[50:150].tobytes()


@pytest.mark.parametrize("mode", ["replace", "guided"])
def test_known_values_are_the_same_in_all_shards(
    fleet: Fleet, job: dict[str, Any], tmp_path: Path, mode: str, capsys: Capsys
) -> None:
    known = {"values": [0.5, 0], "mask": [1, 0], "mode": mode}
    prints = set()
    for name, rows in (("a", 64), ("b", 256)):
        options = job | {"shard_rows": rows, "known": json.dumps(known)}
        assert fleet("sample", "net", to=tmp_path / name, **options) == 0
        prints.add(printed(capsys))
    assert len(prints) == 1
    first = rows_of(tmp_path / "a")[:, 0]
    assert (first == 0.5).all() if mode == "replace" else 0 < abs(first - 0.5).max() < 0.3
    assert fleet("export", tmp_path / "a", tmp_path / "pairs.npz", "--pairs") == 2
    assert "its samples have known values" in capsys.readouterr().err
    other = json.dumps(known | {"values": [0.25, 0]})
    assert fleet("sample", "net", to=tmp_path / "a", **job | {"known": other}) == 2


def test_the_fingerprint_does_not_depend_on_the_shard_size(
    fleet: Fleet, job: dict[str, Any], tmp_path: Path, capsys: Capsys
) -> None:
    found = set()
    for name, rows in (("a", 64), ("b", 128), ("c", 1024)):
        assert fleet("sample", "net", to=tmp_path / name, **job | {"shard_rows": rows}) == 0
        found.add(printed(capsys))
        assert fleet("verify", tmp_path / name) == 0
        found.add(printed(capsys))
    assert len(found) == 1


@pytest.mark.parametrize("kind", ["parquet", "npy", "zarr"])
def test_every_format_stores_the_same_rows(
    fleet: Fleet, job: dict[str, Any], tmp_path: Path, kind: str, capsys: Capsys
) -> None:
    assert fleet("sample", "net", to="memory://same" + kind, **job) == 0
    same = printed(capsys)
    assert fleet("sample", "net", to=tmp_path, format=kind, **job) == 0
    assert printed(capsys) == same
    assert fleet("verify", tmp_path) == 0
    assert printed(capsys) == same


def test_two_processes_fill_one_zarr_array(fleet: Fleet, job: dict[str, Any], tmp_path: Path, capsys: Capsys) -> None:
    assert fleet("sample", "net", to=tmp_path / "parquet", **job) == 0
    same = printed(capsys)
    assert fleet("sample", "net", to=tmp_path / "zarr", format="zarr", on="local", workers=2, **job) == 0
    assert printed(capsys) == same
    assert fleet("verify", tmp_path / "zarr") == 0
    assert printed(capsys) == same
    array = zarr.open_array(tmp_path / "zarr" / "samples.zarr", mode="r")
    assert np.asarray(array[:]).tobytes() == rows_of(tmp_path / "parquet").tobytes()


def test_zarr_is_named_where_it_is_not_installed(
    fleet: Fleet, job: dict[str, Any], tmp_path: Path, monkeypatch: Patch, capsys: Capsys
) -> None:
    monkeypatch.setitem(sys.modules, "zarr", None)
    assert fleet("sample", "net", to=tmp_path / "job", format="zarr", **job) == 1
    assert capsys.readouterr().err == "fleet: zarr is not installed; pip install zarr\n"
    assert not (tmp_path / "job" / "job.json").exists()


def test_parquet_has_index_nfe_and_status(fleet: Fleet, job: dict[str, Any], tmp_path: Path) -> None:
    assert fleet("sample", "net", to=tmp_path, first_index=7, **job) == 0
    table = pq.read_table(tmp_path / "shards" / "00001.parquet")
    assert table["index"].to_pylist() == list(range(71, 135))
    assert set(table["nfe"].to_pylist()) == {16}
    assert set(table["status"].to_pylist()) == {"success"}
    assert json.loads(table.schema.metadata[b"pathline"])["shape"] == [2]


def test_only_shards_without_a_receipt_are_made_again(
    fleet: Fleet,
    job: dict[str, Any],
    tmp_path: Path,
    monkeypatch: Patch,
    capsys: Capsys,
) -> None:
    assert fleet("sample", "net", to=tmp_path, **job) == 0
    whole = printed(capsys)
    (tmp_path / "receipts" / "00002.json").unlink()
    assert fleet("verify", tmp_path) == 1
    made, make = [], InProcess.make
    monkeypatch.setattr(InProcess, "make", lambda self, shard, tell: made.append(shard) or make(self, shard, tell))
    assert fleet("sample", to=tmp_path) == 0
    assert made == [2]
    assert printed(capsys) == whole


def test_a_run_removes_what_was_left_unfinished_before_it_and_nothing_of_another(
    fleet: Fleet, job: dict[str, Any], tmp_path: Path, monkeypatch: Patch
) -> None:
    died, another, commit = tmp_path / "tmp" / "died", tmp_path / "tmp" / "another", Target.commit
    died.parent.mkdir()
    died.touch()
    monkeypatch.setattr(Target, "commit", lambda *arguments: another.touch() or commit(*arguments))
    assert fleet("sample", "net", to=tmp_path, **job) == 0
    assert list(died.parent.iterdir()) == [another]


VERIFY = """
import sys
from fleet.__main__ import main

code = main(["verify", sys.argv[1]])
assert "torch" not in sys.modules
sys.exit(code)
"""


def test_a_job_is_verified_without_torch(fleet: Fleet, job: dict[str, Any], tmp_path: Path, capsys: Capsys) -> None:
    assert fleet("sample", "net", to=tmp_path, **job) == 0
    done = subprocess.run([sys.executable, "-c", VERIFY, str(tmp_path)], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split()[-1] == printed(capsys)


def test_ctrl_c_after_the_last_shard_shows_no_traceback(
    fleet: Fleet, job: dict[str, Any], tmp_path: Path, monkeypatch: Patch, capsys: Capsys
) -> None:
    def left(self: ShardQueue) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr(ShardQueue, "left", left)
    assert fleet("sample", "net", to=tmp_path, **job) == 130
    assert capsys.readouterr().err == f"fleet: stopped; resume with: python -m fleet sample --to {tmp_path}\n"


def test_a_poison_shard_is_reported_after_its_tries_and_the_others_are_made(
    fleet: Fleet,
    job: dict[str, Any],
    tmp_path: Path,
    monkeypatch: Patch,
    capsys: Capsys,
) -> None:
    tried, make = [], Maker.make

    def poisoned(self: Maker, first: int, rows: int, tell: Any = None) -> Any:
        if tell is not None:  # not the row from which the job begins
            tried.append(first // 64)
            if first == 64:
                raise RuntimeError("these rows are cursed")
        return make(self, first, rows, tell)

    monkeypatch.setattr(Maker, "make", poisoned)
    assert fleet("sample", "net", to=tmp_path, tries=2, **job) == 1
    assert "shard 1 was given up after 2 tries: RuntimeError: these rows are cursed" in capsys.readouterr().err
    assert sorted(tried) == [0, 1, 1, 2, 3]
    assert Target(str(tmp_path)).done() == {0, 2, 3}
    assert (tmp_path / "failed" / "00001.json").exists()
    monkeypatch.setattr(Maker, "make", make)
    assert fleet("sample", to=tmp_path) == 0
    assert not (tmp_path / "failed" / "00001.json").exists()


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_a_table_of_conditions_sets_the_number_of_samples_for_each(
    fleet: Fleet, tmp_path: Path, suffix: str, repository: Path
) -> None:
    table = tmp_path / f"wanted.{suffix}"
    if suffix == "csv":
        table.write_text("condition,count\neel,70\n0,30\n")
    else:
        import pyarrow as pa

        pq.write_table(pa.table({"condition": ["eel", "cat"], "count": [70, 30]}), table)
    assert fleet("sample", "pets", to=tmp_path / "job", conditions=table, seed=5, solver="rk4-4", shard_rows=64) == 0
    files = sorted((tmp_path / "job" / "shards").iterdir())
    labels = [label for file in files for label in pq.read_table(file)["condition"].to_pylist()]
    assert labels == [2] * 70 + [0] * 30
    one = tmp_path / "one"
    assert fleet("sample", "pets", to=one, total=100, condition="eel", seed=5, solver="rk4-4", shard_rows=128) == 0
    assert rows_of(one)[:70].tobytes() == rows_of(tmp_path / "job")[:70].tobytes()
    assert fleet("export", tmp_path / "job", tmp_path / "all.npz") == 0
    exported = np.load(tmp_path / "all.npz")
    assert exported["labels"].tolist() == labels
    assert exported["samples"].tobytes() == rows_of(tmp_path / "job").tobytes()


def refused(capsys: Capsys) -> str:
    return capsys.readouterr().err


def test_another_job_is_refused_and_the_difference_named(
    fleet: Fleet, job: dict[str, Any], tmp_path: Path, capsys: Capsys
) -> None:
    assert fleet("sample", "net", to=tmp_path, **job) == 0
    for name, value in (("seed", 6), ("total", 201), ("solver", "rk4-5"), ("format", "npy"), ("rtol", 1e-3)):
        assert fleet("sample", "net", to=tmp_path, **job | {name: value}) == 2
        message = refused(capsys)
        assert f"holds another job: its {name} is" in message
        assert repr(value) in message


def test_a_folder_with_other_content_is_left_alone(
    fleet: Fleet, job: dict[str, Any], tmp_path: Path, capsys: Capsys
) -> None:
    (tmp_path / "thesis.tex").touch()
    assert fleet("sample", "net", to=tmp_path, **job) == 2
    assert "is not empty and holds no job" in refused(capsys)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


def test_a_model_that_has_changed_is_refused(
    fleet: Fleet,
    job: dict[str, Any],
    tmp_path: Path,
    monkeypatch: Patch,
    capsys: Capsys,
) -> None:
    models, target = tmp_path / "models", tmp_path / "job"
    write_net(models)
    monkeypatch.setenv("PATHLINE_MODELS_DIR", str(models))
    assert fleet("sample", "net", to=target, **job) == 0
    write_net(models, seed=1)  # a version 2 beside it changes nothing
    (target / "receipts" / "00000.json").unlink()
    assert fleet("sample", "net", to=target) == 0
    shutil.rmtree(models / "net" / "1")
    write_net(tmp_path / "other", seed=2).rename(models / "net" / "1")
    (target / "receipts" / "00000.json").unlink()
    assert fleet("sample", to=target) == 2
    assert "the model has changed since" in refused(capsys)


def test_a_value_of_another_kind_is_refused(fleet: Fleet, job: dict[str, Any], tmp_path: Path, capsys: Capsys) -> None:
    for option, value in {"seed": -1, "steps": "many", "start": "soon"}.items():
        assert fleet("sample", "net", to=tmp_path / "job", **job | {option: value}) == 2
        assert f"argument --{option}: " in capsys.readouterr().err
    assert not (tmp_path / "job").exists()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"total": 0}, "--total 0 is not allowed; ask for 1 sample or more"),
        ({"total": -3}, "--total -3 is not allowed"),
        ({"shard_rows": 100}, "a multiple of 64"),
        ({"solver": "rk5"}, "rk5"),
        ({"steps": 20, "solver": "rk4-4"}, "leave one of them out"),
        ({"condition": 3}, "unconditional"),
        ({"workers": 0}, "--workers 0 is not allowed"),
        ({"tries": 0}, "--tries 0 is not allowed"),
        ({"model_version": 9}, "has 1"),
        ({"first_index": 2**63 - 100}, "below 2**63"),
        ({"solver": "dopri5@1e-5+batch"}, "cannot be split into shards"),
    ],
)
def test_bad_input_is_refused_before_anything_is_written(
    fleet: Fleet,
    job: dict[str, Any],
    tmp_path: Path,
    options: dict[str, Any],
    message: str,
    capsys: Capsys,
) -> None:
    assert fleet("sample", "net", to=tmp_path / "job", **job | options) == 2
    assert message in refused(capsys)
    assert not (tmp_path / "job").exists()


def test_a_new_job_needs_model_total_and_seed(fleet: Fleet, tmp_path: Path, capsys: Capsys) -> None:
    assert fleet("sample", to=tmp_path / "job") == 2
    assert "a new job needs a model, --total, --seed" in refused(capsys)
    assert fleet("sample", "moon", to=tmp_path / "job", total=5, seed=0) == 2
    assert "known models are net, pets" in refused(capsys)
    assert fleet("verify", tmp_path / "job") == 2
    assert "holds no job" in refused(capsys)
    assert fleet("sample", "net", to="nonsense://x", total=5, seed=0) == 2
    assert "nonsense" in refused(capsys)


def test_a_full_disk_ends_the_run_and_loses_nothing(
    fleet: Fleet,
    job: dict[str, Any],
    tmp_path: Path,
    monkeypatch: Patch,
    capsys: Capsys,
) -> None:
    written, write = [], os.fsync

    def full(descriptor: int) -> None:
        written.append(descriptor)
        if len(written) == 6:  # the spec, shard 0 and its receipt, shard 1 and its receipt
            raise OSError(28, "No space left on device")
        write(descriptor)

    monkeypatch.setattr("fleet.store.os.fsync", full)
    assert fleet("sample", "net", to=tmp_path, **job) == 1
    assert "cannot write: No space left on device; make room" in refused(capsys)
    assert Target(str(tmp_path)).done() == {0, 1}
    assert not list((tmp_path / "tmp").iterdir())
    monkeypatch.setattr("fleet.store.os.fsync", write)
    assert fleet("sample", to=tmp_path) == 0


def test_damage_is_detected(fleet: Fleet, job: dict[str, Any], tmp_path: Path, capsys: Capsys) -> None:
    assert fleet("sample", "net", to=tmp_path, format="npy", **job) == 0
    shards = tmp_path / "shards"
    content = bytearray((shards / "00000.npy").read_bytes())
    content[-1] ^= 1
    (shards / "00000.npy").write_bytes(content)
    shutil.copy(shards / "00001.npy", shards / "00002.npy")
    (shards / "00003.npy").write_bytes(b"")
    assert fleet("verify", tmp_path) == 1
    message = refused(capsys)
    assert "shard 0: its samples do not match the receipt" in message
    assert "shard 1" not in message
    assert "shard 2: its samples do not match the receipt" in message
    assert "shard 3: is damaged" in message


def test_failed_samples_are_counted_and_listed(fleet: Fleet, tmp_path: Path, capsys: Capsys) -> None:
    assert fleet("sample", "net", to=tmp_path, total=70, seed=0, solver="dopri5@1e-6", max_nfe=9, shard_rows=64) == 0
    assert "not every sample succeeded: 70 max_nfe" in capsys.readouterr().out
    receipt = json.loads((tmp_path / "receipts" / "00001.json").read_text())
    assert receipt["failed"] == [64, 65, 66, 67, 68, 69]


def test_the_pods_of_an_indexed_job_share_the_shards(
    fleet: Fleet,
    job: dict[str, Any],
    tmp_path: Path,
    monkeypatch: Patch,
    capsys: Capsys,
) -> None:
    assert fleet("sample", "net", to=tmp_path, workers=2, **job) == 0
    assert Target(str(tmp_path)).done() == {0, 2}
    assert "2 of 4 shards are done" in capsys.readouterr().out
    from fleet.__main__ import main

    monkeypatch.setenv("JOB_COMPLETION_INDEX", "1")
    assert main(["sample", "net", "--to", str(tmp_path), "--on", "indexed", "--workers", "2", "--quiet"]) == 0
    assert Target(str(tmp_path)).done() == {0, 1, 2, 3}
    monkeypatch.setenv("JOB_COMPLETION_INDEX", "2")
    assert main(["sample", "net", "--to", str(tmp_path), "--on", "indexed", "--workers", "2", "--quiet"]) == 2


def test_a_memory_target_is_for_one_process(fleet: Fleet, job: dict[str, Any], capsys: Capsys) -> None:
    assert fleet("sample", "net", to="memory://x", on="local", workers=2, **job) == 2
    assert "is the memory of a single process" in refused(capsys)
