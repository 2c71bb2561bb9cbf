"""``app.dedupe``: its ids and times, its state, what is refused. What it passes on is a law of the random programs."""

from __future__ import annotations

from datetime import UTC, datetime
from enum import Enum
from typing import Any
from uuid import UUID

import msgspec
import pytest

import tailrace as tr
from tailrace.core.errors import HandlerError
from tailrace.testing import Harness
from tests.library.oracle_rolling import Event, actor_of


def once(*, within: int, lateness: int = 0) -> tuple[tr.App, Any, Any, Any]:
    app = tr.App("once", partitions=1)
    events, unique, late = (app.topic(name, Event, key_type=str) for name in ("events", "unique", "late"))

    @app.process(app.dedupe("first", events, within=within, lateness=lateness, late=late))
    def publish(event: Event, ctx: tr.Context[str]) -> None:
        ctx.emit(unique, event)

    return app, events, unique, late


def test_a_sighting_is_freed_when_it_can_tell_no_more_duplicate() -> None:
    app, events, _, _ = once(within=20, lateness=30)
    actor = actor_of(app, "first")
    with Harness(app) as h:
        h.send(events, *(Event("a", 100 + n // 10, f"i{n}") for n in range(200)))
        h.advance_watermark(149)
        state: Any = h.state(actor, "a")
        assert len(state.sightings) + len(list(state.more_by_time.keys())) == 200
        assert state.more == sum(len(times) for times in state.more_by_id.values()) > 0
        assert h.timers(actor, "a") == {("event", "free"): 150}
        h.advance_watermark(159)
        state = h.state(actor, "a")
        assert len(state.sightings) + len(list(state.more_by_time.keys())) == 100
        assert h.timers(actor, "a") == {("event", "free"): 160}
        h.advance_watermark(169)
        assert h.keys(actor) == []


class Colour(Enum):
    RED = "red"


class Typed(msgspec.Struct, frozen=True):
    key: tr.Key[str]
    at: tr.EventTime[int]
    text: str
    number: int
    data: bytes
    uuid: UUID
    when: datetime
    colour: Colour
    maybe: int | None
    either: int | str
    real: float


def typed(at: int, **changes: Any) -> Typed:
    values: dict[str, Any] = {
        "text": "",
        "number": 0,
        "data": b"",
        "uuid": UUID(int=0),
        "when": datetime(2020, 1, 1, tzinfo=UTC),
    }
    values |= {"colour": Colour.RED, "maybe": 0, "either": 0, "real": 0.0}
    return Typed("a", at, **values | changes)


def number_of(event: Typed) -> int:
    return event.number


@pytest.mark.parametrize(
    ("by", "by_type", "other"),
    [
        ("text", None, {"text": "\0"}),
        ("number", int, {"number": -1}),
        ("data", None, {"data": b"\0"}),
        ("uuid", None, {"uuid": UUID(int=1)}),
        ("when", None, {"when": datetime(2020, 1, 1, 1, tzinfo=UTC)}),
        (("text", "number"), None, {"number": 1}),
        (("text", "data"), tuple[str, bytes], {"text": "\0\0"}),
        (number_of, None, {"number": 1}),
        (lambda e: (e.text, (e.number, e.colour)), tuple[str, tuple[int, Colour]], {"number": 1}),
        ("maybe", None, {"maybe": 1}),
    ],
)
def test_ids_have_the_types_that_keys_of_maps_have(by: Any, by_type: Any, other: dict[str, Any]) -> None:
    app = tr.App("typed", partitions=1)
    events = app.topic("events", Typed, key_type=str)
    unique = app.topic("unique", Typed, key_type=str)
    first = app.dedupe("first", events, by=by, by_type=by_type, within="1s")

    @app.process(first)
    def publish(event: Typed, ctx: tr.Context[str]) -> None:
        ctx.emit(unique, event)

    sent = [typed(1), typed(2), typed(3, **other), typed(4, **other)]
    many = [typed(5 + n, text=f"{n}", number=100 + n, data=b"%d" % n, uuid=UUID(int=9 + n), maybe=100 + n, when=datetime.fromtimestamp(n, tz=UTC)) for n in range(50)]  # fmt: skip
    with Harness(app) as h:
        h.send(events, *sent, *many, *many)
        assert h.emitted(unique) == [sent[0], sent[2], *many], "beyond what the field holds, too"
        h.end_of_input()
        assert h.keys(actor_of(app, "first")) == []
        h.replay()


def test_an_event_without_an_id_fails() -> None:
    app = tr.App("typed", partitions=1)
    events = app.topic("events", Typed, key_type=str)
    app.dedupe("first", events, by="maybe", within="1s")
    with (
        Harness(app) as h,
        pytest.raises(HandlerError, match=r"takes values of type int by maybe, and an event has None"),
    ):
        h.send(events, typed(1, maybe=None))  # fmt: skip


def test_within_may_change_over_stored_state() -> None:
    def once(within: str) -> tr.App:
        app = tr.App("once", partitions=1)
        events = app.topic("events", Event, key_type=str)
        unique = app.topic("unique", Event, key_type=str)

        @app.process(app.dedupe("first", events, within=within))
        def publish(event: Event, ctx: tr.Context[str]) -> None:
            ctx.emit(unique, event)

        return app

    app = once("100ms")
    with Harness(app) as h:
        h.send(app.topics["events"], Event("a", 1_000, "x"))
        snapshot = h.snapshot()
    for within, passed in (("50ms", [1_051]), ("200ms", [])):
        app = once(within)
        with Harness(app, start=snapshot) as h:
            h.send(app.topics["events"], Event("a", 1_051, "x"))
            assert [one.at for one in h.emitted(app.topics["unique"])] == passed
            h.end_of_input()
            assert h.keys(actor_of(app, "first")) == []
