"""Exported networks in the engine and by themselves: a line of JSON about each. Argument: a folder for checkpoints."""

from __future__ import annotations

import json
import logging
import sys
from pathlib import Path
from typing import Any

import torch

from engine.engine import Engine
from engine.job import Job
from models.architectures.unet import UNet, UNetConfig
from models.checkpoint.loading import load
from models.checkpoint.saving import save
from models.conditions import NamedCondition
from models.decoder import Decoder
from models.importing.weights import import_program
from models.noise import noise
from service.settings import Settings
from solvers import resolve

SHAPE = (1, 8, 8)
CONDITIONS = {"labels": NamedCondition.label(classes=4), "vectors": NamedCondition.vector(width=3)}


def main(folder: Path) -> None:
    """Train nothing: random weights do."""
    logging.basicConfig(level=logging.WARNING)
    torch.set_num_threads(1)
    settings = Settings(models_dir=folder, threads=1)
    engine = Engine(settings)
    engine.start()
    paths = {name: _saved(folder, name, _unet(condition)) for name, condition in CONDITIONS.items()}
    paths["program"] = _imported(folder, "program", _unet(None))
    for name, path in paths.items():
        checkpoint = load(path)
        arena = engine.load(name, 1, checkpoint)
        print(json.dumps({"name": name, **_field(checkpoint, arena), **_engine(engine, name)}), flush=True)
    engine.stop()


def _unet(condition: NamedCondition | None) -> UNet:
    torch.manual_seed(0)
    network = UNet(UNetConfig(hidden=8, shape=SHAPE, levels=2, condition=condition))
    for parameter in network.parameters():
        parameter.data.add_(0.05 * torch.randn_like(parameter))
    return network.eval().requires_grad_(False)


def _saved(folder: Path, name: str, network: UNet) -> Path:
    return save(folder, name, network, Decoder.identity(SHAPE), dataset={}, training={}, seed=0)


def _imported(folder: Path, name: str, network: UNet) -> Path:
    """Import a network as a program, as one from another library would be."""
    rows, file = torch.export.Dim("rows"), folder / f"{name}.pt2"
    arguments, shapes = (torch.zeros(3, *SHAPE), torch.zeros(3)), ({0: rows}, {0: rows})
    torch.export.save(torch.export.export(network, arguments, dynamic_shapes=shapes), file)
    return import_program(file, folder, name, SHAPE).path


def _field(checkpoint: Any, arena: Any) -> dict[str, Any]:
    """What the network's form does: its path, and whether rows keep their bits in any company."""
    network, call = checkpoint.velocity, arena.network.call
    x, t = noise(0, 0, 130, SHAPE, torch.float32), torch.linspace(0.0, 1.0, 130)
    given = (
        None if checkpoint.network_conditions is None else checkpoint.network_conditions.examples(130, torch.float32)
    )

    def field(x: torch.Tensor, t: torch.Tensor, given: torch.Tensor | None) -> torch.Tensor:
        return call(x, t, *(() if given is None else (given,)))

    whole = field(x, t, given)
    other = []
    for rows in (*range(1, 34), 64, 65, 127, 129):
        chosen = torch.randperm(130, generator=torch.Generator().manual_seed(rows))[:rows]
        found = field(x[chosen], t[chosen], None if given is None else given[chosen])
        other += [] if torch.equal(found, whole[chosen]) else [rows]
    x[5] = torch.nan
    beside = field(x, t, given)
    kept = torch.arange(130) != 5
    with torch.no_grad():
        far = float((network(x[kept], t[kept], None if given is None else given[kept]) - whole[kept]).abs().max())
    return {
        "path": arena.form.path,
        "reason": arena.form.reason,
        "deterministic": arena.deterministic,
        "other_bits": other,
        "nan_alone": bool(torch.equal(beside[kept], whole[kept]) and beside[5].isnan().any()),
        "far": far,
    }


def _engine(engine: Engine, name: str) -> dict[str, Any]:
    """Whether samples keep their bits beside others."""
    plans = [resolve(solver="rk4", steps=3), resolve(solver="euler", steps=5), resolve(solver="dopri5", rtol=1e-3)]
    jobs = [Job(name, 1, plan, 2 + k, seed=k) for k, plan in enumerate(plans)]
    alone = [engine.submit(job).result(120).x for job in jobs]
    together = [future.result(120).x for future in [engine.submit(job) for job in jobs]]
    return {"same": [torch.equal(a, b) for a, b in zip(alone, together, strict=True)]}


if __name__ == "__main__":
    main(Path(sys.argv[1]))
