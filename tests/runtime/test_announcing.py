"""What a service says of itself when it starts: circles, and writers of its topics that nobody runs."""

from __future__ import annotations

import logging

import pytest

import tailrace as tr
from tailrace.runtime.announcing import announce
from tailrace.testing import MemoryLog
from tests.runtime.joining import Service, Step, billing_app, joining_app


@pytest.fixture
def said(caplog: pytest.LogCaptureFixture):
    caplog.set_level(logging.INFO, "tailrace.service")
    return lambda: [
        (one.levelname, one.getMessage()) for one in caplog.records if one.name == "tailrace.service"
    ]


def circling_app(*, counts: bool = False) -> tr.App:
    app = tr.App("circling", partitions=1)
    begun = app.topic("begun", Step, key="key", event_time="at")
    again = app.topic("again", Step, key="key", event_time="at")
    last = app.topic("last", Step, key="key", event_time="at", watermark=True)
    other = last if counts else app.topic("other", Step, key="key", event_time="at")

    @app.actor
    class Circle(tr.Actor):
        seen: int = 0

        @tr.process(begun, again, other)
        def step(self, event: Step, ctx: tr.Context[str]) -> None:
            ctx.emit(again, event)
            ctx.emit(other, event)

    return app


def test_who_takes_what_follows_from_it_is_named_with_what_to_declare(said) -> None:
    announce(circling_app().plan(), MemoryLog(), lambda _: False)
    assert said() == [
        (
            "INFO",
            (
                "Circle takes again and other from its own circle: this is feedback, which is never waited "
                "for and never late. Declare watermark=True on again and other if its events should count"
            ),
        )
    ]


def test_what_is_declared_to_count_is_no_feedback(said) -> None:
    announce(circling_app(counts=True).plan(), MemoryLog(), lambda _: False)
    (line,) = said()
    assert line[1].startswith("Circle takes again from its own circle")


def test_an_app_without_circles_has_nothing_to_say(said) -> None:
    announce(joining_app().plan(), MemoryLog(), lambda _: False)
    assert said() == []


def renamed(name: str) -> tr.App:
    return billing_app().renamed(name)


def test_writers_of_its_topics_that_nobody_runs_are_named_with_the_way_to_retire_them(said) -> None:
    old = Service(billing_app())
    old.run("orders", 2_000)
    plan = renamed("billing-2").plan()
    announce(plan, old.log, lambda publisher: publisher == "billing-0")
    assert said() == [], "it runs"
    announce(plan, old.log, lambda _: False)
    assert said() == [
        (
            "WARNING",
            (
                "'bills' is also written by the app 'billing', which is not running: readers that follow the "
                "topic wait for it at "
                "1970-01-01T00:00:01.999Z. If it will not run again, retire it: tailrace retire billing"
            ),
        )
    ]


def test_an_app_that_writes_other_topics_or_holds_nobody_is_not_named(said) -> None:
    old = Service(billing_app())
    old.run("orders", 2_000)
    announce(joining_app().plan(), old.log, lambda _: False)
    old.run("orders", after_ms=60_000)
    announce(renamed("billing-2").plan(), old.log, lambda _: False)
    announce(billing_app().plan(), old.log, lambda _: False)
    assert said() == []


def test_a_copy_under_another_name_is_told_how_to_take_the_place_of_the_first(said) -> None:
    old = Service(billing_app())
    old.run("orders", 2_000)
    announce(renamed("billing-2").plan(), old.log, lambda _: True, "billing")
    assert said() == [
        (
            "INFO",
            (
                "this app runs beside 'billing', and both write bills. To replace 'billing': stop it, then "
                "run tailrace retire billing"
            ),
        )
    ]
