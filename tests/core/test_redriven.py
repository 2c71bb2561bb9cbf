"""Redriven records come behind the watermark by no fault of their own: they are handled, whatever the topic
does with late ones.
"""

from __future__ import annotations

from random import Random
from typing import Any, Literal

import msgspec
import pytest

import tailrace as tr
from tailrace.core.engine import tape
from tailrace.core.engine.redriven import OPERATORS_HEADER, REDRIVEN_HEADER, Addressees
from tailrace.core.engine.task import Task
from tailrace.core.records import InputRecord
from tailrace.history.dead_letters.redriving import close_letters
from tailrace.state import MemoryStore
from tailrace.testing import Harness

LATES: list[Literal["handle", "drop", "route"]] = ["handle", "drop", "route"]
BROKEN = {13}
"""What the handlers do not like; a test corrects them by taking it out."""


class Order(msgspec.Struct):
    customer: str
    at: int
    cents: int = 1


def shop(late: Any = "drop", partitions: int = 1) -> tr.App:
    app = tr.App("shop", partitions=partitions, on_error="dead-letter")
    lates = app.topic("lates", Order, key="customer", event_time="at")
    orders = app.topic(
        "orders",
        Order,
        key="customer",
        event_time="at",
        out_of_order=10,
        late=lates if late == "route" else late,
    )

    @app.actor
    class Customer(tr.Actor):
        cents: int = 0
        late: list[int] = tr.field(default_factory=list)

        @tr.process(orders)
        def ordered(self, order: Order, ctx: tr.Context[str]) -> None:
            if order.cents in BROKEN:
                raise ValueError(f"{order.cents} brings bad luck")
            self.cents += order.cents
            if ctx.is_late:
                self.late.append(order.at)

    return app


@pytest.fixture
def broken(monkeypatch: pytest.MonkeyPatch) -> set[int]:
    monkeypatch.setattr("tests.core.test_redriven.BROKEN", found := {13})
    return found


def state_of(harness: Harness, customer: str, actor: str = "Customer") -> Any:
    """The instance of a customer; it is there."""
    cls: Any = next(one.cls for one in harness.plan.actors if one.name == actor)
    return harness.state(cls, customer)


def redrive_all(harness: Harness) -> int:
    sent = close_letters(harness.log, harness.plan.app, "redriven", lambda _: True, now_ms=0).done
    harness.advance_clock(harness.now)  # what has been appended is taken
    assert len(harness.dead_letters()) >= len(sent)
    return len(sent)


@pytest.mark.parametrize("late", LATES)
def test_a_redriven_event_is_handled_however_late_it_comes(late: Any, broken: set[int]) -> None:
    app = shop(late)
    orders = app.topics["orders"]
    with Harness(app) as harness:
        harness.send(orders, Order("a", 100, 13), Order("a", 200))
        broken.clear()
        assert redrive_all(harness) == 1
        state = state_of(harness, "a")
        assert state.cents == 14
        assert state.late == [100], "ctx.is_late does not tell the truth"
        assert harness.late == 0, "counted with those whose producers are late"
        harness.send(orders, Order("a", 100, 5))
        assert harness.late == 1
        assert state_of(harness, "a").cents == (19 if late == "handle" else 14)
        harness.replay()


def test_a_record_redriven_for_another_app_is_passed_over_and_counted(broken: set[int]) -> None:
    """Whoever reads the same topic has had the original."""
    app = shop("handle")
    with Harness(app) as harness:
        harness.send(app.topics["orders"], Order("a", 200))
        for cents, headers in (
            (10, [(REDRIVEN_HEADER, b"other.dead-letters/0-1")]),
            (
                100,
                [
                    (REDRIVEN_HEADER, b"shop.dead-letters/0-1"),
                    (REDRIVEN_HEADER, b"other.dead-letters/0-1@0-9"),
                ],
            ),
            (1_000, [(REDRIVEN_HEADER, b"shop.dead-letters-new/0-1")]),
            (10_000, [(REDRIVEN_HEADER, b"no id")]),
            (100_000, [(REDRIVEN_HEADER, b"other.dead-letters/0-" + b"1" * 5_000)]),
            (1_000_000, [(REDRIVEN_HEADER, b"shop.dead-letters/0-0@" + b"1" * 5_000 + b"-1")]),
        ):
            value = msgspec.json.encode(Order("a", 300, cents))
            harness.log.append("orders", b"a", value, 300, tuple(headers))
        harness.log.append(
            "orders", b"a", b"nobody decodes it", 0, ((REDRIVEN_HEADER, b"other.dead-letters/0-2"),)
        )
        harness.advance_clock(1)
        assert state_of(harness, "a").cents == 1_111_001, "what names no dead letter is a record like any"
        assert [one.task.totals.for_others for one in harness._service.partitions] == [3]
        assert harness.replay().for_others == 3


def test_a_record_is_for_some_operators_only_if_it_was_redriven(broken: set[int]) -> None:
    app = shop("handle")
    orders = app.topics["orders"]

    @app.actor
    class Audit(tr.Actor):
        seen: int = 0

        @tr.process(orders)
        def ordered(self, order: Order, ctx: tr.Context[str]) -> None:
            self.seen += 1

    with Harness(app) as harness:
        named, redriven = (OPERATORS_HEADER, b"Customer"), (REDRIVEN_HEADER, b"shop.dead-letters/0-1")
        for headers in ((named,), ((REDRIVEN_HEADER, b"no id"), named), (redriven, named)):
            harness.log.append("orders", b"a", msgspec.json.encode(Order("a", 300)), 300, headers)
        harness.advance_clock(1)
        assert (state_of(harness, "a").cents, state_of(harness, "a", "Audit").seen) == (3, 2)
        harness.replay()


@pytest.mark.one_seed_in(5)  # one takes 40 ms
def test_what_was_redriven_for_other_apps_changes_nothing(seeds: range, broken: set[int]) -> None:
    """Neither watermarks, idleness, the order of inputs nor the clock: the same run without those records is
    the same.
    """
    for seed in seeds:
        with_them, without = (_run_beside_redriven(Random(seed), redriven=one) for one in (True, False))
        assert with_them == without, seed


def _run_beside_redriven(random: Random, *, redriven: bool) -> Any:
    app = tr.App("shop", partitions=1)
    topics = [
        app.topic(name, Order, key="customer", event_time="at", idle_after="10s", late="drop")
        for name in ("left", "right")
    ]
    said = app.topic("said", Order, key="customer")

    @app.actor
    class Customer(tr.Actor, order="arrival"):
        seen: list[tuple[int, int, int]] = tr.field(default_factory=list)

        @tr.process(*topics)
        def ordered(self, order: Order, ctx: tr.Context[str]) -> None:
            self.seen.append((order.at, ctx.watermark, ctx.now))
            ctx.set_timer(order.at + 30, "soon")

        @tr.on_timer("soon")
        def soon(self, ctx: tr.Context[str]) -> None:
            ctx.emit(said, Order(ctx.key, ctx.event_time, ctx.watermark))

    with Harness(app, slice_size=random.choice((1, 3, 1_000))) as harness:
        at = 1_000
        for _ in range(60):
            at += random.randint(0, 30)
            topic, customer, what = random.choice(topics), random.choice("abc"), random.randrange(10)
            if what < 6:
                harness.send(topic, Order(customer, at - random.choice((0, 0, 40))))
            elif what < 8:
                harness.advance_clock(harness.now + random.choice((1, 4_000, 11_000)))
            elif redriven:
                value = msgspec.json.encode(Order(customer, at + 500, 7))
                header = (REDRIVEN_HEADER, b"other.dead-letters/0-1@0-1")
                harness.log.append(topic.name, customer.encode(), value, at + 5_000, (header,))
        harness.advance_clock(harness.now + 1)
        harness.replay()
        emitted = [(one.customer, one.at, one.cents) for one in harness.emitted(said)]
        states = {key: harness.state(Customer, key) for key in "abc"}
        seen = {key: None if one is None else one.seen for key, one in states.items()}
        return emitted, seen, harness.late, harness.watermark()


def test_an_app_that_goes_on_from_another_takes_what_that_one_had_failed_at() -> None:
    """What had failed before they part is in neither state; what came after, it has read itself."""
    plan = shop("drop").plan()
    before = tape.Predecessor({"orders": [10, 20]})
    asked = Addressees(plan, {"old": before})
    for value, is_ours in (
        (b"old.dead-letters/0-1@0-9", True),
        (b"old.dead-letters/0-1@0-10", False),
        (b"old.dead-letters/0-1@1-19", True),
        (b"old.dead-letters/0-1@7-0", False),
        (b"old.dead-letters/0-1", True),  # of an earlier version, which does not say
        (b"shop.dead-letters/0-1@0-50", True),
        (b"other.dead-letters/0-1@0-1", False),
    ):
        headers = ((REDRIVEN_HEADER, value),)
        assert asked.is_ours(0, headers) is is_ours, value
        assert asked.passes_over(0, headers) is not is_ours, value


def test_a_rebuild_in_event_time_order_skips_a_redriven_record_whose_original_it_reads() -> None:
    asked = Addressees(shop("drop").plan(), {})
    for value, is_skipped in (
        (b"shop.dead-letters/0-1@0-9", False),
        (b"shop.dead-letters/0-1@0-10", True),
        (b"shop.dead-letters/0-1@1-10", False),
        (b"shop.dead-letters/0-1", False),
        (b"other.dead-letters/0-1@0-9", True),
    ):
        asked.originals = None
        assert asked.passes_over(0, ((REDRIVEN_HEADER, value),)) is value.startswith(b"other")
        asked.originals = 0, {"orders": 10}
        assert asked.passes_over(0, ((REDRIVEN_HEADER, value),)) is is_skipped, value


def test_a_redriven_event_that_fails_where_the_app_stops_is_not_taken_from_the_count_of_late_ones(
    broken: set[int],
) -> None:
    app = tr.App("shop", partitions=1, on_error="stop")
    orders = app.topic("orders", Order, key="customer", event_time="at", late="drop")

    @app.process(orders)
    def fails(order: Order, ctx: tr.Context[str]) -> None:
        if order.cents in BROKEN:
            raise ValueError(str(order.cents))

    task = Task(app.plan(), 0, MemoryStore())
    header = (REDRIVEN_HEADER, b"shop.dead-letters/0-1")
    values = [(200, 1, ()), (100, 1, ()), (100, 13, (header,))]
    records = [
        InputRecord(offset, 0, b"a", msgspec.json.encode(Order("a", at, cents)), headers)
        for offset, (at, cents, headers) in enumerate(values)
    ]
    with pytest.raises(tr.TailraceError, match="13"):
        task.run(0, task.decode(0, records))
    assert task.positions["orders"] == 2
    assert task.totals.late == 1


def test_a_late_event_that_cannot_be_routed_leaves_the_next_one_in_time() -> None:
    app = tr.App("shop", partitions=1, on_error="dead-letter")

    def customer(order: Order) -> str:
        if order.cents == 13:
            raise ValueError("no key for a 13")
        return order.customer

    lates = app.topic("lates", Order, key=customer, key_type=str, event_time="at")
    orders = app.topic("orders", Order, key="customer", event_time="at", late=lates)
    seen: list[bool] = []

    @app.process(orders)
    def sees(order: Order, ctx: tr.Context[str]) -> None:
        seen.append(ctx.is_late)

    with Harness(app) as harness:
        harness.send(orders, Order("a", 200), Order("a", 100, 13), Order("a", 300))
        assert seen == [False, False]
        assert harness.late == 1
        assert len(harness.dead_letters()) == 1


def test_what_is_forwarded_by_its_key_says_that_it_was_redriven(broken: set[int]) -> None:
    """It is judged where it arrives by its key: there, too, it is none of the late ones."""
    app = tr.App("shop", partitions=2, on_error="dead-letter")

    def customer(order: Order) -> str:
        if order.cents in BROKEN:
            raise ValueError("no key for a 13")
        return order.customer

    orders = app.topic(
        "orders", Order, key=customer, key_type=str, event_time="at", repartition=True, late="drop"
    )

    @app.actor
    class Customer(tr.Actor):
        cents: int = 0

        @tr.process(orders)
        def ordered(self, order: Order, ctx: tr.Context[str]) -> None:
            self.cents += order.cents

    with Harness(app) as harness:
        for number in range(2):
            value = msgspec.json.encode(Order("a", 100, 13))
            harness.send_raw(orders, value, b"x", partition=number)
            harness.send_raw(orders, msgspec.json.encode(Order("a", 200)), b"x", partition=number)
        broken.clear()
        assert redrive_all(harness) == 2
        harness.advance_clock(1)
        assert state_of(harness, "a").cents == 2 * 14
        assert harness.late == 0
        harness.replay()


def test_a_redriven_event_is_late_for_some_operators_and_goes_to_all_of_them(broken: set[int]) -> None:
    app = tr.App("shop", partitions=1, on_error="dead-letter")
    orders = app.topic("orders", Order, key="customer", event_time="at", late="drop")
    other = app.topic("other", Order, key="customer", event_time="at")

    @app.actor
    class Fast(tr.Actor):
        late: list[bool] = tr.field(default_factory=list)

        @tr.process(orders)
        def ordered(self, order: Order, ctx: tr.Context[str]) -> None:
            if order.cents in BROKEN:
                raise ValueError("bad luck")
            self.late.append(ctx.is_late)

    @app.actor
    class Slow(tr.Actor, order="arrival"):
        """Has not come as far, as it reads another topic, too."""

        late: list[bool] = tr.field(default_factory=list)

        @tr.process(orders, other)
        def ordered(self, order: Order, ctx: tr.Context[str]) -> None:
            self.late.append(ctx.is_late)

    with Harness(app) as harness:
        harness.send(other, Order("a", 50))
        harness.send(orders, Order("a", 100, 13), Order("a", 200))
        broken.clear()
        redrive_all(harness)
        assert state_of(harness, "a", "Fast").late == [False, True]
        assert state_of(harness, "a", "Slow").late == [False, False, False]
        assert harness.late == 0
        harness.replay()
