"""Mistakes put into the framework on purpose, each with the law whose check must notice.

A mutation replaces one piece of a module's source, which must be there exactly once: when the code changes, the
mutation has to be brought up to date, and the test says so. It is run in a process of its own::

    python -m tests.proof.mutations <name>

which ends with 0 if the law's check fails as it should, and with 1 if it holds on broken code.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.util
import sys
import types
from collections.abc import Sequence
from typing import NamedTuple


class Mutation(NamedTuple):
    """One mistake: in which module, what stands there, and what is put in its place."""

    law: int
    module: str
    before: str
    after: str


MUTATIONS: dict[str, Mutation] = {
    # 1: state is a function of log, tape and code
    "randomness-from-the-process": Mutation(
        1, "core.declare.context", "drawn = self._draw().to_bytes(8", "drawn = (self._draw() ^ id(self)).to_bytes(8"
    ),
    "a-skip-that-is-not-on-the-tape": Mutation(
        1, "core.engine.units", "self.tape.skips.append(tape.Skip(number, at, list(headers)))", "pass"
    ),
    "an-idle-input-that-is-not-on-the-tape": Mutation(
        1, "core.engine.task", "self._tape.cause(tape.IDLE, source, 1)", "pass"
    ),
    "a-store-of-another-history-taken-up": Mutation(
        1, "runtime.restore", "                if not found.in_log:", "                if False:"
    ),
    "a-half-restored-store-of-a-lost-end-taken-up": Mutation(
        1, "runtime.restore", "for data in (held.core, held.toward):", "for data in (held.core,):"
    ),
    "identities-without-a-nonce": Mutation(
        1, "runtime.partition", "            nonce=self._draw_nonce(),\n", ""
    ),
    "an-identity-that-does-not-chain": Mutation(
        1, "core.engine.task_state", "return tape.identity_of(self.identity, nonce,", "return tape.identity_of(b'', nonce,"
    ),
    "a-tape-of-two-histories-replayed": Mutation(
        1, "core.engine.replay", "if not record.follows(task.identity):", "if False:"
    ),
    # 2: one key, one owner
    "no-look-at-the-partition-of-a-key": Mutation(
        2, "core.engine.actor_table", "if cells.partitions > 1 and partition_of(", "if cells.partitions > 9 and partition_of("
    ),
    "a-writer-that-is-not-fenced": Mutation(
        2, "testing.memory_log", "if not self._log.is_holder(self):\n            raise", "if False:\n            raise"
    ),
    # 3: nothing is visible until it is committed; a crash loses nothing and repeats nothing
    "outputs-outside-of-the-transaction": Mutation(
        3, "runtime.slices", "            self.writer.append(outputs)", "            self.writer._log.append_all(outputs)"
    ),
    "the-store-written-before-the-log": Mutation(
        3,
        "runtime.partition",
        "            self._staged = batch, watermarks\n",
        "            self._staged = batch, watermarks\n"
        "            self._store.write(batch.rows, StoreCut(FORMAT, 0, 0, batch.cut).encode())\n",
    ),
    "an-unknown-outcome-taken-for-none": Mutation(
        3,
        "runtime.partition",
        "        self.lifecycle.on(Event.OUTCOME_UNKNOWN)\n        self._drop()\n",
        "        assert self._slices and self._staged\n        self._slices.committed(self._staged[1])\n"
        "        self.lifecycle.on(Event.COMMITTED)\n",
    ),
    "a-store-that-is-not-brought-to-the-end": Mutation(
        3, "runtime.restore", "            while position < end.offset:", "            while position < end.offset and held.core is None:"
    ),
    "rows-that-are-not-in-the-changelog": Mutation(
        3, "runtime.slices", "for row, value in batch.rows.items()]", "for row, value in batch.rows.items() if value]"
    ),
    "a-restore-that-stops-short": Mutation(
        3,
        "runtime.restore",
        "        self.offset = log.end_offset(*changelog)",
        "        self.offset = log.end_offset(*changelog) - 3",
    ),
    "a-cut-that-moves-no-sender": Mutation(
        3, "log.consistent_ends", "        self._close()", "        pass"
    ),
    "a-cut-read-before-commits-are-visible": Mutation(
        3,
        "log.consistent_ends",
        "ends, starts = self._settled(changelogs), self",
        "ends, starts = self._log.stable_ends(changelogs), self",
    ),
    # 4: the core reads no clock
    "a-clock-in-the-core": Mutation(
        4, "core.engine.task", "        if now_ms > self._context.now:", "        __import__('time').time()\n        if now_ms > self._context.now:"
    ),
    "the-global-random-generator": Mutation(
        4, "core.declare.context", "        unit.draws += 1\n", "        unit.draws += 1 + int(__import__('random').random())\n"
    ),
    # 5: results do not depend on batching
    "a-drain-forgotten-by-a-restart": Mutation(
        5, "core.engine.task_state", "self._firing.draining = self._firing.is_due()", "self._firing.draining = False"
    ),
    "instances-kept-as-they-were-assigned": Mutation(
        5, "core.engine.actor_table", "if cells.reload or not plan.fixed:", "if cells.reload:"
    ),
    "bounds-of-an-empty-list-kept": Mutation(
        5, "core.handling.entries", "            start = stop = 0  #", "            pass  #"
    ),
    "the-last-image-of-a-unit-restored": Mutation(
        5, "core.engine.instance_cache", "first.setdefault((table.plan.index, key), (table, image))", "first[table.plan.index, key] = (table, image)"
    ),
    "entries-of-a-failed-unit-kept": Mutation(
        5, "core.handling.entries", "            undo.append((pending, name, pending.get(name, MISSING)))\n", ""
    ),
    "metrics-of-a-failed-unit-kept": Mutation(
        5, "core.declare.user_metrics", "        self._undo.append((self._noted, number, MISSING))\n", ""
    ),
    "a-seed-that-follows-the-slice": Mutation(
        5, "core.engine.task", "                unit.origin = offset\n", "                unit.origin = taken\n"
    ),
    "timers-beyond-the-horizon-forgotten": Mutation(
        5, "core.engine.timers", "            self._beyond.add((time_ms, self._place, key, name))", "            pass"
    ),
    "a-timer-put-off-for-ever": Mutation(
        5, "core.engine.actor_table", "if timer is not None and timer.time_ms > time_ms:", "if False:"
    ),
    "flags-of-a-row-not-renewed": Mutation(
        5, "core.engine.actor_table", "if encoded != image or key in flags_changed:", "if encoded != image:"
    ),
    "a-ttl-renewed-by-a-failed-unit": Mutation(
        5, "core.engine.actor_table", "                instance._tr_parts.written.clear()\n        if self", "                pass\n        if self"
    ),
    "watermarks-of-inputs-left-out-of-the-cut": Mutation(
        5, "core.engine.watermarks", "self.of_source[number] = cut.watermarks.get(name, NO_WATERMARK)", "pass"
    ),
    "a-record-not-taken-that-wakes-its-input": Mutation(
        5, "core.engine.task", "                marks.idle[number] = slept  #", "                pass  #"
    ),
    # 6: replay equals live
    "a-clock-reading-that-is-not-on-the-tape": Mutation(
        6, "core.engine.task", "self._tape.cause(tape.CLOCK, now_ms - self._context.now)", "pass"
    ),
    "skips-told-by-another-reason": Mutation(
        6, "core.engine.units", "headers = self.skips[number, at] if headers is None else headers", "headers = ()  if headers is None else headers"
    ),
    "a-late-event-routed-and-skipped": Mutation(
        6, "core.engine.units", "            del self.unit.outputs[mark:]\n            self.skip", "            self.skip"
    ),
    "a-replay-that-does-not-stop-in-a-drain": Mutation(
        6, "core.engine.firing", "units.totals.fired >= self.stop_after_fired", "False"
    ),
    "outputs-numbered-anew-after-a-restart": Mutation(
        6, "core.engine.task_state", "            msgspec.structs.replace(self.totals),\n", "            msgspec.structs.replace(self.totals, outputs=0),\n"
    ),
    "a-drain-merged-by-names-alone": Mutation(
        6, "core.engine.key_split.shard", "self.place = max(self.place, _place(domain, entry))", "self.place = _place(domain, entry)"
    ),
    "a-timer-of-a-shard-fired-a-millisecond-late": Mutation(
        6, "core.engine.key_split.shard", "bisect_left(column, queue.due_ms, 0", "bisect_left(column, queue.due_ms + 1, 0"
    ),
    "a-shard-told-the-watermark-after-its-record": Mutation(
        6, "core.engine.key_split.shard", "                self._stand(columns, entry)\n", "                self._stand(columns, after[at])\n"
    ),
    "a-key-in-two-shards": Mutation(
        6, "core.engine.key_split.first_pass", "shard_of(codec.encode(key), self.shards)", "(self.step + len(known)) % self.shards"
    ),
    "an-order-that-lets-one-input-run-ahead": Mutation(
        6, "core.engine.canonical", "return self._lanes[first], limit_of(", "return self._lanes[first], 9_000 + limit_of("
    ),
    "messages-out-of-turn": Mutation(
        6, "core.engine.delivery", "self._waiting.popleft()", "self._waiting.pop()"
    ),
    "a-nan-with-the-bits-of-the-interpreter-in-an-event": Mutation(
        6, "core.declare.event_codec", "else canonical_writer(type, self._write)", "else self._write"
    ),
    "a-nan-with-the-bits-of-the-interpreter-in-a-message": Mutation(
        6, "core.declare.planner", "encode = canonical_writer(type_, message.encode)", "encode = message.encode"
    ),
    "a-nan-with-the-bits-of-the-interpreter-in-a-guarded-field": Mutation(
        6, "core.values.guards", " and ({then} == {then} or pack_float({then}) == nan)", ""
    ),
    "a-nan-with-the-bits-of-the-interpreter-in-a-list": Mutation(
        6, "core.engine.actor_table", "encoded = self.encode_unsettled(instance)", "encoded = self.encode(instance)"
    ),
    "a-nan-with-the-bits-of-the-interpreter-in-an-entry": Mutation(
        6, "core.handling.entries", "encoded = plan.encode_unsettled(value)", "encoded = plan.encode(value)"
    ),
    # 7: watermarks never go back, a timer fires at most once
    "a-watermark-that-follows-its-inputs-down": Mutation(
        7, "core.engine.watermarks", "            if mark > self.of_operator[operator]:", "            if mark != self.of_operator[operator]:"
    ),
    "a-timer-that-is-not-used-up": Mutation(
        7, "core.engine.units", "        table.move_timer(table.parts(instance), timer, None)\n        return image", "        return image"
    ),
    "a-moved-timer-that-fires-twice": Mutation(
        7, "core.engine.firing", "if timer is None or timer.time_ms != time_ms:", "if timer is None:"
    ),
    "a-cancelled-timer-that-fires": Mutation(
        7, "core.engine.actor_table", "            del timers[timer]\n", "            pass\n"
    ),
    # 8: every failure is loud
    "a-refused-record-dropped-in-silence": Mutation(
        8, "core.engine.units", "            raise error\n        self.totals.refused += 1", "            pass\n        self.totals.refused += 1\n        return"
    ),
    "a-failed-handler-without-a-letter": Mutation(
        8, "core.engine.units", "        self.tape.skips.append(tape.Skip(number, at, list(headers)))\n        self.totals.failed += 1\n", "        self.totals.failed += 1\n        return\n"
    ),
    "late-events-not-counted": Mutation(
        8, "core.engine.task", "        self.totals.late += not redriven\n", ""
    ),
    "late-events-dropped-where-they-are-to-be-handled": Mutation(
        8, "core.engine.task", "        if redriven or plan.late == \"handle\":\n            return to", "        if redriven or plan.late == \"handle\":\n            return ()"
    ),
    "no-limit-to-event-times": Mutation(
        8, "core.engine.input_decoder", "        if not plan.time_min_ms <= time_ms <= plan.time_max_ms:", "        if False:"
    ),
    "a-float-that-becomes-null": Mutation(
        8, "core.values.event_values", "    return _Look(nan_only).writer(node, encode, checked)", "    return encode"
    ),
    "a-float-in-anything-that-becomes-null": Mutation(
        8, "core.values.event_values", "        return searching\n    node = ", "        return encode\n    node = "
    ),
    "a-wrong-type-emitted-in-a-test": Mutation(
        8, "core.declare.checked_context", "            to.codec.check(event)", "            pass"
    ),
    "records-deleted-unread-stepped-over": Mutation(
        8, "runtime.restore", "        if not self.after_deleted:\n", "        if False:\n"
    ),
    "a-task-without-a-commit-that-begins-with-what-is-left": Mutation(
        8,
        "runtime.restore",
        "        noted = first_positions(self.plan.app, self.log, places)\n        unknown = [place for place in places if place not in noted]\n        read = inputs_read(self.plan, self.log) if unknown else set[str]()",
        "        noted, unknown, read = {}, places, set()",
    ),
    # 9: right, not only repeatable
    "the-watermark-of-the-task-instead-of-the-actors": Mutation(
        9, "core.engine.watermarks", "            sources = self._sources[operator]\n            counting", "            sources = range(len(of_source))\n            counting"
    ),
    "a-topic-inside-the-app-that-goes-by-its-events": Mutation(
        9, "core.declare.flow", "        return one is not None and one.follows and edge in self._writers", "        return False and edge in self._writers"
    ),
    "a-writer-left-out": Mutation(
        9, "core.engine.publications", "for writer in one.writers if", "for writer in one.writers[:1] if"
    ),
    "a-task-of-the-app-left-out": Mutation(
        9, "history.reading.upstream_watermarks", "for number in range(plan.partitions)]", "for number in range(1)]"
    ),
    "a-circle-waited-for": Mutation(
        9, "core.declare.flow", "return self._follows(edge) and any(", "return False and any("
    ),
    "messages-that-nobody-waits-for": Mutation(
        9, "core.declare.flow", "            topics.add(self._channel(operator.name))\n", "            pass\n"
    ),
    "a-drain-that-does-not-hold-what-is-published": Mutation(
        9, "core.engine.watermarks", "        if held:\n", "        if False:\n"
    ),
    "a-publication-applied-before-its-records": Mutation(
        9, "runtime.slices", "if number == left or one.asked or merge.buffered(number):", "if number == left or one.asked or (merge.buffered(number) and (number not in self._upstream.inputs or self._follow(number) or True)):"
    ),
    "an-end-of-input-for-all-levels-at-once": Mutation(
        9, "runtime.partition", "            if one.level == level:\n                slices.later(partial(slices.task.ended", "            if level == 0:\n                slices.later(partial(slices.task.ended"
    ),
    "an-input-that-falls-idle-though-its-writers-are-at-work": Mutation(
        9, "runtime.slices", 'bool(plan.moves) and plan.watermark != "upstream"', "bool(plan.moves)"
    ),
    "timers-of-an-instant-before-what-belongs-to-it": Mutation(
        9, "core.declare.planner", "key=lambda a: (levels[a], a)", "key=lambda a: (-levels[a], a)"
    ),
    "a-redriven-event-dropped-as-late": Mutation(
        9, "core.engine.task", "        redriven = self.is_redriven(plan.index, record)\n", "        redriven = False\n"
    ),
    "an-event-redriven-for-another-app-handled-again": Mutation(
        9, "core.engine.redriven", "        return bool(said) and not self._is_ours(number, said[-1])\n", "        return False\n"
    ),
    "an-input-woken-by-what-is-for-another-app": Mutation(
        9, "core.engine.task", "            if taken - start == totals.for_others - others:\n", "            if taken == start:\n"
    ),
    "an-idle-time-that-begins-again-with-what-is-for-another-app": Mutation(
        9, "runtime.slices", "if any(head[3] is not FOR_OTHERS for head in heads):", "if heads:"
    ),
    "recorded-sends-taken-for-those-of-the-code": Mutation(
        9, "history.rebuilding.recorded_sends", "            if sends.sent.get(place) != recorded.get(place):", "            if False:"
    ),
    "own-sends-that-are-not-delivered": Mutation(
        9, "core.engine.delivery", "        if to is not None:", "        if to is not None and not to.is_inbox:"
    ),
    "own-topics-whose-watermark-does-not-rise": Mutation(
        9, "core.engine.delivery", "            if mark != self._marks[name]:", "            if False:"
    ),
    "an-order-of-two-inputs-that-a-third-changes": Mutation(
        9, "core.engine.merge", "limit_of(first, step * self._tolerance_ms, other, self._tolerance_ms)", "(step + 2) * self._tolerance_ms"
    ),
    "an-input-that-is-still-idle-after-a-start": Mutation(
        9, "runtime.slices", "        task.wake_all()\n\n", "\n"
    ),
    "an-input-that-is-still-idle-when-the-end-begins": Mutation(
        9, "runtime.slices", "        self._ending = True\n        self.task.wake_all()", "        self._ending = True"
    ),
    "an-input-that-falls-idle-while-the-end-goes-through-the-app": Mutation(
        9, "runtime.slices", "        self._ending = True\n", ""
    ),
    "an-end-of-a-run-taken-for-that-of-the-input": Mutation(
        9, "runtime.slices", "                task.opened(operator)", "                pass"
    ),
    "a-wake-that-is-not-on-the-tape": Mutation(
        9, "core.engine.task", "            self._tape.cause(tape.UPSTREAM, source, 0)", "            pass"
    ),
    "a-run-that-is-over-and-holds-nobody-back": Mutation(
        9, "core.engine.watermarks", "        return idle and not self.ended_operators[operator]", "        return idle or self.ended_operators[operator]"
    ),
    # 10: nothing that is done over months is wrong in silence
    "an-end-of-a-run-that-is-opened-on-the-tape-alone": Mutation(
        10, "core.engine.task", "            self._watermarks.ended_operators[operator] = False\n", ""
    ),
    "a-last-watermark-that-is-not-published": Mutation(
        10, "runtime.published_watermarks", "                if last is not None and last < reached:", "                if False:"
    ),
    "a-worker-that-reads-before-the-others-have-started": Mutation(
        10, "runtime.worker", "while self.phase == STARTING", "while False"
    ),
    "sends-of-other-code-that-are-not-compared": Mutation(
        10, "history.rebuilding.recorded_sends", "            if one.topic in self.topics:\n", "            if False:\n"
    ),
    "a-digest-of-the-code-without-its-modules": Mutation(
        10, "history.rebuilding.code_digest", 'parts[f"module {name}"] = _module_digest(name)', "pass"
    ),
    "a-state-replaced-by-positions-alone": Mutation(
        10, "history.comparing.cut_differences", "    for name, what in _COUNTED.items():\n", "    return found\n    for name, what in _COUNTED.items():\n"
    ),
    "a-redriven-record-run-beside-its-original": Mutation(
        10, "history.rebuilding.failed_before", "            redriven[number].add((name, offset))\n", "            pass\n"
    ),
    "a-ttl-that-moves-to-the-other-time-domain": Mutation(
        10, "core.values.type_evolution", "    if stored.ttl_ms is not None and _ttl_time", "    if False and _ttl_time"
    ),
    "a-number-that-json-does-not-have": Mutation(
        10, "core.values.event_values", "    return _Look(nan_only).writer(node, encode, checked)", "    return encode"
    ),
    "a-default-of-now-for-what-was-stored-before": Mutation(
        10, "core.values.type_evolution", "    before = [one.default for one in ancestors if one.absent]", "    before = []"
    ),
    "a-first-position-that-is-not-noted": Mutation(
        10, "runtime.first_positions", "    if new:\n", "    if False:\n"
    ),
}  # fmt: skip


class NotFoundError(LookupError):
    """What a mutation replaces is not in the module, or more than once."""


class Mutator(importlib.abc.MetaPathFinder):
    """Imports one module with a piece of its source replaced."""

    def __init__(self, mutation: Mutation) -> None:
        self.mutation = mutation
        self.name = f"tailrace.{mutation.module}"
        self.applied = False

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: types.ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """A spec whose loader changes the source, for the one module."""
        if fullname != self.name:
            return None
        spec = importlib.machinery.PathFinder.find_spec(fullname, path)
        if spec is None or spec.origin is None:
            return None
        return importlib.util.spec_from_loader(fullname, _Loader(fullname, spec.origin, self))


class _Loader(importlib.machinery.SourceFileLoader):
    def __init__(self, fullname: str, path: str, mutator: Mutator) -> None:
        super().__init__(fullname, path)
        self._mutator = mutator

    def get_code(self, fullname: str) -> types.CodeType:
        source = mutated(self._mutator.mutation, self.get_data(self.path).decode())
        self._mutator.applied = True
        return compile(source, self.path, "exec")


def mutated(mutation: Mutation, source: str) -> str:
    """The source with its mistake. Raises NotFoundError if it does not fit."""
    if source.count(mutation.before) != 1:
        raise NotFoundError(
            f"{mutation.before!r} is {source.count(mutation.before)} times in {mutation.module}"
        )
    return source.replace(mutation.before, mutation.after)


def preload() -> None:
    """Import what the checks need."""
    importlib.import_module("tests.proof.laws")


def mutation_of(name: str) -> Mutation:
    """The mutation of a name."""
    return MUTATIONS[name]


def run(name: str) -> int:
    """Run the check of a law on code that is broken; 0 if it fails."""
    import pytest

    from tailrace.core.errors import TailraceError
    from tests.proof.laws import LAWS

    try:
        LAWS[MUTATIONS[name].law]()
    except (
        AssertionError,
        TailraceError,
        RuntimeError,
        pytest.fail.Exception,
    ) as error:  # anything else says that the check is broken
        print(f"{type(error).__name__}: {error}"[:300])  # noqa: T201  # what the test shows
        return 0
    return 1


def main(name: str) -> int:
    """Break the code as it is imported, and run the check."""
    mutator = Mutator(MUTATIONS[name])
    sys.meta_path.insert(0, mutator)
    preload()
    assert mutator.applied, f"{mutator.name} is not imported"
    return run(name)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
