"""Run a task again along its tape.

Theory. The tape has the causes, the log has the records, and the code determines the rest. A replay gives a
task the same causes in the same order. It checks that each record follows the one before (see
``TapeRecord.identity``). After each tape record the task must be in the state in which the first run
committed, even in the middle of a drain. The replay compares its totals, its watermarks and a digest of its outputs with the tape's.

So any code may follow the tape whose results equal what is recorded. The first difference ends the run: a commit that comes out
differently, or a failure that the tape does not have. The error names the commit, its records, and both versions of the code.

A replay decides nothing by itself: not the order of inputs (the runs on the tape give it), not whether an
input is idle, and not whether a failing handler is skipped.

An input that was added to an app has no records before the start that added it. The first tape record of each
start names the inputs of that time, and until then no watermark waits for an input that was added later.

The log must still have every record that the first run has taken. Their number (handled, refused, and
redriven for other apps) is on the tape, and depends neither on the code nor on the replayed keys. So it is
compared in every replay, also where a limit or a difference ends one within a commit. Offsets without a record
are no error by themselves: a log may have markers there. Compaction also leaves gaps, which change the
number of records.

A replay of *some keys* (``Watch.keys``) calls handlers only for these keys. Only values that do not depend on
keys can be compared with the tape: records, lateness, watermarks. It drains every step to its end, because
the next cause always came after the drain.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import msgspec

from tailrace.core.engine import tape
from tailrace.core.engine.describe_rows import instant
from tailrace.core.engine.intake import Intake, Source
from tailrace.core.engine.task import Task
from tailrace.core.engine.timers import FOREVER
from tailrace.core.errors import (
    KEPT_ELSEWHERE,
    EnvironmentMismatchError,
    InputsChangedError,
    OffsetGoneError,
    ReplayDivergedError,
)
from tailrace.core.records import Head, Headers

__all__ = ["Limit", "Limits", "Replay", "Source"]

_OF_RECORDS = ("records", "late", "refused")
"""Totals that do not depend on which keys are replayed. But a late event of an ordered operator counts when it is handled."""


@dataclass(frozen=True, slots=True)
class Limit:
    """Where to stop: as soon as one of these limits is reached.

    ``offsets``, by input: the first record that is not taken. ``watermark_ms``: after the step in which all
    operators nearest to the sources have reached it. ``as_of_ms``, in stages only: see ``stage_order``.
    """

    offsets: Mapping[str, int] = field(default_factory=dict[str, int])
    watermark_ms: int | None = None
    as_of_ms: int | None = None


@dataclass(frozen=True, slots=True)
class Limits:
    """Where the tasks stop. Each task stops as soon as it reaches one of these limits: see ``Limit``."""

    offsets: Mapping[str, Mapping[int, int]] = field(default_factory=dict[str, Mapping[int, int]])
    """By input and partition."""
    watermark_ms: int | None = None

    @property
    def any(self) -> bool:
        """Whether any task has a limit."""
        return bool(self.offsets) or self.watermark_ms is not None

    def of(self, partition: int) -> Limit:
        """The limit of a partition's task."""
        offsets = {name: ends[partition] for name, ends in self.offsets.items() if partition in ends}
        return Limit(offsets, self.watermark_ms)


class Replay:
    """A task that advances along its tape: call ``take`` for each record in turn.

    ``task`` must be made with ``replaying=True``. ``some_keys``: the task handles only some keys.
    """

    def __init__(
        self,
        task: Task,
        source: Source,
        *,
        limit: Limit | None = None,
        some_keys: bool = False,
        any_environment: bool = False,
    ) -> None:
        self.task = task
        self.others: list[str] = []
        """Versions other than that of the code that have written a part of the tape."""
        self.is_at_end = False
        """Whether all causes of the current tape record were taken."""
        self._version = ""
        """The version that has written the current tape record."""
        self._source = source
        self._limit = limit or Limit()
        self._some_keys = some_keys
        self._any_environment = any_environment
        starts = task.positions
        self._intakes = [Intake(task, one.index, source, starts[one.name]) for one in task.plan.inputs]
        self._ends = [0] * len(self._intakes)
        """By input: its position after the current tape record, or at the limit. Reading ahead stops there.
        """
        self._numbers = {name: number for number, name in enumerate(task.plan.sources)}
        self._names = list(self._numbers)
        self._operators = [one.name for one in task.plan.operators]
        """The operators of the first run, in the order of their numbers at that time."""
        self._skips: dict[tuple[int, int, int], Headers] = {}
        self._record = tape.TapeRecord(tape.FORMAT, -1, [], [], task.totals, 0)
        self._taken_before = (0, 0)
        """Number of records taken before the current tape record: by the first run, and by the task."""
        self._stretches: list[tuple[str, int, int]] = []
        """By input: its name, and the offsets from which and up to which the current tape record reads it."""

    def follow_on(self, record: tape.TapeRecord) -> None:
        """Set the version, and inputs and operators of the first run by number, for a tape not read from a task's start."""
        self._version = record.version or self._version
        if record.inputs is not None:
            self._names = [*record.inputs, *record.channels]
            self.task.watermarks.count_only(self._names)
        self._operators = record.operators or self._operators

    def take(self, record: tape.TapeRecord) -> bool:
        """Run the causes of one commit; False if the limit was reached before all were run.

        The caller takes the outputs and the batch.

        Raises:
            ReplayDivergedError: The replay ends in another state than the first run.
            OffsetGoneError: The log no longer has all records that the first run has taken.
            EnvironmentMismatchError: The tape was written under another Python, msgspec or tzdata.
            InputsChangedError: The app no longer reads an input that it read in the first run.
        """
        self._taken_before = _taken(self._record.totals), _taken(self.task.totals)
        self._record, self.is_at_end = record, False
        self._check_start()
        causes = list(tape.causes_of(record.causes))
        self._begin(causes)
        self._look_ahead(causes)
        try:
            self.is_at_end = self._take(causes)
            self._check_taken()
            if self.is_at_end:
                self._check_end()
        except ReplayDivergedError as error:
            if not self.is_at_end:
                self._check_taken()  # if records are missing, the error may only be a consequence
            error.what = f"{error.what.rstrip('.')}. {self._versions()}"
            error.hint = error.hint or (
                "A replay needs code with the results that are recorded. Other code runs in stages (tailrace rebuild --order stages)."
            )
            raise
        if self.is_at_end:
            self.task.identify(record.identity)
        return self.is_at_end

    def _take(self, causes: list[Sequence[int]]) -> bool:
        task, record = self.task, self._record
        self._skips = {
            (self._skipped_input(skip.input), skip.number, self._skipper(skip.operator)): tuple(skip.headers)
            for skip in record.skips
        }
        # Only the last cause may have been left in the middle of its drain: all others were drained before
        # the next cause.
        task.follow(self._skips, FOREVER, record.skips if self._some_keys else None)
        while causes and self._reopen(causes[0]):
            del causes[0]
        self._stop_if(last=not causes)
        self._drain(last=not causes)
        for at, cause in enumerate(causes, 1):
            if not self._cause(cause, last=at == len(causes)):
                return False
        task.follow({}, FOREVER)
        return True

    def _skipped_input(self, number: int) -> int:
        return number if number < 0 else self._number(number)

    def _skipper(self, operator: int) -> int:
        return operator if operator < 0 else self._operator(operator)

    def _look_ahead(self, causes: Sequence[Sequence[int]]) -> None:
        task = self.task
        ends = {one.name: task.positions[one.name] for one in task.plan.inputs}
        for code, *arguments in causes:
            if code == tape.RUN:
                name = self._names[arguments[0]]
                ends[name] = ends.get(name, 0) + arguments[1]
        self._stretches = [(one.name, task.positions[one.name], ends[one.name]) for one in task.plan.inputs]
        limits = self._limit.offsets
        self._ends = [min(ends[one.name], limits.get(one.name, FOREVER)) for one in task.plan.inputs]

    def _cause(self, cause: Sequence[int], *, last: bool) -> bool:
        task = self.task
        code, *arguments = cause
        if self._at_watermark():
            return False
        if code == tape.RUN:
            return self._run(self._number(arguments[0]), arguments[1], last=last)
        self._stop_if(last=last)
        if code == tape.CLOCK:
            task.clock(task.now + arguments[0])
        elif code == tape.IDLE:
            task.idle(self._number(arguments[0]))
        elif code == tape.UPSTREAM:
            number = self._number(arguments[0])
            task.upstream(number, task.watermark_of(number) + arguments[1])
        elif code == tape.ENDED:
            task.ended(self._operator(arguments[0]))
        elif code == tape.OPENED:
            task.opened(self._operator(arguments[0]))
        elif code == tape.RISEN:
            task.finish(self._operator(arguments[0]), arguments[1])
        elif code == tape.RAISED:
            task.raised({self._operator(arguments[0]): arguments[1]}, more=bool(arguments[2]))
        self._drain(last=last)
        return not self._at_watermark()

    def _reopen(self, cause: Sequence[int]) -> bool:
        """Take a cause that moves no watermark, so may precede a drain's end. Returns whether it did."""
        task = self.task
        match cause:
            case (tape.UPSTREAM, source, 0) if task.watermarks.idle[number := self._number(source)]:
                task.wake(number)
            case (tape.OPENED, operator):
                task.opened(self._operator(operator))
            case _:
                return False
        return True

    def _run(self, number: int, count: int, *, last: bool) -> bool:
        task, name = self.task, self.task.plan.inputs[number].name
        start = task.positions[name]
        stop = start + count
        here = min(stop, max(start, self._limit.offsets.get(name, stop)))
        last = last and here == stop
        # The last record before a commit is taken separately. It is known only after the next batch was read.
        held: Sequence[Head] = ()
        for heads in self._intakes[number].run(start, here, max(here, self._ends[number])):
            if last:
                heads = [*held, *heads]
                heads, held = heads[:-1], heads[-1:]
            if not self._feed(number, heads, last=False):
                return False
        if last:
            self._stop_if(last=True)
            if not self._feed(number, held, last=True):
                return False
        task.skip_to(number, here)
        return here == stop

    def _feed(self, number: int, heads: Sequence[Head], *, last: bool) -> bool:
        """Let the task take records, all of them or until the watermark limit is reached."""
        whole = self._limit.watermark_ms is None
        for portion in (heads,) if whole else ([head] for head in heads):
            taken = 0
            while taken < len(portion):
                taken = self.task.run(number, portion, taken)
                self._drain(last=last)
            if self._at_watermark():
                return False
        return True

    def _at_watermark(self) -> bool:
        limit_ms = self._limit.watermark_ms
        return limit_ms is not None and self.task.watermarks.of_first_level >= limit_ms

    def _stop_if(self, *, last: bool) -> None:
        """For the last cause: if the first run committed within its drain, let the drain stop after as much as then."""
        if last and self._is_cut_short:
            self.task.follow(self._skips, self._record.totals.drained)

    def _drain(self, *, last: bool) -> None:
        """Drain to the end; after the last cause, only as far as the first run had at the commit."""
        task, drained = self.task, self._record.totals.drained
        while task.draining and not (last and self._is_cut_short and task.totals.drained >= drained):
            task.drain()

    @property
    def _is_cut_short(self) -> bool:
        """Whether the commit is within a drain. Otherwise even code that fires other timers drains to the end."""
        return self._record.within_drain and not self._some_keys

    # --- checks

    def _check_start(self) -> None:
        record, task = self._record, self.task
        if record.number != task.tape_number:
            raise ReplayDivergedError(
                f"the tape continues with record {record.number}, the replay stands at {task.tape_number}",
                hint="A part of the tape is missing: a replay needs all of it.",
            )
        if not record.follows(task.identity):
            raise ReplayDivergedError(
                f"commit {record.number} of app {task.plan.app!r} partition {task.partition} does not follow "
                f"the commit before it, whose identity is {tape.shown_identity(task.identity)}",
                hint="The tape is put together from two histories: the log has lost its end and was "
                "continued, or what is read with it was made of another log. Use only what was "
                "made of this log.",
            )
        task.identify(tape.identity_within(task.identity, record.number))
        here = tape.environment(task.settings.timezones)
        if record.environment is not None and record.environment != here and not self._any_environment:
            raise EnvironmentMismatchError(
                f"the tape was written under {record.environment}, this is {here}",
                hint="Results may differ in floating point sums, time zones and hash order. "
                "Replay under the same versions, or with --any-environment.",
            )

    def _begin(self, causes: Sequence[Sequence[int]]) -> None:
        """At the first record after a start, take over the names and start positions of the inputs."""
        record = self._record
        self.follow_on(record)
        if self._version not in {"", self.task.plan.version, *self.others}:
            self.others.append(self._version)
        if record.inputs is None:
            return
        taken = [0] * len(self._names)
        for code, *arguments in causes:
            if code == tape.RUN:
                taken[arguments[0]] += arguments[1]
        for name, end, count in zip(self._names, record.positions or (), taken, strict=False):
            if name in self._numbers:
                self.task.positions[name] = end - count

    def _number(self, then: int) -> int:
        """The number of an input now, given its number when the tape was written."""
        name = self._names[then]
        if name not in self._numbers:
            raise InputsChangedError(
                f"the app {self.task.plan.app!r} does not read {name!r} now, and did at commit "
                f"{self._record.number}",
                hint="Declare the former input again, or replay with the code of that time.",
            )
        return self._numbers[name]

    def _operator(self, then: int) -> int:
        name = self._operators[then]
        found = next((one.index for one in self.task.plan.operators if one.name == name), None)
        if found is None:
            raise InputsChangedError(
                f"the app {self.task.plan.app!r} has no actor {name!r} now, and had at commit "
                f"{self._record.number}",
                hint="Replay with the code of that time.",
            )
        return found

    def _check_taken(self) -> None:
        """Check that the log has all records of the current tape record; see the head of this file."""
        task, record = self.task, self._record
        wanted = _taken(record.totals) - self._taken_before[0]
        found = _taken(task.totals) - self._taken_before[1]
        if found == wanted:
            return
        rest = [(name, task.positions[name], end) for name, _, end in self._stretches]
        offsets = sum(task.positions[name] - start for name, start, _ in self._stretches)
        if found == offsets and any(start < end for _, start, end in rest):
            return  # within a commit, a part without gaps is whole
        try:
            found += sum(len(self._source(*one)) for one in rest if one[1] < one[2])
        except OffsetGoneError:
            return  # the part up to here cannot be judged
        if found == wanted:
            return
        left = [(*one, len(self._source(*one))) for one in self._stretches if one[1] < one[2]]
        gaps = [one for one in left if one[2] - one[1] > one[3]]
        if found > wanted or not gaps:
            raise ReplayDivergedError(
                f"commit {record.number} of app {task.plan.app!r} partition {task.partition} came out "
                f"differently: it has taken {wanted:,} records, and its causes on the tape give {found:,}",
                hint="The tape was changed, or the log now has other records in these places.",
            )
        places = "; ".join(
            f"{name}, offsets {start:,} to {end - 1:,}: {n:,} left" for name, start, end, n in gaps
        )
        raise OffsetGoneError(
            f"commit {record.number} of app {task.plan.app!r} has taken {wanted:,} records, and "
            f"{wanted - found:,} of them are missing in the log now ({places})",
            topic=gaps[0][0],
            partition=task.partition,
            offset=gaps[0][1],
            hint="A compacted topic loses all but the last record of each key. Without the others this "
            f"history cannot be replayed. Read them from {KEPT_ELSEWHERE}, or rebuild from a later "
            "snapshot (--from-snapshot) or in stages (--order stages). The last reads the "
            "records that are left: the state may then differ.",
        )

    def _check_end(self) -> None:
        task, record = self.task, self._record
        then, now = msgspec.structs.asdict(record.totals), msgspec.structs.asdict(task.totals)
        now["outputs"] += task.waiting_outputs
        drained_on = self._some_keys and any(one.ordered for one in task.plan.operators)
        differing = [
            f"{name}: {was} then, {now[name]} now"
            for name, was in then.items()
            if was != now[name]
            and (not self._some_keys or (name in _OF_RECORDS and not (drained_on and name == "late")))
        ]
        here = {one.name: task.watermarks.of_operator[one.index] for one in task.plan.operators}
        differing += [
            f"watermark of {name}: {instant(was)} then, {instant(here[name])} now"
            for name, was in zip(self._operators, record.watermarks, strict=False)
            if name in here and (here[name] < was or (here[name] > was and not drained_on))
        ]
        if not self._some_keys and record.emitted != task.emitted:
            differing += [] if any(one.startswith("outputs") for one in differing) else ["other outputs"]
        if not differing:
            return
        read = [
            f"{name} {start}" + f" to {end - 1}" * (end - 1 > start)
            for name, start, end in self._stretches
            if start < end
        ]
        raise ReplayDivergedError(
            f"commit {record.number} of app {task.plan.app!r} partition {task.partition} came out differently "
            f"({', '.join(differing)}); it has taken {', '.join(read) or 'no records'}"
        )

    def _versions(self) -> str:
        """A sentence that names the version on the tape, and the present one."""
        here = self.task.plan.version
        if self._version == here:
            return (
                f"The tape was written by version {here!r}, as this code calls itself: the code was changed, or it depends on "
                "something that is not on the tape"
            )
        return f"The tape was written by version {self._version!r}, and this code is version {here!r}"


def _taken(totals: tape.Totals) -> int:
    return totals.records + totals.refused
