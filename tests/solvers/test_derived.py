"""Fields derived from a velocity, against a linear one: v = A x + t, with dv/dx = A everywhere."""

import pytest
import torch
from torch import Tensor

from solvers.derived import (
    DerivedField,
    divergence,
    jacobian,
    jacobian_field,
    log_density_field,
    pullback,
    pulled_rows,
)
from solvers.errors import SolverError

A = torch.tensor([[1.0, 2.0, 0.0], [0.5, -3.0, 4.0], [0.0, 7.0, 0.25]], dtype=torch.float64)
GENERATOR = torch.Generator().manual_seed(0)
X = torch.randn(5, 3, generator=GENERATOR, dtype=torch.float64)
T = torch.linspace(0.0, 1.0, 5, dtype=torch.float64)
PROBES = torch.randint(0, 2, (4, 5, 3), generator=GENERATOR).double() * 2 - 1


def linear(x: Tensor, t: Tensor, condition: Tensor | None = None) -> Tensor:
    scale = 1.0 if condition is None else condition
    return scale * (x @ A.T) + t[:, None]


def test_a_pullback_and_the_jacobian_are_those_of_the_matrix():
    v, pull = pullback(linear, X, T)
    assert torch.equal(v, linear(X, T))
    torch.testing.assert_close(pull(PROBES[0]), PROBES[0] @ A)
    torch.testing.assert_close(jacobian(linear, X, T), A.expand(5, 3, 3))


def test_the_divergence_is_the_trace_and_its_estimate_the_quadratic_form():
    v, exact = divergence(linear, X, T)
    assert torch.equal(v, linear(X, T))
    torch.testing.assert_close(exact, A.trace().expand(5))
    for probes in (1, 4):
        _, estimate = divergence(linear, X, T, PROBES[:probes])
        torch.testing.assert_close(
            estimate, torch.einsum("pri,ij,prj->pr", PROBES[:probes], A, PROBES[:probes]).mean(0)
        )


def test_a_field_that_does_not_depend_on_the_state_has_no_derivative():
    def still(x: Tensor, t: Tensor) -> Tensor:
        return torch.ones_like(x) * t[:, None]

    assert torch.equal(divergence(still, X, T)[1], torch.zeros(5).double())
    assert torch.equal(jacobian(still, X, T), torch.zeros(5, 3, 3).double())


@pytest.mark.parametrize("probes", [0, 1, 4])
def test_rows_of_the_log_density_are_the_velocity_and_minus_the_divergence(probes: int):
    field = log_density_field((3,), probes)
    assert (field.width, field.constants) == (4, 3 * probes)
    rows = PROBES[:probes].transpose(0, 1).reshape(5, -1)
    rate = field(linear, torch.cat((X, torch.full((5, 1), 9.0), rows), dim=1), T)
    exact, estimate = divergence(linear, X, T)[1], divergence(linear, X, T, PROBES[: probes or 1])[1]
    assert torch.equal(rate[:, :3], linear(X, T))
    torch.testing.assert_close(rate[:, 3], -(estimate if probes else exact))
    assert torch.equal(rate[:, 4:], torch.zeros(5, 3 * probes).double())


def test_a_row_of_the_jacobian_is_the_rate_of_its_lane():
    field = jacobian_field((3,))
    place, row = X[:1].expand(3, 3), torch.arange(3).double()[:, None]
    query = torch.cat((torch.zeros(3, 3), place, torch.full((3, 1), 0.5), row), dim=1)
    rate = field(linear, query, torch.zeros(3).double())
    torch.testing.assert_close(rate[:, :3], A)
    assert torch.equal(rate[:, 3:], torch.zeros(3, 5).double())


@pytest.mark.parametrize("field", [log_density_field((3,)), log_density_field((3,), 1), jacobian_field((3,))])
def test_fields_are_evaluated_in_inference_mode_with_conditions_and_scale_with_the_velocity(field: DerivedField):
    noise = torch.randn(5, field.width + field.constants, generator=GENERATOR, dtype=torch.float64)
    with torch.inference_mode():
        query, t, condition = field.examples(noise.clone()), T.clone(), torch.full((5, 1), 2.0).double()
        found = field(linear, query, t, condition)
    assert found.shape == noise.shape
    doubled = field(lambda x, t: 2 * (x @ A.T) + t[:, None], query.clone(), t.clone())
    torch.testing.assert_close(found.clone(), doubled)


def test_pulled_rows_are_products_with_the_matrix():
    with torch.inference_mode():
        rows, condition = torch.stack((X, PROBES[0]), dim=1), torch.full((5, 1), 2.0).double()
        product = pulled_rows(linear, rows, T.clone(), condition)
    torch.testing.assert_close(product[:, 0].clone(), 2 * PROBES[0] @ A)
    assert torch.equal(product[:, 1], torch.zeros(5, 3).double())


def test_a_velocity_of_another_shape_is_refused():
    with pytest.raises(SolverError, match="must return a tensor like x"):
        pullback(lambda x, t: x[:, :1], X, T)
