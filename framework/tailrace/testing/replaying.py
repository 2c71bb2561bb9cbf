"""The proof: everything that a service has committed is done again along its tape, from nothing, and compared.

Compared are every state row, the cut (positions, watermarks, counts), and every output: topic, key, value, headers and
timestamp, in the order of emission, per producing partition. The changelog is folded as well, and must give the rows
that the service has. The replay runs with the reloading of instances turned the other way, so a live object that is
not what its encoding says shows here, too.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from typing import Any

import msgspec

from tailrace.core import rows
from tailrace.core.declare.plan import Plan
from tailrace.core.engine import tape
from tailrace.core.engine.replay import replay_record
from tailrace.core.engine.task import Task, TaskSettings
from tailrace.core.errors import ReplayDivergedError, TailraceError
from tailrace.core.records import InputRecord, Output
from tailrace.core.storage import Store
from tailrace.log.interface import TopicPartition
from tailrace.runtime.restore import decode_store_cut
from tailrace.state import MemoryStore
from tailrace.testing.emitted import Origin, origin_of
from tailrace.testing.memory_log import MemoryLog

_ALL_ROWS = (b"", b"\xff")
_MEND = "The handlers depend on something that is not on the tape (a clock, chance, a global, an object kept outside)."


@dataclass(frozen=True, slots=True)
class ReplayReport:
    """What a replay has done again and found equal."""

    partitions: int
    commits: int
    records: int
    timers: int
    """Timers fired and entries expired."""
    outputs: int
    rows: int


def replay(
    plan: Plan, log: MemoryLog, stores: Sequence[Store], lineage: bytes, settings: TaskSettings
) -> ReplayReport:
    """Replay every partition, and compare. ``settings`` are those of the first run.

    Raises:
        ReplayDivergedError: Something differs; it names the first difference.
    """
    emitted = _emitted(plan, log)
    turned = replace(settings, reload=not settings.reload)
    parts = [
        _replay_partition(plan, number, log, store, lineage, turned, emitted[number])
        for number, store in enumerate(stores)
    ]
    return ReplayReport(plan.partitions, *(sum(column) for column in zip(*parts, strict=True)))


def _replay_partition(
    plan: Plan,
    partition: int,
    log: MemoryLog,
    store: Store,
    lineage: bytes,
    settings: TaskSettings,
    emitted: list[Output],
) -> tuple[int, int, int, int, int]:
    again = MemoryStore()
    task = Task(plan, partition, again, lineage=lineage, settings=settings, replaying=True)
    outputs: list[Output] = []

    def source(name: str, start: int, stop: int) -> list[InputRecord]:
        found = log.reader({TopicPartition(name, partition): start}).fetch(name, partition, stop - start)
        return [record for record in found.records if record.offset < stop]

    records = log.read(plan.tape_topic, partition)
    for record in records:
        replay_record(task, tape.decode_tape(record.value or b""), source)
        outputs += task.take_outputs()
        batch = task.commit_batch()
        again.write(batch.rows | batch.index_rows, batch.cut)
        task.committed()
    compare = _Comparison(plan, partition)
    compare.outputs(emitted, outputs)
    live, index = _without_index(store)
    compare.rows("the replay", live, _without_index(again)[0])
    compare.index(live, index)
    folded, cut = _folded(log, plan.changelog_topic, partition)
    compare.rows("the changelog", live, folded)
    held = None if store.cut is None else decode_store_cut(store.cut).core
    compare.cuts("the replay", held, again.cut)
    compare.cuts("the changelog", held, cut)
    totals = task.totals
    return len(records), totals.records, totals.fired, len(outputs), len(live)


def _without_index(store: Store) -> tuple[dict[bytes, bytes], set[bytes]]:
    """The rows of a store that count, and the keys of those that are derived from them."""
    found = dict(store.scan(*_ALL_ROWS))
    index = {row for row in found if rows.is_local(row)}
    return {row: value for row, value in found.items() if row not in index}, index


def _folded(log: MemoryLog, changelog: str, partition: int) -> tuple[dict[bytes, bytes], bytes | None]:
    """The rows that a changelog leaves, and its last cut."""
    last = {record.key or b"": record.value for record in log.read(changelog, partition)}
    cut = last.pop(rows.CUT_ROW, None)
    return {row: value for row, value in last.items() if value is not None}, cut


def _emitted(plan: Plan, log: MemoryLog) -> Mapping[int, list[Output]]:
    """All committed outputs by the partition that emitted them, in the order of emission."""
    app = plan.app.encode()
    topics = [*plan.outputs, plan.dead_letters_topic]
    if plan.inbox_topic is not None:
        topics.append(plan.inbox_topic)
    found: dict[int, list[tuple[Origin, Output]]] = defaultdict(list)
    for topic in topics:
        for record in log.read(topic):
            origin = origin_of(record, app)
            if origin is not None:
                output = Output(topic, record.key, record.value, record.timestamp_ms, record.headers)
                found[origin[0]].append((origin, output))
    emitted: dict[int, list[Output]] = defaultdict(list)
    for partition, outputs in found.items():
        outputs.sort(key=lambda one: one[0])
        emitted[partition] = [output for _, output in outputs]
    return emitted


class _Comparison:
    """Raises ReplayDivergedError at the first difference, and says in words what it is."""

    def __init__(self, plan: Plan, partition: int) -> None:
        self._plan = plan
        self._place = f"app {plan.app!r} partition {partition}"

    def outputs(self, then: list[Output], now: list[Output]) -> None:
        """The outputs of both runs, in order."""
        for number, (was, is_) in enumerate(zip_longest(then, now)):
            if was != is_:
                raise ReplayDivergedError(
                    f"output {number} of {self._place} differs: it was {_spell(was)}, the replay has {_spell(is_)}",
                    mend=_MEND,
                )

    def rows(self, name: str, live: dict[bytes, bytes], other: dict[bytes, bytes]) -> None:
        """State rows of the service, and those of the replay or the changelog."""
        if live == other:
            return
        first = min(row for row in live.keys() | other.keys() if live.get(row) != other.get(row))
        where = self._row(first)
        was, is_ = (self._value(first, found.get(first)) for found in (live, other))
        raise ReplayDivergedError(
            f"the state of {self._place} differs in {where}: the service has {was}, {name} has {is_}",
            mend=_MEND,
        )

    def index(self, live: dict[bytes, bytes], index: set[bytes]) -> None:
        """The index names every timer at its time, and every expiry at its time or earlier: that is then looked up."""
        earliest: dict[tuple[int, str, bytes, bytes], int] = {}
        for row in index:
            time_ms, actor, key, name = rows.read_index_row(row)
            known = earliest.setdefault((row[1], actor, key, name), time_ms)
            earliest[row[1], actor, key, name] = min(known, time_ms)
        for row, value in live.items():
            for needed in rows.derived_index_rows(row, None, value).keys() - index:
                time_ms, actor, key, name = rows.read_index_row(needed)
                found_ms = earliest.get((needed[1], actor, key, name))
                if name[:1] != rows.EXPIRY or found_ms is None or found_ms > time_ms:
                    raise ReplayDivergedError(
                        f"the index of {self._place} does not have {self._row(row)}, due at {time_ms} ms",
                        mend="This is a mistake of the framework: please report it.",
                    )

    def cuts(self, name: str, live: bytes | None, other: bytes | None) -> None:
        """Where both stand."""
        if live == other:
            return
        was, is_ = (None if cut is None else tape.decode_cut(cut) for cut in (live, other))
        raise ReplayDivergedError(
            f"{self._place} stands elsewhere: the service at {was}, {name} at {is_}", mend=_MEND
        )

    def _row(self, row: bytes) -> str:
        if row[:1] == rows.STATE:
            parts = rows.read_state_row(row)
            plan = next((one for one in self._plan.actors if one.name == parts.actor), None)
            try:
                key: Any = parts.key if plan is None else plan.key_codec.decode(parts.key)
            except TailraceError:
                key = parts.key
            kinds = {b"": "the fields", b"m": "an entry of a map", b"l": "a list", b"t": "a timer"}
            what = kinds.get(parts.rest[:1], "a row")
            return f"{what} of {parts.actor} of key {key!r}" + (
                f" ({parts.rest[1:]!r})" if parts.rest else ""
            )
        return f"the row {row!r}"

    def _value(self, row: bytes, value: bytes | None) -> str:
        if value is None:
            return "nothing"
        if row[:1] == rows.STATE and not rows.read_state_row(row).rest:
            try:
                return repr(msgspec.msgpack.decode(value[1:]))
            except msgspec.MsgspecError:
                return repr(value)
        return repr(value)


def _spell(output: Output | None) -> str:
    if output is None:
        return "nothing"
    topic, key, value, timestamp_ms, headers = output
    return f"{value!r} to {topic!r} with key {key!r} at {timestamp_ms} ms, headers {headers!r}"
