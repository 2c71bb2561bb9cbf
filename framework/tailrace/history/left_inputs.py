"""Where tasks have left inputs that their app reads no more (``--change-inputs``).

Theory. The state has the effects of what was read from such an input. Were the input declared again and read from its beginning, these
would count twice. So the position where it was left goes wherever the state goes::

    the state                        the position is
    on the log of the app            among the offsets of its group; where these can expire, in a note with each cut as well
    moves to another log             the same there. The topic is copied with those that the app declares, record by record
    in a snapshot, a rebuilt state   in the entry of the task (``TaskEntry.left``), with the mark of the last record before it
    begins from a snapshot           the same as on the log of the app

A position counts in one topic only. One that was deleted, or deleted and created again, has none: if the app declares a topic with this
name later, it reads that from its beginning. So a move and a snapshot leave such positions out, and a start from a snapshot leaves out
those of topics in which its log has other records.

Internal topics of the app are not carried by snapshots: under another name of the app they are others, and what is under way in them
is carried otherwise (see ``history.in_flight``).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from tailrace.core.declare.plan import Plan
from tailrace.core.engine import tape
from tailrace.core.records import Headers, InputRecord
from tailrace.history.beginnings import Beginning, is_own
from tailrace.history.changelog import last_cut
from tailrace.history.cut_notes import LEFT, note_header, note_of
from tailrace.history.last_reads import has_read_other
from tailrace.history.same_topics import current_topics_header, replaced_topics
from tailrace.log.interface import KnowsTopicIds, Log, TopicPartition
from tailrace.state.snapshots import TaskEntry


def positions_left(last: InputRecord | None) -> dict[str, int]:
    """By input that a task has ever read: where it stands, or has left it. ``last`` is the record of its last cut."""
    if last is None:
        return {}
    left = note_of(last, LEFT, dict[str, int]) or {}
    return {**left, **tape.decode_cut(last.value or b"").positions}


def inputs_left(plan: Plan, left: Mapping[str, int]) -> dict[str, int]:
    """Of the positions in inputs that a task has ever read, those in inputs that the app does not read any more."""
    declared = {one.name for one in plan.inputs}
    return {name: at for name, at in left.items() if name not in declared}


def left_header(plan: Plan, left: Mapping[str, int]) -> Headers:
    """The header of the cuts of a task that has left inputs."""
    kept = inputs_left(plan, left)
    return note_header(LEFT, kept) if kept else ()


def left_headers(log: Log, left: Mapping[str, int]) -> Headers:
    """The headers of a cut on a log that the positions are new to. Empty on a log that needs no notes."""
    if not left or not isinstance(log, KnowsTopicIds):
        return ()
    return note_header(LEFT, dict(left)) + current_topics_header(log, left)


def left_by(plan: Plan, log: Log, partition: int, end: int | None = None) -> dict[str, int]:
    """Where a task has left inputs, as of its last cut below the offset ``end`` of its changelog. An input that is declared again
    counts, too, until the task has committed.
    """
    last = last_cut(log, TopicPartition(plan.changelog_topic, partition), end)
    if last is None:
        return {}
    reads = tape.decode_cut(last.value or b"").positions
    positions = positions_left(last)
    if not isinstance(log, KnowsTopicIds):  # its groups keep their offsets
        places = [
            TopicPartition(name, partition)
            for name, one in log.topics().items()
            if partition < one.partitions
        ]
        of_group = log.committed_offsets(plan.app, places)
        positions = {place.topic: at for place, at in of_group.items()} | positions
    declared = {one.name for one in plan.inputs}
    return {name: at for name, at in positions.items() if name not in declared or name not in reads}


def still_there(app: str, log: Log, names: Iterable[str]) -> set[str]:
    """Those topics that the log has, and that are the same as when the tasks of the app have read them."""
    wanted = set(names) & set(log.topics())
    if wanted:
        wanted -= {topic for topic, _ in replaced_topics(app, log, wanted)}
    return wanted


def left_from(begun: Beginning, cut: bytes) -> dict[str, int]:
    """The positions in inputs that were left before or at the beginning of a rebuild which has ended with this cut."""
    if begun.snapshot is None or begun.decoded is None:
        return {}
    app = begun.snapshot.manifest.app
    positions = {**left_in(begun.snapshot.manifest.task(begun.partition)), **begun.decoded.positions}
    reads = tape.decode_cut(cut).positions if cut else {}
    return {
        name: at
        for name, at in positions.items()
        if name not in reads and not is_own(name, app) and not is_own(name, begun.decoded.app)
    }


def left_in(entry: TaskEntry) -> dict[str, int]:
    """Where inputs were left, by the entry of a task in a snapshot."""
    return entry.left if isinstance(entry.left, dict) else {}


def left_there(entry: TaskEntry, log: Log) -> dict[str, int]:
    """The same without topics that the log does not have, or in which it has other records than the task has read."""
    known = log.topics()
    return {
        name: at
        for name, at in left_in(entry).items()
        if name in known
        and entry.partition < known[name].partitions
        and at <= log.end_offset(name, entry.partition)
        and not has_read_other(entry, log, name)
    }
