"""The stored rows of an actor, taken through its migrations: the rows that the present code would have written.

What a migration does not take stays as it is. The codec of the declared class writes the fields, so rows have the form of any
commit: fields in the order of declaration, with defaults, and no row for a key that has nothing but defaults. The expiry of a
field that a migration takes or gives stays if the field still has a TTL by that time, and is not at its default.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from tailrace.core import rows
from tailrace.core.declare.actor import declaration_of
from tailrace.core.declare.migrations import Migration
from tailrace.core.declare.plan import ActorPlan
from tailrace.core.declare.schema import timer_family
from tailrace.core.engine.evolution import earlier_declaration, evolved
from tailrace.core.engine.value_rows import carrying, encoded_blank, joined, raw_fields
from tailrace.core.errors import IncompatibleStateError
from tailrace.core.values.type_schemas import ActorSchema, FieldSchema

_encode = msgspec.msgpack.Encoder().encode


def due_migrations(actor: ActorPlan, mark: str, version: str) -> tuple[Migration, ...]:
    """Those that state with this mark, written by this version of the app, has not been through. Raises IncompatibleStateError."""
    chain = declaration_of(actor.cls).migrations
    past = [at for at, one in enumerate(chain, 1) if mark in one.versions]
    if mark and not past:
        raise IncompatibleStateError(
            f"its state was migrated from version {mark!r}, and no migration of this code is from there",
            actor=actor.name,
            hint="Keep the last migration in the class; or the code is older than the state.",
        )
    rest = chain[past[-1] :] if mark else chain
    named = [at for at, one in enumerate(rest) if version in one.versions]
    if rest and (not named or (mark and named[0])):
        raise IncompatibleStateError(
            f"its state was written by version {version!r}, and no migration that is due is from there",
            actor=actor.name,
            hint=f"If it has the form of {rest[0].versions[-1]!r}, write from_version={(version, *rest[0].versions)!r}.",
        )
    return rest[named[0] :] if rest else ()


class ActorMigration:
    """The migrations of one task's rows of an actor, from its stored schema. Raises IncompatibleStateError."""

    def __init__(self, actor: ActorPlan, stored: ActorSchema, version: str) -> None:
        self.actor, self.stored = actor, stored
        self.due = due_migrations(actor, stored.migrated, version)
        self._touched = {name for one in self.due for name in (*one.takes, *one.gives)}
        self.schema = self._schema() if self.due else stored
        """Of the rows then."""
        self._encode, _, self._decode = carrying(actor, earlier_declaration(self.schema, actor.schema).fields)
        self._blank = encoded_blank(actor)
        self._ttls = {(one.domain, one.name): one.default for one in actor.ttls}
        self._defaults = {
            one.name: one.default for one in stored.fields if one.kind == "value" and one.default
        }
        self._codecs = {one.name: (one.encode, one.decode) for one in (*actor.maps, *actor.lists)}
        for domain, routes in enumerate((actor.event_timers, actor.processing_timers)):
            self._codecs |= {
                timer_family(domain, name): one.payload for name, one in routes.items() if one.payload
            }

    def _schema(self) -> ActorSchema:
        """What migrations give has the declared type; of the rest, what a start would store. Raises what that raises."""
        stored, declared, of = self.stored, self.actor.schema, {one.of for one in self.due}
        there = {one.name for one in (*stored.fields, *stored.past) if one.kind == "value"}
        for one in self.due:
            if missing := {*one.takes} - there:
                raise IncompatibleStateError(
                    f"{one.where} takes {', '.join(sorted(missing))}, which is not stored",
                    actor=self.actor.name,
                    hint=f"Stored are: {', '.join(sorted(there))}.",
                )
            there = there - {*one.takes} | {*one.gives}
        now = {one.name: one.type for one in (*declared.fields, *declared.payloads)}

        def kept(some: Iterable[FieldSchema]) -> tuple[FieldSchema, ...]:
            return tuple(
                msgspec.structs.replace(one, type=now[one.name]) if one.name in of else one
                for one in some
                if one.kind != "value" or one.name not in self._touched
            )

        given = [one for one in declared.fields if one.kind == "value" and one.name in self._touched]
        before = msgspec.structs.replace(
            stored,
            fields=(*kept(stored.fields), *given),
            past=kept(stored.past),
            payloads=kept(stored.payloads),
            migrated=declared.migrated,
        )
        return evolved(self.actor.name, before, declared)[0]

    def rows(self, key: bytes, found: Mapping[bytes, bytes]) -> dict[bytes, bytes]:
        """The rows of a key, by the part of their names after the key. Raises what the user's functions raise."""
        shown, spread = self.actor.key_codec.decode(key), rows.spread(found)
        value = spread.pop(b"")
        encoded = self._fields(shown, value[rows.start_of_fields(value) :])
        after, left = raw_fields(encoded), dict[bytes, bytes]()
        for rest, one in spread.items():
            if rest[:1] == b"t" and rest[2:4] == rows.expiry_name(b"v"):
                name = rest[4:].decode()
                if name in self._touched and self._ttls.get((rest[1], name)) in (None, after.get(name)):
                    continue
            left[rest] = self._part(shown, rest, one)
        if encoded == self._blank and not left:
            return {}
        return rows.gathered({b"": rows.PLAIN + encoded, **left})

    def _fields(self, key: Any, encoded: bytes) -> bytes:
        fields = self._defaults | raw_fields(encoded)
        for one in self.due:
            if not one.of:
                taken = joined({name: fields.pop(name) for name in one.takes if name in fields})
                fields |= raw_fields(_called(one, key, taken))
        return self._encode(self._decode(joined(fields)))

    def _part(self, key: Any, rest: bytes, value: bytes) -> bytes:
        """The row of an entry, a timer, or the bounds of a list."""
        if rest[:1] == b"t":
            if rest[2:3] == rows.EXPIRY:
                return value
            family = "" if rest[2:3] == b"u" else rest[3:].decode().partition(":")[0]
            timer = rows.decode_timer(value)
            payload = self._through(timer_family(rest[1], family), key, timer.payload)
            return rows.encode_timer(msgspec.structs.replace(timer, payload=payload))
        name, _, place = rest[1:].partition(b"\0")
        if rest[:1] == b"l" and not place:
            return value
        inner, expiry = rows.unpack_entry(value)
        return rows.pack_entry(
            self._through(name.decode(), key, inner) or b"", *(expiry or (rows.EVENT_TIME, None))
        )

    def _through(self, of: str, key: Any, value: bytes | None) -> bytes | None:
        due = [one for one in self.due if one.of == of]
        for one in due:
            value = _called(one, key, value or msgspec.msgpack.encode(None))
        encode, decode = self._codecs.get(of, (None, None))
        return encode(decode(value)) if due and encode and decode and value else value


def _called(one: Migration, key: Any, old: bytes) -> bytes:
    given = one.call(key, msgspec.msgpack.decode(old, type=one.old))
    if not one.of and type(given) is not one.new:
        raise TypeError(f"{one.where} returned {given!r}, which is no {one.new.__name__}")
    return _encode(given)
