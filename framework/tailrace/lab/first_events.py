"""The first events from which two versions part: each version runs the keys that differ most once more, and their traces are compared.

A trace has a *step* for each cause, a record or a timer, that had an effect on a key: with a digest of the key's rows after it,
as both versions read them, and of what its calls have emitted. The first step that the versions do not share names the event.
Of the outputs of a key, the causes are those of this key that emitted them; the versions part before that if they do in
the state of an actor with this key, such as a window that is open.

Of two causes, that comes first which was handled first, and not the one with the lower event time. Both versions have the
same records from outside in the same order, but each its own timers and messages. So the *order* of a cause is the
number of records from outside that its key has had, and what came after the last of them, counted. If the versions send to
themselves and run in stages, it is the event time of the cause: an operator of a later stage has no records from outside. A step that the
other version does not have comes before one that it has later, as its own timers and messages shift that count. A record that the app has
sent itself has no offset in stages.

The keys that differ most also have *paragraphs*: the text of what each record or timer does, see ``history.replay.trace``.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import closing
from hashlib import blake2b
from pathlib import Path
from typing import Any, Literal, TypeAlias

import msgspec
from msgspec.structs import astuple, replace

from tailrace.core.declare.plan import ActorPlan, Plan
from tailrace.core.engine.as_read import ReadAs
from tailrace.core.engine.instance_cache import InstanceCache
from tailrace.core.engine.observer import Call, Moment, Watch, changed_now, key_now
from tailrace.core.engine.stages import own_inputs
from tailrace.core.engine.units import TIMER
from tailrace.core.errors import TailraceError
from tailrace.core.records import RawOutput
from tailrace.core.unit_ids import BEYOND
from tailrace.core.values.partitioner import partition_of
from tailrace.history.rebuilding.driver import settled_job
from tailrace.history.rebuilding.job import Unit
from tailrace.history.rebuilding.past import opened_past
from tailrace.history.rebuilding.request import Execution, Request, StoreKind
from tailrace.history.rebuilding.stage_unit import run_stage
from tailrace.history.rebuilding.tape_unit import run_task
from tailrace.history.rebuilding.work_folder import WorkFolder
from tailrace.history.replay.trace import Part, Trace
from tailrace.lab.database import connected, quoted
from tailrace.state.snapshots.arrow import pa, parquet

Fields: TypeAlias = dict[str, list[str] | None]
"""By actor that both versions have, the fields that both declare; None for an actor with one schema in both."""
Order: TypeAlias = tuple[int, int]
"""Of a cause among those of its key: the number of records from outside, and that of the cause after the last of them."""

_AT_ONCE = 20_000
_BEFORE, _FROM = 2, 4
"""Number of paragraphs that are shown before the first event, and from it on."""
_COLUMNS = {
    **dict.fromkeys(("item", "number", "records", "after"), "int64"),
    "topic": "string",
    "partition": "int64",
    "offset": "int64",
    "timer": "string",
    "time_ms": "int64",
    "effect": "binary",
    "text": "string",
}
"""A step has an effect, a paragraph has a text."""
_CAUSE = 'topic, partition, "offset", timer, time_ms'
_APART = f"""
with steps as (
    select *, row_number() over (partition by side, item order by number) as place,
        count(*) over (partition by item, {_CAUSE}) as known
    from (select *, 'A' as side from {{a}} union all select *, 'B' from {{b}}) where text is null
), apart as (
    select item, place from steps group by all having count(*) = 1 or count(distinct row({_CAUSE}, effect)) = 2
), firsts as (select item, min(place) as place from apart group by item)
select item, records, after, {_CAUSE} from steps join firsts using (item, place)
qualify row_number() over (partition by item order by known, records, after, time_ms) = 1
"""  # noqa: S608
_AROUND = f"""
with paragraphs as (select *, (records, after) >= (?, ?) as has_parted from {{file}} where text is not null and item = ?)
select text, {_CAUSE} from paragraphs qualify has_parted and row_number() over (partition by has_parted order by number) <= {_FROM}
    or not has_parted and row_number() over (partition by has_parted order by number desc) <= {_BEFORE} order by number
"""  # noqa: S608


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


First: TypeAlias = tuple[Item, Cause]


class Paragraph(msgspec.Struct):
    """What a record or a timer does to a key. ``is_first``: the versions part here."""

    time_ms: int
    is_first: bool
    lines: list[str]


class _Recorder(Trace):
    """Writes the steps of ``items`` to a file, and paragraphs for the keys of the first ``traced`` of them.

    ``by_time``: both versions send to themselves, and run in stages. Calls of any key then count for the outputs of another.
    """

    partition = 0
    """The one that runs."""

    def __init__(
        self, plan: Plan, items: Sequence[Item], traced: int, both: Fields, file: str, *, by_time: bool
    ) -> None:
        self._numbers = {item: number for number, item in enumerate(items)}
        self.keys = {one: key for one in items for key in _decoded(plan, one)}
        """As handlers know them; without those of actors and topics that this version does not have."""
        self._shown_for: dict[Any, list[int]] = {}
        for one in items[:traced]:
            if one in self.keys:
                self._shown_for.setdefault(self.keys[one], []).append(self._numbers[one])
        super().__init__(plan, self._shown_for, self._add_line)
        self._by_time, self._own = by_time, frozenset(own_inputs(plan))
        self._contents = {one.name: Contents(one, both.get(one.name)) for one in plan.actors}
        self._at: dict[Any, tuple[Order, Cause | None]] = {}
        """By key, the last cause with its order; None: a record whose call has not come yet."""
        self._last: dict[Item, tuple[Order, Cause, int, bytes]] = {}
        """The last step of each item, with digests of state and outputs. The next call may have the same cause."""
        self._state: dict[Item, int] = {}
        """The state after the step before the last."""
        self._paragraph: tuple[list[int], Order, Cause, list[str]] | None = None
        self._schema = pa.schema([(name, pa.type_for_alias(type_)) for name, type_ in _COLUMNS.items()])
        self._file, self._rows = parquet.ParquetWriter(file, self._schema), list[tuple[Any, ...]]()
        self._count = 0

    def meets(self, key: Any, number: int, /) -> None:
        """See ``Observer``."""
        if self._plan.inputs[number].name not in self._own:
            (records, _), _ = self._placed(key)
            self._at[key] = (records + 1, 0), None

    def returned(self, call: Call, outputs: Sequence[RawOutput]) -> None:
        """See ``Observer``."""
        actor, key = call.actor, call.moment.key
        cause = self._cause(call.moment, actor)
        order = self._ordered(key, cause)
        item = None if actor is None else Item("state", actor.name, actor.key_codec.encode(key))
        if actor is not None and item in self.keys:
            self._take(
                item,
                order,
                cause,
                [one[:4] for one in outputs],
                self._contents[actor.name].now(call.cells, key),
            )
        for one in outputs:
            item = None if one[1] is None else Item("output", one[0], one[1])
            if item in self.keys and (self._by_time or self.keys[item] == key):
                self._take(item, order, cause, [one[:4]])
        super().returned(call, outputs)

    def expired(self, moment: Moment, actor: ActorPlan, what: bytes) -> None:
        """See ``Observer``."""
        self._contents[actor.name].expired(moment.key, what)
        super().expired(moment, actor, what)

    def _placed(self, key: Any) -> tuple[Order, Cause | None]:
        return self._at.get(key, ((0, 0), None))

    def _ordered(self, key: Any, cause: Cause) -> Order:
        if self._by_time:
            return cause.time_ms, 0
        (records, after), last = self._placed(key)
        if cause != last:
            is_record = cause.offset is not None and cause.topic not in self._own
            order = records, 0 if is_record else after + 1
            self._at[key] = order, cause
        return self._placed(key)[0]

    def _take(self, item: Item, order: Order, cause: Cause, sent: Sequence[object], state: int = 0) -> None:
        """Add a call to the last step, or begin another: calls of one cause are one step."""
        digest, last = b"", self._last.get(item)
        if last is not None and last[1] == cause:
            digest = last[3]
        elif last is not None:
            self._complete(item)
        self._last[item] = order, cause, state, _digest((digest, sent)) if sent else digest

    def _complete(self, item: Item) -> None:
        order, cause, state, sent = self._last.pop(item)
        if sent or state != self._state.get(item, 0):
            self._state[item] = state
            self._add(self._numbers[item], order, cause, _digest((state, sent)), None)

    def _cause(self, moment: Moment, actor: ActorPlan | None) -> Cause:
        number = self.partition
        if moment.input == TIMER:
            return Cause("" if actor is None else actor.name, number, None, moment.timer or "", moment.at)
        name = self._plan.inputs[moment.input].name
        offset = None if moment.at >= BEYOND and name in self._own else moment.at
        return Cause(name, number, offset, None, moment.event_time)

    def end(self) -> None:
        """A run has ended: the last steps and the last paragraph are complete."""
        for item in [*self._last]:
            self._complete(item)
        self._add_paragraph()

    def close(self) -> None:
        """Write the rest."""
        self._flush()
        self._file.close()

    def _add_line(self, *parts: Part, begins: Moment | None = None) -> None:
        """See ``history.replay.trace.Write``."""
        if begins is not None:
            self._add_paragraph()
            cause = self._cause(begins, None)
            order = (cause.time_ms, 0) if self._by_time else self._placed(begins.key)[0]
            self._paragraph = self._shown_for[begins.key], order, cause, []
        assert self._paragraph is not None  # its first line came first
        self._paragraph[3].append("".join(one if isinstance(one, str) else one[0] for one in parts).rstrip())

    def _add_paragraph(self) -> None:
        if self._paragraph is not None:
            numbers, order, cause, lines = self._paragraph
            for number in numbers:
                self._add(number, order, cause, None, "\n".join(lines))
            self._paragraph = None

    def _add(self, number: int, order: Order, cause: Cause, effect: bytes | None, text: str | None) -> None:
        self._count += 1
        self._rows.append((number, self._count, *order, *astuple(cause), effect, text))
        if len(self._rows) >= _AT_ONCE:
            self._flush()

    def _flush(self) -> None:
        rows = [dict(zip(_COLUMNS, one, strict=True)) for one in self._rows]
        self._file.write_table(pa.Table.from_pylist(rows, self._schema))
        self._rows.clear()


class Contents:
    """Digests of an actor's keys from call to call: sums over the rows as both versions read them, 0 for none.

    A call costs what it may have changed. ``both``: the fields that both versions have; None: their rows have one form.
    """

    def __init__(self, actor: ActorPlan, both: list[str] | None) -> None:
        self._actor, self._reader, self._both = actor, ReadAs(actor.schema), both
        self._known: dict[Any, dict[bytes, int]] = {}
        """By key and row, the digest of the row."""
        self._totals: dict[Any, int] = {}

    def now(self, cells: InstanceCache, key: Any) -> int:
        """The digest of a key after a call."""
        known = self._known.setdefault(key, {})
        changed = changed_now(cells, self._actor, key) if known else None
        if changed is None:
            found, may_be_gone = key_now(cells, self._actor, key), [*known]
        else:
            found = {rest: value for rest, value in changed.items() if value is not None}
            may_be_gone = [*changed, *(rest for rest in known if rest[:1] == b"t")]
        found = found if self._both is None else self._reader.read(found, self._both)
        total = self._totals.get(key, 0) - sum(known.pop(rest, 0) for rest in {*may_be_gone, *found})
        for rest, value in found.items():
            known[rest] = int.from_bytes(_digest((rest, value))[:8])
            total += known[rest]
        self._totals[key] = total
        return total % (1 << 63)

    def expired(self, key: Any, what: bytes) -> None:
        """The entry with the row ``what`` has expired; or a field, which the next call shows."""
        if key in self._known:
            self._totals[key] = self._totals.get(key, 0) - self._known[key].pop(what, 0)


def record_steps(
    plan: Plan, request: Request, items: list[Item], traced: int, both: Fields, file: str, by_time: bool
) -> None:
    """Run the keys of items once more, and write their steps; of the first ``traced`` items also paragraphs. ``by_time``: see
    ``_Recorder``.
    """
    store: StoreKind = "memory" if request.order == "tape" else "rocks"  # of some keys, or perhaps of all
    request = replace(request, to=replace(request.to, outputs="none"), execution=Execution(store=store))
    job = settled_job(request)
    taped, work = job.order == "tape", WorkFolder(Path(job.work))
    work.make()
    recorder = _Recorder(plan, items, traced, both, file, by_time=by_time)
    with closing(recorder), opened_past(job.request, plan, taped=taped) as past:
        for stage in range(max(1, job.stages)):
            for number in range(plan.partitions):
                recorder.partition = number
                here = {
                    key
                    for one, key in recorder.keys.items()
                    if partition_of(one.key, plan.partitions) == number or (by_time and one.kind == "output")
                }
                if not here and not by_time:
                    continue
                watch = Watch(recorder, here)
                if taped:
                    run_task(Unit(job=job, kind="task", partition=number), past, work, "steps", watch)
                else:
                    unit = Unit(job=job, kind="stage", partition=number, stage=stage)
                    work.finish(unit, run_stage(unit, past, work, f"steps-{stage}", watch))
                recorder.end()


def first_events(
    items: Iterable[Item], recorded: Sequence[Item], files: Sequence[Path]
) -> dict[Item, tuple[Order, Cause]]:
    """The first events of items, from the steps of what was ``recorded`` in both versions."""
    query = _APART.format(a=quoted(files[0]), b=quoted(files[1]))
    found: dict[Item, tuple[Order, Cause]] = {
        recorded[number]: ((records, after), Cause(*cause))
        for number, records, after, *cause in connected().execute(query).fetchall()
    }
    firsts: dict[Item, tuple[Order, Cause]] = {}
    for item in items:
        causes = [
            cause
            for one, cause in found.items()
            if one == item or (item.kind == "output" and (one.kind, one.key) == ("state", item.key))
        ]
        if causes:
            firsts[item] = min(causes, key=lambda one: (one[0], one[1].time_ms))
    return firsts


def paragraphs_around(number: int, first: tuple[Order, Cause], file: Path) -> list[Paragraph]:
    """The paragraphs of one version around the first event of the item with this number."""
    order, cause = first

    def is_first(one: Cause) -> bool:  # a timer is shown without its actor
        mine, its = ((each.offset, each.timer, each.time_ms) for each in (cause, one))
        return mine == its and (cause.timer is not None or cause.topic == one.topic)

    found = connected().execute(_AROUND.format(file=quoted(file)), [*order, number]).fetchall()
    return [Paragraph(one[-1], is_first(Cause(*one)), text.split("\n")) for text, *one in found]


def _decoded(plan: Plan, item: Item) -> list[Any]:
    """The key of an item; none if this version cannot have it."""
    codecs = {
        "state": {one.name: one.key_codec for one in plan.actors},
        "output": {one.name: one.key_codec for one in plan.topics.values()},
    }[item.kind]
    try:
        return [codecs[item.name].decode(item.key)]
    except (KeyError, TailraceError, ValueError):
        return []


def _digest(content: object) -> bytes:
    return blake2b(msgspec.msgpack.encode(content), digest_size=16).digest()
