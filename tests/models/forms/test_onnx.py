"""The rule for exported networks, and what happens where the exported form fails (onnxruntime: a system test)."""

import copy
import os
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor, nn

import models.forms.onnx
from models.architectures.residual_mlp import ResidualMLP, ResidualMLPConfig
from models.architectures.unet import UNet, UNetConfig
from models.conditions import NamedCondition
from models.forms.form import choose
from models.forms.onnx import _exported, can_export
from models.network import Network

UNFUSED = "UNet has no fused form"


def unet(condition: NamedCondition | None = None) -> UNet:
    torch.manual_seed(0)
    net = UNet(UNetConfig(hidden=4, shape=(1, 4, 4), levels=2, condition=condition))
    return net.eval().requires_grad_(False)


@pytest.fixture
def present(monkeypatch: pytest.MonkeyPatch) -> None:
    """The extra is installed."""
    monkeypatch.setattr(models.forms.onnx, "find_spec", lambda name: SimpleNamespace(name=name))


@pytest.mark.usefixtures("present")
@pytest.mark.parametrize(
    ("network", "message"),
    [
        (unet(), None),
        (unet(NamedCondition.label(classes=3)), None),
        (ResidualMLP(ResidualMLPConfig(dim=2, hidden=8)), None),
        (unet().double(), "weights are float32, float64; only float32 is exported"),
        (unet().to("meta"), "only networks on the CPU are exported"),
    ],
)
def test_the_rule_looks_at_the_network(network: Network, message: str | None) -> None:
    assert can_export(network) == message


def test_without_the_extra_the_module_serves_and_the_reason_names_it() -> None:
    net = unet()
    made = choose(net)
    assert (made.velocity, made.path, made.failed) == (net, "eager", False)
    missing = "the extra `onnx`, with which onnxruntime evaluates it, is not installed"
    assert made.reason == f"{UNFUSED}, and {missing}"


@pytest.mark.usefixtures("present")
def test_a_network_that_is_never_exported_keeps_its_reason() -> None:
    made = choose(unet().double())
    assert made.reason == UNFUSED


def answering(monkeypatch: pytest.MonkeyPatch, answer: Callable[[nn.Module], Callable[..., Tensor]]) -> None:
    """Let another function stand for the exported form."""
    monkeypatch.setattr(models.forms.onnx, "_exported", lambda folder, digest: b"")
    monkeypatch.setattr(models.forms.onnx, "OnnxField", lambda network, content: answer(network))


@pytest.mark.usefixtures("present")
def test_a_form_that_is_as_good_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    net = unet(NamedCondition.vector(width=3))

    def row_by_row(network: nn.Module) -> Callable[..., Tensor]:
        return lambda x, t, c: torch.cat([network(x[k : k + 1], t[k : k + 1], c[k : k + 1]) for k in range(len(x))])

    answering(monkeypatch, row_by_row)
    made = choose(net, net.condition)
    assert (made.path, made.reason, made.independent) == ("onnx", "", False)


@pytest.mark.usefixtures("present")
@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda v: v * (1 + 1e-5), "the exported form is off by"),
        (lambda v: v * torch.nan, "the exported form is off by nan"),
        (lambda v: v * (1 + 1e-7 * (len(v) % 2)), "the exported form has other bits in calls of"),
    ],
)
def test_a_form_that_is_not_as_good_is_refused(
    monkeypatch: pytest.MonkeyPatch, change: Callable[[Tensor], Tensor], message: str
) -> None:
    def changed(network: nn.Module) -> Callable[..., Tensor]:
        exact = copy.deepcopy(network).double()
        return lambda x, t, c: change(exact(x.double(), t.double())).float()

    answering(monkeypatch, changed)
    made = choose(unet())
    assert (made.path, made.failed) == ("eager", True)
    assert made.reason.startswith(message)


@pytest.mark.usefixtures("present")
def test_an_export_that_fails_is_told_in_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(models.forms.onnx, "version", lambda name: "1.0")
    made = choose(unet(), folder=tmp_path / "no-checkpoint", digest="sha256:")
    assert (made.path, made.failed) == ("eager", True)
    assert made.reason.startswith("the network could not be exported: ExportError: ")
    assert "\n" not in made.reason
    assert not (tmp_path / "onnx").exists()


@pytest.mark.usefixtures("present")
def test_an_export_is_kept_once_and_made_again_if_it_cannot_be(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Path] = []

    def make(folder: Path, to: Path) -> None:
        made.append(folder)
        to.write_bytes(b"onnx")

    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(models.forms.onnx, "version", lambda name: "1.0")
    monkeypatch.setattr(models.forms.onnx, "_in_a_process", make)
    (tmp_path / "onnx").mkdir()
    left = tmp_path / "onnx" / ".other.onnx.0123.part"
    left.touch()
    os.utime(left, (0, 0))
    assert [_exported(tmp_path / "net", "sha256:") for _ in range(2)] == [b"onnx", b"onnx"]
    assert [path.suffix for path in (tmp_path / "onnx").iterdir()] == [".onnx"]
    assert len(made) == 1
    (tmp_path / "file").touch()
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path / "file"))
    assert [_exported(tmp_path / "net", "sha256:") for _ in range(2)] == [b"onnx", b"onnx"]
    assert len(made) == 3


def test_an_export_with_labels_takes_any_number_of_rows() -> None:
    condition, rows = NamedCondition.label(classes=3), torch.export.Dim("rows")
    arguments = (torch.zeros(3, 1, 4, 4), torch.zeros(3), condition.examples(3, torch.float32))
    program = torch.export.export(unet(condition), arguments, dynamic_shapes=tuple({0: rows} for _ in arguments))
    inputs = [node.meta["val"] for node in program.graph.nodes if node.op == "placeholder"][-len(arguments) :]
    assert all(not isinstance(each.shape[0], int) for each in inputs)


@pytest.mark.usefixtures("present")
def test_a_damaged_export_is_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Path] = []

    def make(folder: Path, to: Path) -> None:
        made.append(folder)
        to.write_bytes(b"onnx")

    def field(network: nn.Module, content: bytes) -> Callable[..., Tensor]:
        if content != b"onnx":
            raise RuntimeError("INVALID_PROTOBUF")
        return network

    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(models.forms.onnx, "version", lambda name: "1.0")
    monkeypatch.setattr(models.forms.onnx, "_in_a_process", make)
    monkeypatch.setattr(models.forms.onnx, "OnnxField", field)
    net = unet()
    models.forms.onnx.make(net, tmp_path / "net", "sha256:")
    [kept] = (tmp_path / "onnx").glob("*.onnx")
    kept.write_bytes(b"")
    assert models.forms.onnx.make(net, tmp_path / "net", "sha256:") is net
    assert (len(made), kept.read_bytes()) == (2, b"onnx")
