from typing import Any

import pytest
import torch
from torch import Tensor

from models.architectures.analytic import Gaussian, GaussianConfig, Mixture, MixtureConfig
from models.conditions import ONE, ConditionError, NamedCondition, NamedConditions
from models.forms.rows import field_rows
from models.guidance import Correction, Further, combined, guidance_of, guided, network_rows
from models.noise import noise
from solvers import integrate

FIELD = Mixture(MixtureConfig(components=3, conditional=True))
LABELS = NamedConditions({"condition": NamedCondition.label(classes=3)})


def rows(count: int) -> tuple[Tensor, Tensor, Tensor]:
    x = noise(1, 0, count, (2,), torch.float64)
    return x, torch.linspace(0.1, 0.9, count, dtype=torch.float64), torch.arange(count) % 3


def test_guidance_is_the_formula_for_each_row():
    x, t, labels = rows(7)
    g = torch.tensor([0.0, 1.0, 2.0, -1.0, 1.0, 0.0, 3.5], dtype=torch.float64)
    found = guided(FIELD, LABELS, x, t, labels, g)
    plain, null = FIELD(x, t, labels), FIELD(x, t)
    torch.testing.assert_close(found, null + g[:, None] * (plain - null))
    assert torch.equal(found[[1, 4]], plain[[1, 4]])
    assert torch.equal(found[[0, 5]], null[[0, 5]])


def test_a_guided_row_is_two_network_rows_and_others_are_one():
    seen: list[int] = []

    def spy(x: Tensor, t: Tensor, condition: Tensor | None = None) -> Tensor:
        seen.append(len(x))
        return FIELD(x, t, condition)

    x, t, labels = rows(5)
    g = [0.0, 1.0, 2.0, 0.5, 1.0]
    guided(spy, LABELS, x, t, labels, torch.tensor(g))
    assert seen == [sum(network_rows(guidance_of(each, (ONE,))) for each in g)] == [7]
    assert network_rows(None) == 1


def test_a_guided_row_has_the_same_bits_whatever_stands_beside_it():
    call = field_rows(FIELD, (2,), torch.float64, max_rows=128, condition=LABELS)

    def field(x: Tensor, t: Tensor, condition: Any = None) -> Tensor:
        return call(x, t, condition)

    x, t, labels = rows(100)
    g = torch.linspace(0, 4, 100)
    whole = guided(field, LABELS, x, t, labels, g)
    for chosen in ([0], [99], [5, 50, 7], list(range(30, 77))):
        assert torch.equal(guided(field, LABELS, x[chosen], t[chosen], labels[chosen], g[chosen]), whole[chosen])


def test_a_lost_row_stays_alone():
    x, t, labels = rows(4)
    x[2] = torch.nan
    found = guided(FIELD, LABELS, x, t, labels, torch.full((4,), 2.0))
    assert found.isfinite().all(1).tolist() == [True, True, False, True]


def test_sampling_with_a_label_ends_in_its_component():
    x0 = noise(0, 0, 200, (2,), torch.float64)
    labels = torch.ones(200, dtype=torch.int64)
    end = integrate(lambda x, t: FIELD(x, t, labels[: len(x)]), x0, solver="rk4", steps=40).x
    torch.testing.assert_close(end, FIELD.means[1] + 0.3 * x0, atol=1e-3, rtol=0)


def test_guidance_needs_a_trained_null():
    x, t, labels = rows(3)
    takes = NamedConditions({"condition": NamedCondition.label(classes=3, null=False)})
    with pytest.raises(ConditionError, match="trained without a null"):
        guided(FIELD, takes, x, t, labels, torch.full((3,), 2.0))


def test_an_unconditional_mixture_takes_no_label():
    x, t, labels = rows(3)
    with pytest.raises(ValueError, match="unconditional"):
        Mixture()(x, t, labels)
    assert Gaussian(GaussianConfig()).event_shape == (2,)


def test_projection_and_rescaling_are_the_formulas_of_their_papers() -> None:
    generator = torch.Generator().manual_seed(0)
    whole, other = torch.randn(2, 5, 3, 7, generator=generator).unbind(0)
    g, phi = 2.5, 0.7
    lines = torch.arange(5)
    further, rows = (Further(lines, torch.full((5,), g)),), torch.cat((other, whole))
    projection = Correction(lines, lines + 5)
    rescaling = Correction(lines, lines + 5, torch.full((5,), phi, dtype=torch.float64))

    s = (whole * other).flatten(1).sum(1) / other.flatten(1).square().sum(1)
    projected = (1 - g) * s[:, None, None] * other + g * whole
    torch.testing.assert_close(combined(rows, 5, further, projection), projected)
    plain = (1 - g) * other + g * whole
    ratio = whole.flatten(1).std(1) / plain.flatten(1).std(1)
    torch.testing.assert_close(
        combined(rows, 5, further, None, rescaling), plain * (phi * ratio + 1 - phi)[:, None, None]
    )
    both = combined(rows, 5, further, projection, rescaling)
    ratio = whole.flatten(1).std(1) / projected.flatten(1).std(1)
    torch.testing.assert_close(both, projected * (phi * ratio + 1 - phi)[:, None, None])
    for line in range(5):  # alone, a state has the bits that it has among others
        only, one = torch.tensor([0]), torch.stack((other[line], whole[line]))
        alone = combined(
            one,
            1,
            (Further(only, torch.tensor([g])),),
            Correction(only, only + 1),
            Correction(only, only + 1, torch.tensor([phi], dtype=torch.float64)),
        )
        assert torch.equal(alone[0], both[line])


def test_corrections_of_velocities_of_zero_are_finite() -> None:
    only, rows = torch.tensor([0]), torch.zeros(2, 4)
    rescaling = Correction(only, only + 1, torch.tensor([1.0], dtype=torch.float64))
    found = combined(rows, 1, (Further(only, torch.tensor([2.0])),), Correction(only, only + 1), rescaling)
    assert torch.equal(found, torch.zeros(1, 4))
