"""Solving with torchdiffeq for the services that Pathline is compared with: equal requests are solved together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
import torchdiffeq
from torch import Tensor

from models.checkpoint.loading import load


@dataclass(frozen=True)
class Question:
    """A request of the workloads.

    Attributes:
        solver: a method of torchdiffeq.
        steps: number of fixed steps; None for error control.
        tolerance: relative and absolute; not used with fixed steps.
        num_samples: number of samples.
        seed: seed of their noise.
    """

    solver: str
    steps: int | None
    tolerance: float
    num_samples: int
    seed: int

    @property
    def settings(self) -> tuple[str, int | None, float]:
        """Requests that agree in these can share a solve."""
        return self.solver, self.steps, self.tolerance


class Solver:
    """Solves with the velocity of one checkpoint."""

    def __init__(self, checkpoint: Path) -> None:
        loaded = load(checkpoint)
        self._velocity, self._decode = loaded.velocity, loaded.decoder.decode
        self._shape = loaded.card.event_of()

    def solve(self, questions: Sequence[Question]) -> list[tuple[Tensor, int]]:
        """Return (num_samples, *event) samples and the NFE for each question, in their order.

        Questions with the same settings are one batch. Under error control torchdiffeq gives a batch the same steps, so
        an answer depends on its batch.
        """
        answers: dict[int, tuple[Tensor, int]] = {}
        for settings in dict.fromkeys(each.settings for each in questions):
            chosen = [k for k, each in enumerate(questions) if each.settings == settings]
            x0 = torch.cat([self._noise(questions[k]) for k in chosen])
            samples, nfe = self._batch(x0, *settings)
            parts = samples.split([questions[k].num_samples for k in chosen])
            answers.update((k, (part, nfe)) for k, part in zip(chosen, parts, strict=True))
        return [answers[k] for k in range(len(questions))]

    def _noise(self, question: Question) -> Tensor:
        generator = torch.Generator().manual_seed(question.seed)
        return torch.randn((question.num_samples, *self._shape), generator=generator)

    def _batch(self, x0: Tensor, solver: str, steps: int | None, tolerance: float) -> tuple[Tensor, int]:
        calls = 0

        def field(t: Tensor, x: Tensor) -> Tensor:
            nonlocal calls
            calls += 1
            return self._velocity(x, t.expand(len(x)))

        options = {"step_size": 1 / steps} if steps else None
        span = torch.tensor([0.0, 1.0])
        with torch.inference_mode():
            path = torchdiffeq.odeint(field, x0, span, method=solver, rtol=tolerance, atol=tolerance, options=options)
            assert isinstance(path, Tensor)
            return self._decode(path[-1]), calls
