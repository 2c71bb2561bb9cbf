"""Bad input: it is refused or taken back as a whole, told with its reason, and the rest goes on."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from enum import StrEnum
from typing import Annotated, Any

import msgspec
import pytest

import tailrace as tr
from tailrace.core import errors
from tailrace.core.engine import tape
from tailrace.core.engine.task import Task, TaskSettings
from tailrace.core.records import RECORD_BYTES, UNREADABLE
from tailrace.history.dead_letters.letters import read
from tailrace.state import MemoryStore
from tailrace.testing import Harness


class Box(msgspec.Struct):
    items: list[int]


class Circle(msgspec.Struct, tag="circle", frozen=True):
    key: str
    at: int | None = 1_000
    do: str = ""


class Square(msgspec.Struct, tag="square"):
    key: str | None
    at: int | None = 1_000
    do: str = ""
    box: Box = msgspec.field(default_factory=lambda: Box([]))


Shape = Circle | Square


class Broken(Exception):
    """An exception that cannot even be printed."""

    def __str__(self) -> str:
        raise RuntimeError("no words")


KEPT: list[Any] = []
"""What handlers that break the rules keep for later."""


@pytest.fixture(autouse=True)
def nothing_kept() -> Iterator[None]:
    KEPT.clear()
    yield
    KEPT.clear()


def kept(h: Harness, pile: Any, key: Any) -> Any:
    """The state of a key, which is there."""
    found = h.state(pile, key)
    assert found is not None
    return found


def shapes_app(
    on_error: Any = "dead-letter-all", key: Any = "key", key_type: Any = str
) -> tuple[tr.App, Any, Any, Any]:
    """An app, its topic, an actor whose instances are replaced by their encoding, and one whose are not."""
    app = tr.App("shapes", partitions=1, on_error=on_error)
    shapes: Any = app.topic("shapes", Shape, key=key, key_type=key_type, event_time="at")

    @app.actor
    class Pile(tr.Actor):
        n: int = 0
        words: list[str] = tr.field(default_factory=list)
        box: Box | None = None

        @tr.process(shapes)
        def take(self, event: Shape, ctx: tr.Context[Any]) -> None:
            self.n += 1
            match event.do:
                case "fail without words":
                    raise Broken
                case "fail badly":
                    raise ValueError("\ud800")
                case "loop":
                    ctx.set_timer(ctx.event_time, name="loop")
                case "keep words":
                    KEPT.append(self.words)
                case "change words":
                    KEPT[0].append("not mine")
                case "keep event" if isinstance(event, Square):
                    KEPT.append(event)
                    self.box = event.box
                case "change event":
                    KEPT[0].box.items.append(99)
                case "keep context":
                    KEPT.append(ctx)
                case _:
                    pass

        @tr.on_timer("loop")
        def loop(self, ctx: tr.Context[Any]) -> None:
            ctx.set_timer(ctx.event_time, name="loop")

    @app.actor
    class Number(tr.Actor):
        n: int = 0

        @tr.process(shapes)
        def take(self, event: Shape, ctx: tr.Context[Any]) -> None:
            self.n += 1
            if event.do == "keep number":
                KEPT.append(self)
            elif event.do == "change number":
                KEPT[0].n += 1

    return app, shapes, Pile, Number


REFUSED = {
    "undecodable bytes": (b"\xff\xfe{", "undecodable"),
    "cut short": (b'{"type":"circle","key":"k"', "undecodable"),
    "no bytes at all": (None, "undecodable"),
    "empty": (b"", "undecodable"),
    "nested without end": (b'{"type":"circle","x":' + b"[" * 100_000, "undecodable"),
    "wrong type of a field": (b'{"type":"circle","key":"k","at":"noon"}', "wrong-type"),
    "a list for an object": (b"[1,2]", "wrong-type"),
    "unknown union tag": (b'{"type":"triangle","key":"k","at":1}', "wrong-type"),
    "no union tag": (b'{"key":"k","at":1}', "wrong-type"),
    "missing key": (b'{"type":"circle","at":1}', "wrong-type"),
    "key that is null": (b'{"type":"square","key":null,"at":1}', "missing-key"),
    "time that is null": (b'{"type":"circle","key":"k","at":null}', "missing-time"),
    "negative time": (b'{"type":"circle","key":"k","at":-1}', "bad-time"),
    "the year 9999": (b'{"type":"circle","key":"k","at":253370764800000}', "bad-time"),
    "a time past 64 bits": (b'{"type":"circle","key":"k","at":99999999999999999999}', "bad-time"),
}


@pytest.mark.parametrize("on_error", ["dead-letter-all", "stop"])
@pytest.mark.parametrize("name", REFUSED)
def test_a_record_that_cannot_be_handled_is_a_dead_letter_with_its_reason_or_stops_the_task(
    name: str, on_error: Any
) -> None:
    value, reason = REFUSED[name]
    app, shapes, pile, _ = shapes_app(on_error)
    with Harness(app) as h:
        h.send(shapes, Circle("k", 1_000))
        h.log.append("shapes", b"the record's key", value, 77, (("h", b"1"),))
        if on_error == "stop":
            with pytest.raises(errors.BadRecordError) as caught:
                h.advance_clock_by(0)
            assert (caught.value.reason, caught.value.topic, caught.value.offset) == (reason, "shapes", 1)
            assert h.dead_letters() == []
            return
        h.send(shapes, Circle("k", 1_001))
        (letter,) = h.dead_letters()
        assert (letter.reason, letter.key, letter.value) == (reason, b"the record's key", value)
        wanted = ("shapes", b"1", b"1")
        assert (letter.topic, letter.headers["tailrace-offset"], letter.headers["h"]) == wanted
        (record,) = h.log.read("shapes.dead-letters")
        assert record.timestamp_ms == 77
        assert (kept(h, pile, "k").n, h.watermark()) == (2, 1_000)
        h.replay()


@pytest.mark.parametrize("error", [KeyError, IndexError, ZeroDivisionError, RuntimeError, AttributeError])
def test_because_its_key_cannot_be_worked_out_is_one_record_lost_and_not_the_task(error: Any) -> None:
    def key(shape: Any) -> str:
        if shape.do == "bad":
            raise error("no key")
        return str(shape.key)

    app, shapes, pile, _ = shapes_app(key=key)
    with Harness(app) as h:
        h.send_raw(shapes, b'{"type":"circle","key":"k","do":"bad"}', b"k")
        h.send(shapes, Circle("k", 2))
        assert [one.reason for one in h.dead_letters()] == ["bad-key"]
        assert kept(h, pile, "k").n == 1


class Color(StrEnum):
    RED = "red"


@pytest.mark.parametrize("commits", [False, True])
@pytest.mark.parametrize(
    ("declared", "right", "wrong"),
    [
        (str, "red", [Color.RED, ["red"]]),
        (int, 1, [True, 1.0]),
        (tuple[int, str], (1, "red"), [(True, "red"), (1.0, "red"), (1, Color.RED), [1, "red"], (1,)]),
        (Color, Color.RED, ["red"]),
    ],
)
def test_a_key_of_another_type_is_refused_whether_or_not_its_instance_is_live(
    declared: Any, right: Any, wrong: list[Any], commits: bool
) -> None:
    app, shapes, pile, _ = shapes_app(
        key=lambda event: wrong[int(event.do)] if event.do else right, key_type=declared
    )
    with Harness(app) as h:
        h.send(shapes, Circle("red"))
        if commits:
            h.crash()
        for number, key in enumerate(wrong):
            h.send_raw(shapes, msgspec.json.encode(Circle("red", 2_000, str(number))), b"red")
            letter = h.dead_letters()[number]
            assert letter.reason == "bad-key"
            assert type(key).__name__ in letter.error
        assert kept(h, pile, right).n == 1


# --- handlers that fail


@pytest.mark.parametrize("do", ["fail without words", "fail badly"])
def test_an_error_that_cannot_be_written_is_a_dead_letter_like_any(do: str) -> None:
    app, shapes, pile, _ = shapes_app()
    with Harness(app) as h:
        h.send(shapes, Circle("k", 1_001, do), Circle("new", 1_001, do), Circle("k", 1_002))
        assert [one.reason for one in h.dead_letters()] == ["handler-failed"] * 2
        assert (kept(h, pile, "k").n, h.state(pile, "new")) == (1, None)
        h.replay()


def test_a_timer_loop_is_stopped_and_named_or_cut_off_and_the_rest_goes_on() -> None:
    settings = TaskSettings(timer_loop_cap=20)
    app, shapes, pile, _ = shapes_app("stop")
    with Harness(app, settings=settings) as h:
        with pytest.raises(errors.HandlerError, match="times in a row") as caught:
            h.send(shapes, Circle("k", 1_000, "loop"), Circle("k", 1_001))
        assert caught.value.key == "k"
    app, shapes, pile, _ = shapes_app()
    with Harness(app, settings=settings) as h:
        h.send(shapes, Circle("k", 1_000, "loop"), Circle("other", 1_001), Circle("k", 1_002))
        (letter,) = h.dead_letters()
        assert "TimerLoopError" in letter.error
        assert kept(h, pile, "k").n == 2


# --- handlers that keep what is not theirs


@pytest.mark.parametrize("touched_again", [True, False])
@pytest.mark.parametrize("together", [True, False])
def test_a_reference_to_another_keys_state_is_found_in_a_checked_run(
    touched_again: bool, together: bool
) -> None:
    app, shapes, _, _ = shapes_app("dead-letter")
    events = [Circle("a", 1, "keep number"), Circle("b", 2, "change number")]
    events += [Circle("a", 3)] * touched_again
    with Harness(app) as h:
        if not together:
            h.send(shapes, events.pop(0))
        with pytest.raises(errors.StateLeakError, match="'a'"):
            h.send(shapes, *events)


@pytest.mark.parametrize("how", [{"checked": False}, {"reload": True}, {"checked": True}])
def test_a_reference_changes_nothing_where_values_are_replaced_by_their_encoding(how: Any) -> None:
    app, shapes, pile, _ = shapes_app()
    with Harness(app, **how) as h:
        h.send(shapes, Circle("a", 1, "keep words"), Circle("b", 2, "change words"))
        assert (kept(h, pile, "a").words, kept(h, pile, "b").words) == ([], [])
        KEPT.clear()
        h.send(shapes, Square("k", 3, "keep event", Box([1, 2])), Circle("k", 4, "change event"))
        assert kept(h, pile, "k").box == Box([1, 2])


def test_a_context_cannot_be_used_once_the_handler_has_returned() -> None:
    app, shapes, _, _ = shapes_app()
    with Harness(app) as h:
        h.send(shapes, Circle("k", 1, "keep context"))
    with pytest.raises(errors.UsageError):
        KEPT[0].set_timer(5, name="late")
    with pytest.raises(errors.UsageError):
        KEPT[0].clear()


# --- state of another version


def test_a_cut_or_tape_of_another_format_is_refused_whatever_else_it_holds() -> None:
    for other in (tape.FORMAT - 1, tape.FORMAT + 1):
        for decode in (tape.decode_cut, tape.decode_tape):
            with pytest.raises(errors.FormatError, match="reads only format"):
                decode(msgspec.msgpack.encode([other, {"all": "different"}]))


@pytest.mark.parametrize(
    "data", [b"", b"\xc1", b"\x90", b"\x91\xa1x", msgspec.msgpack.encode([tape.FORMAT, "too short"])]
)
def test_what_is_no_cut_and_no_tape_is_corrupt(data: bytes) -> None:
    for decode in (tape.decode_cut, tape.decode_tape):
        with pytest.raises(errors.CorruptStateError):
            decode(data)


def test_a_cut_of_another_app_is_refused() -> None:
    cut = Task(shapes_app()[0].plan(), 0, MemoryStore()).commit_batch().cut
    with pytest.raises(errors.CorruptStateError, match="shapes"):
        Task(tr.App("other", partitions=2).plan(), 0, MemoryStore(), cut)


# --- values of the right type that nothing can hold


class Tree(msgspec.Struct):
    n: int = 0
    inner: Tree | None = None


class Odd(msgspec.Struct, frozen=True):
    key: str
    do: str
    n: int = 0
    when: datetime = datetime(2026, 1, 1, tzinfo=UTC)
    tree: Tree | None = None


class Told(msgspec.Struct, frozen=True):
    n: int


def odd_app() -> tuple[tr.App, Any, Any]:
    app = tr.App("odd", partitions=1, on_error="dead-letter")
    odds: Any = app.topic("odds", Odd, key="key", event_time=tr.RECORD_TIME)
    packed: Any = app.topic("packed", Told, key="n", format="msgpack")

    @app.actor
    class Keep(tr.Actor):
        good: int = 0
        n: int = 0
        share: float = 0.0
        when: datetime | None = None
        many: list[int] = tr.field(default_factory=list)
        tree: Tree | None = None
        credit: Annotated[int, msgspec.Meta(ge=0)] = 0
        by_number: tr.MapState[int, int]
        by_time: tr.MapState[datetime, int]
        items: tr.ListState[int]
        lists: tr.MapState[str, list[int]]

        @tr.process(odds)
        def take(self, event: Odd, ctx: tr.Context[str]) -> None:
            n = event.n
            match event.do:
                case "field":
                    self.n = n
                case "sum":
                    self.n += n
                case "share":
                    self.share = n
                case "list":
                    self.many.append(n)
                case "tree":
                    self.tree = event.tree
                case "credit":
                    self.credit = n
                case "time":
                    self.when = event.when
                case "map key":
                    self.by_number[n] = 1
                case "looked up":
                    self.by_number.get(n)
                case "map time":
                    self.by_time[event.when] = 1
                case "map value":
                    self.by_number[1] = n
                case "map list":
                    self.lists["a"] = [n]
                case "item":
                    self.items.append(n)
                case "timer":
                    ctx.set_timer(n)
                case "timer of time":
                    ctx.set_timer(event.when)
                case "payload":
                    ctx.set_timer(ctx.event_time + 1, "paid", payload=Told(n))
                case "message":
                    ctx.send(Keep, "k", Told(n))
                case "key of a message":
                    ctx.send(Keep, event.key, Told(1))
                case "emit":
                    ctx.emit(packed, Told(n))
                case "emit at":
                    ctx.emit(packed, Told(1), at=n)
                case "tell":
                    raise ValueError("7" * 1_000_000 + "8")
                case _:
                    self.good += 1

        @tr.on_timer
        def due(self, ctx: tr.Context[str]) -> None: ...

        @tr.on_timer("paid", payload=Told)
        def paid(self, told: Told, ctx: tr.Context[str]) -> None: ...

        @tr.on_message
        def told(self, told: Told, ctx: tr.Context[str]) -> None: ...

    return app, odds, Keep


BEYOND = [
    *(
        (do, f'"n":{n}')
        for do in (
            *("field", "sum", "list", "map key", "looked up", "map value", "map list", "item"),
            *("timer", "payload", "message", "emit", "emit at", "share"),
        )
        for n in (2**64, -(2**63) - 1, 10**400)
    ),
    ("map key", f'"n":{2**63}'),
    ("share", f'"n":{2**53 + 1}'),
    ("credit", '"n":-1'),
    ("timer", f'"n":{2**61}'),
    ("timer", '"n":1767225600'),
    ("timer of time", '"when":"2026-01-01T00:00:00"'),
    ("map time", '"when":"2026-01-01T00:00:00"'),
    ("time", '"when":"0001-01-01T00:00:00+05:00"'),
    ("time", '"when":"9999-12-31T23:59:59-05:00"'),
    ("tree", f'"tree":{{"inner":{{"n":{2**64}}}}}'),
]


@pytest.mark.parametrize(("do", "field"), BEYOND)
def test_a_value_that_nothing_can_hold_is_the_events_fault(do: str, field: str) -> None:
    app, odds, keep = odd_app()
    at_ms = 1_767_225_600_000
    with Harness(app) as h:
        h.send(odds, Odd("k", "good"), timestamp_ms=at_ms)
        h.log.append("odds", b"k", f'{{"key":"k","do":"{do}",{field}}}'.encode(), at_ms)
        h.send(odds, Odd("k", "good"), timestamp_ms=at_ms)
        (letter,) = h.dead_letters()
        assert letter.reason == "handler-failed"
        assert kept(h, keep, "k").good == 2
        h.end_of_input()
        h.replay()


def test_a_value_beyond_the_limit_is_not_decoded_and_its_letter_has_the_beginning() -> None:
    app, odds, keep = odd_app()
    at_ms = 1_767_225_600_000
    good = b'{"key":"k","do":"good"}'
    with Harness(app) as h:
        h.log._router.max_record_bytes = 1 << 30
        h.log.append("odds", b"k", good + b" " * (RECORD_BYTES - len(good)), at_ms)
        for beyond in (good + b" " * (RECORD_BYTES + 1 - len(good)), b"x" * (RECORD_BYTES + 1)):
            h.log.append("odds", b"k", beyond, at_ms, (("h", b"1"),))
        h.log.append("odds", b"k" * (2 << 20), b"x" * (RECORD_BYTES - (1 << 20)), at_ms)
        h.log.append("odds", b"k", good, at_ms, ((UNREADABLE, b""),))
        h.send(odds, Odd("k", "good"), timestamp_ms=at_ms)
        assert kept(h, keep, "k").good == 2
        assert len(h.dead_letters()) == 4
        cut, again, keyed, unreadable = (read("odd", 0, one) for one in h.log.read("odd.dead-letters"))
        assert {one.reason for one in (cut, again, keyed, unreadable)} == {"undecodable"}
        for one in (cut, again):
            assert (one.cut, one.record.headers) == (RECORD_BYTES + 4, ())
            assert (one.record.key, len(one.record.value or b"")) == (b"k", 1 << 20)
        assert (keyed.cut, len(keyed.record.key or b"")) == (RECORD_BYTES + (1 << 20), 1 << 20)
        assert (unreadable.cut, unreadable.record.value) == (None, good)
        h.replay()


def test_a_long_error_is_cut_in_the_letter() -> None:
    app, odds, _ = odd_app()
    with Harness(app) as h:
        h.send(odds, Odd("k", "tell", tree=Tree(7)), timestamp_ms=1_767_225_600_000)
        (letter,) = h.dead_letters()
        assert (letter.error[:14], letter.error[-3:]) == ("ValueError: 77", "778")
        assert len(letter.error) < 10_100
        assert len(letter.headers["tailrace-traceback"]) < 10_100
        h.replay()
