"""Snapshots to look at: rows of every kind, written and published."""

from collections.abc import Iterable, Sequence
from typing import Any

from hypothesis import strategies as st

from tailrace.core import rows
from tailrace.core.records import InputRecord
from tailrace.state.snapshots import Manifest, Snapshots, TaskEntry, write_task

Row = tuple[bytes, bytes]
NO_LIMITS: dict[str, int] = {}

zeros = st.sampled_from(
    [b"", b"\0", b"\0\0", b"\0\xff", b"\xff", b"\xff\0", b"a\0b", b"a", b"\n", "é".encode()]
)
key_bytes = zeros | st.binary(max_size=4)
fields = st.sampled_from(["legs", "per_port", "l", "m", "t", "é"])
times = st.integers(-(2**62), 2**62)
entries = st.binary(max_size=3).map(lambda value: rows.STAYS + value) | st.builds(
    rows.pack_entry, st.binary(max_size=3), st.sampled_from([0, 1]), times
)
values = st.binary(max_size=12)
timers = st.builds(
    rows.Timer, times, st.binary(max_size=16), st.integers(0, 2**31 - 1), st.none() | st.binary(max_size=3)
)

names = st.tuples(st.sampled_from([0, 1]), key_bytes)
value_rows = st.builds(
    lambda head, fields: rows.value_head(head) + fields,
    st.dictionaries(names, timers, max_size=rows.INSIDE + 1),
    values,
)

rests = st.one_of(
    st.tuples(st.just(b""), value_rows),
    st.tuples(fields.map(lambda name: b"l" + name.encode() + b"\0"), values),
    st.builds(
        lambda name, index, value: (b"l" + name.encode() + b"\0" + index, value),
        fields,
        st.binary(min_size=1, max_size=9),
        values,
    ),
    st.builds(
        lambda name, key, value: (b"m" + name.encode() + b"\0" + key, value), fields, key_bytes, entries
    ),
    st.builds(
        lambda domain, name, timer: (b"t" + bytes((domain,)) + name, rows.encode_timer(timer)),
        st.sampled_from([0, 1]),
        key_bytes,
        timers,
    ),
)
state_rows = st.dictionaries(
    st.tuples(st.sampled_from(["Aircraft", "A", "Ärger"]), key_bytes, rests), st.none(), max_size=25
).map(
    lambda found: {
        rows.actor_prefix(actor) + rows.escaped(key) + rest: value for actor, key, (rest, value) in found
    }
)
records = st.builds(
    InputRecord,
    st.integers(0, 2**62),
    times,
    st.none() | st.binary(max_size=3),
    st.none() | st.binary(max_size=3),
    st.lists(st.tuples(st.text(max_size=3), st.binary(max_size=3)), max_size=2).map(tuple),
)


def some_rows(count: int = 20, prefix: str = "N") -> dict[bytes, bytes]:
    """A few keys with a value, a map entry and a timer each."""
    found = dict[bytes, bytes]()
    for number in range(count):
        begin = rows.actor_prefix("Aircraft") + rows.escaped(f"{prefix}{number:05d}".encode())
        found[begin] = rows.WITH_TIMER_ROWS + b"value"
        found[begin + b"mper_port\0JFK"] = rows.STAYS + b"%d" % number
        found[rows.timer_row(begin, 0, b"overdue")] = rows.encode_timer(
            rows.Timer(1_000 + number, b"%d" % number)
        )
    return dict(sorted(found.items()))


def published(
    snapshots: Snapshots,
    tasks: Iterable[dict[bytes, bytes]] = (some_rows(),),
    *,
    id: str | None = None,
    created_ms: int | None = None,
    messages: Iterable[InputRecord] = (),
    deleted: Iterable[bytes] | None = None,
    groups: dict[str, int] = NO_LIMITS,
    schemas: Sequence[bytes] = (b"",),
    **about: Any,
) -> Manifest:
    """A snapshot of these tasks, published. ``groups``: the sizes of row groups, as of ``write_task``; ``schemas``: of the tasks in turn."""
    draft = snapshots.begin(id, created_ms)
    entries = tuple(
        TaskEntry(
            partition,
            b"cut",
            schema=schemas[partition % len(schemas)],
            files=write_task(
                draft.folder_uri,
                partition,
                "a",
                sorted(task.items()),
                messages=messages,
                deleted=deleted,
                **groups,
            ),
        )
        for partition, task in enumerate(tasks)
    )
    return snapshots.publish(manifest_of(snapshots, draft.id, draft.created_ms, entries, **about))


def manifest_of(
    snapshots: Snapshots, id: str, created_ms: int, tasks: tuple[TaskEntry, ...], **about: Any
) -> Manifest:
    """A manifest of these tasks, not yet published."""
    return Manifest(
        id=id, app=snapshots.app, version="1.0", partitions=len(tasks),
        created_ms=created_ms, tasks=tasks, **about,
    )  # fmt: skip
