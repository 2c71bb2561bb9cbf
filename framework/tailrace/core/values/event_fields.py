"""The fields of an event class: a msgspec struct, a dataclass or a pydantic model.

A pydantic model is recognised by the attributes of its class. Pydantic itself is not imported here; the
module that declares a model has imported it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Annotated, Any, Literal, NamedTuple, get_origin, get_type_hints

import msgspec

Kind = Literal["struct", "dataclass", "model"]
"""How an event class is declared."""


class EventField(NamedTuple):
    """A field as it is declared, ``Annotated`` included, and its name in an encoded event."""

    name: str
    encode_name: str
    type: Any


def kind_of(declared: Any) -> Kind | None:
    """The kind of an event class, generic or not. None if it is not an event class."""
    cls = get_origin(declared) or declared
    if isinstance(cls, msgspec.StructMeta):
        return "struct"
    if not isinstance(cls, type):
        return None
    is_model = "__pydantic_fields__" in cls.__dict__ and "__pydantic_decorators__" in cls.__dict__
    if dataclasses.is_dataclass(cls):  # a pydantic dataclass has both
        return "dataclass"
    return "model" if is_model else None


def event_fields(declared: Any) -> Mapping[str, EventField]:
    """The fields by name, in their order; empty for any other class. NameError for an unknown annotation."""
    match kind_of(declared):
        case "struct":
            return {
                one.name: EventField(one.name, one.encode_name, one.type)
                for one in msgspec.structs.fields(declared)
            }
        case "dataclass":
            cls = get_origin(declared) or declared
            hints = get_type_hints(cls, include_extras=True)
            return {
                one.name: EventField(one.name, one.name, hints[one.name]) for one in dataclasses.fields(cls)
            }
        case "model":
            return {
                name: EventField(
                    name,
                    one.serialization_alias or one.alias or name,
                    _with_metadata(one.annotation, one.metadata),
                )
                for name, one in declared.model_fields.items()
            }
        case None:
            return {}


def _with_metadata(declared: Any, metadata: Any) -> Any:
    """The whole annotation of a field. Pydantic keeps the metadata of ``Annotated`` apart from the type."""
    for one in metadata:
        declared = Annotated[declared, one]
    return declared
