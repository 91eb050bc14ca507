"""The opponent: FastAPI solves each request on its own with torchdiffeq, in the thread pool, in inference mode."""

from __future__ import annotations

import sys
from pathlib import Path

import orjson
import torch
import torchdiffeq
import uvicorn
from fastapi import FastAPI, Response
from pydantic import BaseModel
from torch import Tensor

from models.checkpoint.loading import load


class Wish(BaseModel):
    """What the workloads ask for; the names are Pathline's."""

    model: str
    solver: str
    num_samples: int
    seed: int
    steps: int | None = None
    rtol: float = 1e-5
    atol: float = 1e-5


def application(checkpoint: Path) -> FastAPI:
    """The service, with one model."""
    app, loaded = FastAPI(), load(checkpoint)
    velocity, decode, shape = loaded.velocity, loaded.decoder.decode, tuple(loaded.card.event_shape)

    @app.post("/v1/sample")
    def sample(wish: Wish) -> Response:
        calls = 0

        def field(t: Tensor, x: Tensor) -> Tensor:
            nonlocal calls
            calls += 1
            return velocity(x, t.expand(len(x)))

        generator = torch.Generator().manual_seed(wish.seed)
        with torch.inference_mode():
            x0 = torch.randn((wish.num_samples, *shape), generator=generator)
            span = torch.tensor([0.0, 1.0])
            options = {"step_size": 1 / wish.steps} if wish.steps else None
            path = torchdiffeq.odeint(
                field, x0, span, method=wish.solver, rtol=wish.rtol, atol=wish.atol, options=options
            )
            assert isinstance(path, Tensor)
            samples = decode(path[-1])
        content = orjson.dumps({"samples": samples.numpy(), "nfe": calls}, option=orjson.OPT_SERIALIZE_NUMPY)
        return Response(content, media_type="application/json")

    @app.get("/readyz")
    def ready() -> dict[str, str]:
        return {"status": "ready"}

    return app


if __name__ == "__main__":
    torch.set_num_threads(1)
    uvicorn.run(application(Path(sys.argv[1])), port=int(sys.argv[2]), log_level="warning", access_log=False)
