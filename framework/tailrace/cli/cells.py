"""Converts the cells of a row to an event: text and numbers become the declared types of the fields, without guesses.

CSV has only text, and Parquet does not have our structs. So cells are converted: ``"12"`` to an int, ``"true"`` to a bool,
``"null"`` to None if the field may be None and is not text. msgspec would also convert the following cells, but to a value that
may not be the intended one. Here they break the row:

=============================  ===========================================================
a cell                         would become
=============================  ===========================================================
``20130101`` for a datetime    21 August 1970, taken as seconds; so would be milliseconds
``5`` for a timedelta          5 seconds, whatever they are
``3.0000000000000000001``      the int 3
``2**53 + 1`` for a float      another number, if the cell is an integer and no text
=============================  ===========================================================
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any, get_origin

import msgspec

from tailrace.core.declare.annotations import members_of
from tailrace.core.errors import BadRecordError
from tailrace.core.values.event_fields import event_fields, kind_of
from tailrace.core.values.types import shortened, spell

_NUMBER = re.compile(r"\s*[+-]?[0-9]*\.?[0-9]+\.?([eE][+-]?[0-9]+)?\s*")


def event_of_cells(cells: Mapping[str, Any], declared: Any) -> Any:
    """Convert the cells of a row to an event.

    Raises:
        BadRecordError: The cells are not a valid event, or one of them is ambiguous.
    """
    if kind_of(declared) == "model":
        raise BadRecordError(
            f"{spell(declared)} is a pydantic model, and the cells of a table make structs and dataclasses: append JSON"
        )
    try:
        event = msgspec.convert(cells, declared, strict=False)
    except msgspec.MsgspecError as error:
        raise BadRecordError(str(error)) from None
    _check(cells, event, "")
    return event


def fields_of(declared: Any) -> frozenset[str]:
    """The names that columns may have: the encoded names of the fields, and of the tags."""
    names: set[str] = set()
    for member in members_of(declared):
        cls = get_origin(member) or member
        names.update(one.encode_name for one in event_fields(member).values())
        if isinstance(cls, msgspec.StructMeta):
            names.update(filter(None, (cls.__struct_config__.tag_field,)))
    return frozenset(names)


def _check(cell: Any, value: Any, path: str) -> None:
    for was, now, step in _pairs(cell, value):
        _check(was, now, f"{path}{step}")
    why = _guess(cell, value)
    if why is not None:
        raise BadRecordError(f"{path.lstrip('.')!r} is {shortened(cell)}: {why}")


def _pairs(cell: Any, value: Any) -> Iterator[tuple[Any, Any, str]]:
    """The parts of a cell, each with its converted value and its step in the path."""
    if isinstance(value, msgspec.Struct) and isinstance(cell, Mapping):
        for name, field in zip(value.__struct_encode_fields__, value.__struct_fields__, strict=True):
            if name in cell:
                yield cell[name], getattr(value, field), f".{name}"
    elif kind_of(type(value)) == "dataclass" and isinstance(cell, Mapping):
        yield from (
            (cell[name], getattr(value, name), f".{name}")
            for name in event_fields(type(value))
            if name in cell
        )
    elif isinstance(value, dict):
        for (key, was), now in zip(dict(cell).items(), _values(value), strict=False):  # pyright: ignore[reportUnknownArgumentType]  # any cell
            yield was, now, f"[{key!r}]"
    elif isinstance(value, (list, tuple)):
        items: list[Any] = [*value]
        for at, (was, now) in enumerate(zip(cell, items, strict=False)):
            yield was, now, f"[{at}]"


def _values(value: dict[Any, Any]) -> Iterable[Any]:
    return value.values()


def _guess(cell: Any, value: Any) -> str | None:
    """Why the converted value is a guess, or not exactly the value of the cell; None if it is exact."""
    is_text = isinstance(cell, str)
    if isinstance(value, (datetime, timedelta)):
        if isinstance(cell, (int, float)) or (is_text and _NUMBER.fullmatch(cell)):
            what = "a date and time" if isinstance(value, datetime) else "a duration"
            example = "2013-01-01T05:17:00Z" if isinstance(value, datetime) else "PT5M"
            return f"a number is not taken for {what}, as its unit is not known. Write ISO 8601, such as {example}"
    elif type(value) is float:
        if type(cell) is int and not _is_exactly(cell, value):
            return f"as a float it is {value!r}"
    elif type(value) is int and is_text and _NUMBER.fullmatch(cell) and Decimal(cell) != value:
        return "it is no integer"
    return None


def _is_exactly(number: int, as_float: float) -> bool:
    return number == as_float
