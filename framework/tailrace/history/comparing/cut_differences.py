"""Compares cuts: whether two are the same moment of one history. All comparisons of cuts use this module.

Theory. The positions of the inputs do not determine a cut: timers fire, the clock and watermarks advance,
and commits happen without a new record. So the whole cut is compared::

    of one tape        (same lineage, same base): the number of commits and the last one's identity decide
    of two tapes       (one was started from a snapshot since): positions, counts, watermarks, clock
    stages             (no tape): positions, and each timer that is pending on one side and passed on the other
    other code         an operator that one side does not have has no moment there: it is not compared. None of its
                       timers can have fired there

A state may replace another only if no record is read twice or left out, and no timer fires twice or never.
Whether the log has the commit of a cut is another question: see ``history.provenance``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from tailrace.core import rows
from tailrace.core.declare.plan import Plan
from tailrace.core.engine import tape
from tailrace.core.engine.describe_rows import Change, instant, shown_key

_SHOWN = 5
_COUNTED = {
    "records": "records handled",
    "fired": "timers fired",
    "late": "late events",
    "refused": "records refused",
    "failed": "failures",
}
"""Outputs are not compared: a task that is started from a snapshot continues with the higher of two numbers.
"""


def cut_changes(one: tape.Cut | None, other: tape.Cut | None) -> list[Change]:
    """The differences of two cuts of an app; empty for the same moment. None: a task without a commit."""
    if one is None or other is None:
        commits = ("none" if cut is None else f"{cut.tape:,}" for cut in (one, other))
        return [] if one is other else [Change("commits", *commits)]
    found = position_changes(one.positions, other.positions)
    for name, what in _COUNTED.items():
        found += _differing(what, getattr(one.totals, name), getattr(other.totals, name))
    found += _differing("the clock", instant(one.now), instant(other.now))
    for marks in ((one.watermarks, other.watermarks), (one.operators, other.operators)):
        for name in sorted(marks[0].keys() & marks[1].keys()):
            found += _differing(f"the watermark of {name}", *(instant(side[name]) for side in marks))
    if (one.lineage, one.base) == (other.lineage, other.base):
        found += _differing("commits", one.tape, other.tape)
        if one.tape == other.tape and one.identity and other.identity:
            # The log has lost its end since, and was continued by another commit of this number.
            found += _differing(
                f"the identity of commit {one.commit}",
                *map(tape.shown_identity, (one.identity, other.identity)),
            )
    elif one.lineage != other.lineage:
        found.append(Change("the history", one.lineage.hex()[:8], other.lineage.hex()[:8]))
    return found


def in_one_line(found: list[Change]) -> str:
    """The first changes, in one line."""
    more = f"; and {len(found) - _SHOWN} more" if len(found) > _SHOWN else ""
    return "; ".join(f"{what}: {one} and {other}" for what, one, other in found[:_SHOWN]) + more


def position_changes(one: Mapping[str, int], other: Mapping[str, int]) -> list[Change]:
    """The inputs in which two tasks have different positions."""
    pairs = [(name, (one.get(name), other.get(name))) for name in sorted({**one, **other})]
    return [
        Change(name, *("nothing" if at is None else f"{at:,}" for at in pair))
        for name, pair in pairs
        if pair[0] != pair[1]
    ]


def passed_timers(
    plan: Plan,
    one: tape.Cut,
    one_rows: Iterable[tuple[bytes, bytes]],
    other: tape.Cut,
    other_rows: Iterable[tuple[bytes, bytes]],
) -> tuple[list[str], list[str]]:
    """Timers pending on one side only, and passed on the other: of the first side, then of the second."""
    pending = [_pending(found) for found in (one_rows, other_rows)]
    names = {actor.name: actor for actor in plan.actors}
    sides: list[list[str]] = []
    for (mine, its), passed in zip((pending, pending[::-1]), (other, one), strict=True):
        found: list[str] = []
        for domain, actor, time_ms, key, name in sorted(mine - its):
            if actor not in passed.operators:
                continue
            if time_ms <= (passed.operators[actor] if domain == rows.EVENT_TIME else passed.now):
                label = "" if name[:1] == b"u" else f" {name[1:].decode()!r}"
                shown = shown_key(names.get(actor), key)
                found.append(f"{actor} {shown}, timer{label} at {instant(time_ms)}")
        sides.append(found)
    return sides[0], sides[1]


def _pending(found: Iterable[tuple[bytes, bytes]]) -> set[tuple[int, str, int, bytes, bytes]]:
    """Timers by domain, actor, time, key and name."""
    timers: set[tuple[int, str, int, bytes, bytes]] = set()
    for row, value in found:
        if row[:1] != rows.STATE:
            continue
        for index in rows.derived_index_rows(row, None, value):
            time_ms, actor, key, name = rows.read_index_row(index)
            if name[:1] != rows.EXPIRY:
                timers.add((index[1], actor, time_ms, key, name))
    return timers


def _differing(what: str, one: object, other: object) -> list[Change]:
    if one == other:
        return []
    return [Change(what, *(f"{each:,}" if isinstance(each, int) else str(each) for each in (one, other)))]
