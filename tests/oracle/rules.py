"""The semantics of one actor in one task, in plain Python: an oracle for the engine, of which it imports nothing.

It does everything at once and simply: all state in dictionaries, copies instead of undo, a search instead of a queue. It has no
commits, no slices and no restarts, as these may change nothing.

Inputs
 1. The watermark of an input is the highest of its event times, less its disorder, less 1, or what was published if that is higher.
 2. The actor's is the lowest of those of its inputs. Idle inputs and reference data do not count. If none counts, it is the highest
    of theirs. It never goes back.
 3. Records that can be read are taken lowest event time first, in steps of a second, and then by the names of the inputs; those of
    one input in order.
 4. An input is idle after it had nothing to read for its ``idle_after``. What it has to read ends that before anything else is taken.
 5. A record that cannot be decoded is a dead letter, and moves no watermark.

Steps
 6. A step has one cause. A record is handled; then the watermarks move; then what is due happens, in order of time.
 7. Event time goes before processing time. In each, the order is (time, key, values that expire, named timers by name, unnamed).
 8. In the order of arrival, a record is handled when it is taken. It is late if it is at or before the actor's watermark.
 9. In the order of event time, it waits for the watermark in its place: (time, declaration of the input, offset). At one time, events
    go before timers. It is late if it is at or before the watermark of its own input when it is taken: then its place is right after
    that watermark. If its place has been passed already, it is late, and has its turn at once.
10. What handlers see as the watermark is the time up to which everything was handled: in the order of event time, that of what is
    handled, less 1 if it is an event.
11. If all inputs are idle, nothing that was read waits any longer.
12. Late events are handled, dropped, or written to another topic, as the input says. Reference data is handled when it is taken, and is
    never late.

Units
13. A handler that fails leaves nothing but a dead letter. Its event still moves the watermark; its timer is used up.
14. After a handler every value is what its encoding says: no two places share an object, and a float field has a float.
15. An instance without anything but defaults is not stored.
16. ``clear`` leaves nothing of an instance: no value, no entry, no timer of either time. What comes after it in the handler is kept.

Timers and times to live
17. A timer is due at its time, or at once if that has passed. It fires once. Under its name it moves; without a name there is one
    for each instant.
18. The event time of a timer is its time; that of a processing-time timer is the watermark plus 1, or 0 without a watermark.
19. A value lives from its last write or change: from the time of the handler, or from the watermark if a record is behind it. Then
    a field has its default again, and an entry is gone. The default does not expire.
20. The clock that handlers see never goes back. Durations are the steps forward.

The end of input
21. What waits is handled. Then event time rises to the latest event-time timer, again and again until none is left. Timers that are
    declared ``unless_ended`` do not count, nor does processing time, nor a time to live.
"""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterator, Sequence
from copy import deepcopy
from typing import Any, NamedTuple

START_MS = 100_000
"""What the clock says at the beginning."""
NEVER = -(1 << 62)
"""The watermark before any event."""


class Input(NamedTuple):
    """An input of the actor."""

    name: str
    disorder_ms: int = 0
    late: str = "handle"
    idle_after_ms: int = 60_000
    counts: bool = True
    """False: reference data."""


class Field(NamedTuple):
    """A field of the actor: a ``value``, ``map`` or ``list``. ``ttl_of``: "event" or "processing"."""

    name: str
    kind: str
    default: Any = None
    ttl_ms: int | None = None
    ttl_of: str = "event"


class Record(NamedTuple):
    """A record of an input. ``program`` and ``number`` are the handler's business; without a key it cannot be decoded."""

    input: str
    key: str | None
    at: int
    program: int = 0
    number: int = 0


class Actor(NamedTuple):
    """An actor: ``handle(instance, context, record or None)`` is all of its handlers."""

    inputs: tuple[Input, ...]
    ordered: bool
    fields: tuple[Field, ...]
    unless_ended: str
    handle: Callable[[Any, Any, Record | None], None]


class Entries(dict[Any, Any]):
    """A map of an instance, in the order of its keys."""

    def __init__(self) -> None:
        self.written = set[Any]()

    def __setitem__(self, key: Any, value: Any) -> None:
        super().__setitem__(key, value)
        self.written.add(key)

    def __deepcopy__(self, _memo: object) -> Entries:
        found = Entries()
        for key, value in dict.items(self):
            dict.__setitem__(found, key, deepcopy(value))
        return found

    def items(self, start: Any = None, stop: Any = None) -> Iterator[tuple[Any, Any]]:  # type: ignore[override]  # pyright: ignore[reportIncompatibleMethodOverride]  # that of MapState
        """The entries from ``start`` up to ``stop``."""
        for key in sorted(self):
            if (start is None or key >= start) and (stop is None or key < stop):
                yield key, self[key]


Timer = tuple[str, str | int]
"""The time domain, and the name of the timer, or its time without a name."""


class Instance:
    """The state of a key: its values, ``_timers``, and when values expire, by field and key of the entry."""

    def __init__(self, fields: Sequence[Field]) -> None:
        self._written = set[str]()
        self.clear(fields)

    def clear(self, fields: Sequence[Field]) -> None:
        """Rule 16. Every field has been written then."""
        self._timers = dict[Timer, int]()
        self._expires = dict[tuple[str, Any], int]()
        for one in fields:
            empty: Any = {"map": Entries, "list": deque}.get(one.kind)
            setattr(self, one.name, empty() if empty else deepcopy(one.default))

    def __setattr__(self, name: str, value: Any) -> None:
        super().__setattr__(name, value)
        if not name.startswith("_"):
            self._written.add(name)


class Due(NamedTuple):
    """A timer or an expiry, in the order of rule 7."""

    at: int
    key_bytes: bytes
    rank: int
    name: str
    key: str
    what: Any


EXPIRES, NAMED, UNNAMED = range(3)


class Context:
    """What a handler gets."""

    def __init__(
        self, oracle: Oracle, key: str, event_time: int, *, is_late: bool = False, name: str | None = None
    ) -> None:
        self.key, self.event_time, self.is_late, self.timer_name = key, event_time, is_late, name
        self.watermark, self.now = oracle.reached, oracle.now
        self._oracle = oracle

    @property
    def _instance(self) -> Instance:
        return self._oracle.instances[self.key]

    def emit(self, _to: Any, event: Any, *, at: int | None = None) -> None:
        """Rule 18: an output has the time of its handler, or its own."""
        self._oracle.outputs.append((event.key, event.text, self.event_time if at is None else at))

    def set_timer(self, time: int, name: str | None = None) -> None:
        """Rule 17."""
        self._instance._timers["event", time if name is None else name] = time

    def set_processing_timer(self, time: int, name: str | None = None) -> None:
        """Rule 17."""
        self._instance._timers["processing", time if name is None else name] = time

    def cancel_timer(self, timer: str | int) -> None:
        """Rule 17."""
        self._instance._timers.pop(("event", timer), None)

    def cancel_processing_timer(self, timer: str | int) -> None:
        """Rule 17."""
        self._instance._timers.pop(("processing", timer), None)

    def clear(self) -> None:
        """Rule 16."""
        self._instance.clear(self._oracle.actor.fields)


class Oracle:
    """One actor in one task. Give it the causes one by one."""

    def __init__(self, actor: Actor) -> None:
        self.actor = actor
        self.inputs = {one.name: one for one in actor.inputs}
        self.rank = {one.name: rank for rank, one in enumerate(actor.inputs)}
        self.now = self.clock = START_MS
        self.elapsed = 0
        self.marks = {one.name: NEVER for one in actor.inputs}
        self.offsets = Counter[str]()
        self.idle = set[str]()
        self.quiet_since = {one.name: 0 for one in actor.inputs}
        self.ready = self.reached = NEVER
        """How far the actor may go, and how far it has handled everything (rule 10)."""
        self.waiting: list[tuple[int, int, int, Record]] = []
        self.instances: dict[str, Instance] = {}
        self.outputs: list[tuple[str, str, int]] = []
        self.routed: list[tuple[str, int, int]] = []
        self.letters: list[tuple[str, str, str]] = []
        """Topic and key of a record that could not be decoded or handled; key and name of a timer."""
        self.late = 0
        self.late_after_idle = Counter[str]()

    # --- causes

    def send(self, records: Sequence[Record]) -> None:
        """Records that are all there to be read (rules 3 to 5)."""
        heads = defaultdict[str, deque[Record]](deque)
        for one in records:
            self.idle.discard(one.input)
            self.quiet_since[one.input] = self.elapsed
            if one.key is None:
                self.letters.append((one.input, "", ""))
            else:
                heads[one.input].append(one)
        while left := sorted((some[0].at // 1_000, name) for name, some in heads.items() if some):
            self._take(heads[left[0][1]].popleft())

    def send_in_stages(self, records: Sequence[Record], stamp_ms: int) -> None:
        """The same in a rebuild in stages: reference data comes before the first event that is not earlier than its timestamp, and an
        input without any record counts for nothing.
        """
        self.idle |= self.inputs.keys() - {one.input for one in records}
        reference = [one for one in records if one.key is not None and not self.inputs[one.input].counts]
        reference.sort(key=lambda one: one.input)
        heads = defaultdict[str, deque[Record]](deque)
        for one in records:
            if one.key is None:
                self.letters.append((one.input, "", ""))
            elif self.inputs[one.input].counts:
                heads[one.input].append(one)
        while left := sorted((some[0].at // 1_000, name) for name, some in heads.items() if some):
            if heads[left[0][1]][0].at >= stamp_ms:
                while reference:
                    self._take(reference.pop(0))
            self._take(heads[left[0][1]].popleft())
        for one in reference:
            self._take(one)

    def wait(self, by_ms: int) -> None:
        """The clock advances, and inputs become idle (rule 4)."""
        self.clock += by_ms
        self.now = max(self.now, self.clock)  # rule 20
        self.elapsed += max(0, by_ms)
        self._settle()
        for name in sorted(self.inputs):
            one = self.inputs[name]
            if one.counts and self.elapsed - self.quiet_since[name] >= one.idle_after_ms:
                self.fall_idle(name)

    def fall_idle(self, name: str) -> None:
        """An input is idle."""
        self.idle.add(name)
        self._advance()

    def publish(self, name: str, mark_ms: int) -> None:
        """The producers of an input publish a watermark (rule 1)."""
        self.idle.discard(name)
        self.marks[name] = max(self.marks[name], mark_ms)
        self._advance()

    def restart(self) -> None:
        """The time without a record begins again."""
        self.quiet_since = dict.fromkeys(self.inputs, self.elapsed)

    def end(self) -> None:
        """Rule 21."""
        self.idle = set(self.inputs)
        self._advance()
        while latest := [
            at
            for one in self.instances.values()
            for (domain, name), at in one._timers.items()
            if domain == "event" and str(name).partition(":")[0] != self.actor.unless_ended
        ]:
            self.ready = max(self.ready, *latest)
            self._settle()

    # --- records

    def _take(self, record: Record) -> None:
        one, own_ms = self.inputs[record.input], self.marks[record.input]
        self.offsets[record.input] += 1
        place_ms = max(record.at, own_ms + 1)  # rule 9
        if self.actor.ordered and one.counts and place_ms > self.ready:
            self.waiting.append((place_ms, self.rank[record.input], self.offsets[record.input], record))
        else:
            is_late = one.counts and record.at <= self.ready
            self.late_after_idle[record.input] += is_late and record.at > own_ms
            self._handle(record, is_late=is_late)
        if one.counts:
            self.marks[record.input] = max(own_ms, record.at - one.disorder_ms - 1)  # rule 1
        self._advance()

    def _handle(self, record: Record, *, is_late: bool) -> None:
        late = self.inputs[record.input].late
        self.late += is_late
        assert record.key is not None
        if is_late and late == "route":
            self.routed.append((record.key, record.number, record.at))
        if not is_late or late == "handle":
            base_ms = max(record.at, self.reached)  # rule 19
            self._unit(base_ms, Context(self, record.key, record.at, is_late=is_late), record)

    def _advance(self) -> None:
        """Rules 2 and 11."""
        counting = [
            mark for name, mark in self.marks.items() if self.inputs[name].counts and name not in self.idle
        ]
        mark = (
            min(counting)
            if counting
            else max(self.marks[name] for name, one in self.inputs.items() if one.counts)
        )
        if not counting:
            mark = max([mark, *(place_ms for place_ms, *_ in self.waiting)])
        self.ready = max(self.ready, mark)
        self._settle()

    # --- what is due

    def _settle(self) -> None:
        """Let everything happen that is due, in its order (rules 6, 7, 9 and 10)."""
        while True:
            if not self.actor.ordered:
                self.reached = self.ready
            self.waiting.sort()
            event_ms = self.waiting[0][0] if self.waiting else None
            due = self._due("event", self.ready)
            if event_ms is not None and event_ms <= self.ready and (due is None or event_ms <= due.at):
                self.reached = max(self.reached, event_ms - 1)
                record = self.waiting.pop(0)[-1]
                self._handle(record, is_late=event_ms != record.at)
                continue
            if due is None:
                self.reached = self.ready
                due = self._due("processing", self.now)
            else:
                self.reached = max(self.reached, due.at)
            if due is None:
                return
            self._happen(due)

    def _due(self, domain: str, until_ms: int) -> Due | None:
        """The next timer or expiry (rule 7)."""
        ttl_of = {one.name: one.ttl_of for one in self.actor.fields}
        found = list[Due]()
        for key, one in self.instances.items():
            for (of, name), at in one._timers.items():
                rank = NAMED if isinstance(name, str) else UNNAMED
                if of == domain:
                    found.append(Due(at, key.encode(), rank, str(name), key, (of, name)))
            for what, at in one._expires.items():
                if ttl_of[what[0]] == domain:
                    found.append(Due(at, key.encode(), EXPIRES, repr(what), key, what))
        first = min(found, key=lambda one: one[:4], default=None)
        return None if first is None or first.at > until_ms else first

    def _happen(self, due: Due) -> None:
        instance = self.instances[due.key]
        domain, name = due.what
        if due.rank == EXPIRES:
            self._expire(instance, *due.what)
            self._forget_if_bare(due.key)
            return
        del instance._timers[due.what]
        if domain == "event":
            event_time = due.at
        else:
            event_time = self.reached + 1 if self.reached > NEVER else 0  # rule 18
        context = Context(self, due.key, event_time, name=name if due.rank == NAMED else None)
        self._unit(event_time, context)

    def _expire(self, instance: Instance, name: str, entry: Any) -> None:
        (declared,) = [one for one in self.actor.fields if one.name == name]
        if declared.kind == "map":
            del getattr(instance, name)[entry]
        else:
            setattr(instance, name, deepcopy(declared.default))
        del instance._expires[name, entry]

    def _unit(self, base_ms: int, context: Context, record: Record | None = None) -> None:
        """One handler (rule 13)."""
        key, before, said = context.key, deepcopy(self.instances.get(context.key)), len(self.outputs)
        instance = self.instances.setdefault(key, Instance(self.actor.fields))
        instance._written.clear()
        try:
            self.actor.handle(instance, context, record)
        except ValueError:
            del self.outputs[said:], self.instances[key]
            if before is not None:
                self.instances[key] = before
            timer = context.timer_name or "unnamed"
            self.letters.append(("", key, timer) if record is None else (record.input, key, ""))
        else:
            self._seal(instance, before or Instance(self.actor.fields), base_ms)
        self._forget_if_bare(key)

    def _seal(self, instance: Instance, before: Instance, base_ms: int) -> None:
        """Rules 14 and 19."""
        written, expires = set(instance._written), instance._expires
        for one in self.actor.fields:
            value, old = getattr(instance, one.name), getattr(before, one.name)
            until_ms = (base_ms if one.ttl_of == "event" else self.now) + (one.ttl_ms or 0)
            if one.kind == "map":
                for key in value if one.ttl_ms else ():
                    if key in value.written or value[key] != old.get(key):
                        expires[one.name, key] = until_ms
                for name, key in list(expires):
                    if name == one.name and key not in value:
                        del expires[name, key]
            elif one.ttl_ms and (one.name in written or value != old):
                expires.pop((one.name, None), None)
                if value != one.default:
                    expires[one.name, None] = until_ms
            setattr(instance, one.name, _encoded(value, one))

    def _forget_if_bare(self, key: str) -> None:
        """Rule 15."""
        one = self.instances.get(key)
        if one is not None and not one._timers:
            values = [(getattr(one, field.name), field) for field in self.actor.fields]
            if all(value == field.default if field.kind == "value" else not value for value, field in values):
                del self.instances[key]


def _encoded(value: Any, field: Field) -> Any:
    """Rule 14."""
    if field.kind == "list":
        return deque(map(deepcopy, value))
    return float(value) if isinstance(field.default, float) else deepcopy(value)
