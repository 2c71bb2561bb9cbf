"""Failures: which stop a task although its app sends failures to the dead letters, and what a dead letter says of the error and the fix."""

from __future__ import annotations

import json
import sys
import textwrap
from collections.abc import Callable
from datetime import datetime
from typing import Any, Literal

import msgspec
import pytest

import tailrace as tr
from tailrace.core.engine.task import Task, TaskSettings
from tailrace.core.errors import BadRecordError, HandlerError, ReplayDivergedError
from tailrace.core.records import InputRecord
from tailrace.state import MemoryStore
from tailrace.testing import Harness
from tailrace.testing.replaying import replay

OnError = Literal["stop", "dead-letter", "dead-letter-all"]


class Order(msgspec.Struct, frozen=True):
    customer: str
    do: str = ""
    by_timer: bool = False
    """Whether it is the timer's handler that does it."""


def misspells(odd: Any) -> None:
    odd.namse.append("x")


def calls_nothing() -> None:
    nowhere()  # type: ignore[name-defined]  # noqa: F821  # misspelt on purpose  # pyright: ignore[reportUndefinedVariable]


def adds(value: Any) -> int:
    total: int = value + 1
    return total


MISTAKES = (
    *("attribute", "attribute in a helper", "attribute in a library", "name"),
    *("name before its value", "name in a helper", "operand", "operand in a library"),
    *("call", "call of the context", "emit of another type"),
    *("emit of what cannot be encoded", "wrong value of a field", "end of the program"),
)
"""What is wrong in these handlers is their code."""

THE_EVENTS = ("text that is no number", "missing entry", "instant without a time zone")
"""What is wrong here may be the event."""


def odd_app(on_error: OnError, of_topic: OnError | None = None) -> tuple[tr.App, tr.Topic[Order, str]]:
    app = tr.App("odd", partitions=1, on_error=on_error)
    orders = app.topic("orders", Order, key="customer", key_type=str, on_error=of_topic)

    @app.actor
    class Odd(tr.Actor):
        count: int = 0
        doing: Order | None = None

        @tr.process(orders)
        def ordered(self, given: Order, ctx: tr.Context[str]) -> None:
            if given.by_timer:
                self.doing = given
                ctx.set_timer(0, "later")
                return
            self.count += 1
            order: Any = given
            context: Any = ctx
            value: Any
            match order.do:
                case "attribute":
                    order.nothing.of_the_kind()
                case "attribute in a helper":
                    misspells(self)
                case "attribute in a library":
                    textwrap.indent(order, "")
                case "name":
                    calls_it = nowhere  # type: ignore[name-defined]  # noqa: F821  # misspelt on purpose  # pyright: ignore[reportUndefinedVariable]
                    assert calls_it
                case "name before its value":
                    if order.customer == "nobody":
                        value = 1
                    assert value  # pyright: ignore[reportPossiblyUnboundVariable]  # on purpose
                case "name in a helper":
                    calls_nothing()
                case "operand":
                    self.count += order.customer
                case "call":
                    adds()  # type: ignore[call-arg]  # on purpose  # pyright: ignore[reportCallIssue]
                case "call of the context":
                    context.emit(order)
                case "emit of another type":
                    context.emit(orders, 1)
                case "emit of what cannot be encoded":
                    value = object()
                    ctx.emit(orders, Order("b", value))
                case "wrong value of a field":
                    self.count = order.customer
                case "instant without a time zone":
                    ctx.set_timer(datetime(2020, 1, 1), "later")  # noqa: DTZ001  # on purpose
                case "end of the program":
                    sys.exit()
                case "text that is no number":
                    self.count = int(order.customer)
                case "missing entry":
                    self.count = {"b": 1}[order.customer]
                case "operand in a library":
                    json.dumps({1, 2})
                case "note":
                    error = ValueError("no such thing.")
                    error.add_note("Ask the caretaker.")
                    raise error
                case _:
                    pass

        @tr.on_timer("later")
        def later(self, ctx: tr.Context[str]) -> None:
            doing, self.doing = self.doing, None
            assert doing is not None
            order: Any = doing
            if order.do in MISTAKES:
                order.nothing.of_the_kind()
            raise ValueError("the event's fault")

    return app, orders


@pytest.mark.parametrize("do", MISTAKES)
def test_a_mistake_in_the_code_stops_an_app_that_sends_failures_to_the_dead_letters(do: str) -> None:
    app, orders = odd_app("dead-letter")
    with Harness(app) as h:
        h.send(orders, Order("a"))
        with pytest.raises(HandlerError) as caught:
            h.send(orders, Order("a", do))
        assert h.dead_letters() == []
    error = caught.value
    assert (error.topic, error.offset, error.key, error.handler) == ("orders", 1, "a", "Odd.ordered")
    assert 'The task stops in spite of on_error="dead-letter"' in error.hint
    assert "Fix the code and start again" in error.hint
    assert 'on_error="dead-letter-all"' in error.hint


@pytest.mark.parametrize("do", THE_EVENTS)
def test_what_may_be_the_events_fault_goes_to_the_dead_letters(do: str) -> None:
    app, orders = odd_app("dead-letter")
    with Harness(app) as h:
        h.send(orders, Order("a"), Order("a", do), Order("a"))
        assert len(h.dead_letters()) == 1
        h.replay()


@pytest.mark.parametrize("do", [*MISTAKES, *THE_EVENTS])
def test_dead_letter_all_sends_mistakes_to_the_dead_letters_too(do: str) -> None:
    app, orders = odd_app("dead-letter-all")
    with Harness(app) as h:
        h.send(orders, Order("a"), Order("a", do), Order("a"))
        (letter,) = h.dead_letters()
        assert letter.reason == "handler-failed"
        h.replay()


@pytest.mark.parametrize(
    ("of_app", "of_topic", "letters"),
    [
        *(("stop", "dead-letter-all", 1), ("stop", "dead-letter", None)),
        *(("dead-letter-all", "dead-letter", None), ("dead-letter-all", "stop", None)),
        *(("dead-letter", "dead-letter-all", 1), ("dead-letter-all", None, 1)),
    ],
)
def test_a_topic_may_say_otherwise_for_itself(
    of_app: OnError, of_topic: OnError | None, letters: int | None
) -> None:
    app, orders = odd_app(of_app, of_topic)
    with Harness(app) as h:
        if letters is None:
            with pytest.raises(HandlerError):
                h.send(orders, Order("a", "name"))
        else:
            h.send(orders, Order("a", "name"))
            assert len(h.dead_letters()) == letters


@pytest.mark.parametrize("do", ["name", "missing entry"])
@pytest.mark.parametrize("on_error", ["dead-letter", "dead-letter-all"])
def test_a_timer_goes_by_what_its_app_says(on_error: OnError, do: str) -> None:
    app, orders = odd_app(on_error, "stop")
    with Harness(app) as h:
        if on_error == "dead-letter" and do == "name":
            with pytest.raises(HandlerError, match="in spite of") as caught:
                h.send(orders, Order("a", do, by_timer=True))
                h.end_of_input()
            assert caught.value.timer == "later at 0 ms"
        else:
            h.send(orders, Order("a", do, by_timer=True))
            h.end_of_input()
            (letter,) = h.dead_letters()
            assert letter.topic is None


def test_an_app_that_stops_on_failures_is_not_told_that_dead_letters_would_help_against_a_mistake() -> None:
    app, orders = odd_app("stop")
    with Harness(app) as h, pytest.raises(HandlerError) as caught:
        h.send(orders, Order("a", "name"))
    assert "in spite of" not in caught.value.hint
    assert 'on_error="dead-letter-all"' in caught.value.hint


def test_a_replay_follows_the_skips_of_its_tape_whatever_the_app_says_now() -> None:
    lived, orders = odd_app("dead-letter-all")
    with Harness(lived) as h:
        h.send(orders, Order("a"), Order("a", "name"), Order("a", "name", by_timer=True), Order("a"))
        h.end_of_input()
        assert len(h.dead_letters()) == 2
        h.recover()
        stores, settings = h._service.stores, h._service.options.task
        for now in ("dead-letter-all", "dead-letter", "stop"):
            app, _ = odd_app(now)
            replay(app.plan(), h.log, stores, settings)


def test_a_mistake_that_is_new_in_a_replay_is_a_divergence(monkeypatch: pytest.MonkeyPatch) -> None:
    app, orders = odd_app("dead-letter-all")
    with Harness(app) as h:
        h.send(orders, Order("b"), Order("b", "attribute in a helper"))
        h.replay()
        with monkeypatch.context() as once:
            once.setitem(globals(), "misspells", lambda _odd: None)
            h.send(orders, Order("b", "attribute in a helper"))
        with pytest.raises(ReplayDivergedError, match="namse"):
            h.replay()
        assert len(h.dead_letters()) == 1


# --- what is said of a failure

HINTS = {
    "attribute in a helper": "AttributeError: 'Odd' object has no attribute 'namse'. Odd has no durable field 'namse'. "
    "Declare it in the class: namse: type = default.",
    "note": "ValueError: no such thing. Ask the caretaker.",
}


@pytest.mark.parametrize("do", HINTS)
def test_a_dead_letter_says_the_error_with_its_hint_and_an_error_that_stops_says_no_less(do: str) -> None:
    app, orders = odd_app("dead-letter-all")
    with Harness(app) as h:
        h.send(orders, Order("a", do))
        (letter,) = h.dead_letters()
        assert letter.error == HINTS[do]
        h.replay()
    app, orders = odd_app("stop")
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


def test_a_refused_record_says_the_mend_and_where_it_stops_the_choice() -> None:
    app, bills = billing("dead-letter")
    with Harness(app) as h:
        h.send_raw(bills, b'{"buyer":null}', None, partition=0)
        (letter,) = h.dead_letters()
        assert (letter.reason, letter.error) == ("missing-key", f"{NO_KEY}. {MEND}")
    app, bills = billing("stop")
    with Harness(app) as h, pytest.raises(BadRecordError) as caught:
        h.send_raw(bills, b'{"buyer":null}', None, partition=0)
    assert (caught.value.what, caught.value.reason) == (NO_KEY, "missing-key")
    choice = f"{MEND} Correct its producer, or send such records to the dead letters"
    assert caught.value.hint.startswith(choice)


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
