"""Redriven records: how a record that failed comes back to its app.

Theory. A redrive appends the record to the *inbox* of the app that failed, not to the topic that it came from. So no other
app sees the record again, and a header that a producer sets chooses nothing: the header of a redrive is believed only in
topics that the app alone writes, where it is the first one.

    value        as the original: key, value, timestamp and headers. The input that had the original decodes it
    operators    those whose unit failed; others have handled the original. Without names, all that take the input
    task         the one that failed; that of its key, if the event was in a wrong partition
    unit id      that of the original, in the letter and in the header: so its handlers draw the same random numbers
    event time   that of the event. It moves no watermark, as the inbox moves none, and is never left out as late:
                 ``ctx.is_late`` says whether it is. In an ordered operator it waits until its turn, if that is still to come
    by key       an input with ``repartition=True`` forwards it with the header, for the same reason
    fails again  the next letter has the place and the operators of the original

In event-time order, a rebuild handles the original in its place: ``history.rebuilding.redriven_history`` says what is left for a
redriven record.
"""

from __future__ import annotations

from typing import Annotated, Final

import msgspec

from tailrace.core.records import Headers

REDRIVEN_HEADER: Final = "tailrace-redriven"
"""The first header of a redriven record: a ``Redriven`` in JSON."""

OPERATORS_HEADER: Final = "tailrace-operators"
"""Header of a dead letter: the operators of the unit that failed, if not all that take its input."""

UNIT_HEADER: Final = "tailrace-unit"
"""Header of the dead letter of a record: the id of its unit, in hex."""


class Redriven(msgspec.Struct, frozen=True, omit_defaults=True):
    """The content of the header."""

    letter: str
    """The id of the dead letter."""
    input: str
    partition: int
    offset: int
    """The place of the original; -1 if it is in another log, from which the app was reshaped."""
    operators: tuple[str, ...] = ()
    """Names of the operators that handle it; none if all that take the input do."""
    unit: Annotated[str, msgspec.Meta(pattern="^([0-9a-f]{32})?$")] = ""
    """The unit id of the original, in hex."""


_decode = msgspec.json.Decoder(Redriven).decode


def redriven_header(redriven: Redriven) -> tuple[str, bytes]:
    """The header of a redriven record."""
    return REDRIVEN_HEADER, msgspec.json.encode(redriven)


def is_redriven(headers: Headers) -> bool:
    """Whether a record of a topic that the app alone writes was redriven."""
    return bool(headers) and headers[0][0] == REDRIVEN_HEADER


def redriven_in(headers: Headers) -> Redriven | None:
    """The header of a record that ``is_redriven``; None if it is not one that a redrive writes."""
    if not is_redriven(headers):
        return None
    try:
        return _decode(headers[0][1])
    except msgspec.MsgspecError:
        return None


def in_another_log(headers: Headers) -> Headers:
    """The headers of a redriven record that is copied to other offsets: its original has no place there."""
    redriven = redriven_in(headers)
    if redriven is None:
        return headers
    return redriven_header(msgspec.structs.replace(redriven, partition=-1, offset=-1)), *headers[1:]
