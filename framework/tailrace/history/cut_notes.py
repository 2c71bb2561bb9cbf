"""Notes that a commit adds to its cut, in headers of the cut's record in the changelog.

A cut is the same in every log that has the history. A note is about one log, or about those who wrote there: so it is no part of the cut.

    note         says                                                            see
    topics       which topics the positions of the cut are of, by their ids      ``history.same_topics``
    passed       behind the positions, the offsets that hold no record           ``history.passed_offsets``
    left         where the task has left inputs that it reads no more            ``history.left_inputs``
    left_topics  which topics these are, by their ids                            ``history.same_topics``
    versions     the versions of the code that have committed the task           ``runtime.task_notes``

A note may be absent: the log needs no such note, or there was nothing to say. Then nothing is known, and
the reader continues without it. A note that cannot be read is an error, as it would be in the cut itself.

A move to another log notes there where inputs were left. The other notes are about the log that the app leaves.
A start that replaces the state by a snapshot's keeps the versions and the inputs that were left.
"""

from __future__ import annotations

from typing import Final, TypeVar

import msgspec

from tailrace.core.errors import CorruptStateError
from tailrace.core.records import Headers, InputRecord

VERSIONS: Final = "versions"
LEFT: Final = "left"
LEFT_TOPICS: Final = "left_topics"
_T = TypeVar("_T")


def note_header(name: str, note: object) -> Headers:
    """The headers with one note."""
    return ((name, msgspec.msgpack.encode(note)),)


def note_in(headers: Headers, name: str, kind: type[_T]) -> _T | None:
    """The note with this name; None if there is none.

    Raises:
        CorruptStateError: It is damaged.
    """
    data = dict(headers).get(name)
    try:
        return None if data is None else msgspec.msgpack.decode(data, type=kind)
    except msgspec.MsgspecError as error:
        raise CorruptStateError(f"the note {name!r} of a cut cannot be read: {error}") from error


def note_of(cut: InputRecord | None, name: str, kind: type[_T]) -> _T | None:
    """The same of the record of a cut, which may not exist."""
    return None if cut is None else note_in(cut.headers, name, kind)


def kept_notes(cut: InputRecord | None) -> Headers:
    """The notes of a cut that still hold if its state is replaced by a snapshot's, on the same log."""
    return () if cut is None else tuple(one for one in cut.headers if one[0] in (VERSIONS, LEFT, LEFT_TOPICS))
