from collections.abc import Callable
from pathlib import Path

import pytest

from models.__main__ import main
from models.checkpoint.saving import save
from models.decoder import Decoder
from models.program.network import Program, ProgramConfig
from models.program.steps import Step


def test_list_shows_each_version(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list", "--models-dir", str(folder.parent.parent)]) == 0
    header, row = capsys.readouterr().out.splitlines()
    assert header.split() == ["MODEL", "VERSION", "ARCHITECTURE", "DTYPE", "EVENT", "DATA", "DATASET"]
    assert row.split() == ["moons", "1", "residual_mlp", "float32", "2", "2", "moons"]


def test_list_goes_on_after_a_bad_card(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder.parent / "2").mkdir()
    assert main(["list", "--models-dir", str(folder.parent.parent)]) == 1
    out = capsys.readouterr().out
    assert "residual_mlp" in out
    assert "card.json: is missing" in out


def test_an_empty_repository_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list", "--models-dir", str(tmp_path)]) == 0
    assert capsys.readouterr().out == f"{tmp_path}: no models\n"


def test_check_passes_a_sound_repository(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "--models-dir", str(folder.parent.parent)]) == 0
    assert capsys.readouterr().out.startswith("ok   moons 1: sha256:")


def test_check_names_what_is_bad_and_goes_on(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = folder.parent.parent
    (root / "model.pt").write_bytes(b"cos\nsystem\n(S'false'\ntR.")
    (root / "broken" / "1").mkdir(parents=True)
    assert main(["check", "--models-dir", str(root)]) == 1
    broken, good, pickle = capsys.readouterr().out.splitlines()
    assert broken.startswith("bad  broken 1: ")
    assert good.startswith("ok   moons 1: ")
    assert pickle == f"bad  {root / 'model.pt'}: pickles can run code and are never read; save as safetensors instead"


def test_a_missing_repository_is_one_line_and_status_2(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "--models-dir", str(tmp_path / "nowhere")]) == 2
    assert "does not exist" in capsys.readouterr().err


@pytest.mark.parametrize(("name", "remedy"), [("plans.json", "tune the model again"), ("frontier.json", "measure")])
def test_check_names_a_file_without_which_a_model_is_served(
    folder: Path, name: str, remedy: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / name).write_bytes(b"{")
    assert main(["check", "--models-dir", str(folder.parent.parent)]) == 1
    good, fault = capsys.readouterr().out.splitlines()
    assert good.startswith("ok   moons 1: ")
    assert fault.startswith(f"bad  moons 1: {folder / name}: ")
    assert remedy in fault


def test_the_environment_names_the_repository(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATHLINE_MODELS_DIR", str(folder.parent.parent))
    assert main(["list"]) == 0
    assert "moons" in capsys.readouterr().out


@pytest.mark.parametrize("command", ["check", "list"])
def test_a_model_that_cannot_be_read_is_reported(
    folder: Path, close: Callable[[Path], None], capsys: pytest.CaptureFixture[str], command: str
) -> None:
    root = folder.parent.parent
    (root / "gaussian" / "1").mkdir(parents=True)
    close(root / "gaussian")
    assert main([command, "--models-dir", str(root)]) == 1
    out = capsys.readouterr().out
    assert f"{root / 'gaussian'}: cannot be read: Permission denied\n" in out
    assert "moons" in out


@pytest.mark.parametrize(("command", "status"), [("check", 1), ("list", 0)])
def test_what_is_passed_over_has_a_line(
    folder: Path, capsys: pytest.CaptureFixture[str], command: str, status: int
) -> None:
    root = folder.parent.parent
    (root / "my\nmodel" / "1").mkdir(parents=True)
    (root / "\u00fcn\u00ef" / "1").mkdir(parents=True)
    (root / "rings" / "01").mkdir(parents=True)
    assert main([command, "--models-dir", str(root)]) == status
    lines = [line.removeprefix("bad  ") for line in capsys.readouterr().out.splitlines() if "passed over" in line]
    expected = [repr(str(root / "my\nmodel")), root / "rings", root / "rings" / "01", root / "\u00fcn\u00ef"]
    assert [line.split(": passed over")[0] for line in lines] == [str(path) for path in expected]


@pytest.mark.parametrize(("command", "status"), [("check", 1), ("list", 1)])
def test_a_link_that_the_service_refuses_is_not_read(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], command: str, status: int
) -> None:
    outside = tmp_path / "secret.txt"
    outside.write_text("a secret")
    (folder / "card.json").unlink()
    (folder / "card.json").symlink_to(outside)
    assert main([command, "--models-dir", str(folder.parent.parent)]) == status
    out = capsys.readouterr().out
    assert "card.json: leads out of the repository; copy the file here instead" in out
    assert "a secret" not in out


def test_files_and_dangling_links_are_named(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = folder.parent.parent
    (root / "README.md").write_text("")
    assert main(["check", "--models-dir", str(root)]) == 0  # a file is no fault
    assert f"note {root / 'README.md'}: passed over: a file" in capsys.readouterr().out
    (root / "rings").symlink_to(root / "nowhere")
    assert main(["check", "--models-dir", str(root)]) == 1
    assert f"bad  {root / 'rings'}: passed over: a broken link" in capsys.readouterr().out
    assert main(["list", "--models-dir", str(root)]) == 0
    assert "README.md: passed over" in (out := capsys.readouterr().out)
    assert "rings: passed over" in out


def test_check_says_that_a_repository_is_empty(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "--models-dir", str(tmp_path)]) == 0
    assert capsys.readouterr().out == f"{tmp_path}: the repository is empty: no models\n"


def test_check_names_a_network_that_mixes_rows(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    steps = (
        Step(op="torch.ops.aten.mean.dim", args=({"value": "x"}, [0], True), out=("m",)),
        Step(op="torch.ops.aten.sub.Tensor", args=({"value": "x"}, {"value": "m"}), out=("v",)),
    )
    for rows in ((1, None), (1, 1)):
        config = ProgramConfig(event_shape=(2,), dtype="float64", tensors={}, steps=steps, output="v", rows=rows)
        save(tmp_path, "mean", Program(config), Decoder.identity((2,)), dataset={}, training={}, seed=0)
    assert main(["check", "--models-dir", str(tmp_path)]) == 1
    bad, good = capsys.readouterr().out.splitlines()
    assert bad.startswith("bad  mean 1: ")
    assert "the network mixes rows" in bad
    assert good.startswith("ok   mean 2: sha256:")


@pytest.mark.parametrize("file", ["card.json", "weights.safetensors"])
@pytest.mark.parametrize("command", ["check", "list"])
def test_a_link_out_of_the_repository_is_refused_as_the_service_does_and_not_read(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], command: str, file: str
) -> None:
    outside = tmp_path / "outside"
    (folder / file).rename(outside)
    (folder / file).symlink_to(outside)
    assert main([command, "--models-dir", str(folder.parent.parent)]) == 1
    out = capsys.readouterr().out
    assert f"{folder / file}: leads out of the repository; copy the file here instead" in out


def test_a_link_within_the_repository_is_followed(folder: Path) -> None:
    (folder / "card.json").rename(folder / "real.json")
    (folder / "card.json").symlink_to("real.json")
    assert main(["check", "--models-dir", str(folder.parent.parent)]) == 0
