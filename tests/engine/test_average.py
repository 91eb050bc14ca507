"""Fields of average velocity in the engine: steps of any grids share calls, with the same bits as alone."""

from itertools import pairwise
from typing import Any

import pytest
import torch

from engine.arena import Arena
from engine.device import device_of
from engine.job import Job
from models.architectures.residual_mlp import ResidualMLP, ResidualMLPConfig
from models.checkpoint.loading import Checkpoint, load
from models.checkpoint.saving import save
from models.conditions import NamedCondition
from models.decoder import Decoder
from models.noise import noise
from models.velocity import FieldKind

from .conftest import job


@pytest.fixture(scope="module")
def quick(tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    torch.manual_seed(0)
    condition = NamedCondition.label(classes=3, null=False)
    config = ResidualMLPConfig(dim=2, hidden=32, blocks=1, condition=condition, field=FieldKind.AVERAGE)
    model = ResidualMLP(config).requires_grad_(False)
    torch.nn.init.normal_(model.get_parameter("span.weight"))
    root = tmp_path_factory.mktemp("repository")
    return load(save(root, "net", model, Decoder.identity((2,)), dataset={}, training={}, seed=0))


JOBS: list[dict[str, Any]] = [{"steps": 1}, {"steps": 2}, {"steps": 4}, {"grid": [0.0, 0.3, 1.0]}]


def solved(arena: Arena, jobs: dict[int, Job]) -> tuple[dict[tuple[int, int], torch.Tensor], int]:
    """Return the samples of jobs that start together, by job and index, and the number of network calls."""
    arena.admit([(owner, 0, each.num_samples, each) for owner, each in jobs.items()])
    found: dict[tuple[int, int], torch.Tensor] = {}
    calls = 0
    while sum(arena.counts):
        ended, failed, made = arena.tick()
        assert not failed
        calls += made
        for each in ended:
            found |= {(int(o), int(i)): x for o, i, x in zip(each.owner, each.index, each.x, strict=True)}
    return found, calls


def test_steps_of_all_lengths_share_calls_and_each_sample_has_its_own_bits(quick: Checkpoint) -> None:
    arena = Arena(quick, device_of(torch.device("cpu")))
    labels = [torch.arange(k + 3) % 3 for k in range(len(JOBS))]
    jobs = {k: job(k + 3, seed=k, solver="euler", condition=labels[k], **each) for k, each in enumerate(JOBS)}
    together, calls = solved(arena, jobs)
    assert calls == 4
    for owner, each in jobs.items():
        alone, _ = solved(arena, {owner: each})
        assert all(torch.equal(together[place], x) for place, x in alone.items())
        x = torch.stack([alone[owner, index] for index in range(owner + 3)])
        torch.testing.assert_close(x, by_hand(quick, JOBS[owner], noise(owner, 0, owner + 3, (2,)), labels[owner]))


def by_hand(quick: Checkpoint, given: dict[str, Any], x: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    steps = given.get("steps")
    times = [k / steps for k in range(steps + 1)] if isinstance(steps, int) else [0.0, 0.3, 1.0]
    for start, end in pairwise(times):
        x = x + (end - start) * quick.velocity(x, torch.tensor([[start, end]]).repeat(len(x), 1), labels)
    return x


def test_it_is_evaluated_as_a_torch_module_and_says_so(quick: Checkpoint) -> None:
    arena = Arena(quick, device_of(torch.device("cpu")))
    assert (arena.form.path, arena.deterministic) == ("eager", True)
    assert arena.form.reason == "a field of average velocity has no compiled form"
