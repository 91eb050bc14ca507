import errno
import multiprocessing
import os
import resource
import stat
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from models.architectures.analytic import Gaussian
from models.architectures.residual_mlp import ResidualMLP, ResidualMLPConfig
from models.checkpoint.loading import CheckpointError, load, save
from models.decoder import Decoder


def save_gaussian(root: Path, name: str = "exact", **more: Any) -> Path:
    arguments: dict[str, Any] = {"dataset": {}, "training": {}, "seed": 0, **more}
    return save(root, name, Gaussian(), Decoder.identity((2,)), **arguments)


def test_versions_count_up_and_an_explicit_one_is_kept(tmp_path: Path) -> None:
    assert save_gaussian(tmp_path) == tmp_path / "exact" / "1"
    assert save_gaussian(tmp_path) == tmp_path / "exact" / "2"
    assert save_gaussian(tmp_path, version=9) == tmp_path / "exact" / "9"
    assert save_gaussian(tmp_path) == tmp_path / "exact" / "10"
    assert load(tmp_path / "exact" / "10").card.version == 10
    with pytest.raises(CheckpointError, match="exact/9: already exists"):
        save_gaussian(tmp_path, version=9)
    assert [path.name for path in tmp_path.iterdir()] == ["exact"]


def test_the_same_content_gives_the_same_bytes(tmp_path: Path, network: ResidualMLP) -> None:
    arguments: Any = {"dataset": {"b": 1, "a": [1, 2.5]}, "training": {"loss": 0.1}, "seed": 3}
    one = save(tmp_path / "x", "m", network, Decoder.identity((2,)), **arguments)
    two = save(tmp_path / "y", "m", network, Decoder.identity((2,)), **arguments)
    for file in ("card.json", "weights.safetensors"):
        assert (one / file).read_bytes() == (two / file).read_bytes()
    assert load(one).digest == load(two).digest


def test_other_users_may_read_what_the_umask_allows(tmp_path: Path) -> None:
    before = os.umask(0o022)
    try:
        path = save_gaussian(tmp_path / "new")
    finally:
        os.umask(before)
    assert stat.S_IMODE(path.stat().st_mode) == 0o755
    assert stat.S_IMODE((path / "card.json").stat().st_mode) == 0o644


def test_concurrent_saves_all_survive(tmp_path: Path) -> None:
    with ThreadPoolExecutor(8) as pool:
        paths = list(pool.map(lambda seed: save_gaussian(tmp_path, seed=seed), range(24)))
    assert sorted(int(path.name) for path in paths) == list(range(1, 25))
    for seed, path in enumerate(paths):
        card = load(path).card
        assert (card.seed, card.version) == (seed, int(path.name))


def test_a_weight_type_is_converted_when_asked(tmp_path: Path, network: ResidualMLP) -> None:
    path = save(tmp_path, "m", network, Decoder.identity((2,)), dataset={}, training={}, seed=0, dtype=torch.float64)
    assert {p.dtype for p in load(path).velocity.parameters()} == {torch.float64}
    assert network.output.weight.dtype == torch.float32


@pytest.mark.parametrize(
    ("more", "named"),
    [
        ({"name": "../up"}, "name is '../up'"),
        ({"name": ".hidden"}, "name is '.hidden'"),
        ({"name": "x" * 65}, "1 to 64"),
        ({"version": 0}, "version is 0"),
        ({"seed": 2**63}, "seed: .*found 9223372036854775808"),
        ({"training": {"loss": float("nan")}}, "card.json: .*JSON"),
        ({"training": {"when": object()}}, "training"),
        ({"dtype": torch.float16}, "dtype is torch.float16"),
    ],
)
def test_what_cannot_be_served_is_not_saved(tmp_path: Path, more: dict, named: str) -> None:
    with pytest.raises(CheckpointError, match=named):
        save_gaussian(tmp_path, **more)
    assert list(tmp_path.iterdir()) == []


def test_a_model_that_cannot_be_rebuilt_is_not_saved(tmp_path: Path, network: ResidualMLP) -> None:
    arguments: Any = {"dataset": {}, "training": {}, "seed": 0}
    with pytest.raises(CheckpointError, match="Linear is not a registered architecture"):
        save(tmp_path, "m", nn.Linear(2, 2), Decoder.identity((2,)), **arguments)
    with pytest.raises(CheckpointError, match="event_shape"):
        save(tmp_path, "m", network, Decoder.identity((3,)), **arguments)
    with torch.no_grad():
        network.output.bias[0] = float("inf")
    with pytest.raises(CheckpointError, match=r"velocity\.output\.bias: holds numbers that are not finite"):
        save(tmp_path, "m", network, Decoder.identity((2,)), **arguments)
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_the_disk_cuts_short_leaves_nothing(tmp_path: Path) -> None:
    big = ResidualMLP(ResidualMLPConfig(dim=2, hidden=64, blocks=1))
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, hard))
    try:
        with pytest.raises(CheckpointError, match=r"cannot be written: .*nothing was saved"):
            save(tmp_path, "m", big, Decoder.identity((2,)), dataset={}, training={}, seed=0)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert list(tmp_path.iterdir()) == []


def test_a_disk_that_fills_up_at_the_end_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(self: Path, target: Path) -> Path:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(Path, "rename", full)
    with pytest.raises(CheckpointError, match="exact: cannot be written: No space left on device"):
        save_gaussian(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_root_that_cannot_be_a_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(CheckpointError, match="cannot be written"):
        save_gaussian(tmp_path / "file")
    with pytest.raises(CheckpointError, match="cannot be written"):
        save_gaussian(tmp_path / "file" / "below")


def test_leftovers_of_a_killed_save_are_removed_once_old(tmp_path: Path) -> None:
    old, young = tmp_path / ".tmp-exact-1", tmp_path / ".tmp-exact-2"
    for path in (old, young):
        path.mkdir()
        (path / "weights.safetensors").write_bytes(b"half")
    two_hours_ago = time.time() - 7200
    os.utime(old, (two_hours_ago, two_hours_ago))
    save_gaussian(tmp_path)
    assert not old.exists()
    assert young.exists()


def _die_while_renaming(root: Path) -> None:
    Path.rename = lambda self, target: os._exit(9)  # type: ignore[method-assign,assignment]
    save_gaussian(root)


def test_a_save_that_is_killed_shows_nothing(tmp_path: Path) -> None:
    process = multiprocessing.get_context("fork").Process(target=_die_while_renaming, args=(tmp_path,))
    process.start()
    process.join(60)
    assert process.exitcode == 9
    visible = [path for path in tmp_path.glob("*/*") if not path.parent.name.startswith(".")]
    assert visible == []
    assert save_gaussian(tmp_path).name == "1"
