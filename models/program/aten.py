"""The operations that a program may use: functions of ATen that only compute, and arithmetic of sizes.

The list is explicit, and each entry was reviewed: it changes no argument, draws no random number, opens no file,
exposes no memory that it has not written, and checks its arguments, or is checked here (`_CHECKS`). No gradients are
among them, as they trust their indices, and nothing that loops as often as an argument says.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable
from functools import cache
from typing import Any

import torch

_KIND = re.compile(r"(Optional\[)?(ScalarType|MemoryFormat|Layout)\]?")
_TARGET = re.compile(r"torch\.ops\.aten\.([A-Za-z0-9_]+)\.([A-Za-z0-9_]+)")

_NAMES = frozenset(
    """
    __lshift__ __rshift__ __xor__ abs acos acosh add addcdiv addcmul angle asin asinh atan atan2 atanh bitwise_and
    bitwise_left_shift bitwise_not bitwise_or bitwise_right_shift bitwise_xor ceil celu clamp clamp_max clamp_min clip
    conj_physical copy copysign cos cosh deg2rad digamma div elu eq erf erfc erfinv exp exp2 expm1 fill floor fmax fmin
    fmod frac frexp gcd ge gelu gt hardshrink hardsigmoid hardswish hardtanh heaviside hypot i0 igamma igammac isfinite
    isinf isnan isneginf isposinf lcm ldexp le leaky_relu lerp lgamma log log10 log1p log2 logaddexp logaddexp2
    logical_and logical_not logical_or logical_xor logit lt masked_fill maximum minimum mish mul nan_to_num ne neg
    nextafter positive pow prelu rad2deg reciprocal relu relu6 remainder round rsqrt rsub selu sgn sigmoid sign signbit
    silu sin sinc sinh softplus softshrink special_entr special_erfcx special_i0e special_i1 special_i1e
    special_log_ndtr special_ndtri special_xlog1py sqrt square sub tan tanh threshold true_divide trunc where xlogy

    _log_softmax _safe_softmax _softmax all amax amin any argmax argmin cummax cummin cumprod cumsum log_softmax
    logcumsumexp max mean min prod softmax sort sum topk var

    addmm baddbmm bmm einsum linear matmul mm outer _cdist_forward scaled_dot_product_attention
    _linalg_solve_ex linalg_solve
    conv1d conv2d conv3d conv_transpose1d conv_transpose2d convolution embedding
    _adaptive_avg_pool2d _adaptive_avg_pool3d adaptive_avg_pool1d adaptive_avg_pool2d avg_pool1d avg_pool2d avg_pool3d
    max_pool2d max_pool2d_with_indices max_pool3d_with_indices grid_sampler_2d
    upsample_bicubic2d upsample_bilinear2d upsample_linear1d upsample_nearest1d upsample_nearest2d upsample_nearest3d
    upsample_trilinear3d
    _conj complex imag polar real view_as_complex view_as_real
    _fft_c2c _fft_c2r _fft_r2c fft_fft fft_fft2 fft_fftn fft_ifft fft_ifft2 fft_ifftn fft_irfft fft_irfft2 fft_irfftn
    fft_rfft fft_rfft2 fft_rfftn hann_window istft stft
    _native_batch_norm_legit_no_training batch_norm group_norm instance_norm layer_norm
    native_group_norm native_layer_norm rms_norm alpha_dropout dropout feature_dropout

    _to_copy _unsafe_view alias broadcast_to cat chunk clone col2im concat concatenate constant_pad_nd contiguous detach
    diagonal expand expand_as flatten flip gather hstack index index_put index_select lift_fresh lift_fresh_copy
    mT masked_scatter meshgrid movedim narrow numpy_T pad permute pixel_shuffle pixel_unshuffle reflection_pad1d
    reflection_pad2d reflection_pad3d repeat repeat_interleave replication_pad2d replication_pad3d reshape reshape_as
    roll scatter scatter_add scatter_reduce select select_scatter slice slice_scatter split split_with_sizes squeeze
    stack swapaxes tile to transpose tril triu type_as unbind unflatten unsqueeze view view_as vstack

    arange eye full full_like linspace new_full new_ones new_zeros one_hot ones ones_like scalar_tensor zeros zeros_like
    """.split()  # noqa: SIM905  (a list of strings would take a hundred lines)
)

LARGEST = 2**63
"""Integers of a program are smaller than this, and not below its negative."""


def _bounded(function: Callable[..., Any]) -> Callable[..., Any]:
    """Arithmetic of numbers whose results fit into 64 bits."""

    def call(*numbers: Any) -> Any:
        for number in numbers:
            if not isinstance(number, int | float | torch.SymInt):
                raise ValueError(f"arithmetic of sizes takes numbers, not {type(number).__name__}")
        if function is operator.pow and all(isinstance(number, int) for number in numbers):
            base, exponent = numbers
            if exponent > 63 and abs(base) > 1:  # before it is computed: that can take hours
                raise ValueError(f"{base} to the power of {exponent} does not fit into 64 bits")
        result = function(*numbers)
        if isinstance(result, int) and not -LARGEST <= result < LARGEST:
            raise ValueError("an integer does not fit into 64 bits")
        return result

    return call


_SIZES: dict[str, Callable[..., Any]] = {
    f"_operator.{name}": _bounded(getattr(operator, name))
    for name in ("add", "sub", "mul", "floordiv", "truediv", "mod", "neg", "pow", "eq", "ne", "lt", "le", "gt", "ge")
} | {
    "torch.ops.aten.sym_size.int": lambda x, dim: x.shape[dim],
    "torch.ops.aten.sym_numel.default": lambda x: x.numel(),
}
"""Sizes and arithmetic of them."""

_TRAINING = re.compile(
    "(_native_batch_norm_legit|_batch_norm_with_update)(_functional)?|native_batch_norm|native_dropout"
)
"""Operations of networks in training mode."""


def _remedy(target: str) -> str:
    """Return what helps with an operation that is not ATen's."""
    parts = target.split(".")
    if target.startswith("torch.ops.higher_order."):
        return "write the network without control flow, such as torch.cond"
    if target.startswith("torch.ops.") and len(parts) > 3:
        return (
            f"it is a custom operation of {parts[2][:40]!r}, whose code is not in the file: write it with torch's own "
            "operations, or let the network take its plain path before the export"
        )
    return "export with run_decompositions() and without control flow"


@cache
def operation(target: str) -> Callable[..., Any]:
    """Return the function named by a target of an exported graph.

    Raises:
        ValueError: programs may not use it; the message says why.
    """
    if target in _SIZES:
        return _SIZES[target]
    parts = _TARGET.fullmatch(target)
    if parts is None:
        raise ValueError(f"operation {target[:100]!r} is not an ATen operation; {_remedy(target)}")
    name, overload = parts.groups()
    packet = getattr(torch.ops.aten, name, None)
    if packet is None or overload not in packet.overloads():
        raise ValueError(f"operation {target} is unknown to torch {torch.__version__}")
    function = getattr(packet, overload)
    if function._schema.is_mutable:
        raise ValueError(
            f"operation {target} changes its arguments; call eval() on the network and export with run_decompositions()"
        )
    if name not in _NAMES or any(argument.name == "generator" for argument in function._schema.arguments):
        training = "; the network is in training mode: call eval() on it before the export" * bool(
            _TRAINING.fullmatch(name)
        )
        raise ValueError(f"operation {target} is not among those that a program may use (see docs/import.md){training}")
    if overload.startswith("prim_") or not all("Tensor" in str(result.type) for result in function._schema.returns):
        raise ValueError(f"operation {target} makes no tensors, or belongs to TorchScript; use _operator for numbers")
    return _checked(function, _CHECKS.get(name))


def _checked(function: Any, check: Callable[..., None] | None) -> Callable[..., Any]:
    """The same function, after a look at its arguments by name.

    Types and memory formats are numbers inside of torch, and a number that stands for none of them ends the process.
    """
    arguments = function._schema.arguments
    names = [argument.name for argument in arguments]
    kinds = [argument.name for argument in arguments if _KIND.fullmatch(str(argument.real_type))]
    if not kinds and check is None:
        return function

    def call(*args: Any, **kwargs: Any) -> Any:
        values = {**dict(zip(names, args, strict=False)), **kwargs}
        for name in kinds:
            if isinstance(value := values.get(name), int | float | torch.SymInt):
                raise ValueError(f"{name} is the number {value}; it must be a type or a format by name")
        if check is not None:
            check(**values)
        return function(*args, **kwargs)

    call._schema, call.is_view = function._schema, function.is_view  # type: ignore[attr-defined]
    return call


def _not_in_training(train: bool = False, training: bool = False, dropout_p: float = 0.0, **_: Any) -> None:
    if train or training:
        raise ValueError("the program was exported in training mode; call eval() on the network first")
    if dropout_p:
        raise ValueError("attention has dropout; call eval() on the network before the export")


def _sizes_of_statistics(input: Any, **arguments: Any) -> None:  # noqa: A002  (ATen's name)
    """Kernels of batch normalization read as many statistics as there are channels, however many there are."""
    channels = input.shape[1]
    for name in ("weight", "bias", "running_mean", "running_var"):
        tensor = arguments.get(name)
        if tensor is not None and tuple(tensor.shape) != (channels,):
            raise ValueError(f"{name} has shape {list(tensor.shape)}, and there are {channels} channels")


def _sizes_of_groups(input: Any, N: int, C: int, HxW: int, **_: Any) -> None:  # noqa: A002  (ATen's names)
    if input.numel() != N * C * HxW or input.shape[:2] != (N, C):
        raise ValueError(f"states have shape {list(input.shape)}, not {N} rows of {C} channels of {HxW}")


def _known_scales(**arguments: Any) -> None:
    """A scale beside the size of the result decides which numbers are read, so the two must agree."""
    scales = [arguments[name] for name in ("scales", "scales_d", "scales_h", "scales_w") if name in arguments]
    if not scales:
        return
    for scale, size, before in zip(
        scales, arguments["output_size"], arguments["self"].shape[-len(scales) :], strict=False
    ):
        if scale is not None and not (scale > 0 and before * scale - 1 < size <= before * scale + 1):
            raise ValueError(f"a scale of {scale} does not lead from {before} to {size}")


def _dimensions(self: Any, dim: list[int], last_dim_size: int | None = None, **_: Any) -> None:
    """Transforms trust their dimensions and the length of the result."""
    if not dim or len(set(dim)) < len(dim) or not all(0 <= axis < self.ndim for axis in dim):
        raise ValueError(f"dimensions {dim} of a transform of {self.ndim}")
    if last_dim_size is not None and self.shape[dim[-1]] != last_dim_size // 2 + 1:
        raise ValueError(f"{self.shape[dim[-1]]} frequencies do not make {last_dim_size} numbers")


def _known_modes(interpolation_mode: int, padding_mode: int, **_: Any) -> None:
    """With another mode the kernel writes nothing."""
    if interpolation_mode not in (0, 1, 2) or padding_mode not in (0, 1, 2):
        raise ValueError(f"modes of sampling are {interpolation_mode} and {padding_mode}; they are 0, 1 or 2")


def _no_truncated_integers(self: Any, rounding_mode: str | None = None, **_: Any) -> None:
    """The smallest integer divided by -1 ends the process, unless rounding is down."""
    if rounding_mode == "trunc" and not self.is_floating_point():
        raise ValueError("integers are divided with rounding to zero; round down (//) instead")


_CHECKS: dict[str, Callable[..., None]] = {
    **dict.fromkeys(
        ("dropout", "feature_dropout", "alpha_dropout", "batch_norm", "scaled_dot_product_attention"), _not_in_training
    ),
    "_native_batch_norm_legit_no_training": _sizes_of_statistics,
    "native_group_norm": _sizes_of_groups,
    **dict.fromkeys((name for name in _NAMES if name.startswith("upsample_")), _known_scales),
    **dict.fromkeys(("_fft_c2c", "_fft_c2r", "_fft_r2c"), _dimensions),
    "grid_sampler_2d": _known_modes,
    "div": _no_truncated_integers,
}
