"""Which failures stop a task although its app sends failures to the dead letters: those of the code, not of
the event.
"""

from __future__ import annotations

import json
import textwrap
from datetime import datetime
from typing import Any, Literal

import msgspec
import pytest

import tailrace as tr
from tailrace.core.errors import HandlerError, ReplayDivergedError
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
    "attribute",
    "attribute in a helper",
    "attribute in a library",
    "name",
    "name before its value",
    "name in a helper",
    "operand",
    "operand in a library",
    "call",
    "call of the context",
    "emit of another type",
    "emit of what cannot be encoded",
    "wrong value of a field",
    "instant without a time zone",
)
"""What is wrong in these handlers is their code."""

THE_EVENTS = ("text that is no number", "missing entry")
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
                case "text that is no number":
                    self.count = int(order.customer)
                case "missing entry":
                    self.count = {"b": 1}[order.customer]
                case "operand in a library":
                    json.dumps({1, 2})
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
        ("stop", "dead-letter-all", 1),
        ("stop", "dead-letter", None),
        ("dead-letter-all", "dead-letter", None),
        ("dead-letter-all", "stop", None),
        ("dead-letter", "dead-letter-all", 1),
        ("dead-letter-all", None, 1),
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
