"""Events that are pydantic models: their records, and the models that are refused.

pydantic validates and serialises. This module adds two guarantees: readers of a record get an equal event,
and an event has the same bytes in every process. So each emitted event is decoded again, and refused if it
differs: because of a validator that changes its own result, an alias for only one direction, an excluded
field, a private attribute, a set in a field of type ``Any``. Refused at declaration or at the first emit:

    a set                               its order differs between processes
    a ``default_factory`` that varies   an event without the field would differ at each replay
    a ``RootModel``                     it has no fields

A validator that depends on more than its value (a clock, randomness) cannot be found so; checked runs decode
each event twice. pydantic is not imported here: its classes have the needed attributes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, cast

import msgspec

from tailrace.core.errors import DefinitionError, EmittedTypeError, EventValueError
from tailrace.core.values.event_values import not_finite
from tailrace.core.values.types import spell

_NO_PARTS: Final = ("metadata", "cls", "default", "expected")
"""Keys in a part of a schema whose values are not schemas."""
_write = msgspec.json.Encoder(order="deterministic").encode


class ModelCodec:
    """The codec of a topic of pydantic models, with the interface of ``EventCodec``. JSON only."""

    __slots__ = ("_dump", "_schema", "_validate", "topic", "type")

    def __init__(self, topic: str, type: Any, format: str) -> None:
        self.topic = topic
        self.type = type
        where = f"the topic {topic!r}"
        if format != "json":
            raise DefinitionError(
                f"{where} has format={format!r}, but pydantic models are written as JSON",
                hint="Leave format= out, or declare the events as msgspec structs.",
            )
        self._schema: list[Mapping[str, Any]] = list(_parts(type.__pydantic_core_schema__))
        check_model(type, self._schema, where)
        self._validate: Callable[[bytes], Any] = type.__pydantic_validator__.validate_json
        self._dump: Callable[..., Any] = type.__pydantic_serializer__.to_python

    def decode(self, data: bytes) -> Any:
        """The event of a record. Raises msgspec.ValidationError, as for structs, with pydantic's message."""
        try:
            return self._validate(data)
        except ValueError as error:
            raise msgspec.ValidationError(_one_line(error)) from None

    def check_emitted(self) -> None:
        """Raise DefinitionError for a type whose records would depend on more than the event."""
        if any(one.get("type") in ("set", "frozenset") for one in self._schema):
            raise DefinitionError(
                f"events of type {spell(self.type)} cannot be emitted to {self.topic!r}: it contains a set",
                hint="Its order differs between processes: use a sorted list.",
            )

    def check(self, event: Any) -> None:
        """Raise unless the readers of an event's record get an equal event each time. Slow: for tests."""
        written = self._encode(event)
        self._check_read(event, written, EmittedTypeError)
        if self.decode(written) != self.decode(written):
            raise EmittedTypeError(
                f"an event of type {spell(self.type)} is decoded as a different event each time",
                topic=self.topic,
                hint="Its validators must depend on the event alone: no clock, no randomness.",
            )

    def unwritable(self, event: Any, error: Exception) -> Exception:
        """The error to raise for an ``error`` of ``encode``, with topic and field as far as known."""
        return EventValueError(
            f"an event of type {spell(type(event))} cannot be written: {error}",
            topic=self.topic,
            hint="Give the model the values that it declares.",
        )

    def plain(self, event: Any) -> Any:
        """An event as JSON values, by the names in its record. Raises EventValueError."""
        try:
            return self._dump(event, mode="json", by_alias=True, round_trip=True, warnings="error")
        except ValueError as error:
            raise self.unwritable(event, ValueError(_one_line(error))) from None

    def _encode(self, event: Any) -> bytes:
        plain = self.plain(event)
        written = _write(plain)
        lost = _not_finite(plain) if b"null" in written else None
        if lost is not None:
            raise EventValueError(
                f"an event of type {spell(self.type)} cannot be written as it is: {lost[0]} is {lost[1]!r}, "
                "which JSON cannot write",
                topic=self.topic,
                field=lost[0],
                hint="Emit None or nothing where there is no number.",
            )
        return written

    def encode(self, event: Any) -> bytes:
        """The record of an event. It is decoded again, to check that readers get an equal event."""
        written = self._encode(event)
        self._check_read(event, written, EventValueError)
        return written

    def _check_read(self, event: Any, written: bytes, kind: type[EventValueError | EmittedTypeError]) -> None:
        try:
            read = self.decode(written)
        except msgspec.ValidationError as error:
            raise kind(
                f"an event of type {spell(self.type)} cannot be written as it is: its readers could not "
                f"decode it: {error}",
                topic=self.topic,
                hint="Its validators must take what its serialisers write.",
            ) from None
        if read != event:
            field = _first_field_apart(event, read)
            raise kind(
                f"an event of type {spell(self.type)} is read as another: {field or 'it'} is not what was "
                "emitted when its record is decoded",
                topic=self.topic,
                field=field or None,
                hint="Emit exactly the classes and values that the fields declare. Validators and "
                "serialisers must not change what they have already changed: f(f(x)) == f(x).",
            )


def check_model(cls: Any, schema: list[Mapping[str, Any]], where: str) -> None:
    """Refuse a model whose records would be decoded differently each time. ``where`` begins the message."""
    for part in schema:
        if part.get("root_model"):
            raise DefinitionError(
                f"{where} is to hold a RootModel, which has no fields", hint="Give it a field."
            )
        fields: Mapping[str, Any] = part.get("fields", {}) if part.get("type") == "model-fields" else {}
        for name, field in fields.items():
            factory = field["schema"].get("default_factory")
            takes_data = field["schema"].get("default_factory_takes_data")
            if factory is not None and not takes_data and factory() != factory():
                raise DefinitionError(
                    f"{where}: {part.get('model_name', spell(cls))}.{name} has a default_factory that "
                    "returns a different value at each call, so an event without the field would differ at "
                    "each replay",
                    hint="Set the value where the event is created.",
                )


def _parts(schema: Any) -> Iterator[Mapping[str, Any]]:
    """All parts of pydantic's schema of a class, which consists of plain dicts and lists."""
    if isinstance(schema, Mapping):
        part = cast("Mapping[str, Any]", schema)
        if "type" in part:
            yield part
        for name, inner in part.items():
            if name not in _NO_PARTS:
                yield from _parts(inner)
    elif isinstance(schema, (list, tuple)):
        for inner in cast("list[Any]", schema):
            yield from _parts(inner)


def _not_finite(plain: Mapping[str, Any]) -> tuple[str, float] | None:
    return next((lost for name, value in plain.items() if (lost := not_finite(value, name))), None)


def _first_field_apart(event: Any, read: Any) -> str:
    """The first field in which two events of a model differ. Empty if no single field differs."""
    one, other = (cast("dict[str, Any]", getattr(each, "__dict__", {})) for each in (event, read))
    return next((name for name in one if one[name] != other.get(name)), "")


def _one_line(error: ValueError) -> str:
    """Pydantic's message in one line, without the address of its manual."""
    errors: Callable[..., Any] | None = getattr(error, "errors", None)
    if errors is None:
        return " ".join(str(error).split())
    found = errors(include_url=False, include_context=False, include_input=False)
    return "; ".join(f"{'.'.join(map(str, one['loc']))}: {one['msg']}".removeprefix(": ") for one in found)
