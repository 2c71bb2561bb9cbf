"""An input that lost its end and grew past it again is an error at every start, until the operator says how to continue.

The oracle is arithmetic: which amounts a task has added up.
"""

from __future__ import annotations

import logging
from typing import Any

import msgspec
import pytest

import tailrace as tr
from tailrace.core.errors import OffsetGoneError, OtherHistoryError
from tailrace.core.records import RecordMark
from tailrace.history.reading.changelog import last_cut
from tailrace.log import TopicPartition
from tailrace.runtime.slices import PartitionSettings
from tailrace.state.provenance import provenance_of
from tests.runtime.world import Kill, Said, Sale, World, run_dry

AFTER_DELETED = PartitionSettings(after_deleted=True)


def adding_app(order: Any = "arrival", disorder: str = "0ms") -> tr.App:
    app = tr.App("shop", partitions=1)
    sales = app.topic("sales", Sale, key="shop", event_time="at", out_of_order=disorder, idle_after="1d")
    said = app.topic("said", Said, key="shop")

    @app.actor
    class Shop(tr.Actor, order=order):
        total: int = 0

        @tr.process(sales)
        def sold(self, event: Sale, ctx: tr.Context[str]) -> None:
            self.total += event.amount
            ctx.emit(said, Said(event.shop, str(self.total)))

    return app


def sold(count: int, amount: int, first: int = 0) -> list[tuple[str, int, int]]:
    return [("a", 1_000 * number, amount) for number in range(first, first + count)]


def lose_end(world: World, end: int, topic: str = "sales") -> None:
    (part,) = world.log._of(topic)
    part.records, part.end = [one for one in part.records if one.offset < end], end


def worked(world: World, **options: Any) -> None:
    partition = world.running(**options)
    run_dry(partition)
    partition.revoke()


def total(world: World) -> int:
    """What the task has added up, as it said last."""
    return int(msgspec.json.decode(world.log.read("said")[-1].value or b"", type=Said).what)


def marks(world: World) -> dict[str, RecordMark]:
    last = last_cut(world.log, TopicPartition("shop.changelog", 0))
    return provenance_of(last).read


def made(count: int = 100, **options: Any) -> World:
    world = World(adding_app(**options), commit_interval_ms=0)
    world.sell(*sold(count, 100))
    worked(world)
    return world


@pytest.mark.parametrize("kept", [0, 10, 99])
@pytest.mark.parametrize("now", [100, 110])
def test_an_input_that_lost_its_end_and_grew_again_is_an_error_at_every_start(kept: int, now: int) -> None:
    world = made()
    lose_end(world, kept)
    world.sell(*sold(now - kept, 1, kept))
    for further in range(3):
        with pytest.raises(
            OtherHistoryError, match="has another record at offset 99, and the app 'shop' has"
        ) as raised:
            world.running()
        assert raised.value.why == "record"
        assert "--after-deleted" in str(raised.value)
        world.sell(*sold(5, 1, now + 5 * further))
    worked(world, settings=AFTER_DELETED)
    assert total(world) == 100 * 100 + (now - 100) + 15
    worked(world)
    world.sell(*sold(5, 1, 200))
    worked(world)
    assert total(world) == 100 * 100 + (now - 100) + 20


def test_the_same_end_is_no_error_and_neither_is_more_behind_it() -> None:
    world = made()
    lose_end(world, 50)
    world.sell(*sold(60, 100, 50))
    worked(world)
    assert total(world) == 100 * 110


def test_an_input_that_is_shorter_than_what_was_read_is_an_error_until_it_is_accepted(
    caplog: pytest.LogCaptureFixture,
) -> None:
    world = made()
    lose_end(world, 60)
    for _ in range(2):
        with pytest.raises(OtherHistoryError, match="ends at 60, and the app 'shop' has read it up to 99"):
            world.running()
    with caplog.at_level(logging.WARNING):
        worked(world, settings=AFTER_DELETED)
    assert "continues at offset 60" in caplog.text
    assert marks(world) == {}
    assert world.committed() == {"sales": 60, "shop.inbox": 0}
    world.sell(*sold(50, 1, 60))
    worked(world)
    assert total(world) == 100 * 100 + 50
    assert marks(world)["sales"].offset == 109


def test_a_reader_that_is_cut_off_by_a_lost_end_fails_and_so_does_the_next_start() -> None:
    world = made()
    partition = world.running()
    lose_end(world, 60)
    with pytest.raises(OffsetGoneError):
        partition.poll()
    world.sell(*sold(50, 1, 60))
    with pytest.raises(OtherHistoryError, match="another record at offset 99"):
        world.running()


def test_deleted_and_compacted_records_are_not_compared() -> None:
    world = made()
    world.log.delete_before("sales", 0, 100)
    world.sell(*sold(5, 1, 100))
    worked(world)
    assert total(world) == 100 * 100 + 5
    other = World(adding_app(), commit_interval_ms=0)
    other.log._settings["sales"] = other.log._settings["sales"]._replace(compacted=True)
    other.sell(*sold(5, 1))
    worked(other)
    other.sell(*sold(5, 1, 5))
    other.log.compact("sales")
    worked(other)
    assert total(other) == 6


def test_while_events_wait_the_mark_is_of_the_last_record_read() -> None:
    world = made(20, order="event-time", disorder="5s")
    assert marks(world)["sales"].offset == 19
    assert world.committed()["sales"] < 19
    worked(world)
    lose_end(world, 19)
    world.sell(*sold(5, 1, 19))
    with pytest.raises(OtherHistoryError, match="another record at offset 19"):
        world.running()


def test_a_commit_that_fails_leaves_the_marks_of_the_one_before() -> None:
    world = made(20)
    before = marks(world)
    assert before == {"sales": RecordMark.of(world.log.read("sales")[19])}
    world.sell(*sold(5, 1, 20))
    partition = world.running()
    with world.striking("commit", Kill()), pytest.raises(Kill):
        run_dry(partition)
    world.running()
    assert marks(world) in (before, {"sales": RecordMark.of(world.log.read("sales")[24])})


def with_extra() -> World:
    """An app that reads another input, too."""
    app = adding_app()
    extra = app.topic("extra", Sale, key="shop", event_time="at", idle_after="1d")

    @app.process(extra)
    def ignore(event: Sale, ctx: tr.Context[str]) -> None: ...

    return World(app, commit_interval_ms=0)


def test_a_mark_stays_while_its_input_is_left() -> None:
    world = with_extra()
    world.sell(*sold(3, 1), topic="extra")
    worked(world)
    both, world.plan = world.plan, adding_app().plan()
    world.sell(*sold(3, 1))
    worked(world)
    lose_end(world, 2, "extra")
    world.sell(*sold(3, 2, 2), topic="extra")
    worked(world)
    world.plan = both
    with pytest.raises(OtherHistoryError, match="'extra' partition 0 has another record at offset 2"):
        world.running()
    worked(world, settings=AFTER_DELETED)
    worked(world)
    assert marks(world)["extra"].offset == 4


def test_a_mark_stays_while_nothing_is_read() -> None:
    world = with_extra()
    world.sell(*sold(5, 1))
    worked(world)
    world.sell(*sold(3, 1), topic="extra")
    worked(world)
    assert {name: one.offset for name, one in marks(world).items()} == {"sales": 4, "extra": 2}
    worked(world)
    lose_end(world, 4)
    world.sell(*sold(2, 2, 4))
    with pytest.raises(OtherHistoryError, match="'sales' partition 0 has another record at offset 4"):
        world.running()
