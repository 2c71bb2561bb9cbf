"""The soak's checks can fail: each is shown the trace of a mistake that it is there to find."""

from __future__ import annotations

from pathlib import Path

import pytest

from tailrace.core.records import Output
from tailrace.log import TopicSettings
from tailrace.log.embedded import EmbeddedLog
from tests.soak import checks, feed
from tests.soak.apps import WINDOW_MS, second_app

AT = 170_000_001 * WINDOW_MS


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
