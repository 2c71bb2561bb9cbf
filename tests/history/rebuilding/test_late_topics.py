"""Late events that an app routes to a topic which it reads itself are sends of its own, and so is what a
limit cuts off.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tailrace.core import rows
from tailrace.core.engine.describe_rows import picture
from tailrace.core.engine.replay import Limits
from tailrace.core.errors import ReplayDivergedError, SnapshotMismatchError
from tailrace.processes.app_loading import find_app
from tailrace.state.snapshots import Snapshot
from tests.history.rebuilding import lateness, payments
from tests.history.rebuilding.lived import append, done, live_on

STRICT = "tests.history.rebuilding.lateness:strict"
LENIENT = "tests.history.rebuilding.lateness:lenient"


def totals(snapshot: Snapshot, app: str) -> dict[str, int]:
    """The total of each actor's one key."""
    actors = {one.name: one for one in find_app(app).plan().actors}
    found: dict[str, int] = {}
    for number in range(snapshot.manifest.partitions):
        for row, value in snapshot.rows(number):
            if row[:1] == rows.STATE and not (parts := rows.read_state_row(row)).rest:
                found[parts.actor] = int(picture(actors[parts.actor], {b"": value})["total"])
    return found


@pytest.mark.parametrize(
    ("then", "now", "wanted"),
    [(STRICT, LENIENT, {"InTime": 1111}), (LENIENT, STRICT, {"InTime": 1011, "Late": 100})],
)
def test_each_event_counts_once_where_other_events_are_late_now(
    tmp_path: Path, then: str, now: str, wanted: dict[str, int]
) -> None:
    append(tmp_path, lateness.outputs(), {"readings": 2})
    live_on(tmp_path, then)
    with pytest.raises(
        ReplayDivergedError, match="sends to 'late-readings' partition 0 is not what is recorded"
    ):
        done(tmp_path, now)
    _, snapshot = done(tmp_path, now, order="canonical")
    assert totals(snapshot, now) == wanted


def test_from_a_limit_canonical_order_does_not_go_on_without_what_was_under_way(tmp_path: Path) -> None:
    append(tmp_path, payments.outputs(payments.payments(150)), {"paid": 2})
    live_on(tmp_path, "tests.history.rebuilding.payments:app")
    app = "tests.history.rebuilding.payments:app"
    middle = payments.payments(150)[75].at
    _, base = done(tmp_path, app, until=Limits(watermark_ms=middle))
    with pytest.raises(SnapshotMismatchError, match="under way to itself"):
        done(tmp_path, app, order="canonical", base=str(tmp_path / "snapshots"), base_id=base.manifest.id)
