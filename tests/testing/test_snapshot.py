"""A start from a snapshot in the harness: an older state, old or new code, and what came from
outside since.
"""

from __future__ import annotations

import gc
from pathlib import Path
from random import Random
from typing import Any

import msgspec
import pytest

import tailrace as tr
from tailrace.core.errors import IncompatibleStateError, SnapshotMismatchError, TailraceError, UsageError
from tailrace.testing import Harness
from tests.testing import everything
from tests.testing.everything import Do, Everything, held
from tests.testing.shop import Checkout, Payment, Shop

KEYS = [f"k{number}" for number in range(12)]


def rows(h: Harness) -> list[list[tuple[bytes, bytes]]]:
    """All state as it is stored, by partition."""
    h.recover()
    return [list(store.scan(b"\x01", b"\xff")) for store in h._service.stores]


def filled(h: Harness) -> None:
    for key in KEYS:
        h.send(
            everything.main,
            Do(key, 1_000, "tag", name="x"),
            Do(key, 1_100, "box", 3, "y"),
            Do(key, 1_200, "timer", 500),
            Do(key, 1_200, "alarm", 300),
        )


# --- the same app


@pytest.mark.parametrize("state", ["memory", "rocksdb"])
def test_a_start_has_the_state_the_timers_and_the_clock_of_the_snapshot(state: Any) -> None:
    with Harness(everything.app, now_ms=50) as h:
        filled(h)
        h.advance_watermark(1_300)
        snapshot, stored = h.snapshot(), rows(h)
        assert repr(snapshot) == f"<snapshot {snapshot.id} of the app 'everything'>"
    with Harness(everything.app, start=snapshot, state=state) as new:
        assert rows(new) == stored
        assert new.now == 50
        assert new.watermark() == 1_300
        assert new.keys(Everything) == sorted(KEYS)
        assert new.emitted(everything.did) == []
        new.crash()
        assert rows(new) == stored
        assert sorted(one.key for one in new.advance_watermark(1_700).to(everything.did)) == sorted(KEYS)
        assert len(new.advance_clock(350).to(everything.did)) == len(KEYS)
        report = new.replay()
        assert report.timers == 2 * len(KEYS)
    with Harness(everything.app, start=snapshot, now_ms=700) as new:
        assert new.now == 700


def test_what_came_from_outside_after_the_snapshot_is_read_again_and_nothing_else_is_there() -> None:
    with Harness(everything.app) as h:
        filled(h)
        snapshot = h.snapshot()
        h.send(everything.main, Do("k0", 1_250, "tag", name="later"), Do("new", 1_250, "send", 2, "k1"))
        h.send(everything.main, Do("k0", 1_260, "fail"))
        after, letters = rows(h), h.dead_letters()
        emitted = h.emitted(everything.did)[-5:]
        with Harness(everything.app, start=snapshot) as new:
            assert held(new, Everything, "k0").tags == ["x"]
            assert new.dead_letters() == []
            assert sorted(map(repr, new.send(everything.main).to(everything.did))) == sorted(
                map(repr, emitted)
            )
            assert len(letters) == len(new.dead_letters()) == 1
            assert [[row for row, _ in found] for found in rows(new)] == [
                [row for row, _ in found] for found in after
            ]
            assert held(new, Everything, "k0").tags == ["x", "later"]
            new.replay()
        assert rows(h) == after
        h.replay()


def test_a_harness_can_be_restarted_from_a_snapshot_as_often_as_wanted() -> None:
    with Harness(everything.app) as h:
        h.send(everything.main, Do("a", 1_000, "tag", name="1"))
        first = h.snapshot()
        h.send(everything.main, Do("a", 1_000, "tag", name="2"))
        second = h.snapshot()
        h.send(everything.main, Do("a", 1_000, "tag", name="3"))
        h.end_of_input()
        for snapshot, expected in ((second, ["1", "2"]), (first, ["1"]), (second, ["1", "2"])):
            h.restart(snapshot)
            assert held(h, Everything, "a").tags == expected
        h.send(everything.main, Do("a", 1_000, "tag", name="4"))
        assert held(h, Everything, "a").tags == ["1", "2", "3", "4"]
        assert len(h.emitted(everything.did)) == 2
        third = h.snapshot()
        h.restart(third)
        assert held(h, Everything, "a").tags == ["1", "2", "3", "4"]
        h.replay()


@pytest.mark.one_seed_in(10)  # it writes a snapshot, a file for each task: 0.1 s
def test_from_an_older_snapshot_on_all_comes_to_what_it_came_to_before(seeds: range) -> None:
    """In an app with a topic of its own and messages: what was emitted up to the snapshot is there once,
    later nothing.
    """
    for seed in seeds:
        random = Random(seed)
        shop = Shop(partitions=random.choice([1, 3]), repartition=random.random() < 0.5)
        events: list[tuple[Any, Any]] = [
            (shop.checkouts, Checkout(f"u{n % 3}", f"o{n}", n * 1_000))
            for n in range(random.randrange(1, 12))
        ]
        events += [
            (shop.payments, Payment(event.order, event.at + 500))
            for _, event in events
            if random.random() < 0.7
        ]
        random.shuffle(events)
        at = random.randrange(len(events) + 1)
        options: dict[str, Any] = {
            "slice_size": random.choice([1, 1_000]),
            "commit_every": random.choice([None, 2]),
        }
        with Harness(shop.app, **options) as h:
            for topic, event in events[:at]:
                h.send(topic, event)
            if not at:
                h.advance_watermark(0)
            snapshot, before = h.snapshot(), h.emitted(shop.out)
            for topic, event in events[at:]:
                h.send(topic, event)
            h.end_of_input()
            expected, states = h.emitted(shop.out), told(h, shop)
            h.restart(snapshot)
            if random.random() < 0.5:
                h.crash()
            h.end_of_input()
            found = before + h.emitted(shop.out)
            assert sorted(map(repr, found)) == sorted(map(repr, expected)), f"seed {seed}"
            assert told(h, shop) == states, f"seed {seed}"
            h.replay()


def told(h: Harness, shop: Shop) -> dict[str, Any]:
    orders = {key: h.state(shop.Order, key) for key in h.keys(shop.Order)}
    customers = {key: h.state(shop.Customer, key) for key in h.keys(shop.Customer)}
    found: dict[str, Any] = {
        key: (one.user, one.paid, one.done) for key, one in orders.items() if one is not None
    }
    return found | {
        key: (sorted(one.paid), one.reviewed) for key, one in customers.items() if one is not None
    }


def test_messages_that_were_under_way_arrive_once() -> None:
    with Harness(everything.app, commit_every="manual") as h:
        h.send(everything.main, Do("a", 1_000, "send", 3, "b"))
        h.commit()
        assert h.keys(Everything) == ["a"]
        snapshot = h.snapshot()
        for _ in range(5):
            h.commit()
        expected = sorted((one.key, one.what) for one in h.emitted(everything.did))
        assert expected == [("a", "send"), ("a+", "got"), ("a+", "got"), ("a+", "got"), ("b", "got")]
    with Harness(everything.app, start=snapshot) as new:
        out = new.send(everything.main)
        assert sorted((one.key, one.what) for one in out.to(everything.did)) == expected[1:]
        new.replay()


def test_what_was_taken_is_committed_before_the_snapshot() -> None:
    with Harness(everything.app, commit_every="manual") as h:
        h.send(everything.main, Do("a", 1_000, "tag", name="x"))
        with Harness(everything.app, start=h.snapshot()) as new:
            assert held(new, Everything, "a").tags == ["x"]
        assert [one.key for one in h.commit().to(everything.did)] == ["a"]


def test_a_snapshot_of_an_app_whose_input_has_ended_goes_on() -> None:
    with Harness(everything.app) as h:
        h.send(everything.main, Do("a", 1_000, "timer", 500))
        h.end_of_input()
        snapshot = h.snapshot()
    with Harness(everything.app, start=snapshot) as new:
        new.send(everything.main, Do("a", 2_000, "tag", name="x"))
        assert held(new, Everything, "a").tags == ["x"]
        new.replay()


# --- other code


class Step(msgspec.Struct, frozen=True):
    key: str
    n: int


def counting(version: int, name: str = "counting", partitions: int = 2) -> tuple[tr.App, Any, Any, Any]:
    """Sums up in version 1; in version 2 also keeps how often, and emits another type."""
    app = tr.App(name, partitions=partitions, version=str(version))
    steps = app.topic("steps", Step, key="key")

    if version == 1:
        old = app.topic("sums", Step, key="key")

        @app.actor(name="Counter")
        class First(tr.Actor):
            total: int = 0

            @tr.process(steps)
            def step(self, event: Step, ctx: tr.Context[str]) -> None:
                self.total += event.n
                ctx.emit(old, Step(ctx.key, self.total))

        return app, steps, old, First

    class Sum(msgspec.Struct, frozen=True):
        key: str
        total: int
        times: int

    new = app.topic("sums", Sum, key="key")

    @app.actor(name="Counter")
    class Second(tr.Actor):
        total: int = 0
        times: int = 0

        @tr.process(steps)
        def step(self, event: Step, ctx: tr.Context[str]) -> None:
            self.total += event.n
            self.times += 1
            ctx.emit(new, Sum(ctx.key, self.total, self.times))

    return app, steps, new, Second


def total_of(h: Any, actor: Any) -> int:
    return int(h.state(actor, "a").total)


@pytest.mark.parametrize("name", ["counting", "beside"])
def test_new_code_goes_on_with_the_state_of_the_old_and_its_replay_holds(name: str) -> None:
    app, steps, _, actor = counting(1)
    with Harness(app) as old:
        old.send(steps, Step("a", 1), Step("b", 10))
        snapshot = old.snapshot()
        old.send(steps, Step("a", 2))
        app, new_steps, sums, later = counting(2, name)
        with Harness(app, start=snapshot) as new:
            assert [
                (one.total, one.times) for one in (new.state(later, "a"), new.state(later, "b")) if one
            ] == [(1, 0), (10, 0)]
            new.send(new_steps, Step("a", 4))
            assert [(one.total, one.times) for one in new.emitted(sums)] == [(3, 1), (7, 2)]
            report = new.replay()
            assert report.records == 2
            new.crash()
            new.send(new_steps, Step("a", 5))
            assert new.emitted(sums)[-1].total == 12
            new.replay()
        assert total_of(old, actor) == 3
        old.replay()


def test_state_that_the_new_code_cannot_read_is_told() -> None:
    app, steps, _, _ = counting(1)
    with Harness(app) as old:
        old.send(steps, Step("a", 1))
        snapshot = old.snapshot()
    app = tr.App("counting", partitions=2)
    steps = app.topic("steps", Step, key="key")

    @app.actor(name="Counter")
    class Text(tr.Actor):
        total: str = ""

        @tr.process(steps)
        def step(self, event: Step, ctx: tr.Context[str]) -> None: ...

    with pytest.raises(IncompatibleStateError, match="total"):
        Harness(app, start=snapshot, state="rocksdb")


# --- what does not fit


def test_a_snapshot_of_another_number_of_partitions_is_refused_and_the_harness_goes_on() -> None:
    with Harness(counting(1, partitions=3)[0]) as other:
        other.send(other.plan.topics["steps"], Step("a", 1))
        snapshot = other.snapshot()
    app, steps, _, actor = counting(1)
    with Harness(app) as h:
        h.send(steps, Step("a", 1))
        with pytest.raises(TailraceError, match=r"3 partitions|partitions=3"):
            h.restart(snapshot)
        h.send(steps, Step("a", 1))
        assert total_of(h, actor) == 2
        h.replay()


def test_where_nothing_was_committed_there_is_no_snapshot() -> None:
    with Harness(everything.app) as h, pytest.raises(SnapshotMismatchError, match="has never committed"):
        h.snapshot()


def test_records_on_their_way_to_be_repartitioned_are_in_no_snapshot() -> None:
    shop = Shop(repartition=True, partitions=1)
    with Harness(shop.app, commit_every="manual") as h:
        h.send(shop.checkouts, Checkout("u", "o", 1_000))
        h.commit()
        snapshot = h.snapshot()
        with pytest.raises(SnapshotMismatchError, match="were under way"):
            h.restart(snapshot)


def test_a_closed_harness_takes_no_snapshot_and_does_not_restart() -> None:
    with Harness(everything.app) as h:
        filled(h)
        snapshot = h.snapshot()
    with pytest.raises(UsageError, match="is closed"):
        h.snapshot()
    with pytest.raises(UsageError, match="is closed"):
        h.restart(snapshot)


# --- its folder


def test_the_folder_of_a_snapshot_goes_with_the_last_who_has_it() -> None:
    with Harness(everything.app) as h:
        filled(h)
        snapshot = h.snapshot()
        folder = Path(snapshot._folder)
        h.restart(snapshot)
        del snapshot
        gc.collect()
        assert folder.is_dir()
        h.replay()
    del h
    gc.collect()
    assert not folder.exists()
