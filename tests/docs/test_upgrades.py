"""Every line of the tables in docs/upgrades.md, tried: a row's first cell is the name of the test that holds it."""

from __future__ import annotations

import re
from collections.abc import Callable
from enum import Enum
from pathlib import Path
from typing import Any, Literal, cast
from uuid import UUID, uuid4

import msgspec
import pytest

import tailrace as tr
from tailrace.core.declare.plan import Plan
from tailrace.core.errors import DefinitionError, IncompatibleStateError, InputsChangedError
from tailrace.core.records import Output
from tailrace.runtime.service import prepare_log
from tailrace.runtime.slices import PartitionSettings
from tailrace.runtime.worker import Worker, WorkerSettings
from tailrace.state import MemoryStore
from tailrace.testing import Harness, MemoryLog
from tests.core.versions import Fields, Lives, Restart, Set, app_of, plan_of

PAGE = Path(__file__).parents[2] / "docs" / "upgrades.md"

LINES: dict[str, Callable[[Restart], None]] = {}
"""By the first cell of the row: what tries it, on local state or on state restored from the changelog."""


def line(name: str) -> Callable[[Callable[[Restart], None]], Callable[[Restart], None]]:
    def add(tried: Callable[[Restart], None]) -> Callable[[Restart], None]:
        assert name not in LINES
        LINES[name] = tried
        return tried

    return add


def rows_of_the_page() -> list[str]:
    found: list[str] = []
    for table in re.findall(
        r"^\| change \|.*\n\|[-|]+\|\n((?:\|.*\n)+)", PAGE.read_text("utf-8"), re.MULTILINE
    ):
        found += [row.split(" | ")[0].removeprefix("| ") for row in table.splitlines()]
    return found


def test_each_row_has_a_test_and_each_test_a_row() -> None:
    rows = rows_of_the_page()
    assert len(rows) == len({*rows})
    assert {*rows} == {*LINES}


@pytest.mark.parametrize("how", ["local", "restored"])
@pytest.mark.parametrize("name", rows_of_the_page())
def test_the_row(name: str, how: Restart) -> None:
    LINES[name](how)


# --- how a change is tried

KEPT: Fields = {"kept": (int, 0)}
ZERO: Fields = {**KEPT, "n": (int, 0)}
SEVEN: Fields = {**KEPT, "n": (int, 7)}
LIST: Any = tr.field(default_factory=list)
OPTIONAL: Any = tr.field(default=None)


def lived(fields: Fields, values: dict[str, Any] | None = None) -> Lives:
    """A quiet key ``a`` and a busy one ``b``, set alike by the first version."""
    lives = Lives(plan_of(fields))
    lives.clock(1)
    lives.tell(*(Set(key, 1, {"kept": 1, **(values or {})}) for key in "ab"))
    lives.commit()
    return lives


def upgraded(lives: Lives, how: Restart, *versions: Fields) -> Lives:
    """Run other versions; under each of them the busy key has an event."""
    for fields in versions:
        lives.start(plan_of(fields), how)
        lives.tell(Set("b", 1, {"kept": 2}))
        lives.commit()
    return lives


def read(lives: Lives, attr: str) -> Any:
    """What the quiet key reads, which is what the busy one does."""
    quiet, busy = (msgspec.to_builtins(getattr(lives.instance(key), attr)) for key in "ab")
    assert quiet == busy
    return quiet


def warned(lives: Lives, how: Restart, fields: Fields, said: str = "") -> bool:
    """Whether the start says something of it, with ``said`` in it."""
    notices = lives.start(plan_of(fields), how).stored.notices
    assert all(said in one for one in notices)
    return bool(notices)


def refused(lives: Lives, how: Restart, fields: Fields, said: str = "") -> None:
    before = lives.state()
    with pytest.raises(IncompatibleStateError, match=said):
        lives.start(plan_of(fields), how)
    assert lives.state() == before


# --- fields


@line("a field is added, with a default")
def _(how: Restart) -> None:
    lives = lived(KEPT)
    assert not warned(lives, how, ZERO)
    assert read(upgraded(lives, how, ZERO), "n") == 0
    assert read(upgraded(lives, how, SEVEN), "n") == 0


@line("a field is added, without a default")
def _(how: Restart) -> None:
    refused(lived(KEPT), how, {**KEPT, "n": (int, None)}, "Give the field a default")


@line("a field is removed")
def _(how: Restart) -> None:
    lives = lived(ZERO, {"n": 5})
    assert warned(lives, how, KEPT, "Plane.n (int) is stored and no longer declared; its values are kept")
    assert read(upgraded(lives, how, KEPT, ZERO), "n") == 5
    lives.start(plan_of(KEPT), how, drop=["Plane.n"])
    lives.commit()
    assert read(upgraded(lives, how, ZERO), "n") == 0


@line("a removed field is declared again")
def _(how: Restart) -> None:
    lives = lived(ZERO, {"n": 5})
    upgraded(lives, how, KEPT)
    lives.tell(Set("c", 1, {"kept": 1}))
    lives.commit()
    assert not warned(lives, how, ZERO)
    assert read(upgraded(lives, how, ZERO, SEVEN), "n") == 5
    assert lives.instance("c").n == 0


@line("a field is renamed, with `name=`")
def _(how: Restart) -> None:
    renamed: Fields = {**KEPT, "m": (int, tr.field(default=0, name="n"))}
    lives = lived(ZERO, {"n": 5})
    assert not warned(lives, how, renamed)
    assert read(upgraded(lives, how, renamed), "m") == 5


@line("a field is renamed, without `name=`")
def _(how: Restart) -> None:
    renamed: Fields = {**KEPT, "m": (int, 0)}
    lives = lived(ZERO, {"n": 5})
    assert warned(lives, how, renamed, 'm: int = tr.field(default=..., name="n")')
    assert read(upgraded(lives, how, renamed), "m") == 0
    assert read(upgraded(lives, how, ZERO), "n") == 5


class Colour(Enum):
    RED = "red"


class Colours(Enum):
    RED = "red"
    BLUE = "blue"


@line("a type is widened")
def _(how: Restart) -> None:
    changes: list[tuple[Any, Any, Any, Any, Any]] = [
        (int, 0, 5, int | None, 5),
        (int, 0, 5, int | str, 5),
        (Colour, Colour.RED, "red", Colours, "red"),
        (Literal["a"], "a", "a", Literal["a", "b"], "a"),
        (list[int], LIST, [1], tuple[int, ...], [1]),
    ]
    for before, default, value, after, expected in changes:
        lives = lived({**KEPT, "n": (before, default)}, {"n": value})
        now = Colours.RED if after is Colours else () if default is LIST else default
        assert not warned(lives, how, {**KEPT, "n": (after, now)})
        assert (
            [*read(upgraded(lives, how, {**KEPT, "n": (after, now)}), "n")] == [*expected]
            if isinstance(expected, list)
            else read(lives, "n") == expected
        )


@line("an `int` becomes a `float`")
def _(how: Restart) -> None:
    real: Fields = {**KEPT, "n": (float, 0.0)}
    lives = lived(ZERO, {"n": 5})
    assert not warned(lives, how, real)
    assert read(upgraded(lives, how, real), "n") == 5.0
    lives = lived(ZERO, {"n": 2**53 + 1})
    lives.start(plan_of(real), how)
    with pytest.raises(IncompatibleStateError, match=r"Declare the field as int \| float"):
        lives.tell(Set("b", 1, {"kept": 2}))
    assert read(upgraded(lives, how, {**KEPT, "n": (int | float, 0)}), "n") == 2**53 + 1


@line("a type is narrowed or replaced")
def _(how: Restart) -> None:
    changes: list[tuple[Any, Any, Any, Any]] = [
        (float, 0.0, int, 0),
        (int | None, 0, int, 0),
        (int, 0, str, ""),
        (Colours, Colours.RED, Colour, Colour.RED),
    ]
    for before, default, after, now in changes:
        refused(lived({**KEPT, "n": (before, default)}), how, {**KEPT, "n": (after, now)}, "Keep the type")


@line("a plain field becomes a map or a list, or the other way round")
def _(how: Restart) -> None:
    kinds: list[tuple[Any, Any]] = [(int, 0), (tr.MapState[str, int], None), (tr.ListState[int], None)]
    for before in kinds:
        for after in kinds:
            if after is not before:
                refused(lived({**KEPT, "n": before}), how, {**KEPT, "n": after}, "under another name")


@line("the values of a map or a list are widened")
def _(how: Restart) -> None:
    fields: Fields = {**KEPT, "m": (tr.MapState[str, int], None), "l": (tr.ListState[int], None)}
    wider: Fields = {**KEPT, "m": (tr.MapState[str, float], None), "l": (tr.ListState[int | None], None)}
    lives = lived(fields, {"m[x]": 5, "l[]": 6})
    assert not warned(lives, how, wider)
    found = upgraded(lives, how, wider).instance("a")
    assert (found.m["x"], type(found.m["x"]), [*found.l]) == (5.0, float, [6])


@line("the key type of a map changes")
def _(how: Restart) -> None:
    lives = lived({**KEPT, "m": (tr.MapState[str, int], None)}, {"m[x]": 5})
    refused(lives, how, {**KEPT, "m": (tr.MapState[int, int], None)}, "Keep the type of the key")


# --- defaults


@line("a default changes")
def _(how: Restart) -> None:
    lives = lived(ZERO)
    assert warned(lives, how, SEVEN, "has the default 7 now, it had 0: what is stored keeps its value")
    assert read(upgraded(lives, how, SEVEN), "n") == 0


@line("a default changes, and a key is not stored")
def _(how: Restart) -> None:
    lives = lived(ZERO)
    lives.tell(Set("a", 1, {"kept": 0}), Set("b", 1, {"kept": 0}))
    lives.commit()
    assert lives.instance("a") is None
    assert warned(lives, how, SEVEN, "a key of which nothing is stored, new or back to its defaults, reads 7")
    lives.tell(*(Set(key, 1, {"kept": 1}) for key in "abc"))
    lives.commit()
    assert [lives.instance(key).n for key in "abc"] == [7, 7, 7]


@line("a default changes, and rows are without the field")
def _(how: Restart) -> None:
    lives = lived(KEPT)
    lives.start(plan_of(ZERO), how)
    lives.commit()
    assert warned(lives, how, SEVEN, "has the default 7 now")
    assert read(upgraded(lives, how, SEVEN), "n") == 0


def place(**defaults: int) -> Any:
    return msgspec.defstruct("Place", [(name, int, default) for name, default in defaults.items()])


@line("the default of a field in a nested struct changes")
def _(how: Restart) -> None:
    versions: list[Fields] = [
        {**KEPT, "p": (kind | None, OPTIONAL)} for kind in (place(x=0), place(x=0, y=2), place(x=0, y=3))
    ]
    lives = upgraded(lived(versions[0], {"p": {"x": 1}}), how, versions[1])
    assert warned(lives, how, versions[2], "Plane.p.y has the default 3 now, it had 2")
    assert read(upgraded(lives, how, versions[2]), "p") == {"x": 1, "y": 2}


@line("a default becomes `UNSET`")
def _(how: Restart) -> None:
    def version(kind: Any, default: Any) -> Fields:
        struct = msgspec.defstruct("Place", [("x", int), ("y", kind, default)])
        return {**KEPT, "p": (struct | None, OPTIONAL)}

    lives = upgraded(
        lived({**KEPT, "p": (place(x=0) | None, OPTIONAL)}, {"p": {"x": 1}}), how, version(int, 2)
    )
    refused(lives, how, version(int | msgspec.UnsetType, msgspec.UNSET), "Use None for what is not given")


@line("a `default_factory` gives another value at each call")
def _(how: Restart) -> None:
    with pytest.raises(DefinitionError, match="gives another value at each call"):
        plan_of({"id": (UUID, tr.field(default_factory=uuid4))})


@line("a field with such a `default_factory` is added to a nested struct")
def _(how: Restart) -> None:
    varying = msgspec.defstruct("Place", [("x", int), ("id", UUID, msgspec.field(default_factory=uuid4))])
    lives = lived({**KEPT, "p": (place(x=0) | None, OPTIONAL)}, {"p": {"x": 1}})
    refused(lives, how, {**KEPT, "p": (varying | None, OPTIONAL)}, "the same each time it is made")


@line("the default of an event's field changes")
def _(how: Restart) -> None:
    for default in (2, 3):
        event = msgspec.defstruct("Seen", [("key", str), ("at", int), ("y", int, default)])
        app = tr.App("versions", partitions=1)
        topic = app.topic("seen", event, key="key", event_time="at")
        assert topic.decode(b'{"key":"a","at":1}').y == default


# --- times to live


def fading(ttl: int | None = None, ttl_time: Literal["event", "processing"] = "event") -> Fields:
    """A plain field and a map with this TTL."""
    options: Any = {} if ttl is None else {"ttl": ttl, "ttl_time": ttl_time}
    return {
        **KEPT,
        "p": (int, tr.field(default=0, **options)),
        "m": (tr.MapState[str, int], tr.field(**options) if options else None),
    }


FADED = {"p": 5, "m[x]": 5}


def passed(lives: Lives, at: int) -> bool:
    """Let event time and the clock pass, and see whether the two of the quiet key have gone: both or neither."""
    lives.tell(Set("other", at + 1, {"kept": 1}))
    lives.clock(at)
    lives.commit()
    found = lives.instance("a")
    assert (found.p == 0) == ("x" not in found.m)
    return bool(found.p == 0)


def rewritten(lives: Lives, at: int) -> Lives:
    lives.tell(Set("a", at, FADED))
    lives.commit()
    return lives


@line("a TTL is added")
def _(how: Restart) -> None:
    lives = lived(fading(), FADED)
    assert warned(lives, how, fading(100), "written before does not expire until it is written again")
    assert not passed(lives, 1_000)
    assert passed(rewritten(lives, 1_002), 1_102)


@line("a TTL becomes longer or shorter")
def _(how: Restart) -> None:
    for other in (30, 300):
        lives = lived(fading(100), FADED)
        assert warned(lives, how, fading(other), "written before expires as it was to, until")
        assert not passed(lives, 100)
        assert passed(lives, 101)
        assert not passed(rewritten(lives, 103), 102 + other)
        assert passed(lives, 103 + other)


@line("a TTL is removed")
def _(how: Restart) -> None:
    lives = lived(fading(100), FADED)
    assert warned(lives, how, fading(), "nothing of it expires any more, what was written before included")
    assert not passed(lives, 1_000)


@line("a TTL is removed and brought back")
def _(how: Restart) -> None:
    for writes in (False, True):
        lives = lived(fading(100), FADED)
        assert warned(lives, how, fading(), "has no ttl now")
        if writes:
            rewritten(lives, 2)
        lives.commit()
        assert warned(lives, how, fading(100), "does not expire until it is written again")
        assert not passed(lives, 1_000)
        assert passed(rewritten(lives, 1_002), 1_102)


@line("a TTL moves to the other time domain")
def _(how: Restart) -> None:
    domains: list[Literal["event", "processing"]] = ["event", "processing"]
    for before, after in (domains, domains[::-1]):
        lives = lived(fading(100, before), FADED)
        assert warned(lives, how, fading(100, after), f"ms by {after} time now")
        assert not passed(lives, 1_000)
        assert passed(rewritten(lives, 1_002), 1_102)


@line("a field with a TTL is undeclared for a while")
def _(how: Restart) -> None:
    for meanwhile, then in ((50, 100), (1_000, None)):
        lives = lived(fading(100), FADED)
        assert warned(lives, how, KEPT, "Plane.p (int) is stored and no longer declared")
        lives.tell(Set("other", meanwhile, {"kept": 1}))
        lives.commit()
        lives.start(plan_of(fading(100)), how)
        if then is not None:
            assert not passed(lives, then)
        assert passed(lives, 1_001)


# --- actors, keys and inputs


@line("an actor is renamed, with `name=`")
def _(how: Restart) -> None:
    plans: list[Plan] = []
    for cls in ("Plane", "Aircraft"):
        app = tr.App("versions", partitions=1)
        topic = app.topic("told", Set, key="key", event_time="at")
        app.actor(name="Plane")(actor(cls, topic))
        plans.append(app.plan())
    lives = Lives(plans[0])
    lives.tell(Set("a", 1))
    lives.commit()
    assert lives.start(plans[1], how).stored.notices == ()
    assert lives.instance("a").count == 1


def actor(cls: str, *topics: Any, step: int = 1, timer: bool = False, sets: bool = False) -> Any:
    """An actor that counts by ``step``; ``sets`` a timer, and has a handler for it if ``timer``."""

    def take(self: Any, event: Set, ctx: tr.Context[str]) -> None:
        self.count += step
        if sets:
            ctx.set_timer(event.at + 100, "late")

    def late(self: Any, ctx: tr.Context[str]) -> None:
        self.count += 1_000

    body: dict[str, Any] = {
        "__module__": __name__,
        "__annotations__": {"count": int},
        "count": 0,
        "take": tr.process(*topics)(take),
    }
    if timer:
        body["late"] = tr.on_timer("late")(late)
    return cast(Any, type(tr.Actor))(cls, (tr.Actor,), body)


def counting(cls: str | None = "Plane", *, on_error: Any = "stop", **options: Any) -> Plan:
    app = tr.App("versions", partitions=1, on_error=on_error)
    topic = app.topic("told", Set, key="key", event_time="at")
    if cls is not None:
        app.actor(actor(cls, topic, **options))
    else:

        @app.process(topic)
        def forget(event: Set, ctx: tr.Context[str]) -> None: ...

    return app.plan()


def counted(**options: Any) -> Lives:
    lives = Lives(counting(**options))
    lives.tell(Set("a", 1))
    lives.commit()
    return lives


@line("an actor is renamed, without `name=`")
def _(how: Restart) -> None:
    lives = counted()
    assert lives.start(counting("Aircraft"), how).stored.orphans == ("Plane",)
    lives.tell(Set("a", 1))
    lives.commit()
    assert lives.instance("a").count == 1
    lives.start(counting(), how)
    assert lives.instance("a").count == 1


@line("an actor is removed")
def _(how: Restart) -> None:
    lives = counted()
    before = lives.state()
    assert lives.start(counting(None), how).stored.orphans == ("Plane",)
    lives.tell(Set("a", 1))
    lives.commit()
    assert lives.state() == before
    lives.start(counting(None), how, drop=["Plane"])
    lives.commit()
    assert lives.state() == {}


class Seen(msgspec.Struct):
    tail: str
    carrier: str
    number: int
    at: int


def keyed(key: Any) -> Plan:
    app = tr.App("versions", partitions=1)
    topic = app.topic("seen", Seen, key=key, event_time="at")

    def see(self: Any, event: Seen, ctx: Any) -> None:
        self.count += 1

    of = int if key == "number" else str
    see.__annotations__["ctx"] = tr.Context[of]  # type: ignore[valid-type]  # another in each app
    body = {
        "__module__": __name__,
        "__annotations__": {"count": int},
        "count": 0,
        "see": tr.process(topic)(see),
    }
    app.actor(cast(Any, type(tr.Actor))("Plane", (tr.Actor,), body))
    return app.plan()


def by_function(event: Seen) -> str:
    return event.tail


@line("the type of the key changes")
def _(how: Restart) -> None:
    lives = Lives(keyed("tail"))
    lives.commit()
    with pytest.raises(IncompatibleStateError, match="Keep the type of the key"):
        lives.start(keyed("number"), how)


@line("the key of a topic becomes another field")
def _(how: Restart) -> None:
    lives = Lives(keyed("tail"))
    lives.commit()
    with pytest.raises(IncompatibleStateError, match="Keep the key"):
        lives.start(keyed("carrier"), how)


@line("the key of a topic becomes a function, or is one no longer")
def _(how: Restart) -> None:
    lives = Lives(keyed("tail"))
    lives.commit()
    for key, said in (
        (by_function, "is a function now, it was tail"),
        ("tail", "is tail now, it was a function"),
    ):
        (notice,) = lives.start(keyed(key), how).stored.notices
        assert said in notice
        lives.commit()


def two_inputs(*, both: bool, partitions: int = 1) -> Plan:
    app = tr.App("versions", partitions=partitions)
    topics = [app.topic(name, Set, key="key", event_time="at") for name in ("told", "more")]
    app.actor(actor("Plane", *topics[: 1 + both]))
    return app.plan()


class Service:
    """A log and a store, on which a real worker runs one version after another."""

    def __init__(self, plan: Plan) -> None:
        self.log, self.store = MemoryLog(), MemoryStore()
        prepare_log(self.log, plan, create_declared=True)
        self.log.append_all(
            [Output(name, b"a", msgspec.json.encode(Set("a", 1)), 1) for name in ("told", "more")]
        )

    def run(self, plan: Plan, *, change_inputs: bool = False) -> int:
        """Run until all is read; how much the key has counted."""
        prepare_log(self.log, plan, create_declared=True)
        settings = WorkerSettings(partition=PartitionSettings(commit_interval_ms=0))
        worker = Worker(
            plan,
            self.log,
            [0],
            lambda _: self.store,
            settings=settings,
            clock=lambda: 0,
            change_inputs=change_inputs,
        )
        try:
            worker.start()
            while worker.turn():
                pass
        finally:
            worker.leave()
        row = self.store.get(b"sPlane\0a\0\0")
        assert row is not None
        return int(msgspec.msgpack.decode(row[1:])["count"])


@line("an input is added")
def _(how: Restart) -> None:
    service = Service(two_inputs(both=False))
    assert service.run(two_inputs(both=False)) == 1
    with pytest.raises(InputsChangedError, match="now reads 'more'"):
        service.run(two_inputs(both=True))
    assert service.run(two_inputs(both=True), change_inputs=True) == 2


@line("an input is removed")
def _(how: Restart) -> None:
    service = Service(two_inputs(both=True))
    assert service.run(two_inputs(both=True)) == 2
    with pytest.raises(InputsChangedError, match="no longer reads 'more'"):
        service.run(two_inputs(both=False))
    assert service.run(two_inputs(both=False), change_inputs=True) == 2


@line("the number of partitions changes")
def _(how: Restart) -> None:
    service = Service(two_inputs(both=False))
    with pytest.raises(InputsChangedError, match="has 2 partitions, and was run with 1"):
        service.run(two_inputs(both=False, partitions=2))


# --- handlers and timers


@line("a handler changes")
def _(how: Restart) -> None:
    lives = counted()
    assert lives.start(counting(step=10), how).stored.notices == ()
    lives.tell(Set("a", 2))
    lives.commit()
    assert lives.instance("a").count == 11


@line("a timer's handler is removed")
def _(how: Restart) -> None:
    lives = counted(timer=True, sets=True)
    with pytest.raises(IncompatibleStateError, match="1 pending timer of the family 'late' and no handler"):
        lives.start(counting(), how)
    lives.start(counting(timer=True), how)
    lives.tell(Set("b", 1_000))
    lives.commit()
    assert lives.instance("a").count == 1_001
    assert lives.start(counting(), how).stored.notices == ()


@line('a timer\'s handler is removed, with `on_error="dead-letter-all"`')
def _(how: Restart) -> None:
    lives = counted(timer=True, sets=True)
    (said,) = lives.start(counting(on_error="dead-letter-all"), how).stored.notices
    assert "Such timers go to the dead letters when they are due" in said
    lives.tell(Set("b", 1_000))
    (letter,) = lives.task.take_outputs()
    assert letter.topic == "versions.dead-letters"
    lives.commit()
    assert lives.instance("a").count == 1


@line("a timer's handler is added")
def _(how: Restart) -> None:
    lives = counted()
    assert lives.start(counting(timer=True, sets=True), how).stored.notices == ()
    lives.tell(Set("a", 2), Set("b", 1_000))
    lives.commit()
    assert lives.instance("a").count == 1_002


# --- and it is replayed to the byte


@pytest.mark.parametrize("state", ["memory", "rocksdb"])
def test_an_upgrade_of_ttls_and_defaults_is_replayed_byte_for_byte(
    state: Literal["memory", "rocksdb"],
) -> None:
    versions: list[Fields] = [
        fading(100),
        {**fading(), "n": (int, 1)},
        {**fading(100, "processing"), "n": (int, 2)},
    ]
    start = None
    for number, fields in enumerate(versions):
        app = app_of(fields)
        topic, at = app.topics["told"], number * 50
        with Harness(app, start=start, state=state) as h:
            h.send(topic, *(Set(key, at + 1, {"kept": number + 1, **FADED}) for key in ("a", "b")[number:]))
            h.send(topic, Set("other", at + 40, {"kept": 1}))
            if number == 2:
                h.send(topic, Set("other", 1_000, {"kept": 1}))
                h.advance_clock_by(1_000)
                actor_class: Any = app.actors["Plane"]
                found = cast(Any, h.state(actor_class, "a"))
                assert (found.p, found.n) == (5, 1)
            h.crash()
            h.replay()
            start = h.snapshot()
