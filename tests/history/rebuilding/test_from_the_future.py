"""A rebuild along the tape refuses the events that the service has refused by its clock. One in canonical order goes by its own clock."""

from __future__ import annotations

from pathlib import Path

import pytest

from tailrace.core.engine import tape
from tailrace.history.dead_letters.letters import dead_letters
from tailrace.log.embedded import EmbeddedLog
from tailrace.processes.app_loading import find_app
from tests.history.rebuilding import future, lived
from tests.history.rebuilding.future import A_DAY_MS, NOW_MS, YEAR_2150_MS, sell
from tests.history.rebuilding.lived import done, live, rebuilt, totals

FUTURE = "tests.history.rebuilding.future:app"
SHOPS = [f"shop-{number}" for number in range(6)]


def mixed(folder: Path) -> None:
    """Each shop sells something now, something in 2150, something now again."""
    sell(folder, *((shop, 10 * at) for at in range(3) for shop in SHOPS))
    sell(folder, *((shop, YEAR_2150_MS - NOW_MS + at) for at, shop in enumerate(SHOPS)))
    sell(folder, *((shop, 1_000 + 10 * at) for at in range(3) for shop in SHOPS))


def test_along_the_tape_it_comes_to_the_state_of_the_service(tmp_path: Path) -> None:
    mixed(tmp_path)
    lived.live_on(tmp_path, FUTURE)
    report, snapshot = done(tmp_path, FUTURE)
    assert report.notes == []
    assert rebuilt(snapshot) == live(tmp_path, find_app(FUTURE).plan())
    assert sum(one.refused for one in totals(snapshot.manifest)) == len(SHOPS)


@pytest.mark.parametrize("ran", [True, False])
def test_in_canonical_order_it_refuses_the_same_whether_a_service_has_run_or_not(
    tmp_path: Path, *, ran: bool
) -> None:
    mixed(tmp_path)
    if ran:
        lived.live_on(tmp_path, FUTURE)
    _, snapshot = done(tmp_path, FUTURE, order="canonical")
    found = totals(snapshot.manifest)
    assert (sum(one.records for one in found), sum(one.refused for one in found)) == (36, 6)
    assert sum(one.late for one in found) == 0
    cuts = [tape.decode_cut(one.cut) for one in snapshot.manifest.tasks]
    assert all(cut.now < NOW_MS + A_DAY_MS for cut in cuts)
    if ran:
        now = live(tmp_path, find_app(FUTURE).plan())
        assert [one.rows for one in rebuilt(snapshot)] == [one.rows for one in now]


def test_what_the_service_refused_is_handled_in_canonical_order_when_its_time_has_come(
    tmp_path: Path,
) -> None:
    sell(tmp_path, *((shop, -30 * A_DAY_MS) for shop in SHOPS), *((shop, -10 * A_DAY_MS) for shop in SHOPS))
    future.live_days_ago(tmp_path, 20)
    before = live(tmp_path, find_app(FUTURE).plan())
    log = EmbeddedLog(tmp_path / "log", create=False)
    assert [one.reason for one in dead_letters(log, "future")] == 6 * ["from-the-future"]
    log.close()
    _, snapshot = done(tmp_path, FUTURE, order="canonical")
    assert sum(one.refused for one in totals(snapshot.manifest)) == 0
    assert sum(one.records for one in totals(snapshot.manifest)) == 12
    _, snapshot = done(tmp_path, FUTURE)
    assert rebuilt(snapshot) == before
