"""The limit at which a part of history ends: a task that begins with a snapshot cannot end before it."""

from __future__ import annotations

from tailrace.core.declare.plan import Plan
from tailrace.core.engine import tape
from tailrace.core.engine.describe_rows import instant
from tailrace.core.engine.replay import Limits
from tailrace.core.engine.watermarks import Watermarks
from tailrace.core.errors import OptionError
from tailrace.state.snapshots import Snapshot


def check_after_beginning(
    plan: Plan,
    limits: Limits,
    number: int,
    snapshot: Snapshot | None,
    cut: tape.Cut | None,
    *,
    asked: bool = False,
) -> None:
    """Refuse limits that a task has passed in the snapshot that it begins with, at ``cut``.
    ``asked``: the snapshot was requested. Otherwise the tape begins with it. Raises OptionError.
    """
    if snapshot is None or cut is None:
        return
    marks = Watermarks(plan)
    marks.resume(cut)
    limit = limits.of(number)
    passed = [
        f"{name} at {cut.positions[name]}, after the limit {offset}"
        for name, offset in sorted(limit.offsets.items())
        if offset < cut.positions.get(name, 0)
    ]
    if limit.watermark_ms is not None and limit.watermark_ms <= marks.of_first_level:
        passed.append(
            f"the watermark at {instant(marks.of_first_level)}, at or after the limit {instant(limit.watermark_ms)}"
        )
    if passed:
        raise OptionError(
            f"partition {number} begins with the snapshot {snapshot.manifest.id}, which stands after the limit: {'; '.join(passed)}",
            hint="Name a limit after the snapshot, or begin with an earlier snapshot."
            if asked
            else "Name a limit after the snapshot. The tape has no history before it; a rebuild in canonical order "
            "(--order canonical) has.",
        )
