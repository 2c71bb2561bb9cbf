"""What can wait in quarantine and what cannot, and what time does to it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

import tailrace as tr
from tailrace.core.engine import quarantine
from tailrace.core.engine.tape import decode_tape
from tailrace.core.engine.task import Task
from tailrace.core.errors import HandlerError, QuarantineFullError
from tailrace.core.records import InputRecord
from tailrace.state.memory import MemoryStore
from tailrace.testing import Harness
from tests.quarantine.failing import Broken, Ev, fail, seen_of, state_of


def bank(**options: Any) -> tuple[tr.App, Any, Any]:
    """An app, its input, and its actor that keeps what it has seen."""
    app = tr.App("bank", partitions=1, on_error="quarantine")
    events = app.topic("events", Ev, key="key", event_time="at", **options)

    @app.actor
    class Account(tr.Actor):
        seen: list[str] = tr.field(default_factory=list)
        limit: int = tr.field(default=0, ttl="100ms")
        cards: tr.MapState[str, int] = tr.field(ttl="100ms")

        @tr.process(events)
        def event(self, event: Ev, ctx: tr.Context[str]) -> None:
            fail(event)
            if event.what == "mistake" and Broken.now:
                raise TypeError("a mistake in the code")
            self.seen.append(f"{event.at} limit={self.limit} cards={len(self.cards)} late={ctx.is_late}")
            if event.what == "limit":
                self.limit = 5
                self.cards["x"] = 1
            if event.what == "soon":
                ctx.set_processing_timer(ctx.now + 50)

        @tr.on_processing_timer
        def soon(self, ctx: tr.Context[str]) -> None:
            self.seen.append("soon")

    return app, events, Account


def test_times_to_live_and_lateness_are_those_of_the_first_time() -> None:
    app, events, account = bank()
    history = (
        Ev("ada", 1_000, "limit"),
        Ev("ada", 1_010, "fails"),
        Ev("ada", 1_050),  # the limit still holds
        Ev("bob", 1_200),
        Ev("ada", 1_150),  # it is late, and the limit has expired
        Ev("bob", 2_000),
    )
    with Harness(app) as whole:
        Broken.now = False
        whole.send(events, *history)
        must = state_of(whole, account, "ada").seen
        assert must[2:] == ["1050 limit=5 cards=1 late=False", "1150 limit=0 cards=0 late=True"]
    with Harness(app) as h:
        Broken.now = True
        h.send(events, *history)
        assert state_of(h, account, "ada").seen == must[:1]
        assert len(state_of(h, account, "bob").seen) == 2
        h.crash()
        Broken.now = False
        (failure,) = h.dead_letters()
        h.release(failure)
        assert state_of(h, account, "ada").seen == must
        h.replay()


def test_timers_of_processing_time_wait_and_fire_after_all_events() -> None:
    app, events, account = bank()
    with Harness(app) as h:
        h.send(events, Ev("ada", 1_000, "soon"), Ev("ada", 1_001, "fails"), Ev("bob", 1_002, "soon"))
        h.advance_clock_by("1s")
        assert [len(state_of(h, account, one).seen) for one in ("ada", "bob")] == [1, 2]
        Broken.now = False
        (failure,) = h.dead_letters()
        h.release(failure)
        assert [one.split()[0] for one in state_of(h, account, "ada").seen] == ["1000", "1001", "soon"]
        h.replay()


def test_a_mistake_in_the_code_lets_a_key_wait_too() -> None:
    app, events, account = bank()
    with Harness(app) as h:
        h.send(events, Ev("ada", 1_000, "mistake"), Ev("bob", 1_001))
        (failure,) = h.dead_letters()
        assert (failure.reason, state_of(h, account, "ada")) == ("quarantined", None)
        assert state_of(h, account, "bob") is not None
        Broken.now = False
        h.release(failure)
        assert len(state_of(h, account, "ada").seen) == 1


def test_what_is_dropped_has_no_effect_and_goes_to_the_dead_letters() -> None:
    app, events, account = bank()
    with Harness(app) as h:
        h.send(events, Ev("ada", 1_000, "fails"), Ev("ada", 1_001))
        (failure,) = h.dead_letters()
        h.release(failure, drop=True)
        assert [one.split()[0] for one in state_of(h, account, "ada").seen] == ["1001"]
        dropped = h.dead_letters()[-1]
        assert (dropped.reason, dropped.value) == ("dropped", failure.value)
        with pytest.raises(tr.UsageError, match="no key waits after this failure"):
            h.release(dropped)
        h.release(failure)  # for the second time: nothing
        assert len(state_of(h, account, "ada").seen) == 1
        h.replay()


def test_the_failure_of_one_key_too_many_stops_the_task(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quarantine, "KEYS_MOST", 2)
    app, events, account = bank()
    with Harness(app) as h:
        h.send(events, Ev("ada", 1_000, "fails"), Ev("bob", 1_001, "fails"), Ev("ada", 1_002))
        with pytest.raises(QuarantineFullError, match=r"2 keys .* one more has failed: fails at 1003"):
            h.send(events, Ev("cyd", 1_003, "fails"))
        Broken.now = False
        h.release(h.dead_letters()[0])
        assert len(state_of(h, account, "ada").seen) == 2
        assert state_of(h, account, "cyd") is not None


def test_what_cannot_be_decoded_goes_to_the_dead_letters_and_nothing_waits_for_it() -> None:
    app, events, account = bank()
    with Harness(app) as h:
        h.send_raw(events, b"no event", key=b"ada")
        h.send(events, Ev("ada", 1_000))
        assert [one.reason for one in h.dead_letters()] == ["undecodable"]
        assert len(state_of(h, account, "ada").seen) == 1


def test_a_topic_may_send_its_failures_to_the_dead_letters() -> None:
    """Its events wait behind others all the same, and are set aside only if they fail in their turn."""
    app = tr.App("bank", partitions=1, on_error="quarantine")
    payments = app.topic("payments", Ev, key="key", event_time="at")
    views = app.topic("views", Ev, key="key", event_time="at", on_error="dead-letter", watermark=False)

    @app.actor
    class Account(tr.Actor, order="arrival"):
        seen: list[int] = tr.field(default_factory=list)

        @tr.process(payments, views)
        def event(self, event: Ev, ctx: tr.Context[str]) -> None:
            fail(event)
            if event.what == "always fails":
                raise ValueError("always")
            self.seen.append(event.at)

    with Harness(app) as h:
        h.send(views, Ev("ada", 1_000, "fails"), Ev("ada", 1_001))
        h.send(payments, Ev("ada", 1_002, "fails"))
        h.send(views, Ev("ada", 1_003, "always fails"), Ev("ada", 1_004))
        assert [one.reason for one in h.dead_letters()] == ["handler-failed", "quarantined"]
        assert seen_of(h, Account) == [1_001]
        Broken.now = False
        h.release(h.dead_letters()[1])
        assert seen_of(h, Account) == [1_001, 1_002, 1_004]
        assert [one.reason for one in h.dead_letters()][2:] == ["handler-failed"]
        h.replay()


def test_explore_runs_without_decisions() -> None:
    app, events, _ = bank()
    with Harness(app) as h:
        h.send(events, Ev("ada", 1_000, "fails"), Ev("ada", 1_001), Ev("bob", 1_002))
        h.release(h.dead_letters()[0], drop=True)
        Broken.now = False
        report = h.explore(schedules=5)  # it raises if schedules differ
        assert report.records == 3


def test_an_actor_of_this_name_is_one_like_any_other_without_the_policy() -> None:
    app = tr.App("named", partitions=1)
    _named(app)
    topic = app.topics["events"]
    with Harness(app) as h:
        h.send(topic, Ev("ada", 1_000), Ev("ada", 1_001))
        assert h.explore(schedules=3).records == 2


def test_a_function_that_fails_stops_the_task() -> None:
    app, events, _ = bank()

    @app.process(events)
    def count(event: Ev, ctx: tr.Context[str]) -> None:
        fail(event, "no key to wait")

    with Harness(app) as h:
        h.send(events, Ev("ada", 1_000))
        with pytest.raises(HandlerError, match="count failed"):
            h.send(events, Ev("ada", 1_001, "no key to wait"))


def test_a_record_that_stops_the_task_leaves_nothing_of_the_failure_before() -> None:
    """An actor fails, its key begins to wait, and then a function fails on the same record."""
    app, events, account = bank()

    @app.process(events)
    def zero(event: Ev, ctx: tr.Context[str]) -> None:
        if event.at == 1_001:
            fail(event)

    with Harness(app, commit_every=1) as h:
        h.send(events, Ev("ada", 1_000))
        with pytest.raises(HandlerError, match="zero failed"):
            h.send(events, Ev("bob", 1_000), Ev("ada", 1_001, "fails"))
        assert h.dead_letters() == []
        Broken.now = False
        h.send(events, Ev("ada", 1_002))
        assert [one.split()[0] for one in state_of(h, account, "ada").seen] == ["1000", "1001", "1002"]
        h.replay()


def test_of_a_record_that_stops_the_task_a_commit_has_nothing() -> None:
    app, events, _ = bank()

    @app.process(events)
    def zero(event: Ev, ctx: tr.Context[str]) -> None:
        fail(event)

    plan = app.plan()
    task = Task(plan, 0, MemoryStore())
    given = (Ev("ada", 1_000), Ev("ada", 1_001, "fails"))
    encoded = [InputRecord(at, one.at, b"", msgspec.json.encode(one)) for at, one in enumerate(given)]
    (number,) = (one.index for one in plan.inputs if one.name == "events")
    with pytest.raises(HandlerError, match="zero failed"):
        task.run(number, task.decode(number, encoded))
    assert (task.positions["events"], task.totals.failed, task.quarantined) == (1, 0, {})
    assert task.take_outputs() == []
    assert decode_tape(task.commit_batch().tape).skips == []


def test_a_release_that_a_function_stops_is_done_again() -> None:
    app = tr.App("bank", partitions=1, on_error="quarantine")
    events = app.topic("events", Ev, key="key", event_time="at")
    booked = app.stream("booked", Ev)

    @app.actor
    class Account(tr.Actor):
        seen: list[int] = tr.field(default_factory=list)

        @tr.process(events)
        def event(self, event: Ev, ctx: tr.Context[str]) -> None:
            fail(event)
            self.seen.append(event.at)
            ctx.emit(booked, event)

    @app.process(booked)
    def publish(event: Ev, ctx: tr.Context[str]) -> None:
        if Stopped.now and event.at == 1_002:
            raise ValueError("no printer")

    with Harness(app) as h:
        h.send(events, Ev("ada", 1_000), Ev("ada", 1_001, "fails"), Ev("ada", 1_002))
        Broken.now = False
        with pytest.raises(HandlerError, match="publish failed"):
            h.release(h.dead_letters()[0])
        Stopped.now = False
        h.recover()
        h.commit()
        assert seen_of(h, Account) == [1_000, 1_001, 1_002]
        h.replay()


class Stopped:
    """Whether the function fails."""

    now = True


def _ordered(app: tr.App) -> None:
    topic = app.topic("events", Ev, key="key", event_time="at")

    @app.actor
    class Account(tr.Actor, order="event-time"):
        @tr.process(topic)
        def event(self, event: Ev, ctx: tr.Context[str]) -> None: ...


def _streamed(app: tr.App) -> None:
    topic = app.topic("events", Ev, key="key", event_time="at")
    stream = app.stream("parsed", Ev)

    @app.process(topic)
    def parse(event: Ev, ctx: tr.Context[str]) -> None:
        ctx.emit(stream, event)

    @app.actor
    class Account(tr.Actor):
        @tr.process(stream)
        def event(self, event: Ev, ctx: tr.Context[str]) -> None: ...


def _named(app: tr.App) -> None:
    topic = app.topic("events", Ev, key="key", event_time="at")

    @app.actor(name="quarantine")
    class Account(tr.Actor):
        seen: tr.MapState[int, str]

        @tr.process(topic)
        def event(self, event: Ev, ctx: tr.Context[str]) -> None:
            self.seen[event.at] = event.what


def _by_topic(app: tr.App) -> None:
    options: Any = {"on_error": "quarantine"}
    app.topic("events", Ev, key="key", **options)


@pytest.mark.parametrize(
    ("declare", "why"),
    [
        (_ordered, "Account handles its events in the order of event time"),
        (_streamed, "Account takes events of a stream"),
        (_named, "an actor or function 'quarantine'"),
        (_by_topic, "on_error='quarantine'"),
    ],
)
def test_what_cannot_wait_key_by_key_is_refused(declare: Callable[[tr.App], None], why: str) -> None:
    app = tr.App("bank", partitions=1, on_error="quarantine")
    with pytest.raises(tr.DefinitionError, match=why):
        declare(app)
        app.plan()
