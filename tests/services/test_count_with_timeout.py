from schemas.activity import Activity, Count
from services.count_with_timeout import Counter, activity, app, counts
from tailrace.testing import Harness

BUSY = [Activity("a", 1_000), Activity("a", 1_200), Activity("a", 1_200)]


def looked(h):
    return h.metrics.get("looked", 0)


def test_events_at_1000_1200_and_1200_fire_at_1500_and_at_1700_once_each_and_tell_the_count_once():
    with Harness(app) as h:
        assert h.send(activity, *BUSY) == []
        assert sorted(h.timers(Counter, "a").values()) == [1_500, 1_700]
        h.advance_watermark(1_499)
        assert looked(h) == 0
        assert h.advance_watermark(1_500) == []  # it fires, but something has come since
        assert looked(h) == 1
        assert h.advance_watermark(1_699) == []
        (out,) = h.advance_watermark(1_700)
        assert (out.event, out.timestamp_ms) == (Count("a", 3), 1_700)
        assert looked(h) == 2
        assert h.advance_watermark(60_000) == []
        assert looked(h) == 2
        h.replay()


def test_a_key_that_becomes_active_again_is_told_again_with_the_whole_count():
    with Harness(app) as h:
        h.send(activity, *BUSY)
        h.advance_watermark(5_000)
        h.send(activity, Activity("a", 6_000))
        h.end_of_input()
        assert h.emitted(counts) == [Count("a", 3), Count("a", 4)]


def test_an_event_that_comes_before_the_watermark_has_passed_the_timer_puts_the_answer_off():
    with Harness(app) as h:
        h.send(activity, *BUSY, Activity("a", 2_000))
        assert looked(h) == 2  # at 1,500 and 1,700, when 2,000 had come
        assert h.end_of_input().to(counts) == [Count("a", 4)]


def test_an_older_event_does_not_make_a_key_quiet_earlier():
    with Harness(app) as h:
        h.send(activity, Activity("a", 1_200), Activity("a", 1_100))
        out = h.end_of_input()
        assert [(o.timestamp_ms, o.event) for o in out] == [(1_700, Count("a", 2))]
