"""The services to compare, each running in its own processes on one core, and how a client talks to them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import sysconfig
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import orjson

from studies.serving.workloads import SOLVERS, Request
from tests.processes import free_port

ROOT = Path(__file__).parents[2]
PEERS = ROOT / ".venv" / "peers" / "bin" / "python"
ONE_THREAD = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "PATHLINE_THREADS": "1"}
WAITING_S = 0.005
"""How long LitServe and Triton wait for requests to join a batch."""


@dataclass(frozen=True)
class Answer:
    """The answer of a service: (samples, *event) nested lists, and the mean network evaluations per sample."""

    samples: list[Any]
    nfe: float


@dataclass(frozen=True)
class Kind:
    """A service to measure.

    Attributes:
        command: returns its arguments for a checkpoint and a port.
        decode: decodes the body of an answer.
        path: path for requests.
        ready: path that answers 200 once the service is ready.
        encode: encodes a request as a body.
        python: the interpreter that runs it.
    """

    command: Callable[[Path, int], list[str]]
    decode: Callable[[bytes], Answer]
    path: str = "/v1/sample"
    ready: str = "/readyz"
    encode: Callable[[Request], bytes] = orjson.dumps
    python: Path = Path(sys.executable)


def _pathline(content: bytes) -> Answer:
    answer = orjson.loads(content)
    return Answer(answer["samples"], answer["nfe_per_sample"]["mean"] if "nfe_per_sample" in answer else answer["nfe"])


def _named(content: bytes) -> Answer:
    answer = orjson.loads(content)
    return Answer(answer["samples"], answer["nfe"])


def _triton_request(request: Request) -> bytes:
    samples = int(str(request["num_samples"]))
    columns = {
        "solver": SOLVERS.index(str(request["solver"])),
        "steps": request.get("steps", 0),
        "seed": request["seed"],
        "tolerance": request.get("rtol", 1e-5),
    }
    inputs = [
        {"name": name, "shape": [samples, 1], "datatype": "FP64", "data": [value] * samples}
        for name, value in columns.items()
    ]
    return orjson.dumps({"inputs": inputs})


def _triton_answer(content: bytes) -> Answer:
    outputs = {each["name"]: each for each in orjson.loads(content)["outputs"]}
    return Answer([outputs["samples"]["data"]] * outputs["samples"]["shape"][0], outputs["nfe"]["data"][0])


def _peer(module: str) -> Callable[[Path, int], list[str]]:
    name = f"studies.serving.peers.with_{module}"
    return lambda checkpoint, port: ["-m", name, str(checkpoint), str(port), str(WAITING_S)]


KINDS = {
    "pathline": Kind(lambda checkpoint, port: ["-m", "service"], _pathline),
    "plain": Kind(lambda checkpoint, port: ["-m", "studies.serving.plain", str(checkpoint), str(port)], _named),
    "bare": Kind(lambda checkpoint, port: ["-m", "studies.serving.plain", str(checkpoint), str(port)], _named, "/bare"),
    "litserve": Kind(_peer("litserve"), _named, python=PEERS),
    "triton": Kind(
        _peer("triton"), _triton_answer, "/v2/models/moons/infer", "/v2/models/moons/ready", _triton_request, PEERS
    ),
}


@dataclass(frozen=True)
class Running:
    """A service that is ready.

    Attributes:
        kind: which service it is.
        url: its address.
        pid: ID of its first process.
    """

    kind: Kind
    url: str
    pid: int

    def clocks(self) -> dict[int, float]:
        """Return the seconds of processor time of each of its threads, including child processes', by thread ID."""
        found: dict[int, float] = {}
        for pid in _family(self.pid):
            for task in Path(f"/proc/{pid}/task").iterdir():
                try:
                    found[int(task.name)] = int((task / "schedstat").read_text().split()[0]) / 1e9
                except (FileNotFoundError, ProcessLookupError):  # it has just ended
                    continue
        return found


def _family(pid: int) -> list[int]:
    """Return a process and all of its descendants."""
    found = [pid]
    for one in found:
        for children in Path(f"/proc/{one}/task").glob("*/children"):
            try:
                found.extend(int(child) for child in children.read_text().split())
            except (FileNotFoundError, ProcessLookupError):
                continue
    return found


@contextmanager
def server(name: str, checkpoint: Path, core: int | None, **settings: str) -> Iterator[Running]:
    """Run a service of `KINDS` with a checkpoint on a core, or on all of them; `settings` are environment variables.

    Raises:
        RuntimeError: it did not become ready in two minutes.
    """
    port, kind = free_port(), KINDS[name]
    # <repository>/<name>/<version>
    environment = {
        **os.environ,
        **ONE_THREAD,
        "PATHLINE_MODELS_DIR": str(checkpoint.parents[1]),
        "PATHLINE_PORT": str(port),
        # Triton looks for libpython, and must not find another Python's.
        "LD_LIBRARY_PATH": f"{sysconfig.get_config_var('LIBDIR')}:{os.environ.get('LD_LIBRARY_PATH', '')}",
        **settings,
    }
    pinned = [] if core is None else ["taskset", "--cpu-list", str(core)]
    command = [*pinned, str(kind.python), *kind.command(checkpoint, port)]
    process = subprocess.Popen(
        command,
        cwd=ROOT,
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        running = Running(kind, f"http://127.0.0.1:{port}", process.pid)
        _wait(running, process)
        yield running
    finally:
        _end(process)


def _end(process: subprocess.Popen[bytes]) -> None:
    """End a service and whatever it started: LitServe leaves its workers behind."""
    process.terminate()
    with suppress(subprocess.TimeoutExpired):
        process.wait(timeout=20)
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _wait(running: Running, process: subprocess.Popen[bytes]) -> None:
    end = time.monotonic() + 120
    while time.monotonic() < end and process.poll() is None:
        try:
            if httpx.get(f"{running.url}{running.kind.ready}").status_code == 200:
                return
        except httpx.TransportError:
            pass
        time.sleep(0.2)
    raise RuntimeError(f"{process.args} did not become ready")
