"""An app continues on another log with another number of partitions, as if it had always had them.

Theory. The rows of a snapshot and the inputs go to other tasks by the murmur2 of their keys. The
new history begins with the new snapshot: it is the *base* on the new tapes. So all that refers to offsets or tasks of the old log
stays there. The old log is only read::

    of the old tasks                     becomes in each new task
    rows: fields, maps, lists, timers    those of its keys, as they are, with the causes of the timers
    watermarks, of sources and actors    the lowest, so no event is late because of the change, and no timer is due at the start
    clock                                the lowest, likewise
    idle sources, ended actors           those that are idle, or have ended, in all tasks
    positions in inputs                  behind the copies of the records that the old tasks have handled
    records not read, messages under     after these copies; of internal topics they alone are copied. Their origin loses task and
    way, events that wait their turn     number, which are of the old log. They keep their ids, and their order among themselves
    numbers of outputs, and of sends     continue from the highest, so no (task, number) is used twice
    ``ctx.random``                       from a lineage of its own: other numbers are drawn than by the old tasks
    other counts, tape, dead letters,    begin again; what is there stays on the old log
    inputs that were left

A key's records were in one partition, and the copy keeps their order; see ``spreading``. An event waits for its turn if it is after the time at which its ordered actor stands; the number and the sum of their offsets must be
those in the cut. Such an event is read again. So it must wait in all that take it, or in none; and its source's watermark is set
back to the actor's.

Steps: ``arriving`` on the target; the rows are written; the topics are copied; the snapshot is published; the tasks are begun from it;
``arrived``. One that is interrupted leaves a target that no app starts on: it begins again with an empty one.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from heapq import merge

import msgspec

from tailrace.core import rows
from tailrace.core.declare.plan import Plan
from tailrace.core.durations import NO_WATERMARK
from tailrace.core.engine import tape
from tailrace.core.engine.input_decoder import InputDecoder
from tailrace.core.errors import OptionError, OtherHistoryError, SnapshotMismatchError
from tailrace.core.names import is_own, moves_of, transactional_id
from tailrace.core.records import CHANNEL, DELETED
from tailrace.core.values.partitioner import partition_of
from tailrace.history.moving.copying import BEGIN_AGAIN, Copied, create_topic
from tailrace.history.moving.moving import Moving, check_source, move_of, stopped
from tailrace.history.moving.spreading import Spread
from tailrace.history.provenance.judging import new_nonce
from tailrace.history.provenance.moves import note_move
from tailrace.history.provenance.topics import check_history
from tailrace.history.reading.app_history import AppHistory
from tailrace.history.reading.app_topics import prepare_topics, topics_of
from tailrace.history.reading.beginnings import base_name
from tailrace.history.reading.generations import at_generation, located
from tailrace.history.reading.handed_over import handed_over
from tailrace.history.reading.stretches import batches
from tailrace.history.snapshots.start_from_snapshot import Start, start_from
from tailrace.history.snapshots.taking import TakingOptions, take_snapshot
from tailrace.log.interface import StoredLog, TopicPartition
from tailrace.processes.environment import environment, timezones_version
from tailrace.state.snapshots import Draft, Manifest, Snapshot, Snapshots, TaskEntry, write_task

_HINT = "Run the app on the old log until it has handled everything (--until-end)."
_NOTHING: frozenset[int] = frozenset()


def reshape(
    plan: Plan, source: StoredLog, target: StoredLog, uri: str, partitions: int
) -> tuple[Manifest, list[Copied]]:
    """Let an app that is stopped continue on ``target`` with other partitions; ``uri``: where snapshots are. Returns the snapshot
    that it begins with, and what was copied. Raises OptionError, OtherHistoryError, SnapshotMismatchError, UnknownTopicError or TaskOwnedError.
    """
    if source.identity == target.identity:
        raise OptionError("the app is to be reshaped into its own log", hint="Name another log (--to).")
    before = _before(plan, source)
    if partitions == before.partitions:
        raise OptionError(f"the app {plan.app!r} has {partitions} partitions already")
    check_history(plan.app, source, plan.inputs)
    with stopped([before], source):
        for number in range(before.partitions):  # what a killed process has left open is aborted
            source.writer(transactional_id(plan.app, number)).close()
        return _Reshaping(before, source, target, uri, partitions).run()


def _before(plan: Plan, source: StoredLog) -> Plan:
    found = located(plan, source)
    return replace(found, partitions=source.partitions(found.changelog_topic))


class _Reshaping:
    def __init__(self, plan: Plan, source: StoredLog, target: StoredLog, uri: str, partitions: int) -> None:
        self._before = plan
        self._after = replace(at_generation(plan, 0), partitions=partitions)  # no upgrade has been there
        self._source, self._target, self._snapshots, self._uri = source, target, Snapshots(uri, plan.app), uri
        history = AppHistory(plan, source)
        found = {number: history.committed(number).cut for number in range(plan.partitions)}
        self._cuts = {number: tape.decode_cut(cut) for number, cut in found.items() if cut}
        self._decoders = {one.name: InputDecoder(plan, one) for one in plan.inputs}
        self._waiting: dict[tuple[str, int], frozenset[int]] = {}
        """By input and old partition, the offsets of the events that wait for their turn."""

    def run(self) -> tuple[Manifest, list[Copied]]:
        """See ``reshape``."""
        plan, source, target = self._before, self._source, self._target
        check_source(plan.app, source, target)
        self._check()
        left = {plan.changelog_topic, self._after.changelog_topic, plan.tape_topic, plan.dead_letters_topic}
        names = [name for name in topics_of(plan, source) if name not in left]
        moving = Moving([plan], source, target, None)
        moving.check_writers()
        moving.check_target([*names, *left])
        self._waiting = {(name, one): self._waiting_in(name, one) for name in names for one in self._cuts}
        note_move(target, [plan.app], move_of("arriving", source))
        draft = self._rows()
        copied, positions = self._copy(names)
        found = self._publish(*draft, positions)
        prepare_topics(target, self._after, create_declared=True)
        start = Start(found, base_name(found, self._uri), timezones=timezones_version())
        for number in range(self._after.partitions):
            start_from(self._after, number, target, start, time.time_ns() // 1_000_000)
        note_move(target, [plan.app], move_of("arrived", source))
        return found.manifest, copied

    # --- may it be done?

    def _check(self) -> None:
        """Refuse what has no place in other tasks."""
        if not self._cuts:
            raise SnapshotMismatchError(
                f"the app {self._before.app!r} has never committed: there is no state yet"
            )
        for name in (one.name for one in self._before.inputs if one.broadcast):
            raise SnapshotMismatchError(
                f"{name!r} is broadcast: each task has a table of it, and these are not reshaped"
            )
        for number, cut in self._cuts.items():
            for name, one in cut.ordered.items():
                if one.late or one.last is not None or one.ready != cut.operators.get(name):
                    raise SnapshotMismatchError(
                        f"partition {number} has late or ready events for {name}", hint=_HINT
                    )

    def _waiting_in(self, name: str, number: int) -> frozenset[int]:
        """The offsets of the records of an input that wait for their turn, see the head of this file."""
        cut, plan = self._cuts[number], self._before
        lows = {operator: one.lows[name] for operator, one in cut.ordered.items() if name in one.lows}
        if not lows:
            return _NOTHING
        counted: dict[str, tuple[int, int]] = dict.fromkeys(lows, (0, 0))
        waiting, in_part = set[int](), False
        input_plan = next(one for one in plan.inputs if one.name == name)
        start = min(low for low, _, _ in lows.values())
        for some in batches(self._source, name, number, start, cut.positions[name], whole=True):
            for offset, time_ms, _, event, _ in self._decoders[name].decode(some):
                if time_ms is None or offset in cut.refused.get(name, ()):
                    continue
                routes = event.routes if input_plan.is_inbox else input_plan.routes
                if input_plan.is_table:
                    routes = [route for route in routes if route.deletes is (event is DELETED)]
                takers = {plan.operators[route.operator].name for route in routes}
                waits = [one for one in takers if one in lows and time_ms > cut.operators[one]]
                for one in waits:
                    counted[one] = counted[one][0] + 1, counted[one][1] + offset
                in_part = in_part or 0 < len(waits) < len(takers)
                waiting.update([offset] if waits else [])
        if in_part or any(counted[one] != (count, total) for one, (_, count, total) in lows.items()):
            raise SnapshotMismatchError(
                f"events of {name!r} partition {number} wait for their turn in {min(lows)}, and another actor has handled them, or "
                "this code does not find them",
                hint=f"Use the code that ran there last. {_HINT}",
            )
        return frozenset(waiting)

    def _copy(self, names: Sequence[str]) -> tuple[list[Copied], dict[str, list[int]]]:
        """Copy topics; returns what was copied, and by input where each new task continues."""
        source, plan = self._source, self._before
        noted = [*names, plan.changelog_topic, plan.tape_topic]
        ends = {name: [*at] for name, at in source.ends(noted).offsets.items()}
        begun = handed_over(source, names, names)
        found: dict[str, tuple[Copied, list[int]]] = {}
        with closing(self._target.placer(moves_of(plan.app))) as placer:
            for name in names:
                has_own = len(ends[name]) != plan.partitions  # an output with a number of its own keeps it
                create_topic(source, self._target, name, None if has_own else self._after.partitions)
                places = [TopicPartition(name, number) for number in range(len(ends[name]))]
                starts = [max(begun.get(place, 0), source.start_offset(*place)) for place in places]
                copy = Spread(plan, source, self._target, placer, name)
                found[name] = self._spread(copy, name, starts, ends[name])
        now = source.ends(noted).offsets
        if any([*now[name]] != ends[name] for name in noted):
            raise OtherHistoryError(
                f"something has written to the topics of {plan.app!r} on the old log while they were copied",
                why="log",
                hint=f"Stop the producers for the copy. {BEGIN_AGAIN}",
            )
        read = {name for cut in self._cuts.values() for name in cut.positions}
        positions = {name: at for name, (_, at) in found.items() if name in read}
        return [one for one, _ in found.values()], positions

    def _spread(
        self, copy: Spread, name: str, starts: Sequence[int], ends: Sequence[int]
    ) -> tuple[Copied, list[int]]:
        """Copy a topic: what was handled, then the rest. Returns where the rest begins, too."""
        stands = [*(starts if any(name in cut.positions for cut in self._cuts.values()) else ends)]
        for number, cut in self._cuts.items():
            if name in cut.positions:
                stands[number] = cut.positions[name]
        again = [self._waiting.get((name, number), _NOTHING) for number in range(len(starts))]

        def is_handled(number: int, offset: int) -> bool:
            return offset < stands[number] and offset not in again[number]

        if not is_own(name, self._before.app):
            copy.add(starts, stands, is_handled)
        positions = [*copy.ends]
        lowest = [min([at, *some]) for at, some in zip(stands, again, strict=True)]
        copy.add(lowest, ends, lambda number, offset: not is_handled(number, offset))
        return copy.done(), positions

    def _rows(self) -> tuple[Draft, list[TaskEntry]]:
        """Write the rows of each new task, and what it is without its cut."""
        made = take_snapshot(self._before, self._source, self._snapshots, TakingOptions(automatic=True))
        schema, *others = {one.schema for one in made.tasks if one.cut}
        if others:
            raise SnapshotMismatchError(
                "some tasks have not committed since the code was changed last: their states have different schemas",
                hint="Run the app on the old log until all of its tasks have committed (--until-end).",
            )
        base, draft, tasks = self._snapshots.open(made.id), self._snapshots.begin(), list[TaskEntry]()
        for number in range(self._after.partitions):
            found = [self._rows_for(base.rows(old), old, number) for old in self._cuts]
            files = write_task(draft.folder_uri, number, "reshaped", merge(*found))
            tasks.append(TaskEntry(number, b"", schema=schema, files=files, waiting={}))
        return draft, tasks

    def _rows_for(
        self, found: Iterable[tuple[bytes, bytes]], old: int, number: int
    ) -> Iterator[tuple[bytes, bytes]]:
        """The rows of an old task that go to a new one."""
        prefix, is_wanted = b"?", False
        for row, value in found:
            if not row.startswith(prefix):
                prefix, parts = rows.key_prefix(row), rows.read_state_row(row)
                if partition_of(parts.key, self._before.partitions) != old:
                    raise SnapshotMismatchError(
                        f"partition {old} has the key {parts.key!r} of {parts.actor}, which belongs to another one"
                    )
                is_wanted = partition_of(parts.key, self._after.partitions) == number
            if is_wanted:
                yield row, value

    def _cut(self, number: int, positions: Mapping[str, list[int]]) -> bytes:
        """The cut with which a new task begins; see the head of this file."""
        cuts, identity = [*self._cuts.values()], new_nonce()
        marks, operators = (_lowest([getattr(one, of) for one in cuts]) for of in ("watermarks", "operators"))
        for name, old in (place for place, some in self._waiting.items() if some):
            stood = [operators[actor] for actor, one in self._cuts[old].ordered.items() if name in one.lows]
            marks |= {of: min(mark, *stood) for of, mark in marks.items() if of.partition(CHANNEL)[0] == name}
        cut = tape.Cut(
            tape.FORMAT,
            self._before.app,
            number,
            identity,
            {name: at[number] for name, at in positions.items()},
            marks,
            _in_all([cut.idle for cut in cuts]),
            min(cut.watermark for cut in cuts),
            min(cut.now for cut in cuts),
            tape.Totals(outputs=max(cut.totals.outputs for cut in cuts)),
            0,
            operators=operators,
            ended_operators=_in_all([cut.ended_operators for cut in cuts]),
            identity=identity,
            sent=tape.highest([cut.sent for cut in cuts]),
        )
        return tape.encode(cut)

    def _publish(
        self, draft: Draft, tasks: Sequence[TaskEntry], positions: Mapping[str, list[int]]
    ) -> Snapshot:
        """Publish the snapshot that the new history begins with."""
        plan = self._after
        manifest = Manifest(
            id=draft.id,
            app=plan.app,
            version=plan.version,
            partitions=plan.partitions,
            created_ms=draft.created_ms,
            source="edited",
            environment=environment(),
            ends=self._target.ends(positions).offsets,
            tasks=tuple(
                msgspec.structs.replace(one, cut=self._cut(one.partition, positions)) for one in tasks
            ),
            notes=(f"reshaped from {self._before.partitions} partitions",),
        )
        return self._snapshots.open(self._snapshots.publish(manifest).id)


def _lowest(some: Sequence[Mapping[str, int]]) -> dict[str, int]:
    names = dict.fromkeys(name for one in some for name in one)
    return {name: min(one.get(name, NO_WATERMARK) for one in some) for name in names}


def _in_all(some: Sequence[Sequence[str]]) -> list[str]:
    return [one for one in some[0] if all(one in names for names in some)]
