"""Open dead letters, and the two ways to close them: redrive the record, or drop the letter.

Theory. A letter is *open* until ``<app>.redriven`` has a note of it. Redriving appends the record to the inbox of
the app (see ``redriven``), and the note, in one transaction: both or neither. Dropping appends the note
alone. Either first takes over a transactional id, which resolves a transaction that an earlier run left open and fences a
run that is still working. Only then does it read the notes. So each letter is closed once, even if processes are killed or
the command is repeated. A record that fails again makes another letter.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Literal, NamedTuple, TypeAlias

import msgspec

from tailrace.core.counting import offsets
from tailrace.core.engine.redriven import Redriven, redriven_header
from tailrace.core.errors import LogUnavailableError, ReplacedVersionError
from tailrace.core.names import (
    BROADCAST,
    broadcast_of,
    dead_letters_of,
    inbox_of,
    redrive_transactional_id,
    redriven_of,
)
from tailrace.core.records import UNREADABLE, Output
from tailrace.core.unit_ids import ORIGIN_HEADER
from tailrace.history.dead_letters.letters import FOREIGN, DeadLetter, dead_letters, read
from tailrace.history.provenance.moves import check_lives_here
from tailrace.history.reading.stretches import OnHidden, decoding, scan
from tailrace.history.reading.upgrades import last_upgrade
from tailrace.log.interface import Log, TopicPartition, TopicSettings, Writer
from tailrace.log.same_topics import replaced

_AT_ONCE = 5_000
_NOT_AGAIN = (UNREADABLE, ORIGIN_HEADER)
"""Headers that a redriven record does not have: no task has sent it."""
How: TypeAlias = Literal["redriven", "dropped"]


class Note(msgspec.Struct, frozen=True):
    """How a letter was closed, and the id of the letter's topic: a topic created again has other letters."""

    how: How
    letters: str


_note = msgspec.json.Decoder(Note)


class Closed(NamedTuple):
    """The result of a redrive or of a drop, as lists of ids."""

    done: list[str]
    """Closed now."""
    before: list[str]
    """Closed before."""
    without_record: list[str]
    """Not redriven: from timers."""
    foreign: list[str]
    """Not redriven: written by another program."""
    of_tables: list[str]
    """Not redriven: from tables and broadcast topics, of which an old value would become the newest one."""
    cut: list[str]
    """Not redriven: too large, so the letter has only the beginning of its record."""


def closed_letters(log: Log, app: str, on_hidden: OnHidden | None = None) -> dict[str, tuple[How, int]]:
    """By id, how and when (milliseconds since 1970) letters were closed; ``on_hidden`` as with ``stretches.scan``."""
    topic = redriven_of(app)
    if topic not in log.topics():
        return {}

    letters = dead_letters_of(app)
    now = log.topic_ids([letters])
    found: dict[str, tuple[How, int]] = {}
    hint = "Find who else writes to it. Until then it is not certain which dead letters were redriven."
    for record in scan(log, topic, 0, on_hidden=on_hidden):
        if record.key is None:
            continue
        with decoding(topic, record, "note of a redrive", hint):
            note = _note.decode(record.value or b"")
            if not replaced({letters: note.letters}, now):
                found[record.key.decode()] = note.how, record.timestamp_ms
    return found


def open_letters(log: Log, app: str, on_hidden: OnHidden | None = None) -> Iterator[DeadLetter]:
    """The open dead letters that the log still has, by partition; ``on_hidden`` as with ``stretches.scan``.
    Raises UnknownTopicError: the app has never run on this log.
    """
    closed = closed_letters(log, app, on_hidden)
    return (one for one in dead_letters(log, app, on_hidden) if one.id not in closed)


def last_open_letters(log: Log, app: str, most: int) -> list[DeadLetter]:
    """The last open letters by timestamp, the last first. Each partition is read backwards, so what is before costs nothing."""
    closed, topic, found = closed_letters(log, app), dead_letters_of(app), list[DeadLetter]()
    for partition in range(log.partitions(topic)):
        last, stop = list[DeadLetter](), log.end_offset(topic, partition)
        while len(last) < most and stop > log.start_offset(topic, partition):
            start = max(0, stop - 10 * most)
            letters = [read(app, partition, one) for one in scan(log, topic, partition, start, stop)]
            last = [one for one in letters if one.id not in closed] + last
            stop = start
        found += last[-most:]
    return sorted(found, key=lambda one: one.record.timestamp_ms)[: -most - 1 : -1]


def close_letters(
    log: Log,
    app: str,
    how: How,
    wanted: Callable[[DeadLetter], bool],
    *,
    now_ms: int,
    dry_run: bool = False,
    on_hidden: OnHidden | None = None,
) -> Closed:
    """Close the wanted letters that are open. ``"redriven"``: append their records to the inbox of the app.

    An event that was in a wrong partition goes to the task of its key, any other record to the task that failed.
    ``on_hidden`` is called for letters, and with ``dry_run`` for notes, that an open transaction hides. Raises OtherHistoryError, ReplacedVersionError, LogUnavailableError, UnknownTopicError or FencedError.
    """
    check_lives_here(log, app)
    topic, notes = dead_letters_of(app), redriven_of(app)
    letters = filter(wanted, dead_letters(log, app, on_hidden))
    outcome = Closed([], [], [], [], [], [])
    known = log.topics()

    def list_of(letter: DeadLetter) -> list[str]:
        if letter.id in closed:
            return outcome.before
        if how == "dropped":
            return outcome.done
        if letter.reason == FOREIGN:
            return outcome.foreign
        if letter.topic is None or letter.origin_partition is None or letter.origin_offset is None:
            return outcome.without_record
        if letter.cut is not None:
            return outcome.cut
        is_broadcast = broadcast_of(app, letter.topic) in known or letter.topic.endswith(BROADCAST)
        is_compacted = letter.topic in known and known[letter.topic].compacted
        return outcome.of_tables if is_compacted or is_broadcast else outcome.done

    if dry_run or topic not in known:  # then ``letters`` says that the app has never run
        closed = closed_letters(log, app, on_hidden)
        for letter in letters:
            list_of(letter).append(letter.id)
        return outcome
    if how == "redriven" and (upgrade := last_upgrade(log, app)) is not None and upgrade.is_open:
        raise ReplacedVersionError(
            f"the app {app!r} is being upgraded from version {upgrade.old!r} to {upgrade.new!r}",
            hint="A record that is redriven now may be counted in both, or in neither. Redrive it when the upgrade has ended.",
        )
    log.create_topic(notes, TopicSettings(1, compacted=True))
    with closing(log.writer(redrive_transactional_id(app))) as writer:
        closed = closed_letters(log, app, _refuse_hidden)
        note = msgspec.json.encode(Note(how, log.watch([topic]).get(topic, "")))
        pending: list[str] = []
        for letter in letters:
            if (found := list_of(letter)) is not outcome.done:
                found.append(letter.id)
                continue
            if how == "redriven":
                _append(log, writer, app, letter)
            writer.append([Output(notes, letter.id.encode(), note, now_ms)])
            pending.append(letter.id)
            if len(pending) >= _AT_ONCE:
                writer.commit()
                outcome.done.extend(pending)
                pending.clear()
        if pending:
            writer.commit()
            outcome.done.extend(pending)
    return outcome


def _refuse_hidden(place: TopicPartition, first: int, stop: int) -> None:
    raise LogUnavailableError(
        f"a transaction that is open hides {offsets(first, stop)} of {place.topic!r} partition "
        f"{place.partition}, so it is not known which dead letters were redriven",
        hint="Nothing was redriven. Run the command again when the transaction has ended.",
    )


def _append(log: Log, writer: Writer, app: str, letter: DeadLetter) -> None:
    assert letter.topic is not None
    assert letter.origin_partition is not None
    assert letter.origin_offset is not None
    _, timestamp_ms, key, value, headers = letter.record
    own, inbox = tuple(one for one in headers if one[0] not in _NOT_AGAIN), inbox_of(app)
    origin = letter.topic, letter.origin_partition, letter.origin_offset
    header = redriven_header(Redriven(letter.id, *origin, letter.operators, letter.unit))
    count = log.partitions(inbox)
    number = (letter.origin_partition if letter.task is None else letter.task) % count
    writer.append([Output(inbox, key, value, timestamp_ms, (header, *own))], number)
