"""What is written of a model with usual fields."""

from pydantic import Field

from models.conditions import NamedCondition
from models.frozen import Sparse
from models.shapes import FreeAxis


class _Part(Sparse):
    unwritten = ("extra", "entries")

    name: str = "usual"
    extra: bool | int | None = None
    entries: dict[str, int] = Field(default_factory=dict)


def test_only_named_fields_are_left_out_and_only_at_their_defaults() -> None:
    assert _Part().model_dump() == {"name": "usual"}
    assert _Part(extra=False, entries={"a": 1}).model_dump() == {"name": "usual", "extra": False, "entries": {"a": 1}}
    assert _Part(extra=0).model_dump_json() == '{"name":"usual","extra":0}'


def test_parts_of_cards() -> None:
    assert FreeAxis(max=9).model_dump() == {"max": 9}
    assert NamedCondition(null=0).model_dump(mode="json") == {"dtype": "float32", "shape": [], "null": 0}
