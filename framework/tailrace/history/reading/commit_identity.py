"""Whether a log has the commit that a state stands at: state belongs to a history, not to a position.

Theory. A log can lose its end (a power cut under a weak sync policy, a restored backup) and grow past it again.
Another log can have the same topics and offsets. A store, a snapshot or a rebuild from there then fits by its
positions, but holds the effects of records that this log does not have. So every commit has an identity that chains
to the one before (see ``core.engine.tape``), and a state is a part of this history only if the log has the commit
that it stands at. Two commits with one identity have the same past.

    the log has                                               the state is
    a tape record of that number with that identity           of this history
    a last cut in the changelog with that identity            of this history, though its tape may be deleted
    the next tape record as its oldest, which chains to it    of this history: retention has deleted this record
    a tape record of that number with another identity        not of this history: lost its end, or another log
    no tape record of that number, and no later one           not of this history: it is ahead of the log
    only later tape records                                   unknown: retention has deleted what would tell

*Unknown* is not enough to take a state up. What the log can restore by itself is restored; all else is refused, with
an error that names both identities. A state that a limit has stopped within a commit, and one in canonical order, have
identities of their own, so they are at no commit of the log and never a part of its history. What such a snapshot may
replace is decided by ``comparing.cut_differences``.

    taken up                       checked by                            if it is not of this history
    store, at start and restart    ``runtime.restore``                   emptied, and restored from the log
    store, half restored           the same: the commit it was read to   the same
    snapshot of a start            ``snapshots.start_from_snapshot``     left aside if the log has the state, or refused
    the same, in a log where the   ``last_reads``: the records that it   refused
    app has never committed        has read last
    parent of a snapshot           ``snapshots.taking``                  a full snapshot is taken
    base of a rebuild or replay    ``beginnings``                        refused
    state compared with a replay   ``history.replay``                    a difference; its rows are not compared
    tape of two sources            ``core.engine.replay``: the chain     refused
"""

from __future__ import annotations

import secrets
from typing import NamedTuple

from tailrace.core.declare.plan import Plan
from tailrace.core.engine import tape
from tailrace.core.engine.tape import shown_identity
from tailrace.history.reading.changelog import last_cut
from tailrace.history.reading.stretches import first
from tailrace.history.reading.tape_records import tape_record as tape_record_of
from tailrace.log.interface import Log, TopicPartition


def new_nonce() -> bytes:
    """Random bytes for the identities of the commits after a start. No other start draws the same."""
    return secrets.token_bytes(16)


class Standing(NamedTuple):
    """Whether a log has a commit; None: it has deleted what would tell. ``why`` names both identities."""

    in_log: bool | None
    why: str
    within: bool = False
    """It is not at a commit, but between two causes of one that the log has: a limit has stopped it there."""


def standing(plan: Plan, log: Log, partition: int, cut: tape.Cut) -> Standing:
    """Whether the log has the last commit of a cut of one of the app's tasks. See the head of this file."""
    if cut.tape == 0:
        return Standing(in_log=True, why="nothing is committed")
    said = f"commit {cut.commit} with the identity {shown_identity(cut.identity)}"
    record = tape_record(plan, log, partition, cut.commit)
    if record is not None:
        if record.identity == cut.identity:
            return Standing(in_log=True, why=said)
        before = tape_record(plan, log, partition, cut.commit - 1)
        if cut.identity == tape.identity_within(b"" if before is None else before.identity, cut.commit):
            return Standing(in_log=False, why=f"a place within commit {cut.commit}", within=True)
        its = shown_identity(record.identity)
        return Standing(in_log=False, why=f"{said}; commit {cut.commit} of this log has the identity {its}")
    place = TopicPartition(plan.changelog_topic, partition)
    found = last_cut(log, place) if place.topic in log.topics() else None
    last = None if found is None or found.value is None else tape.decode_cut(found.value)
    if last is None:
        return Standing(in_log=False, why=f"{said}, and this log has no commit of it")
    its = f"commit {last.commit} with the identity {shown_identity(last.identity)}"
    if (last.tape, last.identity) == (cut.tape, cut.identity):
        return Standing(in_log=True, why=said)
    oldest = _tape_record_at(plan, log, partition, None)
    if last.tape <= cut.tape or (oldest is not None and oldest.number <= cut.commit):
        return Standing(in_log=False, why=f"{said}, and the last one in this log is {its}")
    if oldest is not None and oldest.number == cut.tape and oldest.base is None:
        follows = oldest.follows(cut.identity)
        return Standing(
            in_log=follows,
            why=said if follows else f"{said}, which commit {cut.tape} of this log does not follow",
        )
    return Standing(
        in_log=None, why=f"{said}, whose tape this log has deleted; the last one in this log is {its}"
    )


def tape_record(plan: Plan, log: Log, partition: int, number: int) -> tape.TapeRecord | None:
    """The tape record with a number, found without reading all records before it; None if it is missing."""
    place = TopicPartition(plan.tape_topic, partition)
    if plan.tape_topic not in log.topics():
        return None
    low, high = log.start_offset(*place), log.end_offset(*place)
    guess = low + number if low == 0 else (low + high) // 2
    while low < high:
        at = min(max(guess, low), high - 1)
        found = _tape_record_at(plan, log, partition, at)
        if found is None or found.number > number:
            high = at
        elif found.number == number:
            return found
        else:
            low = at + 1
        guess = (low + high) // 2
    return None


def _tape_record_at(plan: Plan, log: Log, partition: int, offset: int | None) -> tape.TapeRecord | None:
    """The first record of a tape at or after an offset; None: the first one that the log still has."""
    if plan.tape_topic not in log.topics():
        return None
    found = first(log, plan.tape_topic, partition, offset)
    return None if found is None else tape_record_of(TopicPartition(plan.tape_topic, partition), found)
