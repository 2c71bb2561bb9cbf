"""How a parent finds the common end of its workers, without processes. With them: ``test_worker_process``."""

from __future__ import annotations

from collections.abc import Iterator
from multiprocessing import connection
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from msgspec.structs import replace

from tailrace.runtime.options import ServiceOptions
from tailrace.runtime.progress import READING, STARTING, Status, last_phase
from tailrace.runtime.supervisor import Link, Supervisor
from tests.runtime.served import make_app


def status(turns: int, *, quiet: bool = True, phase: int = 0) -> Status:
    return Status(
        partitions=2, running=2, records=0, lag=0, watermark_ms=None, phase=phase, quiet=quiet, turns=turns
    )


@pytest.fixture
def supervisor() -> Iterator[Supervisor]:
    """Of two workers that seem to live."""
    options = ServiceOptions("a:app", Path("log"), Path("state"), workers=2, until_end=True)
    found = Supervisor(options, make_app().plan())
    for child in found._children:
        fake: Any = SimpleNamespace(pid=100 + child.index, send=lambda _order: None)
        child.process = fake
    found._phase = READING
    yield found
    found.close()


def answered(supervisor: Supervisor, *statuses: Status) -> int:
    """One round of questions, answered so; the phase after it."""
    for child, one in zip(supervisor._children, statuses, strict=True):
        child.status, child.fresh = one, True
    supervisor._conclude()
    return supervisor._phase


def test_all_have_to_be_quiet_twice_and_do_nothing_in_between(supervisor) -> None:
    assert answered(supervisor, status(5), status(7)) == 0
    assert answered(supervisor, status(5), status(7)) == 1


def test_who_was_busy_between_two_answers_may_have_sent_something(supervisor) -> None:
    assert answered(supervisor, status(5), status(7)) == 0
    assert answered(supervisor, status(5), status(8)) == 0
    assert answered(supervisor, status(5, quiet=False), status(8)) == 0
    assert answered(supervisor, status(5), status(8)) == 0
    assert answered(supervisor, status(5), status(8)) == 1


def test_a_worker_that_was_started_again_is_another(supervisor) -> None:
    assert answered(supervisor, status(0), status(0)) == 0
    supervisor._children[1].process.pid = 200
    assert answered(supervisor, status(0), status(0)) == 0
    assert answered(supervisor, status(0), status(0)) == 1


def test_a_phase_has_to_be_reached_by_all_before_it_can_be_over(supervisor) -> None:
    for _ in range(2):
        answered(supervisor, status(1), status(1))
    for _ in range(3):
        assert answered(supervisor, status(2, phase=1), status(1)) == 1
    for phase in range(1, last_phase(supervisor._plan) + 1):
        assert supervisor._phase == phase
        assert supervisor._stopping_s is None
        for _ in range(2):
            answered(supervisor, *[status(1 + phase, phase=phase)] * 2)
    assert supervisor._stopping_s is not None


def test_records_are_taken_once_all_workers_have_started(supervisor) -> None:
    supervisor._phase = STARTING
    for started in ((False, False), (True, False), (False, True)):
        for child, one in zip(supervisor._children, started, strict=True):
            child.status, child.fresh = replace(status(0, phase=STARTING), started=one), True
        supervisor._ask(0.0)
        assert supervisor._phase == STARTING
    for child in supervisor._children:
        child.status, child.fresh = status(0, phase=STARTING), True
    supervisor._ask(0.0)
    assert supervisor._phase == READING


class StandIn:
    """The worker of a link."""

    def __init__(self) -> None:
        self.phase = 0
        self.stopped = False

    def status(self) -> Status:
        return status(1, phase=self.phase)

    def stop(self) -> None:
        self.stopped = True

    def advance(self) -> None:
        self.phase = self.phase + 1


@pytest.fixture
def linked() -> Iterator[tuple[StandIn, Link, Any]]:
    childs: Any
    parents, childs = connection.Pipe()
    worker, link = StandIn(), Link(childs, 0)
    host: Any = SimpleNamespace(worker=worker)
    link.begin(host)
    yield worker, link, parents
    parents.close()
    childs.close()


def test_a_question_is_answered_from_a_turn_begun_after_it(linked) -> None:
    _, link, parents = linked
    parents.send("status")
    link.look()
    assert not parents.poll(0.05)
    link.look()
    assert parents.recv() == status(1)
    link.look()
    assert not parents.poll(0.05)


def test_a_worker_that_was_away_is_brought_to_the_phase_of_the_others(linked) -> None:
    worker, link, parents = linked
    parents.send(2)
    link.look()
    assert worker.phase == 2
    parents.send(1)
    link.look()
    assert worker.phase == 2


def test_a_worker_stops_when_told_and_when_its_parent_is_gone(linked) -> None:
    worker, link, parents = linked
    parents.send("stop")
    link.look()
    assert worker.stopped
    worker.stopped = False
    parents.close()
    link.look()
    assert worker.stopped
