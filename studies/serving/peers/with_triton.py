"""Triton through pytriton: its dynamic batcher joins requests within a waiting time; equal rows are solved together.

Run as `python -m studies.serving.peers.with_triton CHECKPOINT PORT SECONDS`. A request is a batch with one row per
sample.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from pytriton.decorators import batch  # pyright: ignore[reportMissingImports]  (in the environment of the peers)
from pytriton.model_config import DynamicBatcher, ModelConfig, Tensor  # pyright: ignore[reportMissingImports]
from pytriton.triton import Triton, TritonConfig  # pyright: ignore[reportMissingImports]

from studies.serving.solving import Question, Solver
from studies.serving.workloads import SOLVERS

COLUMNS = ("solver", "steps", "seed", "tolerance")


def sampling(checkpoint: Path) -> object:
    """Return the function that Triton calls with the rows of one or more requests."""
    solver = Solver(checkpoint)

    @batch
    def infer(**inputs: NDArray[np.float64]) -> dict[str, NDArray[np.generic]]:
        rows = np.concatenate([inputs[name] for name in COLUMNS], axis=1)
        begins = np.flatnonzero(np.concatenate(([True], (rows[1:] != rows[:-1]).any(axis=1))))
        counts = np.diff(np.append(begins, len(rows)))
        answers = solver.solve([_question(rows[k], int(n)) for k, n in zip(begins, counts, strict=True)])
        nfe = np.concatenate([np.full((len(x), 1), calls, np.int64) for x, calls in answers])
        return {"samples": torch.cat([x for x, _ in answers]).numpy(), "nfe": nfe}

    return infer


def _question(row: NDArray[np.float64], samples: int) -> Question:
    solver, steps, seed, tolerance = row
    return Question(SOLVERS[int(solver)], int(steps) or None, float(tolerance), samples, int(seed))


if __name__ == "__main__":
    torch.set_num_threads(1)
    port, waiting = int(sys.argv[2]), round(1e6 * float(sys.argv[3]))
    config = TritonConfig(http_port=port, allow_grpc=False, allow_metrics=False, http_address="127.0.0.1")
    with Triton(config=config) as triton:
        triton.bind(
            "moons",
            sampling(Path(sys.argv[1])),
            inputs=[Tensor(name=name, dtype=np.float64, shape=(1,)) for name in COLUMNS],
            outputs=[
                Tensor(name="samples", dtype=np.float32, shape=(-1,)),
                Tensor(name="nfe", dtype=np.int64, shape=(1,)),
            ],
            config=ModelConfig(max_batch_size=4096, batcher=DynamicBatcher(max_queue_delay_microseconds=waiting)),
        )
        triton.serve()
