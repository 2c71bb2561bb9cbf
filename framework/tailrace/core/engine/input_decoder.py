"""Converts records to heads: decodes them, finds key and event time, and refuses records without these.

Also ``BoundInput``, a task's data about an input: the handlers of its heads, and how they move watermarks.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence, Set
from itertools import chain
from operator import itemgetter
from typing import Any, Final, NamedTuple

import msgspec

from tailrace.core import rows
from tailrace.core.declare.event_time import seconds_taken_for_ms
from tailrace.core.declare.plan import InputPlan, Plan, Route
from tailrace.core.durations import SECONDS_FIRST_MS, SECONDS_LAST_MS, spelled, to_datetime
from tailrace.core.engine.actor_table import Table
from tailrace.core.engine.failure import FAILURES, spelled_error
from tailrace.core.engine.redriven import is_redriven, redriven_in
from tailrace.core.engine.watermarks import Watermarks
from tailrace.core.errors import FROM_THE_FUTURE, BadReason, BadRecordError, RegistryError, TailraceError
from tailrace.core.records import DELETED, RECORD_BYTES, UNREADABLE, Delivery, Head, InputRecord, Refused
from tailrace.core.unit_ids import RecordIds, Tail
from tailrace.core.values.nesting import DEEPEST, depth_test

_RUN_WORTH_READING_AHEAD = 32
_name_of = itemgetter(0)

BoundRoute = tuple[Route, Table | None]
"""A route, and the table of its actor in this task; None for a stateless function."""

NEVER: Final = 1 << 63
"""A disorder so large that no event states a watermark."""


def takers_of(event: Any, routes: Sequence[BoundRoute]) -> list[BoundRoute]:
    """The routes of a table's input that take an event, or a deletion."""
    return [one for one in routes if one[0].deletes is (event is DELETED)]


class DirectCall(NamedTuple):
    """What a task needs to call an input's only handler itself: route, and methods of the actor's table."""

    routes: Sequence[BoundRoute] | None
    """The input's routes; None if no unit is a single call."""
    route: Route | None
    table: Table | None
    call: Callable[..., None]
    load: Callable[[Any], Any]
    touch: Callable[[Any], bytes | None]
    encode: Callable[[Any], bytes]
    seal: Callable[[Any], None]
    settle: Callable[[Any, bytes | None], None]
    full: Collection[Any]
    """Not empty: settle the instance in full, instead of only checking its types."""

    @classmethod
    def of(cls, routes: Sequence[BoundRoute]) -> DirectCall:
        """The direct call for these routes; ``INDIRECT`` unless they are one route to an unchecked table."""
        route, table = routes[0] if len(routes) == 1 else (None, None)
        if route is None or table is None or table.images is not None:
            return INDIRECT
        full = table.cells.cleared if table.simple else _ALWAYS
        return cls(
            routes,
            route,
            table,
            route.call,
            table.load,
            table.touch,
            table.encode,
            table.seal,
            table.settle,
            full,
        )


def _never(*_: Any) -> Any:
    raise AssertionError("this input has no direct call")


_ALWAYS: Final = (True,)
INDIRECT: Final = DirectCall(None, None, None, _never, _never, _never, _never, _never, _never, _ALWAYS)


class BoundInput:
    """One input of one task: values common to all of its records, computed once, as runs may be short.

    ``judged``: its records may be late. They move the input's watermark to their event time minus ``lag``.
    """

    __slots__ = (
        "direct",
        "id_of",
        "ids",
        "inbox",
        "judged",
        "lag",
        "plan",
        "routes",
        "tables",
        "tail_of",
        "turns",
        "waits",
    )

    def __init__(
        self, plan: InputPlan, partition: int, tables: Sequence[Table], marks: Watermarks, app: str | None
    ) -> None:
        """``app``: if it writes the input itself; None of any other input."""
        self.plan, self.tables = plan, tables
        self.ids = RecordIds(plan.name, partition, app)
        self.tail_of = None if app is None else self.ids.tail_of
        """The tail of the place of a record; None if it is the offset."""
        self.id_of = self._id_in_inbox if plan.is_inbox else self.ids.id_of
        """The id of the unit of a record."""
        self.inbox = plan.is_inbox
        self.judged = bool(plan.moves and not plan.repartitioned and not plan.broadcast)
        self.judged = self.judged or (self.inbox and marks.judges_messages())
        self.lag = plan.out_of_order_ms + 1 if plan.moves and plan.watermark != "upstream" else NEVER
        self.routes: Sequence[BoundRoute] = [self._bound(route) for route in plan.routes]
        self.direct = INDIRECT if plan.is_table else DirectCall.of(self.routes)
        waiting = marks.waiting_for(plan)
        self.waits = {n: [one for one in self.routes if one[0].operator == n] for n in sorted(waiting)}
        """The ordered operators in which its events wait for their turn, with their routes."""
        groups = [marks.together[one] for one in self.waits]
        self.turns = groups == [plan.moves] and self.direct is not INDIRECT
        """Whether one ordered actor is all that its events concern, with those that its streams reach."""

    def _bound(self, route: Route) -> BoundRoute:
        return route, None if route.target is None else self.tables[route.target.index]

    def _id_in_inbox(self, record: InputRecord) -> bytes:
        """Of a redriven record, the id of its original."""
        redriven = redriven_in(record.headers)
        return bytes.fromhex(redriven.unit) if redriven and redriven.unit else self.ids.id_of(record)

    def tail(self, head: Head) -> Tail:
        """The tail of the place of an event, by which those of one input and time are in order."""
        record: Any = head[4]
        return head[0] if self.tail_of is None else self.tail_of(record)

    def takers(self, delivery: Delivery) -> Sequence[BoundRoute]:
        """The routes that get a message, or a redriven event."""
        return tuple(map(self._bound, delivery.routes))

    def prefetch(self, heads: Sequence[Head], start: int) -> None:
        """Let the actors' tables read ahead the rows that a run needs, if the run is long enough."""
        if len(heads) - start >= _RUN_WORTH_READING_AHEAD and not self.inbox:
            for table in {table for _, table in self.routes if table is not None}:
                table.prefetch(heads, start)


class InputDecoder:
    """Makes heads from the records of one input."""

    def __init__(self, plan: Plan, input_plan: InputPlan) -> None:
        self._plan, self._operators = input_plan, plan.operators
        self._actors = {actor.name: actor for actor in plan.actors}
        others = (one for one in plan.inputs if input_plan.is_inbox and not one.is_inbox)
        self._of_redriven = {one.name: InputDecoder(plan, one) for one in others}
        """For an inbox: the decoders of redriven records, by input."""
        topic = input_plan.topic
        self._too_deep = None if topic is None else depth_test(topic.settings.format, topic.type)
        self._latest_ms = input_plan.time_max_ms
        """The highest event time that is accepted."""
        self.refused: Set[int] = frozenset()
        """The offsets of records that were refused when they were first read: by another clock, or by earlier code."""

    def decode(self, records: Sequence[InputRecord], clock_ms: int | None = None) -> list[Head]:
        """Heads of records as the log returned them. ``clock_ms``: what event times are compared with, if
        anything.
        """
        if self._plan.is_inbox:
            heads = [
                self._again(record, clock_ms) if is_redriven(record.headers) else self._message(record)
                for record in records
            ]
        else:
            self._latest_ms = self._plan.time_max_ms
            if clock_ms is not None and self._plan.ahead_of_clock_ms is not None:
                self._latest_ms = min(self._latest_ms, clock_ms + self._plan.ahead_of_clock_ms)
            at_once = self._sound(records)
            heads = [self._decoded(record) for record in records] if at_once is None else at_once
        if refused := self.refused:
            return [
                _refused(head[4], "undecodable", "") if head[4] and head[0] in refused else head
                for head in heads
            ]
        return heads

    def _decoded(self, record: InputRecord) -> Head:
        if record.value is None and self._plan.is_table:
            return self._head(DELETED, record)
        if record.value is None:
            hint = "If it deletes a key, declare the topic with app.table."
            return _refused(record, "undecodable", "the record has no value", hint)
        if record.headers and UNREADABLE in map(_name_of, record.headers):
            return _refused(record, "undecodable", "the name of a header is not UTF-8")
        if len(record.value) > RECORD_BYTES:
            detail = f"the value has {len(record.value)} bytes, and the limit is {RECORD_BYTES}"
            return _refused(record, "undecodable", detail)
        if self._too_deep is not None and self._too_deep(record.value):
            detail = f"its values are nested deeper than {DEEPEST}"
            return _refused(record, "undecodable", detail)
        try:
            event = self._plan.decode(record.value)
        except msgspec.ValidationError as error:
            return _refused(record, "wrong-type", spelled_error(error, bare=True))
        except (msgspec.MsgspecError, ValueError, OverflowError, RecursionError) as error:
            return _refused(record, "undecodable", spelled_error(error, bare=True))
        except (MemoryError, RegistryError):
            raise
        except FAILURES as error:  # a validator of the user refuses the record
            return _refused(record, "undecodable", spelled_error(error))
        return self._head(event, record)

    def _sound(self, records: Sequence[InputRecord]) -> list[Head] | None:
        """Make heads in bulk; None if a record may be refused or skipped, or has no time of its own."""
        plan = self._plan
        if plan.key_of is None or plan.time_kind == "arrival" or not records:
            return None
        try:
            offsets, stamps, record_keys, values, headers = zip(*records, strict=True)
            if any(headers) and UNREADABLE in map(_name_of, chain.from_iterable(headers)):
                return None
            longest = max(map(len, values))
            if longest > RECORD_BYTES or (
                longest > DEEPEST and self._too_deep is not None and any(map(self._too_deep, values))
            ):
                return None
            events = list(map(plan.decode, values))
            keys = list(map(plan.key_of, events))
            times: list[Any] = list(stamps if plan.time_of is None else map(plan.time_of, events))
            if None in times or not plan.key_codec.are_exact(keys):
                return None
            if plan.is_table and tuple(map(plan.key_codec.encode, keys)) != record_keys:
                return None
            if not self._in_range(times):
                return None
            # StopIteration of a user's function ends a map early: then their lengths differ.
            return list(zip(offsets, times, keys, events, records, strict=True))
        except FAILURES:  # then decoded one by one, and the error names its record
            return None

    def _in_range(self, times: Sequence[int]) -> bool:
        """Whether all times are within the allowed range. There must be at least one."""
        plan, earliest_ms, latest_ms = self._plan, min(times), max(times)
        if not plan.time_min_ms <= earliest_ms or not latest_ms <= self._latest_ms:
            return False
        # Times of this century, or times that begin at 0, are not in this range, so two comparisons are
        # usually enough.
        if earliest_ms > SECONDS_LAST_MS or latest_ms < SECONDS_FIRST_MS or not plan.refuse_seconds:
            return True
        return not any(SECONDS_FIRST_MS <= one <= SECONDS_LAST_MS for one in times)

    def _key(self, event: Any, record: InputRecord) -> Any:
        """The key of an event, or of a deletion. Raises BadRecordError."""
        plan, codec = self._plan, self._plan.key_codec
        if event is DELETED:
            return codec.decode(record.key) if record.key is not None else codec.encode(None)
        if plan.key_of is None:
            return record.key
        key = plan.key_of(event)
        if key is None:
            raise BadRecordError(f"the key of {event!r:.200} is None", reason="missing-key")
        if not codec.are_exact((key,)):
            codec.encode(key)  # raises BadRecordError
        if plan.is_table and codec.encode(key) != record.key:
            raise BadRecordError(
                f"the record of the key {key!r} has the key {record.key!r}",
                reason="bad-key",
                hint="A table keeps the last record of each record key: its producer must give each record the key "
                "of its event.",
            )
        return key

    def _head(self, event: Any, record: InputRecord) -> Head:
        plan, offset, deleted = self._plan, record.offset, event is DELETED
        try:
            key = self._key(event, record)
            if plan.time_kind == "arrival":
                return offset, None, key, event, record
            time_ms = record.timestamp_ms if deleted or plan.time_of is None else plan.time_of(event)
        except BadRecordError as error:
            return _refused(record, error.reason, error.what, error.hint)
        except FAILURES as error:  # the user may give functions for key and event time
            detail = (
                f"key or event time of {event!r:.200} cannot be computed: {spelled_error(error, bare=True)}"
            )
            return _refused(record, "bad-key", detail)
        if time_ms is None:
            return _refused(record, "missing-time", f"{event!r:.200} has no event time")
        if not plan.time_min_ms <= time_ms <= plan.time_max_ms:
            detail = f"the event time {time_ms} ms is outside of {plan.time_min_ms} to {plan.time_max_ms} ms"
            return _refused(record, "bad-time", detail + _as_date(time_ms))
        seconds = SECONDS_FIRST_MS <= time_ms <= SECONDS_LAST_MS and plan.refuse_seconds and not deleted
        if seconds and plan.topic is not None:
            return _refused(
                record, "bad-time", *seconds_taken_for_ms(time_ms, plan.topic.settings.event_time)
            )
        if time_ms > self._latest_ms:
            return _refused(record, FROM_THE_FUTURE, *self._ahead(time_ms))
        return offset, time_ms, key, event, record

    def _ahead(self, time_ms: int) -> tuple[str, str]:
        """Message and hint for an event time that is too far ahead of the clock. A dead letter has them, so no reading of the clock."""
        ahead = f"more than {spelled(self._plan.ahead_of_clock_ms or 0)} ahead of the clock"
        hint = "If such events are right, give the topic a larger ahead_of_clock, or None."
        return f"the event time {time_ms} ms{_as_date(time_ms)} is {ahead}", hint

    def _message(self, record: InputRecord) -> Head:
        try:
            actor_name, name, encoded = rows.decode_envelope(record.value or b"")
            actor = self._actors[actor_name]
            message = actor.messages[name]
            key = actor.key_codec.decode(record.key or b"")
            delivery = Delivery((message.route,), message.decode(encoded))
        except KeyError as error:
            return _refused(record, "wrong-type", f"a message for {error}, which this app does not have")
        except (msgspec.MsgspecError, ValueError, TailraceError) as error:
            return _refused(record, "undecodable", str(error))
        return record.offset, record.timestamp_ms, key, delivery, record

    def _again(self, record: InputRecord, clock_ms: int | None) -> Head:
        """The head of a redriven record: see ``redriven``."""
        redriven = redriven_in(record.headers)
        if redriven is None:
            return _refused(record, "undecodable", "no redrive has written its header")
        decoder, number = self._of_redriven.get(redriven.input), self._plan.index
        if decoder is not None:
            (head,), number = decoder.decode((record,), clock_ms), decoder._plan.index
        elif redriven.input == self._plan.name:
            head = self._message(record)
        else:
            detail = f"it was redriven for the input {redriven.input!r}, which the app does not read any more"
            return _refused(record, "wrong-type", detail)
        offset, time_ms, key, event, _ = head
        if type(event) is Refused:
            return head
        taken: Delivery = event if decoder is None else Delivery(decoder._plan.routes, event)
        routes: tuple[Route, ...] = taken.routes
        named, operators = redriven.operators, self._operators
        to = tuple(one for one in routes if not named or operators[one.operator].name in named)
        if not to:
            names = ", ".join(named)
            return _refused(
                record, "wrong-type", f"it was redriven for {names}, which does not take it any more"
            )
        return offset, time_ms, key, Delivery(to, taken.message, number), record


def _refused(record: InputRecord, reason: BadReason, detail: str, hint: str = "") -> Head:
    return record.offset, None, None, Refused(reason, detail, hint), record


def _as_date(time_ms: int) -> str:
    try:
        return f" ({to_datetime(time_ms).isoformat()})"
    except (TailraceError, ValueError, OverflowError):
        return ""
