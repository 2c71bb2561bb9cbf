"""The outcomes of dead letters: whether they were redriven, and whether the app has handled their records.

Theory. The header of a redriven record names its letter, and the note of the redrive has the offset from
which on the record can be found. This gives the outcome:

    not read yet    the app's committed position is at or before the record
    failed again    there is another letter, whose record has the header
    handled         neither
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Literal, NamedTuple, TypeAlias

from tailrace.core.engine.redriven import redriven_ids
from tailrace.core.names import dead_letters_of
from tailrace.history.dead_letters.letters import FOREIGN, DeadLetter, Note, dead_letters, is_before, notes
from tailrace.history.reading.stretches import OnHidden, scan
from tailrace.log.interface import Log, TopicPartition

State: TypeAlias = Literal[
    "pending", "timer", "redriven", "unread", "handled", "failed", "rebuilt", "foreign"
]
"""``pending``: it can be redriven. ``timer``: it cannot be, since a timer has no record. ``redriven``: it was
redriven, and the log does not show the outcome. ``rebuilt``: it was not, since a snapshot that the app was
started from handles it. ``foreign``: no task has written it.
"""


class Outcome(NamedTuple):
    """The outcome of a letter."""

    state: State
    redriven_ms: int | None = None
    failed_as: str | None = None
    """The new letter, if the redriven record failed again."""
    snapshot: str | None = None
    """The snapshot in which it is handled."""


def letters_with_outcomes(
    log: Log,
    app: str,
    wanted: Callable[[DeadLetter], bool] = lambda _: True,
    on_hidden: OnHidden | None = None,
) -> list[tuple[DeadLetter, Outcome]]:
    """The wanted dead letters, by partition, with their outcomes; ``on_hidden`` as with ``stretches.scan``.
    Raises UnknownTopicError: the app has never run on this log.
    """
    own, noted = dead_letters_of(app), notes(log, app, on_hidden)
    # Read positions before letters: the letters of all records before these positions are then in the log.
    places = {TopicPartition(one.topic, one.partition) for one in noted.values() if not one.snapshot}
    positions = log.committed_offsets(app, places)
    asked: list[DeadLetter] = []
    failed_as: dict[str, str] = {}
    for letter in dead_letters(log, app, on_hidden):
        again = redriven_ids(letter.record.headers, own)
        if again and not _is_older(letter, noted.get(again[-1])):
            failed_as[again[-1]] = letter.id
        if wanted(letter):
            asked.append(letter)
    open_ = [one.id for one in asked if one.id in noted and one.id not in failed_as]
    offsets = offsets_of(log, app, {id_: noted[id_] for id_ in open_ if not noted[id_].snapshot})

    def outcome(letter: DeadLetter) -> Outcome:
        if letter.reason == FOREIGN:
            return Outcome("foreign")
        if not letter.can_redrive:
            return Outcome("timer")
        note, offset = noted.get(letter.id), offsets.get(letter.id)
        if note is None:
            return Outcome("pending")
        if note.snapshot:
            return Outcome("rebuilt", None, None, note.snapshot)
        at_ms = note.at_ms
        if letter.id in failed_as:
            return Outcome("failed", at_ms, failed_as[letter.id])
        position = positions.get(TopicPartition(note.topic, note.partition))
        if offset is None or position is None:
            return Outcome("redriven", at_ms)
        return Outcome("handled" if offset < position else "unread", at_ms)

    return [(one, outcome(one)) for one in asked]


def _is_older(letter: DeadLetter, note: Note | None) -> bool:
    """Whether the record of a letter was there before the redrive of this note."""
    if note is None or note.snapshot or letter.origin_offset is None:
        return False
    return is_before(note, letter.topic, letter.origin_partition, letter.origin_offset)


def offsets_of(log: Log, app: str, wanted: Mapping[str, Note]) -> dict[str, int]:
    """The offsets of the records of redriven letters, without those that the log has deleted."""
    own, found = dead_letters_of(app), dict[str, int]()
    starts: dict[TopicPartition, int] = {}
    left: dict[TopicPartition, set[str]] = {}
    for id_, note in wanted.items():
        place = TopicPartition(note.topic, note.partition)
        starts[place] = min(note.start, starts.get(place, note.start))
        left.setdefault(place, set()).add(id_)
    known = log.topics()
    for place, ids in left.items():
        if place.topic not in known or place.partition >= known[place.topic].partitions:
            continue
        for record in scan(log, *place, starts[place]):
            again = redriven_ids(record.headers, own) if record.headers else []
            if again and again[-1] in ids and record.offset >= wanted[again[-1]].start:
                ids.remove(again[-1])
                found[again[-1]] = record.offset
                if not ids:
                    break
    return found
