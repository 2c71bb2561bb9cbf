"""The canonical order, seen from a handler: clock, idle inputs, messages."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

import tailrace as tr
from tailrace.core.engine import tape
from tailrace.core.engine.canonical import Canonical
from tailrace.core.engine.input_lane import PartitionHistory
from tailrace.core.engine.task import Task
from tailrace.core.errors import UsageError
from tailrace.core.records import Head, InputRecord, Output
from tailrace.core.values.partitioner import partition_of
from tailrace.state import MemoryStore


class Knock(msgspec.Struct, frozen=True):
    door: str
    at: int
    to: str = ""


class Heard(msgspec.Struct, frozen=True):
    door: str
    what: str


class Ask(msgspec.Struct, frozen=True):
    what: str
    then: str = ""


def house(partitions: int) -> tr.App:
    """Doors that say who knocks, and knock at other doors."""
    app = tr.App("house", partitions=partitions)
    front = app.topic("front", Knock, key="door", event_time="at")
    rear = app.topic("rear", Knock, key="door", event_time="at", out_of_order="1h")
    heard = app.topic("heard", Heard, key="door")

    @app.actor
    class Door(tr.Actor, order="arrival"):
        n: int = 0

        @tr.process(front, rear)
        def knock(self, event: Knock, ctx: tr.Context[str]) -> None:
            self.n += 1
            ctx.emit(heard, Heard(ctx.key, f"knock {event.at} at {ctx.now}, watermark {ctx.watermark}"))
            for door in event.to.split():
                ctx.send(Door, door, Ask(f"{ctx.key} {event.at}", "echo"))

        @tr.on_message
        def asked(self, message: Ask, ctx: tr.Context[str]) -> None:
            ctx.emit(heard, Heard(ctx.key, f"asked by {message.what} at {ctx.now}"))
            if message.then:
                ctx.send(Door, message.what.split()[0], Ask(f"{ctx.key} back"))

    return app


class House:
    """All tasks of the app over what its topics hold."""

    def __init__(self, partitions: int, **topics: list[tuple[Knock, int]]) -> None:
        self.app = house(partitions)
        self.log: dict[tuple[str, int], list[InputRecord]] = {}
        for name, knocks in topics.items():
            topic: tr.Topic[Any, Any] = self.app.topics[name]
            for knock, timestamp_ms in knocks:
                key = topic.encode_key(knock)
                records = self.log.setdefault((name, partition_of(key or b"", partitions)), [])
                records.append(InputRecord(len(records), timestamp_ms, key, topic.encode(knock)))
        self.tasks = [Task(self.app.plan(), number, MemoryStore()) for number in range(partitions)]

    def past(self, number: int) -> PartitionHistory:
        return PartitionHistory(
            lambda name, start, stop: self.log.get((name, number), [])[start:stop],
            {name: len(self.log.get((name, number), [])) for name in ("front", "rear")},
        )

    def heard(self, *, together: bool = True) -> list[str]:
        """What was heard, in the order of the whole app."""
        said: list[str] = []
        canonical = Canonical(
            self.tasks,
            [self.past(number) for number in range(len(self.tasks))],
            deliver=(lambda _name, _partition, _record: None) if together else None,
        )
        for _ in canonical.go():
            for number in range(len(self.tasks)):
                said += [text(output) for output in canonical.outputs(number) if output.topic == "heard"]
        return said


def text(output: Output) -> str:
    event = msgspec.json.decode(output.value or b"", type=Heard)
    return f"{event.door}: {event.what}"


def test_a_message_is_delivered_right_after_the_step_that_sent_it_and_before_any_other_record() -> None:
    knocks = [(Knock("a", 1_000, "b c"), 5), (Knock("b", 2_000), 6), (Knock("c", 5_000), 7)]
    assert partition_of(b"a", 3) == partition_of(b"c", 3) != partition_of(b"b", 3)
    assert House(3, front=knocks).heard() == [
        "a: knock 1000 at 5, watermark -4611686018427387904",
        "b: asked by a 1000 at 5",
        "c: asked by a 1000 at 5",
        "a: asked by b back at 5",
        "a: asked by c back at 5",
        "b: knock 2000 at 6, watermark -4611686018427387904",
        "c: knock 5000 at 7, watermark -4611686018427387904",
    ]


def test_a_timer_of_a_receiver_fires_between_the_records_that_are_taken_together(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    app = tr.App("reminding", partitions=1)
    ticks = app.topic("ticks", Knock, key="door", event_time="at", out_of_order=0)
    heard = app.topic("heard", Heard, key="door")

    @app.actor
    class Clock(tr.Actor):
        count: int = 0

        @tr.process(ticks)
        def tick(self, event: Knock, ctx: tr.Context[str]) -> None:
            self.count += 1
            ctx.emit(heard, Heard("tick", str(event.at)))
            if self.count == 1:
                ctx.send(Reminder, "a", Ask("50"))

    @app.actor
    class Reminder(tr.Actor):
        n: int = 0

        @tr.on_message
        def asked(self, message: Ask, ctx: tr.Context[str]) -> None:
            self.n += 1
            ctx.set_timer(ctx.event_time + int(message.what))

        @tr.on_timer
        def remind(self, ctx: tr.Context[str]) -> None:
            ctx.emit(heard, Heard("remind", str(ctx.event_time)))

    taken: list[int] = []
    run = Task.run

    def counted(task: Task, number: int, heads: Sequence[Head], start: int = 0) -> int:
        after = run(task, number, heads, start)
        taken.append(after - start)
        return after

    monkeypatch.setattr(Task, "run", counted)
    times = range(1_000, 1_100, 10)
    records = [InputRecord(n, 0, b"k", ticks.encode(Knock("k", at))) for n, at in enumerate(times)]
    past = PartitionHistory(lambda _, start, stop: records[start:stop], {"ticks": len(records)})
    canonical = Canonical([Task(app.plan(), 0, MemoryStore())], [past], deliver=lambda *_: None)
    for _ in canonical.go():
        pass
    # The watermark is 1 ms behind the newest tick, so the tick at 1060 lets the timer of 1050 fire.
    wanted = [f"tick: {at}" for at in times]
    wanted.insert(7, "remind: 1050")
    assert [text(one) for one in canonical.outputs(0) if one.topic == "heard"] == wanted
    assert max(taken) > 2


def test_the_clock_is_the_greatest_timestamp_so_far() -> None:
    knocks = [(Knock("a", 1_000), 50), (Knock("a", 2_000), 40), (Knock("a", 3_000), 60)]
    heard = House(1, front=knocks).heard()
    assert [one.split()[4].rstrip(",") for one in heard] == ["50", "50", "60"]


def test_the_clock_stops_at_the_last_instant_whatever_timestamp_a_record_bears() -> None:
    heard = House(1, front=[(Knock("a", 1_000), -(2**63)), (Knock("a", 2_000), 2**63 - 1)]).heard()
    assert [one.split()[4].rstrip(",") for one in heard] == ["0", str(2**61 - 1)]


def test_an_input_at_its_end_holds_the_others_for_its_time_and_is_awake_again_in_the_end() -> None:
    stamped = [(4_000_000, 100_000), (4_500_000, 159_999), (9_000_000, 160_000), (9_500_000, 500_000)]
    one = House(
        1, front=[(Knock("a", at), stamp) for at, stamp in stamped], rear=[(Knock("a", 4_000_100), 7)]
    )
    heard = one.heard()
    # "rear" keeps an hour for what is late, and comes to its end when the clock says 100,000.
    expected = ["4000000", "4000100", "4500000", "9000000", "9500000"]
    assert [said.split(" at ")[0].split()[-1] for said in heard] == expected
    expected = ["-4611686018427387904", "400099", "4499999", "8999999"]
    assert [said.split("watermark ")[1] for said in heard[1:]] == expected
    cut = tape.decode_cut(one.tasks[0].commit_batch().cut)
    assert (cut.idle, cut.watermark) == ([], 9_499_999)


def test_an_input_without_records_holds_the_others_from_the_first_reading_of_the_clock_on() -> None:
    heard = House(
        1, front=[(Knock("a", at), stamp) for at, stamp in ((10, 70_000), (20, 129_999), (30, 130_000))]
    ).heard()
    nothing = "-4611686018427387904"
    assert [said.split("watermark ")[1] for said in heard] == [nothing, nothing, "19"]


def test_a_published_watermark_is_applied_when_what_lies_before_it_has_been_read() -> None:
    app = tr.App("down", partitions=1)
    topic = app.topic("knocks", Knock, key="door", event_time="at", watermark="upstream")
    seen: list[tuple[int, int]] = []

    @app.process(topic)
    def knock(event: Knock, ctx: tr.Context[str]) -> None:
        seen.append((event.at, ctx.watermark))

    records = [
        InputRecord(offset, 0, None, topic.encode(Knock("a", at)))
        for offset, at in ((0, 10), (1, 20), (4, 30), (5, 40))
    ]
    task = Task(app.plan(), 0, MemoryStore())
    past = PartitionHistory(
        lambda _, start, stop: [one for one in records if start <= one.offset < stop],
        {"knocks": 6},
        {"knocks": [(0, 5), (3, 15), (5, 25), (6, 35)]},
    )
    for _ in Canonical([task], [past], window=2).go():
        pass
    assert seen == [(10, 5), (20, 5), (30, 15), (40, 25)]
    assert task.watermark == 35


def test_some_of_an_apps_tasks_are_refused() -> None:
    one = House(2)
    with pytest.raises(UsageError, match="Give one task"):
        Canonical(one.tasks, [one.past(0), one.past(1)])
    with pytest.raises(UsageError, match="Give one task"):
        Canonical(one.tasks[:1], [one.past(0)], deliver=lambda _name, _partition, _record: None)
