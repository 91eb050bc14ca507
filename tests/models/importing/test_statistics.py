"""Statistics of robots: what goes in is what lerobot and openpi give their networks, and what comes out is undone."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from models.__main__ import main
from models.checkpoint.loading import load
from models.importing.files import ForeignError
from models.importing.statistics import read_statistics

STATE = {
    "mean": [1.0, -2.0],
    "std": [0.5, 0.0],
    "min": [0.0, -2.0],
    "max": [4.0, -2.0],
    "q01": [0.0, -3.0],
    "q99": [3, 1],
}
ACTION = {
    "mean": [3.0, 0.0],
    "std": [2.0, 1.0],
    "min": [-1.0, 0.0],
    "max": [1.0, 2.0],
    "q01": [-1.0, 0.0],
    "q99": [1, 2],
}
LEROBOT = {"observation.state": STATE, "action": ACTION, "timestamp": {"count": [9]}}
OPENPI = {"norm_stats": {"state": STATE, "actions": ACTION}}


@pytest.mark.parametrize(
    ("document", "normalisation", "state", "action"),
    [
        (LEROBOT, "mean-std", [(2 - 1) / (0.5 + 1e-8), (-2 + 2) / 1e-8], [3 + 2 * 0.5, 0.5]),
        (LEROBOT, "min-max", [2 * 2 / 4 - 1, 2 * 0 / 1e-8 - 1], [0.5, 1.5]),
        (OPENPI, "mean-std", [(2 - 1) / (0.5 + 1e-6), 0.0], [3 + (2 + 1e-6) * 0.5, (1 + 1e-6) * 0.5]),
        (
            OPENPI,
            "quantiles",
            [2 * 2 / (3 + 1e-6) - 1, 2 * 1 / (4 + 1e-6) - 1],
            [0.75 * (2 + 1e-6) - 1, 0.75 * (2 + 1e-6)],
        ),
    ],
)
def test_values_are_those_of_the_libraries(document: Any, normalisation: Any, state: Any, action: Any) -> None:
    read = read_statistics(document, normalisation)
    mean, scale, _ = read["state"]
    np.testing.assert_allclose((np.array([2.0, -2.0]) - mean) * scale, state, rtol=1e-7, atol=1e-7)
    mean, _, spread = read["action" if document is LEROBOT else "actions"]
    np.testing.assert_allclose(np.array([0.5, 0.5]) * spread + mean, action, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize(
    ("low", "high"), [(0, 10**400), (-1e308, 1e308), ([0.0], [1e-320]), ("x", 1), ([1], [1, 2]), (0, -1e-8)]
)
@pytest.mark.parametrize("normalisation", ["mean-std", "min-max", "quantiles"])
def test_numbers_that_make_no_scale_are_refused_by_name(low: Any, high: Any, normalisation: Any) -> None:
    first, second = {"mean-std": ("mean", "std"), "min-max": ("min", "max"), "quantiles": ("q01", "q99")}[normalisation]
    try:
        read = read_statistics({"action": {first: low, second: high}}, normalisation)["action"]
    except ForeignError as error:
        assert str(error).startswith("--stats: action: ")  # noqa: PT017
    else:
        assert np.isfinite(read).all()


def test_a_file_without_these_numbers_is_refused() -> None:
    with pytest.raises(ForeignError, match="no entry has q01 and q99; choose another --normalisation"):
        read_statistics({"state": {"mean": [0.0], "std": [1.0]}}, "quantiles")
    with pytest.raises(ForeignError, match="two shapes, or are not finite"):
        read_statistics({"state": {"mean": [0.0], "std": [float("nan")]}}, "mean-std")


class Policy(nn.Module):
    def forward(self, x: Tensor, t: Tensor, state: Tensor) -> Tensor:
        return state[:, None, :] - t[:, None, None] * x


@pytest.mark.parametrize("files", ["stats", "arrays"])
def test_an_import_takes_them_as_they_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, files: str) -> None:
    monkeypatch.setenv("PATHLINE_ALLOW_PROGRAMS", "true")
    rows, arguments = torch.export.Dim("rows", min=1, max=64), (torch.randn(3, 4, 2), torch.rand(3), torch.randn(3, 2))
    program = torch.export.export(Policy(), arguments, dynamic_shapes=tuple({0: rows} for _ in arguments))
    torch.export.save(program, tmp_path / "net.pt2")
    if files == "stats":
        (tmp_path / "stats.json").write_text(json.dumps(OPENPI))
        more = ["--stats", str(tmp_path / "stats.json")]
    else:
        arrays = {"m": STATE["mean"], "am": ACTION["mean"], "s": 1 / (np.array(STATE["std"]) + 1e-6)}
        arrays["as"] = np.array(ACTION["std"]) + 1e-6
        for name, array in arrays.items():
            np.save(tmp_path / f"{name}.npy", np.asarray(array)[None])
        fields = {"state": {"mean": str(tmp_path / "m.npy"), "scale": str(tmp_path / "s.npy")}}
        more = ["--conditions", json.dumps(fields)]
        more += ["--decoder-mean", str(tmp_path / "am.npy"), "--decoder-scale", str(tmp_path / "as.npy")]
    command = ["import", str(tmp_path / "net.pt2"), "--program", "--name", "policy", "--inputs", "x,t,state", *more]
    convention = ["--noise-at", "0", "--time-scale", "1", "--sign", "1", "--models-dir", str(tmp_path)]
    assert main([*command, *convention]) == 0
    checkpoint = load(tmp_path / "policy" / "1")
    entry = checkpoint.card.conditions["state"]
    given = entry.standardised(torch.tensor([[2.0, -1.0]]), torch.float32)
    torch.testing.assert_close(given, torch.tensor([[1 / (0.5 + 1e-6), 1 / 1e-6]]))
    decoded = checkpoint.decoder.decode(torch.full((1, 4, 2), 0.5))
    torch.testing.assert_close(decoded, torch.tensor([4.0, 0.5]).expand(1, 4, 2), rtol=1e-5, atol=1e-5)
