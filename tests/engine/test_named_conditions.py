"""Named conditions and guidance of several terms in the engine: the right values, and the same bits in any company."""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from engine.engine import Engine
from engine.job import SAMPLE, Job
from models.checkpoint.loading import Checkpoint, load
from models.condition_values import Distinct, Values
from models.guidance import Guidance, Term, guidance_of
from models.noise import noise
from solvers import integrate, resolve
from tests.service.named import Named, imported

from .conftest import Settings

EULER: dict[str, Any] = {"solver": "euler", "steps": 4}
DOPRI5: dict[str, Any] = {"solver": "dopri5", "rtol": 1e-3, "atol": 1e-3}
GUIDED = Guidance(
    (Term(3.0), Term(1.0, frozenset({"text", "mask"})), Term(-3.0, frozenset({"text", "mask", "image", "label"})))
)


@pytest.fixture(scope="module")
def network_and_checkpoint(tmp_path_factory: pytest.TempPathFactory) -> tuple[Named, Checkpoint]:
    folder = tmp_path_factory.mktemp("named")
    network, path = imported(folder, folder / "repository")
    return network, load(path)


@pytest.fixture(scope="module")
def engine(network_and_checkpoint: tuple[Named, Checkpoint]) -> Iterator[Engine]:
    running = Engine(Settings())
    running.start()
    running.load("named", 1, network_and_checkpoint[1])
    yield running
    running.stop()


def given(length: int, samples: int, seed: int = 0) -> dict[str, Any]:
    """Return values of all conditions: one picture for all samples, and the others one for each."""
    generator = np.random.default_rng(seed)
    return {
        "text": generator.normal(size=(samples, length, 4)).astype(np.float32),
        "mask": np.arange(length) < max(1, length - 1),
        "image": generator.integers(0, 256, size=(3, 2, 2), dtype=np.uint8),
        "label": generator.integers(0, 5, size=samples),
        "strength": 1.5,
    }


def job(checkpoint: Checkpoint, samples: int, values: dict[str, Any], seed: int = 0, **more: Any) -> Job:
    takes = checkpoint.network_conditions
    assert takes is not None
    fields = {key: more.pop(key) for key in ("guidance", "negative", "own") if key in more}
    all_of = Values(takes, values, samples, torch.float32, optional=more.pop("optional", ()))

    def partial(some: dict[str, Any], rows: int) -> Mapping[str, Distinct]:
        return Values(takes, some, rows, torch.float32, all_of.sizes, takes.in_requests).tensors()

    if isinstance(strength := fields.get("guidance"), float):
        fields["guidance"] = guidance_of(strength, takes.droppable(fields.get("negative", ())))
    if "negative" in fields:
        fields["negative"] = partial(fields["negative"], samples)
    if "own" in fields:
        fields["own"] = [partial(some, 1) for some in fields["own"]]
    sizes = tuple(sorted(all_of.sizes.settle().items()))
    return Job("named", 1, resolve(**more), samples, seed=seed, conditions=all_of.tensors(), sizes=sizes, **fields)


def solved(engine: Engine, *jobs: Job) -> list[Any]:
    for each in jobs:
        engine.prepare("named", 1, SAMPLE, each.sizes)
    return [future.result(60) for future in [engine.submit(each) for each in jobs]]


def arguments_of(
    values: dict[str, Any], samples: int, without: tuple[str, ...] = (), **other: Tensor
) -> tuple[Tensor, ...]:
    """Return the arguments that the network itself takes."""
    length = values["mask"].shape[-1]
    image = torch.full((3, 2, 2), 128.0) if "image" in without else torch.from_numpy(values["image"]).float()
    found = {
        "text": torch.zeros(samples, length, 4) if "text" in without else torch.from_numpy(values["text"]),
        "mask": torch.zeros(length, dtype=torch.bool) if "mask" in without else torch.from_numpy(values["mask"]),
        "image": image * (1 / 255),
        "label": torch.full((samples,), 5) if "label" in without else torch.from_numpy(values["label"]),
    } | other
    return (
        *(found["text"], found["mask"].expand(samples, length), found["image"].expand(samples, 3, 2, 2)),
        *(found["label"].expand(samples), torch.full((samples,), values["strength"])),
    )


def test_samples_are_those_of_a_plain_loop(engine: Engine, network_and_checkpoint: tuple[Named, Checkpoint]) -> None:
    network, checkpoint = network_and_checkpoint
    values, x0 = given(5, 6), noise(0, 0, 6, (3,))
    [found] = solved(engine, job(checkpoint, 6, values, **EULER))
    wanted = integrate(lambda x, t: network(x, t, *arguments_of(values, 6)), x0, **EULER).x
    torch.testing.assert_close(found.x, wanted, rtol=0, atol=1e-5)
    assert found.rows == 6 * 4


def test_guidance_of_several_terms(engine: Engine, network_and_checkpoint: tuple[Named, Checkpoint]) -> None:
    network, checkpoint = network_and_checkpoint
    values, x0 = given(3, 4), noise(0, 0, 4, (3,))
    [found] = solved(engine, job(checkpoint, 4, values, guidance=GUIDED, **EULER))

    def field(x: Tensor, t: Tensor) -> Tensor:
        terms = [term.weight * network(x, t, *arguments_of(values, 4, tuple(term.without))) for term in GUIDED.terms]
        return torch.stack(terms).sum(0)

    torch.testing.assert_close(found.x, integrate(field, x0, **EULER).x, rtol=0, atol=1e-4)
    assert found.rows == 3 * 4 * 4


def test_negative_interval_and_corrections(engine: Engine, network_and_checkpoint: tuple[Named, Checkpoint]) -> None:
    network, checkpoint = network_and_checkpoint
    values, x0 = given(3, 4), noise(0, 0, 4, (3,))
    null = frozenset({"text", "mask", "image", "label", "strength"})
    guidance = Guidance((Term(2.0), Term(-1.0, null)), interval=(0.25, 0.5), projection=True, rescale=0.75)
    negative = {"label": 1, "strength": 0.5}
    [found] = solved(engine, job(checkpoint, 4, values, guidance=guidance, negative=negative, **EULER))

    def field(x: Tensor, t: Tensor) -> Tensor:
        whole = network(x, t, *arguments_of(values, 4))
        if not 0.25 <= float(t[0]) <= 0.5:
            return whole
        away = arguments_of(values | {"strength": 0.5}, 4, ("text", "mask", "image"), label=torch.tensor(1))
        other = network(x, t, *away)
        other = other * ((whole * other).sum(1) / other.square().sum(1))[:, None]
        v = 2 * whole - other
        return v * (0.75 * whole.std(1) / v.std(1) + 0.25)[:, None]

    torch.testing.assert_close(found.x, integrate(field, x0, **EULER).x, rtol=0, atol=1e-4)
    assert found.rows == 4 * (2 * 1 + 2 * 2)  # two of four calls are in the interval


def test_terms_with_conditions_of_their_own(engine: Engine, network_and_checkpoint: tuple[Named, Checkpoint]) -> None:
    """Three observations and the prior: the label comes from the terms alone."""
    network, checkpoint = network_and_checkpoint
    values, x0 = given(3, 4), noise(0, 0, 4, (3,))
    label, no_text = frozenset({"label"}), frozenset({"text"})
    guidance = Guidance((Term(1.0, own=label), Term(1.0, no_text, label), Term(1.0, own=label), Term(-2.0, label)))
    own = [{"label": 0}, {"label": 3}, {"label": 1}, {}]
    request = {key: value for key, value in values.items() if key != "label"}
    [result] = solved(engine, job(checkpoint, 4, request, guidance=guidance, own=own, optional=label, **EULER))

    def field(x: Tensor, t: Tensor) -> Tensor:
        def v(label: int, *without: str) -> Tensor:
            return network(x, t, *arguments_of(values, 4, without, label=torch.tensor(label)))

        return v(0) + v(3, "text") + v(1) - 2 * v(5)

    torch.testing.assert_close(result.x, integrate(field, x0, **EULER).x, rtol=0, atol=1e-4)
    assert result.rows == 4 * 4 * 4


def test_alone_and_among_sixteen_others_are_the_same_bits(
    engine: Engine, network_and_checkpoint: tuple[Named, Checkpoint]
) -> None:
    _, checkpoint = network_and_checkpoint
    own = Guidance((Term(1.0, own=frozenset({"label"})), Term(1.0), Term(-1.0, frozenset({"label"}))))
    guidances = (
        None,
        own,
        GUIDED,
        2.5,
        Guidance((Term(2.0), Term(-1.0, frozenset({"text"}))), (0.1, 0.7), projection=True, rescale=0.5),
    )
    jobs = []
    for number in range(16):
        guidance = guidances[number % len(guidances)]
        more = {"guidance": guidance} | ({"negative": {"strength": 0.5}} if guidance == 2.5 else {})
        more |= {"own": [{"label": number % 5}, {}, {}]} if guidance is own else {}
        values = given((3, 5)[number // 8], 1 + number % 5, number)
        jobs.append(job(checkpoint, 1 + number % 5, values, number, **more, **(EULER if number % 2 else DOPRI5)))
    alone = [solved(engine, each)[0] for each in jobs]
    together = solved(engine, *jobs)
    for before, after in zip(alone, together, strict=True):
        assert torch.equal(before.x, after.x)
        assert before.rows == after.rows
    for sizes in {each.sizes for each in jobs}:
        arena = engine.prepared("named", 1, SAMPLE, sizes)
        assert arena is not None
        conditions = arena.network._conditions
        assert conditions is not None
        assert len(conditions.rows.owners) == 0  # nothing is kept of finished jobs
        assert all(store.held == 0 for store in conditions.rows.stores.values())
