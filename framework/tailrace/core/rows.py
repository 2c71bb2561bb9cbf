"""The rows of a task's state: keys, fields, entries and timers as ordered byte strings.

All rows of one key of one actor are adjacent, so that one scan reads or clears them::

    s <actor> 00 <key> 0000                          value      flags byte, the timers, the fields as a msgpack map
    s <actor> 00 <key> 0000 l <list> 00              list       its bounds
    s <actor> 00 <key> 0000 l <list> 00 <index>      entry      of a list
    s <actor> 00 <key> 0000 m <map> 00 <map key>     entry      of a map
    s <actor> 00 <key> 0000 t <domain> <name>        timer      time, cause, depth, payload, decided; only of a key with many
    i <domain> <actor> 00 <time> <key> 0000 <name>   index      empty; derived from the rows above, local to a
                                                                store
    k <name>                                         the task's own rows: cut, schema

A key is escaped (00 becomes 00 FF) so that no key is a prefix of another and byte order is key order. Index
rows are never in the changelog: a restore derives them with ``derived_index_rows``.

Timers. A key with few timers has them *inside* its value row, between flags and fields, behind two bytes with
their length. Then an event that sets a timer writes one row, not two, and loading the key reads one row. Of a
key with more than ``INSIDE`` timers, or ``INSIDE_BYTES`` bytes of them, each has a row of its own. Which form a
key has depends only on the timers that it has, so it does not depend on where commits fall. ``spread`` and
``gathered`` convert the rows of a key between the stored form and the form in which every timer has a row.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
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
"""The timers of the key have rows of their own."""
HAS_TIMERS_INSIDE = 0x02
FORMAT = 0x30
"""Version 3 of the value row's format, in the upper half of its flags byte."""

INSIDE = 8
INSIDE_BYTES = 1_024
"""Maximum number of timers inside a value row, and of the bytes that they take."""

_BIAS = 1 << 63
_END_OF_KEY = b"\0\0"


class Timer(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """A pending timer: its time, the id of the cause of the call that set it, its depth in a chain of timers, its payload.

    ``decided_ms``: of a timer in the past, the instant up to which timers had fired when it was set. What it emits to
    streams is late there. The expiry of a plain field is a timer, too, without a cause.
    """

    time_ms: int
    cause: bytes
    depth: int = 0
    payload: bytes | None = None
    decided_ms: int | None = None


TimerId = tuple[int, bytes]
"""Time domain and timer name in bytes."""
Timers = dict[TimerId, Timer]

encode_timer = msgspec.msgpack.Encoder().encode
decode_timer = msgspec.msgpack.Decoder(Timer).decode
_decode_timers = msgspec.msgpack.Decoder(list[tuple[TimerId, Timer]]).decode

PLAIN = bytes((FORMAT,))
WITH_TIMER_ROWS = bytes((FORMAT | HAS_TIMERS,))
_WITH_TIMERS_INSIDE = bytes((FORMAT | HAS_TIMERS_INSIDE,))


def value_head(timers: Mapping[TimerId, Timer]) -> bytes:
    """The bytes of a value row in front of the fields, given the key's timers."""
    if not timers:
        return PLAIN
    if len(timers) <= INSIDE:
        encoded = encode_timer(sorted(timers.items()) if len(timers) > 1 else list(timers.items()))
        if len(encoded) <= INSIDE_BYTES:
            return _WITH_TIMERS_INSIDE + len(encoded).to_bytes(2, "big") + encoded
    return WITH_TIMER_ROWS


def start_of_fields(value: bytes) -> int:
    """The position of the fields in a value row."""
    return 3 + int.from_bytes(value[1:3], "big") if value[0] & HAS_TIMERS_INSIDE else 1


def timers_inside(value: bytes) -> Timers:
    """The timers inside a value row."""
    return dict(_decode_timers(value[3 : start_of_fields(value)])) if value[0] & HAS_TIMERS_INSIDE else {}


def spread(found: Mapping[bytes, bytes]) -> dict[bytes, bytes]:
    """The rows of a key, by the part of the name after the key, as if each of its timers had a row."""
    value = found.get(b"")
    if value is None or not value[0] & HAS_TIMERS_INSIDE:
        return dict(found)
    timers = {
        timer_row(b"", *timer): encode_timer(one) for timer, one in sorted(timers_inside(value).items())
    }
    return {**found, b"": WITH_TIMER_ROWS + value[start_of_fields(value) :], **timers}


def gathered(found: Mapping[bytes, bytes]) -> dict[bytes, bytes]:
    """The inverse of ``spread``: the rows of a key as they are stored."""
    timers = {(rest[1], rest[2:]): decode_timer(one) for rest, one in found.items() if rest[:1] == b"t"}
    if b"" not in found:
        return dict(found)
    head = value_head(timers)
    kept = {rest: one for rest, one in found.items() if head == WITH_TIMER_ROWS or rest[:1] != b"t"}
    return {**kept, b"": head + found[b""][start_of_fields(found[b""]) :]}


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


def unnamed_timer(time_ms: int) -> bytes:
    """The stored name of a timer that is named by its time."""
    return b"u" + time_bytes(time_ms)


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
    """The changes of the index for one changed row. Of several rows: ``index_changes``."""
    if row[:1] != STATE:
        return {}
    before = () if old is None else _index_rows(row, old)
    after = () if new is None else _index_rows(row, new)
    return {**dict.fromkeys(before), **dict.fromkeys(after, b"")}


def index_changes(
    changed: Iterable[tuple[bytes, bytes | None, bytes | None]],
    get: Callable[[bytes], bytes | None] | None = None,
) -> dict[bytes, bytes | None]:
    """The changes of the index for rows with their old and new values: used while restoring from a changelog.

    A timer that moves between its own row and the value row keeps its index row, in whatever order they come.
    ``get`` reads the other rows, if the rows of a key may be divided between several calls.
    """
    gone: dict[bytes, tuple[bytes, bytes | None]] = {}
    there: dict[bytes, bytes | None] = {}
    names: set[bytes] = set()
    for row, old, new in changed:
        if row[:1] == STATE:
            names.add(row)
            if old is not None:
                gone.update(dict.fromkeys(_index_rows(row, old), (row, new)))
            if new is not None:
                there.update(dict.fromkeys(_index_rows(row, new), b""))
    changes: dict[bytes, bytes | None] = {}
    for index, (row, new) in gone.items():
        if get is not None and index not in there:
            other = _other_row(index, row, new)
            if other is not None and other not in names:
                value = get(other)
                if value is not None and index in _index_rows(other, value):
                    continue
        changes[index] = None
    return changes | there


def _other_row(index: bytes, row: bytes, new: bytes | None) -> bytes | None:
    """The row that may have a timer which a changed row has no more; None if there is none."""
    prefix = key_prefix(row)
    if row[len(prefix) :][:1] == b"t":
        return prefix
    if row == prefix and new is not None and new[0] & HAS_TIMERS:
        return timer_row(prefix, index[1], read_index_row(index)[3])
    return None


def _index_rows(row: bytes, value: bytes) -> Iterable[bytes]:
    # A value's row (most rows): the first zero byte after the actor's is the last but one, and ends the key.
    if row.find(b"\0", row.index(b"\0", 1) + 1) == len(row) - 2 and not value[0] & HAS_TIMERS_INSIDE:
        return ()
    parts = read_state_row(row)
    actor, rest = parts.actor.encode(), parts.rest
    if not rest:
        return [
            index_row(domain, one.time_ms, actor, parts.key, name)
            for (domain, name), one in timers_inside(value).items()
        ]
    if rest[:1] == b"t":
        return (index_row(rest[1], decode_timer(value).time_ms, actor, parts.key, rest[2:]),)
    if rest[:1] == b"m" and (expiry := unpack_entry(value)[1]) is not None:
        return (index_row(expiry.domain, expiry.time_ms, actor, parts.key, expiry_name(rest)),)
    return ()


def prefix_end(prefix: bytes) -> bytes:
    """The first byte string after all strings that begin with ``prefix``."""
    stripped = prefix.rstrip(b"\xff")
    return stripped[:-1] + bytes((stripped[-1] + 1,))


Rows = Mapping[bytes, bytes | None]

# --- messages ---

encode_envelope = msgspec.msgpack.Encoder().encode
decode_envelope = msgspec.msgpack.Decoder(tuple[str, str, bytes]).decode
"""The content of an inbox record: the actor's name, the message's name, and the encoded message."""
