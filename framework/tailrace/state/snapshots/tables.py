"""Rows as tables, and back: which part of a row (`core.rows`) is in which column.

::

    state      actor  key  kind  field  entry  value  expiry_ms
    timers     actor  key  domain  name  time_ms  cause  depth  payload  decided_ms  inside
    messages   offset  timestamp_ms  key  value  headers
    deleted    row

- A key is in its canonical form, not escaped. A table is ordered as its rows are, by actor and key first.
- ``kind`` is "value", "list" (its bounds), "item" (of a list; ``entry`` is its index) or "entry" (of a map;
  ``entry`` is the map's key). ``field`` and ``entry`` are null where the kind has none.
- ``value`` is what the row holds, byte for byte, the mark of its expiry included. ``expiry_ms`` repeats it
  for readers.
- ``inside``: the timer is inside the ``value`` of its key, and has no row of its own.
- The columns are the whole row: a row that would not come back as it was is refused when it is written.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, TypeAlias

from tailrace.core import rows
from tailrace.core.errors import CorruptStateError
from tailrace.core.records import InputRecord
from tailrace.state.snapshots.arrow import compute, pa
from tailrace.state.snapshots.manifest import TableName

STATE: TableName = "state"
TIMERS: TableName = "timers"
MESSAGES: TableName = "messages"
DELETED: TableName = "deleted"
NAMES = ("actor", "kind", "field", "domain")
"""Columns of few words, many times: they have dictionaries in the files, no other has."""

Chunk: TypeAlias = tuple[list[bytes], list[bytes]]
"""Some rows and their values, ascending."""

_DOMAINS = ("event", "processing")

# Latin-1 reads as bytes; a zero byte in a key is followed by FF, so a key ends at the first 00 00.
_ROW = r"(?s)\As(?P<actor>[^\x00]*)\x00(?P<key>(?:[^\x00]|\x00\xff)*)\x00\x00(?P<rest>.*)\z"
_REST = r"(?s)\A(?P<mark>[lm]|)(?P<field>[^\x00]*)(?P<end>\x00|)(?P<entry>.*)\z"


@cache
def schema_of(table: TableName) -> Any:
    """The ``pyarrow.Schema`` of a table."""
    name, binary, number = pa.dictionary(pa.int32(), pa.string()), pa.binary(), pa.int64()
    header = pa.struct([("name", pa.string()), ("value", binary)])
    columns = {
        STATE: {
            "actor": name,
            "key": binary,
            "kind": name,
            "field": name,
            "entry": binary,
            "value": binary,
            "expiry_ms": number,
        },
        TIMERS: {
            "actor": name,
            "key": binary,
            "domain": name,
            "name": binary,
            "time_ms": number,
            "cause": pa.binary(),
            "depth": pa.int32(),
            "payload": binary,
            "decided_ms": number,
            "inside": pa.bool_(),
        },
        MESSAGES: {
            "offset": number,
            "timestamp_ms": number,
            "key": binary,
            "value": binary,
            "headers": pa.list_(header),
        },
        DELETED: {"row": binary},
    }
    return pa.schema([pa.field(each, kind) for each, kind in columns[table].items()])


# --- from rows ---


def state_tables(row_keys: list[bytes], values: list[bytes]) -> tuple[Any, Any]:
    """The ``RecordBatch``es of state and timers from state rows. Raises CorruptStateError for others."""
    keys, contents = pa.array(row_keys, pa.binary()), pa.array(values, pa.binary())
    parts = compute.extract_regex(keys, _ROW)
    if parts.null_count:
        place: int = compute.index(compute.is_null(parts), True).as_py()
        wrong = row_keys[place]
        raise CorruptStateError(f"no state row has this form: {wrong!r}")
    actor, key, rest = (parts.field(name) for name in ("actor", "key", "rest"))
    actor = actor.cast(pa.string()).dictionary_encode()
    if _holds_zero(key):
        key = compute.replace_substring(key, b"\0\xff", b"\0")
    is_value = compute.equal(compute.binary_length(rest), 0)
    timers = _timers(actor, key, rest, values, is_value)
    if compute.all(is_value).as_py() in (True, None):
        return _only_values(actor, key, contents), timers
    is_timer = compute.equal(compute.binary_slice(rest, 0, 1), b"t")
    columns = [actor, key, rest, contents]
    if not compute.any(is_timer).as_py():
        return _state(*columns), timers
    is_state = compute.invert(is_timer)
    return _state(*(column.filter(is_state) for column in columns)), timers


def empty(table: TableName) -> Any:
    """A batch without rows."""
    return pa.RecordBatch.from_pylist([], schema_of(table))


def _only_values(actor: Any, key: Any, value: Any) -> Any:
    count = len(actor)
    field = pa.nulls(count, pa.dictionary(pa.int32(), pa.string()))
    columns = [
        actor,
        key,
        _same("value", count),
        field,
        pa.nulls(count, pa.binary()),
        value,
        pa.nulls(count, pa.int64()),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=schema_of(STATE))


def _same(word: str, count: int) -> Any:
    return pa.DictionaryArray.from_arrays(pa.repeat(pa.scalar(0, pa.int32()), count), pa.array([word]))


def _state(actor: Any, key: Any, rest: Any, value: Any) -> Any:
    parts = compute.extract_regex(rest, _REST)
    mark, field, end, entry = (parts.field(name) for name in ("mark", "field", "end", "entry"))
    is_value = compute.equal(compute.binary_length(rest), 0)
    is_map, is_list = compute.equal(mark, b"m"), compute.equal(mark, b"l")
    known = compute.or_(is_value, compute.and_(compute.or_(is_map, is_list), compute.equal(end, b"\0")))
    if not compute.all(known, min_count=0).as_py():
        wrong = rest[compute.index(known, False).as_py()].as_py()
        raise CorruptStateError(
            f"a row of a kind that is not known: it ends in {wrong!r}",
            hint="It was written by a newer version. Take the snapshot with that version.",
        )
    is_bounds = compute.and_(is_list, compute.equal(compute.binary_length(entry), 0))
    none = pa.scalar(None, pa.binary())
    kind = compute.if_else(
        is_value, "value", compute.if_else(is_map, "entry", compute.if_else(is_bounds, "list", "item"))
    )
    has_no_entry = compute.or_(is_value, is_bounds)
    columns = [
        actor,
        key,
        kind.dictionary_encode(),
        compute.if_else(is_value, none, field).cast(pa.string()).dictionary_encode(),
        compute.if_else(has_no_entry, none, entry),
        value,
        _expiries(is_map, value),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=schema_of(STATE))


def _expiries(is_map: Any, value: Any) -> Any:
    expires = compute.and_(is_map, compute.invert(compute.starts_with(value, rows.STAYS)))
    if not compute.any(expires).as_py():
        return pa.nulls(len(value), pa.int64())
    times = [rows.time_of(each[1:9]) for each in value.filter(expires).to_pylist()]
    places = compute.if_else(
        expires, compute.subtract(compute.cumulative_sum(expires.cast(pa.int64())), 1), None
    )
    return pa.array(times, pa.int64()).take(places)


def _timers(actor: Any, key: Any, rest: Any, values: Sequence[bytes], is_value: Any) -> Any:
    only_values = compute.all(is_value).as_py() in (True, None)
    ends: Sequence[bytes] = [b""] * len(values) if only_values else rest.to_pylist()
    places, found, inside = list[int](), list[tuple[rows.TimerId, rows.Timer]](), list[bool]()
    for place, (end, data) in enumerate(zip(ends, values, strict=True)):
        if (not end and data[:1] and data[0] & rows.HAS_TIMERS_INSIDE) or end[:1] == b"t":
            some = _timers_of(end, data)
            found += some.items()
            places += [place] * len(some)
            inside += [not end] * len(some)
    if not places:
        return empty(TIMERS)
    columns = [
        actor.take(places),
        key.take(places),
        pa.array([_DOMAINS[domain] for (domain, _), _ in found], pa.string()).dictionary_encode(),
        pa.array([name for (_, name), _ in found], pa.binary()),
        pa.array([timer.time_ms for _, timer in found], pa.int64()),
        pa.array([timer.cause for _, timer in found], pa.binary()),
        pa.array([timer.depth for _, timer in found], pa.int32()),
        pa.array([timer.payload for _, timer in found], pa.binary()),
        pa.array([timer.decided_ms for _, timer in found], pa.int64()),
        pa.array(inside, pa.bool_()),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=schema_of(TIMERS))


def _timers_of(end: bytes, data: bytes) -> dict[rows.TimerId, rows.Timer]:
    """The timers inside a value row, or the one of a timer row."""
    if not end:
        found = rows.timers_inside(data)
        is_canonical = data.startswith(rows.value_head(found))
    else:
        found = {(end[1] if end[1:] else -1, end[2:]): rows.decode_timer(data)}
        is_canonical = all(rows.encode_timer(timer) == data for timer in found.values())
    if not is_canonical:
        raise CorruptStateError(f"a timer is not in its canonical encoding: {data!r}")
    if not all(0 <= domain < len(_DOMAINS) for domain, _ in found):
        raise CorruptStateError("a timer of a time domain that is not known")
    return found


def messages_table(messages: Sequence[InputRecord]) -> Any:
    """The ``pyarrow.RecordBatch`` of inbox records."""
    columns = (
        [message.offset for message in messages],
        [message.timestamp_ms for message in messages],
        [message.key for message in messages],
        [message.value for message in messages],
        [[{"name": name, "value": value} for name, value in message.headers] for message in messages],
    )
    schema = schema_of(MESSAGES)
    arrays = [pa.array(column, field.type) for column, field in zip(columns, schema, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def deleted_table(row_keys: Sequence[bytes]) -> Any:
    """The ``pyarrow.RecordBatch`` of rows that are gone."""
    return pa.RecordBatch.from_arrays([pa.array(list(row_keys), pa.binary())], schema=schema_of(DELETED))


# --- and back ---


def chunk_of_state(batch: Any) -> Chunk:
    """The rows that a batch of the state table stands for."""
    entry = batch.column("entry")
    value: list[bytes] = batch.column("value").to_pylist()
    if entry.null_count == len(entry) and compute.all(_is(batch, "kind", "value")).as_py():
        return _rows(batch), value
    is_value = _is(batch, "kind", "value")
    none = pa.scalar(None, pa.binary())
    mark = compute.if_else(is_value, none, compute.if_else(_is(batch, "kind", "entry"), b"m", b"l"))
    field = _plain(batch.column("field"))
    return _rows(batch, mark, field, compute.if_else(is_value, none, b"\0"), entry), value


def chunk_of_timers(batch: Any) -> Chunk:
    """The rows that a batch of the timers table stands for: those of timers that are not inside another row."""
    batch = batch.filter(compute.invert(batch.column("inside")))
    domain = compute.if_else(_is(batch, "domain", _DOMAINS[0]), b"\0", b"\1")
    numbers = zip(
        *(batch.column(name).to_pylist() for name in ("time_ms", "cause", "depth", "payload", "decided_ms")),
        strict=True,
    )
    values = [rows.encode_timer(rows.Timer(*each)) for each in numbers]
    return _rows(batch, b"t", domain, batch.column("name")), values


def messages_of(batch: Any) -> list[InputRecord]:
    """The inbox records of a batch."""
    columns = (batch.column(name).to_pylist() for name in ("offset", "timestamp_ms", "key", "value"))
    headers = (
        tuple((header["name"], header["value"]) for header in each)
        for each in batch.column("headers").to_pylist()
    )
    return list(map(InputRecord, *columns, headers))


CHUNKS: dict[TableName, Callable[[Any], Chunk]] = {STATE: chunk_of_state, TIMERS: chunk_of_timers}


def _rows(batch: Any, *rest: Any) -> list[bytes]:
    key = batch.column("key")
    if _holds_zero(key):
        key = compute.replace_substring(key, b"\0", b"\0\xff")
    parts = [rows.STATE, _plain(batch.column("actor")), b"\0", key, b"\0\0", *rest]
    joined = compute.binary_join_element_wise(*parts, b"", null_handling="skip")
    found: list[bytes] = joined.to_pylist()
    return found


def _plain(names: Any) -> Any:
    """A column of names as bytes."""
    words = names.dictionary_decode() if pa.types.is_dictionary(names.type) else names
    return words.cast(pa.binary())


def _is(batch: Any, column: str, word: str) -> Any:
    return compute.equal(_plain(batch.column(column)), word.encode())


def _holds_zero(key: Any) -> bool:
    return bool(compute.any(compute.match_substring(key, b"\0")).as_py())
