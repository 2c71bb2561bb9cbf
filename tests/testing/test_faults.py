"""Faults in the list of the input: each does what it is named for."""

import pytest

from tailrace.core.engine.settings import TaskSettings
from tailrace.core.errors import UsageError
from tailrace.testing import COMMIT, CRASH, END, REBALANCE, RELOAD, At, Clock, Harness, Idle, Watermark
from tests.testing.everything import Do, Everything, app, did, held, main, side, strict


def tag(name, at_ms=1_000, key="a"):
    return main, Do(key, at_ms, "tag", name=name)


def tags(h, key="a"):
    return held(h, Everything, key).tags


def test_a_fault_prints_as_it_is_written_and_compares_by_value():
    assert repr([CRASH, Clock(5), Watermark(7), END]) == "[CRASH, Clock(5), Watermark(7), END]"
    assert repr(Idle(side)) == "Idle(<topic 'side' of Do>)"
    assert repr(Watermark(5, side)) == "Watermark(5, <topic 'side' of Do>)"
    assert repr(At(3, side, Do("a", 1, "tag"))).startswith("At(3, <topic 'side' of Do>, Do(key='a'")
    assert Clock(5) == Clock(5) != Clock(6)
    assert len({CRASH, CRASH, COMMIT, Clock(5), Clock(5), Watermark(5)}) == 4


def test_a_list_commits_only_where_it_says_so_and_at_its_end():
    with Harness(app, partitions=1) as h:
        h.run([tag("x"), tag("y", 1_001), COMMIT, tag("z", 1_002)])
        assert tags(h) == ["x", "y", "z"]
        assert h.replay().commits == 2


def test_a_list_returns_all_that_became_visible_in_it():
    with Harness(app) as h:
        h.run([tag("before")])
        out = h.run([tag("x"), COMMIT, tag("y"), CRASH, tag("z"), RELOAD])
        assert [event.what for event in out.to(did)] == ["tag"] * 3
        assert h.run([]) == []


@pytest.mark.parametrize("fault", [RELOAD, REBALANCE])
def test_a_stop_in_good_order_commits(fault):
    with Harness(app, commit_every="manual") as h:
        h.run([tag("x"), fault, CRASH])
        assert tags(h) == ["x"]
        h.replay()


def test_the_clock_stays_where_it_is_through_a_crash():
    with Harness(app) as h:
        h.run([(main, Do("a", 1_000, "alarm", 100)), Clock(99), CRASH])
        assert h.now == 99
        assert [event.what for event in h.run([CRASH, Clock(100)]).to(did)] == []
        # After the crash the event was handled again, by a clock that showed 99.
        assert [event.what for event in h.run([Clock(199)]).to(did)] == ["rang"]
        h.replay()


def test_a_watermark_that_was_given_is_given_again_after_a_crash_at_the_same_place():
    before, after = (main, Do("a", 1_500, "tag")), (main, Do("a", 1_400, "tag"))
    with Harness(app, partitions=1) as h:
        undisturbed = h.run([before, Watermark(2_000), after]).to(did)
        assert h.late == 1
    with Harness(app, partitions=1) as h:
        assert h.run([before, Watermark(2_000), after, CRASH]).to(did) == undisturbed
        assert h.late == 1
        h.replay()


def test_neighbours_of_one_topic_are_appended_together_and_others_in_the_order_of_the_list():
    with Harness(app, partitions=1) as h:
        out = h.run([tag("x", 5_000), (side, Do("a", 1_000, "nest")), tag("y", 1_000)])
        assert [event.what for event in out.to(did)] == ["tag", "nest", "tag"]


def test_the_end_may_be_followed_by_faults_only():
    with Harness(app) as h:
        h.run([(main, Do("a", 1_000, "timer", 500)), END, CRASH, RELOAD, REBALANCE, Clock(5)])
        assert [event.what for event in h.emitted(did)] == ["timer", "unnamed"]
        with pytest.raises(UsageError, match="has ended"):
            h.run([tag("x")])
        h.replay()


@pytest.mark.parametrize("wrong", ["CRASH", (main,), 5, None])
def test_what_is_no_item_is_refused(wrong):
    with Harness(app) as h, pytest.raises(UsageError, match="is not an item of a run"):
        h.run([tag("x"), wrong])


def test_what_a_drain_fires_after_a_commit_in_its_middle_is_committed_too():
    timers = [(main, Do("a", 1_000, "timer", number)) for number in range(5)]
    settings = TaskSettings(firing_budget=1)
    with Harness(app, partitions=1, commit_every=1, settings=settings) as h:
        h.run([*timers, Idle(side), Idle(strict), tag("x", 5_000)])
        assert [event.what for event in h.emitted(did)].count("unnamed") == 5
        assert h.timers(Everything, "a") == {}
        assert h.replay().timers == 5
