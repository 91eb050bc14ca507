"""A repository of small real checkpoints, and a fake engine that answers by a formula or fails on request."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import httpx
import numpy as np
import pytest
import torch

from engine.job import ArenaLoad, Job, JobResult, Operation, Sizes, Workload
from models.architectures.analytic import Gaussian, GaussianConfig
from models.architectures.residual_mlp import ResidualMLP, ResidualMLPConfig
from models.checkpoint.card import read_card
from models.checkpoint.loading import Checkpoint
from models.checkpoint.saving import save
from models.decoder import Decoder
from models.forms.form import Form
from models.noise import noise
from selection.frontier import Curve, StoredFrontier
from service.app import create_app
from service.http.context import Context
from service.ledger import Hold, Ledger
from service.settings import Settings
from service.state import Service
from solvers.trace import StepTrace
from tests.selection.support import point
from tests.service.serving import calling


class Clock:
    """A clock that advances when a test says so."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@dataclass(eq=False)
class FakeArena:
    """The fake engine's counterpart of a loaded model."""

    name: str
    version: int
    deterministic: bool
    form: Form = field(default_factory=lambda: Form(cast(Any, None), reason="pretended"))
    row_limit: int = 1024


@dataclass
class FakeEngine:
    """An engine that answers noise plus one; `edit` changes results, `fail` is raised, `hold` never answers."""

    edit: Callable[[JobResult], JobResult] = lambda result: result
    fail: Exception | None = None
    refuse: Exception | None = None
    hold: bool = False
    alive: bool = False
    turn_s: float = 0.0
    draining: bool = False
    deterministic: bool = True
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    device_name: str = "cpu"
    threads: int = 1
    queue_depth: int = 3
    active_jobs: int = 4
    active_lanes: int = 5
    jobs: list[Job] = field(default_factory=list)
    submitted: list[asyncio.Future[JobResult]] = field(default_factory=list)
    cancelled: list[asyncio.Future[JobResult]] = field(default_factory=list)
    loaded: dict[tuple[str, int], Checkpoint] = field(default_factory=dict)
    arenas: list["FakeArena"] = field(default_factory=list)
    ready: list[tuple[str, int, Operation]] = field(default_factory=list)
    unready: Exception | None = None

    def start(self) -> None:
        self.alive = True

    def deliver_on(self, loop: asyncio.AbstractEventLoop) -> None:
        pass

    def workload(self) -> Workload:
        return Workload(4, 2.5, {("moons", 1, "sample"): ArenaLoad(64.0, 128.0, 1024, ((1.0, 1e-3), (64.0, 2e-3)))})

    def stop(self) -> None:
        self.alive = False

    def drain(self) -> None:
        self.draining = True

    def give_up(self) -> None:
        self.drain()

    def load(self, name: str, version: int, checkpoint: Checkpoint) -> "FakeArena":
        self.loaded[name, version] = checkpoint
        self.arenas.append(FakeArena(name, version, self.deterministic))
        return self.arenas[-1]

    def unload(self, arena: "FakeArena") -> None:
        self.arenas.remove(arena)

    def prepared(self, name: str, version: int, operation: Operation, sizes: Sizes = ()) -> "FakeArena | None":
        found = FakeArena(name, version, self.deterministic)
        return found if (name, version, operation) in self.ready else None

    def prepare(self, name: str, version: int, operation: Operation, sizes: Sizes = ()) -> "FakeArena":
        if self.unready is not None:
            raise self.unready
        self.ready.append((name, version, operation))
        return FakeArena(name, version, self.deterministic)

    def submit(self, job: Job, future: asyncio.Future[JobResult]) -> asyncio.Future[JobResult]:
        if self.refuse is not None:
            raise self.refuse
        self.jobs.append(job)
        self.submitted.append(future)
        if self.fail is not None:
            future.set_exception(self.fail)
        elif not self.hold:
            future.set_result(self._result(job))
        return future

    def pace(
        self, name: str, version: int, calls: float, work: float, rows: float, priority: Any, sizes: Any = ()
    ) -> float:
        return 1e-3 * calls

    def cancel(self, future: asyncio.Future[JobResult]) -> None:
        self.cancelled.append(future)

    def _result(self, job: Job) -> JobResult:
        checkpoint, n = self.loaded[job.model, job.version], job.num_samples
        x = job.x0
        if x is None:
            x = noise(job.seed, job.first_index, n, checkpoint.card.event_of(), checkpoint.dtype)
        saved = None if job.save_at is None else torch.stack([x + float(t) for t in job.save_at], 1)
        times = job.plan.times if job.plan.times is not None else np.array([0.0, 0.25, 1.0])
        steps = np.full(n, len(times) - 1)
        result = JobResult(
            x=x + 1,
            saved=saved,
            nfe=np.arange(n, dtype=np.int64) % 7 + 50,
            t=np.ones(n),
            status=np.array(["success"] * n),
            trace=StepTrace.of_grid(times, steps, np.zeros(n, dtype=np.bool_)),
            rows=64 * n,
            queue_s=0.001,
            solve_s=0.01,
            network_s=0.008,
        )
        return self.edit(result)


def asking(
    reserve: Callable[[int, float, int], Hold] = lambda size, deadline, _: Ledger(10**12).take(size, deadline),
) -> Context:
    """Return a request for which memory can be reserved, with half a minute to go."""
    service = SimpleNamespace(reserve=reserve, kinds={})
    http = Context({"type": "http", "method": "POST", "path": "/v1/sample", "headers": []}, service=service)
    http.deadline = time.monotonic() + 30.0
    return http


def put_frontier(folder: Path, guidance: float | None = None, **points: tuple[float, float]) -> None:
    """Write a frontier into a checkpoint, with NFE and 95 % error by solver."""
    measured = points or {"euler-4": (4, 0.3), "ab4-9": (9, 0.008), "rk4-5": (20, 0.001), "dopri5@1e-5": (48.5, 1e-5)}
    points_of = tuple(point(name, nfe, error) for name, (nfe, error) in measured.items())
    curve = Curve(guidance=guidance, samples=256, seed=0, spread=2.0, points=points_of)
    message = "" if guidance is None else "every label in turn"
    card = read_card(folder)
    sha256 = card.weights_sha256
    StoredFrontier(weights_sha256=sha256, reference="", conditions=message, curves=(curve,)).write(folder)


@pytest.fixture(scope="session")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """moons (float32, 2-D, versions 1 and 2), gaussian (float64), digits (pca 3 -> 4x4), and a broken one."""
    root = tmp_path_factory.mktemp("checkpoints")
    about: dict[str, Any] = {"dataset": {"name": "none"}, "training": {}, "seed": 0}
    torch.manual_seed(0)
    moons = ResidualMLP(ResidualMLPConfig(dim=2, hidden=8, blocks=1, time_width=4))
    for _ in range(2):
        put_frontier(save(root, "moons", moons, Decoder.identity((2,)), **about))
    save(root, "gaussian", Gaussian(GaussianConfig()), Decoder.identity((2,)), **about)
    digits = ResidualMLP(ResidualMLPConfig(dim=3, hidden=8, blocks=1, time_width=4))
    pca = Decoder.pca(torch.full((16,), 0.5), torch.randn(3, 16), torch.ones(3), (4, 4), clip=(0.0, 1.0))
    save(root, "digits", digits, pca, **about)
    broken = save(root, "broken", moons, Decoder.identity((2,)), **about) / "weights.safetensors"
    content = bytearray(broken.read_bytes())
    content[-1] ^= 1
    broken.write_bytes(content)
    return root


@pytest.fixture
def engine() -> FakeEngine:
    return FakeEngine()


@pytest.fixture
def settings(repository: Path) -> Settings:
    return Settings(models_dir=repository, watch_s=0)


@dataclass
class Running:
    """A started service behind an in-process client."""

    http: httpx.AsyncClient
    engine: FakeEngine
    service: Service

    async def post(self, _headers: dict[str, str] | None = None, **body: Any) -> httpx.Response:
        return await self.http.post("/v1/sample", json={"model": "moons", **body}, headers=_headers)


@pytest.fixture(scope="session")
async def _started(repository: Path, anyio_backend: str) -> AsyncIterator[Running]:
    app = create_app(Settings(models_dir=repository, watch_s=0), cast(Any, engine := FakeEngine()))
    async with calling(app) as http:
        yield Running(http, engine, app.state.service)


@pytest.fixture
def shared(_started: Running) -> Running:
    """The service of all tests that only send it requests and edit its engine, which is as new for each.

    Not for tests of counters, or of versions that are loaded.
    """
    engine = _started.engine
    vars(engine).update(vars(FakeEngine(alive=True, loaded=engine.loaded, arenas=engine.arenas)))
    _started.service.kinds.clear()
    return _started


@pytest.fixture
async def running(settings: Settings, engine: FakeEngine) -> AsyncIterator[Running]:
    app = create_app(settings, cast(Any, engine))
    async with calling(app) as http:
        yield Running(http, engine, app.state.service)
