"""Mistakes in how timers and their index are stored; see ``tests.proof.mutations``."""

from __future__ import annotations

from tests.proof.mutating import Mutation

_MOVED = ("tests/core/test_moved_timers.py",)

MUTATIONS: dict[str, Mutation] = {
    "a-timer-moved-later-and-indexed-never": Mutation(
        "core.engine.actor_timers:ActorTimers.postpone_timer",
        "armed[self._index_row(parts, timer, found.time_ms)] = b''",
        "pass",
        law=7,
        tests=_MOVED,
    ),
    "a-timer-moved-earlier-and-indexed-late": Mutation(
        "core.engine.actor_timers:ActorTimers._collect_index",
        "new.time_ms > was_ms",
        "new.time_ms != was_ms",
        law=7,
        tests=("tests/core/test_moved_timers.py -k moved_earlier",),
    ),
    "an-index-row-of-a-moved-timer-that-stays": Mutation(
        "core.engine.actor_timers:ActorTimers._collect_index",
        "was_ms = parts.indexed[timer]",
        "pass",
        law=7,
        tests=_MOVED,
    ),
    "an-outdated-index-row-that-stays": Mutation(
        "core.engine.actor_timers:ActorTimers.postpone_timer",
        "armed[self._index_row(parts, timer, time_ms)] = None",
        "pass",
        law=7,
        tests=("tests/core/test_moved_timers.py -k moved_before_the_start",),
    ),
    "an-index-row-of-a-timer-moved-to-and-fro-that-stays": Mutation(
        "core.engine.actor_timers:ActorTimers.postpone_timer",
        "armed[self._index_row(parts, timer, was_ms)] = None",
        "pass",
        law=7,
        tests=_MOVED,
    ),
    "a-timer-set-again-that-keeps-an-index-row-that-has-come-up": Mutation(
        "core.engine.actor_timers:ActorTimers._collect_index",
        "(parts.key, timer) not in self.ended",
        "True",
        law=7,
        tests=_MOVED,
    ),
    "an-index-row-of-a-timer-that-came-up-and-was-cancelled": Mutation(
        "core.engine.actor_timers:ActorTimers.collect_timers",
        "new is not None or not (parts and parts.indexed and (timer in parts.indexed))",
        "True",
        law=7,
        tests=_MOVED,
    ),
    "timer-rows-beside-timers-inside": Mutation(
        "core.engine.actor_timers:ActorTimers.collect_timers",
        "have_rows or first.have_rows",
        "have_rows",
        law=7,
        tests=_MOVED,
    ),
    "many-timers-of-which-only-the-changed-get-rows": Mutation(
        "core.engine.actor_timers:ActorTimers._collect_rows",
        "have_rows and first.have_rows",
        "have_rows",
        law=7,
        tests=("tests/core/test_moved_timers.py -k one_more_gives_rows",),
    ),
    "timer-rows-that-are-forgotten-at-the-commit": Mutation(
        "core.engine.actor_timers:ActorTimers.timers_committed",
        "parts.have_rows = have_rows",
        "pass",
        law=7,
        tests=_MOVED,
    ),
    "the-form-of-timers-by-their-number-before": Mutation(
        "core.rows:value_head",
        "len(timers) <= INSIDE",
        "len(timers) < INSIDE",
        law=7,
        tests=("tests/core/test_moved_timers.py -k one_more_gives_rows",),
    ),
    "a-restore-that-loses-the-index-of-gathered-timers": Mutation(
        "core.rows:index_changes",
        "changes | there",
        "there | changes",
        law=7,
        tests=("tests/core/test_rows.py",),
    ),
    "a-restore-that-loses-the-index-of-timers-that-got-rows": Mutation(
        "core.rows:_other_row", "new[0] & HAS_TIMERS", "False", law=7, tests=("tests/core/test_rows.py",)
    ),
    "a-restore-that-loses-the-index-of-timers-that-came-inside": Mutation(
        "core.rows:_other_row", "return prefix", "return None", law=7, tests=("tests/core/test_rows.py",)
    ),
}
