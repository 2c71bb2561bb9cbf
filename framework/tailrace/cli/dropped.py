"""Names the fields of JSON lines that events do not have. Decoders drop such a field without an error, even if it is a misspelt one.

Only the fields of the event itself are looked at, not those of structs within it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import msgspec

from tailrace.cli.cells import fields_of
from tailrace.core.counting import counted
from tailrace.core.suggestions import did_you_mean
from tailrace.core.values.event_fields import kind_of

_SHOWN = 10
_NO_NAMES: frozenset[str] = frozenset()


class DroppedFields:
    """The dropped fields of all lines of a run, with the number of lines that had each."""

    def __init__(self) -> None:
        self._lines: dict[str, int] = {}
        self._known: dict[str, frozenset[str]] = {}
        """By dropped name, the names that the event does have."""
        self._names_of: dict[Any, frozenset[str] | None] = {}
        self._fields: Callable[[bytes], dict[str, Any]] = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode

    def count(self, line: bytes, event: Any) -> None:
        """Note the fields of a line that its event does not have. The event has been decoded from the line."""
        cls: Any = event.__class__
        try:
            known = self._names_of[cls]
        except KeyError:
            known = self._names_of[cls] = _names(cls)
        if known is None:
            return
        fields = self._fields(line)
        if known.issuperset(fields):
            return
        for name in fields.keys() - known:
            self._lines[name] = self._lines.get(name, 0) + 1
            self._known[name] = known

    def said(self) -> Iterator[str]:
        """A message for each dropped field, those of most lines first."""
        names = sorted(self._lines, key=lambda name: (-self._lines[name], name))
        for name in names[:_SHOWN]:
            meant = did_you_mean(name, self._known[name])
            yield f"the field {name!r} was dropped from {counted(self._lines[name], 'line')}. {meant}".rstrip()
        if len(names) > _SHOWN:
            yield f"{counted(len(names) - _SHOWN, 'more field')} were dropped"


def _names(cls: type[Any]) -> frozenset[str] | None:
    """The names that a line may have for an event of a class. None if its lines have no names, or all names are its own."""
    match kind_of(cls):
        case "struct" if cls.__struct_config__.array_like:
            return None
        case "model":
            return _names_of_model(cls)
        case None:
            return None
        case _:
            return fields_of(cls)


def _names_of_model(model: Any) -> frozenset[str] | None:
    """None for a model that keeps other fields, or whose validator sees the whole line and may read more than the fields."""
    config: dict[str, Any] = model.model_config
    validators = model.__pydantic_decorators__.model_validators.values()
    if config.get("extra") == "allow" or any(one.info.mode != "after" for one in validators):
        return None
    by_name = config.get("populate_by_name") or config.get("validate_by_name")
    return fields_of(model) | (frozenset(model.model_fields) if by_name else _NO_NAMES)
