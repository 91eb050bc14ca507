"""Bulk jobs of the SDK: against a fake service, and against the real one, compared with `python -m fleet sample`."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import pickle
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pathline
import pytest
import torch
from pathline import AsyncClient, BulkConflict, BulkIncomplete, Client
from pathline._bulk_spec import JobSpec
from pathline._io import in_threads
from pathline.bulk_folder import FORMATS

from fleet.__main__ import main
from models.architectures.residual_mlp import ResidualMLP, ResidualMLPConfig
from models.checkpoint.saving import save
from models.conditions import NamedCondition
from models.decoder import Decoder
from tests.clients.conftest import FakeService, request_in
from tests.clients.support import in_process
from tests.service.free import picture
from tests.service.named import imported as named
from tests.service.serving import serving

JOB: dict[str, Any] = {"seed": 5, "solver": "euler-4", "shard_rows": 64}


def requests(service: FakeService) -> list[dict[str, Any]]:
    return [request_in(each["body"]) for each in service.seen if each["path"] == "/v1/sample"]


def rows_of(folder: Path) -> np.ndarray:
    return np.concatenate([np.load(path) for path in sorted((folder / "shards").glob("*.npy"))])


def test_rows_are_those_of_one_call(client: Client, tmp_path: Path) -> None:
    found = client.bulk("moons", 200, to=tmp_path / "job", first_index=7, **JOB)
    whole = client.sample("moons", 200, seed=5, solver="euler-4", first_index=7)
    np.testing.assert_array_equal(rows_of(tmp_path / "job"), whole.samples)
    assert (found.rows, found.shape, found.nfe, found.ok) == (200, (2,), int(whole.nfe_per_sample.sum()), True)
    assert (found.seed, found.first_index, found.version) == (5, 7, 3)
    assert [path.name for path in found.files] == [f"{shard:05d}.npy" for shard in range(4)]


def test_only_what_has_no_receipt_is_asked_for_again(client: Client, service: FakeService, tmp_path: Path) -> None:
    whole = client.bulk("moons", 200, to=tmp_path, **JOB)
    (tmp_path / "receipts" / "00002.json").unlink()
    service.seen.clear()
    assert client.bulk("moons", to=tmp_path).fingerprint == whole.fingerprint
    assert [(each["first_index"], each["num_samples"]) for each in requests(service)] == [(128, 64)]
    assert all(each["priority"] == "bulk" for each in requests(service))


def test_a_call_removes_what_was_left_unfinished_before_it_and_nothing_of_another(
    client: Client, tmp_path: Path
) -> None:
    died, another = tmp_path / "shards" / ".00001.npy.0.part", tmp_path / "shards" / ".00001.npy.1.part"
    died.parent.mkdir()
    died.touch()
    client.bulk("moons", 200, to=tmp_path, progress=lambda _: another.touch(), **JOB)
    assert list(tmp_path.rglob(".*.part")) == [another]


def test_pages_shrink_where_the_service_allows_fewer(client: Client, service: FakeService, tmp_path: Path) -> None:
    answer, sizes = service._sample, []

    def limited(body: dict[str, Any]) -> Any:
        sizes.append(body["num_samples"])
        if body["num_samples"] > 20:
            fault = {"field": "num_samples", "message": "at most 20"}
            return service.problem(422, "invalid-request", "at most 20", errors=[fault])
        return answer(body)

    service._sample = limited  # type: ignore[method-assign]
    options = {**JOB, "shard_rows": 128}
    found = client.bulk("moons", 100, to=tmp_path, workers=1, **options)
    assert found.rows == 100
    assert max(sizes[-5:]) <= 20


@pytest.mark.parametrize("begun", [False, True])
def test_a_full_service_is_waited_for_and_costs_no_try(
    client: Client, service: FakeService, tmp_path: Path, begun: bool
) -> None:
    if begun:
        client.bulk("moons", 10, to=tmp_path, **JOB)
        (tmp_path / "receipts" / "00000.json").unlink()
    service.replies = [service.problem(429, "overloaded", retry_after_s=0.001) for _ in range(250)]
    assert client.bulk("moons", None if begun else 10, to=tmp_path, tries=1, workers=1).rows == 10
    assert not service.replies


def test_a_poison_shard_is_named_after_its_tries_and_the_rest_is_done(
    client: Client, service: FakeService, tmp_path: Path
) -> None:
    answer = service._sample

    def poisoned(body: dict[str, Any]) -> Any:
        if body.get("first_index") == 64:
            return service.problem(500, "engine-failed", "these rows are cursed")
        return answer(body)

    service._sample = poisoned  # type: ignore[method-assign]
    with pytest.raises(BulkIncomplete, match=r"shard 1 was given up \(these rows are cursed .*; 3 are done") as caught:
        client.bulk("moons", 200, to=tmp_path, tries=2, **JOB)
    assert list(caught.value.failed) == [1]
    assert pickle.loads(pickle.dumps(caught.value)).failed == caught.value.failed  # noqa: S301  (just pickled)
    assert sum(each.get("first_index") == 64 for each in requests(service)) == 2
    assert json.loads((tmp_path / "failed" / "00001.json").read_text())["tries"] == 2
    service._sample = answer  # type: ignore[method-assign]
    assert client.bulk("moons", to=tmp_path).rows == 200
    assert not (tmp_path / "failed" / "00001.json").exists()


@pytest.mark.parametrize(
    ("name", "value"), [("total", 201), ("seed", 6), ("solver", "euler-5"), ("format", "parquet"), ("first_index", 1)]
)
def test_another_job_is_refused_with_what_differs(client: Client, tmp_path: Path, name: str, value: Any) -> None:
    client.bulk("moons", 200, to=tmp_path, **JOB)
    options: dict[str, Any] = {"total": 200, **JOB, name: value}
    with pytest.raises(BulkConflict, match=f"holds another job: its {name} is .*, not {value!r}"):
        client.bulk("moons", to=tmp_path, **options)


def test_what_else_lies_there_is_left_alone(client: Client, tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").touch()
    with pytest.raises(BulkConflict, match="is not empty and holds no job"):
        client.bulk("moons", 10, to=tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


def test_a_model_that_has_changed_is_refused(client: Client, service: FakeService, tmp_path: Path) -> None:
    client.bulk("moons", 200, to=tmp_path, **JOB)
    (tmp_path / "receipts" / "00000.json").unlink()
    service.change = lambda arrays, meta: meta.update(checkpoint="sha256:11")
    with pytest.raises(BulkConflict, match="has changed since the job began: its checkpoint is 'sha256:11'"):
        client.bulk("moons", to=tmp_path)


@pytest.mark.parametrize(
    ("given", "kind", "words"),
    [
        ({"total": 0}, pathline.InvalidValue, "total=0 is not allowed"),
        ({}, pathline.InvalidValue, "a new job needs total, or counts"),
        ({"total": 2.0}, TypeError, "use an integer"),
        ({"total": 10, "shard_rows": 100}, pathline.InvalidValue, "a multiple of 64"),
        ({"total": 10, "workers": 0}, pathline.InvalidValue, "workers=0"),
        ({"total": 10, "tries": 0}, pathline.InvalidValue, "tries=0"),
        ({"total": 10, "format": "zarr"}, pathline.InvalidValue, "use one of npy, parquet"),
        ({"total": 10, "seed": -1}, pathline.InvalidValue, "seed=-1"),
        ({"total": 10, "x0": [[0.0, 0.0]]}, TypeError, "unknown option 'x0'"),
        ({"total": 10, "num_steps": 3}, TypeError, "did you mean 'steps'"),
        ({"total": 10, "counts": {1: 3}}, pathline.InvalidValue, "the counts add up to 3"),
        ({"counts": {1: 0}}, pathline.InvalidValue, "asks for 0 samples of 1"),
        ({"counts": {1: 3}, "first_index": 2**63 - 2}, pathline.InvalidValue, "of indices below 2"),
        ({"counts": {}}, pathline.InvalidValue, "counts is empty"),
        ({"counts": {1: 3}, "condition": 1}, pathline.InvalidValue, "both given"),
        ({"counts": {1: 3}, "conditions": {"text": 1}}, pathline.InvalidValue, "both given"),
        ({"total": 10, "conditions": {"text": [[1], [2, 3]]}}, pathline.InvalidValue, "lists of different lengths"),
        ({"total": 10, "conditions": {"text": [1]}}, pathline.InvalidValue, "no condition 'text'; .* unconditional"),
        ({"total": 10, "to": "s3://bucket/job"}, pathline.InvalidValue, "python -m fleet sample"),
    ],
)
def test_bad_input_is_refused_before_anything_is_written(
    client: Client, tmp_path: Path, given: dict[str, Any], kind: type[Exception], words: str
) -> None:
    options: dict[str, Any] = {"to": tmp_path / "job", **given}
    with pytest.raises(kind, match=words):
        client.bulk("moons", **options)
    assert not (tmp_path / "job").exists()


def test_a_folder_that_cannot_be_written_ends_the_job(
    client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(OSError, match="file"):
        client.bulk("moons", 10, to=tmp_path / "file" / "job")
    client.bulk("moons", 200, to=tmp_path / "job", **JOB)
    for receipt in (tmp_path / "job" / "receipts").iterdir():
        receipt.unlink()

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("pathline._files.os.fsync", full)
    with pytest.raises(OSError, match="No space left on device"):
        client.bulk("moons", to=tmp_path / "job")
    monkeypatch.undo()
    assert client.bulk("moons", to=tmp_path / "job").rows == 200
    assert not list((tmp_path / "job").rglob(".*.part"))


def test_progress_is_told_with_the_rate(client: Client, tmp_path: Path) -> None:
    seen: list[pathline.Progress] = []
    client.bulk("moons", 200, to=tmp_path, progress=seen.append, **JOB)
    shares = [each.share for each in seen]
    assert shares == sorted(shares)
    assert shares[-1] == 1.0
    assert seen[-1].fields["rows"] == 200
    assert seen[-1].fields["rows_per_s"] > 0


def test_async_jobs_are_the_same(async_client: AsyncClient, client: Client, tmp_path: Path) -> None:
    async def run() -> pathline.BulkResult:
        async with async_client:
            return await async_client.bulk("moons", 200, to=tmp_path / "a", **JOB)

    assert asyncio.run(run()).fingerprint == client.bulk("moons", 200, to=tmp_path / "b", **JOB).fingerprint


@pytest.mark.filterwarnings("error")
def test_threads_stop_if_another_cannot_be_started(
    client: Client, service: FakeService, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer, start, before = service._sample, threading.Thread.start, set(threading.enumerate())
    asked, failed = threading.Event(), threading.Event()

    def slow(body: dict[str, Any]) -> Any:
        if threading.current_thread().name == "pathline-bulk":
            asked.set()
            failed.wait(30)
        return answer(body)

    def second_fails(self: threading.Thread) -> None:
        if asked.is_set():
            raise RuntimeError("can't start new thread")
        start(self)
        asked.wait(30)

    service._sample = slow  # type: ignore[method-assign]
    monkeypatch.setattr(threading.Thread, "start", second_fails)
    with pytest.raises(RuntimeError, match="new thread"):
        client.bulk("moons", 64 * 40, to=tmp_path, workers=3, **JOB)
    [running] = set(threading.enumerate()) - before
    failed.set()
    running.join(30)
    assert len(list(tmp_path.glob("receipts/*"))) <= 1


def test_ctrl_c_stops_the_threads_and_keeps_what_is_done(client: Client, service: FakeService, tmp_path: Path) -> None:
    whole = client.bulk("moons", 64 * 40, to=tmp_path / "whole", **JOB)
    answer, held = service._sample, threading.Event()

    def slow(body: dict[str, Any]) -> Any:
        if body.get("first_index", 0) >= 64 * 3:
            if not held.is_set():  # to the main thread, which the kernel prefers too
                signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
            held.wait(30)
        return answer(body)

    service._sample = slow  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt):
        client.bulk("moons", 64 * 40, to=tmp_path / "job", **JOB)
    held.set()
    for thread in threading.enumerate():
        if thread.name == "pathline-bulk":
            thread.join(30)
    service._sample = answer  # type: ignore[method-assign]
    assert 2 <= len(list((tmp_path / "job" / "receipts").iterdir())) < 40
    assert client.bulk("moons", to=tmp_path / "job").fingerprint == whole.fingerprint


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("repository")
    torch.manual_seed(1)
    save(
        root,
        "net",
        ResidualMLP(ResidualMLPConfig(dim=2, hidden=16, blocks=1)),
        Decoder.identity((2,)),
        dataset={},
        training={},
        seed=0,
    )
    pets = NamedCondition.label(classes=3, names=("cat", "dog", "eel"))
    net = ResidualMLP(ResidualMLPConfig(dim=2, hidden=16, blocks=1, condition=pets))
    save(root, "pets", net, Decoder.identity((2,)), dataset={}, training={}, seed=0)
    ages = NamedCondition.label(classes=3, names=("1", "2", "20"))
    net = ResidualMLP(ResidualMLPConfig(dim=2, hidden=16, blocks=1, condition=ages))
    save(root, "ages", net, Decoder.identity((2,)), dataset={}, training={}, seed=0)
    return root


def fleet(repository: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any, *arguments: object) -> str:
    """Run `python -m fleet` in this process and return the fingerprint that it prints."""
    monkeypatch.setenv("PATHLINE_MODELS_DIR", str(repository))
    monkeypatch.setenv("JOB_COMPLETION_INDEX", "0")
    more = ["--on", "indexed"] if arguments[0] == "sample" else []
    code = main([*map(str, arguments), *more, "--quiet"])
    words = capsys.readouterr()
    assert code == 0, words.err
    return words.out.split("fingerprint ")[-1].strip()


@pytest.mark.parametrize("form", ["npy", "parquet"])
def test_the_fingerprint_is_that_of_fleet_sample_and_fleet_verifies_the_folder(
    repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], form: Any
) -> None:
    def run(*arguments: object) -> str:
        return fleet(repository, monkeypatch, capsys, *arguments)

    async def bulk() -> pathline.BulkResult:
        async with in_process(repository) as client:
            return await client.bulk(
                "net", 300, to=tmp_path / "sdk", solver="rk4-4", seed=5, noise_scale=0.5, format=form
            )

    found = asyncio.run(bulk())
    assert run("verify", tmp_path / "sdk") == found.fingerprint
    job = (
        "sample",
        "net",
        "--total",
        300,
        "--seed",
        5,
        "--solver",
        "rk4-4",
        "--noise-scale",
        0.5,
        "--to",
        tmp_path / "fleet",
    )
    assert run(*job, "--shard-rows", 128) == found.fingerprint
    spec = JobSpec.from_json((tmp_path / "sdk" / "job.json").read_bytes())
    receipt = json.loads((tmp_path / "sdk" / "receipts" / "00000.json").read_text())
    assert receipt["job"] == spec.digest
    assert spec.checkpoint == found.checkpoint
    assert main(["sample", "--to", str(tmp_path / "sdk"), "--quiet"]) == 2
    assert "a service makes this job; resume it with pathline.Client.bulk" in capsys.readouterr().err
    with Client() as client, pytest.raises(BulkConflict, match=r"holds a job of `python -m fleet sample`"):
        client.bulk("net", to=tmp_path / "fleet")


@pytest.mark.parametrize(
    ("model", "one", "two", "recorded"),
    [("pets", "eel", 0, (2, 0)), ("ages", "20", 2, (20, 2)), ("ages", 2, 1, (2, 1))],
)
def test_counts_of_conditions_are_those_of_a_table(
    model: str,
    one: Any,
    two: Any,
    recorded: tuple[int, int],
    repository: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    async def bulk() -> pathline.BulkResult:
        async with in_process(repository) as client:
            options = {"solver": "rk4-4", "seed": 5, "format": "parquet", "shard_rows": 64}
            return await client.bulk(model, counts={one: 70, two: 30}, to=tmp_path / "sdk", **options)

    found = asyncio.run(bulk())
    assert found.rows == 100
    (tmp_path / "wanted.csv").write_text(f"condition,count\n{json.dumps(one)},70\n{two},30\n".replace('"', '"""'))
    table = ("--conditions", tmp_path / "wanted.csv")
    made = ("sample", model, *table, "--seed", 5, "--solver", "rk4-4", "--to", tmp_path / "fleet")
    assert fleet(repository, monkeypatch, capsys, *made) == found.fingerprint
    ours, theirs = (json.loads((tmp_path / name / "job.json").read_text()) for name in ("sdk", "fleet"))
    assert ours["table"] == theirs["table"]
    assert main(["export", str(tmp_path / "sdk"), str(tmp_path / "all.npz")]) == 0
    with np.load(tmp_path / "all.npz") as exported:
        assert exported["labels"].tolist() == [recorded[0]] * 70 + [recorded[1]] * 30


@pytest.mark.parametrize("negative", [2, np.int64(2), "eel"])
def test_a_negative_condition_is_for_all_samples_of_a_table(
    negative: Any, repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    options: dict[str, Any] = {"solver": "rk4-4", "seed": 5, "guidance": 2.0, "negative": {"condition": negative}}

    async def both() -> tuple[pathline.BulkResult, np.ndarray]:
        async with in_process(repository) as client:
            job = await client.bulk("pets", counts={0: 70, 1: 30}, to=tmp_path / "sdk", shard_rows=64, **options)
            return job, (await client.sample("pets", 100, condition=[0] * 70 + [1] * 30, **options)).samples

    job, samples = asyncio.run(both())
    np.testing.assert_array_equal(np.concatenate([np.load(path) for path in job.files]), samples)
    (tmp_path / "wanted.csv").write_text("condition,count\n0,70\n1,30\n")
    command = ("sample", "pets", "--conditions", tmp_path / "wanted.csv", "--seed", 5, "--solver", "rk4-4")
    guidance = ("--guidance", 2, "--negative", negative, "--to", tmp_path / "fleet")
    assert fleet(repository, monkeypatch, capsys, *command, *guidance) == job.fingerprint


@pytest.fixture
def live_service(repository: Path) -> Iterator[str]:
    with serving(repository) as (url, _):
        yield url


def test_a_script_that_is_interrupted_goes_on_where_it_was(live_service: str, tmp_path: Path) -> None:
    """Against a service in another process, with a script that receives a real SIGINT."""
    script = (
        "import sys; from pathline import Client\n"
        "with Client(sys.argv[1]) as client:\n"
        "    options = {'solver': 'rk4-300', 'seed': 5, 'shard_rows': 64, 'progress': True}\n"
        "    job = client.bulk('net', 64 * 40, to=sys.argv[2], **options)\n"
        "print(job.fingerprint)"
    )
    command = [sys.executable, "-c", script, live_service, str(tmp_path / "job")]
    environment = os.environ | {"NO_PROXY": "127.0.0.1"}
    running = subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment)
    while running.poll() is None and len(list(tmp_path.glob("job/receipts/*.json"))) < 3:
        pass
    running.send_signal(signal.SIGINT)
    _, words = running.communicate(timeout=60)
    assert "KeyboardInterrupt" in words
    assert 3 <= len(list(tmp_path.glob("job/receipts/*.json"))) < 40
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=True, timeout=120)
    with Client(live_service) as client:
        whole = client.bulk("net", 64 * 40, to=tmp_path / "whole", solver="rk4-300", seed=5, workers=1)
    assert done.stdout.strip() == whole.fingerprint


def test_a_job_of_one_shape_has_the_fingerprint_of_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    picture(tmp_path, tmp_path / "repository")
    monkeypatch.setenv("PATHLINE_MODELS_DIR", str(tmp_path / "repository"))
    monkeypatch.setenv("PATHLINE_ALLOW_PROGRAMS", "true")
    monkeypatch.setenv("JOB_COMPLETION_INDEX", "0")
    shape = {"H": 6, "W": 8}
    with serving(tmp_path / "repository", allow_programs="true") as (url, _), Client(url) as client:
        found = client.bulk("picture", 130, to=tmp_path / "a", shape=shape, **JOB)
        assert (found.rows, found.shape) == (130, (1, 6, 8))
        with pytest.raises(BulkConflict, match=r"its shape is \{'H': 6, 'W': 8\}"):
            client.bulk("picture", to=tmp_path / "a", shape={"H": 8, "W": 8})
    given = ["--shape", "H=6", "--shape", "W=8", "--seed", "5", "--solver", "euler-4", "--total", "130", "--quiet"]
    assert main(["sample", "picture", "--to", str(tmp_path / "b"), "--on", "indexed", *given]) == 0
    assert found.fingerprint in capsys.readouterr().out


def test_named_conditions_are_those_of_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    named(tmp_path, tmp_path / "repository")
    for name, value in (("MODELS_DIR", str(tmp_path / "repository")), ("ALLOW_PROGRAMS", "true")):
        monkeypatch.setenv(f"PATHLINE_{name}", value)
    monkeypatch.setenv("JOB_COMPLETION_INDEX", "0")
    text = np.random.default_rng(0).normal(size=(130, 5, 4)).astype(np.float32)
    other = torch.from_numpy(text[0])
    values: dict[str, Any] = {"conditions": {"text": text, "strength": 1.5, "label": "c"}, "negative": {"text": other}}
    with serving(tmp_path / "repository", allow_programs="true") as (url, _), Client(url) as client:
        for rows in (text[:70], text[..., None]):
            with pytest.raises(pathline.InvalidValue, match=r"give one value .* or 130 of these, one for each"):
                client.bulk("named", 130, to=tmp_path / "a", conditions={"text": rows}, **JOB)
        found = client.bulk("named", 130, to=tmp_path / "a", guidance=2.0, **values, **JOB)
        whole = client.sample("named", 130, seed=5, solver="euler-4", guidance=2.0, **values)
        np.testing.assert_array_equal(rows_of(tmp_path / "a"), whole.samples)
        (tmp_path / "a" / "receipts" / "00001.json").unlink()
        assert client.bulk("named", to=tmp_path / "a").fingerprint == found.fingerprint
        with pytest.raises(BulkConflict, match=r"its conditions.text is '\w+', not '\w+'"):
            client.bulk("named", to=tmp_path / "a", conditions={"text": text + 1})
        file = tmp_path / "a" / "arrays" / "conditions.text.npy"
        file.write_bytes(file.read_bytes()[:-4])
        with pytest.raises(BulkConflict, match=r"conditions.text.npy: was changed"):
            client.bulk("named", to=tmp_path / "a")
    np.save(tmp_path / "text.npy", text)
    np.save(tmp_path / "other.npy", text[0])
    given = ["--seed", "5", "--solver", "euler-4", "--total", "130", "--shard-rows", "64", "--quiet", "--guidance", "2"]
    given += ["--condition", f"text={tmp_path / 'text.npy'}", "--negative", f"text={tmp_path / 'other.npy'}"]
    given += ["--condition", "strength=1.5", "--condition", "label=c"]
    assert main(["sample", "named", "--to", str(tmp_path / "b"), "--on", "indexed", *given]) == 0
    assert found.fingerprint in capsys.readouterr().out
    assert main(["verify", str(tmp_path / "b"), "--quiet"]) == 0


def test_pages_take_apart_conditions_with_a_value_for_each_sample(tmp_path: Path) -> None:
    named(tmp_path, tmp_path / "repository")
    draws = np.random.default_rng(0)
    labels, text = [*range(5)] * 4, draws.normal(size=(20, 3, 4)).astype(np.float32)
    values: dict[str, Any] = {
        "label": labels,
        "text": torch.from_numpy(text),
        "mask": np.ones(3, bool),
        "strength": 1.5,
    }
    with serving(tmp_path / "repository", allow_programs="true") as (url, _), Client(url) as client:
        whole = client.sample("named", 20, seed=5, solver="euler-4", conditions=values)
        pages = client.iter_samples("named", 20, 7, seed=5, solver="euler-4", conditions=values)
        np.testing.assert_array_equal(np.concatenate([page.samples for page in pages]), whole.samples)
        square = {"text": text[:4]}  # of as many rows as there are samples, but of another shape
        with pytest.raises(pathline.InvalidRequest, match=r"expected float32 of shape \[L up to 6, 4\]"):
            list(client.iter_samples("named", 4, 3, seed=5, conditions={"text": text[:4, :, :3]}))
        assert len(list(client.iter_samples("named", 4, 3, seed=5, solver="euler-4", conditions=square))) == 2
        assert len(list(client.iter_samples("named", 3, 2, seed=5, conditions={"mask": [True] * 3}))) == 2


@pytest.mark.parametrize(("kind", "given"), [("pets", ["cat", "eel", 1, 0, 2]), ("pets", np.arange(5) % 3)])
def test_pages_take_apart_labels(repository: Path, kind: str, given: Any) -> None:
    async def run() -> tuple[np.ndarray, np.ndarray]:
        async with in_process(repository) as client:
            whole = await client.sample(kind, 5, seed=1, solver="rk4-2", condition=given)
            pages = [
                page.samples async for page in client.iter_samples(kind, 5, 2, seed=1, solver="rk4-2", condition=given)
            ]
            return np.concatenate(pages), whole.samples

    np.testing.assert_array_equal(*asyncio.run(run()))


def _edit_job(folder: Path) -> None:
    spec = json.loads((folder / "job.json").read_text())
    (folder / "job.json").write_text(json.dumps({**spec, "seed": 6}))


def _edit_array(folder: Path) -> None:
    array = np.load(folder / "arrays" / "conditions.text.npy")
    np.save(folder / "arrays" / "conditions.text.npy", array + 1)


EDITS = {
    "another job": (_edit_job, BulkConflict, r"job\.json: was changed after the job began"),
    "no folder": (shutil.rmtree, BulkConflict, r"job\.json: was changed after the job began"),
    "another array": (_edit_array, BulkConflict, r"conditions\.text\.npy: was changed after the job began; restore it"),
    "no receipt": (
        lambda to: (to / "receipts/00000.json").unlink(),
        BulkIncomplete,
        "1 receipts were removed .* again",
    ),
    "no shard": (lambda to: (to / "shards/00000.npy").unlink(), BulkConflict, "shard 0: its file is missing"),
}


@pytest.mark.parametrize("edit", EDITS)
def test_a_folder_that_is_edited_while_the_job_runs(
    client: Client, service: FakeService, tmp_path: Path, edit: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer, (change, error, words) = service._sample, EDITS[edit]
    entry = {"dtype": "float32", "shape": [2]}
    described = json.dumps({"name": "moons", "serving": 3, "served": [{"version": 3, "conditions": {"text": entry}}]})
    reply = service.answer
    monkeypatch.chdir(tmp_path)

    def edited(body: dict[str, Any]) -> Any:
        if (body.get("first_index"), body["num_samples"]) == (128, 64):  # the third shard
            monkeypatch.chdir("/")  # which moves nothing
            change(tmp_path / "job")
        return answer(body)

    def with_conditions(method: str, path: str, headers: Any, body: bytes) -> Any:
        found = reply(method, path, headers, body)
        return (*found[:2], described.encode()) if path == "/v1/models/moons" else found

    service._sample, service.answer = edited, with_conditions  # type: ignore[method-assign]
    conditions = {"text": np.zeros((256, 2), np.float32)}
    with pytest.raises(error, match=words):
        client.bulk("moons", 256, to="job", workers=1, conditions=conditions, **JOB)
    assert not (tmp_path / "job" / "receipts" / "00003.json").exists() or edit in ("no receipt", "no shard")


@pytest.mark.parametrize("change", ["shape", "dtype"])
def test_samples_of_another_kind_are_not_written(
    client: Client, service: FakeService, tmp_path: Path, change: str
) -> None:
    client.bulk("moons", 200, to=tmp_path, **JOB)
    (tmp_path / "receipts" / "00002.json").unlink()

    def other(arrays: dict[str, Any], meta: dict[str, Any]) -> None:
        arrays["samples"] = arrays["samples"][:, :1] if change == "shape" else arrays["samples"].astype(np.float64)

    service.change = other
    with pytest.raises(BulkConflict, match=f"its {change} is .*; restore it, or start a new job"):
        client.bulk("moons", to=tmp_path)


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"total": 2**70}, pathline.InvalidValue, "total=1180591620717411303424 is not allowed"),
        ({"total": 64, "first_index": 2**63 - 63}, pathline.InvalidValue, "total=64 .* of indices below"),
        ({"total": 64, "first_index": -1}, pathline.InvalidValue, "first_index=-1"),
        ({"total": 64, "shard_rows": 64.0}, TypeError, r"shard_rows=64\.0"),
        ({"total": 64, "shard_rows": "64"}, TypeError, "shard_rows='64'"),
        *(({"counts": counts}, pathline.InvalidValue, "counts is neither") for counts in ("abc", 3, [(1, 2, 3)])),
        ({"model": None, "total": 64}, TypeError, "model=None is not allowed"),
    ],
)
def test_arguments_that_cannot_be_are_named_before_anything_is_sent(
    client: Client, service: FakeService, tmp_path: Path, options: dict[str, Any], error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        client.bulk(options.pop("model", "moons"), to=tmp_path / "job", **options)
    assert not (tmp_path / "job").exists()
    assert not service.seen


def test_a_disk_that_is_full_is_named_and_leaves_no_part(
    client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def short(*_: Any) -> None:
        raise OSError("8192 requested and 96 written")  # as NumPy says it, without a number

    monkeypatch.setitem(FORMATS, "npy", (short, FORMATS["npy"][1]))
    with pytest.raises(OSError, match=r"not written .8192 requested and 96 written.*; make room") as caught:
        client.bulk("moons", 64, to=tmp_path, **JOB)
    assert caught.value.errno == errno.ENOSPC
    assert [path.name for path in (tmp_path / "shards").iterdir()] == []


def test_the_error_that_ended_the_others_is_raised_though_they_fail_first() -> None:
    stopped, failed = threading.Event(), threading.Event()

    def first() -> None:
        raise ValueError("the cause")

    def second() -> None:
        assert stopped.wait(60)
        raise KeyError("a consequence")

    def stop() -> None:
        if stopped.is_set():
            failed.set()  # by the second
            return
        stopped.set()
        assert failed.wait(60)

    with pytest.raises(ValueError, match="the cause"):
        in_threads([first, second], stop)
