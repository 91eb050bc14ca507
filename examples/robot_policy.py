"""A robot policy in real time: chunks of 16 actions at 50 Hz, sampled while the robot moves, for many robots at once.

A point follows a moving target through a field of posts. Demonstrations pass a post on the left or on the right, so
there are two good answers to one observation, and two chunks that know nothing of each other may disagree. This script
trains the policy, saves it as a checkpoint, serves it, and moves robots in closed loop:

- The robot carries on with its chunk while the next one is sampled. It asks again as soon as it may, always with its
  newest observation; it never has two requests under way.
- The actions that it will have done when the answer comes are committed, and the request says so: they are `known`.
- An answer that comes too late is worth nothing. Each request has a deadline and takes a partial answer: what is left
  of the path is gone in a straight line.

    python examples/robot_policy.py
"""

from __future__ import annotations

import argparse
import asyncio
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import torch
from numpy.typing import NDArray
from pathline import AsyncClient, PathlineError, RetryPolicy, SampleResult
from torch import Tensor

from models.architectures.residual_mlp import ResidualMLP, ResidualMLPConfig
from models.checkpoint.saving import save
from models.conditions import NamedCondition
from models.decoder import Decoder

HORIZON, DT = 16, 0.02
"""Actions of a chunk, and seconds of an action, which is a velocity in the plane."""

EVERY, LONGEST, STEPS = 8, 8, 5
"""Actions between two requests, the most that are committed, and Euler steps of a chunk."""

SEEN = 8
"""Numbers of an observation: where target and nearest post are from here, and the velocities of target and robot."""

MODES = (None, "replace", "guided")
Numbers = NDArray[np.float64]


def demonstrations(count: int, seed: int) -> tuple[Tensor, Tensor]:
    """Return observations (count, SEEN) and chunks (count, HORIZON, 2) of an expert that passes posts on both sides."""
    source = torch.Generator().manual_seed(seed)
    target, pace, post, velocity = (
        scale * (2 * torch.rand(count, 2, generator=source) - 1) for scale in (1.5, 1.5, 0.75, 2.5)
    )
    side = 2.0 * torch.randint(2, (count, 1), generator=source) - 1
    here, actions, v = torch.zeros(count, 2), [], velocity
    for k in range(HORIZON):
        way = target + k * DT * pace - here
        ahead = way / way.norm(dim=1, keepdim=True).clamp_min(1e-3)
        near = torch.exp(-(((post - here).norm(dim=1, keepdim=True) / 0.5) ** 2))
        across = torch.stack((-ahead[:, 1], ahead[:, 0]), dim=1)
        wish = 2 * ahead * (3 * way.norm(dim=1, keepdim=True)).clamp_max(1) + 4 * side * near * across
        v = v + 0.3 * (wish - v)
        here = here + DT * v
        actions.append(v)
    return torch.cat((target, pace, post, velocity), dim=1), torch.stack(actions, dim=1)


def trained(repository: Path, steps: int = 2000, hidden: int = 128) -> None:
    """Train a policy by flow matching and save it as the model `policy`."""
    torch.manual_seed(0)
    seen, chunks = demonstrations(40_000, 0)
    scale, shift = chunks.std(dim=0), chunks.mean(dim=0)
    x1 = ((chunks - shift) / scale).flatten(1)
    seen = seen / (unit := seen.std(dim=0))
    vector = NamedCondition.vector(width=SEEN, scale=(1 / unit).tolist())  # requests give observations as they are
    network = ResidualMLP(ResidualMLPConfig(dim=2 * HORIZON, hidden=hidden, blocks=3, condition=vector))
    optimiser = torch.optim.Adam(network.parameters(), lr=3e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, steps)
    for _ in range(steps):
        rows = torch.randint(len(x1), (1024,))
        x0, t = torch.randn(1024, 2 * HORIZON), torch.rand(1024)
        v = network(torch.lerp(x0, x1[rows], t[:, None]), t, seen[rows])
        optimiser.zero_grad()
        (v - (x1[rows] - x0)).square().mean().backward()
        optimiser.step()
        schedule.step()
    decoder = Decoder.affine(scale.flatten(), shift.flatten(), data_shape=(HORIZON, 2))
    save(repository, "policy", network, decoder, dataset={}, training={"steps": steps}, seed=0)


@dataclass
class Answer:
    """One answer: when it was asked for, after how many seconds and actions it came, and what it said.

    Attributes:
        committed: (d, 2) the actions that the request called known; (0, 2) without `known`.
        chunk: (HORIZON, 2), or None where nothing came that could be used.
    """

    asked: int
    committed: Numbers
    seconds: float
    partial: bool
    chunk: Numbers | None
    actions: int = 0


@dataclass
class Robot:
    """A point that moves, its chunk, and the request for its next one."""

    number: int
    mode: str | None
    position: Numbers = field(default_factory=lambda: np.zeros(2))
    chunk: Numbers = field(default_factory=lambda: np.zeros((HORIZON, 2)))
    begun: int = 0
    delays: deque[int] = field(default_factory=lambda: deque(maxlen=10))
    request: asyncio.Task[Answer] | None = None
    asked: int = 0
    missed: int = 0
    actions: list[Numbers] = field(default_factory=list)
    answers: list[Answer] = field(default_factory=list)

    def observation(self, tick: int) -> list[float]:
        """Return what the robot sees at a tick, (SEEN,); posts stand at all points with whole coordinates plus 1/2."""
        phase = tick * DT / 8 + self.number
        target = 4 * np.array([np.sin(3 * phase), np.sin(2 * phase)])
        pace = np.array([1.5 * np.cos(3 * phase), np.cos(2 * phase)])
        post = np.floor(self.position) + 0.5 - self.position
        velocity = self.actions[-1] if self.actions else np.zeros(2)
        way = (target - self.position).clip(-1.5, 1.5)
        return np.concatenate((way, pace, post, velocity)).tolist()

    def tick(self, tick: int, client: AsyncClient, late: bool) -> None:
        """Take the answer if there is one, ask for the next chunk, and do one action.

        The tick is missed if it begins late, or if the chunk is at its end and the robot stands still.
        """
        if self.request and self.request.done():
            self._take(self.request.result(), tick)
        if self.request is None and tick - self.asked >= EVERY:
            self.asked = tick
            self.request = asyncio.create_task(self._ask(tick, client))
        place = tick - self.begun
        self.missed += late or place >= HORIZON
        action = self.chunk[place] if place < HORIZON else np.zeros(2)
        self.position = self.position + DT * action
        self.actions.append(action)

    def _take(self, answer: Answer, tick: int) -> None:
        answer.actions = tick - answer.asked
        self.answers.append(answer)
        self.delays.append(min(answer.actions, LONGEST))
        self.request = None
        if answer.chunk is not None:
            self.chunk, self.begun = answer.chunk, answer.asked

    async def _ask(self, tick: int, client: AsyncClient) -> Answer:
        delay, left = max((2, *self.delays)), self.chunk[tick - self.begun :]
        plan = None if self.mode is None or len(left) < delay else known(left, delay, self.mode)
        committed, start = left[: delay if plan else 0], time.perf_counter()
        try:
            result = await client.sample(
                "policy",
                1,
                seed=self.number * 1_000_000 + tick,
                solver=f"euler-{STEPS}",
                condition=self.observation(tick),
                save_at=np.linspace(0, 1, STEPS + 1).tolist(),
                trace="none",
                timeout_s=delay * DT,
                on_timeout="partial",
                known=plan,
            )
        except PathlineError:  # refused, or too late to have begun
            return Answer(tick, committed, time.perf_counter() - start, partial=True, chunk=None)
        seconds = time.perf_counter() - start
        return Answer(tick, committed, seconds, result.status != "success", completed(result))


def known(left: Numbers, delay: int, mode: str) -> dict[str, Any]:
    """Return what a request says of the actions that are left of a chunk, of which `delay` will be done.

    With `guided` the later ones count as well, the less the later they are (Black et al. 2025, eq. 5).
    """
    values, weights = np.zeros((HORIZON, 2)), np.zeros((HORIZON, 1))
    values[: len(left)] = left
    weights[:delay] = 1
    if mode == "guided":
        fade = (len(left) - np.arange(delay, len(left))) / (len(left) - delay + 1)
        weights[delay : len(left), 0] = fade * np.expm1(fade) / np.expm1(1)
    return {"values": values, "mask": weights, "mode": mode}


def completed(result: SampleResult) -> Numbers | None:
    """Return the chunk of an answer; of a partial one, the last step of Euler prolonged to t = 1."""
    if result.status == "success":
        return result.samples[0].astype(float)
    times, states = result["saved_t"], result["saved"][0].astype(float)
    reached = np.flatnonzero(np.isfinite(states).all(axis=(1, 2)))
    if len(reached) < 2:
        return None
    before, last = reached[-2:]
    return states[last] + (1 - times[last]) / (times[last] - times[before]) * (states[last] - states[before])


async def control(
    client: AsyncClient, robots: Sequence[Robot], ticks: int, pace: Callable[[int], Awaitable[bool]]
) -> None:
    """Move robots for a number of ticks; `pace` is awaited before each, and says whether it is late."""
    for robot in robots:
        robot.asked = robot.number % EVERY - EVERY  # they do not all ask at once
    for tick in range(ticks):
        late = await pace(tick)
        for robot in robots:
            robot.tick(tick, client, late)
    await asyncio.gather(*(robot.request for robot in robots if robot.request))


def metronome() -> Callable[[int], Awaitable[bool]]:
    """Return a wait for the time of a tick, which says whether that was a whole tick ago."""
    start = time.perf_counter()

    async def pace(tick: int) -> bool:
        left = start + tick * DT - time.perf_counter()
        await asyncio.sleep(max(left, 0))
        return left < -DT

    return pace


def jerks(robot: Robot) -> tuple[list[float], list[float]]:
    """Return the jerk, the second difference of the actions over DT^2, where chunks meet, and everywhere else.

    Chunks meet from the tick of the answer until the committed actions have been done; the greatest value counts.
    """
    jerk = np.linalg.norm(np.diff(robot.actions, 2, axis=0), axis=1) / DT**2  # jerk[k] needs actions k, k + 1, k + 2
    border, elsewhere = [], np.ones(len(jerk), dtype=bool)
    for answer in robot.answers[2:]:  # the first chunks move it off
        seam = slice(answer.asked + answer.actions - 2, answer.asked + max(answer.actions, len(answer.committed)))
        if answer.chunk is not None and len(jerk[seam]):
            border.append(float(jerk[seam].max()))
            elsewhere[seam] = False
    return border, jerk[elsewhere][2 * EVERY :].tolist()


async def measured(url: str, count: int, mode: str | None, seconds: float) -> str:
    """Move robots in real time and return a line of the table."""
    robots = [Robot(number, mode) for number in range(count)]
    async with AsyncClient(url, retry=RetryPolicy(max_attempts=1)) as client:
        if mode:
            await client.sample("policy", 1, condition=[0.0] * SEEN, known=known(robots[0].chunk, 2, mode))  # prepares
        await control(client, robots, int(seconds / DT), metronome())
    answers = [answer for robot in robots for answer in robot.answers][count:]
    middle, high = np.quantile([1000 * answer.seconds for answer in answers], [0.5, 0.99])
    borders, others = (np.concatenate(parts) for parts in zip(*map(jerks, robots), strict=True))
    missed = sum(robot.missed for robot in robots)
    parts = sum(answer.partial for answer in answers)
    return (
        f"| {count} | {mode or 'none'} | {len(answers)} | {middle:.0f} | {high:.0f} | {parts} | "
        f"{missed} of {count * int(seconds / DT)} | {np.mean(borders):.0f} | {np.mean(others):.0f} |"
    )


def main() -> int:
    """Train, serve and measure."""
    parser = argparse.ArgumentParser(description="Train, serve and control a robot policy.")
    parser.add_argument("--robots", type=int, nargs="+", default=[1, 8, 32])
    parser.add_argument("--seconds", type=float, default=10.0, help="of each measurement")
    parser.add_argument("--repository", type=Path, help="where the checkpoint is, or will be (default: a new folder)")
    options = parser.parse_args()
    repository = options.repository or Path(tempfile.mkdtemp()) / "checkpoints"
    torch.set_num_threads(1)
    if not (repository / "policy").exists():
        start = time.perf_counter()
        trained(repository)
        print(f"trained in {time.perf_counter() - start:.0f} s; saved in {repository}", flush=True)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    environment = os.environ | {"PATHLINE_MODELS_DIR": str(repository), "PATHLINE_PORT": str(port)}
    service = subprocess.Popen([sys.executable, "-m", "service"], env=environment, stdout=subprocess.DEVNULL)
    try:
        url = f"http://127.0.0.1:{port}"
        while not _ready(url):
            if service.poll() is not None:
                return service.returncode
            time.sleep(0.2)
        print("| robots | known | answers | p50 ms | p99 ms | cut short | missed ticks | jerk at borders | elsewhere |")
        print("|---" * 9 + "|", flush=True)
        for count in options.robots:
            for mode in MODES:
                print(asyncio.run(measured(url, count, mode, options.seconds)), flush=True)
    finally:
        service.terminate()
        service.wait()
    return 0


def _ready(url: str) -> bool:
    try:
        return httpx.get(f"{url}/readyz").status_code == 200
    except httpx.TransportError:
        return False


if __name__ == "__main__":
    sys.exit(main())
