"""Tuned plans of a checkpoint: written and read, and every reason for refusing a file."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from models.checkpoint.bound import BoundFileError
from models.checkpoint.card import read_card
from models.checkpoint.loading import load
from models.checkpoint.plans import PLANS_FILE, Plans, StoredPlan
from models.frozen import own_sha256
from models.noise import noise
from selection.frontier import FrontierFile
from solvers import integrate

LEARNED = StoredPlan(
    solver="tuned-2",
    times=(0.0, 0.4, 1.0),
    weights=((0.4,), (-0.1, 0.7)),
    error=0.01,
    start_error=0.02,
    tuning={"seed": 0},
    libraries={"torch": "1"},
)
GRID = StoredPlan(solver="ab2-3/tuned", times=(0.0, 0.2, 0.5, 1.0), error=0.01, start_error=0.02)


def written(folder: Path, **changes: Any) -> Path:
    plans = Plans(weights_sha256=read_card(folder).weights_sha256, plans=(LEARNED, GRID))
    return plans.model_copy(update=changes).write(folder)


def test_what_is_written_is_read_and_loaded_with_the_checkpoint(folder: Path) -> None:
    assert (load(folder).plans, load(folder).plans_fault) == (None, "")
    assert Plans.read(folder, "0" * 64) is None
    path = written(folder)
    assert written(folder).read_bytes() == path.read_bytes()
    assert not list(folder.glob(".*.part"))
    checkpoint = load(folder)
    assert checkpoint.plans is not None
    assert checkpoint.plans.texts == ["tuned-2", "ab2-3/tuned"]
    assert checkpoint.plans.slots == 2
    found = Plans.read(folder, checkpoint.card.weights_sha256)
    assert found is not None
    assert found.plans == (LEARNED, GRID)
    weights = checkpoint.plans.plan(2).weights
    assert weights is not None
    assert weights.tolist() == [[0.4, 0.0], [-0.1, 0.7]]
    with torch.no_grad():
        solution = integrate(checkpoint.velocity, noise(0, 0, 4, (2,)), solver="tuned-2", tuned=checkpoint.plans)
    assert solution.nfe.tolist() == [2] * 4
    assert solution.x.isfinite().all()


def test_weights_of_the_starting_state_are_kept(folder: Path) -> None:
    plan = LEARNED.model_copy(update={"x0_weights": (-0.05, 0.02)})
    written(folder, plans=(plan,))
    checkpoint = load(folder)
    assert checkpoint.plans is not None
    found = checkpoint.plans.plan(2).x0_weights
    assert found is not None
    assert found.tolist() == [-0.05, 0.02]
    assert checkpoint.plans.slots == 3


def test_weights_that_a_plan_does_not_have_are_left_out_and_null_is_read_too(folder: Path) -> None:
    path = written(folder)
    fields = json.loads(path.read_bytes())
    learned, grid = fields["plans"]
    assert set(learned) - set(grid) == {"weights"}
    assert "x0_weights" not in learned
    digest = read_card(folder).weights_sha256
    plans = Plans.read(folder, digest)
    learned["x0_weights"] = grid["x0_weights"] = grid["weights"] = None
    path.write_bytes(json.dumps({**fields, "sha256": own_sha256(fields, "sha256", 1)}).encode())
    found = Plans.read(folder, digest)
    assert found is not None
    assert found == plans


def change(edit: Callable[[dict[str, Any]], object]) -> Callable[[bytes], bytes]:
    """Edit the JSON, leaving the digest as it was."""

    def changed(content: bytes) -> bytes:
        fields = json.loads(content)
        edit(fields)
        return json.dumps(fields).encode()

    return changed


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda content: content[: len(content) // 2], "plans.json: .*tune the model again"),
        (lambda content: b"", "plans.json: "),
        (lambda content: b"\x00" * 100, "plans.json: "),
        (lambda content: b"[" * 100_000, "plans.json: "),
        (lambda content: content.replace(b"0.7", b"0.8"), "is damaged or was edited: sha256 found .*, expected"),
        (lambda content: content.replace(b"0.7", b"NaN"), "weights"),
        (lambda content: content.replace(b"0.7", b"1e999"), "weights"),
        (lambda content: content.replace(b"0.5", b"0.1"), "strictly from 0 to 1"),
        (change(lambda fields: fields["plans"][0].update(solver="rk4-2")), "is not a tuned solver"),
        (change(lambda fields: fields["plans"][0].update(solver="tuned-3")), "times are for 2 steps"),
        (change(lambda fields: fields["plans"][0].update(weights=[[0.4], [0.1]])), "rows of 1 to 2 weights"),
        (change(lambda fields: fields["plans"][0].update(weights=None)), "weights are missing"),
        (change(lambda fields: fields["plans"][0].update(x0_weights=[0.1])), "x0_weights: .* 2 steps need"),
        (change(lambda fields: fields["plans"][0].update(x0_weights=[0.1, float("nan")])), "x0_weights"),
        (change(lambda fields: fields["plans"][1].update(x0_weights=[1, 1, 1])), "weights of its method"),
        (change(lambda fields: fields["plans"][1].update(weights=[[1], [1, 1], [1, 1, 1]])), "for learned plans"),
        (change(lambda fields: fields["plans"].append(fields["plans"][0])), "tuned-2 is listed twice"),
        (change(lambda fields: fields.update(plans=[])), "plans"),
        (change(lambda fields: fields.update(format=2)), "format"),
        (change(lambda fields: fields.update(code="import os")), "code"),
    ],
)
def test_a_bad_file_is_refused_and_the_checkpoint_loads(
    folder: Path, damage: Callable[[bytes], bytes], words: str
) -> None:
    path = written(folder)
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(BoundFileError, match=words) as caught:
        Plans.read(folder, read_card(folder).weights_sha256)
    assert "\n" not in str(caught.value)
    checkpoint = load(folder)
    assert checkpoint.plans is None
    assert checkpoint.plans_fault == str(caught.value)


def test_plans_of_another_checkpoint_are_refused_with_both_hashes(folder: Path) -> None:
    mine = read_card(folder).weights_sha256
    written(folder, weights_sha256="ab" * 32)
    with pytest.raises(BoundFileError) as caught:
        Plans.read(folder, mine)
    assert "belongs to other weights" in str(caught.value)
    assert mine in str(caught.value)
    assert "ab" * 32 in str(caught.value)


def test_a_named_pipe_and_a_huge_file(folder: Path) -> None:
    os.mkfifo(folder / PLANS_FILE)
    with pytest.raises(BoundFileError, match="cannot be read: is a named pipe"):
        Plans.read(folder, "0" * 64)
    (folder / PLANS_FILE).unlink()
    with (folder / PLANS_FILE).open("wb") as file:
        file.truncate(9 << 20)
    with pytest.raises(BoundFileError, match="is larger than"):
        Plans.read(folder, "0" * 64)


def test_a_disk_that_refuses_leaves_what_was_there(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = written(folder).read_bytes()

    def refuse(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", refuse)
    with pytest.raises(BoundFileError, match="cannot be written: No space left on device; nothing was changed"):
        written(folder, plans=(GRID,))
    assert (folder / PLANS_FILE).read_bytes() == before
    assert not list(folder.glob(".*.part"))


@pytest.mark.parametrize("file", ["plans.json", "frontier.json"])
def test_a_link_out_of_the_repository_is_refused_unread(folder: Path, tmp_path_factory: Any, file: str) -> None:
    secret = tmp_path_factory.mktemp("outside") / "secret.json"
    secret.write_text('{"format": "hunter2"}')
    (folder / file).unlink(missing_ok=True)
    (folder / file).symlink_to(secret)
    if file == "plans.json":
        with pytest.raises(BoundFileError) as caught:
            Plans.read(folder, "0" * 64)
        fault = str(caught.value)
    else:
        found, fault = FrontierFile(folder, read_card(folder)).now()
        assert found is None
    assert fault.endswith(f"{file}: leads out of the repository; copy the file here instead")


def test_a_link_within_the_repository_is_read(folder: Path) -> None:
    digest = read_card(folder).weights_sha256
    Plans(weights_sha256=digest, plans=(GRID,)).write(folder)
    (folder / "plans.json").rename(folder.parent / "shared.json")
    (folder / "plans.json").symlink_to(folder.parent / "shared.json")
    assert Plans.read(folder, digest) is not None


@pytest.mark.parametrize("content", ['{"format": "hunter2"}', '{"sha256": "hunter2", "plans": "hunter2"}', "hunter2"])
def test_values_of_a_bad_file_are_not_quoted(folder: Path, content: str) -> None:
    (folder / "plans.json").write_text(content)
    (folder / "frontier.json").write_text(content)
    with pytest.raises(BoundFileError) as caught:
        Plans.read(folder, "0" * 64)
    _, fault = FrontierFile(folder, read_card(folder)).now()
    assert "hunter2" not in str(caught.value) + fault
