"""Mistakes put into the framework on purpose, each with the tests that must notice it, or else the check of its law.

A mutation is run in a process of its own::

    python -m tests.proof.mutations <name>

which ends with 0 if the law fails as it should, and with 1 if it holds on broken code.
"""

from __future__ import annotations

import importlib
import sys

from tests.core.mutations_timers import MUTATIONS as OF_TIMERS
from tests.history.mutations import MUTATIONS as OF_HISTORY
from tests.library.mutations_joins import MUTATIONS as OF_JOINS
from tests.library.mutations_rolling import MUTATIONS as OF_ROLLING
from tests.library.mutations_windows import MUTATIONS as OF_WINDOWS
from tests.months.mutations import MUTATIONS as OF_MONTHS
from tests.oracle.mutations import MUTATIONS as OF_ACTORS
from tests.proof.mutating import Mutation, Mutator, failures, noticed

_AHEAD = ("tests/runtime/test_ahead_of_clock.py", "tests/history/rebuilding/test_from_the_future.py")
_CIRCLES = ("tests/proof/test_event_time.py -k circle_waits",)
_CLOCKS = ("tests/runtime/test_clocks.py",)
_DELIVERED = ("tests/core/test_delivered_runs.py",)
_CORRECTED = ("tests/history/rebuilding/test_corrected_sends.py",)
_CONTENTS = ("tests/state/test_contents.py",)
_ENDS = ("tests/log/test_consistent_ends.py -k within_the_cut",)
_DRAIN = ("tests/core/test_split.py -k one_drain",)
_EVENT_VALUES = ("tests/core/test_event_values.py",)
_HARNESS_TIME = ("tests/testing/test_harness_time.py",)
_HOLES = ("tests/runtime/test_restore.py -k TestHoles",)
_LATE_AFTER_IDLE = ("tests/core/test_late_after_idle.py",)
_LOST_INPUTS = ("tests/runtime/test_lost_inputs.py",)
_NIGHTS = ("tests/runtime/test_nights.py",)
_MERGE = ("tests/core/test_merge.py -k third",)
_OFFSETS = ("tests/runtime/test_restore.py -k TestOffsets",)
_ORDERED = ("tests/core/test_ordered.py",)
_OTHER = ("tests/runtime/test_other_histories.py", "tests/core/test_commit_identity.py")
_REDRIVEN = ("tests/core/test_redriven.py",)
_WITHIN = ("tests/core/test_commit_within_a_drain.py",)
_PARTITION_TIME = ("tests/runtime/test_partition_time.py",)
_TOGETHER = ("tests/core/test_ordered_together.py",)

MUTATIONS: dict[str, Mutation] = {
    # 1: state is a function of log, tape and code
    "randomness-from-the-process": Mutation(
        "core.declare.context:Context._digest.drawn", "self._draw().to_bytes", "(self._draw() ^ id(self)).to_bytes", law=1
    ),
    "a-skip-that-is-not-on-the-tape": Mutation(
        "core.engine.units:Units.skip", "self.tape.skips.append(tape.Skip(number, at, list(headers), self.operator))", "pass", law=1
    ),
    "an-idle-input-that-is-not-on-the-tape": Mutation(
        "core.engine.task:Task.idle", "self._tape.cause(tape.IDLE, source, 1)", "pass", law=1
    ),
    "a-store-of-another-history-taken-up": Mutation(
        "runtime.restore:Restore._not_of_this_history", "not found.in_log", "False", law=1, tests=_OTHER
    ),
    "a-half-restored-store-of-a-lost-end-taken-up": Mutation(
        "runtime.restore:Restore._not_of_this_history", "held.core, held.toward)", "held.core,)", law=1, tests=_OTHER
    ),
    "identities-without-a-nonce": Mutation(
        "runtime.partition:Partition._run_from.task", "nonce=self._draw_nonce(), positions", "positions", law=1, tests=_OTHER
    ),
    "an-identity-that-does-not-chain": Mutation(
        "core.engine.task_state:TaskState._next_identity", "tape.identity_of(self.identity,", "tape.identity_of(b'',", law=1, tests=_OTHER
    ),
    "a-tape-of-two-histories-replayed": Mutation(
        "core.engine.replay:Replay._check_start", "not record.follows(task.identity)", "False", law=1, tests=_OTHER
    ),
    # 2: one key, one owner
    "no-look-at-the-partition-of-a-key": Mutation(
        "core.engine.actor_table:Table.load", "cells.partitions > 1 and", "cells.partitions > 9 and", law=2
    ),
    "a-writer-that-is-not-fenced": Mutation(
        "testing.memory_log:MemoryWriter._enter", "not self._log.is_holder(self)", "False", law=2
    ),
    # 3: nothing is visible until it is committed; a crash loses nothing and repeats nothing
    "outputs-outside-of-the-transaction": Mutation(
        "runtime.slices:Slices._send", "self.writer.append", "self.writer._log.append_all", law=3
    ),
    "the-store-written-before-the-log": Mutation(
        "runtime.partition:Partition.stage", "self._staged = (batch, watermarks)", "self._staged = (batch, watermarks)\n        self._store.write(batch.rows, StoreCut(FORMAT, 0, 0, batch.cut).encode())", law=3
    ),
    "an-unknown-outcome-taken-for-none": Mutation(
        "runtime.partition:Partition.doubt", "self.lifecycle.on(Event.OUTCOME_UNKNOWN)\n    self._drop()", "assert self._slices and self._staged\n    self._slices.committed(self._staged[1])\n    self.lifecycle.on(Event.COMMITTED)", law=3
    ),
    "a-store-that-is-not-brought-to-the-end": Mutation(
        "runtime.restore:Restore._catch_up", "position < end.offset:", "position < end.offset and held.core is None:", law=3
    ),
    "rows-that-are-not-in-the-changelog": Mutation(
        "runtime.slices:Slices.stage.changes",
        "batch.rows, batch.rows.values()",
        "(row for row, value in batch.rows.items() if value), filter(None, batch.rows.values())",
        law=3,
    ),
    "a-restore-that-stops-short": Mutation(
        "runtime.restore:ChangelogEnd.__init__", "log.end_offset(*changelog)", "log.end_offset(*changelog) - 3", law=3
    ),
    "a-cut-that-moves-no-sender": Mutation(
        "log.consistent_ends:_Cut.find", "self._close()", "pass", law=3, tests=_ENDS
    ),
    "a-cut-read-before-commits-are-visible": Mutation(
        "log.consistent_ends:_Cut.find", "self._settled(changelogs", "self._log.stable_ends(changelogs", law=3, tests=_ENDS
    ),
    # 4: the core reads no clock
    "a-clock-in-the-core": Mutation(
        "core.engine.task:Task.clock", "self._not_draining()", "self._not_draining()\n    __import__('time').time()", law=4
    ),
    "the-global-random-generator": Mutation(
        "core.declare.context:Context._draw", "unit.draws += 1", "unit.draws += 1 + int(__import__('random').random())", law=4
    ),
    # 5: results do not depend on batching
    "a-drain-forgotten-by-a-restart": Mutation(
        "core.engine.task_state:TaskState.__init__", "self._firing.is_due()", "False", law=5, tests=_WITHIN
    ),
    "instances-kept-as-they-were-assigned": Mutation(
        "core.engine.actor_table:Table.settle", "cells.reload or not plan.fixed", "cells.reload", law=5
    ),
    "bounds-of-an-empty-list-kept": Mutation(
        "core.handling.entries:ListEntries.set_bounds", "start = stop = 0", "pass", law=5
    ),
    "the-last-image-of-a-unit-restored": Mutation(
        "core.engine.instance_cache:InstanceCache.rollback", "first.setdefault((table.plan.index, key), (table, image)", "first[table.plan.index, key] = (table, image", law=5
    ),
    "entries-of-a-failed-unit-kept": Mutation(
        "core.handling.entries:Entries.seal", "continue\n        undo.append((pending, name, pending.get(name, MISSING)))", "continue", law=5
    ),
    "metrics-of-a-failed-unit-kept": Mutation(
        "core.declare.user_metrics:Metrics._note", "number = len(self._noted)\n    self._undo.append((self._noted, number, MISSING))", "number = len(self._noted)", law=5
    ),
    "a-seed-that-follows-the-slice": Mutation(
        "core.engine.task:Task._take", "(key, time_ms, offset)", "(key, time_ms, taken)", law=5
    ),
    "timers-beyond-the-horizon-forgotten": Mutation(
        "core.engine.timers:TimerQueue.push", "self._beyond.add((time_ms, self._place, key, name))", "pass", law=5
    ),
    "a-timer-put-off-for-ever": Mutation(
        "core.engine.actor_timers:ActorTimers.postpone_timer", "found is not None and found.time_ms > time_ms", "False", law=5
    ),
    "the-timers-of-a-row-not-renewed": Mutation(
        "core.engine.actor_table:Table.collect", "image or head is not None", "image", law=5
    ),
    "a-ttl-renewed-by-a-failed-unit": Mutation(
        "core.engine.actor_table:Table.restore", "instance._tr_parts.written = ()", "pass", law=5
    ),
    "watermarks-of-inputs-left-out-of-the-cut": Mutation(
        "core.engine.watermarks:Watermarks.resume", "self.of_source[number] = cut.watermarks.get(name, NO_WATERMARK)", "pass", law=5
    ),
    "a-record-not-taken-that-wakes-its-input": Mutation(
        "core.engine.task:Task._run", "marks.idle[number] = slept", "pass", law=5
    ),
    # 6: replay equals live
    "a-clock-reading-that-is-not-on-the-tape": Mutation(
        "core.engine.task:Task.clock", "self._tape.cause(tape.CLOCK, now_ms - self._context.now)", "pass", law=6
    ),
    "a-refusal-by-the-clock-that-is-not-on-the-tape": Mutation(
        "core.engine.units:Units._refuse", "refused.reason == FROM_THE_FUTURE", "False", law=6, tests=_AHEAD
    ),
    "skips-told-by-another-reason": Mutation(
        "core.engine.units:Units.skip.headers", "self.skips[number, at, self.operator]", "()", law=6
    ),
    "a-late-event-routed-and-skipped": Mutation(
        "core.engine.units:Units.record", "del self.unit.outputs[mark:]\n", "", law=6
    ),
    "an-outdated-timer-that-a-drain-waits-for": Mutation(
        "core.engine.ordering:Sweep.is_due", "not self._fires(*timer)", "False", law=6
    ),
    "a-replay-that-does-not-stop-in-a-drain": Mutation(
        "core.engine.firing:Firing.drain", "units.totals.drained >= self.stop_after", "False", law=6
    ),
    "outputs-numbered-anew-after-a-restart": Mutation(
        "core.engine.task_state:TaskState.commit_batch.cut", "self.totals), self._tape.number", "self.totals, outputs=0), self._tape.number", law=6
    ),
    "a-drain-merged-by-names-alone": Mutation(
        "core.engine.key_split.shard:_ShardFiring.fire", "max(self.place, place_of(domain, entry)", "place_of(domain, entry", law=6, tests=_DRAIN
    ),
    "a-timer-of-a-shard-fired-a-millisecond-late": Mutation(
        "core.engine.key_split.shard:ShardTask._catch_up.at", "queue.due_ms, 0", "queue.due_ms + 1, 0", law=6
    ),
    "a-shard-told-the-watermark-after-its-record": Mutation(
        "core.engine.key_split.shard:ShardTask._between", "self._stand(series, entry)", "self._stand(series, after[at])", law=6
    ),
    "a-record-of-another-shard-that-moves-no-watermark": Mutation(
        "core.engine.key_split.ordered_shard:OrderedShardTask._let_wait", "own_ms = max(own_ms, time_ms - lag)", "own_ms = own_ms if head[3] is _ELSEWHERE else max(own_ms, time_ms - lag)", law=6
    ),
    "a-late-event-placed-by-the-records-of-its-shard": Mutation(
        "core.engine.key_split.ordered_shard:OrderedShardTask._let_wait", "marks.of_source[number] = own_ms\n            self._arrive", "self._arrive", law=6
    ),
    "what-waits-in-another-shard-forgotten-when-all-are-idle": Mutation(
        "core.engine.ordering:Sweep._waiting_until", "self.highest_elsewhere[operator]", "0", law=6
    ),
    "an-input-that-was-idle-taken-with-the-others": Mutation(
        "core.engine.key_split.ordered_shard:OrderedShardTask.all_wait", "not marks.idle[number]", "True", law=6
    ),
    "inputs-behind-their-operator-taken-one-after-the-other": Mutation(
        "core.engine.key_split.ordered_shard:OrderedShardTask.all_wait", "own_ms >= marks.ready[operator]", "True", law=6, tests=("tests/core/test_ordered.py -k come_back",)
    ),
    "outputs-of-ordered-shards-merged-by-names-alone": Mutation(
        "core.engine.key_split.ordered_shard:_ShardSweep.go_to", "max(self.place, self.record", "max(b'', self.record", law=6
    ),
    "a-key-in-two-shards": Mutation(
        "core.engine.key_split.first_pass:KeySplitPlan._shard.shard", "shard_of(codec.encode(key), self.shards)", "(self.step + len(known)) % self.shards", law=6
    ),
    "an-order-that-lets-one-input-run-ahead": Mutation(
        "core.engine.canonical:Canonical._choose", "first], limit_of", "first], 9000 + limit_of", law=6
    ),
    "messages-out-of-turn": Mutation(
        "core.engine.delivery:Delivery.next", "self.waiting.popleft", "self.waiting.pop", law=6
    ),
    "a-nan-with-the-bits-of-the-interpreter-in-an-event": Mutation(
        "core.declare.event_codec:EventCodec.__init__", "canonical_writer(type, self._write)", "self._write", law=6
    ),
    "a-nan-with-the-bits-of-the-interpreter-in-a-message": Mutation(
        "core.declare.planner:_actor.encode", "canonical_writer(type_, message.encode)", "message.encode", law=6
    ),
    "a-nan-with-the-bits-of-the-interpreter-in-a-guarded-field": Mutation(
        "core.values.guards:Scope.guard", "float and ({then} == {then} or pack_float({then}) == nan)", "float", law=6
    ),
    "a-nan-with-the-bits-of-the-interpreter-in-a-list": Mutation(
        "core.engine.actor_table:Table.settle.encoded", "self.encode_unsettled", "self.encode", law=6
    ),
    "a-nan-with-the-bits-of-the-interpreter-in-an-entry": Mutation(
        "core.handling.entries:Entries.seal.encoded", "plan.encode_unsettled", "plan.encode", law=6
    ),
    # 7: watermarks never go back, a timer fires at most once
    "a-watermark-that-follows-its-inputs-down": Mutation(
        "core.engine.watermarks:Watermarks.advance", "mark > self.ready", "mark != self.ready", law=7
    ),
    "a-timer-that-is-not-used-up": Mutation(
        "core.engine.units:Units.use_up", "self.cells.touched.append((table, instance._tr_key, image))\n    table.move_timer(instance._tr_parts or table.parts(instance), timer, None)", "self.cells.touched.append((table, instance._tr_key, image))", law=7
    ),
    "a-moved-timer-that-fires-twice": Mutation(
        "core.engine.firing:Firing.fire", "None or timer.time_ms != time_ms", "None", law=7
    ),
    "a-cancelled-timer-that-fires": Mutation(
        "core.engine.actor_timers:ActorTimers.move_timer", "del timers[timer]", "pass", law=7
    ),
    # 8: every failure is loud
    "a-refused-record-dropped-in-silence": Mutation(
        "core.engine.units:Units._refuse", "raise error\n    assert record is not None\n    self.totals.refused += 1", "pass\n    assert record is not None\n    self.totals.refused += 1\n    return", law=8
    ),
    "a-failed-handler-without-a-letter": Mutation(
        "core.engine.units:Units.skip", "self.tape.skips.append(tape.Skip(number, at, list(headers), self.operator))\n    self.totals.failed += 1", "self.totals.failed += 1\n    return", law=8
    ),
    "late-events-not-counted": Mutation(
        "core.engine.task:Task._end_unit", "self.totals.late += self._late_events", "pass", law=8
    ),
    "an-event-from-the-future-taken": Mutation(
        "core.engine.input_decoder:InputDecoder._head", "time_ms > self._latest_ms", "False", law=8, tests=_AHEAD
    ),
    "a-batch-with-an-event-from-the-future-taken": Mutation(
        "core.engine.input_decoder:InputDecoder._in_range", "latest_ms <= self._latest_ms", "latest_ms <= plan.time_max_ms", law=8, tests=_AHEAD
    ),
    "late-events-after-idleness-not-told-from-others": Mutation(
        "core.engine.ordered_task:OrderedTask._routes_of_late", "time_ms > own_ms", "True", law=8, tests=_LATE_AFTER_IDLE
    ),
    "a-clock-far-ahead-taken-at-a-start": Mutation(
        "runtime.clocks:check_start", "abs(ahead_ms) <= A_DAY_MS", "True", law=8, tests=_CLOCKS
    ),
    "a-clock-that-jumps-taken-while-running": Mutation(
        "runtime.clocks:WallClock.__call__", "abs(jumped_ms) > A_DAY_MS", "False", law=8, tests=_CLOCKS
    ),
    "idleness-measured-by-the-wall-clock": Mutation(
        "runtime.partition:Partition.take", "self._elapsed()", "self._clock()", law=8, tests=_CLOCKS
    ),
    "late-events-dropped-where-they-are-to-be-handled": Mutation(
        "core.engine.ordered_task:OrderedTask._routes_of_late", "if redriven or plan.late == 'handle':\n        return to", "if redriven or plan.late == 'handle':\n        return ()", law=8
    ),
    "no-limit-to-event-times": Mutation(
        "core.engine.input_decoder:InputDecoder._head", "not plan.time_min_ms <= time_ms <= plan.time_max_ms", "False", law=8
    ),
    "a-float-that-becomes-null": Mutation(
        "core.values.event_values:json_writer.write_tested", "is_finite(event)", "True", law=8, tests=_EVENT_VALUES
    ),
    "a-float-in-anything-that-becomes-null": Mutation(
        "core.values.event_values:_may_hold_floats", "(inspect.FloatType, *_UNTYPED)", "(inspect.FloatType,)", law=8, tests=_EVENT_VALUES
    ),
    "a-wrong-type-emitted-in-a-test": Mutation(
        "core.declare.checked_context:CheckedContext.emit", "to.codec.check(event)", "pass", law=8, tests=_EVENT_VALUES, first="test_a_test_finds_an_event_whose_readers"
    ),
    "records-deleted-unread-stepped-over": Mutation(
        "runtime.restore:Restore._step_over", "not self.after_deleted", "False", law=8, tests=_OFFSETS
    ),
    "a-task-without-a-commit-that-begins-with-what-is-left": Mutation(
        "runtime.restore:Restore._first_positions", "noted = first_positions(self.plan, self.log, places)\n    unknown = [place for place in places if place not in noted]\n    read = inputs_read(self.plan, self.log) if unknown else set[str]()", "noted, unknown, read = ({}, places, set())", law=8, tests=_OFFSETS
    ),
    "an-input-that-lost-its-end-read-on": Mutation(
        "history.reading.last_reads:is_replaced", "return is_there or read.offset >= log.end_offset(name, partition) or (not log.topics()[name].compacted)", "return False", law=8, tests=_LOST_INPUTS
    ),
    "a-mark-of-another-record-than-the-last": Mutation(
        "runtime.slices:Slices._took", "heads[stop - 1][4]", "heads[start][4]", law=8, tests=_LOST_INPUTS
    ),
    "marks-forgotten-by-a-commit-that-reads-nothing": Mutation(
        "runtime.slices:Slices.stage", "{**self._cut_headers.read, **read}", "read", law=8, tests=_LOST_INPUTS
    ),
    "a-lost-end-that-is-accepted-and-stays-an-error": Mutation(
        "runtime.restore:Restore.steps", "headers.read = {name: read for name, read in headers.read.items() if name not in over}", "pass", law=8, tests=_LOST_INPUTS
    ),
    "a-changelog-with-a-hole-taken-for-the-state": Mutation(
        "history.reading.changelog:check_contents", "noted is None or noted == found", "True", law=8, tests=_HOLES
    ),
    "contents-that-do-not-know-what-rows-were": Mutation(
        "state.contents:StoreContents.changed", "_sums(unknown, self._store.get_many(unknown))", "[-1] * len(unknown)", law=8, tests=_CONTENTS
    ),
    # 9: right, not only repeatable
    "the-watermark-of-the-task-instead-of-the-actors": Mutation(
        "core.engine.watermarks:Watermarks.advance", "self._sources[operator]", "range(len(of_source))", law=9
    ),
    "a-topic-inside-the-app-that-goes-by-its-events": Mutation(
        "core.declare.flow:_Finder._follows", "one is not None and one.follows and (edge in self._writers)", "False and edge in self._writers", law=9
    ),
    "a-writer-left-out": Mutation(
        "core.engine.watermarks:published_by.holding", "one.writers if", "one.writers[:1] if", law=9
    ),
    "a-task-of-the-app-left-out": Mutation(
        "history.reading.upstream_watermarks:Upstream.__init__.tasks", "plan.partitions", "1", law=9
    ),
    "a-circle-waited-for": Mutation(
        "core.declare.flow:_Finder._is_feedback", "self._follows(edge)", "False", law=9, tests=_CIRCLES
    ),
    "messages-that-nobody-waits-for": Mutation(
        "core.declare.flow:_Finder._own_sources", "topics.add(self._channel(operator.name))", "pass", law=9
    ),
    "a-drain-that-does-not-hold-what-is-published": Mutation(
        "core.engine.watermarks:Watermarks.published_ms", "if held:", "if False:", law=9
    ),
    "a-publication-applied-before-its-records": Mutation(
        "runtime.slices:Slices._read", "merge.buffered(number", "(merge.buffered(number) and (number not in self._upstream.inputs or self._follow(number) or True)", law=9
    ),
    "an-end-of-input-for-all-levels-at-once": Mutation(
        "runtime.slices:Slices._end_further", "one.stage == stage and (not", "stage == 0 and (not", law=9
    ),
    "an-input-that-falls-idle-though-its-writers-are-at-work": Mutation(
        "runtime.slices:_Input.__init__", "plan.moves) and plan.watermark != 'upstream'", "plan.moves)", law=9
    ),
    "timers-of-an-instant-before-what-belongs-to-it": Mutation(
        "core.declare.planner:_order.places", "lambda a: (levels", "lambda a: (-levels", law=9
    ),
    "a-redriven-event-dropped-as-late": Mutation(
        "core.engine.ordered_task:OrderedTask._routes_of_late.redriven", "self.is_redriven(plan.index, record)", "False", law=9, tests=_REDRIVEN
    ),
    "an-event-redriven-for-another-app-handled-again": Mutation(
        "core.engine.redriven:Addressees.passes_over", "bool(redrives) and (not self._is_ours(number, redrives[-1]))", "False", law=9, tests=_REDRIVEN
    ),
    "an-input-woken-by-what-is-for-another-app": Mutation(
        "core.engine.task:Task._run", "- start == totals.for_others - others", "== start", law=9, tests=_REDRIVEN
    ),
    "an-idle-time-that-begins-again-with-what-is-for-another-app": Mutation(
        "runtime.slices:Slices._read", "any((head[3] is not FOR_OTHERS for head in heads))", "heads", law=9, tests=_REDRIVEN
    ),
    "recorded-sends-taken-for-those-of-the-code": Mutation(
        "history.rebuilding.recorded_sends:Sends.take", "_content(found[1]) != _content(one)", "False", law=9, tests=_CORRECTED
    ),
    "own-sends-that-are-not-delivered": Mutation(
        "core.engine.delivery:Delivery.send", "to is not None:", "to is not None and (not to.is_inbox):", law=9, tests=_CORRECTED
    ),
    "a-watermark-that-reaches-own-inputs-after-its-timers-are-due": Mutation(
        "core.engine.delivery:Delivery.is_silent", "task.due_ms(self._raised[source]) > mark", "True", law=9, tests=_DELIVERED
    ),
    "records-taken-together-though-the-first-has-sent-something": Mutation(
        "core.engine.ordered_task:OrderedTask._has_sent", "len(outputs) > since", "False", law=9, tests=_DELIVERED
    ),
    "records-taken-together-past-a-timer-of-their-readers": Mutation(
        "core.engine.delivery:Delivery.run_until_ms", "min([task.due_ms(self._all_raised) for task in self._tasks])", "FOREVER", law=9, tests=_DELIVERED
    ),
    "own-topics-whose-watermark-does-not-rise": Mutation(
        "core.engine.delivery:Delivery.risen", "mark != self._marks[name]", "False", law=9, tests=_CORRECTED, first="test_an_app_that_has_not_run_yet"
    ),
    "an-order-of-two-inputs-that-a-third-changes": Mutation(
        "core.engine.merge:Merge.next_run.limit_ms", "limit_of(first, step * self._tolerance_ms, other, self._tolerance_ms)", "(step + 2) * self._tolerance_ms", law=9, tests=_MERGE
    ),
    "events-in-the-order-in-which-they-were-taken": Mutation(
        "core.engine.ordered_task:OrderedTask._in_turn", "time_ms >= last_ms", "True", law=9, tests=_ORDERED
    ),
    "equal-times-by-the-order-of-arrival": Mutation(
        "core.engine.waiting:Waiting.push_apart", "self._ranks[number]", "0", law=9, tests=_ORDERED
    ),
    "a-timer-before-the-events-of-its-instant": Mutation(
        "core.engine.ordering:Sweep._next_timer", "(event_ms, -1,", "(event_ms + 1, -1,", law=9, tests=_ORDERED
    ),
    "a-handler-that-sees-how-far-its-inputs-have-come": Mutation(
        "core.engine.ordering:Sweep._take_next", "marks.reach(time_ms - 1)", "marks.reach(FOREVER)", law=9, tests=_ORDERED
    ),
    "a-late-event-at-its-own-time": Mutation(
        "core.engine.ordered_task:OrderedTask._arrive.place_ms", "own_ms + 1", "time_ms", law=9, tests=_ORDERED
    ),
    "the-place-of-a-late-event-lost-at-a-restart": Mutation(
        "core.engine.ordered_task:OrderedTask.refill.place_ms", "late.get(offset, time_ms)", "time_ms", law=9, tests=_ORDERED
    ),
    "an-event-that-waits-lost-at-a-restart": Mutation(
        "core.engine.ordered_task:OrderedTask.refill", "offset >= low", "offset > low", law=9, tests=_ORDERED
    ),
    "an-event-handled-again-after-a-commit-in-a-drain": Mutation(
        "core.engine.ordered_task:OrderedTask.refill.after", "ordered.last is None or", "True or", law=9, tests=_ORDERED
    ),
    "a-drain-over-before-what-waits-is-read-again": Mutation(
        "core.engine.task_state:TaskState.__init__", "bool(self._resumed) or self._firing.is_due()", "self._firing.is_due()", law=9, tests=_ORDERED
    ),
    "a-scratch-file-that-is-read-no-further": Mutation(
        "core.engine.waiting:Waiting._follow", "found is not None", "False", law=9, tests=_ORDERED
    ),
    "an-input-that-is-still-idle-after-a-start": Mutation(
        "runtime.slices:Slices.__init__", "task.wake_all()", "pass", law=9
    ),
    "an-input-that-is-still-idle-when-the-end-begins": Mutation(
        "runtime.slices:Slices._end_further", "task.wake_all()", "pass", law=9, tests=_HARNESS_TIME
    ),
    "an-input-that-falls-idle-while-the-end-goes-through-the-app": Mutation(
        "runtime.slices:Slices._may_fall_idle", "not self._phase and", "", law=9, tests=_PARTITION_TIME
    ),
    "an-end-of-a-run-taken-for-that-of-the-input": Mutation(
        "runtime.progress:last_phase", "if ends_input else READING", "", law=9, tests=_NIGHTS, first="test_two_nights_by_hand_on_the_embedded_log"
    ),
    "an-input-that-continues-and-is-still-taken-for-ended": Mutation(
        "core.engine.task:Task.reopen", "self.opened(operator)", "pass", law=9
    ),
    "timers-set-at-the-end-that-stay-pending": Mutation(
        "core.engine.task:Task.finish", "return True", "return False", law=9, tests=_NIGHTS
    ),
    "a-heartbeat-that-moves-the-end": Mutation(
        "core.engine.actor_timers:ActorTimers.moves_the_end", "not in self.plan.unless_ended", "is not None", law=9, tests=_NIGHTS, first="test_a_heartbeat_does_not_pass_the_last_timer"
    ),
    "an-event-after-the-end-of-input-handled-in-silence": Mutation(
        "runtime.slices:Slices._check_open", "True not in ended", "True", law=9, tests=_NIGHTS, first="test_an_event_after_the_end_of_input_is_an_error"
    ),
    "operators-on-a-stream-that-end-one-by-one": Mutation(
        "core.engine.watermarks:Watermarks.has_ended", "and all((ended[one] for one in self.together[operator]))", "", law=9, tests=_TOGETHER
    ),
    "operators-on-a-stream-whose-timers-fire-one-after-the-other": Mutation(
        "core.engine.task:Task.finish", "together = self.plan.operators[operator].together", "together = (operator,)", law=9, tests=_TOGETHER
    ),
    "a-wake-that-is-not-on-the-tape": Mutation(
        "core.engine.task:Task.wake", "self._tape.cause(tape.UPSTREAM, source, 0)", "pass", law=9
    ),
    "a-run-that-is-over-and-holds-nobody-back": Mutation(
        "core.engine.watermarks:Watermarks.holds_nobody_back", "and (not self.has_ended(operator))", "or self.has_ended(operator)", law=9
    ),
    # 10: nothing that is done over months is wrong in silence
    **OF_MONTHS,
    **OF_HISTORY,
    **OF_ACTORS,
    **OF_ROLLING,
    **OF_TIMERS,
    **OF_WINDOWS,
    **OF_JOINS,
    # 11: the order in which the records of an ordered app are taken changes nothing
    "lateness-by-the-watermark-of-the-operator": Mutation(
        "core.engine.ordered_task:OrderedTask._arrive.own_ms", "marks.of_source[plan.index]", "max(marks.ready)", law=11
    ),
    "events-that-wait-in-the-order-of-arrival": Mutation(
        "core.engine.waiting:Waiting.push", "time_ms >= queue[-1][1]", "True", law=11
    ),
}  # fmt: skip


def preload() -> None:
    """Import what the checks need: all commands; pytest and its plugins, which take longer than most checks."""
    for name in ("hypothesis", "pytest_timeout", "xdist.plugin", "tests.proof.laws"):
        importlib.import_module(name)
    assert {**importlib.import_module("tailrace.cli.main").tailrace.commands}


def mutation_of(name: str) -> Mutation:
    """The mutation of a name."""
    return MUTATIONS[name]


def run(name: str) -> int:
    """Run the tests, or the check of the law, on code that is broken; 0 if one fails."""
    from tests.proof.laws import LAWS

    made = MUTATIONS[name]
    if made.tests:
        return 0 if noticed(made.tests, made.first) else 1
    try:
        LAWS[made.law]()
    except failures() as error:
        print(f"{type(error).__name__}: {error}"[:300])  # noqa: T201  # what the test shows
        return 0
    return 1


def main(name: str) -> int:
    """Break the code as it is imported, and run the check."""
    mutator = Mutator(MUTATIONS[name])
    sys.meta_path.insert(0, mutator)
    preload()
    importlib.import_module(mutator.mutation.module)
    assert mutator.applied, f"{mutator.mutation.module} is not imported"
    return run(name)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
