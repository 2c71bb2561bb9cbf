"""The tape: the causes of a task's steps. The cut: the point that a task has reached at a commit.

A replay needs only what came from outside: which records were taken in what order, when the clock was read
and its readings, which inputs became idle, which watermarks of other services were applied, and where a
handler failed. Everything that follows from these (watermarks, lateness, timers, outputs) is computed again
and compared with what is on the tape: the totals, and a digest of all outputs of the commit.

Causes are a flat list of small integers, so that a commit of 100,000 events takes a few dozen bytes:

    RUN input n        the records of an input from its position up to its position + n (offsets, with gaps)
    CLOCK d            a clock reading, d ms later than the one before
    IDLE source b      the source became idle (b = 1); its next record wakes it
    UPSTREAM source d  the watermark that the source's writers published, d ms above the one before; it wakes
                       the source. d = 0: it only wakes the source
    ENDED operator     all input of the operator has ended
    OPENED operator    it gets more input, although it had ended
    RISEN operator t   the end of input of an actor: its watermark rises to t, the time of its last timer
    RAISED operator t m  its watermark is lifted to t, that of a cut; m = 1: the next cause is of the same step

After a start of the task the first causes are those that wake its idle sources and reopen its operators. If
the last commit fell into a drain, they come before the rest of that drain. All other causes come after it.

**Every commit has an identity**, which chains to the one before: a hash of the identity of the previous
commit, the number of the commit, and a *nonce*. The driver draws the nonce when it starts the task, and the
first record after the start has it. So two histories that part after a commit, by a log that lost its end and
grew again, have different identities from there on, even if all counts are equal; and two commits with one
identity have the same past. The identity is in the record and in the cut. A replay takes it from the record
and checks the chain, so it comes to the same bytes. The first identity chains to an empty one.
``history.provenance`` has the rules for its use.

If a task started from a snapshot, its tape begins with a record that names this snapshot, its *base*. Such a
record can also come later, if a task was restarted from a snapshot. The records after it do not follow from
those before it: its identity chains to that of the snapshot's cut.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from hashlib import blake2b
from typing import Final, TypeVar
from zlib import crc32

import msgspec

from tailrace.core.errors import CorruptStateError
from tailrace.core.formats import check_format
from tailrace.core.records import RawOutput

RUN, CLOCK, IDLE, UPSTREAM, ENDED, OPENED, RISEN, RAISED = range(8)

ALL, REFUSED = -1, -2

FORMAT = 18
"""The format of cuts and tapes."""


class Totals(msgspec.Struct, array_like=True, gc=False):
    """Counters of a task since its state began."""

    records: int = 0
    fired: int = 0
    """Timers fired and entries expired."""
    outputs: int = 0
    late: int = 0
    refused: int = 0
    """Records without a valid event, key or time."""
    failed: int = 0
    """Units in which a handler failed."""
    ordered: int = 0
    """Events that ordered operators have handled in their turn."""
    dropped: int = 0
    """Events that a handler left out because they were late: ``Context.count_late``."""

    @property
    def drained(self) -> int:
        """What the drains of all steps have done."""
        return self.fired + self.ordered


class Ordered(msgspec.Struct, array_like=True):
    """An ordered operator in a cut; see ``ordering``."""

    ready: int
    """Its watermark. It is above the time that it stands at only within a drain."""
    last: tuple[int, int, int | bytes] | None
    """Within a drain, the last event handled of the time after the one that it stands at, if there was one."""
    lows: dict[str, tuple[int, int, int]]
    """By input, of the events that wait: the lowest offset, their number, and the sum of their offsets."""
    late: dict[str, list[tuple[int, int]]] = {}
    """By input, of those that are late: the offset, and the time of the place in which it waits."""


class Idleness(msgspec.Struct, array_like=True, gc=False):
    """The consequences of a source's idleness, see ``watermarks``. Instants are clock readings."""

    since_ms: int
    """Since when the source had nothing to read when it last became idle."""
    late: int = 0
    """Number of events, since the state began, that were late because the source had been idle."""
    woke_ms: int | None = None
    """When the first such event was taken after that; None if there was none."""
    idle_ms: int = 0
    """How long the source had been idle when such an event was last the first one after it."""
    behind_ms: int = 0
    """How far that event was behind the watermark."""


class Cut(msgspec.Struct, array_like=True):
    """The point that a task has reached: with its rows, all that it needs to continue. It uses names."""

    format: int
    app: str
    partition: int
    lineage: bytes
    positions: dict[str, int]
    watermarks: dict[str, int]
    idle: list[str]
    watermark: int
    """The lowest watermark of the operators."""
    now: int
    totals: Totals
    tape: int
    """Number of the next tape record."""
    base: str = ""
    """Id of the snapshot that the task was last started from."""
    operators: dict[str, int] = {}
    """The watermark of each operator."""
    ended_operators: list[str] = []
    identity: bytes = b""
    """The identity of the last commit."""
    ordered: dict[str, Ordered] = {}
    """The ordered operators in which events wait, or that are within a drain."""

    idleness: dict[str, Idleness] = {}
    """By source, if it has ever been idle."""
    refused: dict[str, list[int]] = {}
    """By input, of the records from the first that waits on: the offsets of those that were refused."""
    sent: dict[str, int] = {}
    """By operator, how many records it has sent to the app itself: see ``unit_ids``. "" passes on late events."""
    within_drain: bool = False
    """See ``TapeRecord.within_drain``."""

    @property
    def offsets(self) -> dict[str, int]:
        """By input: the lowest offset that has not been handled."""
        return {
            name: min([offset, *(one.lows[name][0] for one in self.ordered.values() if name in one.lows)])
            for name, offset in self.positions.items()
        }

    @property
    def commit(self) -> int:
        """The number of the last commit, which is that of its tape record."""
        return self.tape - 1


class Skip(msgspec.Struct, array_like=True):
    """A unit that was skipped because its handler failed, or a record that was refused. Later code may decode it: the first run counts.

    ``number``: the record's offset, or how many timers had fired before. ``headers``: the dead letter's.
    """

    input: int
    """The number of the record's input; -1 for a timer."""
    number: int
    headers: list[tuple[str, bytes]]
    operator: int = ALL
    """The ordered operator that skipped the record; ``ALL`` for those that handle it when it is taken; ``REFUSED``."""
    timer: bytes = b""
    """Of a timer, its whole identity: actor, key, time domain, name, and the cause, by which two firings in one commit differ."""


class Environment(msgspec.Struct, array_like=True, frozen=True):
    """What a result may depend on besides the code: floating point sums, time zones, the codec."""

    python: str
    msgspec: str
    timezones: str


class TapeRecord(msgspec.Struct, array_like=True):
    """The causes of one commit of a task."""

    format: int
    number: int
    causes: list[int]
    skips: list[Skip]
    totals: Totals
    watermark: int
    inputs: list[str] | None = None
    """Names of the inputs by number.

    This and the next fields, up to the environment, are set in the first record after each start.
    """
    positions: list[int] | None = None
    now: int | None = None
    version: str | None = None
    environment: Environment | None = None
    base: str | None = None
    """The snapshot that the task was started from: its location and id. The record then has no causes."""
    operators: list[str] | None = None
    """Names of the operators by number; set together with ``inputs``."""
    watermarks: list[int] = []
    """Watermarks of the operators; empty in a record with a base."""
    channels: list[str] = []
    """Names of the channels, whose numbers follow those of the inputs; set together with ``inputs``."""
    identity: bytes = b""
    """The identity of the commit."""
    nonce: bytes = b""
    """What the driver drew at the start of the task; set in the first record after each start."""
    flight: dict[str, tuple[int, int, int]] = {}
    """Of a record with a base that was rebuilt in stages: by ordered operator, what waits in it of the inbox (see ``Ordered.lows``)."""
    within_drain: bool = False
    """Whether a drain was not at its end: timers were due, or events ready, that a later commit has."""
    emitted: int = 0
    """The digest of its outputs, see ``digest_of``; 0 if there are none."""

    def follows(self, identity: bytes) -> bool:
        """Whether the commit with this identity is the one before."""
        return self.identity == identity_of(identity, self.nonce, self.number)


def digest_of(outputs: list[RawOutput], before: int = 0) -> int:
    """A digest (CRC-32) of outputs that are not numbered yet, which follow those with the digest ``before``. It does not depend on
    how they were divided among calls.
    """
    if not outputs:
        return before
    count, data = len(outputs), _encoder.encode(outputs)
    return crc32(memoryview(data)[1 if count < 16 else 3 if count < 1 << 16 else 5 :], before)


def identity_of(before: bytes, nonce: bytes, number: int) -> bytes:
    """The identity of commit ``number``, which follows the commit with the identity ``before``."""
    return blake2b(
        b"%b%b%b" % (number.to_bytes(8, "big"), len(before).to_bytes(1, "big"), before) + nonce,
        digest_size=16,
    ).digest()


def shown_identity(identity: bytes) -> str:
    """The beginning of an identity, for a person."""
    return identity.hex()[:12] or "none"


def environment(timezones: str) -> Environment:
    """The environment of this process. A driver must find the version of the time zone data."""
    python = f"{sys.implementation.name} {sys.version_info.major}.{sys.version_info.minor}"
    return Environment(python, msgspec.__version__, timezones)


_ARGUMENTS = {RUN: 2, CLOCK: 1, IDLE: 2, UPSTREAM: 2, ENDED: 1, OPENED: 1, RISEN: 2, RAISED: 3}


def causes_of(codes: Sequence[int]) -> Iterator[Sequence[int]]:
    """The causes in the flat list of a tape record, each with its code and arguments."""
    at = 0
    while at < len(codes):
        stop = at + 1 + _ARGUMENTS[codes[at]]
        yield codes[at:stop]
        at = stop


_Read = TypeVar("_Read")
_encoder = msgspec.msgpack.Encoder(order="deterministic")
encode = _encoder.encode
_format = msgspec.msgpack.Decoder(list[msgspec.Raw])
_cut = msgspec.msgpack.Decoder(Cut)
_tape = msgspec.msgpack.Decoder(TapeRecord)


def highest(sent: Iterable[Mapping[str, int]]) -> dict[str, int]:
    """``Cut.sent`` of a task that continues several."""
    found: dict[str, int] = {}
    for one in sent:
        found |= {name: max(count, found.get(name, 0)) for name, count in one.items()}
    return found


def decode_cut(data: bytes) -> Cut:
    """Read a cut. Raises FormatError or CorruptStateError."""
    return _decoded("cut", data, _cut)


def decode_tape(data: bytes) -> TapeRecord:
    """Read a tape record. Raises FormatError or CorruptStateError."""
    return _decoded("tape record", data, _tape)


def identity_within(before: bytes, number: int) -> bytes:
    """The identity of a state within commit ``number``, which no commit has."""
    return identity_of(before, b"within", number)


def _decoded(what: str, data: bytes, decoder: msgspec.msgpack.Decoder[_Read]) -> _Read:
    try:
        number = msgspec.msgpack.decode(_format.decode(data)[0], type=int)
        check_format(f"a {what}", number, FORMAT)
        return decoder.decode(data)
    except (msgspec.MsgspecError, IndexError) as error:
        raise CorruptStateError(f"a {what} cannot be read: {error}") from error


_FULL_BYTES: Final = 4 << 20
"""A log may take records of no more than some MiB: on Kafka 32."""


class Tape:
    """Records the causes since the last commit."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.causes: list[int] = []
        self.skips: list[Skip] = []
        self.bytes_of_skips = 0
        """About the size of ``skips``."""
        self._last_run = -1
        self.others = 0
        """Number of causes that are no records, also before the last commit."""

    @property
    def is_full(self) -> bool:
        """Whether its failures take so much that a commit is due, and the texts of further ones are cut."""
        return self.bytes_of_skips > _FULL_BYTES

    def skip(self, skip: Skip) -> None:
        """Record a unit that failed."""
        self.skips.append(skip)
        self.bytes_of_skips += len(skip.timer) + sum(len(value) for _, value in skip.headers)

    def run(self, number: int, count: int) -> None:
        """Advance an input by ``count`` offsets, joined with the run before if it has the same input."""
        if not count:
            return
        causes = self.causes
        if self._last_run >= 0 and causes[self._last_run + 1] == number:
            causes[self._last_run + 2] += count
        else:
            self._last_run = len(causes)
            causes += (RUN, number, count)

    def cause(self, *codes: int) -> None:
        """Record any other cause."""
        self._last_run = -1
        self.others += 1
        self.causes += codes

    def committed(self) -> None:
        """Note that the log has all recorded causes."""
        self.number += 1
        self.causes = []
        self.skips = []
        self.bytes_of_skips = 0
        self._last_run = -1
