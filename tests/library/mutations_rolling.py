"""Mistakes in the operators of ``library.rolling`` that their tests must notice. They are run with those of the laws."""

from tests.proof.mutating import Mutation

_DEDUPE = ("tests/library/test_dedupe.py",)
_ROLLING = ("tests/library/test_rolling.py",)
_SAMPLE = ("tests/library/test_sample.py",)

MUTATIONS = {
    "an-id-that-is-a-duplicate-a-millisecond-too-early": Mutation(
        "library.rolling:add_dedupe.take",
        "-within_ms <= time_ms - at",
        "-within_ms < time_ms - at",
        tests=_DEDUPE,
    ),
    "an-id-that-is-a-duplicate-only-up-to-before-within": Mutation(
        "library.rolling:add_dedupe.take",
        "time_ms - at <= within_ms",
        "time_ms - at < within_ms",
        tests=_DEDUPE,
    ),
    "a-late-event-whose-id-may-be-forgotten-passed-on": Mutation(
        "library.rolling:add_dedupe.take",
        "time_ms <= ctx.fired_to - lateness_ms",
        "time_ms < ctx.fired_to - lateness_ms",
        tests=_DEDUPE,
    ),
    "a-sighting-that-is-freed-before-the-last-duplicate": Mutation(
        "library.rolling:add_dedupe.free",
        "ctx.event_time - hold_ms",
        "ctx.event_time - hold_ms + 1",
        tests=_DEDUPE,
    ),
    "a-timer-for-the-second-sighting": Mutation(
        "library.rolling:add_dedupe.keep", "at == 0", "at == 0 and len(field) == 1", tests=_DEDUPE
    ),
    "sightings-that-are-not-in-order": Mutation(
        "library.rolling:add_dedupe.keep", "(actor.more or at == IN_FIELD)", "at == IN_FIELD", tests=_DEDUPE
    ),
    "a-field-that-is-full-and-loses-its-last": Mutation(
        "library.rolling:add_dedupe.keep", "len(field) > IN_FIELD", "len(field) > IN_FIELD + 1", tests=_DEDUPE
    ),
    "sightings-beyond-the-field-that-are-not-found": Mutation(
        "library.rolling:add_dedupe.take", "if actor.more:", "if False:", tests=_DEDUPE
    ),
    "sightings-of-one-id-that-are-freed-together": Mutation(
        "library.rolling:add_dedupe.free", "if times:", "if False:", tests=_DEDUPE
    ),
    "a-sample-by-another-hash-than-before": Mutation(
        "library.rolling:add_sample.take",
        "_encode(value_of(event))",
        "_encode([value_of(event)])",
        tests=_SAMPLE,
    ),
    "a-sample-by-a-hash-of-the-process": Mutation(
        "library.rolling:add_sample.take",
        "int.from_bytes(digest, 'big')",
        "hash(digest) % (1 << 64)",
        tests=_SAMPLE,
    ),
    "a-limit-of-one-more": Mutation(
        "library.rolling:add_limit.take", "passed >= n", "passed > n", tests=_ROLLING
    ),
    "a-period-that-is-open-a-millisecond-too-long": Mutation(
        "library.rolling:add_limit.take", "end - 1 <= ctx.fired_to", "end <= ctx.fired_to", tests=_ROLLING
    ),
    "a-period-without-a-timer-of-its-own": Mutation(
        "library.rolling:add_limit.take",
        "panes.arm(actor, ctx, ctx.fired_to)",
        "ctx.set_timer(end - 1, 'close')",
        tests=_ROLLING,
    ),
    "a-best-name-that-falls-and-is-not-replaced": Mutation(
        "library.rolling:add_top.take",
        "actor.sums.items() if falls else best.items()",
        "best.items()",
        tests=_ROLLING,
        first="test_the_best_names_are_those_of_the_exact_sums",
    ),
    "a-fall-that-is-judged-by-the-sum-before-the-last": Mutation(
        "library.rolling:add_top.take",
        "len(best) == n and one in best",
        "len(best) < n and one in best",
        tests=_ROLLING,
    ),
    "best-names-given-again-without-a-change": Mutation(
        "library.rolling:add_top.take",
        "ranked != actor.best and repr(ranked) != repr(actor.best)",
        "ranked",
        tests=_ROLLING,
    ),
    "names-of-one-sum-in-any-order": Mutation(
        "library.rolling:add_top.rank", "encode(one[0])", "b''", tests=_ROLLING
    ),
}
