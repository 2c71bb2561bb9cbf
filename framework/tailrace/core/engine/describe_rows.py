"""Describes the rows of one key in words, by field, entry and timer.

A picture maps a label to a text, such as ``legs`` to ``3``, ``minutes_late['JFK']`` to ``12``, ``timer
'overdue'`` to ``2013-01-01T12:30:00.000Z``. Two pictures differ if a person would see a difference.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import msgspec

from tailrace.core import rows
from tailrace.core.declare.context_timers import payload_of
from tailrace.core.declare.plan import ActorPlan
from tailrace.core.durations import is_instant, to_datetime
from tailrace.core.errors import TailraceError
from tailrace.core.handling.entries import CollectionPlan, MapPlan, decode_bounds

Picture = dict[str, str]

ABSENT = "nothing"
"""The text of a label that only the other picture has."""
_HALF = 1 << 63


class Change(NamedTuple):
    """A label whose texts differ between two pictures."""

    label: str
    was: str
    is_: str

    def between(self, one: str, other: str) -> str:
        """The change in one line, with the names of the two sides."""
        return f"{self.label}: {self.was} in {one}, {self.is_} in {other}"


def instant(time_ms: int) -> str:
    """An instant in ISO 8601, UTC, with milliseconds. ``none`` for a watermark before any event."""
    if not is_instant(time_ms):
        return "none"
    try:
        return to_datetime(time_ms).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    except TailraceError:
        return f"{time_ms} ms"


def picture(actor: ActorPlan, found: Mapping[bytes, bytes]) -> Picture:
    """The picture of one key's rows. The keys of ``found`` are the parts of the row names after the key."""
    shown: Picture = {}
    for rest, value in sorted(rows.spread(found).items()):
        kind = rest[:1]
        if not kind:
            shown |= _fields(actor, value)
        elif kind == b"t":
            shown |= _timer(actor, rest, value)
        else:
            shown |= _entry(actor, rest, value)
    return shown


def changes(before: Picture, after: Picture) -> list[Change]:
    """The labels whose texts differ, in the order of the pictures."""
    return [
        Change(label, before.get(label, ABSENT), after.get(label, ABSENT))
        for label in dict.fromkeys((*before, *after))
        if before.get(label) != after.get(label)
    ]


def describe_changes(
    actor: ActorPlan | None, before: Mapping[bytes, bytes], after: Mapping[bytes, bytes]
) -> tuple[Change, ...]:
    """The differences between two states of a key: fields, entries, timers; causes of timers, or bytes, if texts are equal."""
    found = [] if actor is None else changes(picture(actor, before), picture(actor, after))
    if found:
        return tuple(found)
    was, now = rows.spread(before), rows.spread(after)
    return tuple(
        _hidden(actor, rest, was.get(rest), now.get(rest))
        for rest in sorted(was.keys() | now.keys())
        if was.get(rest) != now.get(rest)
    )


def _hidden(actor: ActorPlan | None, rest: bytes, before: bytes | None, after: bytes | None) -> Change:
    """What differs in a row that reads the same."""
    if actor is not None and rest[:1] == b"t" and before and after:
        causes = [rows.decode_timer(one).cause.hex() for one in (before, after)]
        if causes[0] != causes[1]:
            return Change(f"the cause of {next(iter(_timer(actor, rest, before)))}", *causes)
    texts = (ABSENT if value is None else value.hex() for value in (before, after))
    return Change(f"the bytes of {rest!r}", *texts)


def shown_key(actor: ActorPlan | None, key: bytes) -> str:
    """The ``repr`` of a key; of its bytes if it cannot be decoded."""
    try:
        return repr(key if actor is None else actor.key_codec.decode(key))
    except TailraceError:
        return repr(key)


def _fields(actor: ActorPlan, value: bytes) -> Picture:
    try:
        instance = actor.decode(value[1:])
    except (msgspec.MsgspecError, ValueError):
        return _stored_fields(value)
    names: tuple[str, ...] = getattr(actor.cls, "__struct_fields__")  # noqa: B009  # unknown to type checkers
    shown = {name: repr(getattr(instance, name)) for name in names if hasattr(instance, name)}
    declared = {one.name for one in actor.schema.fields}
    undeclared = _stored_fields(value).items()
    return shown | {f"{name} (not declared)": one for name, one in undeclared if name not in declared}


def _stored_fields(value: bytes) -> Picture:
    try:
        stored: dict[str, Any] = msgspec.msgpack.decode(value[1:], type=dict[str, Any])
    except (msgspec.MsgspecError, ValueError):
        return {"the fields": repr(value)}
    return {name: repr(one) for name, one in stored.items()}


def _timer(actor: ActorPlan, rest: bytes, value: bytes) -> Picture:
    name = rest[2:]
    kind = "processing timer" if rest[1] == rows.PROCESSING_TIME else "timer"
    try:
        timer = rows.decode_timer(value)
        due = instant(timer.time_ms)
        if timer.payload is not None:
            due += f", {payload_of(actor, rest[1], name, timer)!r}"
    except (msgspec.MsgspecError, ValueError):
        return {f"{kind} {name!r}": repr(value)}
    if name[:1] == rows.EXPIRY:
        return {f"{entry_name(actor, name[1:])} expires": due}
    if name[:1] == b"u":
        return {f"{kind} at {due}": "set"}
    return {f"{kind} {name[1:].decode(errors='replace')!r}": due}


def _entry(actor: ActorPlan, rest: bytes, value: bytes) -> Picture:
    stored, _, name = rest[1:].partition(b"\0")
    plans: tuple[CollectionPlan, ...] = actor.maps if rest[:1] == b"m" else actor.lists
    plan = next((one for one in plans if one.name.encode() == stored), None)
    try:
        if plan is None:  # declared by another version: without its types
            if rest[:1] == b"l" and not name:
                return {}
            value = msgspec.msgpack.decode(rows.unpack_entry(value)[0])
            shown = int.from_bytes(name, "big") - _HALF if rest[:1] == b"l" else name.decode()
            return {f"{stored.decode()}[{shown!r}] (not declared)": repr(value)}
        encoded, expiry = rows.unpack_entry(value)
        expires = "" if expiry is None else f", expires {instant(expiry.time_ms)}"
        if isinstance(plan, MapPlan):
            return {f"{plan.attr}[{plan.key_codec.decode(name)!r}]": f"{plan.decode(encoded)!r}{expires}"}
        if not name:
            first, stop = decode_bounds(encoded)
            return {f"len({plan.attr})": str(stop - first)}
        place = int.from_bytes(name, "big") - _HALF
        return {f"{plan.attr}[{place}]": f"{plan.decode(encoded)!r}{expires}"}
    except (msgspec.MsgspecError, ValueError, TailraceError):
        return {f"{stored.decode(errors='replace')}[{name!r}]": repr(value)}


def entry_name(actor: ActorPlan, rest: bytes) -> str:
    """The label of a field (``v`` and its stored name) or of a map entry, given the name of its expiry."""
    if rest[:1] == b"v":
        stored = rest[1:].decode(errors="replace")
        return next((one.attr for one in actor.ttls if one.name == stored), stored)
    stored_map, _, name = rest[1:].partition(b"\0")
    for one in actor.maps:
        if one.name.encode() == stored_map:
            try:
                return f"{one.attr}[{one.key_codec.decode(name)!r}]"
            except TailraceError:
                break
    return f"{stored_map.decode(errors='replace')}[{name!r}]"
