"""A table has the last value of each key, for its log, for its readers and after every replay."""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import Any

import msgspec
import pytest

import tailrace as tr
from tailrace.core.engine.observer import Call, Moment, Observer
from tailrace.core.errors import BadRecordError, HandlerError, OffsetGoneError, ReplayDivergedError
from tailrace.core.records import Output
from tailrace.history.replay.replaying import replay
from tailrace.history.replay.report import ReplayOptions
from tailrace.testing import Harness, System
from tests.tables.stock import Change, Copy, Seen, Stock, changes, oracle, reader, seen, stocks, taken, writer

ITEMS = "abcdefg"


HIDDEN: dict[str, tr.Table[Stock, str]] = {}


def history(random: Random, count: int) -> list[Change]:
    return [
        Change(random.choice(ITEMS), at, random.choice((None, random.randrange(100), random.randrange(100))))
        for at in range(1, count)
    ]


@pytest.mark.one_seed_in(5)
@pytest.mark.parametrize("checked", [True, False])
def test_table_and_copy_are_what_a_dict_is(seeds: range, checked: bool) -> None:
    for seed in seeds:
        random = Random(seed)
        events = history(random, random.randrange(2, 60))
        with System(writer, reader, checked=checked, commit_every=random.choice((None, 1, 3))) as s:
            done = 0
            while done < len(events):
                some = random.randrange(1, 9)
                s.send(changes, *events[done : done + some])
                done += some
                if random.random() < 0.2:
                    s.crash()
            wanted = oracle(events)
            assert {key: one.left for key, one in s[writer].table(stocks).items()} == wanted, seed
            copies = {key: s[reader].state(Copy, key) for key in s[reader].keys(Copy)}
            assert {key: one.left for key, one in copies.items() if one is not None} == wanted, seed
            said: dict[str, list[int | None]] = {}
            for one in s[reader].emitted(seen):
                said.setdefault(one.item, []).append(one.left)
            assert said == {
                item: [one.left for one in events if one.item == item]
                for item in dict.fromkeys(e.item for e in events)
            }, "before a compaction, a reader sees every value and deletion, in order"
            s.replay()


def test_a_deletion_is_a_record_with_the_key_the_time_and_the_origin_and_no_value() -> None:
    with Harness(writer) as h:
        out = h.send(changes, Change("a", 5, 1), Change("a", 7, None))
        assert out.to(stocks) == [Stock("a", 1)]
        assert out.deleted(stocks) == ["a"]
        (record,) = [one for one in h.log.read("stocks") if one.value is None]
        assert (record.key, record.timestamp_ms) == (b"a", 7)
        assert [name for name, _ in record.headers] == ["tailrace-origin"]
        assert h.table(stocks) == {}


def test_a_reader_that_comes_after_a_compaction_gets_the_newest_values_alone() -> None:
    events = history(Random(1), 80)
    with Harness(writer) as w:
        w.send(changes, *events)
        whole = w.log.read("stocks")
        w.log.compact("stocks", drop_deletions=False)
        left = [w.log.read("stocks", number) for number in range(writer.partitions)]
    with Harness(reader) as h:
        for number, records in enumerate(left):
            for one in records:
                h.send_raw(taken, one.value, one.key, one.timestamp_ms, partition=number)
        assert sum(map(len, left)) < len(whole)
        said = h.emitted(seen)
        assert len(said) == len({one.item for one in said}) == len({one.item for one in events})
        assert {one.item: one.left for one in said if one.left is not None} == oracle(events)
        h.replay()


def test_a_history_whose_records_were_compacted_is_not_replayed_in_part() -> None:
    with Harness(reader, partitions=1) as h:
        h.send(taken, Stock("a", 1), Stock("b", 1))
        h.send(taken, Stock("a", 2))
        h.replay()
        h.log.compact("stocks")
        with pytest.raises(OffsetGoneError, match="compacted topic loses all but the last"):
            h.replay()


def test_a_writer_is_replayed_after_a_compaction_and_what_is_left_is_compared() -> None:
    app = tr.App("both", partitions=1)
    numbers = app.topic("numbers", Change)
    table = app.table("table", Stock)
    plain = app.topic("plain", Seen)

    @app.actor
    class Both(tr.Actor):
        @tr.process(numbers)
        def number(self, event: Change, ctx: tr.Context[str]) -> None:
            ctx.emit(table, Stock(event.item, event.left or 0))
            ctx.emit(plain, Seen(event.item, event.left))

    with Harness(app) as h:
        h.send(numbers, Change("a", 1, 1), Change("a", 2, 2), Change("a", 3, 3))
        h.log.compact("table")
        report = h.replay()
        assert any("2 outputs were not compared" in one for one in report.notes)
        assert not any("of other writers" in one for one in report.notes)
        h.log.append_all([Output("table", b"a", table.encode(Stock("a", 99)), 9)])
        says = "the table 'table' has 1 record of other writers, which replace values of the app"
        assert says in h.replay().notes
        del h.log.at("plain", 0).records[1]
        with pytest.raises(ReplayDivergedError, match="plain"):
            h.replay()


def test_an_actor_without_a_handler_of_deletions_skips_them() -> None:
    app = tr.App("kept", partitions=1)
    table = app.table("stocks", Stock)

    @app.actor
    class Kept(tr.Actor):
        left: int  # required: a deletion must not make an instance

        @tr.process(table)
        def set(self, event: Stock, ctx: tr.Context[str]) -> None:
            self.left = event.left

    with Harness(app) as h:
        h.send(table, Stock("a", 1))
        h.delete(table, "a", "b")
        one = h.state(Kept, "a")
        assert one is not None
        assert one.left == 1
        assert h.keys(Kept) == ["a"]
        assert h.replay().records == 3


def test_the_event_time_of_a_deletion_is_the_timestamp_of_its_record() -> None:
    app = tr.App("timed", partitions=1)
    table = app.table("timed-stocks", Change, key="item", event_time="at", out_of_order=10)
    times: list[int] = []

    @app.actor
    class Timed(tr.Actor):
        @tr.on_delete(table)
        def gone(self, ctx: tr.Context[str]) -> None:
            times.append(ctx.event_time)

    with Harness(app, checked=False) as h:
        h.send(table, Change("a", 1_000, 1))
        h.delete(table, "a", timestamp_ms=2_000)
        assert times == [2_000]
        assert h.watermark() == 2_000 - 10 - 1


def test_a_deletion_that_fails_is_undone_and_is_a_dead_letter_without_a_value() -> None:
    app = tr.App("failing", partitions=1, on_error="dead-letter")
    table = app.table("stocks", Stock)

    @app.actor
    class Failing(tr.Actor):
        left: int = 0

        @tr.process(table)
        def set(self, event: Stock, ctx: tr.Context[str]) -> None:
            self.left = event.left

        @tr.on_delete(table)
        def gone(self, ctx: tr.Context[str]) -> None:
            self.left = -1
            raise ValueError("no")

    with Harness(app) as h:
        h.send(table, Stock("a", 1))
        h.delete(table, "a")
        (letter,) = h.dead_letters()
        expected = ("stocks", "handler-failed", b"a", None)
        assert (letter.topic, letter.reason, letter.key, letter.value) == expected
        one = h.state(Failing, "a")
        assert one is not None
        assert one.left == 1
        h.replay()


@pytest.mark.parametrize(
    ("key", "value", "reason"),
    [
        (b"b", msgspec.json.encode(Stock("a", 1)), "bad-key"),
        (None, msgspec.json.encode(Stock("a", 1)), "bad-key"),
        (None, None, "missing-key"),
        (b"\xff", None, "bad-key"),
    ],
)
def test_a_record_without_the_key_of_its_event_is_refused(
    key: bytes | None, value: bytes | None, reason: str
) -> None:
    with Harness(reader, partitions=1) as h:
        h.send(taken, Stock("a", 1))
        with pytest.raises(BadRecordError) as caught:
            h.send_raw(taken, value, key)
        assert caught.value.reason == reason


def test_a_record_without_a_value_in_a_topic_that_is_no_table_is_refused() -> None:
    with Harness(writer, partitions=1) as h, pytest.raises(BadRecordError, match=r"no value.*app\.table"):
        h.send_raw(changes, None, b"a")


def test_a_deletion_is_found_in_the_code_and_refused_where_it_is_not() -> None:
    app = tr.App("found", partitions=1)
    numbers = app.topic("numbers", Change)
    table, other, plain = app.table("table", Stock), app.table("other", Stock), app.topic("plain", Stock)

    @app.actor
    class Found(tr.Actor):
        @tr.process(numbers)
        def number(self, event: Change, ctx: tr.Context[str]) -> None:
            assert plain.name  # named, and no table
            ctx.delete(table if event.left is None else HIDDEN["other"], ctx.key)

    HIDDEN.clear()
    (operator,) = [one for one in app.plan().operators if one.name == "Found"]
    assert operator.emits == {table}
    HIDDEN["other"] = other  # the code was read before
    with Harness(app) as h:
        h.send(numbers, Change("a", 1, None))
        with pytest.raises(HandlerError, match=r"emits to 'other', which was not found"):
            h.send(numbers, Change("a", 2, 1))


def test_a_key_of_another_type_and_a_topic_are_refused() -> None:
    app = tr.App("wrong", partitions=1)
    numbers = app.topic("numbers", Change)
    table = app.table("table", Stock)

    @app.actor
    class Wrong(tr.Actor):
        @tr.process(numbers)
        def number(self, event: Change, ctx: tr.Context[str]) -> None:
            ctx.delete(table if event.left else numbers, event.left)  # type: ignore[arg-type, misc]  # pyright: ignore[reportArgumentType]

    with Harness(app) as h:
        with pytest.raises(HandlerError, match="the key 1 is not of type str"):
            h.send(numbers, Change("a", 1, 1))
        with pytest.raises(HandlerError, match="which is not a table"):
            Harness(app).send(numbers, Change("a", 1, None))


class Watching(Observer):
    """An observer that notes which calls there were, and what goes to no handler."""

    def __init__(self) -> None:
        self.said: list[str] = []

    def begins(self, call: Call, /) -> None:
        self.said.append(f"{call.handler} {call.moment.event}")

    def passed_over(self, moment: Moment, why: str, /) -> None:
        self.said.append(f"{moment.key}: {why}")


def test_an_observer_sees_deletions_and_those_that_no_handler_takes() -> None:
    app = tr.App("seen", partitions=1)
    table, kept = app.table("table", Stock), app.table("kept", Stock)

    @app.actor
    class Gone(tr.Actor, order="arrival"):
        @tr.on_delete(table)
        def gone(self, ctx: tr.Context[str]) -> None: ...

        @tr.process(kept)
        def set(self, event: Stock, ctx: tr.Context[str]) -> None: ...

    with Harness(app) as h:
        h.delete(table, "a")
        h.delete(kept, "b")
        watching = Watching()
        replay(h.plan, h.log, ReplayOptions(observer=watching))
    assert watching.said == ["Gone.gone Deleted.DELETED", "b: a deletion, which no handler takes"]


def test_an_ordered_actor_takes_no_table_unless_it_takes_each_value_as_it_arrives() -> None:
    def app(**options: Any) -> tr.App:
        made = tr.App("ordered", partitions=1)
        numbers, table = made.topic("numbers", Change), made.table("table", Stock, **options)

        @made.actor
        class Ordered(tr.Actor, order="event-time"):
            @tr.process(numbers)
            def number(self, event: Change, ctx: tr.Context[str]) -> None: ...

            @tr.process(table)
            def set(self, event: Stock, ctx: tr.Context[str]) -> None: ...

        return made

    with pytest.raises(
        tr.DefinitionError, match="takes the table 'table', of which the log may have deleted"
    ):
        app().plan()
    app(watermark=False).plan()


def run(code: str, names: dict[str, Any]) -> dict[str, Any]:
    exec(compile(code, "tables.md", "exec", dont_inherit=True), names)
    return names


def test_the_code_of_the_page_runs() -> None:
    page = (Path(__file__).parents[2] / "docs" / "tables.md").read_text()
    blocks = [one.partition("```")[0] for one in page.split("```python\n")[1:]]
    begin = """
import msgspec
import tailrace as tr
from tailrace.testing import Harness, System

class Sale(msgspec.Struct, tr.Keyed[str], frozen=True):
    shop: tr.Key[str]
    euros: int

other = tr.App("other")
"""
    writing, window, reading, tested = blocks
    names = run(begin + writing + window + tested, {"__name__": "page"})
    names = names | run('revenues = other.table("revenues", Revenue)\n' + reading, dict(names))
    with System(names["app"], names["other"]) as s:
        s.send(names["sales"], names["Sale"]("Ada", 5), names["Sale"]("Bob", 7), names["Sale"]("Ada", -5))
        assert s[names["other"]].keys(names["Ranking"]) == ["Bob"]
