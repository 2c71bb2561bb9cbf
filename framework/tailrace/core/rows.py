"""The rows of a task's state: keys, fields, entries and timers as ordered byte strings.

All rows of one key of one actor are adjacent, so that one scan reads or clears them::

    s <actor> 00 <key> 0000                          value      flags byte, then the fields as a msgpack map
    s <actor> 00 <key> 0000 l <list> 00              list       its bounds
    s <actor> 00 <key> 0000 l <list> 00 <index>      entry      of a list
    s <actor> 00 <key> 0000 m <map> 00 <map key>     entry      of a map
    s <actor> 00 <key> 0000 t <domain> <name>        timer      time, seed, depth
    i <domain> <actor> 00 <time> <key> 0000 <name>   index      empty; derived from the rows above, local to a
                                                                store
    k <name>                                         the task's own rows: cut, schema

A key is escaped (00 becomes 00 FF) so that no key is a prefix of another and byte order is key order. Index
rows are never in the changelog: a restore derives them with ``derived_index_rows``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import msgspec

STATE = b"s"
INDEX = b"i"
KEEP = b"k"
CUT_ROW = b"kcut"
SCHEMA_ROW = b"kschema"

EVENT_TIME = 0
PROCESSING_TIME = 1

HAS_TIMERS = 0x01
FORMAT = 0x10
"""Version 1 of the value row's format, in the upper half of its flags byte."""

_BIAS = 1 << 63
_END_OF_KEY = b"\0\0"


class Timer(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """A pending timer: its time, the seed for its handler's randomness, and its depth in a chain of timers.

    The expiry of a plain field is a timer, too.
    """

    time_ms: int
    seed: int
    depth: int = 0


encode_timer = msgspec.msgpack.Encoder().encode
decode_timer = msgspec.msgpack.Decoder(Timer).decode


def actor_prefix(actor: str) -> bytes:
    """The prefix of all rows of an actor."""
    return STATE + actor.encode() + b"\0"


def escaped(key: bytes) -> bytes:
    """A key in a self-terminating form that keeps the order of bytes."""
    return (key.replace(b"\0", b"\0\xff") if b"\0" in key else key) + _END_OF_KEY


def unescaped(data: bytes, start: int) -> tuple[bytes, int]:
    """The key that is escaped at ``start``, and the position after it."""
    stop = data.index(_END_OF_KEY, start)
    return data[start:stop].replace(b"\0\xff", b"\0"), stop + 2


def key_prefix(row: bytes) -> bytes:
    """The prefix of all rows of a state row's key: actor and key. A key ends with the first double zero."""
    return row[: row.index(_END_OF_KEY, row.index(b"\0") + 1) + 2]


def time_bytes(time_ms: int) -> bytes:
    """An instant as eight bytes whose order is the order of time."""
    return (time_ms + _BIAS).to_bytes(8, "big")


def time_of(data: bytes) -> int:
    """The instant of ``time_bytes``."""
    return int.from_bytes(data, "big") - _BIAS


def timer_row(prefix: bytes, domain: int, name: bytes) -> bytes:
    """The row of one timer of the key whose rows begin with ``prefix``."""
    return prefix + b"t" + bytes((domain,)) + name


def index_prefix(domain: int, actor: bytes) -> bytes:
    """The prefix of all index rows of one actor in one time domain, which a scan returns by time."""
    return INDEX + bytes((domain,)) + actor + b"\0"


def index_row(domain: int, time_ms: int, actor: bytes, key: bytes, name: bytes) -> bytes:
    """The index row of a timer, or of an entry's expiry. It sorts by the time within its actor."""
    return index_prefix(domain, actor) + time_bytes(time_ms) + escaped(key) + name


def read_index_row(row: bytes) -> tuple[int, str, bytes, bytes]:
    """Time, actor name, key bytes and timer name of an index row."""
    end_of_actor = row.index(b"\0", 2)
    begin = end_of_actor + 9
    key, after = unescaped(row, begin)
    return time_of(row[end_of_actor + 1 : begin]), row[2:end_of_actor].decode(), key, row[after:]


class StateRow(msgspec.Struct, frozen=True):
    """The parts of a state row: actor, key, and the rest, which begins with its kind ('' for the value)."""

    actor: str
    key: bytes
    rest: bytes


def read_state_row(row: bytes) -> StateRow:
    """The parts of a row that begins with ``STATE``."""
    end_of_actor = row.index(b"\0", 1)
    key, after = unescaped(row, end_of_actor + 1)
    return StateRow(row[1:end_of_actor].decode(), key, row[after:])


def is_local(row: bytes) -> bool:
    """Whether a row is derived, and therefore not in the changelog."""
    return row[:1] == INDEX


# --- entries that expire ---

EXPIRES = {EVENT_TIME: b"E", PROCESSING_TIME: b"P"}
"""First byte of an entry's value if it expires; eight bytes of time follow. Others begin with ``STAYS``."""
STAYS = b"-"
_TIMED = 9


class Expiry(NamedTuple):
    """The time domain and the time at which an entry expires."""

    domain: int
    time_ms: int


def pack_entry(value: bytes, domain: int, expiry_ms: int | None) -> bytes:
    """An entry's value with its expiry in front."""
    if expiry_ms is None:
        return STAYS + value
    return EXPIRES[domain] + time_bytes(expiry_ms) + value


def unpack_entry(data: bytes) -> tuple[bytes, Expiry | None]:
    """An entry's value, and its expiry if it has one."""
    if data[:1] == STAYS:
        return data[1:], None
    domain = EVENT_TIME if data[:1] == EXPIRES[EVENT_TIME] else PROCESSING_TIME
    return data[_TIMED:], Expiry(domain, time_of(data[1:_TIMED]))


EXPIRY = b"!"


def expiry_name(rest: bytes) -> bytes:
    """The timer name of the expiry of an entry or field; it sorts before any timer of a user."""
    return EXPIRY + rest


def derived_index_rows(row: bytes, old: bytes | None, new: bytes | None) -> dict[bytes, bytes | None]:
    """The changes of the index for one changed row: used while restoring from a changelog."""
    # A value's row (most rows): the first zero byte after the actor's is the last but one, and ends the key.
    if row[:1] != STATE or row.find(b"\0", row.index(b"\0", 1) + 1) == len(row) - 2:
        return {}
    parts = read_state_row(row)
    changes: dict[bytes, bytes | None] = {}
    for value, mark in ((old, None), (new, b"")):
        if value is None:
            continue
        actor = parts.actor.encode()
        if parts.rest[:1] == b"t":
            time_ms = decode_timer(value).time_ms
            changes[index_row(parts.rest[1], time_ms, actor, parts.key, parts.rest[2:])] = mark
        elif parts.rest[:1] == b"m" and (expiry := unpack_entry(value)[1]) is not None:
            name = expiry_name(parts.rest)
            changes[index_row(expiry.domain, expiry.time_ms, actor, parts.key, name)] = mark
    return changes


def prefix_end(prefix: bytes) -> bytes:
    """The first byte string after all strings that begin with ``prefix``."""
    stripped = prefix.rstrip(b"\xff")
    return stripped[:-1] + bytes((stripped[-1] + 1,))


Rows = Mapping[bytes, bytes | None]

# --- messages ---

encode_envelope = msgspec.msgpack.Encoder().encode
decode_envelope = msgspec.msgpack.Decoder(tuple[str, str, bytes]).decode
"""The content of an inbox record: the actor's name, the message's name, and the encoded message."""
