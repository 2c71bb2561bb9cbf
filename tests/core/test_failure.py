"""What a dead letter says of its failure: the error, and what is known of the fix."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import msgspec
import pytest

import tailrace as tr
from tailrace.core.engine.task import Task, TaskSettings
from tailrace.core.errors import BadRecordError, HandlerError
from tailrace.core.records import InputRecord
from tailrace.state import MemoryStore
from tailrace.testing import Harness

OnError = Literal["stop", "dead-letter", "dead-letter-all"]


class Order(msgspec.Struct, frozen=True):
    customer: str
    do: str = ""


def shop(on_error: OnError) -> tuple[tr.App, tr.Topic[Order, str]]:
    app = tr.App("shop", partitions=1, on_error=on_error)
    orders = app.topic("orders", Order, key="customer", key_type=str)

    @app.actor
    class Customer(tr.Actor):
        bought: int = 0

        @tr.process(orders)
        def ordered(self, order: Order, ctx: tr.Context[str]) -> None:
            if order.do == "misspell":
                self.bougt += 1  # type: ignore[attr-defined]  # misspelt on purpose
            if order.do == "note":
                error = ValueError("no such thing.")
                error.add_note("Ask the caretaker.")
                raise error
            self.bought += 1

    return app, orders


HINTS = {
    "misspell": "AttributeError: 'Customer' object has no attribute 'bougt'. Customer has no durable "
    "field 'bougt'. Did you mean 'bought'? Declare it in the class: bougt: type = default.",
    "note": "ValueError: no such thing. Ask the caretaker.",
}


@pytest.mark.parametrize("do", HINTS)
def test_a_dead_letter_says_the_error_with_its_hint(do: str) -> None:
    app, orders = shop("dead-letter-all")
    with Harness(app) as h:
        h.send(orders, Order("a", do))
        (letter,) = h.dead_letters()
        assert letter.error == HINTS[do]
        h.replay()


@pytest.mark.parametrize("do", HINTS)
def test_an_error_that_stops_says_no_less_than_its_dead_letter_would(do: str) -> None:
    app, orders = shop("stop")
    with Harness(app) as h, pytest.raises(HandlerError) as caught:
        h.send(orders, Order("a", do))
    assert HINTS[do] in caught.value.what


class Buyer(msgspec.Struct, frozen=True):
    name: str


class Bill(msgspec.Struct, frozen=True):
    buyer: Buyer | None


def billing(on_error: OnError) -> tuple[tr.App, tr.Topic[Bill, str]]:
    app = tr.App("billing", partitions=1, on_error=on_error)
    bills = app.topic("bills", Bill, key="buyer.name", key_type=str)

    @app.process(bills)
    def billed(bill: Bill, ctx: tr.Context[str]) -> None: ...

    return app, bills


NO_KEY = "the event has no key: buyer.name leads through a missing value"
MEND = "Look at what its producer sends."


def test_the_dead_letter_of_a_refused_record_says_the_mend() -> None:
    app, bills = billing("dead-letter")
    with Harness(app) as h:
        h.send_raw(bills, b'{"buyer":null}', None, partition=0)
        (letter,) = h.dead_letters()
        assert (letter.reason, letter.error) == ("missing-key", f"{NO_KEY}. {MEND}")
        h.replay()


def test_a_refused_record_that_stops_says_the_mend_and_the_choice() -> None:
    app, bills = billing("stop")
    with Harness(app) as h, pytest.raises(BadRecordError) as caught:
        h.send_raw(bills, b'{"buyer":null}', None, partition=0)
    assert (caught.value.what, caught.value.reason) == (NO_KEY, "missing-key")
    assert caught.value.hint.startswith(
        f"{MEND} Correct its producer, or send such records to the dead letters"
    )


def watched_app() -> tr.App:
    """An app where nobody but the watermark, or the way of what is late, can fail."""
    app = tr.App("watched", partitions=1, on_error="dead-letter")

    def key_of_late(order: Order) -> str:
        if order.do == "nameless":
            raise ValueError("no key for the nameless")
        return order.customer

    late = app.topic("late", Order, key=key_of_late, key_type=str)
    orders = app.topic(
        "orders",
        Order,
        key="customer",
        key_type=str,
        event_time=lambda order: 1_000 + len(order.customer),
        late=late,
    )

    @app.actor
    class Customer(tr.Actor):
        bought: int = 0

        @tr.process(orders)
        def ordered(self, order: Order, ctx: tr.Context[str]) -> None:
            self.bought += 1

    return app


@pytest.mark.parametrize("checked", [True, False])
@pytest.mark.parametrize("slice_size", [1, 2, 10])
def test_what_no_handler_has_done_is_not_said_of_the_one_before_however_records_are_sliced(
    slice_size: int, *, checked: bool
) -> None:
    plan = watched_app().plan()
    task = Task(plan, 0, MemoryStore(), settings=TaskSettings(checked=checked))
    dos = (("aaa", ""), ("aaaaa", ""), ("a", "nameless"), ("a", ""))
    values = [msgspec.json.encode(Order(customer, do)) for customer, do in dos]
    records = [InputRecord(offset, 0, None, value) for offset, value in enumerate(values)]
    for at in range(0, len(records), slice_size):
        task.run(0, task.decode(0, records[at : at + slice_size]))
    letters = [dict(out.headers) for out in task.take_outputs() if out.topic == plan.dead_letters_topic]
    assert [letter["tailrace-offset"] for letter in letters] == [b"2"]
    assert not any("tailrace-handler" in letter for letter in letters)


class Visit(msgspec.Struct, frozen=True):
    page: str
    at: int
    fails: bool = False


SETS: dict[str, Callable[[tr.Context[str]], None]] = {
    "processing time": lambda ctx: ctx.set_processing_timer(ctx.now, "soon"),
    "event time": lambda ctx: ctx.set_timer(ctx.event_time, "soon"),
}


@pytest.mark.parametrize("domain", SETS)
@pytest.mark.parametrize("on_error", ["stop", "dead-letter"])
@pytest.mark.parametrize("apart", [False, True])
def test_a_timer_that_a_failed_handler_set_is_not_due(domain: str, on_error: OnError, apart: bool) -> None:
    app = tr.App("pages", partitions=1, on_error=on_error)
    visits = app.topic("visits", Visit, key="page", key_type=str, event_time="at")
    others = app.topic("others", Visit, key="page", key_type=str, event_time="at")
    seen = app.topic("seen", Visit, key="page", key_type=str, event_time="at")

    @app.actor(emits=[seen])
    class Page(tr.Actor, order="arrival"):
        fired: int = 0

        @tr.process(*((visits, others) if apart else (visits,)))
        def visited(self, visit: Visit, ctx: tr.Context[str]) -> None:
            SETS[domain](ctx)
            if visit.fails:
                raise ValueError(visit.page)

        @tr.on_timer("soon")
        @tr.on_processing_timer("soon")
        def soon(self, ctx: tr.Context[str]) -> None:
            self.fired += 1

    @app.process(visits)
    def pass_by(visit: Visit, ctx: tr.Context[str]) -> None: ...

    task = Task(app.plan(), 0, MemoryStore(), settings=TaskSettings())
    number = next(one.index for one in app.plan().inputs if one.name == "visits")
    task.clock(5_000)
    for other in range(len(app.plan().inputs)):
        task.upstream(other, 9_000)

    def send(offset: int, visit: Visit) -> None:
        record = InputRecord(offset, 0, visit.page.encode(), msgspec.json.encode(visit))
        task.run(number, task.decode(number, [record]))

    send(0, Visit("a", 2_000))
    fired = task.totals.fired
    try:
        send(1, Visit("b", 3_000, fails=True))
    except HandlerError:
        assert on_error == "stop"
    assert task.clock_due_ms > 5_000
    assert task.publications() == {"seen": 9_000}
    assert (fired, task.totals.fired, task.draining) == (1, 1, False)
