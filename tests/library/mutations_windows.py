"""Mistakes in windows and aggregates that their tests must notice. They are run with those of the laws."""

from tests.proof.mutating import Mutation

_ORACLE = ("tests/library/test_windows.py",)
_EXACT = ("tests/library/test_windows_wrong.py -k millisecond",)
_MANY = ("tests/library/test_windows_options.py -k panes",)
_FILLED = ("tests/library/test_windows_options.py -k empty",)
_EARLY = ("tests/library/test_windows_options.py -k early",)
_FREED = ("tests/library/test_windows_options.py -k freed",)
_CALENDAR = ("tests/library/test_windows_options.py -k calendar",)
_FIELD = ("tests/library/test_windows_options.py -k what_is_open",)
_AGG = ("tests/library/test_agg.py",)

MUTATIONS = {
    "a-field-that-closes-before-an-earlier-one": Mutation(
        "library.window_field:Windows.handlers",
        "ctx.set_timer(ctx.event_time, again)",
        "close(actor, ctx)",
        tests=("tests/library/test_windows_of_fields.py -k declaration",),
    ),
    "a-field-that-closes-twice": Mutation(
        "library.window_field:Windows.handlers",
        "ctx.cancel_timer(again)",
        "pass",
        tests=("tests/library/test_windows_of_fields.py -k declaration",),
    ),
    "sessions-that-merge-and-lose-one": Mutation(
        "library.panes:_Sessions.add", "in near[1:]", "in near[2:]", tests=_ORACLE
    ),
    "sessions-that-do-not-merge": Mutation(
        "library.panes:_Sessions.near", "return found if", "return found[:1] if", tests=_ORACLE
    ),
    "a-session-that-ends-after-its-gap": Mutation(
        "library.panes:_Sessions.add", "time_ms <= end + gap_ms", "time_ms <= end + gap_ms + 1", tests=_ORACLE
    ),
    "events-at-the-gap-in-two-sessions": Mutation(
        "library.panes:_Sessions.near", "time_ms - gap_ms)", "time_ms - gap_ms + 1)", tests=_ORACLE
    ),
    "a-session-that-grows-without-end": Mutation(
        "library.panes:_Sessions.add", "time_ms - start <= self.longest_ms", "True", tests=_ORACLE
    ),
    "a-result-that-fails-and-ends-all-others": Mutation(
        "core.engine.firing:Firing._give_up",
        "route is None or route.failed is None",
        "True",
        tests=("tests/library/test_failed_results.py -k alone",),
    ),
    "a-pane-that-is-freed-early": Mutation(
        "library.panes:Machine.close", "self.lateness_ms + 1", "self.lateness_ms + 2", tests=_EXACT
    ),
    "a-pane-that-is-left-behind": Mutation(
        "library.panes:Machine.close", "for pane in list(", "for pane in [] and list(", tests=_ORACLE
    ),
    "slices-that-are-left-behind": Mutation(
        "library.panes:_Slices.close", "self.take(actor, oldest[1])", "break", tests=_ORACLE
    ),
    "a-slice-that-is-freed-before-its-last-window": Mutation(
        "library.panes:_Slices.close",
        "self.lateness_ms > time_ms",
        "self.lateness_ms > time_ms + 1",
        tests=_ORACLE,
    ),
    "a-correction-that-is-lost": Mutation(
        "library.panes:Machine.revise",
        "self.give(actor, ctx, pane, 'correction' if before == FINAL else 'final', due_ms)",
        "pass",
        tests=_ORACLE,
    ),
    "a-correction-of-sliding-windows-that-is-lost": Mutation(
        "library.panes:_Slices.add",
        "first + size_ms - 1 <= fired_ms",
        "first + size_ms - 1 < fired_ms",
        tests=_ORACLE,
    ),
    "a-late-event-that-is-taken-a-millisecond-too-long": Mutation(
        "library.panes:_Fixed.add",
        "self.lateness_ms <= fired_ms",
        "self.lateness_ms < fired_ms",
        tests=_FREED,
    ),
    "a-late-event-of-a-session-that-is-taken-a-millisecond-too-long": Mutation(
        "library.panes:_Sessions.add",
        "self.lateness_ms <= fired_ms",
        "self.lateness_ms < fired_ms",
        tests=_ORACLE,
    ),
    "windows-that-the-watermark-closes-and-not-a-timer": Mutation(
        "library.panes:_Fixed.add",
        "fired_ms = ctx.fired_to",
        "fired_ms = ctx.watermark",
        tests=("tests/library/test_windows_options.py -k over_windows",),
    ),
    "an-event-of-the-only-window-that-counts-as-in-time": Mutation(
        "library.panes:Machine.taker.take",
        "fresh >= 0",
        "True",
        tests=("tests/library/test_windows_options.py -k only_window",),
    ),
    "late-events-that-an-ordered-operator-takes": Mutation(
        "library.panes:Machine.is_refused", "self.rules.ordered and ctx.is_late", "False", tests=_ORACLE
    ),
    "windows-that-have-no-timer-if-they-are-not-the-last": Mutation(
        "library.panes:_Fixed.add", "if found is None", "if found is None and field == ()", tests=_ORACLE
    ),
    "panes-in-the-map-that-are-not-found": Mutation(
        "library.panes:Machine.panes", "len(field) == IN_FIELD and", "False and", tests=_MANY
    ),
    "panes-that-leave-the-field-and-are-lost": Mutation(
        "library.panes:Machine.put", "spilled[field[0][1]] = field[0]", "pass", tests=_MANY
    ),
    "panes-in-the-map-behind-a-field-that-is-not-full": Mutation(
        "library.panes:Machine.take", "(spilled.pop(latest),)", "()", tests=_MANY
    ),
    "windows-that-are-filled-for-ever": Mutation(
        "library.panes:_Fixed.follow", "-closed[3] - 1", "-closed[3]", tests=_FILLED
    ),
    "an-empty-window-that-stays-empty": Mutation(
        "library.panes:_Fixed.add", "fresh = 0", "pass", tests=_FILLED
    ),
    "early-results-of-what-has-not-changed": Mutation(
        "library.panes:Machine.tick", "self.put(actor, (*pane[:3], 0))", "pass", tests=_EARLY
    ),
    "a-timer-of-the-clock-of-a-key-without-windows": Mutation(
        "library.panes:Machine.arm", "ctx.cancel_processing_timer(self.rules.timer)", "pass", tests=_EARLY
    ),
    "open-windows-that-have-closed": Mutation(
        "library.panes:_Slices.opened",
        "windows.size_ms - 1 > fired_ms",
        "windows.size_ms - 1 > 0",
        tests=_FIELD,
    ),
    "days-of-24-hours": Mutation(
        "library.windows:Calendar.at",
        "_midnight_ms(self.zone, after.toordinal())",
        "_midnight_ms(self.zone, first.toordinal()) + 86400000 * (after - first).days",
        tests=_CALENDAR,
    ),
    "a-sum-that-loses-its-rest": Mutation(
        "library.agg:plus", "return (whole, rest)", "return (whole,)", tests=_AGG
    ),
    "a-sum-that-depends-on-the-order": Mutation(
        "library.agg:plus", "return _canonical([*parts, number])", "return (*parts, number)", tests=_AGG
    ),
    "equal-values-by-arrival": Mutation(
        "library.agg:_extreme_record.merge", "(a[1], _encode(a)) <= (b[1], _encode(b))", "True", tests=_AGG
    ),
    "names-that-are-counted-twice": Mutation(
        "library.agg:top.merge", "joined(sums.get(name, 0), part)", "part", tests=_AGG
    ),
    "an-estimate-that-forgets-the-hashes-it-has-kept": Mutation(
        "library.sketches:Distinct._held",
        "self._dense(hashes, full=True)",
        "bytes(self._registers)",
        tests=_AGG,
    ),
    "a-quantile-of-the-rank-before": Mutation(
        "library.sketches:Quantiles.result", "ceil(at * total)", "int(at * total)", tests=_AGG
    ),
    "distinct-values-of-two-sets-added": Mutation(
        "library.agg:distinct.merge",
        "sorted({acc[at:at + 16] for acc in (a, b) for at in range(0, len(acc), 16)})",
        "(a, b)",
        tests=_AGG,
    ),
}
