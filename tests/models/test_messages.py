"""Parts of error messages."""

import pytest
from pydantic import BaseModel, ConfigDict, ValidationError

from models.messages import explain, first_line, printable


class Card(BaseModel):
    model_config = ConfigDict(extra="forbid")

    size: int
    name: str


def fault(**fields: object) -> str:
    with pytest.raises(ValidationError) as caught:
        Card.model_validate(fields)
    return explain(caught.value)


def test_each_field_is_named_with_what_was_found():
    found = fault(size="many", other="hidden")
    assert found.startswith("size: Input should be a valid integer")
    assert "found 'many'; name: Field required; other: Extra inputs are not permitted" in found
    assert "hidden" not in found  # the content of an unknown field is not quoted


def test_many_and_long_faults_are_cut():
    assert fault(size="x" * 1000, name="n").endswith("'" + "x" * 56 + "...")
    many = fault(size=1, name="n", **{f"f{k}": k for k in range(30)})
    assert many.count("Extra inputs") == 20
    assert many.endswith("; and 10 more")


def test_the_first_line_of_an_error_or_its_type():
    assert first_line(ValueError("one\ntwo")) == "one"
    assert first_line(ValueError()) == "ValueError"
    assert first_line(ValueError("a\x1b[2J" + "b" * 5000)).startswith("'a\\x1b[2Jbbb")
    assert len(first_line(ValueError("b" * 5000))) == 1000


def test_names_fit_on_a_line():
    assert printable("moons") == "moons"
    assert printable("a\nb") == "'a\\nb'"
    assert printable("a" * 300) == "a" * 197 + "..."
