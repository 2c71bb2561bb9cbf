"""The redriven records of one partition in a stage: which of them a rebuild handles.

A rebuild handles the originals in their places, so a redriven record is only for operators that do not: its original is not read in
this rebuild, or it has failed again. That is known once all other records are handled, so redriven records are read last.

One that is addressed to operators without a letter was in flight at a base, and waited in these for its turn: it has its place
among what was sent.

    the original lies                           it is read, and handled or a failure of this rebuild
    before the base                             no; but by an ordered operator in which it waited there for its turn
    in another partition                        if its input is forwarded by key; else it is in a wrong one, and fails there
    in what the rebuild sends itself            yes. Whether it fails is not known: it has another offset now
    in another log, from which the app moved    no

A record that has failed several times has several redriven ones. It counts once for each operator.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from functools import cached_property

import msgspec

from tailrace.core.declare.plan import Route
from tailrace.core.engine import tape
from tailrace.core.engine.input_decoder import InputDecoder
from tailrace.core.engine.redriven import Redriven, redriven_header, redriven_in
from tailrace.core.engine.task import Task
from tailrace.core.records import Delivery, InputRecord, Refused
from tailrace.core.unit_ids import RecordIds, Tail
from tailrace.history.reading.beginnings import Beginning
from tailrace.history.rebuilding.job import Job
from tailrace.history.rebuilding.past import HistorySource, asked_snapshot


class RedrivenHistory:
    """The records of a partition, without the redriven ones that the rebuild does not handle, or not by the operators ``here`` (by
    name). ``begun``: where the ``task`` begins. ``is_first``: it refuses those that cannot be decoded, and no other stage does.
    """

    def __init__(
        self,
        job: Job,
        past: HistorySource,
        number: int,
        task: Task,
        begun: Beginning,
        here: Collection[str],
        *,
        is_first: bool,
    ) -> None:
        self._plan, self._number, self._read = past.plan, number, past.source(number)
        self._here, base = here, begun.cut
        self._decode = InputDecoder(past.plan, past.plan.inputs[-1]).decode  # the inbox is the last one
        self._inputs = {one.name: one for one in past.plan.inputs}
        self._numbers = {one.name: one.index for one in past.plan.operators}
        self._begins = {**begun.positions, **(tape.decode_cut(base).positions if base else {})}
        self._failed, self._is_first = task.note_failures(), is_first
        self._base, self._job = None if base is None else tape.decode_cut(base), job
        self._handled: dict[tuple[str, int, int, str], int] = {}
        """By original and operator, the offset of the redriven record that it handles."""

    @cached_property
    def _cuts(self) -> dict[int, tape.Cut]:
        """The cuts of the base, by partition."""
        snapshot = asked_snapshot(self._job)
        entries = () if snapshot is None else snapshot.manifest.tasks
        return {one.partition: tape.decode_cut(one.cut) for one in entries if one.cut}

    def after(self, first: int, records: Iterable[InputRecord]) -> Iterator[InputRecord]:
        """What is left of those that are read after all others, numbered from ``first`` on."""
        redriven = ((one, redriven_in(one.headers)) for one in records)
        late = (one for one, header in redriven if header is not None and header.letter)
        for number, one in enumerate(filter(None, map(self._left, late)), first):
            yield one._replace(offset=number)

    def in_flight(self, record: InputRecord) -> Iterator[tuple[InputRecord, int | None]]:
        """A record that was in flight at the base; one that is addressed has its event time. For an operator that the app does not have
        any more it is refused, in the first stage.
        """
        redriven = redriven_in(record.headers)
        if redriven is None:
            yield record, None
        elif not redriven.letter:
            gone = {one for one in redriven.operators if self._is_first and one not in self._numbers}
            for names in ({one for one in redriven.operators if one in self._here}, gone):
                header = redriven_header(msgspec.structs.replace(redriven, operators=tuple(sorted(names))))
                here = record._replace(headers=(header, *record.headers[1:]))
                yield from ((here, time_ms) for _, time_ms, *_ in self._decode([here]) if names)

    def _left(self, record: InputRecord) -> InputRecord | None:
        """What is left of a record, for the operators that have to handle it."""
        redriven = redriven_in(record.headers)
        if redriven is None:
            return record
        ((_, time_ms, _, event, _),) = self._decode([record])
        if type(event) is Refused:
            return record if self._is_first and not self._is_read(redriven) else None
        delivery: Delivery = event
        routes: tuple[Route, ...] = delivery.routes
        takers = sorted({self._plan.operators[route.operator].name for route in routes})
        rest = [
            one for one in takers if one in self._here and self._is_for(one, redriven, time_ms, record.offset)
        ]
        if len(rest) == len(takers):
            return record
        header = redriven_header(msgspec.structs.replace(redriven, operators=tuple(rest)))
        return record._replace(headers=(header, *record.headers[1:])) if rest else None

    def _is_for(self, operator: str, redriven: Redriven, time_ms: int | None, offset: int) -> bool:
        is_read = self._is_read(redriven) or self._waited(operator, redriven, time_ms)
        if is_read and not self._has_failed(operator, redriven):
            return False
        if redriven.offset < 0:
            return True
        place = redriven.input, redriven.partition, redriven.offset, operator
        return self._handled.setdefault(place, offset) == offset

    def _is_read(self, redriven: Redriven) -> bool:
        """Whether the rebuild reads the original from where it begins."""
        name, number = redriven.input, redriven.partition
        if number == self._number:
            return redriven.offset >= self._begins.get(name, 0)
        if name not in self._inputs or not self._inputs[name].repartitioned or number < 0:
            return False
        begins = self._cuts[number].positions if number in self._cuts else {}
        return redriven.offset >= begins.get(name, 0)

    def _waited(self, operator: str, redriven: Redriven, time_ms: int | None) -> bool:
        """Whether the original waited in an operator, at the base, for its turn."""
        base, name, offset = self._base, redriven.input, redriven.offset
        ordered = None if base is None or redriven.partition != self._number else base.ordered.get(operator)
        if base is None or ordered is None or time_ms is None or offset in base.refused.get(name, ()):
            return False
        if name not in ordered.lows or offset < ordered.lows[name][0]:
            return False
        place_ms = dict(ordered.late.get(name, ())).get(offset, time_ms)
        if place_ms <= base.operators[operator] or ordered.last is None:
            return place_ms > base.operators[operator]
        tail: Tail = offset
        if name in self._plan.inside and (originals := self._read(name, offset, offset + 1)):
            tail = RecordIds(name, self._number, self._plan.app).tail_of(originals[0])
        return (place_ms, self._inputs[name].rank, tail) > tuple(ordered.last)

    def _has_failed(self, operator: str, redriven: Redriven) -> bool:
        if redriven.partition != self._number or redriven.input not in self._inputs:
            return False
        place = self._inputs[redriven.input].index, redriven.offset
        return any((*place, one) in self._failed for one in (tape.ALL, self._numbers[operator]))
