"""A log that a service works on is cleaned beside it, and nothing of it is missed: by real processes."""

from __future__ import annotations

import multiprocessing
import signal
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tailrace.log.embedded import EmbeddedLog
from tailrace.log.embedded.database import CLEANINGS
from tailrace.log.options import LogOptions
from tailrace.runtime.housekeeping import Housekeeping
from tailrace.runtime.preparing import prepare_log
from tests.log.embedded.processes import Process, running
from tests.runtime.processes import is_alive, wait_until
from tests.runtime.served import make_app
from tests.runtime.tallies import check_all, ticks
from tests.soak import checks

KEYS = 40

_SERVICE = """
from tailrace.log.options import LogOptions
from tailrace.processes import logs
from tailrace.processes.app_loading import find_app
from tailrace.runtime.host import Host
from tailrace.runtime.options import ServiceOptions
from tailrace.runtime.supervisor import Supervisor

state, workers, ends = arguments

def main():
    options = ServiceOptions(
        "tests.runtime.served:app", folder, Path(state), workers=int(workers), commit_interval_ms=20,
        **({ends: True} if ends else {}), log_options=LogOptions(compaction_bytes=100_000), log_format="json", look_s=0.05,
    )
    plan = find_app(options.app).plan()
    logs.configure("json")
    if options.workers == 1:
        Host(options, plan).run()
    else:
        Supervisor(options, plan).run()

main()
"""


@pytest.fixture
def log(tmp_path: Path) -> Iterator[EmbeddedLog]:
    log = EmbeddedLog(tmp_path / "log", LogOptions(compaction_bytes=100_000))
    prepare_log(log, make_app().plan(), create_declared=True)
    yield log
    log.close()


@contextmanager
def service(
    log: EmbeddedLog, *, state: str = "state", workers: int = 1, ends: str = ""
) -> Generator[Process]:
    """``ends``: the option by which it stops by itself."""
    with running(_SERVICE, log.path, log.path.parent / state, workers, ends) as process:
        yield process


def cleaned(log: EmbeddedLog) -> dict[Any, Any]:
    """What cleanings have done, by partition."""
    with log._view.moment() as rows:
        return dict(rows.all(CLEANINGS))


class Feeder:
    """Feeds one round after the other."""

    def __init__(self, log: EmbeddedLog) -> None:
        self.log = log
        self.rounds = 0

    def feed(self, rounds: int = 2) -> None:
        """Few at a time, so that every commit changes most keys: half of the log is their changes then."""
        self.log.append_all(ticks(KEYS, rounds, self.rounds))
        self.rounds += rounds

    def until(self, condition: Callable[[], bool], what: str) -> None:
        def fed() -> bool:
            self.feed()
            return condition()

        wait_until(fed, what)

    def check(self) -> None:
        """Nothing is missed: not by who has no state yet, and not by a replay of all there ever was."""
        plan = make_app().plan()
        with service(self.log, state="nothing-yet", ends="end_of_input") as process:
            assert process.ended() == 0
        check_all(self.log, KEYS, self.rounds)
        self.log.verify()
        checks.check_replay(self.log, plan, self.log.path.parent / "nothing-yet")
        changes = sum(map(len, checks.read(self.log, plan.changelog_topic)))
        made = sum(self.log.end_offset(plan.changelog_topic, one) for one in range(plan.partitions))
        assert changes < made / 2


def test_who_owns_partition_0_has_it_cleaned_for_all_workers(log: EmbeddedLog) -> None:
    feeder = Feeder(log)
    with service(log, workers=2) as process:
        feeder.until(lambda: len(cleaned(log)) >= 2, "cleaning the log")
        process.signal(signal.SIGTERM)
        assert process.ended() == 0
    feeder.check()


def test_killed_at_any_moment_of_a_cleaning_it_loses_nothing(log: EmbeddedLog) -> None:
    feeder = Feeder(log)
    for _ in range(3):
        with service(log) as process:
            before = cleaned(log)
            feeder.until(lambda: cleaned(log) != before, "the log is being cleaned")  # noqa: B023
            process.signal(signal.SIGKILL)
            process.ended()
    feeder.check()


@pytest.mark.parametrize("workers", [1, 2])
def test_a_bounded_run_cleans_before_it_leaves(log: EmbeddedLog, workers: int) -> None:
    feeder = Feeder(log)
    feeder.feed(200)
    with service(log, workers=workers, ends="until_end") as process:
        assert process.ended() == 0
    log.set_retention("ticks", retention_ms=None, retention_bytes=10_000)
    feeder.feed()
    with service(log, workers=workers, ends="end_of_input") as process:
        assert process.ended() == 0
    assert log.start_offset("ticks", 0) > 0
    assert cleaned(log)
    assert not log.cleaning_is_due()
    check_all(log, KEYS, feeder.rounds)


def test_a_cleaning_ends_with_who_began_it(log: EmbeddedLog) -> None:
    log.append_all(ticks(KEYS, 2_000))
    log.set_retention("ticks", retention_ms=None, retention_bytes=1)
    with log.compaction_paused():  # it would wait, if it waited for others
        keeping = Housekeeping(log, log.options, "json", look_s=0)
        keeping.look()
        (begun,) = multiprocessing.active_children()
        pid = begun.pid
        assert pid is not None
        keeping.look()
        assert {*multiprocessing.active_children()} <= {begun}
        keeping.close()
        assert not is_alive(pid)
    keeping.finish(lambda: False)
    assert log.start_offset("ticks", 0) > 0
    assert not log.cleaning_is_due()
