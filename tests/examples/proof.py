"""Examples behind a service: 16 requests with own conditions, guidance and solvers, and their plain torch loops."""

from __future__ import annotations

import asyncio
import io
import re
import tempfile
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import torch
from numpy.typing import NDArray
from pathline._request import sample_request
from torch import Tensor

from models.importing.declared import Declared
from models.importing.weights import import_program
from models.noise import noise
from service.app import create_app
from service.settings import Settings
from tests.examples.support import load_example

REQUESTS = 16
SOLVERS = ("euler-24", "ab2-24", "rk4-6", "heun2-12")
"""Of 24 network calls each."""

GUIDANCE = (None, 1.5, 3.0, 0.5)
ROUNDING = 1e-5
"""Largest difference from the plain loop, relative to the largest number of a sample."""

Velocity = Callable[[Tensor, Tensor], Tensor]
Conditions = Mapping[str, NDArray[Any]]


@dataclass(frozen=True)
class Case:
    """An imported example.

    Attributes:
        model: its name in the repository.
        shapes: sizes of its free axes in requests; the first entry is used where all requests have one shape.
        conditions: the conditions of request k, given its sizes.
        original: (x, t, conditions, or None for none) -> the velocity of the original network; x has one row.
        decoded: states -> data, by the original decoder.
        guided: whether its requests have guidance.
        event: the shape of one state, given the sizes.
        free: the places of free axes in it.
    """

    model: str
    original: Callable[[Tensor, Tensor, Mapping[str, Tensor] | None], Tensor]
    event: Callable[[Mapping[str, int]], tuple[int, ...]]
    conditions: Callable[[int, Mapping[str, int]], Conditions] = lambda k, sizes: {}
    decoded: Callable[[Tensor], Tensor] = lambda x: x
    shapes: Sequence[Mapping[str, int]] = ({},)
    guided: bool = False
    free: tuple[int, ...] = ()

    def options(self, k: int, several: bool) -> dict[str, Any]:
        """Return the fields of request k: its own seed, solver, conditions and guidance; its shape if they differ."""
        sizes = self.sizes(k, several)
        made: dict[str, Any] = {"seed": k, "solver": SOLVERS[k // 4 % len(SOLVERS)]}
        if sizes:
            made["shape"] = dict(sizes)
        if given := self.conditions(k, sizes):
            made["conditions"] = given
        if self.guided and (strength := GUIDANCE[k % len(GUIDANCE)]) is not None:
            made["guidance"] = strength
        return made

    @property
    def both(self) -> tuple[bool, ...]:
        """Whether its requests have several shapes: False, and True where its axes are free."""
        return (False, True) if len(self.shapes) > 1 else (False,)

    def sizes(self, k: int, several: bool) -> Mapping[str, int]:
        """Return the sizes of the free axes of request k."""
        return self.shapes[k % len(self.shapes)] if several else self.shapes[0]

    @torch.no_grad()
    def plain(self, k: int, several: bool) -> NDArray[np.float32]:
        """Return the samples of request k, drawn in a plain loop."""
        options, sizes = self.options(k, several), self.sizes(k, several)
        given, strength = _rows(self.conditions(k, sizes)), options.get("guidance")

        def velocity(x: Tensor, t: Tensor) -> Tensor:
            v = self.original(x, t, given)
            if strength is None:
                return v
            null = self.original(x, t, None)
            return null + strength * (v - null)

        x = noise(k, 0, 1, self.event(sizes), free=self.free)
        return self.decoded(loop(velocity, x, options["solver"])).numpy()


def _rows(conditions: Conditions) -> dict[str, Tensor]:
    """Return conditions as one row each, floating-point numbers as float32."""
    rows = {name: torch.from_numpy(np.ascontiguousarray(value))[None] for name, value in conditions.items()}
    return {name: row.float() if row.is_floating_point() else row for name, row in rows.items()}


def loop(velocity: Velocity, x: Tensor, solver: str) -> Tensor:
    """Integrate x (1, *event) from t = 0 to 1 with the solver as its textbook writes it, on a uniform grid."""
    name, _, steps = solver.partition("-")
    h, before = 1 / int(steps), None

    def f(x: Tensor, t: float) -> Tensor:
        return velocity(x, torch.full((len(x),), t))

    for step in range(int(steps)):
        t = step / int(steps)
        k1 = f(x, t)
        if name == "euler" or (name == "ab2" and before is None):  # which starts with a step of Euler's
            x = x + h * k1
        elif name == "heun2":
            x = x + h / 2 * (k1 + f(x + h * k1, t + h))
        elif name == "ab2":
            assert before is not None
            x = x + h * (1.5 * k1 - 0.5 * before)
        else:
            k2 = f(x + h / 2 * k1, t + h / 2)
            k3 = f(x + h / 2 * k2, t + h / 2)
            x = x + h / 6 * (k1 + 2 * k2 + 2 * k3 + f(x + h * k3, t + h))
        before = k1
    return x


def _normal(k: int, *shape: int) -> NDArray[np.float32]:
    return np.random.default_rng(k).normal(size=shape).round(3).astype(np.float32)


def action_transformer(repository: Path) -> Case:
    """Return chunks of actions of a camera image and the state of the joints."""
    module = load_example("action_transformer")
    encoder, network, _ = module.imported(repository)

    def conditions(k: int, sizes: Mapping[str, int]) -> Conditions:
        image = np.random.default_rng(k).integers(0, 256, (3, 16, 16), dtype=np.uint8)
        return {"image": image, "state": _normal(k, module.STATE)}

    def original(x: Tensor, t: Tensor, given: Mapping[str, Tensor] | None) -> Tensor:
        assert given is not None
        return network(x, t, encoder(given["image"].float() * (1 / 255)), given["state"])

    return Case("actions", original, lambda sizes: (module.HORIZON, module.ACTIONS), conditions)


def edm(repository: Path) -> Case:
    """Return points of a denoiser D(x, sigma), as the velocity of its straight path (see `models.conventions`)."""
    module = load_example("edm")
    denoiser = module.train(60)
    declared = Declared(predicts="x0", path="edm", start=module.SIGMA_MAX, end=module.SIGMA_MIN)
    with tempfile.TemporaryDirectory() as folder:
        module.save(denoiser, Path(folder) / "edm.pt2")
        import_program(Path(folder) / "edm.pt2", repository, "edm", (2,), declared=declared)
    first = 1 / module.SIGMA_MAX

    def original(z: Tensor, t: Tensor, given: Mapping[str, Tensor] | None) -> Tensor:
        data, sigma = float(t + (1 - t) * first), float((1 - t) / (t + (1 - t) * first))
        level = max(sigma, module.SIGMA_MIN)
        x = z / data
        e = (x - denoiser(x, torch.full((len(x),), level))) / level
        return (1 - first) * (x - sigma * e) - e

    return Case("edm", original, lambda sizes: (2,))


def latent_image(repository: Path) -> Case:
    """Return pictures of a flow in the latent space of a VAE."""
    module = load_example("latent_image")
    network, decoder, _ = module.imported(repository)
    return Case(
        "latent",
        lambda x, t, given: network(x, t),
        lambda sizes: module.LATENT,
        decoded=lambda x: decoder(x).clamp(-1, 1),
    )


def mel_decoder(repository: Path) -> Case:
    """Return mel spectrograms of any length, guided by a text encoder's output for each frame."""
    module = load_example("mel_decoder")
    network, _ = module.imported(repository)
    mean, deviation = (torch.from_numpy(each)[:, None] for each in (module.MEAN, module.DEVIATION))

    def original(x: Tensor, t: Tensor, given: Mapping[str, Tensor] | None) -> Tensor:
        mu = torch.zeros_like(x) if given is None else given["mu"]
        return network(x, t, mu, torch.ones(1, x.shape[2], dtype=torch.bool))

    return Case(
        "mel",
        original,
        lambda sizes: (module.MELS, sizes["T"]),
        lambda k, sizes: {"mu": _normal(k, module.MELS, sizes["T"])},
        lambda x: x * deviation + mean,
        shapes=[{"T": length} for length in (96, 64, 128, 160)],
        guided=True,
        free=(1,),
    )


CASES: dict[str, Callable[[Path], Case]] = {
    each.__name__: each for each in (action_transformer, edm, latent_image, mel_decoder)
}


class Served:
    """A case behind a service in this process, and its 16 requests as the SDK sends them.

    Attributes:
        case: the case.
        requests: its requests, ready to be sent.
    """

    def __init__(self, case: Case, http: httpx.AsyncClient, several: bool) -> None:
        self.case, self._http = case, http
        chosen = [case.options(k, several) for k in range(REQUESTS)]
        self.requests = [sample_request(case.model, 1, options | {"timeout_s": 300}) for options in chosen]

    async def ask(self, k: int) -> bytes:
        """Return the answer to request k, in the format of NumPy."""
        request = self.requests[k]
        headers = {"Content-Type": request.media, "Accept": "application/x-npy"}
        answer = await self._http.post("/v1/sample", content=request.body, headers=headers)
        if answer.status_code != 200:
            raise RuntimeError(answer.text)
        return answer.content

    async def one_by_one(self) -> list[bytes]:
        """Return the answers to all requests, sent one after the other."""
        return [await self.ask(k) for k in range(REQUESTS)]

    async def at_once(self) -> list[bytes]:
        """Return the answers to all requests, sent at once."""
        return list(await asyncio.gather(*(self.ask(k) for k in range(REQUESTS))))

    async def calls(self) -> NDArray[np.float64]:
        """Return the network rows and the network calls so far."""
        text = (await self._http.get("/metrics")).text
        pattern = r'pathline_batch_rows_(sum|count)\{model="[^"]+",operation="sample"\} (\S+)'
        found = dict(re.findall(pattern, text))
        return np.array([float(found.get("sum", 0)), float(found.get("count", 0))])


@asynccontextmanager
async def serving(repository: Path) -> AsyncIterator[httpx.AsyncClient]:
    """Serve a repository on one thread."""
    app = create_app(Settings(models_dir=repository, device="cpu", threads=1, watch_s=0, allow_programs=True))
    transport = httpx.ASGITransport(app)
    async with app.router.lifespan_context(app), httpx.AsyncClient(transport=transport, base_url="http://here") as http:
        yield http


def apart(answers: Sequence[bytes], case: Case, several: bool) -> float:
    """Return the largest difference of samples from those of the plain loop, relative to the largest number of each."""
    found = []
    for k, answer in enumerate(answers):
        samples, wanted = np.load(io.BytesIO(answer)), case.plain(k, several)
        found.append(float(np.abs(samples - wanted).max() / max(1.0, float(np.abs(wanted).max()))))
    return max(found)
