"""Rows: every key, name and time has one form, and the order of bytes is the order it stands for."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tailrace.core import rows

keys = st.binary(max_size=12)
times = st.integers(-(1 << 62), 1 << 62)
names = st.binary(max_size=6)


@given(keys, keys)
def test_escaped_keys_keep_the_order_of_keys_and_none_is_a_prefix_of_another(a: bytes, b: bytes) -> None:
    left, right = rows.escaped(a), rows.escaped(b)
    assert (left < right) == (a < b)
    if a != b:
        assert not left.startswith(right)


@given(keys, st.binary(max_size=5))
def test_an_escaped_key_is_read_back_with_what_follows_it(key: bytes, rest: bytes) -> None:
    data = b"head" + rows.escaped(key) + rest
    assert rows.unescaped(data, 4) == (key, len(data) - len(rest))


@given(times, times)
def test_bytes_of_times_are_in_the_order_of_time(a: int, b: int) -> None:
    assert (rows.time_bytes(a) < rows.time_bytes(b)) == (a < b)
    assert rows.time_of(rows.time_bytes(a)) == a


@given(times, keys, names, times, keys, names)
def test_index_rows_are_in_the_order_of_firing(
    t1: int, k1: bytes, n1: bytes, t2: int, k2: bytes, n2: bytes
) -> None:
    first = rows.index_row(rows.EVENT_TIME, t1, b"actor", k1, n1)
    second = rows.index_row(rows.EVENT_TIME, t2, b"actor", k2, n2)
    assert (first < second) == ((t1, k1, n1) < (t2, k2, n2))
    assert rows.read_index_row(first) == (t1, "actor", k1, n1)


@given(keys, st.sampled_from([b"", b"t\x00nname", b"mmap\x00key", b"llist\x00"]))
def test_a_state_row_is_taken_apart_into_actor_key_and_rest(key: bytes, rest: bytes) -> None:
    row = rows.actor_prefix("Aircraft") + rows.escaped(key) + rest
    parts = rows.read_state_row(row)
    assert (parts.actor, parts.key, parts.rest) == ("Aircraft", key, rest)


@given(keys, times, times)
def test_the_index_of_a_moved_timer_is_derived_from_its_row(key: bytes, before: int, after: int) -> None:
    row = rows.timer_row(rows.actor_prefix("A") + rows.escaped(key), rows.EVENT_TIME, b"nname")
    old, new = rows.encode_timer(rows.Timer(before, 1)), rows.encode_timer(rows.Timer(after, 2))
    changes = rows.derived_index_rows(row, old, new)
    assert changes[rows.index_row(rows.EVENT_TIME, after, b"A", key, b"nname")] == b""
    if before != after:
        assert changes[rows.index_row(rows.EVENT_TIME, before, b"A", key, b"nname")] is None
    gone = rows.derived_index_rows(row, new, None)
    assert gone == {rows.index_row(rows.EVENT_TIME, after, b"A", key, b"nname"): None}


@given(keys, st.binary(max_size=4))
def test_a_timer_of_any_key_and_name_has_an_index_and_a_value_has_none(key: bytes, name: bytes) -> None:
    prefix, timer = rows.actor_prefix("A") + rows.escaped(key), rows.encode_timer(rows.Timer(1, 2))
    assert len(rows.derived_index_rows(rows.timer_row(prefix, rows.EVENT_TIME, name), None, timer)) == 1
    assert rows.derived_index_rows(prefix, None, timer) == {}


@given(st.binary(max_size=8), times)
def test_the_index_of_an_expiring_entry_is_derived_from_its_row(value: bytes, expiry: int) -> None:
    row = rows.actor_prefix("A") + rows.escaped(b"key") + b"mseen\x00entry"
    packed = rows.pack_entry(value, rows.PROCESSING_TIME, expiry)
    assert rows.unpack_entry(packed) == (value, rows.Expiry(rows.PROCESSING_TIME, expiry))
    name = rows.expiry_name(b"mseen\x00entry")
    index = rows.index_row(rows.PROCESSING_TIME, expiry, b"A", b"key", name)
    assert rows.derived_index_rows(row, None, packed) == {index: b""}
    assert rows.derived_index_rows(row, None, rows.pack_entry(value, rows.EVENT_TIME, None)) == {}


@given(st.binary(min_size=1, max_size=5).filter(lambda p: p.strip(b"\xff") != b""), st.binary(max_size=5))
def test_the_end_of_a_prefix_is_past_all_that_begin_with_it(prefix: bytes, rest: bytes) -> None:
    assert prefix + rest < rows.prefix_end(prefix)
    assert not rows.prefix_end(prefix).startswith(prefix)
