"""Does this state belong to this log? What is noted of where a state comes from, how a log is compared with it, and what follows.

Theory. Positions do not tell. A log can lose its end (a power cut under a weak sync policy, an unclean leader election, a restored
backup) and grow past it again; a topic can be deleted and created again; another log can have the same topics. All positions fit then,
and the state holds the effects of records that this log does not have. So a state says which history it is a part of
(``state.provenance``), and it is compared before it is taken up::

    noted                           in                    with                                  by
    the commit that it stands at    the cut               the tape's record of that number      ``judge``
    the last record read from each  ``read``              the record at that offset             ``judge_read``
    input: offset and digest
    the topics, by the log's ids    ``topics``            their ids now (``log.same_topics``)  ``resumed``, ``check_history``
    where inputs were left          ``abandoned``         the same, if they are declared again  the same
    number and digest of all rows   ``rows``              the rows that the changelog gives     ``reading.changelog``
    the commit of the tape's end    the tape              the last cut in the changelog         ``check_tape_end``
    the offsets of the group        the log               the positions of the last cut         ``runtime.restore``
    on which log the app lives      ``<app>.moves``       the log                               ``check_lives_here``

Each comparison has one of four answers::

    answer     the log                                  of a commit                             of a record
    Same       has it, and so all that is before it     a tape record of that number, or the    it is there
                                                        last cut, has its identity; or the
                                                        oldest tape record follows it
    Ahead      ends before it                           no later tape record, and no last cut   the input ends before it
    Other      has something else in its place          another identity                        another record, or none
    Unknown    has deleted what would tell              later tape records only; or it is a     deleted or compacted
                                                        place within a commit

Two commits with one identity have the same past: each chains to the one before (``core.engine.tape``). A place within a commit, where a
limit has stopped a rebuild, and a state in stages have identities that no commit has. What such a snapshot may replace is
decided by ``comparing.cut_differences``.

What follows is in the table ``DOES``. What the log can restore by itself is restored, with a warning that names both sides. All else
is refused with an ``OtherHistoryError``, which says what differs and where, and how to decide which side is right.

Invariants: no state is taken up by its position alone. Before an app may continue, all of the table has been compared. An answer is
about the log as it is now: a reader of history notes its topics when it begins, and compares them again at its end.

*Marks.* A mark is absent, and nothing compared, for an input of which nothing was read yet, or nothing since a start with
``--after-deleted``; for internal topics in snapshots; and in the cuts of replays and rebuilds. If events wait in ordered actors, it is of
the last record *read*. It is one digest for each input and commit. A Kafka consumer that runs compares leader epochs itself.

*Inputs that were left* (``--change-inputs``). The state has the effects of what was read there. Were such an input declared again and
read from its beginning, these would count twice. So its position goes wherever the state goes. It counts in one topic only: a move and a
snapshot leave out topics that were replaced, and a start from a snapshot those in which the log has other records.
"""

from __future__ import annotations

import secrets
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from tailrace.core.declare.plan import Plan
from tailrace.core.engine import tape
from tailrace.core.engine.tape import shown_identity
from tailrace.core.errors import OtherHistoryError, SnapshotMismatchError
from tailrace.core.names import is_own
from tailrace.core.records import RecordMark
from tailrace.history.reading.changelog import last_cut
from tailrace.history.reading.stretches import first, last
from tailrace.history.reading.tape_records import tape_record
from tailrace.log.interface import Log, TopicPartition
from tailrace.state.provenance import NOTHING, Abandoned, Provenance
from tailrace.state.snapshots import Snapshot


@dataclass(frozen=True)
class Judgement:
    """An answer. ``why`` says what was compared, and names both sides."""

    why: str


class Same(Judgement):
    """The log has it."""


class Ahead(Judgement):
    """The log ends before it."""


class Other(Judgement):
    """The log has something else in its place."""


class Unknown(Judgement):
    """The log has deleted what would tell."""


class Within(Unknown):
    """A place within a commit that the log has."""


Use = Literal["store", "parent", "snapshot", "comparison", "input"]
Does = Literal["take", "refill", "full", "refuse", "report"]
_ANSWERS: Final = (Same, Ahead, Other, Unknown)
DOES: Final[Mapping[Use, tuple[Does, Does, Does, Does]]] = {
    # what is taken up                          Same    Ahead     Other     Unknown
    "store": ("take", "refill", "refill", "refill"),  # also the commit that a restore was reading toward
    "parent": ("take", "full", "full", "full"),  # of an incremental snapshot
    "snapshot": ("take", "refuse", "refuse", "take"),  # the base of a rebuild; or of a start, without --replace-state
    "comparison": ("take", "report", "report", "take"),  # with a replay: a difference, and nothing more is compared
    "input": ("take", "refuse", "refuse", "take"),  # at each start; with --after-deleted it is stepped over
}  # fmt: skip
"""What each caller does with each answer: take it up; empty and restore it from the log; take a full snapshot in its place; refuse;
report a difference.
"""


def does(use: Use, found: Judgement) -> Does:
    """What follows from an answer."""
    return DOES[use][next(at for at, kind in enumerate(_ANSWERS) if isinstance(found, kind))]


def new_nonce() -> bytes:
    """Random bytes for the identities of the commits after a start. No other start draws the same."""
    return secrets.token_bytes(16)


# --- commits


def judge(plan: Plan, log: Log, partition: int, cut: tape.Cut) -> Judgement:
    """Whether the log has the last commit of a cut of one of the app's tasks."""
    if cut.tape == 0:
        return Same("nothing is committed")
    said = _shown(cut)
    record = taped(plan, log, partition, cut.commit)
    if record is not None:
        if record.identity == cut.identity:
            return Same(said)
        before = taped(plan, log, partition, cut.commit - 1)
        if cut.identity == tape.identity_within(b"" if before is None else before.identity, cut.commit):
            return Within(f"a place within commit {cut.commit}")
        its = shown_identity(record.identity)
        return Other(f"{said}; commit {cut.commit} of this log has the identity {its}")
    place = TopicPartition(plan.changelog_topic, partition)
    found = last_cut(log, place) if place.topic in log.topics() else None
    if found is None:
        return Ahead(f"{said}, and this log has no commit of it")
    newest = tape.decode_cut(found.value or b"")
    if (newest.tape, newest.identity) == (cut.tape, cut.identity):
        return Same(said)
    ends = f"{said}, and the last one in this log is {_shown(newest)}"
    oldest = _taped_from(plan, log, partition, None)
    if newest.tape < cut.tape:
        return Ahead(ends)
    if newest.tape == cut.tape or (oldest is not None and oldest.number <= cut.commit):
        return Other(ends)
    if oldest is not None and oldest.number == cut.tape and oldest.base is None:
        if oldest.follows(cut.identity):
            return Same(said)
        return Other(f"{said}, which commit {cut.tape} of this log does not follow")
    return Unknown(f"{said}, whose tape this log has deleted; the last one in this log is {_shown(newest)}")


def taped(plan: Plan, log: Log, partition: int, number: int) -> tape.TapeRecord | None:
    """The tape record with a number, found without reading all records before it; None if it is missing."""
    place = TopicPartition(plan.tape_topic, partition)
    if plan.tape_topic not in log.topics():
        return None
    low, high = log.start_offset(*place), log.end_offset(*place)
    guess = low + number if low == 0 else (low + high) // 2
    while low < high:
        at = min(max(guess, low), high - 1)
        found = _taped_from(plan, log, partition, at)
        if found is None or found.number > number:
            high = at
        elif found.number == number:
            return found
        else:
            low = at + 1
        guess = (low + high) // 2
    return None


def _taped_from(plan: Plan, log: Log, partition: int, offset: int | None) -> tape.TapeRecord | None:
    """The first record of a tape at or after an offset; None: the first one that the log still has."""
    place = TopicPartition(plan.tape_topic, partition)
    found = first(log, *place, offset) if place.topic in log.topics() else None
    return None if found is None else tape_record(place, found)


def _shown(cut: tape.Cut) -> str:
    return f"commit {cut.commit} with the identity {shown_identity(cut.identity)}"


def check_base(
    plan: Plan, log: Log, asked: Snapshot, partition: int, end: bytes | None, *, taped: bool
) -> None:
    """Check that a rebuild up to the cut ``end`` can continue from a snapshot, along the tape or in stages.
    Raises SnapshotMismatchError or OtherHistoryError.
    """
    data, which = asked.manifest.task(partition).cut, asked.manifest.id
    if not data or end is None:
        return
    cut, stop, where = tape.decode_cut(data), tape.decode_cut(end), f"app {plan.app!r} partition {partition}"
    if not taped and (cut.lineage != stop.lineage or any(one.source == "stages" for one in asked.chain)):
        return  # it is at no commit of the log: nothing here can check it
    if taped and ((cut.lineage, cut.base) != (stop.lineage, stop.base) or cut.tape > stop.tape):
        raise OtherHistoryError(
            f"the snapshot {which} is not of the history of {where} in this log, or from after its last commit",
            hint="Take one that was made of this log, or leave --from-snapshot out.",
        )
    found = judge(plan, log, partition, cut)
    if taped and isinstance(found, Within):
        raise SnapshotMismatchError(
            f"the snapshot {which} stands within commit {cut.commit} of {where}",
            hint="A rebuild along the tape continues from a commit. Take a snapshot that was not stopped by a limit, or continue in "
            "stages (--order stages).",
        )
    if does("snapshot", found) == "refuse":
        raise OtherHistoryError(
            f"the snapshot {which} stands after a commit of {where} that this log does not have: {found.why}",
            hint="The log has lost its end since, or it is another log. Take a snapshot that was made of this log, or rebuild from the "
            "beginning.",
        )


def check_tape_end(plan: Plan, log: Log, partition: int, cut: bytes | None) -> None:
    """Compare the last record of a task's tape with the last cut in its changelog, while nobody else commits. A tape without records
    is of any: the log has deleted it.
    Raises OtherHistoryError: they are not of the same commit. CorruptStateError: another program writes to the tape.
    """
    place, changelog = TopicPartition(plan.tape_topic, partition), plan.changelog_topic
    record = last(log, *place)
    if record is None:
        return
    from_inputs = "rebuild the state from the inputs (`tailrace rebuild --order stages`), and start from the result under another name "
    if cut is None:
        raise OtherHistoryError(
            f"the changelog {changelog!r} has no commit of partition {partition}, and the tape {place.topic!r} has: the changelog was "
            "deleted, or has lost its records",
            why="tape",
            hint=f"The state cannot be restored. Put the changelog back from a copy; or {from_inputs}(--from-snapshot, --as).",
        )
    found, commit = tape_record(place, record), tape.decode_cut(cut)
    if (found.number, found.identity) != (commit.commit, commit.identity):
        raise OtherHistoryError(
            f"{place.topic!r} partition {partition} ends at offset {record.offset} with commit {found.number} with the identity "
            f"{shown_identity(found.identity)}, and the changelog {changelog!r} ends with {_shown(commit)}",
            why="tape",
            hint="Both are always written together: one of them has lost its end, or another program writes to it. Put the topic back "
            f"from a copy; or {from_inputs}(--from-snapshot, --as).",
        )


# --- the last record read from each input


def judge_read(log: Log, name: str, partition: int, read: RecordMark | None) -> Judgement:
    """Whether the log has the record that was read last from an input."""
    if read is None:
        return Unknown("nothing was noted")
    record = first(log, name, partition, read.offset)
    if record is not None and RecordMark.of(record) == read:
        return Same(f"has the record at offset {read.offset}")
    if read.offset < log.start_offset(name, partition):
        return Unknown(f"has deleted offset {read.offset}")
    if read.offset >= (end := log.end_offset(name, partition)):
        return Ahead(f"ends at {end}")
    if (record is None or record.offset != read.offset) and log.topics()[name].compacted:
        return Unknown(f"has compacted offset {read.offset}")
    return Other(f"has another record at offset {read.offset}")


def last_marks(log: Log, name: str, ends: Sequence[int]) -> list[RecordMark | None]:
    """Of each partition of a topic, the mark of the last record before its end."""
    found = [last(log, name, number, stop=end) for number, end in enumerate(ends)]
    return [None if one is None else RecordMark.of(one) for one in found]


def check_reads(
    plan: Plan, log: Log, snapshot: Snapshot, partition: int, inputs: Collection[str] = ()
) -> None:
    """Check that the log has the records that a snapshot has read last, and no other commit than the one to which it was brought in stages.
    An input that was left is compared if it is among the ``inputs``, which the app declares.
    Raises OtherHistoryError: the log has others.
    """
    entry, known = snapshot.manifest.task(partition), log.topics()
    service = entry.provenance.service
    found = judge(plan, log, partition, tape.decode_cut(service)) if service else None
    if isinstance(found, Other) and plan.app == snapshot.manifest.app:
        raise OtherHistoryError(
            f"the snapshot {snapshot.manifest.id} was made when the service stood at {found.why}",
            why="commit",
            hint="The log has lost its end since and has other records since. Take a snapshot that was made of this log.",
        )
    for name, read in entry.provenance.read.items():
        if name not in known or (name in entry.provenance.abandoned and name not in inputs):
            continue
        found = judge_read(log, name, partition, read)
        if does("input", found) == "refuse":
            raise OtherHistoryError(
                f"the snapshot {snapshot.manifest.id} has read {name!r} partition {partition} up to offset {read.offset}, and in "
                f"this log it {found.why}",
                why="record",
                hint="The log has lost its end since, or it is another log. Take a snapshot that was made of this log, or begin without "
                "one.",
            )


def snapshot_provenance(
    log: Log, partition: int, cut: bytes, left: Mapping[str, int], noted: Provenance = NOTHING
) -> Provenance:
    """What a snapshot says of a task at a cut, which has ``left`` inputs at these positions. Its marks are those ``noted`` with the cut,
    as the log may hold other records by now; else those of the last records before the positions. Internal topics have none.
    """
    read = dict[str, RecordMark]()
    if cut:
        decoded, known = tape.decode_cut(cut), log.topics()
        outside = {name for name in known if not is_own(name, decoded.app)}
        for name, position in sorted({**left, **decoded.positions}.items()):
            if name in outside and name in noted.read:
                read[name] = noted.read[name]
            elif name in outside and (record := last(log, name, partition, stop=position)) is not None:
                read[name] = RecordMark.of(record)
    return Provenance(read=read, abandoned={name: Abandoned(at) for name, at in left.items()})
