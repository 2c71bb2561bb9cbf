"""The soak's checks can fail: each is shown the trace of a mistake that it is there to find."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from tailrace.core.records import Output
from tailrace.log import TopicSettings
from tailrace.log.embedded import EmbeddedLog
from tests.soak import checks, feed, oracle
from tests.soak.apps import DISORDER_MS, TOGETHER_MS, WINDOW_MS, Closed, Step, Told, due, second_app

AT = 170_000_001 * WINDOW_MS


def test_a_window_is_closed_once_at_the_time_of_its_last_addition() -> None:
    steps = [
        Step("a", AT, 1, "add", 3),
        Step("a", AT + 1, 2, "add", 4),
        Step("a", AT + 2, 3, "quiet", 5),
        Step("b", AT, 4, "add", 1),
        Step("b", AT + 2, 5, "cancel", 0),
    ]
    expected = oracle.of_first([steps], (), (), rich=False)
    window = AT // WINDOW_MS
    assert expected.closed == Counter([Closed("a", window, due(window, 2, second=False), 3, 12, 3, 0)])
    assert expected.told == Counter([Told("a", "echo", window)])
    assert expected.timers == 2


def test_a_step_is_late_when_its_time_has_been_passed_by_more_than_the_disorder() -> None:
    steps = [
        Step("a", AT, 1, "add", 0),
        Step("a", AT - DISORDER_MS, 2, "add", 0),
        Step("a", AT - DISORDER_MS - 1, 3, "add", 0),
    ]
    assert oracle.late_steps([steps]) == {3}


def test_two_steps_are_together_if_their_times_are_close_in_any_order() -> None:
    steps = [
        Step("a", AT + TOGETHER_MS, 3, "add", 5),
        Step("b", AT, 2, "add", 6),
        Step("a", AT, 4, "add", 7),
        Step("b", AT + TOGETHER_MS + 1, 5, "add", 8),
        Step("a", AT, 7, "add", 9),
    ]
    assert oracle.of_pairs(steps) == Counter(
        [
            Told("pair 1", "together", 11),
            Told("pair 2", "alone", 4),
            Told("pair 2", "alone", 5),
            Told("pair 3", "alone", 7),
        ]
    )


def test_two_and_none_are_told_apart_from_one() -> None:
    with pytest.raises(AssertionError, match="1 too many, 0 missing"):
        checks.same(Counter("aa"), Counter("a"), "letters")
    with pytest.raises(AssertionError, match="0 too many, 1 missing"):
        checks.same(Counter(""), Counter("a"), "letters")
    with pytest.raises(AssertionError, match="audits of k"):
        checks.check_counts(Counter([Told("k", "audit", 1), Told("k", "audit", 3)]), "audits")


@pytest.mark.parametrize(
    ("numbers", "said"),
    [((0, 1, 1), "stands behind 1"), ((0, 2), "missing \\[1\\]"), ((1, 0), "stands behind 1")],
    ids=["twice", "missing", "out of order"],
)
def test_outputs_are_numbered_without_gap_or_repeat(tmp_path: Path, numbers, said) -> None:
    log = EmbeddedLog(tmp_path / "log")
    log.create_topic("second-told", TopicSettings(1))
    for number in numbers:
        log.append("second-told", b"k", b"{}", 0, (("tailrace-origin", b"second/0/%d" % number),))
    with pytest.raises(AssertionError, match=said):
        checks.check_numbers(log, second_app().plan())
    log.close()


def test_an_event_that_was_fed_twice_is_found(tmp_path: Path) -> None:
    log = EmbeddedLog(tmp_path / "log")
    log.create_topic("steps", TopicSettings(1))
    events = feed.outputs(1, 0, 10, rich=False)
    writer = log.writer("feed")
    writer.append(events)
    writer.commit({feed.PLACE: 10}, feed.GROUP)
    checks.check_feed(log, 1, rich=False)
    log.append_all([Output(*events[4])])
    with pytest.raises(AssertionError, match="1 too many"):
        checks.check_feed(log, 1, rich=False)
    log.close()
