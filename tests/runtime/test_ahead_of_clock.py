"""An event whose time is far ahead of the clock is refused when it is read, and moves nothing."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

import tailrace as tr
from tailrace.core.engine.task import TaskSettings
from tailrace.core.errors import BadRecordError, DefinitionError
from tailrace.runtime.partition import Partition
from tailrace.runtime.slices import PartitionSettings
from tailrace.testing.emitted import dead_letter
from tests.runtime.world import World, replayed, run_dry

A_DAY_MS = 86_400_000
NOW_MS = 1_700_000_000_000
REAL = PartitionSettings(real_clock=True, task=TaskSettings(checked=True))


class Sale(msgspec.Struct, frozen=True):
    shop: str
    at: int


def app_with(on_error: Any = "dead-letter", **options: Any) -> tr.App:
    app = tr.App("shop", partitions=1, on_error=on_error)
    taken = app.topic("sales", Sale, key="shop", event_time="at", **options)
    said = app.topic("said", Sale, key="shop", event_time="at", ahead_of_clock=0)
    again = app.topic("again", Sale, key="shop", event_time=tr.RECORD_TIME)

    @app.actor
    class Shop(tr.Actor, order="arrival"):
        count: int = 0

        @tr.process(taken, again)
        def sold(self, event: Sale, ctx: tr.Context[str]) -> None:
            self.count += 1
            ctx.set_timer(event.at + 100)
            ctx.emit(said, Sale(event.shop, event.at))

        @tr.on_timer
        def later(self, ctx: tr.Context[str]) -> None:
            ctx.emit(said, Sale(ctx.key, -self.count))

    @app.actor
    class Echo(tr.Actor):
        heard: int = 0

        @tr.process(said)
        def hear(self, event: Sale, ctx: tr.Context[str]) -> None:
            self.heard += 1

    return app


def one_input(on_error: Any = "dead-letter", **options: Any) -> tr.App:
    """One actor with one input."""
    app = tr.App("shop", partitions=1, on_error=on_error)
    taken = app.topic("sales", Sale, key="shop", event_time="at", **options)
    said = app.topic("said", Sale, key="shop")

    @app.actor
    class Shop(tr.Actor):
        count: int = 0

        @tr.process(taken)
        def sold(self, event: Sale, ctx: tr.Context[str]) -> None:
            self.count += 1
            ctx.set_timer(event.at + 100)
            ctx.emit(said, event)

        @tr.on_timer
        def later(self, ctx: tr.Context[str]) -> None:
            ctx.emit(said, Sale(ctx.key, -self.count))

    return app


class Life:
    """A service by a real clock, which stands at ``NOW_MS``."""

    def __init__(self, app: tr.App, settings: PartitionSettings = REAL) -> None:
        self.world = World(app)
        self.world.now_ms = NOW_MS
        self.partition: Partition = self.world.running(settings=settings)

    def sell(self, *ahead_ms: int, topic: str = "sales", timestamp_ms: int = NOW_MS) -> None:
        for ahead in ahead_ms:
            value = msgspec.json.encode(Sale("a", NOW_MS + ahead))
            self.world.log.append(topic, b"a", value, timestamp_ms)

    def settle(self) -> None:
        run_dry(self.partition)
        if self.partition.dirty:
            self.partition.commit()

    def said(self) -> list[int]:
        return [
            msgspec.json.decode(one.value or b"", type=Sale).at - NOW_MS
            for one in self.world.log.read("said")
        ]

    def letters(self) -> list[tuple[str, int]]:
        found = [dead_letter(one) for one in self.world.log.read("shop.dead-letters")]
        return [(one.reason, int(one.headers["tailrace-offset"])) for one in found]


@pytest.mark.parametrize(
    ("options", "most_ms"),
    [({}, A_DAY_MS), ({"ahead_of_clock": "1h"}, 3_600_000), ({"ahead_of_clock": 0}, 0)],
)
def test_exactly_those_further_ahead_are_refused_and_the_watermark_is_that_of_the_others(
    options: dict[str, Any], most_ms: int
) -> None:
    life = Life(one_input(**options))
    life.sell(-5, most_ms, most_ms + 1, 160 * 365 * A_DAY_MS, most_ms - 7)
    life.settle()
    assert [one for one in life.said() if one > -NOW_MS] == [-5, most_ms, most_ms - 7]
    assert life.letters() == [("from-the-future", 2), ("from-the-future", 3)]
    assert life.partition.task.watermark == NOW_MS + most_ms - 1
    assert (life.partition.task.totals.refused, life.partition.task.totals.late) == (2, 1)


@pytest.mark.parametrize("sound_first", [True, False])
def test_the_clock_counts_when_the_record_is_read_and_a_replay_decides_as_the_service_did(
    sound_first: bool,
) -> None:
    life = Life(one_input())
    for round_ms in (0, 10, A_DAY_MS + 10, 3 * A_DAY_MS):
        life.world.now_ms = NOW_MS + round_ms
        life.sell(*((round_ms, 2 * A_DAY_MS) if sound_first else (2 * A_DAY_MS, round_ms)))
        life.settle()
        if round_ms == 10:
            life.partition.close()
            life.partition = life.world.running(settings=REAL)
    bad = 1 if sound_first else 0
    assert life.letters() == [("from-the-future", bad), ("from-the-future", 2 + bad)]
    outputs, rows = replayed(life.world)
    assert rows == life.world.rows()
    visible = sorted(one[1:] for name in ("said", "shop.dead-letters") for one in life.world.log.read(name))
    assert sorted((time_ms, key, value, headers) for time_ms, key, value, headers in outputs) == visible


def test_where_the_app_stops_on_bad_records_it_is_taken_once_its_time_is_near() -> None:
    life = Life(one_input("stop"))
    life.sell(0, A_DAY_MS + 5)
    with pytest.raises(
        BadRecordError,
        match=r"more than 1d ahead of the clock.*larger ahead_of_clock.*offset 1|offset 1.*ahead_of_clock",
    ):
        life.settle()
    life.partition.close()
    life.world.now_ms += 5
    life.partition = life.world.running(settings=REAL)
    life.settle()
    assert (life.partition.task.totals.records, life.letters()) == (2, [])


def test_only_what_moves_a_watermark_by_its_events_is_compared() -> None:
    """Topics of the app, reference data and arrival times are not; the record's own timestamp is."""
    life = Life(app_with(watermark=False))
    life.sell(30 * A_DAY_MS)
    life.sell(0, topic="again", timestamp_ms=NOW_MS + 30 * A_DAY_MS)
    life.settle()
    assert life.letters() == [("from-the-future", 0)]
    assert life.said() == [30 * A_DAY_MS]
    plan = app_with().plan()
    found = {one.name: one.ahead_of_clock_ms for one in plan.inputs}
    assert found == {"again": A_DAY_MS, "sales": A_DAY_MS, "said": None, "shop.inbox": None}


@pytest.mark.parametrize("settings", [PartitionSettings(), REAL])
def test_any_time_is_accepted_with_none_and_by_a_simulated_clock(settings: PartitionSettings) -> None:
    life = Life(one_input(ahead_of_clock=None) if settings.real_clock else one_input(), settings)
    life.sell(30 * A_DAY_MS)
    life.settle()
    assert (life.said(), life.letters()) == ([30 * A_DAY_MS], [])


def test_a_wrong_duration_is_refused() -> None:
    with pytest.raises(DefinitionError, match="wrong ahead_of_clock"):
        one_input(ahead_of_clock="soon")


def test_what_was_refused_does_not_wait_for_its_turn_after_a_restart_when_its_time_has_come() -> None:
    """An ordered actor reads the events that wait again, and those that were refused among them."""
    app = tr.App("shop", partitions=1, on_error="dead-letter")
    sales = app.topic("sales", Sale, key="shop", event_time="at", out_of_order="10m")
    said = app.topic("said", Sale, key="shop")

    @app.actor
    class Shop(tr.Actor, order="event-time"):
        count: int = 0

        @tr.process(sales)
        def sold(self, event: Sale, ctx: tr.Context[str]) -> None:
            self.count += 1
            ctx.emit(said, event)

    life = Life(app)
    life.sell(5, 2 * A_DAY_MS, 3)
    life.settle()
    assert (life.said(), life.letters()) == ([], [("from-the-future", 1)])
    life.partition.close()
    life.world.now_ms += A_DAY_MS
    for _ in range(2):
        life.partition = life.world.running(settings=REAL)
        life.sell(2 * A_DAY_MS - 7)
        life.settle()
        assert life.said() == [3, 5]
        life.partition.close()
