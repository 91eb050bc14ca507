"""Decoders and preludes at import: how they are stored, from Python and the command line, and which are refused."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from models.__main__ import main
from models.checkpoint.loading import load
from models.importing.files import ForeignError
from models.importing.parts import make_decoder
from models.importing.weights import import_program, import_weights
from models.shapes import FreeAxis
from tests.service.latent import CONDITIONS, Latent, export, exported

from .conftest import CONFIG

F32 = torch.float32
INPUTS = ["x", "t", "tokens", "counts", "state"]


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return exported(Latent(), tmp_path_factory.mktemp("programs"))


def latent(files: dict[str, Path], root: Path, **changed: Any) -> Path:
    fields: dict[str, Any] = {"inputs": INPUTS, "conditions": CONDITIONS, "decoder": {"program": files["decoder"]}}
    fields |= {"prelude": files["prelude"], "prelude_outputs": ["tokens", "counts"]}
    return import_program(files["velocity"], root, "latent", **(fields | changed)).path


def test_all_three_are_stored_and_run_as_before(files: dict[str, Path], tmp_path: Path) -> None:
    found, made = load(latent(files, tmp_path)), Latent()
    assert found.card.data_shape == (3, 2, 2)
    x = torch.randn(5, 4)
    with torch.no_grad():
        torch.testing.assert_close(found.decoder.decode(x), made.decoder(x))
        assert found.prelude is not None
        image, missing, strength = torch.rand(5, 3, 4, 4), torch.arange(5) > 2, torch.ones(5)
        given = {"image": image, "missing": missing, "strength": strength}
        tokens, counts = made.encoder(image, missing, strength)
        made_of = found.prelude.program(given)
    torch.testing.assert_close(made_of["tokens"], tokens)
    assert torch.equal(made_of["counts"], counts)


def test_the_command_line_takes_them(
    files: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["import", str(files["velocity"]), "--program", "--name", "latent", "--models-dir", str(tmp_path)]
    command += ["--inputs", ",".join(INPUTS), "--conditions", json.dumps(CONDITIONS), "--check"]
    command += ["--prelude", str(files["prelude"]), "--prelude-outputs", "tokens,counts"]
    command += ["--decoder", str(files["decoder"]), "--clip", "-1", "1"]
    monkeypatch.delenv("PATHLINE_ALLOW_PROGRAMS", raising=False)
    assert main(command) == 1
    assert "programs are off" in capsys.readouterr().err
    monkeypatch.setenv("PATHLINE_ALLOW_PROGRAMS", "true")
    assert main(command) == 0
    report = capsys.readouterr().out
    assert "from (image, missing, strength) to (tokens, counts)" in report
    assert "data of the shape [3, 2, 2]" in report
    assert "shape [16, 3, 2, 2]" in report


def test_a_decoder_beside_our_own_architectures(
    trained: dict[str, Tensor], saved: Callable[..., Path], tmp_path: Path
) -> None:
    decoder = export(nn.Linear(2, 6), (torch.randn(4, 2),), tmp_path / "decoder.pt2")
    path = import_weights(
        saved({"model": trained}), tmp_path / "root", "points", "residual_mlp", CONFIG, decoder={"program": decoder}
    ).path
    assert load(path).card.data_shape == (6,)


@pytest.mark.parametrize(
    ("mean", "scale", "expected"),
    [
        ("0.5", "2", lambda x: 2 * x + 0.5),
        ("1,2,3", None, lambda x: x + torch.tensor([1.0, 2.0, 3.0])[:, None]),
        (None, "1,2,4", lambda x: x * torch.tensor([1.0, 2.0, 4.0])[:, None]),
    ],
)
def test_states_are_scaled_for_all_or_by_channel(mean: str | None, scale: str | None, expected: Any) -> None:
    given = {"mean": mean, "scale": scale}
    numbers = {name: [float(each) for each in text.split(",")] for name, text in given.items() if text is not None}
    decoder, report = make_decoder((3, 5), F32, numbers)
    x = torch.randn(4, 3, 5)
    torch.testing.assert_close(decoder.decode(x), expected(x))
    assert report == ["decoder: data = state * scale + mean"]


@pytest.mark.parametrize(
    ("event_shape", "mean", "spread"),
    [
        ((3, "T"), 2.0, (1, 1)),
        ((3, "T"), [1.0, 2.0, 3.0], (3, 1)),
        ((3, "T"), [[1.0], [2.0], [3.0]], (3, 1)),
        (("T", 3), [[1.0, 2.0, 3.0]], (1, 3)),
        ((4, "H", "W"), [1.0, 2.0, 3.0, 4.0], (4, 1, 1)),
        (("T",), [5.0], (1,)),
        ((3, 5), [[1.0], [2.0], [3.0]], (3, 1)),
        ((3, 5), [[1.0, 2.0, 3.0, 4.0, 5.0]], (1, 5)),
    ],
)
def test_means_spread_over_the_axes_of_a_state(event_shape: Any, mean: Any, spread: Any) -> None:
    decoder, _ = make_decoder(event_shape, F32, {"mean": torch.tensor(mean), "scale": 2.0})
    assert decoder.data_shape == event_shape
    x = torch.randn(2, *(7 if isinstance(size, str) else size for size in event_shape))
    torch.testing.assert_close(decoder.decode(x), 2 * x + torch.tensor(mean).reshape(spread))


@pytest.mark.parametrize(
    ("event_shape", "mean", "report"),
    [
        ((3, "T"), torch.ones(3, 7), r"shape \[3, 7\], with 7 numbers along the axis T, which is free: .* \[3, 1\]"),
        (("T", 3), torch.ones(3), r"shape \[3\], with 3 numbers along the axis T, .* \[1, 3\]"),
        ((3, "T"), torch.ones(4), r"shape \[4\]; give one number, 3 for the channels, or .* \[3, 1\]"),
        ((3, "T"), torch.ones(3, 1, 1), r"shape \[3, 1, 1\]; give one number"),
        ((3, "T"), torch.ones(0), r"shape \[0\]; give one number"),
        ((3, "T"), torch.tensor([1.0, float("nan"), 1.0]), "not finite"),
    ],
)
def test_means_that_do_not_spread_are_refused(event_shape: Any, mean: Tensor, report: str) -> None:
    with pytest.raises(ForeignError, match=f"--decoder-mean.*{report}"):
        make_decoder(event_shape, F32, {"mean": mean})


def test_scales_from_the_command_line(
    trained: dict[str, Tensor], saved: Callable[..., Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    np.save(tmp_path / "scale.npy", np.array([2.0, 4.0], np.float32))
    command = ["import", str(saved({"model": trained})), "--name", "points", "--architecture", "residual_mlp"]
    command += ["--config", json.dumps(CONFIG), "--models-dir", str(tmp_path / "root")]
    assert main([*command, "--decoder-mean", "1", "--decoder-scale", str(tmp_path / "scale.npy")]) == 0
    decoder = load(tmp_path / "root" / "points" / "1").decoder
    assert torch.equal(decoder.decode(torch.ones(1, 2)), torch.tensor([[3.0, 5.0]]))
    for wrong in ("nan", "1,2,3", "0"):
        assert main([*command, "--decoder-scale", wrong]) == 1
        assert "--decoder-scale" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main([*command, "--decoder-scale", "much"])


class Mixed(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x - x.mean(0, keepdim=True)


class Infinite(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x / 0.0


def test_decoders_that_are_refused(files: dict[str, Path], tmp_path: Path) -> None:
    def refused(module: nn.Module, width: int = 4, **more: Any) -> str:
        file = export(module, (torch.randn(4, width),), tmp_path / "decoder.pt2")
        with pytest.raises(ForeignError) as error:
            make_decoder((4,), F32, {"program": file, **more})
        return str(error.value)

    assert "the decoder mixes rows" in refused(Mixed())
    assert "not finite" in refused(Infinite())
    assert "takes states of the shape [5], but the network's have [4]" in refused(nn.Linear(5, 2), 5)
    assert "with --decoder" in refused(nn.Linear(4, 2), scale=2.0)
    with pytest.raises(ForeignError, match="takes 3 tensors, image, missing, strength"):
        make_decoder((3, 4, 4), F32, {"program": files["prelude"]})
    whole = files["decoder"].read_bytes()
    (tmp_path / "half.pt2").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ForeignError, match="not an archive"):
        make_decoder((4,), F32, {"program": tmp_path / "half.pt2"})


def free_decoder(tmp_path: Path, module: nn.Module, shape: tuple[int, ...], dims: dict[int, Any]) -> Path:
    file, rows = tmp_path / "free.pt2", torch.export.Dim("rows", max=64)
    torch.export.save(torch.export.export(module, (torch.randn(4, *shape),), dynamic_shapes=({0: rows, **dims},)), file)
    return file


def larger(tmp_path: Path, least: int = 2) -> Path:
    high, wide = (torch.export.Dim(name, min=least, max=64) for name in ("high", "wide"))
    return free_decoder(tmp_path, nn.Upsample(scale_factor=2), (1, 6, 8), {2: high, 3: wide})


def test_a_program_of_free_sizes_takes_states_of_free_and_of_fixed_ones(tmp_path: Path) -> None:
    file, axes = larger(tmp_path), {"H": FreeAxis(min=4, max=64), "W": FreeAxis(min=2, max=30, multiple=2)}
    decoder, [report] = make_decoder((1, "H", "W"), F32, {"program": file}, axes)
    assert decoder.data_shape == (1, "2*H", "2*W")
    assert decoder.program is not None
    assert decoder.program.cpu_rows in (1, 8)  # decided also where the export bounds the rows
    assert "data of the shape [1, '2*H', '2*W']" in report
    x = torch.randn(2, 1, 5, 6)
    assert torch.equal(decoder.decode(x), nn.functional.interpolate(x, scale_factor=2))
    assert make_decoder((1, "H", 6), F32, {"program": file}, axes)[0].data_shape == (1, "2*H", 12)
    fixed = make_decoder((1, 5, 6), F32, {"program": file})[0]
    assert fixed.data_shape == (1, 10, 12)
    assert torch.equal(fixed.decode(x), decoder.decode(x))


def test_programs_that_do_not_take_all_states_are_refused(tmp_path: Path) -> None:
    axes = {"H": FreeAxis(min=4, max=64), "W": FreeAxis(min=2, max=65)}

    def refused(file: Path, event_shape: Any = (1, "H", "W"), **bounds: FreeAxis) -> str:
        with pytest.raises(ForeignError) as error:
            make_decoder(event_shape, F32, {"program": file}, axes | bounds)
        return str(error.value)

    assert "takes 1 to 64 where the axis W of the network's states is 2 to 65" in refused(larger(tmp_path))
    assert "takes 4 to 64 where the axis W" in refused(larger(tmp_path, 4), W=FreeAxis(min=3, max=9))
    assert "where that axis of the network's states is 65 to 65" in refused(larger(tmp_path), (1, 5, 65))
    assert "takes states of the shape [1, 'H', 'W'], but the network's have [2, 'H', 'W']" in refused(
        larger(tmp_path), (2, "H", "W")
    )
    side = torch.export.Dim("side", max=64)
    square = free_decoder(tmp_path, nn.Upsample(scale_factor=2), (1, 6, 6), {2: side, 3: side})
    assert "an axis of the same size as another" in refused(square)
    half = free_decoder(tmp_path, nn.Conv1d(1, 1, 2, stride=2), (1, 8), {2: torch.export.Dim("T", min=4, max=64)})
    assert "multiple of one axis" in refused(half, (1, "T"), T=FreeAxis(min=4, max=9))
    plain = export(nn.Conv1d(1, 1, 1), (torch.randn(4, 1, 8),), tmp_path / "plain.pt2")
    assert "takes states of the shape [1, 8], but the network's have [1, 'T']" in refused(
        plain, (1, "T"), T=FreeAxis(max=9)
    )


@pytest.mark.parametrize(
    ("changed", "report"),
    [
        ({"outputs": ["tokens"]}, "returns 2 tensors"),
        ({"outputs": ["tokens", "words"]}, "with --prelude-outputs"),
        ({"outputs": ["counts", "tokens"]}, "made counts as torch.float32"),
        ({"outputs": ["tokens", "counts"], "inputs": ["image"]}, "takes 3 tensors"),
        ({"outputs": ["tokens", "counts"], "inputs": ["image", "t", "strength"]}, "'t' cannot be the name"),
    ],
)
def test_preludes_that_are_refused(
    files: dict[str, Path], tmp_path: Path, changed: dict[str, Any], report: str
) -> None:
    with pytest.raises(ForeignError, match=report):
        latent(files, tmp_path, **{f"prelude_{names}": value for names, value in changed.items()}, conditions={})


class Plain(nn.Module):
    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        return x * t[:, None]


def test_what_is_for_conditions_is_refused_where_there_are_none(files: dict[str, Path], tmp_path: Path) -> None:
    file = export(Plain(), (torch.randn(4, 2), torch.rand(4)), tmp_path / "plain.pt2")
    with pytest.raises(ForeignError, match="the network takes no conditions, so a prelude has none to make"):
        import_program(file, tmp_path, "plain", inputs=["x", "t"], prelude=files["prelude"])
    with pytest.raises(ForeignError, match="--conditions names 'state'; the conditions among --inputs are none"):
        import_program(file, tmp_path, "plain", inputs=["x", "t"], conditions={"state": {"scale": 2.0}})


def test_a_prelude_without_the_names_of_the_arguments_is_refused(files: dict[str, Path], tmp_path: Path) -> None:
    with pytest.raises(
        ForeignError, match=r"--prelude needs the names of the network's arguments: --inputs x,t,\.\.\."
    ):
        latent(files, tmp_path, inputs=None)


class Labelled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(5, 16)

    def forward(self, kind: Tensor) -> tuple[Tensor, Tensor]:
        tokens = self.table(kind).reshape(-1, 2, 8)
        return tokens, tokens.mean(2) > 0


def test_an_unknown_condition_is_named_before_the_prelude_fails_without_it(
    files: dict[str, Path], tmp_path: Path
) -> None:
    prelude = export(Labelled(), (torch.randint(0, 5, (4,)),), tmp_path / "labelled.pt2")
    latent(files, tmp_path, prelude=prelude, conditions={"kind": {"classes": 5}})
    with pytest.raises(ForeignError, match=r"--conditions names 'kinds'; .* tokens, counts, state, and .* takes kind"):
        latent(files, tmp_path, prelude=prelude, conditions={"kinds": {"classes": 5}})
