"""The bases of what cards and the files beside them hold: pydantic models that never change."""

from typing import Any, ClassVar

from pydantic import BaseModel, ConfigDict, SerializerFunctionWrapHandler, model_serializer


class Frozen(BaseModel):
    """A model that never changes, and refuses unknown fields."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Sparse(Frozen):
    """A model of which the fields named in `unwritten` are not written while they have their defaults."""

    unwritten: ClassVar[tuple[str, ...]] = ()

    @model_serializer(mode="wrap")
    def _without_defaults(self, dump: SerializerFunctionWrapHandler) -> dict[str, Any]:
        fields = dump(self)
        for name in self.unwritten:
            if getattr(self, name) == type(self).model_fields[name].get_default(call_default_factory=True):
                fields.pop(name, None)
        return fields
