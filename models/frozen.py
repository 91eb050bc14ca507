"""The bases of what cards and the files beside them hold: pydantic models that never change, and their JSON."""

import hashlib
import json
from collections.abc import Iterable
from typing import Any, ClassVar

from pydantic import BaseModel, ConfigDict, JsonValue, SerializerFunctionWrapHandler, model_serializer


class Frozen(BaseModel):
    """A model that never changes, and refuses unknown fields."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    def with_defaults(self, names: Iterable[str]) -> set[str]:
        """Return those of some fields that have their defaults."""
        fields = type(self).model_fields
        return {n for n in names if getattr(self, n) == fields[n].get_default(call_default_factory=True)}


class Sparse(Frozen):
    """A model of which the fields named in `unwritten` are not written while they have their defaults."""

    unwritten: ClassVar[tuple[str, ...]] = ()

    @model_serializer(mode="wrap")
    def _without_defaults(self, dump: SerializerFunctionWrapHandler) -> dict[str, Any]:
        defaults = self.with_defaults(self.unwritten)
        return {name: value for name, value in dump(self).items() if name not in defaults}


def json_bytes(fields: dict[str, JsonValue], indent: int) -> bytes:
    """Return fields as JSON: indented, sorted; raise a ValueError if a number is not finite."""
    return json.dumps(fields, indent=indent, sort_keys=True, allow_nan=False).encode() + b"\n"


def own_sha256(fields: dict[str, JsonValue], name: str, indent: int) -> str:
    """Return the SHA-256 that a file states of itself in the field `name`: that of its JSON without this field.

    Pass the fields as they are in the file. Those of a model are not enough: a later release has more of them.
    """
    return hashlib.sha256(json_bytes({k: v for k, v in fields.items() if k != name}, indent)).hexdigest()
