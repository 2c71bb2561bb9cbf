"""Services as processes that start from a snapshot, several workers of them, and are killed on the way."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tailrace.core import rows
from tailrace.core.engine import tape
from tailrace.history.reading.app_history import AppHistory
from tailrace.history.snapshots.taking import take_snapshot
from tailrace.runtime.preparing import prepare_log
from tailrace.state.snapshots import Snapshots
from tests.cli.commands import TO_THE_END
from tests.runtime.processes import wait_until
from tests.runtime.served import make_app
from tests.runtime.tallies import check_counts, ticks
from tests.runtime.worker_house import KEYS, House


@pytest.fixture
def house(tmp_path: Path) -> Iterator[House]:
    house = House(tmp_path)
    yield house
    house.log.close()


def have_committed(house: House) -> bool:
    """Whether each task has a commit: a snapshot of fewer is not one of what is under way between them."""
    history = AppHistory(make_app().plan(), house.log)
    return all(history.committed(number, with_rows=False).cut is not None for number in range(4))


def left(house: House, name: str) -> list[tuple[str, dict[bytes, bytes]]]:
    """What the changelog of an app leaves of each task: what it began with, and its rows."""
    history = AppHistory(make_app().renamed(name).plan(), house.log)
    found: list[tuple[str, dict[bytes, bytes]]] = []
    for number in range(4):
        one = history.committed(number, with_rows=True)
        assert one.cut is not None
        assert one.rows is not None
        state = {row: value for row, value in one.rows.rows() if row[:1] == rows.STATE}
        found.append((tape.decode_cut(one.cut).base, state))
    return found


def test_several_workers_begin_with_what_was_under_way_and_none_works_before_the_others(house: House) -> None:
    """Killed and started again as they begin, with a newer snapshot there, they come to the state of the first app."""
    house.feed(ticks(KEYS, 50))
    with house.run("--workers", 2, slow_ms=1) as service:
        wait_until(lambda: have_committed(house), "each task has committed")
        service.signal(signal.SIGTERM)
        assert service.ended() == 0, service.lines
    plan, snapshots = make_app().plan(), Snapshots(str(house.folder / "snapshots"), "tally")
    take_snapshot(plan, house.log, snapshots)
    house.run_to_the_end()
    check_counts(house.log, KEYS, 50)
    prepare_log(house.log, make_app().renamed("other").plan(), create_declared=True)
    arguments = ("--workers", 2, "--as", "other", *TO_THE_END, "--from-snapshot", snapshots_of(house))
    with house.run(*arguments, slow_ms=1) as service:
        service.wait_for("a worker is started", times=2)
        for number in range(3):
            service.signal(signal.SIGKILL, service.started_workers()[-1])
            if not number:
                take_snapshot(plan, house.log, snapshots)
            service.wait_for("a worker is started", times=3 + number)
        assert service.ended() == 0, service.lines
    states = left(house, "tally")
    assert [state for _, state in left(house, "other")] == [state for _, state in states]
    (base,) = {base for base, _ in left(house, "other")}
    assert base in {one.id for one in snapshots.list()}


def snapshots_of(house: House) -> Path:
    return house.folder / "snapshots"
