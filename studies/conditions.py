"""The cost of conditions, preludes and decoders: `python -m studies.conditions [together memory arrival loading]`.

together  16 requests with different conditions, guidance and solvers, at once and one at a time: bits, rows, wall time
memory    10,000 samples under one condition of 1 MB, and under one of 4 bytes: peak memory
arrival   the time to add a job to 1, 10 and 60 others with conditions of 1.26 MB each
loading   a UNet of a million parameters, and a network of 100 ms per row: CPU seconds of the first and the second load
"""

from __future__ import annotations

import argparse
import asyncio
import ctypes
import re
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import torch
from torch import Tensor, nn

from engine.conditions import Conditions
from engine.engine import Engine
from engine.job import Job
from models.architectures.unet import UNet, UNetConfig
from models.checkpoint.loading import load
from models.checkpoint.saving import save
from models.condition_values import Distinct
from models.conditions import NamedCondition, NamedConditions
from models.decoder import Decoder
from models.importing.declared import Declared
from models.importing.weights import import_program
from service.app import create_app
from service.settings import Settings
from solvers import resolve

WIDTH, TOKENS, LATENT = 32, 8, 4
OURS = Declared(noise_at=0, scale=1.0, sign=1)
SOLVERS = ("euler-24", "ab4-24", "rk4-6", "dopri5@1e-3")
MEGABYTE = 1 << 18  # float32
ARRIVALS = (1, 10, 60)


class Encoder(nn.Module):
    """Tokens of a picture (3, 16, 16), or learned ones if it is missing."""

    def __init__(self) -> None:
        super().__init__()
        self.see, self.none = nn.Conv2d(3, WIDTH, 8, stride=8), nn.Parameter(torch.randn(4, WIDTH))

    def forward(self, image: Tensor, missing: Tensor) -> Tensor:
        tokens = self.see(image).flatten(2).transpose(1, 2)
        return torch.where(missing[:, None, None], self.none, tokens)


class Velocity(nn.Module):
    """A transformer block over tokens of a picture and of the state."""

    def __init__(self) -> None:
        super().__init__()
        self.act, self.when = nn.Linear(LATENT, WIDTH), nn.Linear(1, WIDTH)
        self.attend = nn.MultiheadAttention(WIDTH, 4, batch_first=True)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))
        self.last = nn.Linear(WIDTH, LATENT)

    def forward(self, x: Tensor, t: Tensor, tokens: Tensor) -> Tensor:
        h = torch.cat((tokens, self.act(x) + self.when(t[:, None])[:, None]), dim=1)
        h = h + self.attend(h, h, h, need_weights=False)[0]
        return self.last(h + self.mlp(h))[:, -TOKENS:]


class Vocoder(nn.Module):
    """A vocoder: 128 numbers for each state."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Flatten(), nn.Linear(TOKENS * LATENT, 256), nn.SiLU(), nn.Linear(256, 128))

    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(self.layers(x))


def export(module: nn.Module, given: tuple[Tensor, ...], file: Path) -> Path:
    """Export a module as a program for any number of rows."""
    rows = torch.export.Dim("rows", min=1, max=4096)
    torch.export.save(torch.export.export(module.eval(), given, dynamic_shapes=({0: rows},) * len(given)), file)
    return file


def together(folder: Path) -> None:
    """Compare concurrent requests with the same requests one at a time."""
    torch.manual_seed(0)
    image = (torch.rand(4, 3, 16, 16), torch.ones(4) > 0)
    velocity = (torch.randn(4, TOKENS, LATENT), torch.rand(4), torch.randn(4, 4, WIDTH))
    import_program(
        export(Velocity(), velocity, folder / "velocity.pt2"),
        folder / "repository",
        "values",
        inputs=["x", "t", "tokens"],
        conditions={"image": {"dtype": "uint8", "scale": 1 / 255, "null": {"flag": "missing"}}},
        declared=OURS,
        prelude=export(Encoder(), image, folder / "encoder.pt2"),
        decoder={"program": export(Vocoder(), velocity[:1], folder / "vocoder.pt2")},
    )
    asyncio.run(_together(folder / "repository"))


async def _together(repository: Path) -> None:
    app = create_app(Settings(models_dir=repository, device="cpu", threads=1, watch_s=0, allow_programs=True))
    transport = httpx.ASGITransport(app)
    async with (
        app.router.lifespan_context(app),
        httpx.AsyncClient(transport=transport, base_url="http://service") as http,
    ):

        async def ask(k: int) -> str:
            image = np.random.default_rng(k).integers(0, 256, (3, 16, 16), dtype=np.uint8)
            body = {"model": "values", "num_samples": 2, "seed": k, "solver": SOLVERS[k % 4], "timeout_s": 300}
            body |= {"conditions": {"image": image.tolist()}} | ({"guidance": 1 + k / 8} if k % 2 else {})
            answer = await http.post("/v1/sample", json=body)
            answer.raise_for_status()
            return answer.json()["digest"]

        async def rows() -> tuple[float, float]:
            text = (await http.get("/metrics")).text
            found = dict(re.findall(r'batch_rows_(sum|count)\{model="values",operation="sample"\} (\S+)', text))
            return float(found.get("sum", 0)), float(found.get("count", 0))

        for k in range(16):  # the first of each kind also prepares kernels
            await ask(k)
        ratios, calls = [], []
        for _ in range(5):
            begin, before = time.perf_counter(), await rows()
            alone = [await ask(k) for k in range(16)]
            middle, between = time.perf_counter(), await rows()
            at_once = await asyncio.gather(*(ask(k) for k in range(16)))
            end, after = time.perf_counter(), await rows()
            assert at_once == alone, "a sample depends on other requests"
            ratios.append((end - middle) / (middle - begin))
            calls.append([(b[0] - a[0]) / (b[1] - a[1]) for a, b in ((before, between), (between, after))])
    alone_rows, rows_at_once = (statistics.median(each) for each in zip(*calls, strict=True))
    print("16 requests with different pictures, guidance and solvers: the same bits at once as one at a time")
    print(f"  network rows per call, mean: {alone_rows:.1f} one at a time, {rows_at_once:.1f} at once")
    print(f"  wall time at once over one at a time: {statistics.median(ratios):.2f} (median of {len(ratios)})")


class Conditioned(nn.Module):
    """A velocity of 4 numbers with a long vector as its condition."""

    def forward(self, x: Tensor, t: Tensor, values: Tensor) -> Tensor:
        return values.mean(1)[:, None] - x * t[:, None]


def memory(folder: Path) -> None:
    """Compare the peak memory of two processes."""
    peaks = {}
    for numbers in (1, MEGABYTE):
        command = [sys.executable, "-m", "studies.conditions", "--job", str(numbers), "--folder", str(folder)]
        peaks[numbers] = float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    print("10,000 samples, peak memory of the job")
    print(f"  under a condition of 4 bytes {peaks[1]:.0f} MB, of 1 MB {peaks[MEGABYTE]:.0f} MB")
    print(f"  difference: {peaks[MEGABYTE] - peaks[1]:.0f} MB")


def job(folder: Path, numbers: int) -> None:
    """Run the job of `memory` and print its peak memory in MB."""
    given = (torch.randn(4, 4), torch.rand(4), torch.randn(4, numbers))
    file, name = export(Conditioned(), given, folder / f"values-{numbers}.pt2"), f"values-{numbers}"
    path = import_program(file, folder / "repository", name, inputs=["x", "t", "values"], declared=OURS).path
    engine = Engine(Settings(device="cpu", threads=1))
    engine.start()
    engine.load(name, 1, load(path))
    solve = resolve(solver="euler", steps=2, dtype=torch.float32)

    def draw(samples: int) -> None:
        values = {"values": Distinct(torch.randn(1, numbers))}
        engine.submit(Job(name, 1, solve, samples, conditions=values)).result()

    draw(64)
    ctypes.CDLL(None).malloc_trim(0)  # return to the system what loading has freed
    Path("/proc/self/clear_refs").write_text("5")  # reset the peak
    before = _memory("VmRSS")
    draw(10_000)
    engine.stop()
    print(_memory("VmHWM") - before)


def _memory(name: str) -> float:
    """Return an entry of the process's memory status, in MB."""
    found = re.search(rf"{name}:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert found is not None
    return int(found.group(1)) / 1024


def arrival(folder: Path) -> None:
    """Add one more job of 64 samples to others, each with its own condition."""
    row = 330_000  # float32: 1.26 MB
    takes = NamedConditions({"values": NamedCondition(shape=(row,))})
    solve = resolve(solver="euler", steps=2, dtype=torch.float32)
    values = {"values": Distinct(torch.randn(1, row))}
    print("time to add a job of 64 samples with a condition of 1.26 MB to others")
    for present in ARRIVALS:
        conditions = Conditions(takes, torch.float32, "cpu")
        for owner in range(present):
            conditions.add(owner, Job("values", 1, solve, 64, conditions={"values": Distinct(torch.randn(1, row))}))
        took = []
        for owner in range(present, present + 20):
            begin = time.perf_counter()
            conditions.add(owner, Job("values", 1, solve, 64, conditions=values))
            took.append(time.perf_counter() - begin)
            conditions.remove(owner)
        print(f"  {present:3} others: {1e3 * statistics.median(took):.2f} ms")


class Slow(nn.Module):
    """Convolutions that take about 100 ms per row."""

    def __init__(self, layers: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(1, 64, 3, padding=1)
        self.layers = nn.Sequential(*(nn.Conv2d(64, 64, 3, padding=1) for _ in range(layers)))
        self.last = nn.Conv2d(64, 1, 3, padding=1)

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        return self.last(self.layers(self.first(x))) * t[:, None, None, None]


def loading(folder: Path) -> None:
    """Load each network twice, each time in its own process."""
    config = UNetConfig(shape=(1, 28, 28), hidden=44, condition=NamedCondition.vector(width=4))
    network = UNet(config)
    parameters = sum(each.numel() for each in network.parameters())
    about: dict[str, Any] = {"dataset": {"name": "none"}, "training": {}, "seed": 0}
    paths = {f"UNet of {parameters / 1e6:.2f} M": save(folder, "unet", network, Decoder.identity((1, 28, 28)), **about)}
    torch.set_num_threads(1)
    one = (torch.randn(1, 1, 64, 64), torch.rand(1))
    layers = 4
    while (took := _row_s(Slow(layers), one)) < 0.1:
        layers = max(layers + 1, int(layers * 0.1 / took))
    slow = import_program(
        export(Slow(layers), (torch.randn(4, 1, 64, 64), torch.rand(4)), folder / "slow.pt2"),
        *(folder, "slow"),
        declared=OURS,
    )
    paths[f"network of {1e3 * took:.0f} ms per row"] = slow.path
    print("loading, CPU seconds of the engine's part: measuring the rows")
    for name, path in paths.items():
        command = [sys.executable, "-m", "studies.conditions", "--load", str(path)]
        runs = [subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip() for _ in range(2)]
        print(f"  {name}: {runs[0]}; again: {runs[1]}")


def _row_s(network: nn.Module, given: tuple[Tensor, ...]) -> float:
    with torch.no_grad():
        network(*given)
        begin = time.process_time()
        network(*given)
    return time.process_time() - begin


def load_once(path: Path) -> None:
    """Load a checkpoint into an engine and print the time it took."""
    torch.set_num_threads(1)
    checkpoint = load(path)
    engine = Engine(Settings(device="cpu", threads=1))
    engine.start()
    begin, cpu = time.perf_counter(), time.process_time()
    engine.load(path.parent.name, 1, checkpoint)
    took, cpu = time.perf_counter() - begin, time.process_time() - cpu
    print(f"{cpu:.1f} CPU-s ({took:.1f} s)")
    engine.stop()


PARTS = {"together": together, "memory": memory, "arrival": arrival, "loading": loading}


def main() -> None:
    """Run parts of the benchmark."""
    parser = argparse.ArgumentParser(description="Measure the cost of conditions, preludes and decoders.")
    parser.add_argument("parts", nargs="*", choices=[*PARTS, []], help="parts to run (default: all)")
    parser.add_argument("--job", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--load", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.job is not None:
        job(options.folder, options.job)
    elif options.load is not None:
        load_once(options.load)
    else:
        for part in options.parts or PARTS:
            with tempfile.TemporaryDirectory() as folder:
                PARTS[part](Path(folder))


if __name__ == "__main__":
    main()
