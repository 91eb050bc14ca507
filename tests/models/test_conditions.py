import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from models.architectures import build
from models.architectures.residual_mlp import ResidualMLP, ResidualMLPConfig
from models.checkpoint.card import CheckpointError
from models.checkpoint.loading import load
from models.checkpoint.saving import save
from models.condition_values import Values
from models.conditions import ONE, ConditionError, NamedCondition, NamedConditions, one_condition, tensors_of
from models.decoder import Decoder
from models.forms.rows import field_rows
from models.noise import noise
from models.velocity import VelocityError

LABEL = NamedCondition.label(classes=10)
NAMED = NamedCondition.label(classes=2, names=("cat", "dog"))
VECTOR = NamedCondition.vector(width=3)


def tensor(condition: NamedCondition, value: Any, rows: int, dtype: torch.dtype) -> Tensor:
    """Return a value as a request gives it, as the network takes it."""
    takes = NamedConditions({ONE: condition})
    return Values(takes, {ONE: value}, rows, dtype).tensors()[ONE].expanded(rows)


def network(condition: NamedCondition) -> ResidualMLP:
    torch.manual_seed(0)
    config = ResidualMLPConfig(dim=2, hidden=32, blocks=1, time_width=8, condition=condition)
    made = ResidualMLP(config).requires_grad_(False)
    if condition.classes is None and condition.nullable:
        made.embed_condition.null.add_(0.5)
    return made


def test_labels_for_all_or_for_each():
    assert tensor(LABEL, 3, 2, torch.float32).tolist() == [3, 3]
    assert tensor(LABEL, np.array([1, 9]), 2, torch.float32).tolist() == [1, 9]
    assert tensor(NAMED, ["dog", 0], 2, torch.float32).tolist() == [1, 0]
    assert tensor(NAMED, "dog", 1, torch.float32).dtype == torch.int64


@pytest.mark.parametrize("value", [-1, 10, True, 1.5, "three", None, {}, [1, 2, 3], [1, 10], [[1], [2]]])
def test_what_is_no_label_is_refused_with_what_is_allowed(value: Any):
    with pytest.raises(ConditionError, match=r"condition .*a class label, a whole number from 0 to 9"):
        tensor(LABEL, value, 2, torch.float32)


def test_an_unknown_name_lists_the_names():
    with pytest.raises(ConditionError, match=r'"cow".*or one of cat, dog'):
        tensor(NAMED, "cow", 1, torch.float32)


def test_vectors_for_all_or_for_each():
    assert tensor(VECTOR, [1, 2.0, 3], 2, torch.float64).tolist() == [[1, 2, 3], [1, 2, 3]]
    assert tensor(VECTOR, np.eye(3, dtype=np.float32), 3, torch.float32).dtype == torch.float32


@pytest.mark.parametrize(
    "value", [1, None, "abc", [1, 2], [1, 2, float("nan")], [1, 2, 1e300], [[1], [1, 2]], [True] * 3, []]
)
def test_what_is_no_vector_is_refused_with_what_is_allowed(value: Any):
    with pytest.raises(ConditionError, match=r"condition.*(a vector of 3 finite numbers|not finite)"):
        tensor(VECTOR, value, 2, torch.float32)


@pytest.mark.parametrize("condition", [LABEL, VECTOR])
def test_no_condition_is_the_null_and_each_condition_has_its_velocity(condition: NamedCondition):
    field = network(condition)
    x, t = noise(0, 0, 1, (2,)).expand(4, 2), torch.full((4,), 0.5)
    nulls = NamedConditions({ONE: condition}).nulls(x)
    assert torch.equal(field(x, t), field(x, t, nulls))
    assert isinstance(nulls, Tensor)
    v = field(x, t, torch.cat([condition.examples(3, torch.float32), nulls[:1]]))
    assert v.isfinite().all()
    assert len({tuple(row.tolist()) for row in v}) == 4


@pytest.mark.parametrize("condition", [LABEL, VECTOR])
def test_without_a_trained_null_a_condition_is_needed(condition: NamedCondition):
    field = network(condition.model_copy(update={"null": None}))
    x = noise(0, 0, 3, (2,))
    with pytest.raises(ConditionError, match="trained without a null"):
        field(x, x[:, 0])
    assert field(x, x[:, 0], condition.examples(3, torch.float32, nulls=False)).isfinite().all()


def test_a_condition_of_the_wrong_kind_names_what_is_taken():
    x = noise(0, 0, 3, (2,))
    with pytest.raises(ConditionError, match=r"takes torch.int64 of shape \(3,\)"):
        network(LABEL)(x, x[:, 0], x)
    with pytest.raises(ConditionError, match=r"takes torch.float32 of shape \(3, 3\)"):
        network(VECTOR)(x, x[:, 0], x)
    with pytest.raises(ConditionError, match=r"conditions are \['condition'\]; this model takes a tensor"):
        network(LABEL)(x, x[:, 0], {ONE: x})
    both = NamedConditions({"label": LABEL, "vector": VECTOR})
    for given, received in (({"label": x}, r"\['label'\]"), (x, "Tensor")):
        with pytest.raises(ConditionError, match=f"conditions are {received}; this model takes a dict with label, ve"):
            tensors_of(both, given, x)
    assert issubclass(ConditionError, VelocityError)


@pytest.mark.parametrize("condition", [LABEL, VECTOR])
def test_rows_of_conditional_networks_do_not_depend_on_their_neighbours(condition: NamedCondition):
    field = field_rows(network(condition), (2,), torch.float32, max_rows=128, condition=one_condition(condition))
    assert field.counts
    x, t, given = noise(5, 0, 130, (2,)), torch.linspace(0, 1, 130), condition.examples(130, torch.float32)
    whole = field(x, t, given)
    for rows in ([0], [3, 6, 129], list(range(20, 63))):
        assert torch.equal(field(x[rows], t[rows], given[rows]), whole[rows])


@pytest.mark.parametrize("condition", [NAMED, VECTOR])
def test_a_conditional_checkpoint_tells_its_condition(tmp_path: Path, condition: NamedCondition):
    folder = save(tmp_path, "m", network(condition), Decoder.identity((2,)), dataset={}, training={}, seed=0)
    loaded = load(folder)
    assert loaded.card.condition == condition
    x, given = noise(0, 0, 5, (2,)), condition.examples(5, torch.float32)
    assert torch.equal(loaded.velocity(x, x[:, 0], given), network(condition)(x, x[:, 0], given))
    card = folder / "card.json"
    fields = json.loads(card.read_text())
    del fields["card_sha256"]
    card.write_text(json.dumps({**fields, "conditions": {}}))
    with pytest.raises(CheckpointError, match="conditions: found None, the architecture has"):
        load(folder)


def test_names_must_fit():
    for names in (("a",), ("a", "a")):
        with pytest.raises(ValueError, match="classes is 2: give one name for each class"):
            NamedCondition.label(classes=2, names=names)


def test_unconditional_networks_have_the_weights_they_had():
    torch.manual_seed(0)
    before = ResidualMLP(ResidualMLPConfig(dim=2, hidden=8, blocks=1, time_width=8)).state_dict()
    torch.manual_seed(0)
    after = build(
        "residual_mlp", {"dim": 2, "hidden": 8, "blocks": 1, "time_width": 8, "condition": LABEL}
    ).state_dict()
    assert [key for key in after if key not in before] == ["embed_condition.table.weight"]
    assert all(torch.equal(before[key], after[key]) for key in before)
