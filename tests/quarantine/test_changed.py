"""Quarantine where the code changes between a failure and its release, and in a replay."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

import tailrace as tr
from tailrace.core.declare.quarantine import Decision
from tailrace.core.engine.tape import decode_tape
from tailrace.core.engine.task import Task
from tailrace.core.engine.timers import FOREVER
from tailrace.core.errors import IncompatibleStateError
from tailrace.core.records import InputRecord
from tailrace.state.memory import MemoryStore
from tailrace.testing import Harness
from tests.quarantine.failing import Broken, Ev, fail, seen_of, state_of
from tests.quarantine.test_rules import bank


def test_with_changed_code_it_is_the_timer_that_failed_which_waits() -> None:
    """Not another one that fires as the same number, since the changed code fires more timers."""

    def ran(*, is_changed: bool, skips: dict[tuple[int, int, int], Any] | None = None) -> Task:
        app = tr.App("bank", partitions=1, on_error="quarantine")
        events = app.topic("events", Ev, key="key", event_time="at")

        @app.actor
        class Account(tr.Actor):
            seen: list[str] = tr.field(default_factory=list)

            @tr.process(events)
            def event(self, event: Ev, ctx: tr.Context[str]) -> None:
                ctx.set_timer(event.at + 10, "t:old")
                if is_changed and event.key == "bob":
                    ctx.set_timer(event.at + 1, "t:new")

            @tr.on_timer("t")
            def due(self, ctx: tr.Context[str]) -> None:
                if ctx.key == "ada" and Broken.now:
                    raise ValueError("ada's timer")

        plan = app.plan()
        task = Task(plan, 0, MemoryStore(), replaying=skips is not None)
        if skips is not None:
            task.follow(skips, FOREVER, by_name=True)
        (number,) = (one.index for one in plan.inputs if one.name == "events")
        given = (Ev("bob", 1_000), Ev("ada", 1_001), Ev("cyd", 1_020))
        encoded = [InputRecord(at, one.at, b"", msgspec.json.encode(one)) for at, one in enumerate(given)]
        task.run(number, task.decode(number, encoded))
        return task

    first = ran(is_changed=False)
    first.take_outputs()
    (skip,) = decode_tape(first.commit_batch().tape).skips
    assert (skip.number, first.quarantined) == (1, {"Account": (1, 0)})
    Broken.now = False
    again = ran(is_changed=True, skips={(skip.input, skip.number, skip.operator): tuple(skip.headers)})
    assert (again.totals.fired, again.quarantined) == (3, {"Account": (1, 0)})
    ((*_, headers),) = again.take_outputs()
    assert dict(headers)["tailrace-key"] == b"ada"
    again.run(0, again.decode(0, [_decision(b"ada", "Account", 0)]))
    assert (again.totals.fired, again.quarantined) == (3, {"Account": (1, 0)})  # no commit has shown it yet
    again.commit_batch()
    again.committed()
    again.run(0, again.decode(0, [_decision(b"ada", "Account", 0)]))
    assert (again.totals.fired, again.quarantined) == (4, {})


def _decision(key: bytes, actor: str, failure: int) -> InputRecord:
    value = msgspec.json.encode(Decision(key, actor, failure, "release"))
    return InputRecord(0, 0, key, value)


@pytest.mark.parametrize("late", ["dropped", "kept"])
def test_a_late_record_that_fails_elsewhere_is_replayed_in_the_same_order(late: str) -> None:
    """For one actor it is late, and goes to the topic of late events; in the other it fails."""
    app = tr.App("bank", partitions=1, on_error="quarantine")
    lates = app.topic("lates", Ev, key="key", event_time="at", watermark=False)
    events = app.topic("events", Ev, key="key", event_time="at", late=lates)
    slow = app.topic("slow", Ev, key="key", event_time="at", idle_after="1h")

    @app.actor
    class Quick(tr.Actor):
        seen: list[int] = tr.field(default_factory=list)

        @tr.process(events)
        def event(self, event: Ev, ctx: tr.Context[str]) -> None:
            self.seen.append(event.at)

    @app.actor
    class Slow(tr.Actor, order="arrival"):
        seen: list[int] = tr.field(default_factory=list)

        @tr.process(events, slow)
        def event(self, event: Ev, ctx: tr.Context[str]) -> None:
            fail(event)
            self.seen.append(event.at)

    with Harness(app) as h:
        h.send(slow, Ev("bob", 1_000))
        h.send(
            events, Ev("ada", 2_000), Ev("ada", 1_500, "fails"), Ev("ada", 1_600 if late == "kept" else 3_000)
        )
        assert [one.at for one in h.emitted(lates)][:1] == [1_500]
        Broken.now = False
        h.release(h.dead_letters()[0])
        assert seen_of(h, Slow)[:2] == [2_000, 1_500]
        h.replay()


def test_what_cannot_be_decoded_at_its_release_waits_on() -> None:
    """The type of an input has changed, with keys of bytes, which the actor of the quarantine has, too."""

    def declared(*, is_changed: bool) -> tuple[tr.App, Any, Any]:
        class New(msgspec.Struct, frozen=True):
            key: bytes
            at: int
            needed: int

        class Old(msgspec.Struct, frozen=True):
            key: bytes
            at: int

        type_: Any = New if is_changed else Old
        app = tr.App("bank", partitions=1, on_error="quarantine")
        events = app.topic("events", type_, key="key", event_time="at")

        class Account(tr.Actor):
            seen: list[int] = tr.field(default_factory=list)

            @tr.process(events)
            def event(self, event: Any, ctx: tr.Context[bytes]) -> None:
                if Broken.now:
                    raise ValueError("broken")
                self.seen.append(event.at)

        return app, app.actor(Account), (events, type_)

    app, account, (events, old) = declared(is_changed=False)
    with Harness(app) as h:
        h.send(events, old(b"ada", 1_000), old(b"ada", 1_001))
        snapshot, (failure,) = h.snapshot(), h.dead_letters()
    Broken.now = False
    other, same, _ = declared(is_changed=True)
    with Harness(other, start=snapshot) as h:
        h.release(failure)
        assert h.state(same, b"ada") is None
        again = h.dead_letters()[-1]
        assert (again.reason, again.headers["tailrace-actor"]) == ("quarantined", b"Account")
        assert "needed" in again.error
        snapshot = h.snapshot()
    app, account, _ = declared(is_changed=False)
    with Harness(app, start=snapshot) as h:
        h.release(again)
        assert state_of(h, account, b"ada").seen == [1_000, 1_001]


def test_what_is_not_read_any_more_can_be_dropped() -> None:
    def declared(*names: str) -> tuple[tr.App, Any, list[Any]]:
        app = tr.App("bank", partitions=1, on_error="quarantine")
        topics = [app.topic(name, Ev, key="key", event_time="at") for name in names]

        @app.actor
        class Account(tr.Actor, order="arrival"):
            seen: list[int] = tr.field(default_factory=list)

            @tr.process(*topics)
            def event(self, event: Ev, ctx: tr.Context[str]) -> None:
                fail(event)
                self.seen.append(event.at)

        return app, Account, topics

    app, _, (first, _) = declared("first", "second")
    with Harness(app) as h:
        h.send(first, Ev("ada", 1_000, "fails"))
        snapshot, (failure,) = h.snapshot(), h.dead_letters()
    other, account, (second,) = declared("second")
    with Harness(other, start=snapshot) as h:
        h.release(failure, drop=True)
        h.send(second, Ev("ada", 1_001))
        assert state_of(h, account, "ada").seen == [1_001]
    with (
        Harness(other, start=snapshot) as h,
        pytest.raises(IncompatibleStateError, match="does not read this topic any more"),
    ):
        h.release(failure)


def test_an_actor_in_which_keys_wait_is_not_removed() -> None:
    app, events, _ = bank()
    other = tr.App("bank", partitions=1, on_error="quarantine")
    topic = other.topic("events", Ev, key="key", event_time="at")

    @other.actor
    class Renamed(tr.Actor):
        @tr.process(topic)
        def event(self, event: Ev, ctx: tr.Context[str]) -> None: ...

    with Harness(app) as h:
        h.send(events, Ev("ada", 1_000, "fails"))
        snapshot = h.snapshot()
    with pytest.raises(IncompatibleStateError, match="wait in quarantine for the actor 'Account'"):
        Harness(other, start=snapshot).close()
