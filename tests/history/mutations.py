"""Mistakes in what follows a tape, runs an app in rounds, or gives it other partitions. They are run with those of the laws."""

from tests.proof.mutating import Mutation

_ADD_UP = ("tests/history/rebuilding/test_following.py -k add_up",)
_STANDS = ("tests/history/rebuilding/test_following.py -k is_used_only",)
_ROUNDS = ("tests/history/rebuilding/test_rounds.py -k 'random_apps or late_events'",)
_FOR_LATER = ("tests/history/rebuilding/test_rounds.py -k for_later",)
_LATE = ("tests/history/rebuilding/test_rounds.py -k late_events",)
_CHANGED = ("tests/history/rebuilding/test_changed_apps.py -k however",)
_THERE_AND_BACK = ("tests/history/test_reshaping.py -k there_and_back",)
_UNDER_WAY = ("tests/history/test_reshaping.py -k is_under_way",)
_REKEYED = ("tests/history/test_reshaping.py -k other_keys_are_refused",)
_ANOTHER = ("tests/history/test_rekeying.py -k another_request",)
_CHAINED = ("tests/history/test_reshaping.py -k go_along",)
_UPGRADE = "tests/lab/upgrade/test_bad_input.py"
_FAILS = (f"{_UPGRADE} -k fails_on_history",)
_OTHER_MOMENT = (f"{_UPGRADE} -k where_the_old_version_ended",)
_LONG_DONE = (f"{_UPGRADE} -k 'long_done and round'",)
_CHAINS = "tests/lab/upgrade/test_replaced.py"
_REPLACED = (f"{_CHAINS} -k leads_back",)
_FIRSTS = "tests/lab/test_ab_first_events.py"
_OF_OTHERS = (f"{_UPGRADE} -k others_have_written",)

MUTATIONS = {
    # rounds that keep their stores
    "rows-of-a-round-before-its-last-commit-forgotten": Mutation(
        "history.rebuilding.following:Follower.note", "self._written.update(", "self._written = set(", law=10, tests=_ADD_UP
    ),
    "rows-of-a-round-taken-in-the-next-one": Mutation(
        "history.rebuilding.following:Follower.taken", "(sorted(self._written), set())", "(sorted(self._written), self._written)", law=10, tests=_ADD_UP
    ),
    "a-round-that-goes-a-commit-too-far": Mutation(
        "history.rebuilding.following:Follower.advance", "one.number < stop", "one.number <= stop", law=10, tests=_ADD_UP
    ),
    "a-round-that-begins-behind-its-first-commit": Mutation(
        "history.rebuilding.following:Follower._tapes.noted", "self._tape_offset = record.offset", "self._tape_offset = record.offset + 2", law=10, tests=_ADD_UP
    ),
    "a-follower-at-another-snapshot": Mutation(
        "history.rebuilding.following:Followers.taken", "(found.snapshot, found.code) == (job.base, job.code)", "found.code == job.code", law=10, tests=_STANDS
    ),
    "a-follower-with-other-code": Mutation(
        "history.rebuilding.following:Followers.taken", "(found.snapshot, found.code) == (job.base, job.code)", "found.snapshot == job.base", law=10, tests=_STANDS
    ),
    # rounds along the graph
    "a-round-that-is-told-the-highest-watermark-of-its-senders": Mutation(
        "history.rebuilding.rounds_unit:_RoundRun.history", "[min(marks)]", "[max(marks)]", law=10, tests=_ROUNDS
    ),
    "outputs-of-each-round-numbered-from-the-first": Mutation(
        "history.rebuilding.rounds_unit:_RoundRun.history", "if self.unit.shard:", "if False:", law=10, tests=_ROUNDS
    ),
    "records-that-two-rounds-read-counted-twice": Mutation(
        "history.rebuilding.rounds_unit:run_gather", "sum(some) - max(some)", "0", law=10, tests=_ROUNDS
    ),
    "what-a-round-sends-for-later-lost": Mutation(
        "history.rebuilding.rounds_unit:_Sends.flush", "held[stop:]", "[]", law=10, tests=_FOR_LATER
    ),
    "a-round-whose-events-are-late-all-the-same": Mutation(
        "history.rebuilding.rounds_unit:_RoundRun.write", "totals.late or self._behind.behind", "False", law=10, tests=_LATE, first="test_an_app_with_late_events_falls_back_to_one_unit[s2"
    ),
    "late-events-forwarded-by-a-round": Mutation(
        "history.rebuilding.rounds_unit:_Sends.take", "time_ms <= highest_ms - lag_ms", "False", law=10, tests=_LATE
    ),
    # parts in canonical order
    "the-offsets-of-one-partition-for-all": Mutation(
        "history.rebuilding.canonical_unit:CanonicalRun.__init__", "self.job.request.until.of(number).offsets", "self.job.request.until.of(0).offsets", law=10, tests=_CHANGED
    ),
    "other-keys-that-send-nothing": Mutation(
        "history.rebuilding.canonical_unit:_TaskSink._task", "None if job.delivers_sends else self._keys", "self._keys", law=10, tests=_CHANGED
    ),
    # other partitions
    "events-that-wait-lost-in-a-reshape": Mutation(
        "history.moving.reshaping:_Reshaping._waiting_in", "[offset] if waits else []", "()", law=10, tests=_THERE_AND_BACK
    ),
    "the-highest-watermark-of-the-old-tasks": Mutation(
        "history.moving.reshaping:_lowest", "{name: min(", "{name: max(", law=10, tests=_THERE_AND_BACK
    ),
    "numbers-of-outputs-used-twice-after-a-reshape": Mutation(
        "history.moving.reshaping:_Reshaping._cut", "outputs=max(", "outputs=min(", law=10, tests=_UNDER_WAY
    ),
    "a-key-in-every-new-task": Mutation(
        "history.moving.reshaping:_Reshaping._rows_for", "partition_of(parts.key, self._after.partitions) == number", "True", law=10, tests=_THERE_AND_BACK
    ),
    "records-that-were-not-read-left-behind": Mutation(
        "history.moving.reshaping:_Reshaping._spread", "not is_handled(number, offset)", "False", law=10, tests=_THERE_AND_BACK
    ),
    "messages-that-wait-sent-to-old-keys": Mutation(
        "history.moving.reshaping:_Reshaping._check_messages", "self._waiting.get((inbox, number)) or first(self._source, inbox, number, position) is not None", "False", law=10, tests=_REKEYED
    ),
    "a-snapshot-of-another-reshape-taken-up": Mutation(
        "history.moving.reshaping:_Reshaping._known_snapshot", "tape.decode_cut(first).identity == self._identity(0)", "True", law=10, tests=_ANOTHER
    ),
    "the-order-of-partitions-in-a-spread-topic": Mutation(
        "history.moving.spreading:Routing.routed", "key=itemgetter(0)", "key=lambda _: 0", law=10, tests=_THERE_AND_BACK
    ),
    "a-record-spread-by-its-old-partition": Mutation(
        "history.moving.spreading:Routing._goes_to", "number % self._after if key is None else partition_of(key, self._after)", "number % self._after", law=10, tests=_CHAINED
    ),
    # upgrades
    "an-upgrade-without-its-last-round": Mutation(
        "lab.upgrade.steps:Steps._cut_over", "self._round(last, made)", "pass", law=10, tests=_OTHER_MOMENT
    ),
    "a-state-of-another-moment-taken-for-that-of-the-end": Mutation(
        "lab.upgrade.tasks:verify", "check_same_moment(plan, opened, found, number, tape.decode_cut(cut), cuts_only=not timers)", "pass", law=10, tests=_OTHER_MOMENT
    ),
    "an-upgrade-that-fails-and-lets-nobody-run": Mutation(
        "lab.upgrade.steps:Steps.run", "self.give_up()\n            raise", "raise", law=10, tests=_OTHER_MOMENT
    ),
    "a-command-that-was-replaced-and-writes-state": Mutation(
        "lab.upgrade.steps:Steps._write_state", "note_upgrade(self._writer, self._app, self._upgrade)", "pass", law=10, tests=_LONG_DONE
    ),
    "an-upgrade-continued-by-other-code": Mutation(
        "lab.upgrade.driver:Upgrading._state", "found.code != new.code", "False", law=10, tests=_FAILS
    ),
    "a-version-that-runs-after-it-was-replaced": Mutation(
        "history.reading.upgrades:check_version", "plan.version in found.replaced_now", "False", law=10, tests=_REPLACED
    ),
    "a-version-that-runs-after-a-later-upgrade": Mutation(
        "history.reading.upgrades:Upgrade.replaced_now", "{*self.replaced, self.old}", "{self.old}", law=10, tests=_REPLACED
    ),
    "a-rollback-with-the-clock-of-the-kept-state": Mutation(
        "lab.upgrade.tasks:_begun", "now=begun.now", "now=mine.now", law=10, tests=(f"{_CHAINS} -k rolled_back",)
    ),
    "dead-letters-lost-by-a-rollback": Mutation(
        "lab.upgrade.steps:Steps._cut_over", "self._before is not None", "False", law=10, tests=(f"{_CHAINS} -k letters",)
    ),
    "values-of-others-corrected": Mutation(
        "lab.upgrade.corrections:_may_correct", "origin_of(record, app.encode()) is not None", "True", law=10, tests=_OF_OTHERS
    ),
    "what-an-old-version-alone-has-written-kept": Mutation(
        "lab.upgrade.corrections:corrections", "record.value is not None and _may_correct(record, plan.app)", "False", law=10, tests=_OF_OTHERS
    ),
    # comparisons of versions
    "a-first-event-by-its-time": Mutation(
        "lab.first_events:first_events", "(one[0], one[1].time_ms)", "one[1].time_ms", law=10, tests=(f"{_FIRSTS} -k out_of_order",)
    ),
    "messages-to-other-keys-that-count": Mutation(
        "lab.first_events:_Recorder._cause", "moment.at >= BEYOND and name in self._own", "False", law=10, tests=(f"{_FIRSTS} -k no_events_of_a_key",)
    ),
    "calls-of-some-other-keys-that-count": Mutation(
        "lab.first_events:_Recorder.returned", "self.keys[item] == key", "True", law=10, tests=(f"{_FIRSTS} -k another_have_one",)
    ),
}  # fmt: skip
