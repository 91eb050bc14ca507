"""`python -m studies.serving.calls`: how many functions a request calls, in HTTP's thread and in the engine's.

A profile hook counts the calls of Python's and of C's functions and the files that they are in, so that the figures
depend on no clock. The service has one untrained model with the network of `moons`; the clients are in another process.
With `tick` it counts only what the engine does while long requests run, and none begins or ends; with `refused`,
requests that are refused because what waits leaves them no time.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import os
import signal
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from types import FrameType
from typing import Any

import torch

from models.architectures.residual_mlp import ResidualMLP, ResidualMLPConfig
from models.checkpoint.saving import save
from models.decoder import Decoder
from models.forms.fused.residual_mlp import warm_up
from service.__main__ import main as serve
from studies.serving import inside
from studies.serving.workloads import WORKLOADS, Request, Workload
from tests.processes import free_port

ROOT = Path(__file__).parents[2]
SIDES = ("HTTP", "engine")
LONG: tuple[Request, ...] = tuple({"num_samples": 8, "timeout_s": 60, **each} for each in inside.LONG)


@dataclass
class Calls:
    """Calls of one thread by file: of Python's functions, and of C's functions by the file that calls them."""

    python: Counter[str] = field(default_factory=Counter)
    c: Counter[str] = field(default_factory=Counter)

    def hook(self, frame: FrameType, event: str, _: Any) -> None:
        """Count an event of `sys.setprofile`."""
        if event == "call":
            self.python[frame.f_code.co_filename] += 1
        elif event == "c_call":
            self.c[frame.f_code.co_filename] += 1


class Profile:
    """Counts calls in the thread that makes it and in the engine's, between two signals of the clients."""

    def __init__(self) -> None:
        self.calls, self._counting = {side: Calls() for side in SIDES}, False
        threading.setprofile(self._engine_hook)  # of threads that start from now on
        signal.signal(signal.SIGUSR1, self._turn)

    def _turn(self, *_: object) -> None:
        self._counting = not self._counting
        sys.setprofile(self.calls["HTTP"].hook if self._counting else None)

    def _engine_hook(self, frame: FrameType, event: str, argument: Any) -> None:
        if threading.current_thread().name != "pathline-engine":
            sys.setprofile(None)
        elif self._counting:
            self.calls["engine"].hook(frame, event, argument)


MANY: list[Request] = [{"num_samples": 64, "timeout_s": 60, "solver": "euler", "steps": 2_000}] * 160
"""More than can be done in time, so that the last ones are refused."""

TOO_MUCH: Request = {**MANY[0], "steps": 10_000}
"""What never fits beside these: they leave less room than one more of them needs, and it needs five times that."""


async def _client(port: int, requests: Iterable[Request], statuses: Sequence[bytes] = (b"200",)) -> None:
    """Send requests, each after the answer to the last."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    head = (
        b"POST /v1/sample HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
    )
    for request in requests:
        body = json.dumps({"model": "moons", **request}).encode()
        writer.write(head % len(body) + body)
        answer = await reader.readuntil(b"\r\n\r\n")
        assert answer.split(b" ", 2)[1] in statuses, answer
        length = next(line for line in answer.lower().split(b"\r\n") if line.startswith(b"content-length:"))
        await reader.readexactly(int(length.split(b":")[1]))
    writer.close()


async def _clients(port: int, workload: Workload, requests: int, server: int) -> None:
    """Warm up, and let the service count the calls of a number of requests."""

    async def several(count: int) -> None:
        draw = Random(0)  # noqa: S311  (load, not secrets)
        drawn = ({"seed": draw.randrange(2**31), **workload.draw(draw)} for _ in range(count))
        await asyncio.gather(*(_client(port, drawn) for _ in range(workload.clients)))

    await several(2 * workload.clients)
    os.kill(server, signal.SIGUSR1)
    await several(requests)
    os.kill(server, signal.SIGUSR1)
    await asyncio.sleep(0.2)


async def _beside(port: int, waiting: Sequence[Request], refused: int, server: int) -> None:
    """Let the service count while some requests run or wait, and others are refused, or none come."""
    running = asyncio.gather(*(_client(port, [each], (b"200", b"429")) for each in waiting), return_exceptions=True)
    await asyncio.sleep(1.0)
    os.kill(server, signal.SIGUSR1)
    await (_client(port, [TOO_MUCH] * refused, (b"429",)) if refused else asyncio.sleep(0.5))
    os.kill(server, signal.SIGUSR1)
    await asyncio.sleep(0.2)
    running.cancel()


def _wait_and_send(port: int, workload: str, requests: int, server: int) -> None:
    import httpx

    while True:
        try:
            if httpx.get(f"http://127.0.0.1:{port}/readyz").status_code == 200:
                break
        except httpx.TransportError:
            pass
        threading.Event().wait(0.2)
    try:
        if workload == "tick":
            asyncio.run(_beside(port, LONG, 0, server))
        elif workload == "refused":
            asyncio.run(_beside(port, MANY, requests, server))
        else:
            asyncio.run(_clients(port, WORKLOADS[workload], requests, server))
    finally:
        os.kill(server, signal.SIGTERM)


def count(workload: str, requests: int) -> dict[str, Calls]:
    """Serve requests of a workload and return the calls of both threads."""
    torch.manual_seed(0)
    model, port = ResidualMLP(ResidualMLPConfig(dim=2, hidden=256, blocks=4, max_frequency=6.0)), free_port()
    with tempfile.TemporaryDirectory() as folder:
        save(Path(folder), "moons", model, Decoder.identity((2,)), dataset={}, training={}, seed=0)
        os.environ |= {"PATHLINE_MODELS_DIR": folder, "PATHLINE_PORT": str(port), "PATHLINE_THREADS": "1"}
        warm_up()  # compiling takes minutes while calls are counted
        clients = multiprocessing.get_context("fork").Process(
            target=_wait_and_send, args=(port, workload, requests, os.getpid())
        )
        clients.start()
        profile = Profile()
        try:
            serve([])
            clients.join(10)
            if clients.exitcode != 0:
                raise RuntimeError("the clients failed")
        finally:
            clients.kill()
        return profile.calls


def _name(file: str) -> str:
    """A file of this repository by its path, others by their package."""
    path = Path(file)
    if path.is_relative_to(ROOT) and ".venv" not in path.parts:
        return str(path.relative_to(ROOT))
    parts = path.parts
    return parts[parts.index("site-packages") + 1] if "site-packages" in parts else path.stem


def document(calls: dict[str, Calls], requests: int) -> dict[str, Any]:
    """Calls per request of both threads: the sums, and by file."""
    out: dict[str, Any] = {}
    for side, counted in calls.items():
        by_name: dict[str, list[float]] = {}
        for place, counter in enumerate((counted.python, counted.c)):
            for file, number in counter.items():
                by_name.setdefault(_name(file), [0.0, 0.0])[place] += number / requests
        sums = [sum(pair[place] for pair in by_name.values()) for place in range(2)]
        out[side] = {"python": sums[0], "c": sums[1], "by_file": by_name}
    return out


def own_files(found: dict[str, Any], *sides: str) -> list[str]:
    """The files of this repository that both threads, or some of them, cross."""
    names = {name for side in sides or SIDES for name in found[side]["by_file"]}
    return sorted(name for name in names if name.endswith(".py"))


def main() -> None:
    """Count the calls of one workload."""
    parser = argparse.ArgumentParser(prog="python -m studies.serving.calls", description=__doc__)
    parser.add_argument("workload", choices=[*WORKLOADS, "tick", "refused"], help="see workloads.py")
    parser.add_argument("--requests", type=int, default=640, help="number of requests to count")
    parser.add_argument("--json", action="store_true", help="print a document instead of a table")
    chosen = parser.parse_args()
    found = document(count(chosen.workload, chosen.requests), chosen.requests)
    if chosen.json:
        print(json.dumps(found))
        return
    for side, counted in found.items():
        print(f"\n{side}: {counted['python']:.0f} Python + {counted['c']:.0f} C, {len(own_files(found, side))} files")
        rows = sorted(counted["by_file"].items(), key=lambda each: -sum(each[1]))
        for name, (python, c) in rows:
            if python + c >= 0.5:
                print(f"{python:8.1f} {c:8.1f}  {name}")
    print(f"\n{len(own_files(found))} files in all: {', '.join(own_files(found))}")


if __name__ == "__main__":
    main()
