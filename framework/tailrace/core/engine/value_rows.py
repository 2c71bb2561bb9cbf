"""Value rows: the plain fields of an instance as one msgpack map, after a byte of flags and the timers (``rows``).

A row that an earlier version of the code wrote may have another form than the declaration writes now: a field
more or less. Such a row is called *of the past*. It may have a field that is no longer declared, because it
was renamed or removed. Such fields are *carried*: a loaded instance keeps them unchanged, name and value
still encoded, and they are written again after the declared ones. Only actors whose stored schema has such a
field use the decoder and encoder that do this.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from functools import partial
from typing import Any

import msgspec

from tailrace.core import rows
from tailrace.core.declare.plan import ActorPlan
from tailrace.core.storage import StateReader
from tailrace.core.values.types import CODEC_ERRORS

KeyRows = dict[bytes, bytes]
"""The rows of one key of one actor, by the part of the row name after the key: ``rows.StateRow.rest``."""

_decode_raw = msgspec.msgpack.Decoder(dict[str, msgspec.Raw]).decode
_encode = msgspec.msgpack.Encoder().encode


def raw_fields(encoded: bytes) -> dict[str, bytes]:
    """The fields of an encoded instance, each still encoded."""
    return {name: bytes(value) for name, value in _decode_raw(encoded).items()}


def joined(fields: Mapping[str, bytes]) -> bytes:
    """The inverse of ``raw_fields``."""
    return with_more(b"\x80", len(fields), _pairs(fields))


def encoded_blank(plan: ActorPlan) -> bytes | None:
    """The encoding of a new sealed instance; None if fields are required, or it cannot be encoded."""
    if plan.required:
        return None
    try:
        blank = plan.new()
        if plan.seal is not None:
            plan.seal(blank)
        encoded = plan.encode_unsettled(blank)
        return encoded if plan.fixed else plan.encode(plan.decode(encoded))
    except Exception:  # noqa: BLE001  # a user's default is invalid: the first handler gets the error
        return None


# --- fields that are not declared


def carrying(
    plan: ActorPlan, names: Collection[str]
) -> tuple[Callable[[Any], bytes], Callable[[Any], bytes], Callable[[bytes], Any]]:
    """Two encoders and the decoder of an actor's instances with these fields, in the order of the row."""

    def with_carried(encode: Callable[[Any], bytes], instance: Any) -> bytes:
        carried = getattr(instance, "_tr_carried", None)
        return encode(instance) if carried is None else with_more(encode(instance), *carried)

    def decode(data: bytes) -> Any:
        instance = plan.decode(data)
        found = {name: bytes(value) for name, value in _decode_raw(data).items() if name in names}
        instance._tr_carried = (len(found), _pairs(found)) if found else None
        return instance

    return partial(with_carried, plan.encode), partial(with_carried, plan.encode_unsettled), decode


def with_more(encoded: bytes, count: int, pairs: bytes) -> bytes:
    """An encoded map with ``count`` more pairs at its end."""
    if encoded[0] < 0x90:
        size, start = encoded[0] & 0x0F, 1
    else:
        start = 3 if encoded[0] == 0xDE else 5
        size = int.from_bytes(encoded[1:start], "big")
    size += count
    if size < 16:
        head = bytes((0x80 | size,))
    else:
        head = b"\xde" + size.to_bytes(2, "big") if size < 1 << 16 else b"\xdf" + size.to_bytes(4, "big")
    return b"".join((head, encoded[start:], pairs))


def _pairs(fields: Mapping[str, bytes]) -> bytes:
    return b"".join(_encode(name) + value for name, value in fields.items())


# --- the rows of a key, without a task


def stored_timer(state: StateReader, prefix: bytes, timer: rows.TimerId) -> rows.Timer | None:
    """A pending timer of the key whose rows begin with ``prefix``."""
    value = state.get(prefix)
    if value is None or not value[0] & rows.HAS_TIMERS:
        return None if value is None else rows.timers_inside(value).get(timer)
    row = state.get(rows.timer_row(prefix, *timer))
    return None if row is None else rows.decode_timer(row)


def without(plan: ActorPlan, found: KeyRows, fields: Collection[str], gone: Collection[bytes]) -> KeyRows:
    """A key's rows without some plain fields, their expiries and the rows ``gone``; none if it is bare."""
    expiries = {b"!v" + name.encode() for name in fields}
    left = {
        rest: value
        for rest, value in rows.spread(found).items()
        if rest not in gone and not (rest[:1] == b"t" and rest[2:] in expiries)
    }
    value = left.pop(b"", None)
    if value is None:
        return left
    encoded = value[1:]
    had = raw_fields(encoded)
    if not had.keys().isdisjoint(fields):
        encoded = joined({name: one for name, one in had.items() if name not in fields})
    if not left and _is_blank(plan, encoded):
        return {}
    return rows.gathered({b"": rows.PLAIN + encoded, **left})


def _is_blank(plan: ActorPlan, encoded: bytes) -> bool:
    """Whether an encoded instance has only defaults, in any form."""
    declared = {one.name for one in plan.schema.fields}
    return raw_fields(encoded).keys() <= declared and _rewritten(plan, encoded) == encoded_blank(plan)


def _rewritten(plan: ActorPlan, encoded: bytes) -> bytes:
    try:
        return plan.encode(plan.decode(encoded))
    except (*CODEC_ERRORS, AttributeError):
        return encoded
