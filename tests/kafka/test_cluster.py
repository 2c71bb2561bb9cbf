"""Questions to a cluster end, whatever the brokers answer, or if they never do."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tailrace.core.errors import LogUnavailableError, TopicMismatchError
from tailrace.log import TopicSettings
from tailrace.log.kafka import KafkaLog
from tailrace.log.options import LogOptions


@pytest.fixture
def log(kafka_url: str) -> Iterator[KafkaLog]:
    log = KafkaLog(kafka_url, LogOptions(patience_s=5))
    log.create_topic("a", TopicSettings(1))
    yield log
    log.close()


def test_a_topic_that_another_process_creates_with_other_settings_meanwhile_is_refused(
    log: KafkaLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = log._cluster.names
    answers: Iterator[dict[str, int]] = iter([{}])
    monkeypatch.setattr(log._cluster, "names", lambda: next(answers, None) or names())
    with pytest.raises(TopicMismatchError, match="the topic exists with"):
        log.create_topic("a", TopicSettings(2))


def test_a_topic_that_is_there_again_after_it_was_deleted_is_not_waited_for_without_an_end(
    log: KafkaLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log._cluster, "names", lambda: {"a": 1})
    log.limit_patience(0.5)
    with pytest.raises(LogUnavailableError, match="the brokers still list 'a'"):
        log.admin.delete_topics(["a"])
