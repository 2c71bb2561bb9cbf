"""The cut of a store: its position in the changelog, and the task's cut at that position."""

from __future__ import annotations

import msgspec

from tailrace.core.errors import CorruptStateError
from tailrace.core.formats import check_format
from tailrace.state.contents import Contents

FORMAT = 3
"""The format of a store's cut."""

_MOVE_AWAY = "Move the folder away: the task is then restored from the log."

UNFINISHED = -1
"""Changelog position of a store that is not a copy of the changelog, such as one that is being emptied or
filled. A service that finds it empties it first.
"""


class StoreCut(msgspec.Struct, array_like=True, frozen=True):
    """A store's content: the changelog below ``changelog_position``, and the cut there."""

    format: int
    changelog_position: int
    at_end_ms: int
    """When the store was last at the end of the changelog, by the clock of the driver that wrote it."""
    core: bytes | None
    """The task's own cut; None before the first commit."""
    toward: bytes | None = None
    """While the changelog is applied: its last cut. The store may hold rows of any commit up to it."""
    contents: Contents = Contents()
    """Of the rows that it holds, without their index."""

    def encode(self) -> bytes:
        """As it is stored."""
        return msgspec.msgpack.encode(self)


def decode_store_cut(data: bytes) -> StoreCut:
    """Decode a store's cut. Raises FormatError or CorruptStateError."""
    try:
        fields = msgspec.msgpack.decode(data, type=list[msgspec.Raw])
        number = msgspec.msgpack.decode(fields[0], type=int)
        check_format("the state", number, FORMAT, hint=_MOVE_AWAY)
        return msgspec.msgpack.decode(data, type=StoreCut)
    except (msgspec.MsgspecError, IndexError) as error:
        raise CorruptStateError(f"the cut of the state cannot be read: {error}", hint=_MOVE_AWAY) from error
