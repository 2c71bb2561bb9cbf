"""Headers that a commit adds to its cut, in the cut's record in the changelog.

A cut is the same in every log that has the history. A header is about one log, or about those who wrote
there: so it is no part of the cut.

    header     says                                                           see
    note       what the log has to know to continue from the cut's positions   ``Log.note``, ``history.reading.same_topics``
    left       where the task has left inputs that it reads no more            ``history.reading.left_inputs``
    versions   the versions of the code that have committed the task           ``runtime.task_notes``
    read       the last record read from each input                            ``history.reading.last_reads``
    rows       number and digest of all rows of the state                      ``state.contents``
    snapshot   by an upgrade: the rows up to here are those of this snapshot   ``lab.upgrade.generation``

A header that cannot be read is an error. A move to another log writes all but the versions for its target. A start
from a snapshot writes the note, the rows, and the records read by the snapshot; if it replaces a state, it keeps the
versions and the inputs that were left.
"""

from __future__ import annotations

from threading import Lock
from typing import Final, TypeVar

import msgspec

from tailrace.core.errors import CorruptStateError
from tailrace.core.records import Headers, InputRecord

NOTE: Final = "note"
LEFT: Final = "left"
VERSIONS: Final = "versions"
READ: Final = "read"
ROWS: Final = "rows"
SNAPSHOT: Final = "snapshot"
_T = TypeVar("_T")
_TYPES: Final = Lock()
"""Two threads cannot be the first to decode a type at once."""


def cut_header(name: str, value: object) -> Headers:
    """One header; none if there is nothing to say."""
    return ((name, msgspec.msgpack.encode(value)),) if value else ()


def header_of(cut: InputRecord | None, name: str, kind: type[_T]) -> _T | None:
    """What a header of a cut's record says; None if there is no such header, or no cut.
    Raises CorruptStateError: it is damaged.
    """
    return None if cut is None else header_in(cut.headers, name, kind)


def header_in(headers: Headers, name: str, kind: type[_T]) -> _T | None:
    """``header_of`` for the headers of a cut's record."""
    data = dict(headers).get(name)
    try:
        with _TYPES:
            decoder = msgspec.msgpack.Decoder(kind)
        return None if data is None else decoder.decode(data)
    except msgspec.MsgspecError as error:
        raise CorruptStateError(f"the header {name!r} of a cut cannot be read: {error}") from error


def kept_headers(cut: InputRecord | None) -> Headers:
    """The headers of a cut that still hold if its state is replaced by a snapshot's, on the same log."""
    return () if cut is None else tuple(one for one in cut.headers if one[0] in (VERSIONS, LEFT))
