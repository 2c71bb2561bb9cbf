"""A process that is suspended for longer than all time-outs: others do its work, and it writes nothing more when it wakes."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from tests.kafka.members import Members, await_tasks, runs, said, stopped
from tests.kafka.visits import APP, Visits
from tests.soak.processes import wait_until

SHORT = {
    "TAILRACE_KAFKA_CONSUMER_SESSION_TIMEOUT_MS": "6000",
    "TAILRACE_KAFKA_CONSUMER_MAX_POLL_INTERVAL_MS": "6000",
    "TAILRACE_KAFKA_PRODUCER_TRANSACTION_TIMEOUT_MS": "5000",
}
"""The session is the last to end, so when others have the tasks all have ended."""


@pytest.fixture
def visits(kafka_url: str) -> Iterator[Visits]:
    made = Visits(kafka_url)
    with closing(made.log):
        yield made


@pytest.fixture
def members(kafka_url: str, tmp_path: Path) -> Iterator[Members]:
    with closing(Members(kafka_url, tmp_path, SHORT)) as made:
        yield made


def test_a_process_that_wakes_after_all_time_outs_writes_nothing_more_and_takes_part_again(
    visits: Visits, members: Members
) -> None:
    visits.feed(10)
    sleeper = members.start(APP, "sleeper", "--commit-interval", "2s")
    await_tasks(sleeper, 4)
    other = members.start(APP, "other")
    await_tasks(other, 2)
    visits.await_all()
    before = len(runs(sleeper))
    visits.feed(20)
    wait_until(visits.is_open, "it has written what is not committed")
    sleeper.signal(signal.SIGSTOP)
    await_tasks(other, 4)
    visits.feed(10)
    visits.await_all()
    sleeper.signal(signal.SIGCONT)
    wait_until(lambda: len(runs(sleeper)) > before, "it has tasks again", 120)
    visits.feed(10)
    visits.await_all()
    assert any(not line["committed"] for line in said(sleeper, "tasks were given back"))
    for process in (sleeper, other):
        stopped(process)
    visits.await_all()
