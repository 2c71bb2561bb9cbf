"""The first events from which two versions part: both run again at once, of the keys that differ alone.

Each side makes a trail: for each key, the causes that had an effect, in their order, each with a digest of the key's
rows after it (a sum over the rows, so that a call costs what it may have changed) and of what its calls have emitted.
Of the outputs of a key, the causes are those of this key that emitted them; the versions part before that if they do in
the state of an actor with this key, such as a window that is open. State is compared as each version reads it.

Of two causes, that comes first which was handled first, and not the one with the lower event time. Both sides have the
same records from outside in the same order, but each its own timers and messages. So the *order* of a cause is the
number of records from outside that its key has had (all keys, if both run all as one), and what came after the last of
them, counted.

A message that is delivered without a record, as in canonical order, has no offset: its running number depends on what
other keys were sent.

A sends its steps to B through a pipe as it goes. B compares each of its own with that of A, and waits for it; steps
of A that come first wait in B. So neither has to wait for a step that the other makes only later, even if one runs the
partitions one by one and the other all as one. When all keys have parted, B closes the pipe, which ends A's run. When
those of one partition have, B says so by a file, for which A looks with each frame: its run of this partition ends.
"""

from __future__ import annotations

import errno
import os
from collections import Counter, deque
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager, suppress
from hashlib import blake2b
from operator import attrgetter
from pathlib import Path
from typing import Any, BinaryIO, Literal, TypeAlias

import msgspec

from tailrace.core.declare.plan import ActorPlan, Plan
from tailrace.core.engine.as_read import ReadAs
from tailrace.core.engine.delivery import BEYOND, own_inputs
from tailrace.core.engine.instance_cache import InstanceCache
from tailrace.core.engine.observer import Call, Moment, Observer, changed_now, key_now
from tailrace.core.engine.units import TIMER
from tailrace.core.engine.value_rows import KeyRows
from tailrace.core.errors import TailraceError
from tailrace.core.records import RawOutput
from tailrace.core.values.keys import KeyCodec
from tailrace.core.values.partitioner import partition_of

Fields: TypeAlias = dict[str, list[str] | None]
"""By actor that both versions have, the fields that both declare; None for an actor with one schema in both."""


class Item(msgspec.Struct, frozen=True):
    """What differs: a key of an actor, or the outputs of a key in a topic."""

    kind: Literal["state", "output"]
    name: str
    """Of the actor or the topic."""
    key: bytes


class Cause(msgspec.Struct, frozen=True):
    """Why a handler was called: a record, or a timer (then ``topic`` is its actor). ``offset`` is None for a timer, and for
    a message that is not recorded.
    """

    topic: str
    partition: int
    offset: int | None
    timer: str | None
    time_ms: int
    """Its event time."""


Order: TypeAlias = tuple[int, int]
"""Of a cause among those of its key: the number of records from outside, and that of the cause after the last of them."""


class Step(msgspec.Struct, frozen=True, array_like=True):
    """What a key was after a cause, and all that was sent."""

    cause: Cause
    state: int
    sent: bytes
    order: Order

    def is_like(self, other: Step | None) -> bool:
        """Whether it is the same step of the other side. Its order may be another, as it counts what has had no effect."""
        return other is not None and (self.cause, self.state, self.sent) == (
            other.cause,
            other.state,
            other.sent,
        )

    @property
    def place(self) -> tuple[Order, int]:
        """The lowest is the first."""
        return self.order, self.cause.time_ms


First: TypeAlias = tuple[Item, Cause]
_Frame: TypeAlias = list[tuple[Item, Step | None]]
"""Steps of A. None: the item has no more."""

_AT_ONCE = 500
_PIPE = "pipe"
_NOTHING_YET: tuple[Order, Cause | None] = (0, 0), None
_FRAME = msgspec.msgpack.Decoder(_Frame)


class AllParted(BaseException):
    """Ends a run: nothing is left to find."""


class Sent:
    """The steps of A, on their way to B."""

    def __init__(self, pipe: BinaryIO, folder: Path) -> None:
        self.pipe, self._folder, self._steps = pipe, folder, list[tuple[Item, Step | None]]()
        self.is_over = False
        """Whether B has all that it wants."""

    def add(self, item: Item, step: Step | None, partition: int | None) -> bool:
        """Send a step. Raises AllParted: B needs no more, of this partition at least. Returns whether the item has parted."""
        self._steps.append((item, step))
        if len(self._steps) >= _AT_ONCE:
            self.flush()
            if self.is_over or (partition is not None and (self._folder / f"parted-{partition}").exists()):
                raise AllParted
        return False

    def flush(self) -> None:
        """Send what waits."""
        frame, self._steps = msgspec.msgpack.encode(self._steps), []
        try:
            self.pipe.write(len(frame).to_bytes(4) + frame)
            self.pipe.flush()
        except BrokenPipeError:
            self.is_over = True


class Compared:
    """The steps of B, compared with those of A. ``wanted``: what is searched, on ``partitions`` partitions."""

    def __init__(self, pipe: BinaryIO, folder: Path, wanted: Sequence[Item], partitions: int) -> None:
        self._pipe, self._folder, self._partitions = pipe, folder, partitions
        self._wanted = {*wanted}
        self._left = Counter(self._partition(one) for one in self._wanted)
        self._done = set[int]()
        """The partitions of which all have parted."""
        self._waiting: dict[Item, deque[Step | None]] = {}
        self.parted: dict[Item, Step] = {}
        """By item, the first step that the sides do not share."""
        self.is_over = False
        """Whether all have parted."""

    def add(self, item: Item, step: Step | None, partition: int | None) -> bool:
        """Compare a step, or the end, with that of A. Returns whether the item has parted. Raises AllParted."""
        if item in self.parted or (self._done and self._partition(item) in self._done):
            return True
        other = self._next(item)
        if step is None:
            parted = other
        elif step.is_like(other):
            return False
        else:
            parted = step if other is None else min(step, other, key=attrgetter("place"))
        if parted is None:
            return False
        self.parted[item] = parted
        self._waiting.pop(item, None)
        if item in self._wanted:
            self._count(self._partition(item), partition)
        return True

    def flush(self) -> None:
        """Nothing waits: each step is compared at once."""

    def _count(self, number: int, partition: int | None) -> None:
        self._left[number] -= 1
        if not self._left[number]:
            self._done.add(number)
            (self._folder / f"parted-{number}").touch()
        self.is_over = not self._left.total()
        if self.is_over or (partition is not None and not self._left[number]):
            raise AllParted

    def _next(self, item: Item) -> Step | None:
        waiting = self._waiting.setdefault(item, deque())
        while not waiting:
            size = int.from_bytes(self._pipe.read(4))
            if not size:  # A has ended, or failed
                return None
            for one, step in _FRAME.decode(self._pipe.read(size)):
                if one not in self.parted:
                    self._waiting.setdefault(one, deque()).append(step)
        return waiting.popleft()

    def _partition(self, item: Item) -> int:
        return partition_of(item.key, self._partitions)


def open_pipe(folder: Path) -> tuple[int, int]:
    """Create the pipe of both sides in ``folder``. Returns the ends to read and to write, which the caller closes as soon as the
    side has ended that reads, and writes: so a side that has failed, or was killed, ends the other.
    """
    os.mkfifo(folder / _PIPE)
    reading = os.open(folder / _PIPE, os.O_RDONLY | os.O_NONBLOCK)
    return reading, os.open(folder / _PIPE, os.O_WRONLY)


@contextmanager
def sent_to(folder: Path) -> Generator[Sent]:
    """The end of A."""
    pipe = _opened(folder, os.O_WRONLY)
    steps = Sent(pipe or Path(os.devnull).open("wb"), folder)  # noqa: SIM115  # closed below
    steps.is_over = pipe is None
    try:
        yield steps
        steps.flush()
    finally:
        with suppress(BrokenPipeError):
            steps.pipe.close()


@contextmanager
def compared_in(folder: Path, wanted: Sequence[Item], partitions: int) -> Generator[Compared]:
    """The end of B."""
    pipe = _opened(folder, os.O_RDONLY)
    assert pipe is not None  # only a writer needs the other side
    with pipe:
        yield Compared(pipe, folder, wanted, partitions)


def _opened(folder: Path, how: int) -> BinaryIO | None:
    """An end of the pipe, without waiting for the other; None if the reader has ended already."""
    try:
        number = os.open(folder / _PIPE, how | os.O_NONBLOCK)
    except OSError as error:
        if error.errno != errno.ENXIO:
            raise
        return None
    os.set_blocking(number, True)
    return os.fdopen(number, "wb" if how == os.O_WRONLY else "rb")


class Tracer(Observer):
    """The observer of a run of one partition, or of all of them together (``partition`` is None then).

    ``every``: both sides run all keys as one, so that calls of any key count for the outputs of another.
    """

    def __init__(
        self,
        plan: Plan,
        items: Sequence[Item],
        partition: int | None,
        both: Fields,
        side: Sent | Compared,
        *,
        every: bool,
    ) -> None:
        self._plan, self._partition, self._side, self._every = plan, partition, side, every
        emitted = {one.key for one in items if one.kind == "output"}
        self._open = {*items, *(Item("state", actor, key) for actor in both for key in emitted)}
        self._last: dict[Item, Step] = {}
        """The last step of each item, which is not complete: the next call may have the same cause."""
        self._state: dict[Item, int] = {}
        """The state after the last step that is complete."""
        self._own = frozenset(own_inputs(plan))
        self._at: dict[Any, tuple[Order, Cause | None]] = {}
        """By key, or by None for all together, the last cause with its order; None: a record whose call has not come yet."""
        self._content = {one.name: Contents(one, both.get(one.name)) for one in plan.actors}
        self._codecs = {one.name: one.key_codec for one in plan.topics.values()}

    def meets(self, key: Any, number: int, /) -> None:
        """See ``Observer``."""
        if self._plan.inputs[number].name not in self._own:
            counted = self._counted(key)
            (records, _), _ = self._at.get(counted, _NOTHING_YET)
            self._at[counted] = (records + 1, 0), None

    def returned(self, call: Call, outputs: Sequence[RawOutput], /) -> None:
        """See ``Observer``."""
        actor, key = call.actor, call.moment.key
        cause = self._cause(call)
        order = self._ordered(key, cause)
        if (
            actor is not None
            and (item := Item("state", actor.name, actor.key_codec.encode(key))) in self._open
        ):
            self._take(item, order, cause, self._content[actor.name].now(call.cells, key), outputs)
        sent: dict[Item, list[RawOutput]] = {}
        for one in outputs:
            if one[1] is not None:
                sent.setdefault(Item("output", one[0], one[1]), []).append(one)
        for item, some in sent.items():
            if item in self._open and (self._every or self._is_of(item, key)):
                self._take(item, order, cause, 0, some)

    def expired(self, moment: Moment, actor: ActorPlan, what: bytes, /) -> None:
        """See ``Observer``."""
        self._content[actor.name].expired(moment.key, what)

    def end(self) -> None:
        """The run has ended: the last steps are complete, and no others follow."""
        for item in sorted(self._open, key=lambda one: (one.kind, one.name, one.key)):
            if item in self._last:
                self._complete(item)
            if item in self._open:
                self._side.add(item, None, self._partition)
        self._side.flush()

    def _counted(self, key: Any) -> Any:
        """With what the causes of a key are counted."""
        return None if self._every else key

    def _ordered(self, key: Any, cause: Cause) -> Order:
        counted = self._counted(key)
        (records, after), last = self._at.get(counted, _NOTHING_YET)
        if cause != last:
            is_record = cause.offset is not None and cause.topic not in self._own
            self._at[counted] = (records, 0 if is_record else after + 1), cause
        return self._at[counted][0]

    def _take(self, item: Item, order: Order, cause: Cause, content: int, sent: Sequence[RawOutput]) -> None:
        """Add a step; calls of one cause are one step."""
        before, digest = self._last.get(item), b""
        if before is not None and before.cause == cause:
            digest = before.sent
        elif before is not None:
            self._complete(item)
        for one in sent:
            digest = _hash((digest, *one[:4]))
        self._last[item] = Step(cause, content, digest, order)

    def _complete(self, item: Item) -> None:
        step = self._last.pop(item)
        if step.sent or step.state != self._state.get(item, 0):
            self._state[item] = step.state
            if self._side.add(item, step, self._partition):
                self._open.discard(item)

    def _is_of(self, item: Item, key: Any) -> bool:
        """Whether an output's key is that of the call."""
        try:
            return self._codecs[item.name].encode(key) == item.key
        except (KeyError, TailraceError, TypeError, ValueError):
            return False

    def _cause(self, call: Call) -> Cause:
        moment, actor = call.moment, call.actor
        number = self._partition
        if number is None:
            key = b"" if moment.record is None else moment.record.key or b""
            number = partition_of(
                key if actor is None else actor.key_codec.encode(moment.key), self._plan.partitions
            )
        if moment.input == TIMER:
            return Cause("" if actor is None else actor.name, number, None, moment.timer or "", moment.at)
        name = self._plan.inputs[moment.input].name
        offset = None if moment.at >= BEYOND and name in self._own else moment.at
        return Cause(name, number, offset, None, moment.event_time)


def firsts(wanted: Iterable[Item], parted: Mapping[Item, Step]) -> list[First]:
    """The first event of each that has parted."""
    by_key: dict[bytes, list[Step]] = {}
    for one, step in parted.items():
        if one.kind == "state":
            by_key.setdefault(one.key, []).append(step)
    found: list[First] = []
    for item in wanted:
        steps = [parted[item]] if item in parted else []
        steps += by_key.get(item.key, ()) if item.kind == "output" else ()
        if steps:
            found.append((item, min(steps, key=attrgetter("place")).cause))
    return found


class Contents:
    """Digests of the keys of an actor, from one call to the next.

    They are of what can be compared with the other version's rows: values without their defaults. ``both``: the fields that both
    versions have; None: their rows have one form.
    """

    def __init__(self, actor: ActorPlan, both: list[str] | None) -> None:
        self._actor, self._known = actor, dict[Any, tuple[int, dict[bytes, int], list[bytes]]]()
        reader, common = ReadAs(actor.schema), {*(both or ())}
        self._read: Callable[[KeyRows], KeyRows] = (
            (lambda found: found) if both is None else lambda found: reader.read(found, common)
        )

    def now(self, cells: InstanceCache, key: Any) -> int:
        """The digest of a key after a call."""
        changed = changed_now(cells, self._actor, key)
        if changed is None or key not in self._known:
            total, known, timers = 0, dict[bytes, int](), list[bytes]()
            found = self._read(key_now(cells, self._actor, key))
        else:
            total, known, timers = self._known[key]
            found = self._read({rest: value for rest, value in changed.items() if value is not None})
            for rest in (*timers, *changed):
                if rest not in found:
                    total -= known.pop(rest, 0)
        for rest, value in found.items():
            number = int.from_bytes(blake2b(b"%d %b%b" % (len(rest), rest, value), digest_size=8).digest())
            total += number - known.get(rest, 0)
            known[rest] = number
        self._known[key] = total, known, [rest for rest in found if rest[:1] == b"t"]
        return total % (1 << 63)

    def expired(self, key: Any, what: bytes) -> None:
        """The entry with the row ``what`` has expired; or a field, which the next call shows."""
        if key in self._known:
            total, known, timers = self._known[key]
            self._known[key] = total - known.pop(what, 0), known, timers


def watched_keys(plan: Plan, items: Sequence[Item]) -> frozenset[Any]:
    """The keys to run, as handlers know them; without those of actors and topics that this version does not have."""
    codecs: Mapping[tuple[str, str], KeyCodec] = {
        **{("state", one.name): one.key_codec for one in plan.actors},
        **{("output", one.name): one.key_codec for one in plan.topics.values()},
    }
    found: set[Any] = set()
    for one in items:
        codec = codecs.get((one.kind, one.name))
        try:
            found |= set() if codec is None else {codec.decode(one.key)}
        except (TailraceError, ValueError):
            continue
    return frozenset(found)


def _hash(content: object) -> bytes:
    return blake2b(msgspec.msgpack.encode(content), digest_size=16).digest()
