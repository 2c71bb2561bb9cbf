"""An app to which an input was added is replayed and rebuilt over its whole history: until the input was there,
no watermark waits for it.
"""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import msgspec
import pytest

from tailrace.core.records import Output
from tailrace.history.replay.replaying import replay
from tailrace.history.replay.report import ReplayOptions, ReplayReport
from tailrace.log.embedded import EmbeddedLog
from tailrace.processes.app_loading import find_app
from tests.history.rebuilding import lived
from tests.history.rebuilding.lived import done, live, rebuilt
from tests.history.rebuilding.two_inputs import Minute, Order, expected, made, moves


def emitted(folder: Path) -> dict[tuple[str, int], int]:
    found: dict[tuple[str, int], int] = {}
    for record in lived.read(folder, "minutes"):
        one = msgspec.json.decode(record.value or b"", type=Minute)
        assert (one.who, one.end) not in found, "twice"
        found[one.who, one.end] = one.amount
    return found


def replayed(folder: Path, app: str) -> ReplayReport:
    with closing(EmbeddedLog(folder / "log", create=False)) as log:
        return replay(find_app(app).plan(), log, ReplayOptions(compare=True, any_environment=True))


@pytest.fixture
def two_periods(tmp_path: Path, order: Order) -> tuple[Path, list[Output]]:
    """A service that reads payments for ten minutes, and payments and refunds after that."""
    first = moves("paid", range(10), 1)
    lived.append(tmp_path, first, {"paid": 2, "refunds": 2})
    lived.live_on(tmp_path, made(refunds=False, order=order))
    more = [
        record
        for at in range(10, 20)
        for topic in ("paid", "refunds")
        for record in moves(topic, range(at, at + 1), at)
    ]
    lived.append(tmp_path, more, {})
    lived.live_on(tmp_path, made(refunds=True, order=order), change_inputs=True)
    return tmp_path, first + more


@pytest.mark.parametrize("order", ["arrival", "event-time"])
def test_the_whole_history_is_replayed_and_rebuilt_with_the_code_that_has_the_input(
    two_periods: tuple[Path, list[Output]], order: Order
) -> None:
    folder, records = two_periods
    assert emitted(folder) == expected(records)
    app = made(refunds=True, order=order)
    report = replayed(folder, app)
    assert [str(one) for one in report.differences.shown] == []
    assert report.records == len(records)
    _, snapshot = done(folder, app)
    assert rebuilt(snapshot) == live(folder, find_app(app).plan())


def test_code_that_reads_one_more_input_is_compared_before_it_has_run(tmp_path: Path) -> None:
    lived.append(tmp_path, moves("paid", range(5), 1), {"paid": 2, "refunds": 2})
    lived.live_on(tmp_path, made(refunds=False))
    assert replayed(tmp_path, made(refunds=True)).differences.count == 0
