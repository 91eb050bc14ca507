"""Preludes: their cards, their results, and the distinct rows on which they run."""

from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch
from pydantic import ValidationError

from models.checkpoint.card import CheckpointError, read_card
from models.checkpoint.loading import Checkpoint, load
from models.checkpoint.saving import save
from models.condition_values import Distinct
from models.conditions import ConditionError, NamedCondition, NamedConditions
from models.prelude import Prelude, PreludeCard, combinations
from models.program.network import ProgramConfig
from models.program.steps import FunctionConfig

IMAGE = NamedCondition(shape=(4,))
TOKENS = NamedCondition(shape=(2,))
STATE = NamedCondition(shape=(3,))
ADD = "torch.ops.aten.add.Tensor"
NARROW = "torch.ops.aten.narrow.default"


def program(length: int = 2, op: str = NARROW, **more: Any) -> FunctionConfig:
    """The first numbers of `image`, under the name `tokens`."""
    step = {"op": op, "args": [{"value": "c_image"}, 1, 0, length], "out": ["v"]}
    fields: dict[str, Any] = {"inputs": {"image": "float32"}, "outputs": {"tokens": "v"}, "tensors": {}}
    return FunctionConfig.model_validate(fields | {"steps": [step]} | more)


def step(op: str, *values: str, out: str) -> dict[str, Any]:
    return {"op": op, "args": [{"value": value} for value in values], "out": [out]}


NOT = "torch.ops.aten.bitwise_not.default"
FIRST = {"op": NARROW, "args": [{"value": "w"}, 1, 0, 2], "out": ["v"]}
MEAN = {"op": "torch.ops.aten.mean.dim", "args": [{"value": "c_image"}, [0], True], "out": ["m"]}
SWAPPED = program(inputs={"tokens": "float32"}, steps=[], outputs={"tokens": "c_tokens"})


def card(**more: Any) -> PreludeCard:
    return PreludeCard(**({"conditions": {"image": IMAGE}, "program": program()} | more))


def network() -> ProgramConfig:
    """A velocity (rows, 2): x + tokens."""
    step = {"op": ADD, "args": [{"value": "x"}, {"value": "c_tokens"}], "out": ["v"]}
    return ProgramConfig.model_validate(
        {"event_shape": [2], "dtype": "float32", "tensors": {}, "steps": [step], "output": "v"}
        | {"conditions": {"tokens": TOKENS, "state": STATE}}
    )


def saved(folder: Path, prelude: PreludeCard) -> Path:
    from models.decoder import Decoder

    model = network().build().eval()
    kept = Prelude(prelude)
    message: dict[str, Any] = {"dataset": {"name": "none"}, "training": {}, "seed": 0, "dtype": torch.float32}
    return save(folder, "pre", model, Decoder.identity((2,)), prelude=kept, **message)


def test_requests_give_what_the_prelude_takes_and_what_it_does_not_make() -> None:
    requested = card().request_conditions({"tokens": TOKENS, "state": STATE})
    assert requested == {"image": IMAGE, "state": STATE}


@pytest.mark.parametrize(
    ("changed", "taken", "message"),
    [
        ({}, {"state": STATE}, "makes 'tokens', which is not a condition of the network"),
        (
            {},
            {"tokens": NamedCondition(shape=(2,), null="zeros")},
            "declare null, default, mean and scale for",
        ),
        ({}, {"tokens": TOKENS, "image": STATE}, "take 'image' in different ways"),
        ({}, {"tokens": NamedCondition(shape=("L",), max={"L": 4})}, "axis L of tokens is in no condition"),
        ({"conditions": {"tokens": IMAGE}, "program": SWAPPED}, {"tokens": TOKENS}, "takes and makes 'tokens'"),
    ],
)
def test_what_does_not_fit_is_refused(changed: dict[str, Any], taken: dict[str, NamedCondition], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        card(**changed).request_conditions(taken)


def test_a_prelude_for_inputs_that_it_does_not_have_is_refused() -> None:
    with pytest.raises(ValidationError, match="program takes image, but its conditions are image, state"):
        card(conditions={"image": IMAGE, "state": STATE})


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"steps": [{"op": "torch.ops.aten.rand.default", "args": [[2]], "out": ["v"]}]}, "not among those"),
        ({"steps": [{"op": ADD, "args": [{"value": "x"}, 1], "out": ["v"]}]}, "uses 'x', which is not known yet"),
        ({"outputs": {"tokens": "w"}}, "output is 'w', which no step produces"),
        ({"inputs": {"image": "string"}}, "which programs cannot take"),
        ({"rows": (0, 1)}, "rows are"),
    ],
)
def test_programs_of_functions_are_checked(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        program(**fields)


def test_a_checkpoint_has_its_prelude(tmp_path: Path) -> None:
    found = load(saved(tmp_path, card()))
    assert isinstance(found.request_conditions, NamedConditions)
    assert set(found.request_conditions.entries) == {"image", "state"}
    assert isinstance(found.network_conditions, NamedConditions)
    assert set(found.network_conditions.entries) == {"tokens", "state"}
    made = found.examples(3)
    assert isinstance(made, dict)
    shown = found.request_conditions.examples(3, torch.float32)
    assert torch.equal(made["tokens"], cast("dict[str, torch.Tensor]", shown)["image"][:, :2])


@pytest.mark.parametrize(
    ("made", "message"),
    [
        (program(3), r"tokens as torch.float32 of shape .3.; the network takes torch.float32 of shape .2."),
        (program(5), r"step v .torch.ops.aten.narrow"),
        (program(steps=[step(NOT, "c_image", out="v")]), "step v"),
        (program(steps=[step("torch.ops.aten.log.default", "c_image", out="w"), FIRST]), "not finite"),
        (program(steps=[MEAN, step(ADD, "c_image", "m", out="w"), FIRST]), "the prelude mixes rows"),
    ],
)
def test_a_prelude_that_does_not_do_what_it_says_is_refused_when_it_is_loaded(
    tmp_path: Path, made: FunctionConfig, message: str
) -> None:
    with pytest.raises(CheckpointError, match=message):
        load(saved(tmp_path, card(program=made)))


def test_a_truncated_card_is_refused(tmp_path: Path) -> None:
    folder = saved(tmp_path, card())
    text = (folder / "card.json").read_text()
    (folder / "card.json").write_text(text[: text.index('"steps"')])
    with pytest.raises(CheckpointError, match="JSON"):
        read_card(folder)


def test_cards_without_a_prelude_do_not_speak_of_one(tmp_path: Path) -> None:
    from models.decoder import Decoder

    message: dict[str, Any] = {"dataset": {"name": "none"}, "training": {}, "seed": 0, "dtype": torch.float32}
    folder = save(tmp_path, "pre", network().build().eval(), Decoder.identity((2,)), **message)
    assert '"prelude"' not in (folder / "card.json").read_text()
    assert '"program": null' not in (folder / "card.json").read_text()


def test_a_result_of_another_shape_is_named(tmp_path: Path) -> None:
    found: Checkpoint = load(saved(tmp_path, card()))
    assert found.prelude is not None
    other = NamedConditions({"tokens": NamedCondition(shape=(9,)), "state": STATE})
    with pytest.raises(ConditionError, match=r"made tokens as .* the network takes .* of shape .9."):
        found.prelude.call(other, torch.zeros(1, 4))


def test_combinations_are_told_apart_and_held_once() -> None:
    image = Distinct(torch.tensor([[1.0], [2.0], [1.0]]), np.array([0, 1, 2, 0]))
    state = Distinct(torch.tensor([[5.0], [6.0]]), np.array([0, 0, 0, 1]))
    both = Distinct(torch.tensor([[7.0]]))
    rows, place = combinations({"image": image, "state": state, "both": both}, ("image", "state", "both"))
    assert place is not None
    assert len(rows[0]) == 3
    for name, each in zip(("image", "state", "both"), rows, strict=True):
        arguments = {"image": image, "state": state, "both": both}[name]
        assert torch.equal(each[torch.from_numpy(place)], arguments.expanded(4))
    rows, place = combinations({"both": both, "state": replace(state, index=None)}, ("both", "state"))
    assert place is None
    assert [each.tolist() for each in rows] == [[[7.0]], [[5.0]]]
