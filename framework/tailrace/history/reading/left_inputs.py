"""Where tasks have left inputs that their app reads no more (``--change-inputs``).

Theory. The state has the effects of what was read from such an input. Were the input declared again and read from its
beginning, these would count twice. So the position where it was left goes wherever the state goes::

    the state                        the position is
    on the log of the app            in a header of each cut, with the log's note: offsets of a group can expire
    moves to another log             the same there. The topic is copied with those that the app declares
    in a snapshot, a rebuilt state   in the entry of the task (``TaskEntry.abandoned``), with a mark of the last record read
    begins from a snapshot           the same as on the log of the app

A position counts in one topic only. If that was deleted, or deleted and created again, and the app declares it later, it
is read from its beginning. So a move and a snapshot leave such positions out, and a start from a snapshot those of topics
in which its log has other records. Internal topics of the app are carried otherwise (see ``in_flight``).
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from tailrace.core.declare.plan import Plan
from tailrace.core.engine import tape
from tailrace.core.records import Headers, InputRecord
from tailrace.history.reading.beginnings import Beginning, is_own
from tailrace.history.reading.changelog import last_cut
from tailrace.history.reading.cut_notes import LEFT, NOTE, cut_header, header_of
from tailrace.history.reading.last_reads import has_read_other
from tailrace.log.interface import Log, TopicPartition
from tailrace.state.snapshots import TaskEntry


class Abandoned(msgspec.Struct, array_like=True):
    """Where a task has left an input, and what the log had noted then (``Log.note``)."""

    position: int
    note: bytes


def abandoned_with(last: InputRecord | None) -> dict[str, Abandoned]:
    """The inputs that a task has left, by the record of its last cut."""
    return header_of(last, LEFT, dict[str, Abandoned]) or {}


def positions_read(last: InputRecord | None) -> dict[str, int]:
    """By input that a task has ever read: where it stands, or has left it. ``last`` is the record of its last cut."""
    if last is None:
        return {}
    left = {name: one.position for name, one in abandoned_with(last).items()}
    return {**left, **tape.decode_cut(last.value or b"").positions}


def abandoned_header(plan: Plan, last: InputRecord | None) -> Headers:
    """The header of the cuts of a task that has left inputs. ``last`` is the record of the last cut before them."""
    if last is None:
        return ()
    left, note = abandoned_with(last), header_of(last, NOTE, bytes) or b""
    left |= {name: Abandoned(at, note) for name, at in tape.decode_cut(last.value or b"").positions.items()}
    declared = {one.name for one in plan.inputs}
    return cut_header(LEFT, {name: one for name, one in left.items() if name not in declared})


def new_abandoned_header(log: Log, partition: int, left: Mapping[str, int]) -> Headers:
    """The header of a cut on a log that the positions are new to."""
    places = {name: {TopicPartition(name, partition): at} for name, at in left.items()}
    return cut_header(LEFT, {name: Abandoned(at, log.note(places[name])) for name, at in left.items()})


def abandoned_inputs(plan: Plan, log: Log, partition: int, end: int | None = None) -> dict[str, int]:
    """Where a task has left inputs, as of its last cut below the offset ``end`` of its changelog. An input that is declared again
    counts, too, until the task has committed.
    """
    last = last_cut(log, TopicPartition(plan.changelog_topic, partition), end)
    reads = {} if last is None else tape.decode_cut(last.value or b"").positions
    declared = {one.name for one in plan.inputs}
    stands = {name: one.position for name, one in abandoned_with(last).items()} | reads
    return {name: at for name, at in stands.items() if name not in declared or name not in reads}


def abandoned_before(begun: Beginning, cut: bytes) -> dict[str, int]:
    """The positions in inputs that were left before or at the beginning of a rebuild which has ended with this cut."""
    if begun.snapshot is None or begun.decoded is None:
        return {}
    app = begun.snapshot.manifest.app
    positions = {**begun.snapshot.manifest.task(begun.partition).abandoned, **begun.decoded.positions}
    reads = tape.decode_cut(cut).positions if cut else {}
    return {
        name: at
        for name, at in positions.items()
        if name not in reads and not is_own(name, app) and not is_own(name, begun.decoded.app)
    }


def abandoned_positions(entry: TaskEntry, log: Log) -> dict[str, int]:
    """An entry's positions in abandoned inputs, without topics where the log lacks the records read."""
    known = log.topics()
    return {
        name: at
        for name, at in entry.abandoned.items()
        if name in known
        and entry.partition < known[name].partitions
        and at <= log.end_offset(name, entry.partition)
        and not has_read_other(entry, log, name)
    }
