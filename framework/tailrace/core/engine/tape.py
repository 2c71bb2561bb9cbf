"""The tape: the causes of a task's steps, and the cut that a commit stands at.

A replay needs to know what happened from outside, and nothing else: which records came in what order, when the clock
was read and what it said, which inputs fell idle, which watermarks of other services were applied, where a handler
failed. What follows from these (watermarks, lateness, timers, outputs) is computed again, and the totals noted here are
held against it.

Causes are a flat list of small integers, so that a commit of 100,000 events takes a few dozen bytes:

    RUN input n        the records of an input from its position up to its position + n (offsets, gaps included)
    CLOCK d            the clock was read: d ms later than before
    IDLE source b      the source fell idle (b = 1); a record wakes it by itself
    UPSTREAM source d  the watermark that its writers published, d ms above the one before; it wakes the source.
                       d = 0 where it does no more than that
    ENDED operator     all that comes to the operator has ended
    OPENED operator    it may go on: the end of a run is not the end of its inputs
    RISEN operator t   the end of input has come to an actor: its watermark rises to t
    INPUT_ENDED input  up to format 1: the input has ended
    FINISH             up to format 1: the watermark of all rises to the latest timer

After a start of the task the first causes are those that wake its idle sources and reopen its operators. They come before the
rest of a drain that the last commit fell into. All other causes come after it.

A tape that does not begin with nothing begins with a record that names a snapshot, its *base*. Such a record may also come
later, where a task was started anew from a snapshot: what came before it then does not lead to what comes after.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence

import msgspec

from tailrace.core.errors import CorruptStateError, NewerFormatError

RUN, CLOCK, IDLE, UPSTREAM, INPUT_ENDED, FINISH, ENDED, OPENED, RISEN = range(9)

FORMAT = 3
"""The newest format of cuts and tapes that this code reads; it writes this one.

Up to format 1 a task had one watermark for all of its operators. Up to format 2 a redriven record went to every app that reads
its topic.
"""


class Totals(msgspec.Struct, array_like=True, gc=False):
    """What a task has counted since its state began."""

    records: int = 0
    fired: int = 0
    """Timers fired and entries expired."""
    outputs: int = 0
    late: int = 0
    refused: int = 0
    """Records that could not be decoded or judged."""
    failed: int = 0
    """Units whose handler failed."""
    for_others: int = 0
    """Records that were redriven for another app, and passed over."""


class Predecessor(msgspec.Struct, array_like=True):
    """An app whose history a task goes on from, and where: what a snapshot of it says that another app was started from."""

    positions: dict[str, list[int]]
    """By input, the positions of all partitions."""
    handled: dict[str, list[int]] = {}
    """By input, offsets in the task's partition that had failed, and were handled by the rebuild that made the snapshot."""

    def is_before(self, name: str, place: tuple[int, int] | None) -> bool:
        """Whether what failed at a place of an input (a partition and an offset) failed before the snapshot, and is not in it.

        Of a place that is not known it is assumed.
        """
        if place is None:
            return name in self.positions
        number, offset = place
        ends = self.positions.get(name, ())
        return number < len(ends) and offset < ends[number] and offset not in self.handled.get(name, ())


class Cut(msgspec.Struct, array_like=True):
    """Where a task stands: with its rows, all that is needed to go on. Inputs, sources and operators go by their names."""

    format: int
    app: str
    partition: int
    lineage: bytes
    positions: dict[str, int]
    watermarks: dict[str, int]
    idle: list[str]
    ended: list[str]
    generators: dict[str, bytes]
    watermark: int
    """The lowest of the operators'."""
    now: int
    totals: Totals
    tape: int
    """Number of the next tape record."""
    base: str = ""
    """The snapshot that the task was last started from, by its id."""
    operators: dict[str, int] | None = None
    """The watermark of each; None up to format 1."""
    ended_operators: list[str] = []
    predecessors: dict[str, Predecessor] = {}
    """The apps whose histories this one goes on from, by name."""


class Skip(msgspec.Struct, array_like=True):
    """A unit whose handler failed and was skipped: of a record, or the firing of a timer.

    ``number`` is the record's offset, or how many timers had fired before. ``headers`` are those of the dead letter.
    """

    input: int
    """The number of the record's input, or -1 for a timer."""
    number: int
    headers: list[tuple[str, bytes]]


class Environment(msgspec.Struct, array_like=True, frozen=True):
    """What a result may depend on besides the code: floating point sums, time zones, the codec."""

    python: str
    msgspec: str
    timezones: str


class TapeRecord(msgspec.Struct, array_like=True):
    """What one commit of a task was caused by."""

    format: int
    number: int
    causes: list[int]
    skips: list[Skip]
    totals: Totals
    watermark: int
    inputs: list[str] | None = None
    """Names of the inputs by number, and the environment: in the first record after each start."""
    positions: list[int] | None = None
    now: int | None = None
    version: str | None = None
    environment: Environment | None = None
    base: str | None = None
    """The record has no causes: the task was started from this snapshot, given by its place and its id."""
    operators: list[str] | None = None
    """Names of the operators by number, where ``inputs`` are named."""
    watermarks: list[int] | None = None
    """Of the operators; None up to format 1."""
    channels: list[str] = []
    """Names of the channels, whose numbers follow those of the inputs, where these are named."""
    holds: dict[str, int] = {}
    """The actors that have timers due and not fired, as the commit fell into their drain: the time of the first."""


def environment(timezones: str) -> Environment:
    """The environment of this process; the version of the time zone data has to be found by a driver."""
    python = f"{sys.implementation.name} {sys.version_info.major}.{sys.version_info.minor}"
    return Environment(python, msgspec.__version__, timezones)


_ARGUMENTS = {
    RUN: 2,
    CLOCK: 1,
    IDLE: 2,
    UPSTREAM: 2,
    INPUT_ENDED: 1,
    FINISH: 0,
    ENDED: 1,
    OPENED: 1,
    RISEN: 2,
}


def causes_of(codes: Sequence[int]) -> Iterator[Sequence[int]]:
    """The flat list of a tape record, cause by cause: the code and what it says."""
    at = 0
    while at < len(codes):
        stop = at + 1 + _ARGUMENTS[codes[at]]
        yield codes[at:stop]
        at = stop


_encoder = msgspec.msgpack.Encoder(order="deterministic")
encode = _encoder.encode
_format = msgspec.msgpack.Decoder(list[msgspec.Raw])
_cut = msgspec.msgpack.Decoder(Cut)
_tape = msgspec.msgpack.Decoder(TapeRecord)


def decode_cut(data: bytes) -> Cut:
    """Read a cut. Raises NewerFormatError or CorruptStateError."""
    _check(data, "cut")
    try:
        return _cut.decode(data)
    except msgspec.MsgspecError as error:
        raise CorruptStateError(f"a cut cannot be read: {error}") from error


def decode_tape(data: bytes) -> TapeRecord:
    """Read a tape record. Raises NewerFormatError or CorruptStateError."""
    _check(data, "tape record")
    try:
        return _tape.decode(data)
    except msgspec.MsgspecError as error:
        raise CorruptStateError(f"a tape record cannot be read: {error}") from error


def _check(data: bytes, what: str) -> None:
    try:
        number = msgspec.msgpack.decode(_format.decode(data)[0], type=int)
    except (msgspec.MsgspecError, IndexError) as error:
        raise CorruptStateError(f"a {what} cannot be read: {error}") from error
    if number > FORMAT:
        raise NewerFormatError(
            f"a {what} is of format {number}, this version of tailrace reads up to {FORMAT}",
            hint="It was written by a newer version. Run that version, or a later one.",
        )


class Tape:
    """The recorder: causes since the last commit."""

    __slots__ = ("_last_run", "causes", "number", "skips")

    def __init__(self, number: int) -> None:
        self.number = number
        self.causes: list[int] = []
        self.skips: list[Skip] = []
        self._last_run = -1

    def run(self, number: int, count: int) -> None:
        """Offsets ``count`` further on an input; joined with the run before if it is of the same input."""
        if not count:
            return
        causes = self.causes
        if self._last_run >= 0 and causes[self._last_run + 1] == number:
            causes[self._last_run + 2] += count
        else:
            self._last_run = len(causes)
            causes += (RUN, number, count)

    def cause(self, *codes: int) -> None:
        """Any other cause."""
        self._last_run = -1
        self.causes += codes

    def committed(self) -> None:
        """What was recorded is in the log."""
        self.number += 1
        self.causes = []
        self.skips = []
        self._last_run = -1
