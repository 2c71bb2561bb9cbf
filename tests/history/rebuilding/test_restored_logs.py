"""A log that was restored from a backup and has gone on otherwise: nothing of the history that it has lost is used."""

from __future__ import annotations

from pathlib import Path
from shutil import copytree, rmtree

import msgspec
import pytest

import tailrace as tr
from tailrace.core.errors import OtherHistoryError
from tailrace.core.records import Output
from tailrace.history.rebuilding.driver import rebuild
from tailrace.history.rebuilding.engines import LocalEngine
from tests.history.rebuilding import any_app, lived
from tests.history.rebuilding.lived import done, rebuilt
from tests.history.rebuilding.struck_engines import Stopping


class Event(msgspec.Struct, frozen=True):
    key: tr.Key[str]
    at: tr.EventTime[int]
    n: int


def _app() -> tr.App:
    app = tr.App("sums", partitions=2)
    events = app.topic("events", Event)

    @app.actor
    class Sum(tr.Actor, order="event-time"):
        total: int = 0

        @tr.process(events)
        def event(self, event: Event, ctx: tr.Context[str]) -> None:
            self.total += event.n

    return app


def _live(folder: Path, amount: int) -> None:
    """Events that end with the same ones, whatever the amount was before."""
    for at, n in ((1_000, amount), (3_000, 0)):
        some = [Event(f"k{one}", at + one, n) for one in range(20)]
        lived.append(
            folder,
            [Output("events", one.key.encode(), msgspec.json.encode(one), one.at) for one in some],
            {"events": 2},
        )
    lived.live_on(folder, f"{any_app.__name__}:app", ends=False)


@pytest.mark.parametrize("order", ["tape", "stages"])
@pytest.mark.parametrize("has_run", [True, False])
def test_nothing_of_a_history_that_the_log_has_lost_is_used(
    order: str, has_run: bool, tmp_path: Path
) -> None:
    app = any_app.place(_app())
    _live(tmp_path, 1)
    copytree(tmp_path / "log", tmp_path / "backup")
    _live(tmp_path, 10)
    asked = lived.request(tmp_path, app, order=order, name="begun")
    with pytest.raises(InterruptedError):
        rebuild(asked, Stopping(1))
    _, snapshot = done(tmp_path, app, order=order, name="finished")
    rmtree(tmp_path / "log")
    copytree(tmp_path / "backup", tmp_path / "log")
    if has_run:
        rmtree(tmp_path / "state")
        _live(tmp_path, 500)
    report = rebuild(asked, LocalEngine(1))
    assert not report.resumed
    assert "nothing of an interrupted rebuild was used, as this has changed since it was begun: " in str(
        report.notes
    )
    wanted = lived.fields(lived.live(tmp_path, any_app.app.plan()))
    assert lived.fields(rebuilt(lived.opened(asked, report))) == wanted
    base = {"base": str(tmp_path / "snapshots"), "base_id": snapshot.manifest.id}
    with pytest.raises(OtherHistoryError):
        rebuild(lived.request(tmp_path, app, order=order, **base), LocalEngine(1))
