"""Schedules: drawn from a seed and a number, complete, and each of another kind."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tailrace.core.records import Output
from tailrace.testing.exploring.feed import Feed, feed_of
from tailrace.testing.exploring.schedules import NEVER, Schedule, drawn
from tests.testing.exploring import apps

APP = apps.counts()
PLAN = APP.plan()
FEED = feed_of(
    PLAN, [Output(topic.name, event.key.encode(), topic.encode(event), 0) for topic, event in apps.ticks(APP)]
)
SOME = [drawn(PLAN, FEED, 0, number) for number in range(1, 200)]


def test_schedules_are_of_every_kind() -> None:
    def some(is_so: Sequence[object]) -> None:
        assert 5 < sum(map(bool, is_so)) < 195

    some([len(one.waves) > 1 for one in SOME])
    some([one.faults for one in SOME])
    some([one.commit_odds for one in SOME])
    some([one.commit_records < NEVER for one in SOME])
    some([one.slice_records == 1 for one in SOME])
    some([one.clock_ms for one in SOME])
    some([one.quiet_idle for one in SOME])
    some([one.firing_budget < 10 for one in SOME])
    assert {one.kind for one in SOME} == {"still", "clock", "idle"}
    assert all(bool(one.clock_ms) == (one.kind != "still") for one in SOME)


def test_inputs_are_silent_in_some_schedules_unless_that_is_left_out_or_none_can_become_idle() -> None:
    plan = apps.windows(idle_after="1s").plan()
    some = [drawn(plan, FEED, 0, number) for number in range(100)]
    assert all(one.clock_ms >= 2_000 for one in some if one.silences)
    assert any(one.silences for one in some)
    assert not any(drawn(plan, FEED, 0, number, idleness=False).silences for number in range(100))
    follows = replace(plan, inputs=tuple(replace(one, watermark="upstream") for one in plan.inputs))
    assert not any(drawn(follows, FEED, 0, number).silences for number in range(100))


def test_a_long_history_has_longer_slices() -> None:
    long = Feed({place: fed * 50 for place, fed in FEED.places.items()})
    shortest: list[Schedule] = [drawn(PLAN, long, 0, number) for number in range(1, 100)]
    assert min(one.slice_records for one in shortest) == long.count // 100
