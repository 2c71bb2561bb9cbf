"""The app's dead letters by partition: settled before a rebuild begins, for all of its units. See ``retrying``."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping

from tailrace.core.declare.plan import Plan
from tailrace.core.engine import tape
from tailrace.core.engine.delivery import own_inputs
from tailrace.core.engine.redriven import redriven_ids, redriven_of
from tailrace.core.records import Headers
from tailrace.history.dead_letters.letters import Note, dead_letters, is_before, notes, topic_of
from tailrace.history.rebuilding.job import Letters
from tailrace.history.rebuilding.own_letters import content_of
from tailrace.history.rebuilding.past import HistorySource
from tailrace.history.rebuilding.request import Request
from tailrace.history.rebuilding.targets import Settled
from tailrace.history.stretches import scan
from tailrace.log.interface import Log

_ON_TAPE = frozenset({"handler-failed", "foreign-partition"})
"""Reasons of dead letters whose failures are on the tape."""


def letters_before(request: Request, past: HistorySource, settled: Settled) -> tuple[Letters, ...]:
    """The app's dead letters by partition, if the rebuild needs them; otherwise an empty tuple.

    Along the tape it needs them with ``retry_failed`` only. In canonical order it always does: every record is run, so a
    redriven record would take effect twice.
    """
    plan, log = past.plan, past.log
    untaped = settled.order == "canonical"
    if not (untaped or request.failures.retry_failed) or plan.dead_letters_topic not in log.topics():
        return ()
    found = _Found(plan)
    inputs, own = {one.name for one in plan.inputs}, own_inputs(plan)
    known = {
        id_: one for id_, one in notes(log, plan.app).items() if one.topic in inputs and not one.snapshot
    }
    unread: set[str] = set()
    for name, number in {(one.topic, one.partition) for one in known.values()}:
        unread |= _unread(log, plan.app, known, name, number, _end(request, settled, name, number))
    before: dict[str, list[int]] = {}
    for letter in dead_letters(log, plan.app):
        number = letter.origin_partition or 0
        if letter.id in known:
            before[letter.id] = _before(letter.record.headers, letter.origin_partition, plan)
        if untaped and letter.topic in own and letter.origin_offset is not None:
            content = content_of(letter.topic, letter.record)
            found.contents[number].append((letter.topic, letter.origin_offset, content))
        if letter.topic is None:
            if untaped:
                found.timers[number].append((letter.actor or "", letter.key or "", letter.timer or ""))
        elif letter.topic not in inputs or letter.origin_offset is None:
            continue
        elif untaped or letter.reason not in _ON_TAPE:
            found.failed[number].append((letter.topic, letter.origin_offset))
    for id_, note in known.items():
        if note.origin is None:
            continue
        partition, offset = note.origin
        if partition == note.partition and id_ not in unread:
            places = (offset, *before.get(id_, ()))
            found.originals[partition][id_] = tuple((note.topic, at) for at in places)
        else:
            found.left[partition].append((note.topic, offset))
    return found.letters()


def _before(headers: Headers, partition: int | None, plan: Plan) -> list[int]:
    """The offset of the original of a record that was redriven for another app; for several redrives, the first original."""
    first: int | None = None
    for one in reversed(redriven_of(headers)):
        if one.topic == plan.dead_letters_topic or one.origin is None or one.origin[0] != partition:
            break
        first = one.origin[1]
    return [] if first is None else [first]


class _Found:
    """Collects letters by partition."""

    def __init__(self, plan: Plan) -> None:
        self._partitions = plan.partitions
        self.originals: defaultdict[int, dict[str, tuple[tuple[str, int], ...]]] = defaultdict(dict)
        self.left: defaultdict[int, list[tuple[str, int]]] = defaultdict(list)
        self.failed: defaultdict[int, list[tuple[str, int]]] = defaultdict(list)
        self.timers: defaultdict[int, list[tuple[str, str, str]]] = defaultdict(list)
        self.contents: defaultdict[int, list[tuple[str, int, bytes]]] = defaultdict(list)

    def letters(self) -> tuple[Letters, ...]:
        """The letters of all partitions; an empty tuple if there are none."""
        if not (self.originals or self.left or self.failed or self.timers):
            return ()
        return tuple(
            Letters(
                self.originals[number],
                tuple(self.left[number]),
                tuple(self.failed[number]),
                tuple(self.timers[number]),
                tuple(self.contents[number]),
            )
            for number in range(self._partitions)
        )


def _end(request: Request, settled: Settled, name: str, number: int) -> int:
    """The end of the rebuild in an input, as far as it is known before the rebuild."""
    if settled.order == "canonical":
        ends = settled.ends.get(name, [])
        end = ends[number] if number < len(ends) else 0
    else:
        cut = settled.targets[number].cut if number < len(settled.targets) else None
        end = 0 if cut is None else tape.decode_cut(cut).positions.get(name, 0)
    return min(end, request.until.offsets.get(name, {}).get(number, end))


def _unread(log: Log, app: str, known: Mapping[str, Note], name: str, number: int, end: int) -> set[str]:
    """The letters whose redriven records are after the end, and all letters that these had been redriven for before. ``known``: the notes
    by letter.
    """
    found: set[str] = set()
    for record in scan(log, name, number, end):
        if record.headers:
            named = redriven_ids(record.headers, topic_of(app))
            found.update(
                id_
                for id_ in named
                if id_ in known and not is_before(known[id_], name, number, record.offset)
            )
    return found
