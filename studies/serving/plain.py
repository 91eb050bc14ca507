"""The plain service: FastAPI solves each request on its own with torchdiffeq, in the thread pool.

Its route /bare reads the same body and answers with as many numbers, but solves nothing: what FastAPI itself takes.
"""

from __future__ import annotations

import sys
from pathlib import Path

import orjson
import torch
import uvicorn
from fastapi import FastAPI, Response
from pydantic import BaseModel

from studies.serving.solving import Question, Solver


class Request(BaseModel):
    """A request of the workloads, with Pathline's field names."""

    model: str
    solver: str
    num_samples: int
    seed: int
    steps: int | None = None
    rtol: float = 1e-5

    @property
    def question(self) -> Question:
        """The question to solve."""
        return Question(self.solver, self.steps, self.rtol, self.num_samples, self.seed)


def application(checkpoint: Path) -> FastAPI:
    """Return the service with one model."""
    app, solver = FastAPI(), Solver(checkpoint)

    @app.post("/v1/sample")
    def sample(request: Request) -> Response:
        ((samples, nfe),) = solver.solve([request.question])
        content = orjson.dumps({"samples": samples.numpy(), "nfe": nfe}, option=orjson.OPT_SERIALIZE_NUMPY)
        return Response(content, media_type="application/json")

    @app.post("/bare")
    async def bare(request: Request) -> Response:
        content = orjson.dumps({"samples": [[0.5, 0.5]] * request.num_samples, "nfe": 0})
        return Response(content, media_type="application/json")

    @app.get("/readyz")
    def ready() -> dict[str, str]:
        return {"status": "ready"}

    return app


if __name__ == "__main__":
    torch.set_num_threads(1)
    uvicorn.run(application(Path(sys.argv[1])), port=int(sys.argv[2]), log_level="warning", access_log=False)
