"""Steps: results that do not fit into memory are refused before they are made; failures name the step."""

from typing import Any
from weakref import ref

import pytest
import torch
from pydantic import ValidationError
from torch.utils._python_dispatch import TorchDispatchMode

from models.program.steps import Function, FunctionConfig, Step
from models.velocity import VelocityError


def program(*steps: tuple[str, tuple[Any, ...]]) -> Function:
    """A function of x, each step of which is called y1, y2, ...; the last is its result."""
    listed = tuple(Step(op=op, args=args, out=(f"y{k}",)) for k, (op, args) in enumerate(steps, 1))
    return Function(FunctionConfig(inputs={"x": "float32"}, outputs={"y": f"y{len(steps)}"}, tensors={}, steps=listed))


X: Any = {"value": "c_x"}
SIZE = ("torch.ops.aten.sym_size.int", ({"value": "c_x"}, 1))


def test_results_beyond_memory_are_refused_before_they_are_made() -> None:
    many = program(("torch.ops.aten.full.default", ([1 << 40], 1.0)), ("torch.ops.aten.add.Tensor", (X, X)))
    with pytest.raises(VelocityError, match=r"step y1 \(torch.ops.aten.full.default\) would bring .* MiB are allowed"):
        many({"x": torch.ones(2, 3)})


def test_the_size_of_a_request_counts() -> None:
    squared = program(
        ("torch.ops.aten.unsqueeze.default", (X, 1)),
        ("torch.ops.aten.unsqueeze.default", (X, 2)),
        ("torch.ops.aten.mul.Tensor", ({"value": "y1"}, {"value": "y2"})),
        ("torch.ops.aten.sum.dim_IntList", ({"value": "y3"}, [2])),
    )
    assert squared({"x": torch.ones(2, 3)})["y"].tolist() == [[3.0] * 3] * 2
    with pytest.raises(VelocityError, match="y3"):
        squared({"x": torch.ones(1, 40_000)})
    assert squared({"x": torch.ones(4, 3)})["y"].shape == (4, 3)


def test_views_and_results_that_are_used_no_more_take_no_memory() -> None:
    expanded = ("torch.ops.aten.expand.default", (X, [1 << 20, 1 << 20]))
    flat = program(expanded, ("torch.ops.aten.select.int", ({"value": "y1"}, 0, 0)))
    assert flat({"x": torch.ones(1, 1)})["y"].shape == (1 << 20,)
    longer = [("torch.ops.aten.add.Tensor", ({"value": f"y{k}"}, 1.0)) for k in range(1, 2000)]
    chain = program(("torch.ops.aten.add.Tensor", (X, 1.0)), *longer)
    assert chain({"x": torch.zeros(1, 1 << 20)})["y"].mean() == 2000


class Results(TorchDispatchMode):
    """Counts the results that are held at one time."""

    def __init__(self) -> None:
        super().__init__()
        self.held, self.most = list[Any](), 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        self.held = [held for held in (*self.held, ref(result)) if held() is not None]
        self.most = max(self.most, len(self.held))
        return result


def test_results_are_freed_once_no_step_uses_them() -> None:
    longer = [("torch.ops.aten.add.Tensor", ({"value": f"y{k}"}, 1.0)) for k in range(1, 50)]
    chain = program(("torch.ops.aten.add.Tensor", (X, 1.0)), *longer)
    with Results() as results:
        assert chain({"x": torch.zeros(1, 3)})["y"].tolist() == [[50.0] * 3]
    assert results.most <= 3


def test_powers_of_sizes_end_at_once() -> None:
    powers = program(SIZE, ("_operator.pow", ({"value": "y1"}, 10**12)), ("torch.ops.aten.add.Tensor", (X, X)))
    with pytest.raises(VelocityError, match=r"step y2 .*64 bits"):
        powers({"x": torch.ones(1, 3)})


def test_a_division_by_zero_names_its_step() -> None:
    divided = program(("_operator.floordiv", (1, 0)), ("torch.ops.aten.add.Tensor", (X, X)))
    with pytest.raises(VelocityError, match=r"step y1 \(_operator.floordiv\)"):
        divided({"x": torch.ones(1, 3)})


def test_an_argument_that_torch_asserts_names_its_step() -> None:
    with pytest.raises(VelocityError, match=r"step y1 \(torch.ops.aten._softmax.default\): half_to_float"):
        program(("torch.ops.aten._softmax.default", (X, 1, True)))({"x": torch.ones(1, 2)})


def test_a_label_out_of_range_says_what_to_declare() -> None:
    table = FunctionConfig(
        inputs={"x": "int64"},
        outputs={"y": "y1"},
        tensors={"w": {"shape": (3, 2), "dtype": "float32"}},  # pyright: ignore[reportArgumentType]
        steps=(Step(op="torch.ops.aten.embedding.default", args=({"value": "w"}, X), out=("y1",)),),
    )
    with pytest.raises(VelocityError, match="declare the number of labels as `classes`"):
        Function(table)({"x": torch.tensor([7])})


@pytest.mark.parametrize("argument", ["a", ["a"], None])
def test_arithmetic_of_text_is_refused_in_the_card(argument: Any) -> None:
    with pytest.raises(ValidationError, match="takes numbers only"):
        program(("_operator.mul", (argument, 5)))


@pytest.mark.parametrize("number", [1.0, [1.0], ["a", 0.0], [1.0, 2.0, 3.0]])
def test_a_complex_number_has_two_parts(number: Any) -> None:
    turned = program(
        ("torch.ops.aten.mul.Tensor", (X, {"complex": [0.0, 2.0]})), ("torch.ops.aten.abs.default", ({"value": "y1"},))
    )
    assert turned({"x": -torch.ones(1, 1)})["y"].tolist() == [[2.0]]
    with pytest.raises(ValidationError, match="an argument is"):
        program(("torch.ops.aten.mul.Tensor", (X, {"complex": number})))
