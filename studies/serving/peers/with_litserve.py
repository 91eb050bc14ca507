"""LitServe: requests that arrive within a waiting time form a batch, and equal ones in it are solved together.

Run as `python -m studies.serving.peers.with_litserve CHECKPOINT PORT SECONDS`. Annotations are not postponed
here: LitServe reads the type of a request from them.
"""

import sys
from pathlib import Path
from typing import Any

import litserve  # pyright: ignore[reportMissingImports]  (in the environment of the peers)
import torch

from studies.serving.plain import Request
from studies.serving.solving import Question, Solver


class Sampling(litserve.LitAPI):  # pyright: ignore[reportUntypedBaseClass]
    """Answers the requests of the workloads."""

    def __init__(self, checkpoint: Path, **settings: Any) -> None:
        super().__init__(**settings)
        self._checkpoint = checkpoint

    def setup(self, device: str) -> None:
        """Load the model in the process that solves."""
        torch.set_num_threads(1)
        self._solver = Solver(self._checkpoint)

    def decode_request(self, request: Request) -> Question:
        """Return the question to solve."""
        return request.question

    def batch(self, inputs: list[Question]) -> list[Question]:
        """Return the batch as it is: its requests differ in length."""
        return inputs

    def predict(self, x: list[Question]) -> list[dict[str, object]]:
        """Solve a batch."""
        return [{"samples": samples.tolist(), "nfe": nfe} for samples, nfe in self._solver.solve(x)]

    def unbatch(self, output: list[dict[str, object]]) -> list[dict[str, object]]:
        """Return the answers one by one."""
        return output

    def encode_response(self, output: dict[str, object]) -> dict[str, object]:
        """Return an answer as it is."""
        return output


if __name__ == "__main__":
    api = Sampling(Path(sys.argv[1]), max_batch_size=32, batch_timeout=float(sys.argv[3]), api_path="/v1/sample")
    server = litserve.LitServer(api, accelerator="cpu", healthcheck_path="/readyz")
    server.run(host="127.0.0.1", port=int(sys.argv[2]), generate_client_file=False, log_level="error")
