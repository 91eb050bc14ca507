"""The operations of programs: none reads memory that it should not, none is random, none runs away."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from models.importing.programs import read_function
from models.program.aten import operation
from models.program.steps import Function, FunctionConfig

ONES = torch.ones


@pytest.mark.parametrize(
    "name",
    [
        "max_pool2d_with_indices_backward.default",
        "embedding_dense_backward.default",
        "_native_batch_norm_legit.no_stats",
        "_embedding_bag.default",
        "as_strided.default",
        "sym_stride.int",
        "native_dropout.default",
        "rrelu.default",
        "bernoulli.p",
        "randn_like.default",
        "empty_like.default",
        "new_empty.default",
        "special_chebyshev_polynomial_t.n_scalar",
        "masked_select.default",
        "nonzero.default",
        "item.default",
    ],
)
def test_what_is_not_listed_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="not among those that a program may use"):
        operation(f"torch.ops.aten.{name}")


@pytest.mark.parametrize(
    "name", ["remainder.int", "remainder.default", "mul.left_t", "add.t", "pow.int", "to.prim_dtype"]
)
def test_arithmetic_of_bare_numbers_and_lists_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="makes no tensors"):
        operation(f"torch.ops.aten.{name}")


@pytest.mark.parametrize(
    ("name", "arguments", "named", "message"),
    [
        (
            "_native_batch_norm_legit_no_training.default",
            (ONES(2, 5000, 2), None, None, ONES(1), ONES(1), 0.1, 1e-5),
            {},
            r"running_mean has shape \[1\], and there are 5000 channels",
        ),
        (
            "_native_batch_norm_legit_no_training.default",
            (ONES(2, 3, 2), ONES(2), None, ONES(3), ONES(3), 0.1, 1e-5),
            {},
            "weight has shape",
        ),
        ("native_group_norm.default", (ONES(2, 4, 3), None, None, 2, 4, 3000, 2, 1e-5), {}, "of 4 channels of 3000"),
        ("upsample_nearest1d.default", (ONES(1, 1, 4), [8], 1e-30), {}, "a scale of 1e-30"),
        ("upsample_bilinear2d.default", (ONES(1, 1, 4, 4), [8, 8], False), {"scales_w": -1.0}, "a scale of -1"),
        ("grid_sampler_2d.default", (ONES(1, 1, 4, 4), ONES(1, 2, 2, 2), 7, 0, False), {}, "they are 0, 1 or 2"),
        ("_fft_c2r.default", (ONES(3, dtype=torch.complex64), [0], 0, 1000), {}, "do not make 1000 numbers"),
        ("_fft_r2c.default", (ONES(3), [7], 0, True), {}, "dimensions"),
        ("_to_copy.default", (ONES(2),), {"dtype": 1000}, "dtype is the number 1000; it must be a type or a format"),
        ("softmax.int", (ONES(2), 0, 1000), {}, "dtype is the number 1000"),
        ("clone.default", (ONES(2),), {"memory_format": 99}, "memory_format is the number 99"),
        ("zeros.default", ([2],), {"dtype": True}, "dtype is the number True"),
        ("_fft_c2c.default", (ONES(3, dtype=torch.complex64), [1], 0, True), {}, "dimensions"),
        ("upsample_trilinear3d.default", (ONES(1, 1, 2, 2, 2), [4, 4, 4], False, 1e-30), {}, "a scale of 1e-30"),
        ("batch_norm.default", (ONES(2, 3), None, None, None, None, True, 0.1, 1e-5, False), {}, "training mode"),
        ("dropout.default", (ONES(2), 0.5, True), {}, "training mode"),
        ("alpha_dropout.default", (ONES(2), 0.5), {"train": True}, "training mode"),
        (
            "scaled_dot_product_attention.default",
            (ONES(1, 1, 2, 4),) * 3,
            {"dropout_p": 0.1},
            "attention has dropout",
        ),
        ("div.Tensor_mode", (ONES(1).long(), -ONES(1).long()), {"rounding_mode": "trunc"}, "round down"),
    ],
)
def test_arguments_that_kernels_trust_are_checked(
    name: str, arguments: tuple[Any, ...], named: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        operation(f"torch.ops.aten.{name}")(*arguments, **named)


def test_good_arguments_pass_the_checks() -> None:
    x = torch.randn(2, 4, 3)
    norm = operation("torch.ops.aten._native_batch_norm_legit_no_training.default")
    found = norm(x, None, None, torch.zeros(4), ONES(4), 0.1, 0.0)[0]
    assert torch.equal(found, x)
    assert operation("torch.ops.aten.native_group_norm.default")(x, None, None, 2, 4, 3, 2, 1e-5)[0].shape == x.shape
    assert operation("torch.ops.aten.upsample_nearest1d.default")(x, [7], 2.4).shape == (2, 4, 7)
    assert operation("torch.ops.aten.upsample_nearest2d.vec")(x[None], None, [2.0, 3.0]).shape == (1, 2, 8, 9)
    spectrum = operation("torch.ops.aten._fft_r2c.default")(x, [2], 0, True)
    torch.testing.assert_close(operation("torch.ops.aten._fft_c2r.default")(spectrum, [2], 2, 3), x)


@pytest.mark.parametrize(
    ("function", "arguments"),
    [
        (lambda x: torch.fft.irfft(torch.fft.rfft(x, dim=1) * 2, n=8, dim=1), (8,)),
        (lambda x: torch.fft.ifft2(torch.fft.fft2(x)).real, (4, 6)),
        (lambda x: torch.stft(x, 8, window=torch.hann_window(8), return_complex=True).abs(), (32,)),
        (lambda x: torch.nn.functional.interpolate(x, scale_factor=2, mode="trilinear"), (2, 3, 4, 2)),
        (lambda x: torch.nn.functional.interpolate(x, size=9, mode="linear"), (2, 5)),
        (lambda x: torch.cummax(x, 1).values + torch.cummin(x, 1).values + torch.logcumsumexp(x, 1), (6,)),
        (lambda x: torch.linalg.solve(x @ x.mT + torch.eye(3), x), (3, 3)),
    ],
    ids=["rfft", "fft2", "stft", "trilinear", "linear", "cummax", "solve"],
)
def test_networks_of_these_operations_are_exported_read_and_run(
    tmp_path: Path, function: Callable[[Tensor], Tensor], arguments: tuple[int, ...]
) -> None:
    class Module(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return function(x)

    x, rows = torch.randn(3, *arguments), torch.export.Dim("rows", min=1, max=64)
    torch.export.save(torch.export.export(Module(), (x,), dynamic_shapes=({0: rows},)), tmp_path / "net.pt2")
    read = read_function(tmp_path / "net.pt2", ["data"], ["x"])
    program = Function(FunctionConfig.model_validate(read.config))
    program.load_state_dict({f"data_{name}": tensor for name, tensor in read.tensors.items()})
    torch.testing.assert_close(program({"x": x})["data"], function(x))


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("torch.ops.flash_attn.forward.default", "a custom operation of 'flash_attn'.*torch's own operations"),
        ("torch.ops.higher_order.cond", "without control flow, such as torch.cond"),
        ("torch.ops.aten._native_batch_norm_legit_functional.default", r"in training mode: call eval\(\)"),
        ("torch.ops.aten.add_.Tensor", r"changes its arguments; call eval\(\)"),
    ],
)
def test_a_refusal_says_what_helps(target: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        operation(target)


@pytest.mark.parametrize(
    ("name", "numbers"),
    [("pow", (10, 10**9)), ("pow", (2, 64)), ("mul", (2**40, 2**40)), ("add", (2**63 - 1, 1)), ("sub", (-(2**63), 1))],
)
def test_integers_fit_into_64_bits(name: str, numbers: tuple[int, int]) -> None:
    with pytest.raises(ValueError, match="64 bits"):
        operation(f"_operator.{name}")(*numbers)


@pytest.mark.parametrize("value", ["a", [0], (1,), ONES(1), None])
def test_arithmetic_takes_numbers_only(value: Any) -> None:
    with pytest.raises(ValueError, match="takes numbers"):
        operation("_operator.mul")(value, 5)


def test_arithmetic_of_sizes_works() -> None:
    results = [operation(f"_operator.{name}")(7, 2) for name in ("add", "floordiv", "mod", "pow", "truediv", "lt")]
    assert results == [9, 3, 1, 49, 3.5, False]
    assert operation("_operator.pow")(-2, 63) == -(2**63)
