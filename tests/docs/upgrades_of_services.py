"""Lines of docs/upgrades.md on actors, keys, inputs, handlers and timers."""

from __future__ import annotations

from typing import Any, cast

import msgspec
import pytest

import tailrace as tr
from tailrace.core import rows
from tailrace.core.declare.plan import Plan
from tailrace.core.errors import IncompatibleStateError, InputsChangedError, TopicMismatchError
from tailrace.core.records import Output
from tailrace.runtime.preparing import prepare_log
from tailrace.runtime.slices import PartitionSettings
from tailrace.runtime.worker import Worker, WorkerSettings
from tailrace.state import MemoryStore
from tailrace.testing import MemoryLog
from tests.core.versions import Lives, Restart, Set
from tests.docs.upgrades_of_fields import line

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
    lives.take(Set("a", 1))
    lives.commit()
    assert lives.restart(plans[1], how).stored.notices == ()
    assert lives.instance("a").count == 1


def actor(
    cls: str, *topics: Any, step: int = 1, timer: bool = False, sets: bool = False, order: str = "arrival"
) -> Any:
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
    return cast(Any, type(tr.Actor))(cls, (tr.Actor,), body, order=order)


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
    lives.take(Set("a", 1))
    lives.commit()
    return lives


@line("an actor is renamed, without `name=`")
def _(how: Restart) -> None:
    lives = counted()
    assert lives.restart(counting("Aircraft"), how).stored.orphans == ("Plane",)
    lives.take(Set("a", 1))
    lives.commit()
    assert lives.instance("a").count == 1
    lives.restart(counting(), how)
    assert lives.instance("a").count == 1


@line("an actor is removed")
def _(how: Restart) -> None:
    lives = counted()
    before = lives.state()
    assert lives.restart(counting(None), how).stored.orphans == ("Plane",)
    lives.take(Set("a", 1))
    lives.commit()
    assert lives.state() == before
    lives.restart(counting(None), how, "Plane")
    lives.commit()
    assert lives.state() == {}


@line('an actor with `order="arrival"` gets `order="event-time"`')
def _(how: Restart) -> None:
    lives = counted()
    assert lives.restart(counting(order="event-time"), how).stored.notices == ()
    lives.take(Set("a", 5))
    lives.commit()
    assert lives.instance("a").count == 1
    lives.take(Set("a", 6))
    lives.commit()
    assert lives.instance("a").count == 2


@line('an actor with `order="event-time"` gets `order="arrival"`')
def _(how: Restart) -> None:
    lives = counted(order="event-time")
    with pytest.raises(IncompatibleStateError, match="1 events of 'told' wait for their turn in Plane"):
        lives.restart(counting(), how)
    lives = counted(order="event-time")
    lives.task.idle(0)
    lives.drain()
    lives.commit()
    lives.restart(counting(), how)
    lives.take(Set("a", 5))
    lives.commit()
    assert lives.instance("a").count == 2


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
        lives.restart(keyed("number"), how)


@line("the key of a topic becomes another field")
def _(how: Restart) -> None:
    lives = Lives(keyed("tail"))
    lives.commit()
    with pytest.raises(IncompatibleStateError, match="Keep the key"):
        lives.restart(keyed("carrier"), how)


@line("the key of a topic becomes a function, or is one no longer")
def _(how: Restart) -> None:
    lives = Lives(keyed("tail"))
    lives.commit()
    for key, said in (
        (by_function, "is a function now, it was tail"),
        ("tail", "is tail now, it was a function"),
    ):
        (notice,) = lives.restart(keyed(key), how).stored.notices
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
        settings = WorkerSettings(
            change_inputs=change_inputs, partition=PartitionSettings(commit_interval_ms=0)
        )
        worker = Worker(plan, self.log, [0], lambda _: self.store, settings=settings, clock=lambda: 0)
        try:
            worker.start()
            while worker.turn():
                pass
        finally:
            worker.leave()
        row = self.store.get(b"sPlane\0a\0\0")
        assert row is not None
        return int(msgspec.msgpack.decode(row[rows.start_of_fields(row) :])["count"])


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
    with pytest.raises(TopicMismatchError, match=r"exists with 1 partition.*asked for was 2"):
        service.run(two_inputs(both=False, partitions=2))


# --- handlers and timers


@line("a handler changes")
def _(how: Restart) -> None:
    lives = counted()
    assert lives.restart(counting(step=10), how).stored.notices == ()
    lives.take(Set("a", 2))
    lives.commit()
    assert lives.instance("a").count == 11


@line("a timer's handler is removed")
def _(how: Restart) -> None:
    lives = counted(timer=True, sets=True)
    with pytest.raises(IncompatibleStateError, match="pending timers of the family 'late' and no handler"):
        lives.restart(counting(), how)
    lives.restart(counting(timer=True), how)
    lives.take(Set("b", 1_000))
    lives.commit()
    assert lives.instance("a").count == 1_001
    assert lives.restart(counting(), how).stored.notices == ()


@line('a timer\'s handler is removed, with `on_error="dead-letter-all"`')
def _(how: Restart) -> None:
    lives = counted(timer=True, sets=True)
    (said,) = lives.restart(counting(on_error="dead-letter-all"), how).stored.notices
    assert "Such timers go to the dead letters when they are due" in said
    lives.take(Set("b", 1_000))
    (letter,) = lives.task.take_outputs()
    assert letter.topic == "versions.dead-letters"
    lives.commit()
    assert lives.instance("a").count == 1


@line("a timer's handler is added")
def _(how: Restart) -> None:
    lives = counted()
    assert lives.restart(counting(timer=True, sets=True), how).stored.notices == ()
    lives.take(Set("a", 2), Set("b", 1_000))
    lives.commit()
    assert lives.instance("a").count == 1_002


class Claim(msgspec.Struct, frozen=True):
    gate: int


class Longer(msgspec.Struct, frozen=True):
    gate: int
    note: str = "none"


class Turned(msgspec.Struct, frozen=True, array_like=True):
    first: int
    second: int


class Exchanged(msgspec.Struct, frozen=True, array_like=True):
    second: int
    first: int


def claiming(payload: Any) -> Plan:
    """An actor whose timers have a payload, which it adds to its count when they fire."""
    app = tr.App("versions", partitions=1)
    topic = app.topic("told", Set, key="key", event_time="at")

    @app.actor
    class Plane(tr.Actor):
        count: int = 0

        @tr.process(topic)
        def take(self, event: Set, ctx: tr.Context[str]) -> None:
            ctx.set_timer(event.at + 100, "late", payload)

        @tr.on_timer("late", payload=type(payload))
        def late(self, claim: Any, ctx: tr.Context[str]) -> None:
            self.count += next(iter(msgspec.structs.astuple(claim)))

    return app.plan()


@line("the type of a timer's payload is widened")
def _(how: Restart) -> None:
    lives = Lives(claiming(Claim(7)))
    lives.take(Set("a", 1))
    lives.commit()
    assert lives.restart(claiming(Longer(8)), how).stored.notices == ()
    lives.take(Set("b", 1_000))
    lives.commit()
    assert lives.instance("a").count == 7


@line("the type of a timer's payload is narrowed or replaced")
def _(how: Restart) -> None:
    for before, after in ((Turned(1, 2), Exchanged(1, 2)), (Longer(1), Turned(1, 2))):
        lives = Lives(claiming(before))
        lives.take(Set("a", 1))
        lives.commit()
        with pytest.raises(IncompatibleStateError, match="timers:late"):
            lives.restart(claiming(after), how)
