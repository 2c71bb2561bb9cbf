"""A rebuild with changed code ends where the service stands, also if the code fires other timers in the last step."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import msgspec
import pytest

import tailrace as tr
from tailrace.core.errors import SnapshotMismatchError
from tailrace.core.records import Output
from tests.history.rebuilding import any_app, lived
from tests.history.rebuilding.lived import done

TIMES = (10, 20, 30, 40, 50, 900)


class Seen(msgspec.Struct, frozen=True):
    key: tr.Key[str]
    at: tr.EventTime[int]


class Due(msgspec.Struct, frozen=True):
    key: tr.Key[str]
    at: int


def with_timers(*, added: bool) -> str:
    app = tr.App("timed", partitions=1, version="2" if added else "1")
    seen, due = app.topic("seen", Seen), app.topic("due", Due)

    class Added(tr.Actor):
        count: int = 0

        @tr.process(seen)
        def came(self, event: Seen, ctx: tr.Context[str]) -> None:
            ctx.set_timer(event.at + 100)

        @tr.on_timer
        def fired(self, ctx: tr.Context[str]) -> None:
            self.count += 1

    @app.actor
    class Old(Added):
        @tr.on_timer
        def fired(self, ctx: tr.Context[str]) -> None:
            self.count += 1
            ctx.emit(due, Due(ctx.key, ctx.event_time))

    if added:
        app.actor(Added)
    return any_app.place(app)


def in_order(order: str) -> str:
    app = tr.App("timed", partitions=1, version=order)
    seen, due = app.topic("seen", Seen, out_of_order=50), app.topic("due", Due)

    class Old(tr.Actor, order="event-time" if order == "event-time" else "arrival"):
        count: int = 0

        @tr.process(seen)
        def came(self, event: Seen, ctx: tr.Context[str]) -> None:
            self.count += 1
            ctx.emit(due, Due(ctx.key, ctx.event_time))

    app.actor(Old)
    return any_app.place(app)


def append(folder: Path) -> None:
    events = [Seen("x", at) for at in TIMES]
    lived.append(
        folder, [Output("seen", b"x", msgspec.json.encode(one), one.at) for one in events], {"seen": 1}
    )


def emitted(folder: Path) -> Counter[int]:
    return Counter(msgspec.json.decode(one.value or b"", type=Due).at for one in lived.read(folder, "due"))


def test_no_timer_fires_twice_when_a_new_actor_fires_in_the_same_step(tmp_path: Path) -> None:
    append(tmp_path)
    lived.live_on(tmp_path, with_timers(added=False), ends=False)
    app = with_timers(added=True)
    _, snapshot = done(tmp_path, app)
    lived.live_on(tmp_path, app, replace=f"{tmp_path / 'snapshots'}#{snapshot.manifest.id}", ends=False)
    assert emitted(tmp_path) == Counter(at + 100 for at in TIMES if at < 900)


def test_a_state_in_which_events_wait_that_were_handled_is_refused(tmp_path: Path) -> None:
    append(tmp_path)
    lived.live_on(tmp_path, in_order("arrival"), ends=False)
    app = in_order("event-time")
    _, snapshot = done(tmp_path, app, order="stages")
    with pytest.raises(
        SnapshotMismatchError, match=r"1 event wait for their turn in Old .* and 0 by the last commit"
    ):
        lived.live_on(tmp_path, app, replace=f"{tmp_path / 'snapshots'}#{snapshot.manifest.id}", ends=False)
    assert emitted(tmp_path) == Counter(TIMES)
