"""An app's own topics are created as they must be; the ones it declares must be there and fit."""

from __future__ import annotations

import pytest

from tailrace.core.errors import TopicMismatchError, UnknownTopicError
from tailrace.history.reading.app_topics import internal_topics, prepare_topics, topics_left_by
from tailrace.log import TopicSettings
from tailrace.testing.memory_log import MemoryLog
from tests.runtime.world import counting_app

PLAN = counting_app().plan()


def test_the_changelog_is_compacted_and_all_own_topics_have_a_partition_per_task() -> None:
    own = internal_topics(PLAN)
    assert {name for name, settings in own.items() if settings.compacted} == {"shop.changelog"}
    assert {settings.partitions for settings in own.values()} == {1}
    assert all(settings.retention_ms is None for settings in own.values())


def test_declared_topics_are_created_only_when_told() -> None:
    log = MemoryLog()
    with pytest.raises(UnknownTopicError, match="returns"):
        prepare_topics(log, PLAN)
    prepare_topics(log, PLAN, create_declared=True)
    prepare_topics(log, PLAN)
    assert set(log.topics()) >= {"sales", "returns", "said", *internal_topics(PLAN)}


def test_an_input_with_another_number_of_partitions_is_refused_and_an_output_is_not() -> None:
    log = MemoryLog()
    log.create_topic("said", TopicSettings(7))
    log.create_topic("sales", TopicSettings(2))
    with pytest.raises(TopicMismatchError, match="sales"):
        prepare_topics(log, PLAN, create_declared=True)


def test_the_topics_of_an_app_whose_name_begins_with_that_of_another_are_its_own() -> None:
    topics = [
        f"{app}.{name}"
        for app in ("shop", "shop.eu", "shopping")
        for name in ("changelog", "tape", "sales.by-key", "sales.by-key.watermarks")
    ]
    wanted = ["shop.changelog", "shop.sales.by-key", "shop.sales.by-key.watermarks", "shop.tape"]
    assert topics_left_by("shop", topics, _watermarks) == wanted
    assert topics_left_by("shop.eu", topics, _watermarks) == [name for name in sorted(topics) if "eu" in name]


def _watermarks(topic: str) -> list[str]:
    return [f"{topic}.watermarks"]
