"""The feed: what the inputs hold, from a history and from a log, and how far event time can come with it."""

from __future__ import annotations

from typing import Any

import pytest

import tailrace as tr
from tailrace.core.durations import NO_WATERMARK
from tailrace.core.errors import TopicMismatchError, UnknownTopicError
from tailrace.core.records import Output
from tailrace.log.interface import TopicPartition, TopicSettings
from tailrace.testing import Harness, MemoryLog
from tailrace.testing.exploring.feed import Feed, feed_of, feed_of_log, horizons, inputs_from_outside
from tailrace.testing.inputs import written_topics
from tests.testing.exploring import apps
from tests.testing.shop import Shop


def outputs(app: tr.App, items: Any) -> list[Output]:
    return [Output(topic.name, topic.encode_key(event), topic.encode(event), 5) for topic, event in items]


def times(feed: Feed) -> list[int]:
    return sorted(one.time_ms or 0 for fed in feed.places.values() for one in fed)


def test_a_feed_keeps_the_order_within_a_partition_and_knows_event_times() -> None:
    app = apps.counts()
    feed = feed_of(app.plan(), outputs(app, apps.ticks(app, 10, keys=1)))
    assert feed.count == 20
    assert [len(fed) for fed in feed.places.values() if fed] == [10, 10]
    (ones,) = [fed for place, fed in feed.places.items() if fed and place.topic == "ones"]
    assert [one.time_ms for one in ones] == [n * 7_000 for n in range(10)]
    assert [one.record.offset for one in ones] == list(range(10))
    assert feed.last_ms == {"ones": 63_000, "twos": 66_000}
    assert feed.clock_ms == 5


def test_what_is_left_of_a_partition_has_a_least_event_time() -> None:
    app = apps.counts()
    one, (first, last) = app.topics["ones"], (apps.Tick("k", 70_000), apps.Tick("k", 10_000))
    feed = feed_of(app.plan(), outputs(app, [(one, first), (one, last), (one, first)]))
    (rest,) = [feed.rest_ms[place] for place, fed in feed.places.items() if fed]
    assert rest == (10_000, 10_000, 70_000, 1 << 62)


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


def test_event_time_comes_as_far_as_the_events_that_can_come_to_an_operator() -> None:
    app = apps.shop()
    plan = app.plan()
    feed = feed_of(plan, outputs(app, list(apps.sales(app, 3))[:-1]))
    found = {plan.operators[number].name: at for number, at in horizons(plan, feed).items()}
    # The last payment is left out: what is re-keyed comes to two minutes, and the last checkout is of then,
    # too.
    assert found["rekey"] == 2 * apps.MINUTE_MS
    assert found["Order"] == 2 * apps.MINUTE_MS
    assert set(horizons(plan, feed_of(plan, [])).values()) == {NO_WATERMARK}


def test_what_the_app_alone_writes_is_no_input_from_outside() -> None:
    plan = Shop(repartition=True).app.plan()
    assert {one.name for one in inputs_from_outside(plan)} == {"checkouts", "payments"}
    assert written_topics(plan) == {"out", "shop.checkouts.by-key"}
    assert TopicPartition("shop.checkouts.by-key", 0) not in feed_of(plan, []).places
