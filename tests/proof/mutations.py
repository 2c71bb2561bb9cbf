"""Mistakes put into the framework on purpose, a few for each law, to show that the tests of the law are able to fail.

    python -m tests.proof.mutations [NAME ...]   # all of them by default; 0 if the tests notice each

The text of a mistake is compared with the function as ``ast.unparse`` writes it: without comments, in single quotes, a statement a
line. So no formatting of the code matters. A function or a text that is not there, or is there twice, is an error.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator, Sequence
from functools import partial
from typing import NamedTuple

from tests.proof.mutating import NOTICED, Mutant, Run, runs

SEEDS = 400
"""Of the property tests that must notice a mistake, up to the first that does."""


class Mutation(NamedTuple):
    """One mistake: in which function ("module:Class.method") or constant, what stands there, what replaces it, and what notices it."""

    place: str
    before: str
    after: str
    tests: str


_CLOCKS = "tests/runtime/test_clocks.py"
_CONTRACT = "tests/log/embedded/test_contract.py"
_ENDS = "tests/log/test_consistent_ends.py -k within_the_cut"
_LAWS = "tests/proof/test_laws.py"
_OFFSETS = "tests/runtime/test_restore.py -k TestOffsets"
_ORACLE = "tests/oracle/test_oracle.py -k whatever"
_OTHER = "tests/runtime/test_other_histories.py tests/core/test_commit_identity.py"
_PROGRAMS = "tests/library/test_random_programs.py -k harness"
_REPLAY = "tests/proof/test_replay.py"
_SENDS = "tests/cast/test_sends.py"
_SHARED = "tests/runtime/test_shared_transaction.py"
_SIMULATION = "tests/proof/test_simulation.py"
_STAGES = "tests/history/rebuilding/test_stages.py"
_WEBS = "tests/cast/test_matrix.py -k 'in_memory and webs'"

MUTATIONS: dict[int, dict[str, Mutation]] = {
    # The log is the truth: state is a function of log, tape and code.
    1: {
        "randomness-from-the-process": Mutation(
            "core.declare.context:Context._digest", "drawn(self._lineage", "drawn(b'%d' % id(self)", _REPLAY
        ),
        "an-idle-input-that-is-not-on-the-tape": Mutation(
            "core.engine.task:Task.idle", "self._tape.cause(tape.IDLE, source, 1)", "pass", _REPLAY
        ),
        "a-restore-that-stops-short": Mutation(
            "runtime.restore:ChangelogEnd.__init__", "log.end_offset(*changelog)", "log.end_offset(*changelog) - 3", _SIMULATION
        ),
    },
    # One key, one owner, one event at a time.
    2: {
        "no-look-at-the-partition-of-a-key": Mutation(
            "core.engine.actor_table:Table.load", "cells.partitions > 1 and", "cells.partitions > 9 and", f"{_LAWS} -k partition"
        ),
        "a-writer-that-is-not-fenced": Mutation(
            "testing.memory_log:MemoryWriter._enter", "not self._log.is_holder(self)", "False", _SIMULATION
        ),
        "an-embedded-writer-that-is-not-fenced": Mutation(
            "log.embedded.writer:EmbeddedWriter._require_holder", "!= (self.epoch,)", "is None", f"{_CONTRACT} -k taken_over"
        ),
        "a-lost-member-of-kafka-taken-for-an-outage": Mutation(
            "log.kafka.failures:_FENCED", ", 'UNKNOWN_MEMBER_ID'", "", "tests/kafka/test_client.py"
        ),
    },
    # Nothing is visible until it is committed; a crash loses nothing and repeats nothing.
    3: {
        "outputs-outside-of-the-transaction": Mutation(
            "runtime.slices:Slices._send", "self.writer.append", "self.writer._log.append_all", _SIMULATION
        ),
        "an-unknown-outcome-taken-for-none": Mutation(
            "runtime.partition:Partition.doubt", "self.lifecycle.on(Event.OUTCOME_UNKNOWN)\n    self._drop()", "assert self._slices and self._staged\n    self._slices.committed(self._staged[1])\n    self.lifecycle.on(Event.COMMITTED)", _SIMULATION
        ),
        "a-cut-that-moves-no-sender": Mutation(
            "log.consistent_ends:_Cut.find", "self._close()", "pass", _ENDS
        ),
        "records-committed-without-their-offsets": Mutation(
            "log.shared_transaction:SharedTransaction.commit", "one.wrote and one not in writers", "False", f"{_SHARED} -k records_of_a_task_without"
        ),
        "a-failed-commit-that-one-task-alone-undoes": Mutation(
            "runtime.commits:commit_together", "except Exception as error:\n        for one in partitions:", "except Exception as error:\n        for one in partitions[:1]:", f"{_SHARED} -k commit_that_fails"
        ),
    },
    # The core does no I/O, reads no clock and draws no randomness.
    4: {
        "a-clock-in-the-core": Mutation(
            "core.engine.task:Task.clock", "self._not_draining()", "self._not_draining()\n    __import__('time').time()", f"{_LAWS} -k core"
        ),
        "the-global-random-generator": Mutation(
            "core.declare.context:Context._digest", "unit.draws + 1", "unit.draws + 1 + int(__import__('random').random())", f"{_LAWS} -k core"
        ),
    },
    # Results do not depend on batching.
    5: {
        "a-seed-that-follows-the-slice": Mutation(
            "core.engine.task:Task._take", "= (key, time_ms, record)", "= (key, time_ms, record._replace(offset=taken))", _REPLAY
        ),
        "instances-kept-as-they-were-assigned": Mutation(
            "core.engine.actor_table:Table.settle", "cells.reload or not plan.fixed", "cells.reload", _REPLAY
        ),
        "entries-of-a-failed-unit-kept": Mutation(
            "core.handling.entries:Entries.seal", "continue\n        undo.append((pending, name, pending.get(name, MISSING)))", "continue", _REPLAY
        ),
        "a-record-not-taken-that-wakes-its-input": Mutation(
            "core.engine.task:Task._run", "marks.idle[number] = slept", "pass", f"{_LAWS} -k wakes_nothing"
        ),
    },
    # Replay equals live, byte for byte.
    6: {
        "a-clock-reading-that-is-not-on-the-tape": Mutation(
            "core.engine.task:Task.clock", "self._tape.cause(tape.CLOCK, now_ms - self._context.now)", "pass", _REPLAY
        ),
        "outputs-numbered-anew-after-a-restart": Mutation(
            "core.engine.task_state:TaskState.commit_batch.cut", "self.totals), self._tape.number", "self.totals, outputs=0), self._tape.number", _REPLAY
        ),
        "a-nan-with-the-bits-of-the-interpreter": Mutation(
            "core.declare.event_codec:EventCodec.__init__", "canonical_writer(type, self._write)", "self._write", "tests/proof/test_nan.py -k event"
        ),
    },
    # Watermarks never go back. A timer fires at most once.
    7: {
        "a-watermark-that-follows-its-inputs-down": Mutation(
            "core.engine.watermarks:Watermarks.advance", "mark > self.ready", "mark != self.ready", _ORACLE
        ),
        "a-moved-timer-that-fires-twice": Mutation(
            "core.engine.firing:Firing.fire", "None or timer.time_ms != time_ms", "None", _ORACLE
        ),
        "a-cancelled-timer-that-fires": Mutation(
            "core.engine.actor_timers:ActorTimers.move_timer", "del timers[timer]", "pass", _ORACLE
        ),
    },
    # Every failure is loud.
    8: {
        "a-refused-record-dropped-in-silence": Mutation(
            "core.engine.units:Units.refuse", "raise error\n    assert record is not None\n    self.totals.refused += 1", "pass\n    assert record is not None\n    self.totals.refused += 1\n    return 1", f"{_LAWS} -k loud"
        ),
        "late-events-not-counted": Mutation(
            "core.engine.task:Task._end_unit", "self.totals.late += self._late_events", "pass", f"{_LAWS} -k loud"
        ),
        "a-clock-far-ahead-taken-at-a-start": Mutation(
            "runtime.clocks:check_start", "abs(ahead_ms) <= A_DAY_MS", "True", _CLOCKS
        ),
    },
    # Results are correct, not only repeatable.
    9: {
        "an-event-at-the-watermark-in-time": Mutation(
            "core.engine.task:Task._take", "time_ms <= watermark and judged", "time_ms < watermark and judged", _ORACLE
        ),
        "the-timers-of-a-failed-handler": Mutation(
            "core.engine.actor_timers:ActorTimers.move_timer", "self.cells.undo.append((timers, timer, MISSING if old is None else old))", "pass", _ORACLE
        ),
        "a-drain-that-does-not-hold-what-is-published": Mutation(
            "core.engine.watermarks:Watermarks.published_ms", "if held:", "if False:", _WEBS
        ),
        "sessions-that-do-not-merge": Mutation(
            "library.panes:_Sessions.near", "return found if", "return found[:1] if", _PROGRAMS
        ),
        "pairs-given-twice": Mutation(
            "library.sides:Side.add", "newer = times = ()", "pass", _PROGRAMS
        ),
    },
    # The results of ordered actors are a function of the set of their events.
    10: {
        "lateness-by-the-watermark-of-the-operator": Mutation(
            "core.engine.ordered_task:OrderedTask._arrive.own_ms", "marks.of_source[plan.index]", "max(marks.ready)", "tests/proof/test_independent.py -k ordered"
        ),
        "equal-times-by-the-order-of-arrival": Mutation(
            "core.engine.waiting:Waiting.place_of", "return (self._ranks[number], one.tail(head))", "return (0, one.tail(head))", _ORACLE
        ),
        "a-place-by-the-offset-in-an-own-topic": Mutation(
            "core.unit_ids:RecordIds.tail_of", "return inner[1]", "return b'\\x00' + record.offset.to_bytes(8, 'big')", _SENDS
        ),
        "an-id-by-the-offset-in-an-own-topic": Mutation(
            "core.unit_ids:RecordIds.id_of", "if self._inner is None or (inner := self._of(record)) is None", "if True", _SENDS
        ),
        "a-stage-sorted-by-time-before-lateness": Mutation(
            "core.engine.input_lane:InputLane.fill", "self.heads, records = found", "self.heads, records = (sorted(found[0], key=lambda one: one[1] or 0), found[1])", f"{_STAGES} -k late"
        ),
        "reference-data-after-its-event": Mutation(
            "core.engine.stage_order:StageOrder._choose", "time_ms <= event_ms", "time_ms < event_ms", f"{_STAGES} -k reference"
        ),
        "raised-before-what-was-sent-is-read": Mutation(
            "core.engine.stage_order:StageOrder.go", "yield from self._records()", "task.raised(past.stand.marks if past.stand else {})\n    yield from self._records()", "tests/cast/test_stages.py"
        ),
        "ranges-of-keys-joined-without-the-steps": Mutation(
            "core.engine.key_ranges:RangeUnits.invoke_timer", "taken = self.taken_before + self.unit.taken", "taken = 0", "tests/cast/test_ranges.py -k everything"
        ),
        "a-timer-before-the-events-of-its-instant": Mutation(
            "core.engine.ordering:Sweep._next_timer", "(event_ms, -1,", "(event_ms + 1, -1,", _ORACLE
        ),
    },
    # What is read is known again.
    11: {
        "a-store-of-another-history-taken-up": Mutation(
            "runtime.restore:Restore._not_of_this_history", "does('store', found) != 'take'", "False", _OTHER
        ),
        "records-deleted-unread-stepped-over": Mutation(
            "runtime.restore:Restore._step_over", "not self.settings.after_deleted", "False", _OFFSETS
        ),
        "a-changelog-with-a-hole-taken-for-the-state": Mutation(
            "history.reading.changelog:check_contents", "noted is None or noted == found", "True", "tests/runtime/test_restore.py -k TestHoles"
        ),
    },
    # Any code may follow the tape as long as its results equal what is recorded.
    12: {
        "a-tape-of-two-histories-replayed": Mutation(
            "core.engine.replay:Replay._check_start", "not record.follows(task.identity)", "False", _OTHER
        ),
        "a-digest-of-the-code-without-its-modules": Mutation(
            "history.rebuilding.code_digest:code_of", "parts |= {f'sources {name}': _digest(name) for name in own}", "pass", "tests/history/rebuilding/test_code.py::test_a_helper_counts"
        ),
    },
}  # fmt: skip
"""The mistakes by law, as docs/reliability.md numbers these."""


class NotFoundError(LookupError):
    """What a mutation replaces is not there, or more than once."""


def change(mutation: Mutation, tree: ast.Module) -> None:
    """Put the mistake into the syntax tree of its module. Raises NotFoundError if it does not fit."""
    wanted = mutation.place.partition(":")[2]
    found = [
        (body, at)
        for name, body, at in _named(tree, "")
        if name == wanted and mutation.before in ast.unparse(body[at])
    ]
    times = [ast.unparse(body[at]).count(mutation.before) for body, at in found]
    if times != [1]:
        raise NotFoundError(f"{mutation.before!r} is {sum(times)} times in {mutation.place}")
    ((body, at),) = found
    (body[at],) = ast.parse(ast.unparse(body[at]).replace(mutation.before, mutation.after)).body


def _named(parent: ast.AST, path: str) -> Iterator[tuple[str, list[ast.stmt], int]]:
    """Every definition below, by its name: the statements that it is one of, and its place among them."""
    for field in ("body", "orelse", "finalbody"):
        body = getattr(parent, field, [])
        # The body of a lambda is an expression.
        for at, one in enumerate(body if isinstance(body, list) else ()):
            match one:
                case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                    yield f"{path}{name}", body, at
                    yield from _named(one, f"{path}{name}.")
                case ast.Assign(targets=[ast.Name(id=name)]) | ast.AnnAssign(target=ast.Name(id=name)):
                    yield f"{path}{name}", body, at
                case _:
                    yield from _named(one, path)


def run(names: Sequence[str] = ()) -> Iterator[Run]:
    """Run the tests of these mutations, or of all, one after the other."""
    everything = {name: one for law in MUTATIONS.values() for name, one in law.items()}
    return runs(
        [
            Mutant(
                name,
                f"tailrace.{one.place.partition(':')[0]}",
                partial(change, one),
                (one.tests,),
                strict=True,
            )
            for name, one in ((name, everything[name]) for name in names or everything)
        ],
        seeds=SEEDS,
    )


def main(names: Sequence[str]) -> int:
    """Print how each mutation ended."""
    missed = 0
    for one in run(names):
        is_noticed = one.ended == NOTICED
        missed += not is_noticed
        said = "noticed" if is_noticed else f"NOT NOTICED ({one.ended})\n{one.output[-3_000:]}"
        print(f"{one.took_s:5.1f} s  {one.mutant.name}: {said}", flush=True)  # noqa: T201  # what the command shows
    return int(missed > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
