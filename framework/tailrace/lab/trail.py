"""The first events from which two versions part: both run again, of the keys that differ alone.

Each side keeps a trail: for each key, the causes of its calls in their order, each with a digest of the key's
rows after it (a sum over the rows, so that a call costs what it may have changed) and of what the calls have emitted. Of an output's key, the causes are those that emitted it; the
versions part before that if they do in the state of an actor with this key, such as a window that is open. The
first side writes its trail. The second compares its own with that as it goes, and stops when every key has
parted. State is compared as each version reads it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from hashlib import blake2b
from operator import attrgetter
from typing import Any, Literal, TypeAlias

import msgspec

from tailrace.core.declare.plan import ActorPlan, Plan
from tailrace.core.engine.as_read import ReadAs
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
    """Why a handler was called: a record, or a timer (then ``topic`` is its actor, ``offset`` is None)."""

    topic: str
    partition: int
    offset: int | None
    timer: str | None
    time_ms: int
    """Its event time."""


class Step(msgspec.Struct, frozen=True, array_like=True):
    """What a key was after a cause, and all that was sent."""

    cause: Cause
    state: bytes
    sent: bytes


Trail: TypeAlias = dict[Item, list[Step]]
First: TypeAlias = tuple[Item, Cause]


class AllParted(BaseException):
    """Ends a run: nothing is left to find."""


class Tracer(Observer):
    """The observer of a run of one partition, or of all of them together (``partition`` is None then).

    ``other``: the trail of the other side, to compare with.
    """

    def __init__(
        self, plan: Plan, items: Sequence[Item], partition: int | None, both: Fields, other: Trail | None
    ) -> None:
        self._plan, self._partition, self._other = plan, partition, other
        self._wanted = items
        emitted = {one.key for one in items if one.kind == "output"}
        self._open = {*items, *(Item("state", actor, key) for actor in both for key in emitted)}
        self.trail: Trail = {one: [] for one in self._open}
        self._parted: dict[Item, Cause] = {}
        self._content = {one.name: Contents(one, both.get(one.name)) for one in plan.actors}

    def returned(self, call: Call, outputs: Sequence[RawOutput], /) -> None:
        """See ``Observer``."""
        actor, key = call.actor, call.moment.key
        if (
            actor is not None
            and (item := Item("state", actor.name, actor.key_codec.encode(key))) in self._open
        ):
            self._take(item, call, self._content[actor.name].now(call.cells, key), outputs)
        sent_to: dict[Item, list[RawOutput]] = {}
        for one in outputs:
            if one[1] is not None:
                sent_to.setdefault(Item("output", one[0], one[1]), []).append(one)
        for item, sent in sent_to.items():
            if item in self._open:
                self._take(item, call, None, sent)

    def expired(self, moment: Moment, actor: ActorPlan, what: bytes, /) -> None:
        """See ``Observer``."""
        self._content[actor.name].expired(moment.key, what)

    def firsts(self) -> list[First]:
        """The first event of each key that has parted."""
        by_key: dict[bytes, list[Cause]] = {}
        for one, cause in self._parted.items():
            if one.kind == "state":
                by_key.setdefault(one.key, []).append(cause)
        found: list[First] = []
        for item in self._wanted:
            causes = [self._parted[item]] if item in self._parted else []
            causes += by_key.get(item.key, ()) if item.kind == "output" else ()
            if causes:
                found.append((item, min(causes, key=attrgetter("time_ms"))))
        return found

    def end(self) -> None:
        """Compare the last steps, and the first that only the other side has."""
        for item in [*self._open]:
            count = len(self.trail[item])
            for at in range(max(count - 1, 0), count + 1):
                self._compare(item, at)

    def _take(self, item: Item, call: Call, content: object, sent: Sequence[RawOutput]) -> None:
        """Add a step; calls of one cause are one step."""
        cause, steps, digest = self._cause(item, call), self.trail[item], b""
        if steps and steps[-1].cause == cause:
            digest = steps.pop().sent
        elif steps:
            self._compare(item, len(steps) - 1)
        for one in sent:
            digest = _hash((digest, *one[:4]))
        steps.append(Step(cause, _hash(content), digest))

    def _compare(self, item: Item, at: int) -> None:
        """Compare a step that is complete with that of the other side."""
        if self._other is None or item not in self._open:
            return
        one, other = (
            some[at] if at < len(some) else None for some in (self.trail[item], self._other.get(item, ()))
        )
        if one != other:
            self._open.discard(item)
            self._parted[item] = min(
                (each.cause for each in (other, one) if each is not None), key=attrgetter("time_ms")
            )
            if self._open.isdisjoint(self._wanted):
                raise AllParted

    def _cause(self, item: Item, call: Call) -> Cause:
        moment, actor = call.moment, call.actor
        number = self._partition
        if number is None:
            key = item.key if actor is None else actor.key_codec.encode(moment.key)
            number = partition_of(key, self._plan.partitions)
        if moment.input == TIMER:
            return Cause("" if actor is None else actor.name, number, None, moment.timer or "", moment.at)
        return Cause(self._plan.inputs[moment.input].name, number, moment.at, None, moment.event_time)


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
