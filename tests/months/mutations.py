"""Mistakes that are wrong only after months of upgrades, rebuilds and redriven letters. They are run with those of the laws."""

from tests.proof.mutating import Mutation

_ADDED = ("tests/history/test_added_inputs.py",)
_CODE = ("tests/history/rebuilding/test_code.py::test_a_helper_counts",)
_CORRECTED = ("tests/history/rebuilding/test_corrected_sends.py",)
_DEFAULTS = ("tests/core/test_default_versions.py",)
_FIRST = ("tests/runtime/test_first_positions.py -k does_not_start_in_silence",)
_HARNESS_TIME = ("tests/testing/test_harness_time.py",)
_PARTS = ("tests/history/rebuilding/test_corrected_parts.py",)
_STANDS = ("tests/history/rebuilding/test_untaped.py -k where_the_service_stands",)
_REDRIVEN_FOR_ONE = ("tests/history/rebuilding/test_redriven_for_one.py",)
_TTL = ("tests/core/test_ttl_versions.py",)
_WORKER = ("tests/runtime/test_worker.py -k idle_inputs_count_again",)
_DRAINS = ("tests/history/rebuilding/test_where_drains_end.py",)
_STANDS_ELSEWHERE = ("tests/history/test_standing.py",)

MUTATIONS = {
    "an-end-of-a-run-that-is-opened-on-the-tape-alone": Mutation(
        "core.engine.task:Task.opened", "self._watermarks.ended_operators[operator] = False\n", "", law=10
    ),
    "a-last-watermark-that-is-not-published": Mutation(
        "runtime.published_watermarks:PublishedWatermarks.wanted", "last is not None and last < reached", "False", law=10, tests=_HARNESS_TIME
    ),
    "a-worker-that-reads-before-the-others-have-started": Mutation(
        "runtime.worker:Worker.start", "self.phase == STARTING", "False", law=10, tests=_WORKER
    ),
    "sends-of-other-code-that-are-not-compared": Mutation(
        "history.rebuilding.recorded_sends:Sends.take", "found[0] < until", "False", law=10, tests=_CORRECTED, first="test_it_stops_in_the_commit_of_the_first_record"
    ),
    "a-digest-of-the-code-without-its-modules": Mutation(
        "history.rebuilding.code_digest:code_of", "parts[f'module {name}'] = _module_digest(name)", "pass", law=10, tests=_CODE
    ),
    "a-state-replaced-by-positions-alone": Mutation(
        "history.comparing.cut_differences:cut_changes", "found = position_changes(one.positions, other.positions)", "found = position_changes(one.positions, other.positions)\n    return found", law=10, tests=_STANDS_ELSEWHERE
    ),
    "an-input-waited-for-before-it-was-added": Mutation(
        "core.engine.watermarks:Watermarks.count_only", "if source in known", "", law=10, tests=_ADDED
    ),
    "a-part-with-the-sends-of-other-code": Mutation(
        "history.rebuilding.recorded_sends:compares_before", "part and bool(own_inputs(plan))", "False", law=10, tests=_PARTS
    ),
    "events-from-after-the-time-of-a-state": Mutation(
        "core.engine.input_lane:InputLane._up_to", "<= as_of_ms", "<= as_of_ms + 20000", law=10, tests=_PARTS, first="test_as_of_a_time_it_has_the_events_up_to_it"
    ),
    "sources-that-do-not-reach-the-time-of-a-state": Mutation(
        "core.engine.canonical:Canonical._reach", "if lane.judged", "if False", law=10, tests=_PARTS, first="test_as_of_a_time_it_has_the_events_up_to_it"
    ),
    "a-rebuild-that-ends-behind-the-last-commits": Mutation(
        "history.rebuilding.canonical_targets:_last_positions", "min(end, max(", "max(end, max(", law=10, tests=_STANDS
    ),
    "a-redriven-record-run-beside-its-original": Mutation(
        "history.rebuilding.failed_before:letters_before", "redriven[number].add((name, offset, letter.operators or ''))", "pass", law=10, tests=_REDRIVEN_FOR_ONE
    ),
    "a-ttl-that-moves-to-the-other-time-domain": Mutation(
        "core.values.type_evolution:_evolve_field", "stored.ttl_ms is not None", "False", law=10, tests=_TTL
    ),
    "a-default-of-now-for-what-was-stored-before": Mutation(
        "core.values.type_evolution:_unreadable.before", "one.default for one in ancestors if one.absent", "", law=10, tests=_DEFAULTS
    ),
    "a-first-position-that-is-not-noted": Mutation(
        "runtime.first_positions:note_first_positions", "if new:", "if False:", law=10, tests=_FIRST
    ),
    "a-rebuild-that-stops-where-other-code-had-fired-as-much": Mutation(
        "core.engine.replay:Replay._is_cut_short", "self._record.within_drain", "True", law=10, tests=_DRAINS
    ),
    "events-handled-again-after-a-change-of-order": Mutation(
        "history.snapshots.same_moment:_check_waiting", "lows[0] != lows[1]", "False", law=10, tests=_DRAINS
    ),
}  # fmt: skip
