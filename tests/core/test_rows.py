"""Rows: every key, name and time has one form, and the order of bytes is the order it stands for."""

from __future__ import annotations

from random import Random

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


timer_sets = st.dictionaries(
    st.tuples(st.sampled_from((rows.EVENT_TIME, rows.PROCESSING_TIME)), st.binary(max_size=3)),
    st.builds(rows.Timer, times, st.binary(max_size=16), payload=st.none() | st.binary(max_size=3)),
    max_size=rows.INSIDE + 2,
)


def stored(timers: dict[rows.TimerId, rows.Timer], fields: bytes = b"fields") -> dict[bytes, bytes]:
    spread = {rows.timer_row(b"", *timer): rows.encode_timer(one) for timer, one in timers.items()}
    return rows.gathered({b"": rows.PLAIN + fields, **spread})


@given(timer_sets, st.binary(max_size=8))
def test_the_rows_of_a_key_have_its_timers_and_its_fields_in_one_form(
    timers: dict[rows.TimerId, rows.Timer], fields: bytes
) -> None:
    found = stored(timers, fields)
    assert len(found) == (1 if len(timers) <= rows.INSIDE else 1 + len(timers))
    assert found[b""][rows.start_of_fields(found[b""]) :] == fields
    assert found[b""][: -len(fields) or None] == rows.value_head(dict(reversed(timers.items())))
    spread = rows.spread(found)
    assert rows.gathered(spread) == found
    names = {rest: one for rest, one in spread.items() if rest}
    assert names == {rows.timer_row(b"", *timer): rows.encode_timer(one) for timer, one in timers.items()}
    if len(timers) <= rows.INSIDE:
        assert rows.timers_inside(found[b""]) == timers


def test_few_timers_with_long_names_have_rows_of_their_own() -> None:
    timers = {(0, b"n" * 600): rows.Timer(1, b"1"), (1, b"n" * 600): rows.Timer(2, b"2")}
    assert len(stored(timers)) == 3
    del timers[1, b"n" * 600]
    assert len(stored(timers)) == 1


@given(keys, timer_sets, timer_sets, st.randoms())
def test_the_index_of_changed_rows_is_that_of_the_new_timers_in_whatever_order_they_come(
    key: bytes, before: dict[rows.TimerId, rows.Timer], after: dict[rows.TimerId, rows.Timer], random: Random
) -> None:
    prefix = rows.actor_prefix("A") + rows.escaped(key)
    old, new = stored(before), stored(after)
    changed = [(prefix + rest, old.get(rest), new.get(rest)) for rest in {**old, **new}]
    random.shuffle(changed)

    def index_of(timers: dict[rows.TimerId, rows.Timer]) -> set[bytes]:
        return {rows.index_row(where, one.time_ms, b"A", key, name) for (where, name), one in timers.items()}

    changes = rows.index_changes(changed)
    assert {row for row, mark in changes.items() if mark is not None} == index_of(after)
    assert changes.keys() == index_of(before) | index_of(after)


# One more or less of eight timers moves all of them between the value row and rows of their own.
many_sets = st.dictionaries(
    st.tuples(
        st.just(rows.EVENT_TIME), st.sampled_from([b"n%d" % number for number in range(rows.INSIDE + 3)])
    ),
    st.builds(rows.Timer, st.integers(0, 2), st.just(b"")),
    min_size=rows.INSIDE - 1,
)


@given(st.lists(many_sets, min_size=1, max_size=4), st.randoms())
def test_a_restore_that_takes_the_rows_of_a_key_one_by_one_has_an_exact_index(
    versions: list[dict[rows.TimerId, rows.Timer]], random: Random
) -> None:
    prefix = rows.actor_prefix("A") + rows.escaped(b"key")
    store: dict[bytes, bytes] = {}
    index: dict[bytes, bytes] = {}
    for timers in versions:
        old = {row[len(prefix) :]: value for row, value in store.items()}
        new = stored(timers)
        for rest in random.sample(changed := sorted({**old, **new}), len(changed)):
            row, value = prefix + rest, new.get(rest)
            changes = rows.index_changes([(row, store.get(row), value)], store.get)
            for held, to in ((store, {row: value}), (index, changes)):
                for name, one in to.items():
                    if one is None:
                        held.pop(name, None)
                    else:
                        held[name] = one
        exact = rows.index_changes((row, None, value) for row, value in store.items())
        assert index == exact


@given(st.binary(max_size=8), times)
def test_the_index_of_an_expiring_entry_is_derived_from_its_row(value: bytes, expiry: int) -> None:
    row = rows.actor_prefix("A") + rows.escaped(b"key") + b"mseen\x00entry"
    packed = rows.pack_entry(value, rows.PROCESSING_TIME, expiry)
    assert rows.unpack_entry(packed) == (value, rows.Expiry(rows.PROCESSING_TIME, expiry))
    name = rows.expiry_name(b"mseen\x00entry")
    index = rows.index_row(rows.PROCESSING_TIME, expiry, b"A", b"key", name)
    assert rows.derived_index_rows(row, None, packed) == {index: b""}
    assert rows.derived_index_rows(row, packed, None) == {index: None}
    assert rows.derived_index_rows(row, None, rows.pack_entry(value, rows.EVENT_TIME, None)) == {}


@given(st.binary(min_size=1, max_size=5).filter(lambda p: p.strip(b"\xff") != b""), st.binary(max_size=5))
def test_the_end_of_a_prefix_is_past_all_that_begin_with_it(prefix: bytes, rest: bytes) -> None:
    assert prefix + rest < rows.prefix_end(prefix)
    assert not rows.prefix_end(prefix).startswith(prefix)
