"""Mistakes in what the rules of an actor say, which its oracle must notice. They are run with those of the laws.

Runs of the engine that are compared with each other do not notice most of them: all runs have the same mistake.
"""

from tests.proof.mutating import Mutation

_ORACLE = ("tests/oracle/test_oracle.py -k whatever",)
_REBUILDS = ("tests/oracle/test_rebuilds.py",)
_MAPS = ("tests/core/test_map_ranges.py",)
_ON_THE_LOG = ("tests/oracle/test_oracle.py -k embedded",)

MUTATIONS = {
    # Rules 1 to 4
    "a-watermark-that-is-a-millisecond-ahead": Mutation(
        "core.engine.input_decoder:BoundInput.__init__", "plan.out_of_order_ms + 1 if", "plan.out_of_order_ms if", law=9, tests=_ORACLE
    ),
    "the-lowest-watermark-of-inputs-that-are-all-idle": Mutation(
        "core.engine.watermarks:Watermarks._highest_read", "max((self.of_source[one]", "min((self.of_source[one]", law=9, tests=_ORACLE
    ),
    "an-input-that-is-idle-although-it-has-something-to-read": Mutation(
        "runtime.slices:Slices._read", "task.wake(number)", "pass", law=9, tests=_ORACLE
    ),
    "inputs-taken-in-the-order-of-their-names": Mutation(
        "core.engine.merge:Merge.next_run", "ready.sort()", "ready.sort(key=lambda one: one[1])", law=9, tests=_ORACLE
    ),
    # 6 to 12
    "an-event-at-the-watermark-in-time": Mutation(
        "core.engine.task:Task._take", "time_ms <= watermark and judged", "time_ms < watermark and judged", law=9, tests=_ORACLE
    ),
    "processing-time-before-event-time": Mutation(
        "core.engine.firing:Firing._next", "if found is not None:\n        return found", "pass", law=9, tests=_ORACLE, first="test_an_actor_does_what_the_rules_say_whatever_strikes_it[50-99]"
    ),
    "events-that-wait-though-all-inputs-are-idle": Mutation(
        "core.engine.watermarks:Watermarks._highest_read", "max(mark, *(self.waiting_until(one) for one in self.together[operator]))", "mark", law=9, tests=_ORACLE
    ),
    "late-events-routed-and-handled": Mutation(
        "core.engine.ordered_task:OrderedTask._routes_of_late", "return in_time", "return to", law=9, tests=_ORACLE
    ),
    "an-event-whose-place-has-been-passed-in-time": Mutation(
        "core.engine.ordered_task:OrderedTask._arrive.waits", "one in takers and place_ms > marks.ready[one]", "one in takers", law=9, tests=_ORACLE
    ),
    "events-that-an-idle-input-made-late-not-counted-by-an-ordered-actor": Mutation(
        "core.engine.ordered_task:OrderedTask._unit_of", "after_idle is not None and late_events", "False", law=9, tests=_ORACLE
    ),
    # 13
    "the-timers-of-a-failed-handler": Mutation(
        "core.engine.actor_timers:ActorTimers.move_timer", "self.cells.undo.append((timers, timer, MISSING if old is None else old))", "pass", law=9, tests=_ORACLE
    ),
    "a-failed-timer-that-fires-again": Mutation(
        "core.engine.firing:Firing.fire", "give_up(units, table, key, pending)\n    finally", "units.context.now < 0\n    finally", law=9, tests=_ORACLE
    ),
    # 16
    "processing-time-timers-of-a-cleared-instance": Mutation(
        "core.engine.actor_table:Table.clear", "self.move_timer(parts, timer, None)", "timer[0] or self.move_timer(parts, timer, None)", law=9, tests=_ORACLE
    ),
    "entries-of-a-cleared-instance": Mutation(
        "core.engine.actor_table:Table.clear", "entries.clear()", "pass", law=9, tests=_ORACLE
    ),
    "a-value-after-clear-that-never-expires": Mutation(
        "core.engine.actor_table:Table.clear", "for timer in list(parts.timers):", "parts.written.clear()\n        for timer in list(parts.timers):", law=9, tests=_ORACLE
    ),
    # 17 to 19
    "a-processing-time-timer-at-the-watermark": Mutation(
        "core.engine.firing:_after", "watermark_ms + 1", "watermark_ms", law=9, tests=_ORACLE
    ),
    "a-write-of-the-same-value-that-does-not-count": Mutation(
        "core.engine.actor_table:Table._renew", "index in parts.written or value", "value", law=9, tests=_ORACLE
    ),
    "an-entry-that-lives-from-its-first-write": Mutation(
        "core.handling.entries:Entries._with_expiry", "if data == encoded and name not in self._written:\n            return stored", "return rows.pack_entry(encoded, before.domain, before.time_ms)", law=9, tests=_ORACLE
    ),
    "a-time-to-live-from-behind-the-watermark": Mutation(
        "core.engine.instance_cache:InstanceCache.expiry", "max(context.event_time, context.watermark)", "context.event_time", law=9, tests=_ORACLE
    ),
    "a-time-to-live-from-where-a-timer-fires": Mutation(
        "core.engine.instance_cache:InstanceCache.expiry", "return context.event_time + ttl_ms", "return context.watermark + ttl_ms", law=9, tests=_ORACLE
    ),
    # 21
    "an-end-that-does-not-wait-for-what-was-not-read": Mutation(
        "runtime.slices:Slices._is_held_back.ends", "self._settings.bounded or self._phase > 0", "False", law=9, tests=_ON_THE_LOG
    ),
    "an-end-that-rises-to-the-first-timer": Mutation(
        "core.engine.task:Task.finish", "return True", "return to_ms > (1 << 60)", law=9, tests=_ORACLE
    ),
    # The same in a rebuild
    "a-canonical-order-in-which-one-input-runs-ahead": Mutation(
        "core.engine.canonical:Canonical._choose", "first], limit_of", "first], 9000 + limit_of", law=9, tests=_REBUILDS, first="test_in_canonical_order"
    ),
    # Maps
    "a-floor-of-a-failed-unit-kept": Mutation(
        "core.handling.entries:Entries._raise_floor", "self._parts.table.cells.undo.append((self._floor, None, before))", "pass", law=9, tests=_MAPS
    ),
    "a-queue-that-reads-what-it-has-deleted": Mutation(
        "core.handling.entries:Entries._raise_floor", "self._floor[None] = name", "pass", law=9, tests=_MAPS, first="test_a_scan_reads_what_is_in_its_range"
    ),
    "an-entry-below-the-floor-not-found": Mutation(
        "core.handling.entries:Entries.put", "self._floor[None] = name", "pass", law=9, tests=_MAPS, first="test_a_map_state_does_what_a_sorted_dict_does[True-tiny"
    ),
    "an-entry-after-the-first-scan-not-found": Mutation(
        "core.handling.entries:Entries._touch", "self._order.add(name)", "pass", law=9, tests=_MAPS, first="test_a_map_state_does_what_a_sorted_dict_does[False-as"
    ),
    "a-deleted-entry-that-a-scan-finds": Mutation(
        "core.handling.entries:Entries.names", "not self.has(name)", "False", law=9, tests=_MAPS
    ),
    "an-item-replaced-by-an-equal-one-not-stored": Mutation(
        "core.handling.entries:Entries._appended", "all(map(is_, before, value))", "before == value[:len(before)]", law=9, tests=_MAPS
    ),
    "items-appended-by-a-failed-unit-kept": Mutation(
        "core.handling.entries:Entries._keep", "self._parts.table.cells.undo.append((self._as_sealed, name, MISSING))", "pass", law=9, tests=_MAPS
    ),
    "items-appended-to-a-list-of-an-older-type": Mutation(
        "core.handling.entries:Entries.read", "self.plan.encode(value) == data", "True", law=9, tests=_MAPS, first="test_what_an_older_type_wrote_is_encoded_as_a_whole"
    ),
    "a-scan-that-costs-what-is-pending": Mutation(
        "core.handling.entries:Entries._changed", "order is None", "True", law=9, tests=_MAPS, first="test_a_scan_reads_what_is_in_its_range"
    ),
}  # fmt: skip
