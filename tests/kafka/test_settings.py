"""Addresses and settings of Kafka: from a file, the environment and code, and never shown."""

from __future__ import annotations

import pytest

from tailrace.core.errors import UsageError
from tailrace.log.kafka import KafkaLog, KafkaOptions
from tailrace.log.kafka.connection import Connection


def test_settings_of_the_code_go_before_the_environment_and_these_before_the_file(
    monkeypatch, tmp_path
) -> None:
    file = tmp_path / "kafka.properties"
    file.write_text(
        "# comment\n\nsasl.username = file\nsasl.password=a=b\nclient.id=file\nproducer.linger.ms=1\n"
    )
    monkeypatch.setenv("TAILRACE_KAFKA_FILE", str(file))
    monkeypatch.setenv("TAILRACE_KAFKA_SASL_USERNAME", "environment")
    monkeypatch.setenv("TAILRACE_KAFKA_CLIENT_ID", "environment")
    found = Connection("kafka://h:1", {"client.id": "code"}).settings
    assert found == {
        "sasl.username": "environment",
        "sasl.password": "a=b",
        "client.id": "code",
        "producer.linger.ms": "1",
    }


def test_no_value_of_a_setting_is_shown(monkeypatch, tmp_path) -> None:
    made = Connection("kafka://h:1/p.", {"sasl.password": "secret"})
    assert "secret" not in repr(made)
    assert str(made) == "kafka://h:1/p."
    assert "sasl.password" in repr(made)
    file = tmp_path / "kafka.properties"
    file.write_text("secret without a sign")
    monkeypatch.setenv("TAILRACE_KAFKA_FILE", str(file))
    with pytest.raises(UsageError) as raised:
        Connection("kafka://h:1")
    assert "secret" not in str(raised.value)


@pytest.mark.parametrize(
    "name", ["isolation.level", "producer.acks", "consumer.enable.auto.commit", "transactional.id"]
)
def test_what_exactly_once_rests_on_cannot_be_set(name) -> None:
    with pytest.raises(UsageError, match="cannot be changed"):
        KafkaLog("kafka://h:1", KafkaOptions(settings={name: "x"}))


@pytest.mark.parametrize(
    "url", ["kafka://", "kafka:///p", "kafka://user:password@h:1", "kafka://h:1/a/b", "http://h:1"]
)
def test_a_wrong_url_is_refused(url) -> None:
    with pytest.raises(UsageError, match="kafka://host:9092"):
        KafkaLog(url)


def test_a_file_that_is_not_there_is_named(monkeypatch) -> None:
    monkeypatch.setenv("TAILRACE_KAFKA_FILE", "missing.properties")
    with pytest.raises(UsageError, match="missing"):
        Connection("kafka://h:1")
