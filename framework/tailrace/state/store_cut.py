"""The cut of a store: which part of the changelog it holds, and the cut of the task that belongs to it."""

from __future__ import annotations

import msgspec

from tailrace.core.errors import CorruptStateError, NewerFormatError

FORMAT = 2
"""The newest format of a store's cut that this code reads; it writes this one.

A store of format 1 has its index in another order: it is emptied and filled anew from the changelog.
"""

UNFINISHED = -1
"""Changelog position of a store that is no copy of the changelog, as one that is being emptied or filled: a service that
finds it empties it first."""


class StoreCut(msgspec.Struct, array_like=True, frozen=True):
    """What a store holds: everything in the changelog below ``changelog_position``, and the cut that belongs to it."""

    format: int
    changelog_position: int
    at_end_ms: int
    """When the store last stood at the end of the changelog, by the clock of the driver that wrote it."""
    core: bytes | None
    """The task's own cut; None before the first commit."""

    def encode(self) -> bytes:
        """As it is stored."""
        return msgspec.msgpack.encode(self)


def decode_store_cut(data: bytes) -> StoreCut:
    """Read what ``StoreCut.encode`` wrote.

    Raises:
        NewerFormatError: A newer version wrote it.
        CorruptStateError: It is not a store's cut.
    """
    try:
        fields = msgspec.msgpack.decode(data, type=list[msgspec.Raw])
        number = msgspec.msgpack.decode(fields[0], type=int)
        if number > FORMAT:
            raise NewerFormatError(
                f"the state is of format {number}, this version of tailrace reads up to {FORMAT}",
                hint="It was written by a newer version. Run that version, or a later one.",
            )
        return msgspec.msgpack.decode(data, type=StoreCut)
    except (msgspec.MsgspecError, IndexError) as error:
        raise CorruptStateError(
            f"the cut of the state cannot be read: {error}",
            hint="Move the folder away; the task restores itself from the log.",
        ) from error
