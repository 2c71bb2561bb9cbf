"""A range of keys: a task that takes every record of its partition, and calls handlers for some of its keys only.

Theory. Keys of one task know nothing of each other within a stage (see ``stages``): what they send to one another is read by a later
one. So the work can be divided by a hash of the key. Each range takes and decodes all records. So watermarks, lateness, the clock,
what waits and the cut are those of the whole, and only counts of handlers differ.

What the ranges emit is merged into the order of the whole, and numbered then. Each unit has a *turn*, and turns are compared as tuples::

    a record, or one that is refused    (n,)
    a timer                             (n, taken, causes, domain, time, place of the actor, key, name)

``n`` counts the records that had their turn, ``taken`` those that were read, and ``causes`` the other causes of steps: in all ranges
the same ones. Between two of these only timers fire, and ``firing`` takes the lowest that is due. The lowest of all keys is the lowest of the lowest
of each range, also if handlers have set timers in the past. So always the range with the lowest turn is next.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise, repeat
from typing import Any, Final, TypeAlias
from zlib import crc32

from tailrace.core.declare.plan import Route
from tailrace.core.engine.actor_table import Table
from tailrace.core.engine.input_decoder import BoundRoute
from tailrace.core.engine.units import Units
from tailrace.core.engine.waiting_runs import Waiter
from tailrace.core.errors import BadRecordError
from tailrace.core.records import Head, InputRecord, Refused

Turn: TypeAlias = tuple[Any, ...]
_KNOWN: Final = 1 << 18
"""Most keys of which it is remembered whether they belong to a range."""


class KeyRange:
    """Range ``number`` of ``of``, and the turns of what its task has emitted."""

    def __init__(self, number: int, of: int) -> None:
        self.number, self.of = number, of
        self._begun: list[tuple[int, Turn]] = []

    def has(self, key: bytes) -> bool:
        """Whether a key belongs to the range, by its bytes."""
        return crc32(key) % self.of == self.number

    def begins(self, outputs: int, turn: Turn) -> None:
        """A unit begins, after so many outputs."""
        begun = self._begun
        if begun and begun[-1][0] == outputs:
            begun.pop()
        begun.append((outputs, turn))

    def turns(self, outputs: int) -> list[Turn]:
        """The turns of the outputs, of which there are so many, since the last call."""
        found = list[Turn]()
        for (start, turn), (stop, _) in pairwise([*self._begun, (outputs, ())]):
            found += repeat(turn, stop - start)
        self._begun.clear()
        return found


class RangeUnits(Units):
    """The units of the keys of a range."""

    def __init__(self, range: KeyRange, *of_units: Any) -> None:
        super().__init__(*of_units)
        self.range, self.ranged = range, self
        self._known: dict[Any, bool] = {}
        self._handled = 0
        self._last: tuple[int, int] | None = None
        self._is_own = False

    def _begins(self, number: int, offset: int, to: Sequence[BoundRoute], key: Any, mark: int) -> bool:
        """Count a record that has its turn. Returns whether the range has its key."""
        self._handled += 1
        self._last = number, offset
        found = self._known.get(key)
        self._is_own = is_own = self._found(number, to, key) if found is None else found
        if is_own:
            self.range.begins(mark, (self._handled,))
        return is_own

    def taken(
        self, number: int, offset: int, to: Sequence[BoundRoute], key: Any, mark: int
    ) -> Sequence[BoundRoute]:
        """The routes ``to`` themselves if the range has the key; if not, a copy, for which ``Task`` makes no direct call."""
        return to if self._begins(number, offset, to, key, mark) else [*to]

    def own_turns(self, turns: Iterable[Waiter]) -> Iterator[Waiter]:
        """Those of the events that have their turn of which the range has the keys."""
        for one in turns:
            number, (offset, _, key, _, _) = one[3:]
            if self._begins(number, offset, self.inputs[number].routes, key, len(self.unit.outputs)):
                yield one

    def record(
        self,
        number: int,
        offset: int,
        record: InputRecord | None,
        to: Sequence[BoundRoute],
        key: Any,
        event: Any,
        mark: int,
    ) -> None:
        """See ``Units.record``. Of another range there are no outputs, not even those for late events."""
        is_begun, self._last = self._last == (number, offset), None
        if self._is_own if is_begun else self._begins(number, offset, to, key, mark):
            super().record(number, offset, record, to, key, event, mark)
        else:
            del self.unit.outputs[mark:]

    def _found(self, number: int, to: Sequence[BoundRoute], key: Any) -> bool:
        """Whether a key is one of the range. All handlers of an event have the same key."""
        plan = self.plan.inputs[number]
        codecs = [route.target.key_codec for route, _ in to if plan.is_inbox and route.target is not None]
        try:
            found = self.range.has((codecs or [plan.key_codec])[0].encode(key))
        except BadRecordError:  # the unit of one range is to fail with it
            return self.range.number == 0
        if len(self._known) >= _KNOWN:
            self._known.clear()
        self._known[key] = found
        return found

    def refuse(self, number: int, refused: Refused, record: InputRecord | None) -> int:
        """See ``Units.refuse``. All ranges count the record, and one has its letter."""
        self._handled += 1
        mark = len(self.unit.outputs)
        self.range.begins(mark, (self._handled,))
        taken = super().refuse(number, refused, record)
        if self.range.number:
            del self.unit.outputs[mark:]
        return taken

    def invoke_timer(self, route: Route, table: Table, instance: Any, timer: tuple[int, bytes]) -> None:
        """See ``Units.invoke_timer``."""
        fired = self.unit.fired
        assert fired is not None
        place = self.plan.order[table.plan.index]
        taken = self.taken_before + self.unit.taken
        turn = self._handled, taken, self.tape.others, *fired, place, self.timer[1], timer[1]
        self.range.begins(len(self.unit.outputs), turn)
        super().invoke_timer(route, table, instance, timer)

    def own(self, heads: Sequence[Head], start: int) -> list[Head]:
        """Those of the heads whose rows are worth reading ahead."""
        has = self._known.get
        return [one for one in heads[start:] if has(one[2], True)]
