"""`python -m studies.repository`: a model swap under load, and a million floats by npz and by the v2 protocol.

Swap: closed-loop clients send requests without a pause; in every second round a new version is put into its folder and
loaded. The table shows the longest request of each round.

A million floats: one HTTP client requests the same samples as npz and as binary tensors of the Open Inference Protocol,
and reads them into arrays.
"""

from __future__ import annotations

import argparse
import os
import shutil
import tempfile
from pathlib import Path
from statistics import median

import torch

from models.architectures.residual_mlp import ResidualMLP, ResidualMLPConfig
from models.checkpoint.saving import save
from models.decoder import Decoder
from studies.repository.floats import transfers
from studies.repository.swap import Round, rounds
from studies.serving.servers import server

KEY = "the-key-of-a-benchmark"
WIDE = 100  # numbers per sample of the model `wide`


def _save(root: Path, name: str, config: ResidualMLPConfig, seed: int) -> Path:
    torch.manual_seed(seed)
    about = {"dataset": {}, "training": {}, "seed": seed}
    return save(root, name, ResidualMLP(config), Decoder.identity((config.dim,)), **about)


def _spread(values: list[float]) -> str:
    return f"{median(values):.1f} ({min(values):.1f} to {max(values):.1f})"


def _swaps(found: list[Round]) -> str:
    lines = ["| rounds | requests | p50 ms | p99 ms | longest request of each round, ms |", "|---|---|---|---|---|"]
    for swapped in (False, True):
        mine = [each for each in found if each.swapped == swapped]
        answered = sum(each.requests for each in mine)
        longest = ", ".join(f"{each.longest:.0f}" for each in mine)
        lines.append(
            f"| {'with a swap' if swapped else 'without'} | {answered} | {_spread([each.p50 for each in mine])} "
            f"| {_spread([each.p99 for each in mine])} | {longest} |"
        )
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m studies.repository", description=__doc__)
    parser.add_argument("--rounds", type=int, default=5, help="rounds of each kind (default: %(default)s)")
    parser.add_argument("--seconds", type=float, default=3.0, help="seconds per round (default: %(default)s)")
    parser.add_argument("--clients", type=int, default=8, help="number of clients (default: %(default)s)")
    options = parser.parse_args()
    cores = sorted(os.sched_getaffinity(0))
    print(f"load {os.getloadavg()[0]:.1f} at the start; the service on one core, the clients on another\n")
    with tempfile.TemporaryDirectory() as folder:
        root, stock = Path(folder, "models"), Path(folder, "stock")
        paper = ResidualMLPConfig(dim=2)  # the paper's network for points: 256 wide, 4 blocks
        first = _save(root, "moons", paper, 0)
        for number in range(options.rounds + 1):
            _save(stock, "moons", paper, number)
        shutil.rmtree(stock / "moons" / "1")
        _save(root, "wide", ResidualMLPConfig(dim=WIDE, hidden=8, blocks=1), 0)
        settings = {"PATHLINE_ADMIN_KEY": KEY, "PATHLINE_WATCH_S": "0"}
        os.environ.update(settings)  # `server` passes the environment on
        os.sched_setaffinity(0, {cores[-1]})
        with server("pathline", first, cores[0]) as service:
            print(_swaps(rounds(service.url, KEY, root, stock, options.rounds, options.seconds, options.clients)), "\n")
            print(transfers(service.url, WIDE))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
