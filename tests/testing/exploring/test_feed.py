"""The feed: what the inputs hold that came from outside."""

from __future__ import annotations

import pytest

from tailrace.core.errors import TopicMismatchError, UnknownTopicError
from tailrace.log.interface import TopicPartition, TopicSettings
from tailrace.testing import Harness, MemoryLog
from tailrace.testing.exploring.feed import Feed, feed_of, feed_of_log, inputs_from_outside
from tailrace.testing.inputs import written_topics
from tests.testing.exploring import apps
from tests.testing.shop import Shop


def times(feed: Feed) -> list[int]:
    return sorted(one.time_ms or 0 for fed in feed.places.values() for one in fed)


def test_the_feed_of_a_log_is_what_producers_have_appended() -> None:
    app = apps.shop()
    with Harness(app) as h:
        for topic, event in apps.sales(app, 10):
            h.send(topic, event)
        assert len(h.emitted(app.topics["paid"])) == 10
        feed = feed_of_log(h.plan, h.log)
        assert feed == feed_of_log(h.plan, h.log, most=20)
        assert feed.places.keys() == feed_of(app.plan(), []).places.keys()
        assert feed.count == 20
        assert times(feed) == sorted(event.at for _, event in apps.sales(app, 10))
        assert times(feed_of_log(h.plan, h.log, most=7)) == times(feed)[:7]


def test_a_log_that_lacks_an_input_or_has_other_partitions_is_refused() -> None:
    plan, log = apps.shop().plan(), MemoryLog()
    log.create_topic("checkouts", TopicSettings(4))
    with pytest.raises(UnknownTopicError):
        feed_of_log(plan, log)
    log.create_topic("payments", TopicSettings(4))
    assert feed_of_log(plan, log).count == 0
    log.create_topic("paid", TopicSettings(5))
    with pytest.raises(TopicMismatchError, match="the input has 5 partitions"):
        feed_of_log(plan, log)


def test_what_the_app_alone_writes_is_no_input_from_outside() -> None:
    plan = Shop(repartition=True).app.plan()
    assert {one.name for one in inputs_from_outside(plan)} == {"checkouts", "payments"}
    assert written_topics(plan) == {"out", "shop.checkouts.by-key"}
    assert TopicPartition("shop.checkouts.by-key", 0) not in feed_of(plan, []).places
