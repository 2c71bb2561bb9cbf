"""Writes the state of the new version into a changelog of its own, while the old version runs.

Theory. After each round, what its snapshot has changed is written behind what is there. So processes of the new version that wait
follow this changelog as standbys do, and after the last round little is left to write and to read, however large the state is.

The rows of a partition are written in pieces. Each piece is one commit and ends with the cut of the snapshot; a header of the last
one names the snapshot (``Provenance.snapshot``)::

    the last cut names              what is written
    the snapshot                    nothing
    one that it rests upon          the changes since that one
    none, or another one; or there  what makes of the rows there those of the snapshot: all rows are read
    is no cut

So a piece that a killed command has left is read, and not trusted. The writer's id is the name of the topic: a second command fences
the first. Nobody else writes to it before the record ``ready``, and no command does from then on: one that another has replaced finds
that it cannot note its step again, and the last record is read once more when it has the writer.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing
from itertools import islice

from tailrace.core import rows
from tailrace.core.declare.plan import Plan
from tailrace.core.errors import UsageError
from tailrace.core.records import Output
from tailrace.history.reading.changelog import MOVED, beginning, fold, last_cut
from tailrace.history.reading.generations import at_generation
from tailrace.history.reading.upgrades import last_upgrade
from tailrace.log.interface import Log, TopicPartition, TopicSettings, Writer
from tailrace.log.opening import open_log
from tailrace.state.provenance import Provenance, provenance_of
from tailrace.state.snapshots import Snapshot, Snapshots

_PIECE = 20_000
"""Rows in one commit."""


def write_generation(plan: Plan, log: str, uri: str, snapshot: str, generation: int) -> int:
    """Make the rows of a snapshot those of a generation of the changelog. Returns how many were written.
    Raises UsageError: the upgrade has ended.
    """
    found, written = Snapshots(uri, plan.app).open(snapshot), 0
    topic = at_generation(plan, generation).changelog_topic
    with closing(open_log(log)) as opened:
        opened.create_topic(topic, TopicSettings(plan.partitions, compacted=True))
        with closing(opened.writer(topic)) as writer:
            noted = last_upgrade(opened, plan.app)
            if noted is not None and noted.step not in ("begun", "fenced"):
                raise UsageError(
                    f"another command has brought the upgrade of {plan.app!r} to an end meanwhile"
                )
            for number in range(plan.partitions):
                written += _write(found, opened, writer, TopicPartition(topic, number))
    return written


def _write(found: Snapshot, log: Log, writer: Writer, place: TopicPartition) -> int:
    topic, number = place
    entry, last = found.manifest.task(number), last_cut(log, place)
    named = provenance_of(last).snapshot
    if not entry.cut or named == found.manifest.id:
        return 0
    if named in [one.id for one in found.chain]:
        changed = _since(found, number, named)
    else:
        changed = _differing(found, number, log, place)
    now_ms, written, piece = time.time_ns() // 1_000_000, 0, [*islice(changed, _PIECE)]
    while piece:
        following = [*islice(changed, _PIECE)]
        header = () if following else Provenance(snapshot=found.manifest.id).headers
        writer.append([Output(topic, row, value, now_ms) for row, value in piece], number)
        writer.append([Output(topic, rows.CUT_ROW, entry.cut, now_ms, header)], number)
        writer.commit()
        written, piece = written + len(piece), following
    return written


def _since(found: Snapshot, number: int, named: str) -> Iterator[tuple[bytes, bytes | None]]:
    yield rows.SCHEMA_ROW, found.manifest.task(number).schema or None
    for keys, values in found.changes_since(named, number):
        yield from zip(keys, values, strict=True)


def _differing(
    found: Snapshot, number: int, log: Log, place: TopicPartition
) -> Iterator[tuple[bytes, bytes | None]]:
    """What makes of the rows that are there those of the snapshot. The schema is in it always, so that something is."""
    before = fold(log, place, beginning(log, place)).rows
    before.pop(rows.SCHEMA_ROW, None)
    yield rows.SCHEMA_ROW, found.manifest.task(number).schema or None
    for row, value in found.rows(number):
        if before.pop(row, None) != value:
            yield row, value
    yield from ((row, None) for row, value in before.items() if value is not None)


def close_generation(log: Log, old: str, new: str) -> None:
    """Write into all partitions of the changelog ``old``, in one commit, that the state is in ``new`` from now on."""
    now_ms = time.time_ns() // 1_000_000
    with closing(log.writer(old)) as writer:
        for number in range(log.partitions(old)):
            writer.append([Output(old, MOVED, new.encode(), now_ms)], number)
        writer.commit()
