"""The operations that a program may use: functions of ATen without side effects, and arithmetic of sizes.

A program may use those that torch tags as core or elementwise, and some that `torch.export` does not decompose.
Operations that change their arguments, draw random numbers, expose uninitialised memory or open files are not allowed.
"""

import operator
import re
from collections.abc import Callable
from functools import cache
from typing import Any

import torch

_TARGET = re.compile(r"torch\.ops\.aten\.([A-Za-z0-9_]+)\.([A-Za-z0-9_]+)")

_WHOLE = set(
    """
    _log_softmax _safe_softmax _softmax _to_copy _unsafe_view adaptive_avg_pool1d adaptive_avg_pool2d alias
    alpha_dropout arange avg_pool1d avg_pool2d baddbmm batch_norm broadcast_to celu chunk concat concatenate contiguous
    conv1d conv2d conv3d conv_transpose1d conv_transpose2d cumsum detach dropout einsum embedding expand_as
    eye tril triu feature_dropout flatten flip full group_norm hardsigmoid hardswish hstack instance_norm layer_norm
    leaky_relu lift_fresh lift_fresh_copy linear linspace log_softmax mT masked_fill matmul max_pool2d mean mish
    movedim nan_to_num narrow new_full new_ones new_zeros numpy_T one_hot ones ones_like outer pad pixel_shuffle
    pixel_unshuffle prelu repeat_interleave reshape reshape_as rms_norm roll rsub scaled_dot_product_attention
    selu silu softmax softplus split split_with_sizes square stack swapaxes threshold tile to transpose
    true_divide type_as unbind unflatten upsample_bicubic2d upsample_bilinear2d upsample_nearest1d
    upsample_nearest2d view_as vstack where zeros zeros_like
    """.split()  # noqa: SIM905  (a list of strings would take a hundred lines)
)
_FORBIDDEN = re.compile(
    r"from_file|empty|rand|bernoulli|normal_functional|multinomial|poisson|item|_local_scalar|nonzero"
)
_ONLY_AT_REST = ("dropout", "feature_dropout", "alpha_dropout")  # the third argument is True in training

_NUMBERS: dict[str, Callable[..., Any]] = {
    f"_operator.{name}": getattr(operator, name)
    for name in ("add", "sub", "mul", "floordiv", "truediv", "mod", "neg", "pow", "eq", "ne", "lt", "le", "gt", "ge")
}
_SIZES: dict[str, Callable[..., Any]] = {
    "torch.ops.aten.sym_size.int": lambda x, dim: x.shape[dim],
    "torch.ops.aten.sym_numel.default": lambda x: x.numel(),
}


class OperationError(ValueError):
    """An operation is unknown, or not allowed in a program."""


@cache
def operation(target: str) -> Callable[..., Any]:
    """Return the function named by a target of an exported graph.

    Raises:
        OperationError: programs may not use it; the message says why.
    """
    plain = _NUMBERS.get(target) or _SIZES.get(target)
    if plain is not None:
        return plain
    found = _TARGET.fullmatch(target)
    if found is None:
        raise OperationError(
            f"operation {target[:100]!r} is not an ATen operation; "
            "export with run_decompositions() and without control flow"
        )
    name, overload = found.groups()
    packet = getattr(torch.ops.aten, name, None)
    if packet is None or overload not in packet.overloads():
        raise OperationError(f"operation {target} is unknown to torch {torch.__version__}")
    function = getattr(packet, overload)
    if function._schema.is_mutable:
        raise OperationError(f"operation {target} changes its arguments; export with run_decompositions()")
    tags = {torch.Tag.core, torch.Tag.pointwise} & set(function.tags)
    if _FORBIDDEN.search(name) or not (tags or name in _WHOLE):
        raise OperationError(f"operation {target} is not among those that a program may use (see docs/models.md)")
    return _at_rest(function) if name in _ONLY_AT_REST else function


def _at_rest(function: Callable[..., Any]) -> Callable[..., Any]:
    def call(x: Any, p: Any, train: bool) -> Any:
        if train:
            raise OperationError("the program was exported in training mode; call eval() on the network first")
        return function(x, p, False)

    return call
