"""How a parent finds the common end of its workers, without processes. With them: ``test_worker_process``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from multiprocessing import connection
from types import SimpleNamespace
from typing import Any

import pytest
from msgspec.structs import replace

from tailrace.runtime.progress import READING, STARTING, Status, last_phase
from tailrace.runtime.supervisor import Link, Phases
from tests.runtime.served import make_app


def status(turns: int, *, quiet: bool = True, phase: int = 0) -> Status:
    return Status(
        partitions=2, running=2, records=0, lag=0, watermark_ms=None, phase=phase, quiet=quiet, turns=turns
    )


PIDS = (100, 101)


def answered(phases: Phases, *statuses: Status, pids: Sequence[int] = PIDS) -> int:
    """One round of questions, answered so; the phase after it."""
    return phases.after([*zip(pids, statuses, strict=True)])


@pytest.fixture
def phases() -> Phases:
    """Of two workers, which read."""
    found = Phases(last_phase(make_app().plan()))
    found.current = READING
    return found


def test_all_have_to_be_quiet_twice_and_do_nothing_in_between(phases: Phases) -> None:
    assert answered(phases, status(5), status(7)) == 0
    assert answered(phases, status(5), status(7)) == 1


def test_who_was_busy_between_two_answers_may_have_sent_something(phases: Phases) -> None:
    assert answered(phases, status(5), status(7)) == 0
    assert answered(phases, status(5), status(8)) == 0
    assert answered(phases, status(5, quiet=False), status(8)) == 0
    assert answered(phases, status(5), status(8)) == 0
    assert answered(phases, status(5), status(8)) == 1


def test_a_worker_that_was_started_again_is_another(phases: Phases) -> None:
    assert answered(phases, status(0), status(0)) == 0
    assert answered(phases, status(0), status(0), pids=(100, 200)) == 0
    assert answered(phases, status(0), status(0), pids=(100, 200)) == 1


def test_a_phase_has_to_be_reached_by_all_before_it_can_be_over(phases: Phases) -> None:
    for _ in range(2):
        answered(phases, status(1), status(1))
    for _ in range(3):
        assert answered(phases, status(2, phase=1), status(1)) == 1
    assert phases.last is not None
    for phase in range(1, phases.last + 1):
        assert answered(phases, *[status(9, phase=phase)] * 2) == phase
        assert answered(phases, *[status(9, phase=phase)] * 2) == phase + 1


@pytest.mark.parametrize("last", [None, 3])
def test_records_are_taken_once_all_workers_have_started(last: int | None) -> None:
    phases, ready = Phases(last), status(0, phase=STARTING)
    waits = replace(ready, started=False)
    for both in ((waits, waits), (ready, waits), (waits, ready)):
        assert answered(phases, *both) == STARTING
    assert answered(phases, ready, ready) == READING


def test_a_service_that_is_not_bounded_reads_on_however_quiet_it_is() -> None:
    phases = Phases(None)
    for _ in range(3):
        assert answered(phases, status(0), status(0)) == READING


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
    host: Any = SimpleNamespace(worker=worker, watch=SimpleNamespace(), measuring=None)
    link.host = host
    link.begin()
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
