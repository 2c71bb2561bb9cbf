"""Event times that look like seconds since 1970 are refused, unless the topic says that they are
milliseconds.
"""

from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest

import tailrace as tr
from tailrace.core.engine.task import Task
from tailrace.core.errors import BadRecordError, HandlerError
from tailrace.core.records import InputRecord
from tailrace.state import MemoryStore
from tailrace.testing import Harness

NOW_S = 1_760_000_000
FIRST, LAST = 1_000_000_000, 4_102_444_800
DAY_MS = 86_400_000


class Reading(msgspec.Struct):
    sensor: str
    at: int


class Nested(msgspec.Struct):
    sensor: str
    inner: Reading


def task_of(event_type: Any = Reading, *, on_error: Any = "stop", **options: Any) -> Task:
    app = tr.App("sensors", partitions=1, on_error=on_error)
    readings = app.topic("readings", event_type, key="sensor", **options)

    def counted(self: Any, event: Any, ctx: tr.Context[str]) -> None:
        self.seen += 1

    counted.__annotations__["event"] = event_type

    @app.actor
    class Sensor(tr.Actor):
        seen: int = 0
        take = tr.process(readings)(counted)

    return Task(app.plan(), 0, MemoryStore())


def records(*times: Any) -> list[InputRecord]:
    return [
        InputRecord(offset, 0, None, msgspec.json.encode({"sensor": "hall", "at": time}))
        for offset, time in enumerate(times)
    ]


def taken(task: Task, *times: Any) -> int:
    """How many records with these event times are taken."""
    return task.run(0, task.decode(0, records(*times)))


@pytest.mark.parametrize("time_s", [FIRST, NOW_S, LAST])
def test_the_first_time_in_seconds_stops_the_task_and_the_message_has_the_fix(time_s: int) -> None:
    task = task_of(event_time="at")
    with pytest.raises(BadRecordError) as caught:
        taken(task, 0, 1_000, time_s, time_s + 1)
    assert (caught.value.reason, caught.value.offset) == ("bad-time", 2)
    said = str(caught.value)
    assert f"{time_s} ms (1970-0" in said
    assert "looks like seconds since 1970" in said
    assert "event_time=lambda event: event.at * 1000" in said
    assert "time_range=(0, " in said
    assert task.positions["readings"] == 2, "what came before it is taken"


def test_a_time_in_seconds_is_a_dead_letter_where_the_topic_says_so() -> None:
    task = task_of(event_time="at", on_error="dead-letter")
    assert taken(task, 5, NOW_S, 6) == 3
    (letter,) = task.take_outputs()
    headers = dict(letter.headers)
    assert headers["tailrace-reason"] == b"bad-time"
    assert b"looks like seconds" in headers["tailrace-error"]
    assert b"event_time=lambda event: event.at * 1000" in headers["tailrace-error"]
    assert (task.totals.refused, task.totals.records) == (1, 2)


@pytest.mark.parametrize(
    "times",
    [
        [0, 1, 1_000, 50 * 60_000],
        [0, 10 * DAY_MS, FIRST - 1],
        [LAST + 1, 60 * DAY_MS],
        [0, LAST + 1],
        [NOW_S * 1000, NOW_S * 1000 + 1],
    ],
)
def test_small_times_of_tests_and_times_of_today_are_taken(times: list[int]) -> None:
    assert taken(task_of(event_time="at"), *times) == len(times)


@pytest.mark.parametrize("low", [0, datetime(1970, 1, 1, tzinfo=UTC), FIRST])
def test_a_time_range_that_includes_them_says_that_they_are_milliseconds(low: Any) -> None:
    assert taken(task_of(event_time="at", time_range=(low, 1 << 45)), FIRST, NOW_S, LAST) == 3


def test_a_function_that_gives_seconds_is_refused_like_a_field_and_one_that_multiplies_is_not() -> None:
    with pytest.raises(BadRecordError, match="looks like seconds"):
        taken(task_of(event_time=lambda event: event.at), NOW_S)
    assert taken(task_of(event_time=lambda event: event.at * 1000), NOW_S) == 1


def test_the_fix_names_a_nested_field_by_its_path() -> None:
    task = task_of(Nested, event_time="inner.at")
    value = msgspec.json.encode({"sensor": "hall", "inner": {"sensor": "hall", "at": NOW_S}})
    with pytest.raises(BadRecordError, match=r"lambda event: event\.inner\.at \* 1000"):
        task.run(0, task.decode(0, [InputRecord(0, 0, None, value)]))


@pytest.mark.parametrize("source", [tr.RECORD_TIME, tr.ARRIVAL_TIME])
def test_a_time_that_is_no_field_is_not_suspected(source: Any) -> None:
    task = task_of(event_time=source)
    assert task.run(0, task.decode(0, [InputRecord(0, NOW_S, None, b'{"sensor":"hall","at":1}')])) == 1


def giving(where: str, time: Any, on_error: Any = "stop") -> tuple[tr.App, tr.Topic[Reading, str]]:
    """A handler that gives a time to a record or a timer."""
    app = tr.App("seconds", partitions=1, on_error=on_error)
    readings = app.topic("readings", Reading, key="sensor", event_time="at")
    out = app.topic("out", Reading, key="sensor")

    @app.actor
    class Sensor(tr.Actor):
        seen: int = 0

        @tr.process(readings)
        def take(self, event: Reading, ctx: tr.Context[str]) -> None:
            if where == "at":
                ctx.emit(out, event, at=time)
            elif where == "timer":
                ctx.set_timer(time, "due")
            elif where == "cancel":
                ctx.cancel_timer(time)
            else:
                ctx.set_processing_timer(time)

        @tr.on_timer("due")
        def due(self, ctx: tr.Context[str]) -> None:
            self.seen += 1

        @tr.on_processing_timer
        def rang(self, ctx: tr.Context[str]) -> None:
            self.seen += 1

        @tr.on_timer
        def unnamed(self, ctx: tr.Context[str]) -> None:
            self.seen += 1

    return app, readings


@pytest.mark.parametrize("where", ["at", "timer", "cancel", "clock"])
@pytest.mark.parametrize(
    ("time", "here_ms", "refused"),
    [
        (NOW_S, NOW_S * 1_000, True),
        (FIRST, FIRST * 1_000, True),
        (LAST, NOW_S * 1_000, True),
        (NOW_S, 5_000, False),  # a test that stands in 1970
        (FIRST - 1, NOW_S * 1_000, True),  # a duration
        (15 * 60_000, NOW_S * 1_000, True),
        (1, FIRST * 1_000, True),
        (15 * 60_000, FIRST * 1_000 - 1, False),
        (LAST + 1, NOW_S * 1_000, False),
        (0, NOW_S * 1_000, False),
        (NOW_S * 1_000, NOW_S * 1_000, False),
        (datetime.fromtimestamp(NOW_S / 1_000, UTC), NOW_S * 1_000, False),
    ],
)
def test_a_handler_of_this_century_that_gives_seconds_or_a_duration_is_told(
    where: str, time: Any, here_ms: int, refused: bool
) -> None:
    app, readings = giving(where, time)
    with Harness(app, now_ms=here_ms) as h:
        if not refused:
            h.send(readings, Reading("a", here_ms))
            h.replay()
            return
        said = (
            r"looks like seconds.*multiply by 1000"
            if time >= FIRST
            else r"looks like a duration: .*ctx\.event_time"
        )
        with pytest.raises(HandlerError, match=said):
            h.send(readings, Reading("a", here_ms))


@pytest.mark.parametrize("where", ["at", "timer", "cancel", "clock"])
@pytest.mark.parametrize("time", [NOW_S, 15 * 60_000])
def test_such_a_time_may_come_from_a_field_so_its_event_is_a_dead_letter(where: str, time: int) -> None:
    app, readings = giving(where, time, "dead-letter")
    with Harness(app, now_ms=NOW_S * 1_000) as h:
        h.send(readings, Reading("a", NOW_S * 1_000))
        assert [one.reason for one in h.dead_letters()] == ["handler-failed"]
        h.replay()


@pytest.mark.parametrize("where", ["timer", "cancel"])
@pytest.mark.parametrize("time", [2**61, 2**63 - 1, -(2**63)])
def test_a_timer_at_what_is_no_instant_names_who_set_it(where: str, time: int) -> None:
    app, readings = giving(where, time)
    said = r"Sensor\.take uses a timer with a wrong time: .*out of range"
    with Harness(app) as h, pytest.raises(HandlerError, match=said):
        h.send(readings, Reading("a", 1))
