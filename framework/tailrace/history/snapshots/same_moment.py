"""Whether a snapshot may replace the state of a task: both must stand at the same moment."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable

import msgspec

from tailrace.core.counting import counted
from tailrace.core.declare.plan import Plan
from tailrace.core.engine import tape
from tailrace.core.engine.stages import own_inputs
from tailrace.core.errors import SnapshotMismatchError
from tailrace.core.names import is_own
from tailrace.history.comparing.cut_differences import (
    cut_changes,
    in_one_line,
    passed_timers,
    position_changes,
)
from tailrace.history.reading.beginnings import rows_of
from tailrace.state.snapshots import Snapshot


def check_same_moment(
    plan: Plan,
    snapshot: Snapshot,
    number: int,
    live: tape.Cut,
    live_rows: Callable[[], Iterable[tuple[bytes, bytes]]] | None = None,
    *,
    under_way: Collection[str] = (),
) -> None:
    """Compare the snapshot's task of a partition with ``live``, a cut of that task, and their timers, if ``live_rows`` gives its rows.
    ``under_way``: topics in which a snapshot made in stages may be ahead, as the app still reads there what it has sent itself.
    Raises SnapshotMismatchError: they stand at different moments, or the snapshot is of another app.
    """
    app, which, data = plan.app, snapshot.manifest.id, snapshot.manifest.task(number).cut
    cut = tape.decode_cut(data) if data else None
    if cut is not None:
        # Only new code has read the inputs that the service has not: it continues in them where the snapshot stands.
        read = {name: at for name, at in cut.positions.items() if name in live.positions}
        cut = msgspec.structs.replace(cut, positions=read)
    if cut is not None and cut.app != live.app:
        raise SnapshotMismatchError(
            f"the snapshot {which} is of the app {cut.app!r}, and cannot replace the state of {app!r}",
            hint="Start an app that has not run yet from it, with --as NAME.",
        )
    if cut is not None and any(one.source == "stages" for one in snapshot.chain):
        found = [one for one in position_changes(cut.positions, live.positions) if one.label not in under_way]
    else:
        found = cut_changes(cut, live)
    if not found and cut is not None:
        if live_rows is not None:
            _check_timers(plan, snapshot, number, cut, live, live_rows())
        _check_waiting(snapshot, number, cut, live, {*own_inputs(plan), plan.inbox_topic})
    if found:
        sent = all(is_own(one.label, app) for one in found)
        raise SnapshotMismatchError(
            f"in partition {number} the snapshot {which} does not stand where the app {app!r} does. In the "
            f"snapshot, and now: {in_one_line(found)}",
            hint=(
                "Messages of the app are under way: handle them with the code that ran (--until-end) first. "
                if sent
                else ""
            )
            + "With the app stopped, rebuild from the snapshot up to the present (tailrace rebuild "
            "--from-snapshot), and start from what that gives; or run the app beside under another "
            "name (--as NAME).",
        )


def _check_timers(
    plan: Plan,
    snapshot: Snapshot,
    number: int,
    cut: tape.Cut,
    live: tape.Cut,
    live_rows: Iterable[tuple[bytes, bytes]],
) -> None:
    """Refuse a snapshot if a timer would fire twice or never: a rebuild in stages has its own clock, and other code of an app may
    have been stopped elsewhere within a drain.
    """
    again, never = passed_timers(plan, cut, rows_of(snapshot, number), live, live_rows)
    for some, said in ((again, "fire a second time"), (never, "never fire")):
        if some:
            raise SnapshotMismatchError(
                f"in partition {number} clock or watermarks of the snapshot {snapshot.manifest.id} are not those of the app "
                f"{plan.app!r}: "
                f"{counted(len(some), 'timer')} would {said}, the first of them {some[0]}",
                hint="Rebuild along the tape (--order tape), with the app stopped; or run the app beside "
                "under another name (--as NAME).",
            )


def _check_waiting(
    snapshot: Snapshot, number: int, cut: tape.Cut, live: tape.Cut, own: Collection[str]
) -> None:
    """Refuse a snapshot if an operator would handle events from outside a second time or never, as other ones wait in it. Those that
    the app has sent itself are in the snapshot.
    """
    held = {*own} if snapshot.manifest.source == "stages" else set[str]()
    for name in sorted(cut.operators.keys() & live.operators.keys()):
        lows = [
            {of: low for of, low in one.ordered[name].lows.items() if of not in held}
            if name in one.ordered
            else {}
            for one in (cut, live)
        ]
        if lows[0] != lows[1]:
            counts = [sum(count for _, count, _ in one.values()) for one in lows]
            raise SnapshotMismatchError(
                f"in partition {number} {counted(counts[0], 'event')} wait for their turn in {name} by the snapshot "
                f"{snapshot.manifest.id}, and {counts[1]:,} by the last commit: some would be handled a second time, or never",
                hint="If its order has changed, end the inputs first with the old code (--end-of-input), rebuild, and start with "
                "--after-end; or run the app beside under another name (--as NAME).",
            )
