"""Compares the declared types of an app with the locked ones: what breaks, for which readers, and what to do.

``backward``: the new code reads what the old code has written (the log, a replay, producers that are not upgraded yet).
``forward``: the old code reads what the new code writes (consumers that are not upgraded yet, going back to the old version).

What may become what is the rule of stored state (``core.values.type_evolution``), for all formats of topics. It refuses some changes that a
reader could decode.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, Literal

import msgspec

from tailrace.core.values.type_evolution import ABSENT, Change, evolve_key, evolve_type
from tailrace.core.values.type_schemas import TypeSchema
from tailrace.schemas.lock import AppShape, TopicShape, without_defaults

Mode = Literal["backward", "forward", "full"]
Direction = Literal["backward", "forward"]
DIRECTIONS: Final[dict[Mode, tuple[Direction, ...]]] = {
    "backward": ("backward",),
    "forward": ("forward",),
    "full": ("backward", "forward"),
}
_FOR: Final[dict[Direction, str]] = {
    "backward": "the new code reads what the old code has written",
    "forward": "the old code reads what the new code writes",
}
_OTHER_TOPIC: Final = "Keep it, or declare another topic."
_DEFAULT: Final = "Give the field a default. If it was renamed, add its old name: msgspec.field(name=...)."
_KEEP: Final = "Keep the type. Add what is new as another field that has a default, or declare another topic."


class Break(msgspec.Struct, frozen=True):
    """A change that readers may not take: of a topic, or of a message (``where``); ``field`` begins with the type."""

    app: str
    where: str
    field: str
    direction: Direction
    why: str
    hint: str

    def __str__(self) -> str:
        at = f", {self.field}" if self.field else ""
        return f"{self.where}{at}, as {_FOR[self.direction]}: {self.why}. {self.hint}"


def breaks(app: str, locked: AppShape, declared: AppShape, mode: Mode) -> list[Break]:
    """What breaks between the locked and the declared types of an app."""
    locked, declared = without_defaults(locked), without_defaults(declared)
    return [one for direction in DIRECTIONS[mode] for one in _breaks(app, locked, declared, direction)]


def _breaks(app: str, locked: AppShape, declared: AppShape, direction: Direction) -> Iterator[Break]:
    written, read = (locked, declared) if direction == "backward" else (declared, locked)
    for name in sorted(written.topics.keys() & read.topics.keys()):
        for field, why, hint in _topic(written.topics[name], read.topics[name]):
            yield Break(app, f"topic {name}", field, direction, why, hint)
    for actor, messages in sorted(written.messages.items()):
        for name, one in sorted(messages.items()):
            known = read.messages.get(actor, {}).get(name)
            if known is None:
                why = f"{actor} takes no such message"
                hint = "Keep its handler until no message of this name is in the inbox."
                found = [("", why, hint)]
            else:
                found = [*misreads(one, known)]
            for field, why, hint in found:
                yield Break(app, f"message {name} to {actor}", field, direction, why, hint)


def _topic(written: TopicShape, read: TopicShape) -> Iterator[tuple[str, str, str]]:
    if written.format != read.format:
        yield "", f"records are {written.format}, and are read as {read.format}", _OTHER_TOPIC
        return
    if written.key != read.key or not _same_key(written.key_type, read.key_type):
        keys = [
            f"{one.key or 'a function'} ({one.key_type})" if one.key_type else "none"
            for one in (written, read)
        ]
        yield "", f"the key is {keys[0]}, and is read as {keys[1]}", _OTHER_TOPIC
    if written.event_time != read.event_time:
        times = [one.event_time or "a function" for one in (written, read)]
        why = f"the event time is {times[0]}, and is read from {times[1]}: the same events would have other times"
        yield "", why, _OTHER_TOPIC
    if written.type is not None and read.type is not None:
        yield from misreads(written.type, read.type)
    elif written.model != read.model:
        why = "a pydantic model has changed, and models are compared as a whole"
        yield "", why, "Test that the one reads the other's events, then write the lock again."


def misreads(written: TypeSchema, read: TypeSchema) -> Iterator[tuple[str, str, str]]:
    """What the type ``read`` may not decode of the type ``written``, both without defaults: where, why, and what to do."""
    changes: list[Change] = []
    evolve_type(str(written), written, read, changes)
    for one in changes:
        if one.kind == "incompatible" and one.stored == ABSENT:
            yield one.field, "the field is required, and may be absent", _DEFAULT
        elif one.kind == "incompatible":
            yield one.field, f"{one.stored} is written, and {one.declared} is read", _KEEP


def _same_key(written: TypeSchema | None, read: TypeSchema | None) -> bool:
    if written is None or read is None:
        return written is read
    changes: list[Change] = []
    evolve_key("", written, read, changes)
    return all(one.kind != "incompatible" for one in changes)
