"""What is known of where a state comes from, beside its cut. One value goes wherever the state goes.

    the state is                   the value is
    in a changelog                 in the header ``provenance`` of the record of each cut
    in a snapshot                  in the entry of the task (``TaskEntry.provenance``)
    in a store                     not there: the changelog that the store copies has it

A cut is the same in every log that has the history. The value is about one log, or about those who wrote there: so it is no part of
the cut. ``history.provenance`` says what it is compared with, and what follows.

    goes to                                 takes along
    a snapshot                              ``read``, and ``abandoned`` without what a log has noted
    another log, by a move                  the same and ``rows``; the target notes its own topics
    a state that begins with a snapshot     the same; if it replaces another state, that one's ``versions`` and ``abandoned``
"""

from __future__ import annotations

from typing import Final

import msgspec

from tailrace.core.errors import CorruptStateError
from tailrace.core.records import Headers, InputRecord, RecordMark
from tailrace.state.contents import Contents

HEADER: Final = "provenance"


class Abandoned(msgspec.Struct, frozen=True, omit_defaults=True):
    """Where a task has left an input, behind offsets without a record; and the topic's id then."""

    position: int
    topic: str = ""


class ReadTopic(msgspec.Struct, frozen=True, array_like=True):
    """A topic that a task reads or writes for itself."""

    id: str
    """In the log (``Log.topic_ids``)."""
    passed: int = 0
    """Up to here it has no record that is not in the cut. The position of a task is the one behind its last record. Behind that there may
    be offsets without a record (on Kafka: markers of transactions, records of aborted ones). Retention deletes these as it deletes
    records, and nothing tells them from records that were deleted unread. So a position is continued here.
    """


class Provenance(msgspec.Struct, frozen=True, omit_defaults=True):
    """Where a state comes from."""

    topics: dict[str, ReadTopic] = {}
    """The inputs and the tape, if the log gives its topics ids."""
    read: dict[str, RecordMark] = {}
    """By input, the last record that was read. None: nothing was, or nothing since a start with ``--after-deleted``."""
    abandoned: dict[str, Abandoned] = {}
    """By input that the task has read, and reads no more: where it was left."""
    rows: Contents | None = None
    """Number and digest of all rows of the state."""
    versions: tuple[str, ...] = ()
    """The last versions of the code that have committed the task, the newest at the end (``runtime.task_notes``)."""
    service: bytes = b""
    """In a snapshot made in stages: the cut of the service to which it was brought."""
    snapshot: str = ""
    """By an upgrade: the rows up to here are those of this snapshot (``lab.upgrade.generation``)."""

    @property
    def headers(self) -> Headers:
        """As the header of a cut's record; none if nothing is known."""
        return () if self == NOTHING else ((HEADER, _encode(self)),)


NOTHING: Final = Provenance()
_encode: Final = msgspec.msgpack.Encoder().encode
_decode: Final = msgspec.msgpack.Decoder(Provenance).decode


def provenance_in(headers: Headers) -> Provenance:
    """What the headers of a cut's record say. Raises CorruptStateError: they cannot be read."""
    data = dict(headers).get(HEADER)
    try:
        return NOTHING if data is None else _decode(data)
    except msgspec.MsgspecError as error:
        raise CorruptStateError(f"the header {HEADER!r} of a cut cannot be read: {error}") from error


def provenance_of(cut: InputRecord | None) -> Provenance:
    """What the record of a cut says; ``NOTHING`` without a cut. Raises CorruptStateError."""
    return NOTHING if cut is None else provenance_in(cut.headers)
