"""Windows in a service on a log: two nights give what one gives, and rebuilds what has lived."""

from __future__ import annotations

from pathlib import Path
from random import Random

import msgspec
import pytest

import tailrace as tr
from tailrace import agg, windows
from tailrace.core.records import InputRecord, Output
from tailrace.core.rows import decode_timer, read_state_row
from tailrace.core.values.partitioner import partition_of
from tests.history.rebuilding import any_app
from tests.history.rebuilding.lived import append, done, live, live_on, read, rebuilt


class Reading(msgspec.Struct, tr.Keyed[str], frozen=True):
    room: tr.Key[str]
    at: tr.EventTime[int]
    value: float


class Given(msgspec.Struct, frozen=True):
    room: tr.Key[str]
    start: int
    end: int
    value: float
    kind: str


def service(*, fails: bool = False) -> tr.App:
    """``fails``: some results are refused, and dead letters."""
    app = tr.App("rooms", partitions=2, on_error="dead-letter" if fails else "stop")
    readings = app.topic("readings", Reading, out_of_order=100)
    given = app.topic("given", Given)
    moving = app.window("moving", readings, windows.sliding(40, every=15), agg.mean(lambda r: r.value))
    app.window("visits", moving, windows.sessions(30, at_most=200), agg.max(lambda w: w.value), into=given)
    app.window(
        "corrected", readings, windows.tumbling(50), agg.total(lambda r: r.value), lateness=60, into=given
    )
    sums = app.window("sums", readings, windows.tumbling(30), agg.count())

    @app.process(sums)
    def refuse(one: tr.Windowed[str, int], ctx: tr.Context[str]) -> None:
        if fails and one.start % 90 == 0:
            raise ValueError("not this one")

    return app


def events(seed: int, disorder: int) -> list[Reading]:
    random = Random(seed)
    times = [1_700_000_000_000 + n * 4 - random.randrange(disorder) for n in range(300)]
    return [Reading(f"r{random.randrange(4)}", at, random.random()) for at in times]


def outputs(some: list[Reading]) -> list[Output]:
    found = [Output("readings", one.room.encode(), msgspec.json.encode(one), one.at) for one in some]
    return sorted(found, key=lambda one: partition_of(one.key or b"", 2))


def by_key(records: list[InputRecord]) -> dict[bytes | None, list[bytes | None]]:
    found: dict[bytes | None, list[bytes | None]] = {}
    for one in records:
        found.setdefault(one.key, []).append(one.value)
    return found


def values(task: list[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes | int]]:
    """The rows of a task: of a timer its time, without the seed that it gets from what has set it."""
    is_timer = [read_state_row(row).rest[:1] == b"t" for row, _ in task]
    return [
        (row, decode_timer(value).time_ms if t else value)
        for t, (row, value) in zip(is_timer, task, strict=True)
    ]


@pytest.mark.parametrize("disorder", [100, 400])
def test_two_nights_give_what_one_gives(tmp_path: Path, disorder: int) -> None:
    app = any_app.place(service())
    some = events(disorder, disorder)
    for name, nights in (("one", [some]), ("two", [some[:170], some[170:]])):
        for night in nights:
            append(tmp_path / name, outputs(night), {"readings": 2})
            live_on(tmp_path / name, app, ends=False)
    one, two = (by_key(read(tmp_path / name, "given")) for name in ("one", "two"))
    assert one
    assert {key: sorted(map(repr, each)) for key, each in one.items()} == {
        key: sorted(map(repr, each)) for key, each in two.items()
    }
    plan = service().plan()
    rows = [[task.rows for task in live(tmp_path / name, plan)] for name in ("one", "two")]
    assert any(rows[0]), "windows stay open"
    if disorder == 100:
        assert [values(task) for task in rows[0]] == [values(task) for task in rows[1]]


@pytest.mark.parametrize("fails", [False, True])
@pytest.mark.parametrize("disorder", [100, 400])
def test_a_rebuild_is_what_has_lived(tmp_path: Path, disorder: int, fails: bool) -> None:
    app = any_app.place(service(fails=fails))
    for night in (events(1, disorder)[:100], events(1, disorder)[100:]):
        append(tmp_path, outputs(night), {"readings": 2})
        live_on(tmp_path, app, ends=False)
    lived = [task.rows for task in live(tmp_path, service(fails=fails).plan())]
    assert any(lived)
    assert bool(read(tmp_path, "rooms.dead-letters")) == fails
    _, snapshot = done(tmp_path, app, store="memory", any_environment=True, order="tape")
    assert [task.rows for task in rebuilt(snapshot)] == lived
    if disorder == 100:  # without late events, any order gives the same
        _, snapshot = done(tmp_path, app, store="memory", any_environment=True, order="canonical")
        assert [values(task.rows) for task in rebuilt(snapshot)] == [values(task) for task in lived]
