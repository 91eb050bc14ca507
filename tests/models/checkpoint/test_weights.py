"""The weights file: the bytes of safetensors, and no second copy of its numbers in memory."""

import hashlib
import json
import subprocess
import sys
from pathlib import Path

import pytest
import safetensors.torch
import torch
from torch import Tensor, nn

from models.architectures.analytic import Gaussian
from models.architectures.residual_mlp import ResidualMLP, ResidualMLPConfig
from models.checkpoint.card import CheckpointError
from models.checkpoint.weights import Modules, file_of, read_weights
from models.decoder import Decoder


def tensors() -> dict[str, Tensor]:
    torch.manual_seed(0)
    kinds = (torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.int16)
    shapes = ((3, 5), (), (0, 4), (7,))
    return {
        f"{name}.{place}.{kind}": (10 * torch.randn(shape)).to(kind)
        for name in ("velocity", "decoder")
        for kind in (*kinds, torch.int8, torch.uint8, torch.bool)
        for place, shape in enumerate(shapes)
    }


def content_of(tensors: dict[str, Tensor]) -> bytes:
    return b"".join(bytes(part) for part in file_of(tensors))


def test_the_file_has_the_bytes_of_safetensors_and_comes_back(tmp_path: Path) -> None:
    content = content_of(tensors())
    assert content == safetensors.torch.save(tensors())
    (tmp_path / "w").write_bytes(content)
    read = read_weights(tmp_path / "w", hashlib.sha256(content).hexdigest(), tensors())
    assert read.keys() == tensors().keys()
    assert all(torch.equal(read[key], tensor) and read[key].dtype == tensor.dtype for key, tensor in tensors().items())


@pytest.mark.parametrize(
    ("offsets", "extra", "message"),
    [
        ([[0, 8], [4, 12]], b"", "b is at bytes 4 to 12"),
        ([[0, 8], [12, 20]], b"", "b is at bytes 12 to 20"),
        ([[0, 12], [12, 20]], b"", "a is at bytes 0 to 12"),
        ([[0, 8], [8, 16]], b"more", "more or fewer"),
        ([[0, 8], [8, 16]], None, "ends within a tensor"),
    ],
)
def test_a_header_whose_places_do_not_fit_is_refused(
    tmp_path: Path, offsets: list[list[int]], extra: bytes | None, message: str
) -> None:
    entries = {
        key: {"dtype": "F32", "shape": [2], "data_offsets": each} for key, each in zip("ab", offsets, strict=True)
    }
    header = json.dumps(entries).encode()
    content = len(header).to_bytes(8, "little") + header + (bytes(16) + extra if extra is not None else bytes(12))
    (tmp_path / "w").write_bytes(content)
    with pytest.raises(CheckpointError, match=message):
        read_weights(tmp_path / "w", hashlib.sha256(content).hexdigest(), {"a": torch.zeros(2), "b": torch.zeros(2)})


def test_a_stored_null_may_have_a_name_that_modules_use() -> None:
    modules = Modules(Gaussian(), Decoder.identity((2,)), None, {"type": torch.ones(3)})
    assert modules.state_dict()["nulls.type"].tolist() == [1.0, 1.0, 1.0]


def test_what_changes_its_dtype_or_its_order_in_memory_is_copied_once() -> None:
    network = ResidualMLP(ResidualMLPConfig(dim=2, hidden=4))
    network.output.weight.data = network.output.weight.data.t().contiguous().t()
    modules = Modules(network, Decoder.identity((2,)), None, {})
    wider = modules.stored(torch.float64, None)["velocity.output.weight"]
    assert wider.is_contiguous()
    assert torch.equal(wider, network.output.weight.double())
    same = modules.stored(torch.float32, None)
    assert all(same[key].data_ptr() == tensor.data_ptr() for key, tensor in modules.state_dict().items())


_PEAK = """
import re, sys
from pathlib import Path
import torch
from models.checkpoint.loading import load
from models.importing.declared import Declared
from models.importing.weights import import_program

def status(name):
    return int(re.search(name + r":\\s+(\\d+) kB", Path("/proc/self/status").read_text()).group(1)) << 10

what, small, path, root = sys.argv[1:]
if what == "import":  # what torch imports and reserves at its first calls is not counted
    load(import_program(Path(small), Path(root), "small", declared=Declared(0, 1.0, 1)).path)
else:
    load(small)
before = status("VmRSS")
if what == "import":
    print(import_program(Path(path), Path(root), "large", declared=Declared(0, 1.0, 1)).path)
else:
    print(load(path).path)
print(status("VmHWM") - before)
"""
_WIDTH = 5200


class Layers(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(3, width), nn.Linear(width, width), nn.Linear(width, 3))

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        return self.layers(x) - t[:, None] * x


def test_an_import_takes_half_as_much_again_as_the_weights_and_a_load_a_fifth(tmp_path: Path) -> None:
    rows, arguments = torch.export.Dim("rows", min=1, max=8192), (torch.randn(4, 3), torch.rand(4))
    small, large = Layers(8).eval(), Layers(_WIDTH).eval()
    for name, network in (("small", small), ("large", large)):
        program = torch.export.export(network, arguments, dynamic_shapes=({0: rows}, {0: rows}))
        torch.export.save(program, tmp_path / f"{name}.pt2")
    weights = sum(tensor.nbytes for tensor in large.state_dict().values())
    assert 100e6 < weights < 200e6

    def run(*arguments: str) -> list[str]:
        command = [sys.executable, "-c", _PEAK, *arguments]
        return subprocess.run(
            command, cwd=Path(__file__).parents[3], capture_output=True, text=True, check=True
        ).stdout.split()

    folder = tmp_path / "models"
    path, peak = run("import", str(tmp_path / "small.pt2"), str(tmp_path / "large.pt2"), str(folder))
    assert int(peak) <= 1.5 * weights
    _, peak = run("load", str(folder / "small" / "1"), path, "-")
    assert int(peak) <= 1.2 * weights
