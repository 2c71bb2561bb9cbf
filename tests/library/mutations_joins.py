"""Mistakes in the joins of the library, which their oracle must notice. They are run with those of the laws."""

from tests.proof.mutating import Mutation

_JOIN = ("tests/library/test_joins.py -k interval",)
_WINDOW = ("tests/library/test_joins.py -k window_join",)
_ASOF = ("tests/library/test_joins.py -k asof_join",)
_GATHER = ("tests/library/test_joins.py -k case_has_all",)
_FAILED = ("tests/library/test_joins.py -k timer_that_has_failed",)

MUTATIONS = {
    "pairs-given-twice": Mutation("library.sides:Side.add", "newer = times = ()", "pass", tests=_JOIN),
    "events-freed-a-millisecond-early": Mutation(
        "library.interval:_freer.free",
        "ctx.event_time - keep_ms",
        "ctx.event_time - keep_ms + 1",
        tests=_JOIN,
    ),
    "events-freed-a-millisecond-late": Mutation(
        "library.interval:_freer.free",
        "ctx.event_time - keep_ms",
        "ctx.event_time - keep_ms - 1",
        tests=_JOIN,
    ),
    "kept-events-without-a-timer": Mutation(
        "library.interval:_freer.free", "ctx.set_timer(next_ms, TIMER)", "pass", tests=_JOIN
    ),
    "a-timer-that-the-other-side-does-not-move": Mutation(
        "library.interval:_taker.take", "others_ms is None or", "others_ms is None and", tests=_JOIN
    ),
    "a-bound-that-does-not-belong-to-a-join": Mutation(
        "library.sides:Side.match", "bisect_right(times, last_ms)", "bisect_left(times, last_ms)", tests=_JOIN
    ),
    "a-bound-of-older-events-that-does-not-belong-to-a-join": Mutation(
        "library.sides:Side.match", "(last_ms + 1, 0)", "(last_ms, 0)", tests=_JOIN
    ),
    "an-event-that-is-not-kept-for-one-of-its-time": Mutation(
        "library.interval:add_join",
        "first_ms < 0 or (first_ms == 0 and (not inputs.is_before(0, 1)))",
        "first_ms < 0",
        tests=_JOIN,
    ),
    "matches-of-freed-events-for-others": Mutation(
        "library.sides:Side.free", "setattr(actor, self.bits, bits >> count)", "pass", tests=_JOIN
    ),
    "matches-that-are-lost-on-the-way-to-the-map": Mutation(
        "library.sides:Side._move", "bool(bits >> place & 1)", "False", tests=_JOIN
    ),
    "matches-of-events-in-the-map-that-are-lost": Mutation(
        "library.sides:Side.match", "older[key] = (True, event)", "pass", tests=_JOIN
    ),
    "a-map-that-is-empty-and-counts-on": Mutation(
        "library.sides:Side.free", "if not older:", "if False:", tests=_JOIN
    ),
    "late-events-that-a-join-takes": Mutation(
        "library.interval:_taker.take", "if ctx.is_late:", "if False:", tests=_JOIN
    ),
    "a-window-join-that-ends-after-its-window": Mutation(
        "library.interval:add_window_join.taker.take", "end_ms - 1", "end_ms", tests=_WINDOW
    ),
    "a-version-that-is-not-valid-at-its-own-time": Mutation(
        "library.asof:add_asof",
        "None if inputs.is_before(1, 0) else",
        "None if inputs.is_before(1, 1) is not None else",
        tests=_ASOF,
    ),
    "a-version-that-expires-early": Mutation(
        "library.asof:add_asof.take_right",
        "ctx.event_time + keep_ms",
        "ctx.event_time + keep_ms - 1",
        tests=_ASOF,
    ),
    "a-case-that-ends-early": Mutation(
        "library.gather:add_gather.taker.take",
        "ctx.set_timer(ctx.event_time + within_ms",
        "ctx.set_timer(ctx.event_time + within_ms - 1",
        tests=_GATHER,
    ),
    "a-case-that-ends-twice": Mutation(
        "library.gather:add_gather.taker.take", "ctx.cancel_timer(TIMER)", "pass", tests=_GATHER
    ),
    "a-repeated-part-that-replaces-the-first": Mutation(
        "library.gather:add_gather.taker.take",
        "actor.repeated = (",
        "setattr(actor, attr, event); actor.repeated = (",
        tests=_GATHER,
    ),
    "events-that-a-failed-timer-leaves-for-good": Mutation(
        "library.sides:Side.add", "times[0] < oldest_ms", "False", tests=_FAILED
    ),
}
