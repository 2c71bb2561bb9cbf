"""What a handler writes and is too large for the log fails its event: a dead letter, or the task stops."""

from __future__ import annotations

from typing import Any, Literal

import msgspec
import pytest

import tailrace as tr
from tailrace.core.errors import HandlerError
from tailrace.core.records import RECORD_BYTES
from tailrace.core.values.nesting import DEEPEST
from tailrace.testing import Harness

NOW_MS = 1_790_000_000_000
MOST = 1_000_000
"""The limit of the harness's log."""


class Ask(msgspec.Struct, frozen=True):
    key: str
    at: int
    do: str = ""
    size: int = 0


class Big(msgspec.Struct, frozen=True):
    key: str
    text: str = ""


class Note(msgspec.Struct, frozen=True):
    text: str


def asking(on_error: Any) -> tuple[tr.App, Any, Any]:
    """An app with an actor that writes as much as it is asked to, its topic, and the actor."""
    app = tr.App("asking", partitions=1, on_error=on_error)
    late = app.topic("late", Ask, key="key", event_time="at")
    asks: Any = app.topic("asks", Ask, key="key", event_time="at", late=late)
    bigs: Any = app.topic("bigs", Big, key="key", event_time=tr.RECORD_TIME)
    names: Any = app.table("names", Big, key="key", key_type=str)
    stream: Any = app.stream("stream", Ask)

    @app.actor
    class Writer(tr.Actor):
        count: int = 0

        @tr.process(asks)
        def take(self, ask: Ask, ctx: tr.Context[str]) -> None:
            self.count += 1
            match ask.do:
                case "emit":
                    ctx.emit(bigs, Big(ask.key, "x" * ask.size))
                case "key":
                    ctx.emit(bigs, Big("k" * (ask.size // 2)))
                case "delete":
                    ctx.delete(names, "k" * ask.size)
                case "message":
                    ctx.send(Writer, ask.key, Note("x" * ask.size))
                case "stream":
                    ctx.emit(stream, ask)
                case "timer":
                    ctx.set_timer(ask.at + ask.size)
                case _:
                    pass

        @tr.process(stream)
        def further(self, ask: Ask, ctx: tr.Context[str]) -> None:
            ctx.emit(bigs, Big(ask.key, "x" * ask.size))

        @tr.on_message
        def note(self, note: Note, ctx: tr.Context[str]) -> None: ...

        @tr.on_timer
        def due(self, ctx: tr.Context[str]) -> None:
            ctx.emit(bigs, Big("k", "x" * 2 * MOST))

    return app, asks, Writer


FITS = {
    "emit": MOST - 100,
    "key": MOST - 100,
    "delete": MOST,
    "message": RECORD_BYTES - 100,
    "stream": MOST - 100,
}


@pytest.mark.parametrize("do", FITS)
def test_what_is_over_the_limit_fails_its_event_and_what_fits_is_written(do: str) -> None:
    app, asks, writer = asking("dead-letter")
    with Harness(app) as h:
        h.send(asks, Ask("k", NOW_MS, do, FITS[do]), Ask("k", NOW_MS, do, FITS[do] + 200), Ask("k", NOW_MS))
        (letter,) = h.dead_letters()
        assert (letter.reason, letter.headers["tailrace-offset"]) == ("handler-failed", b"1")
        assert "is over the limit of" in letter.error
        found = h.state(writer, "k")
        assert found is not None
        assert found.count == 2
        h.end_of_input()
        h.replay()


def test_a_timer_that_writes_too_much_is_a_letter() -> None:
    app, asks, _ = asking("dead-letter")
    with Harness(app) as h:
        h.send(asks, Ask("k", NOW_MS, "timer", 1_000), Ask("k", NOW_MS + 2_000))
        (letter,) = h.dead_letters()
        assert "limit" in letter.error
        h.end_of_input()
        h.replay()


def test_under_stop_the_task_stops_at_the_event() -> None:
    app, asks, _ = asking("stop")
    with Harness(app) as h:
        h.send(asks, Ask("k", NOW_MS))
        with pytest.raises(HandlerError, match=r"over the limit of 1000000.*--max-record-bytes") as raised:
            h.send(asks, Ask("k", NOW_MS, "emit", 2 * MOST))
        assert raised.value.offset == 1


@pytest.mark.parametrize("on_error", ["stop", "dead-letter"])
def test_a_late_event_that_is_too_large_for_its_topic_fails(on_error: Literal["stop", "dead-letter"]) -> None:
    app, asks, _ = asking(on_error)
    late = b'{"key":"k","at":%d,"do":"%s"}' % (NOW_MS - 1, b"x" * MOST)
    with Harness(app) as h:
        h.send(asks, Ask("k", NOW_MS))
        h.log._router.max_record_bytes = 2 * MOST  # a producer may have another limit
        if on_error == "stop":
            with pytest.raises(HandlerError, match="over the limit of 1000000"):
                h.send_raw(asks, late, b"k")
            return
        h.send_raw(asks, late, b"k")
        (letter,) = h.dead_letters()
        assert letter.reason == "handler-failed"
        h.end_of_input()
        h.replay()


class Keep(msgspec.Struct, frozen=True):
    key: str
    at: int
    do: str
    size: int


def keeping() -> tuple[tr.App, Any, Any]:
    """An app with an actor that keeps as much as it is asked to, its topic, and the actor."""
    app = tr.App("keeping", partitions=1, on_error="dead-letter")
    keeps: Any = app.topic("keeps", Keep, key="key", event_time="at")

    @app.actor
    class Keeper(tr.Actor):
        count: int = 0
        text: str = ""
        texts: list[str] = []  # a field
        items: tr.ListState[str]
        by_name: tr.MapState[str, str]

        @tr.process(keeps)
        def take(self, keep: Keep, ctx: tr.Context[str]) -> None:
            self.count += 1
            text = "x" * keep.size
            match keep.do:
                case "field":
                    self.text = text
                case "field in place":
                    self.texts = [text]
                case "item":
                    self.items.append(text)
                case "entry":
                    self.by_name["a"] = text
                case "name":
                    self.by_name[text] = ""
                case "payload":
                    ctx.set_timer(keep.at + 1_000, "paid", payload=Note(text))
                case "timer":
                    ctx.set_timer(keep.at + 1_000, f"named:{text}")
                case _:
                    pass

        @tr.on_timer("paid", payload=Note)
        def paid(self, note: Note, ctx: tr.Context[str]) -> None: ...

        @tr.on_timer("named")
        def named(self, ctx: tr.Context[str]) -> None: ...

    return app, keeps, Keeper


@pytest.mark.parametrize("do", ["field", "field in place", "item", "entry", "name", "payload", "timer"])
def test_state_that_no_record_of_the_changelog_can_hold_fails_its_event(do: str) -> None:
    app, keeps, keeper = keeping()
    with Harness(app) as h:
        fits, beyond = RECORD_BYTES - 500, RECORD_BYTES + 1
        h.send(keeps, Keep("k", NOW_MS, do, fits), Keep("k", NOW_MS, do, beyond), Keep("k", NOW_MS, "", 0))
        (letter,) = h.dead_letters()
        assert (letter.reason, letter.headers["tailrace-offset"]) == ("handler-failed", b"1")
        assert f"the limit is {RECORD_BYTES}" in letter.error
        found = h.state(keeper, "k")
        assert found is not None
        assert found.count == 2
        h.end_of_input()
        h.replay()


class Item(msgspec.Struct, frozen=True):
    some_name: int = 0
    another_name: int = 0


class Items(msgspec.Struct, frozen=True):
    key: str
    items: tuple[Item, ...] = ()


@pytest.mark.parametrize("how", [{"repartition": True}, {"broadcast": True}])
def test_an_event_that_is_too_large_to_be_forwarded_is_a_letter_where_it_was_read(how: Any) -> None:
    """It is forwarded with its defaults, so it may be larger than it came."""
    app = tr.App("forwarding", partitions=1, on_error="dead-letter")
    items: Any = app.topic("items", Items, key="key", event_time=tr.RECORD_TIME, **how)
    if "broadcast" in how:
        app.lookup("looked", app.topic("asks", Ask, key="key", event_time="at"), items, by="key")
    else:

        @app.process(items)
        def take(event: Items, ctx: tr.Context[str]) -> None: ...

    with Harness(app) as h:
        h.log._router.max_record_bytes = RECORD_BYTES
        h.send_raw(items, b'{"key":"k","items":[%s{}]}' % (b"{}," * 1_500_000), b"k", NOW_MS)
        (letter,) = h.dead_letters()
        assert (letter.topic, letter.reason) == ("items", "handler-failed")
        assert f"over the limit of {RECORD_BYTES}" in letter.error
        h.end_of_input()
        h.replay()


class Tree(msgspec.Struct, frozen=True):
    inner: Tree | None = None


@pytest.mark.parametrize("checked", [True, False])
def test_state_that_grows_in_depth_fails_the_events_beyond_what_can_be_read_everywhere(checked: bool) -> None:
    app = tr.App("growing", partitions=1, on_error="dead-letter")
    asks: Any = app.topic("asks", Ask, key="key", event_time="at")

    @app.actor
    class Grower(tr.Actor):
        tree: Tree | None = None

        @tr.process(asks)
        def take(self, ask: Ask, ctx: tr.Context[str]) -> None:
            self.tree = Tree(self.tree)

    with Harness(app, checked=checked) as h:
        h.send(asks, *(Ask("k", NOW_MS) for _ in range(1_200)))
        letters = h.dead_letters()
        assert {letter.reason for letter in letters} == {"handler-failed"}
        found = h.state(Grower, "k")
        assert found is not None
        depth, tree = 1, found.tree  # the fields are a map
        while tree is not None:
            depth, tree = depth + 1, tree.inner
        assert depth == DEEPEST
        assert len(letters) == 1_200 - (DEEPEST - 1)
        h.end_of_input()
        h.replay()
