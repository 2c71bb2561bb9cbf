"""Redriven records come back through the inbox of the app that failed: the operators in which they failed handle them, however late
they are. What a producer writes in their headers chooses nothing.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec
import pytest

import tailrace as tr
from tailrace.core.engine.redriven import OPERATORS_HEADER, REDRIVEN_HEADER, Redriven, redriven_header
from tailrace.core.engine.task import Task
from tailrace.core.records import InputRecord
from tailrace.history.dead_letters.letters import dead_letters
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


def _forged() -> list[tuple[tuple[str, bytes], ...]]:
    ours = redriven_header(Redriven("0-0", "orders", 0, 0, ("Customer",)))
    others = redriven_header(Redriven("0-0", "others", 7, 1 << 62, ("Nobody",)))
    return [
        *((ours,), (others,), (ours, (OPERATORS_HEADER, b"Customer")), ((OPERATORS_HEADER, b"Customer"),)),
        *(((REDRIVEN_HEADER, b"other.dead-letters/0-1@0-9"),), ((REDRIVEN_HEADER, b"\xff" * 5_000),)),
    ]


@pytest.mark.parametrize("headers", _forged())
@pytest.mark.parametrize("repartition", [False, True])
def test_the_headers_of_a_producer_choose_nothing(headers: Any, repartition: bool, broken: set[int]) -> None:
    """Neither who handles the event, nor whether it is late, nor what its dead letter is called and where it is redriven."""
    app = tr.App("shop", partitions=1, on_error="dead-letter")
    orders = app.topic("orders", Order, key="customer", event_time="at", late="drop", repartition=repartition)
    for name in ("Customer", "Audit"):

        @app.actor(name=name)
        class Sums(tr.Actor):
            cents: int = 0

            @tr.process(orders)
            def ordered(self, order: Order, ctx: tr.Context[str]) -> None:
                if order.cents in BROKEN:
                    raise ValueError("bad luck")
                self.cents += order.cents

    with Harness(app) as harness:
        for at, cents in ((200, 1), (300, 10), (100, 100), (400, 13)):
            value = msgspec.json.encode(Order("a", at, cents))
            harness.log.append("orders", b"a", value, at, headers if cents > 1 else ())
            harness.advance_clock(at + cents)
        for name in ("Customer", "Audit"):
            assert state_of(harness, "a", name).cents == 11
        assert harness.late == 1
        (letter,) = dead_letters(harness.log, "shop")
        origin = letter.topic, letter.operators, letter.key
        assert origin == ("shop.orders.by-key" if repartition else "orders", (), "a")
        broken.clear()
        assert redrive_all(harness) == 1
        for name in ("Customer", "Audit"):
            assert state_of(harness, "a", name).cents == 24
        harness.replay()


def test_a_redrive_moves_no_watermark_and_no_other_app_sees_the_record(broken: set[int]) -> None:
    app = shop("drop")
    with Harness(app) as harness:
        harness.send(app.topics["orders"], Order("a", 100), Order("a", 5_000, 13))
        harness.send(app.topics["orders"], Order("a", 4_999, 2))
        before = harness.watermark()
        ends = {name: harness.log.end_offset(name, 0) for name in app.plan().outputs}
        broken.clear()
        assert redrive_all(harness) == 1
        assert state_of(harness, "a").cents == 16
        assert harness.watermark() == before
        assert {name: harness.log.end_offset(name, 0) for name in app.plan().outputs} == ends
        harness.replay()


def test_what_fails_again_keeps_the_place_of_the_original(broken: set[int]) -> None:
    app = shop()
    with Harness(app) as harness:
        harness.send(app.topics["orders"], Order("a", 100), Order("a", 200, 13))
        for count in (1, 2, 3):
            *before, letter = dead_letters(harness.log, "shop")
            assert len(before) == count - 1
            assert (letter.topic, letter.origin_partition, letter.origin_offset) == ("orders", 0, 1)
            assert not letter.record.headers
            assert redrive_all(harness) == 1
        broken.clear()
        assert redrive_all(harness) == 1
        assert state_of(harness, "a").cents == 14
        harness.dead_letters()
        harness.replay()


@pytest.mark.parametrize("restart", [False, True])
def test_an_ordered_actor_handles_a_redriven_event_in_its_turn(
    restart: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The codec was wrong at first: the event is redriven before its time has come, and once more behind it."""
    refused = {b"early", b"passed"}
    app = tr.App("shop", partitions=1, on_error="dead-letter")

    class Said(msgspec.Struct):
        who: str
        at: int
        what: str

        def __post_init__(self) -> None:
            if self.what.encode() in refused:
                raise ValueError("not yet")

    said = app.topic("said", Said, key="who", event_time="at", out_of_order=100)

    @app.actor
    class Ordered(tr.Actor, order="event-time"):
        heard: list[str] = tr.field(default_factory=list)

        @tr.process(said)
        def hears(self, event: Said, ctx: tr.Context[str]) -> None:
            self.heard.append(f"{event.what}{' late' if ctx.is_late else ''}")

    @app.actor
    class AtOnce(tr.Actor, order="arrival"):
        heard: list[str] = tr.field(default_factory=list)

        @tr.process(said)
        def hears(self, event: Said, ctx: tr.Context[str]) -> None:
            self.heard.append(f"{event.what}{' late' if ctx.is_late else ''}")

    with Harness(app) as harness:
        for at, what in ((10, "passed"), (150, "first"), (290, "early"), (300, "last")):
            value = b'{"who":"a","at":%d,"what":"%s"}' % (at, what.encode())
            harness.send_raw(said, value, b"a")
        assert len(harness.dead_letters()) == 2
        refused.clear()
        assert redrive_all(harness) == 2
        if restart:
            harness.crash()
        ordered: Any = harness.state(Ordered, "a")
        assert ordered.heard == ["first", "passed late"]
        at_once: Any = harness.state(AtOnce, "a")
        assert at_once.heard == ["first", "last", "passed late", "early"]
        harness.end_of_input()
        ordered = harness.state(Ordered, "a")
        assert ordered.heard == ["first", "passed late", "early", "last"]
        assert harness.late == 0


def test_a_redriven_message_is_handled_by_its_actor(broken: set[int]) -> None:
    app = tr.App("shop", partitions=2, on_error="dead-letter")
    orders = app.topic("orders", Order, key="customer", event_time="at")

    @app.actor
    class Account(tr.Actor):
        cents: int = 0

        @tr.on_message
        def booked(self, order: Order, ctx: tr.Context[str]) -> None:
            if order.cents in BROKEN:
                raise ValueError("bad luck")
            self.cents += order.cents

    @app.process(orders)
    def books(order: Order, ctx: tr.Context[str]) -> None:
        ctx.send(Account, order.customer, order)

    with Harness(app) as harness:
        harness.send(orders, Order("a", 100, 13), Order("a", 200, 1))
        (letter,) = dead_letters(harness.log, "shop")
        assert letter.topic == "shop.inbox"
        assert redrive_all(harness) == 1
        (_, again) = dead_letters(harness.log, "shop")
        assert (again.topic, again.origin_offset) == ("shop.inbox", letter.origin_offset)
        broken.clear()
        assert redrive_all(harness) == 1
        assert state_of(harness, "a", "Account").cents == 14
        harness.dead_letters()
        harness.replay()


def test_an_event_whose_time_is_its_arrival_is_redriven_beside_ordered_messages(broken: set[int]) -> None:
    app = tr.App("shop", partitions=1, on_error="dead-letter")
    orders = app.topic("orders", Order, key="customer", event_time="at")
    clicks = app.topic("clicks", Order, key="customer", event_time=tr.ARRIVAL_TIME)

    @app.actor
    class Account(tr.Actor, order="event-time"):
        cents: int = 0

        @tr.on_message
        def booked(self, order: Order, ctx: tr.Context[str]) -> None:
            self.cents += order.cents

    @app.process(orders)
    def books(order: Order, ctx: tr.Context[str]) -> None:
        ctx.send(Account, order.customer, order)

    times: list[int] = []

    @app.process(clicks)
    def clicked(order: Order, ctx: tr.Context[str]) -> None:
        if order.cents in BROKEN:
            raise ValueError("bad luck")
        times.append(ctx.event_time)

    with Harness(app, now_ms=5_000) as harness:
        harness.send(orders, Order("a", 100))
        harness.send(clicks, Order("a", 0, 13))
        harness.dead_letters()
        broken.clear()
        assert redrive_all(harness) == 1
        harness.end_of_input()
        assert times == [5_000]
        assert state_of(harness, "a", "Account").cents == 1
        harness.replay()


def test_what_no_redrive_has_written_to_the_inbox_is_a_letter() -> None:
    app = shop()
    with Harness(app) as harness:
        for header in (b"{", b"\xff", b'{"letter":"0-0","input":"gone","partition":0,"offset":0}'):
            harness.log.append("shop.inbox", b"a", b"{}", 0, ((REDRIVEN_HEADER, header),))
        other = redriven_header(Redriven("0-0", "orders", 0, 0, ("Nobody",)))
        harness.log.append("shop.inbox", b"a", msgspec.json.encode(Order("a", 1)), 0, (other,))
        harness.advance_clock(1)
        assert [one.reason for one in harness.dead_letters()] == ["undecodable"] * 2 + ["wrong-type"] * 2
        harness.replay()


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
    header = redriven_header(Redriven("0-0", "orders", 0, 7))
    runs = [(0, [(200, 1), (100, 1)], ()), (1, [(100, 1), (100, 13), (100, 1)], (header,))]
    with pytest.raises(tr.TailraceError, match="13"):
        for number, values, headers in runs:
            records = [
                InputRecord(offset, 0, b"a", msgspec.json.encode(Order("a", at, cents)), headers)
                for offset, (at, cents) in enumerate(values)
            ]
            task.run(number, task.decode(number, records))
    assert task.positions == {"orders": 2, "shop.inbox": 1}
    assert (task.totals.late, task.totals.records) == (1, 3)


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
