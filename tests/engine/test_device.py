"""Devices: the engine's calls, recorded by a fake remote device."""

from __future__ import annotations

from collections import Counter
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from engine.arena import Arena
from engine.device import Cuda, Device, choose_device, device_of
from engine.job import Job
from engine.stages import Pass, prelude_pass
from models.checkpoint.loading import Checkpoint, load
from models.condition_values import Values
from tests.service import latent

from .conftest import job


class Elsewhere(Device):
    """The CPU as a remote device: data must be sent there and fetched back."""

    def __init__(self) -> None:
        super().__init__(torch.device("cpu"), compile=False)
        self.counts: Counter[str] = Counter()

    def scope(self) -> nullcontext[None]:
        self.counts["scope"] += 1
        return nullcontext()

    def finish(self) -> None:
        self.counts["finish"] += 1

    def send(self, tensor: Tensor) -> Tensor:
        self.counts["send"] += 1
        return tensor.clone()

    def fetch(self, tensor: Tensor) -> Tensor:
        self.counts["fetch"] += 1
        return tensor.clone()

    def free(self) -> None:
        self.counts["free"] += 1


def _run(arena: Arena, *jobs: Job) -> list[Tensor]:
    arena.admit([(number, 0, each.num_samples, each) for number, each in enumerate(jobs)])
    found: dict[int, Tensor] = {}
    while sum(arena.counts):
        finished, failed, _ = arena.tick()
        assert not failed
        for each in finished:
            found |= {int(owner): each.x[each.owner == owner] for owner in set(each.owner)}
    return [found[number] for number in range(len(jobs))]


def test_every_call_is_waited_for_and_everything_is_sent_and_fetched(net: Checkpoint) -> None:
    device = Elsewhere()
    arena = Arena(net, device)
    device.counts.clear()
    given = torch.randn(3, 2)
    jobs = job(4, solver="rk4", steps=2), job(3, solver="euler", steps=5, x0=given, save_at=None)
    found = _run(arena, *jobs)
    assert device.counts["finish"] == 8  # one for each network call
    assert device.counts["send"] == 2  # the noise of all jobs at once, and what one job gave
    assert device.counts["fetch"] == 2  # the two ended at different times
    plain = _run(Arena(net, device_of(torch.device("cpu"), compile=False)), *jobs)
    assert all(torch.equal(a, b) for a, b in zip(found, plain, strict=True))


def test_memory_is_given_back_before_a_call_is_tried_in_parts(net: Checkpoint) -> None:
    device = Elsewhere()
    arena = Arena(net, device)
    device.counts.clear()
    inside = arena.network.call.function

    def crowded(*arguments: Tensor) -> Tensor:
        if len(arguments[0]) > 8:
            raise torch.OutOfMemoryError("no memory for so many rows")
        return inside(*arguments)

    arena.network.call = replace(arena.network.call, function=crowded)
    found = _run(arena, job(16, solver="euler", steps=3))
    assert len(found[0]) == 16
    assert device.counts["free"] >= 3


def test_auto_is_what_there_is(monkeypatch: pytest.MonkeyPatch) -> None:
    for there, chosen in ((True, "cuda"), (False, "cpu")):
        monkeypatch.setattr(torch.cuda, "is_available", lambda there=there: there)
        assert choose_device("auto").type == chosen
    assert choose_device("cuda:1") == torch.device("cuda", 1)
    assert type(device_of(torch.device("cpu"))) is Device
    assert type(device_of(torch.device("cuda"))) is Cuda


@pytest.mark.parametrize(
    ("error", "lost"),
    [
        (RuntimeError("CUDA error: an illegal memory access was encountered"), True),
        (torch.OutOfMemoryError("CUDA out of memory"), False),
        (ValueError("shapes differ"), False),
    ],
)
def test_after_which_errors_cuda_is_lost(error: Exception, lost: bool) -> None:
    assert Cuda(torch.device("cuda")).is_lost(error) is lost
    assert not Device(torch.device("cpu")).is_lost(error)


def test_rows_of_stages_are_sent_and_decoded_ones_are_fetched(tmp_path: Path) -> None:
    checkpoint = load(latent.imported(tmp_path, tmp_path / "repository").path)
    device = Elsewhere()
    arena = Arena(checkpoint, device)
    assert checkpoint.request_conditions is not None
    values = Values(checkpoint.request_conditions, {}, 3, torch.float32).tensors()
    request = replace(job(3, solver="euler", steps=2, model="latent"), conditions=values, decode=True)
    assert arena.prelude is not None
    assert arena.decoder is not None
    device.counts.clear()
    prepared: list[Job] = []
    arena.prelude.passes.append(prelude_pass(checkpoint, 0, request, prepared.append))
    [ended] = arena.prelude.turn().ended
    ended.then(ended.out)
    assert (device.counts["send"], device.counts["fetch"]) == (3, 0)  # a picture, its flag and its strength
    [x] = _run(arena, *prepared)
    device.counts.clear()
    arena.decoder.passes.append(Pass(0, [x], lambda out: None))
    [ended] = arena.decoder.turn().ended
    assert (device.counts["send"], device.counts["fetch"]) == (1, 1)
    assert torch.allclose(ended.out[0], checkpoint.decoder.decode(x), atol=1e-6)
