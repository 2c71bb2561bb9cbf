"""Timers carry a payload of the type that their handler declares, and a handler sees the pending timers of its key; a timer is named once."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

import tailrace as tr
from tailrace.core import rows
from tailrace.core.engine.describe_rows import picture
from tailrace.core.errors import HandlerError
from tests.core.driven import Driven


class Claim(msgspec.Struct, frozen=True):
    gate: str
    minutes: int = 0


class Turn(msgspec.Struct, frozen=True):
    key: str
    at: int
    do: str
    name: str | None = None
    due: int = 0
    claim: Any = None


class Said(msgspec.Struct, frozen=True):
    key: str
    what: str


def claims_app() -> tr.App:
    app = tr.App("claims", partitions=1, on_error="dead-letter")
    turns = app.topic("turns", Turn, key="key", event_time="at")
    said = app.topic("said", Said, key="key")

    @app.actor
    class Desk(tr.Actor):
        seen: int = 0

        @tr.process(turns)
        def turn(self, event: Turn, ctx: tr.Context[str]) -> None:
            self.seen += 1
            claim = Claim(**event.claim) if isinstance(event.claim, dict) else event.claim
            match event.do:
                case "set":
                    ctx.set_timer(event.due, event.name, claim)
                case "poll":
                    ctx.set_processing_timer(event.due, "poll", claim)
                case "plain":
                    ctx.set_timer(event.due, "plain", claim)
                case "cancel":
                    ctx.cancel_timer(event.name or event.due)
                case _:
                    ctx.emit(said, Said(ctx.key, repr([tuple(one) for one in ctx.timers()])))

        @tr.on_timer("overdue", payload=Claim)
        @tr.on_timer(payload=Claim)
        def overdue(self, payload: Claim, ctx: tr.Context[str]) -> None:
            what = (ctx.timer_name, ctx.timer_due, payload.gate, payload.minutes, len(ctx.timers()))
            ctx.emit(said, Said(ctx.key, repr(what)))

        @tr.on_processing_timer("poll", payload=int)
        def poll(self, payload: int, ctx: tr.Context[str]) -> None:
            ctx.emit(said, Said(ctx.key, repr((ctx.timer_name, ctx.timer_due, payload))))

        @tr.on_timer("plain")
        def plain(self, ctx: tr.Context[str]) -> None:
            ctx.emit(said, Said(ctx.key, repr(("plain", ctx.timer_due))))

    return app


class Life(Driven):
    def __init__(self) -> None:
        super().__init__(claims_app().plan())
        self.read = msgspec.json.Decoder(Said).decode

    def said(self) -> list[str]:
        return [self.read(one.value or b"").what for one in self.task.take_outputs() if one.topic == "said"]

    def failures(self) -> list[str]:
        letters = [one for one in self.task.take_outputs() if one.topic == "claims.dead-letters"]
        return [dict(one.headers)["tailrace-error"].decode() for one in letters]


def test_a_handler_gets_the_payload_with_which_the_timer_was_set_last() -> None:
    life = Life()
    life.take(Turn("k", 100, "set", "overdue:JFK", 110, {"gate": "A", "minutes": 5}))
    life.take(Turn("k", 100, "set", "overdue:JFK", 120, {"gate": "B"}))
    life.take(Turn("k", 101, "set", None, 115, {"gate": "C", "minutes": 7}))
    life.commit()
    life.start()
    life.take(Turn("l", 200, "plain", due=250))
    assert life.said() == ["(None, 115, 'C', 7, 1)", "('overdue:JFK', 120, 'B', 0, 0)"]


def test_in_the_handler_of_a_processing_time_timer_its_own_time_is_known() -> None:
    life = Life()
    life.take(Turn("k", 100, "poll", due=5_000, claim=3))
    life.task.clock(6_000)
    life.drain()
    assert life.said() == ["('poll', 5000, 3)"]
    assert life.task._context.timer_due is None


def test_the_pending_timers_of_a_key_come_in_the_order_in_which_they_are_due() -> None:
    life = Life()
    life.take(Turn("k", 100, "poll", due=130, claim=3), Turn("l", 100, "plain", due=105))
    life.take(Turn("k", 100, "plain", due=150), Turn("k", 100, "set", None, 140, {"gate": "A"}))
    life.take(Turn("k", 100, "show"))
    (shown,) = life.said()
    claim = Claim("A")
    assert shown == repr(
        [(130, "poll", "processing", 3), (140, None, "event", claim), (150, "plain", "event", None)]
    )


@pytest.mark.parametrize(
    ("turn", "error"),
    [
        (Turn("k", 1, "set", "overdue", 9, "text"), "does not fit: Expected `object`, got `str`"),
        (Turn("k", 1, "set", "overdue", 9, {"gate": 5}), "does not fit: Expected `str`, got `int`"),
        (Turn("k", 1, "set", "overdue", 9), "does not fit: there is none"),
        (Turn("k", 1, "set", None, 9), "does not fit: there is none"),
        (Turn("k", 1, "plain", due=9, claim=1), "does not fit: its handler takes none"),
    ],
)
def test_a_payload_of_another_type_is_refused_where_it_is_set(turn: Turn, error: str) -> None:
    life = Life()
    with pytest.raises(HandlerError) as caught:
        life.take(turn)
    assert isinstance(caught.value.__cause__, tr.DurableValueError)
    assert error in str(caught.value)
    assert "Give it a value of the type that payload= of the timer's handler names" in str(caught.value)


def test_a_timer_of_a_version_without_payloads_fails_with_a_message() -> None:
    app = tr.App("claims", partitions=1, on_error="dead-letter")
    turns = app.topic("turns", Turn, key="key", event_time="at")

    @app.actor
    class Desk(tr.Actor):
        seen: int = 0

        @tr.process(turns)
        def turn(self, event: Turn, ctx: tr.Context[str]) -> None:
            self.seen += 1
            ctx.set_timer(event.due, event.name)

        @tr.on_timer("overdue")
        def overdue(self, ctx: tr.Context[str]) -> None: ...

    before = Driven(app.plan())
    before.take(Turn("k", 1, "set", "overdue", 50))
    before.commit()
    life = Life()
    life.store = before.store
    life.start()
    life.take(Turn("k", 100, "show"))
    (failure,) = life.failures()
    assert "the timer has no payload: it was set by an earlier version of the code" in failure


def test_a_payload_is_shown_where_a_key_is_described() -> None:
    life = Life()
    life.take(Turn("k", 100, "set", "overdue", 120, {"gate": "B"}))
    life.commit()
    prefix = rows.actor_prefix("Desk") + rows.escaped(b"k")
    found = {row[len(prefix) :]: value for row, value in life.state().items()}
    assert (
        picture(life.plan.actors[0], found)["timer 'overdue'"]
        == "1970-01-01T00:00:00.120Z, Claim(gate='B', minutes=0)"
    )


# --- the names that the queue holds, and the index


def named(life: Life) -> int:
    """How many entries the queue holds in memory."""
    queue: Any = life.task._firing.events[0]
    return len(list(queue.entries()))


@pytest.mark.parametrize(("ahead_ms", "most"), [((60, 60), 1), ((30, 60), 100)])
def test_a_timer_that_is_moved_again_and_again_is_not_named_without_end(
    ahead_ms: tuple[int, int], most: int
) -> None:
    """Each move to an earlier time names it anew; what is named twice at one time becomes one."""
    life = Life()
    for at in range(5_000):
        life.take(Turn("k", at, "plain", due=at + ahead_ms[at % 2]))
        assert named(life) <= most
    assert life.said() == []


def test_the_index_row_of_a_timer_that_was_moved_before_the_start_goes_when_it_comes_up() -> None:
    life = Life()
    for due in (110, 151):
        life.take(Turn("k", 100, "plain", due=due))
        life.commit()
    life.start()
    life.take(Turn("l", 120, "cancel", "plain"))
    life.commit()
    index = [rows.read_index_row(row) for row, _ in life.store.rows() if row[:1] == rows.INDEX]
    assert index == [(151, "Desk", b"k", b"nplain")]
