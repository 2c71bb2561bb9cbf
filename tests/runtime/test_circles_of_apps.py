"""Two apps that wait for each other: status and the next start name it, and what is said to do helps."""

from __future__ import annotations

import logging
from typing import Any

import pytest

import tailrace as tr
from tailrace.core.durations import NO_WATERMARK
from tailrace.log import Log
from tailrace.runtime.announcing import announce
from tests.history.held import held
from tests.runtime.joining import Service, Step


def asking(**answers: Any) -> tr.App:
    app = tr.App("asking", partitions=1)
    begun = app.topic("begun", Step, key="key", event_time="at")
    answered = app.topic("answers", Step, key="key", event_time="at", **answers)
    asked = app.topic("questions", Step, key="key", event_time="at")

    @app.actor
    class Asker(tr.Actor):
        @tr.process(begun)
        def ask(self, event: Step, ctx: tr.Context[str]) -> None:
            ctx.emit(asked, event)

        @tr.process(answered)
        def answer(self, event: Step, ctx: tr.Context[str]) -> None: ...

    return app


def answering() -> tr.App:
    app = tr.App("answering", partitions=1)
    asked = app.topic("questions", Step, key="key", event_time="at", watermark="upstream")
    answers = app.topic("answers", Step, key="key", event_time="at")

    @app.process(asked)
    def answer(event: Step, ctx: tr.Context[str]) -> None:
        ctx.emit(answers, event)

    return app


def circle(**answers: Any) -> tuple[Service, Service]:
    first = Service(asking(**answers))
    second = Service(answering(), first.log)
    for at in (1_000, 2_000, 3_000):
        first.run("begun", at)
        second.settle()
        first.settle()
    return first, second


def announced(service: Service, log: Log, caplog: pytest.LogCaptureFixture) -> list[str]:
    caplog.clear()
    announce(service.plan, log, lambda _: True)
    return [one.getMessage() for one in caplog.records]


def test_apps_that_wait_for_each_other_are_named_with_what_to_declare(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.WARNING, "tailrace.service")
    first, second = circle(watermark="upstream")
    for service, operator, other in ((first, "Asker", "answering"), (second, "answer", "asking")):
        found = held(service, operator)
        assert found is not None
        assert found.reason == "publisher"
        assert f"the app {other!r} reads" in found.text
        assert "declare watermark=False in one of them" in found.text
        (line,) = announced(service, first.log, caplog)
        assert f"the app {other!r} reads" in line
    for service in (first, second):
        service.worker.leave()


def test_what_is_said_to_do_takes_the_circle_apart(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "tailrace.service")
    first, second = circle(watermark=False)
    for service in (first, second):
        running = service.worker.slots[0].running
        assert running is not None
        assert min(running.task.watermarks.of_operator) > NO_WATERMARK
        assert announced(service, first.log, caplog) == []
        service.worker.leave()
