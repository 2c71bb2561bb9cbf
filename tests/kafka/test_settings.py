"""Addresses and settings of Kafka: from the environment and code, and never shown."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tailrace.core.errors import UsageError
from tailrace.log.kafka import KafkaLog
from tailrace.log.kafka.connection import Connection
from tailrace.log.options import LogOptions
from tests.cli.commands import run


def test_settings_of_the_code_go_before_the_environment(monkeypatch) -> None:
    monkeypatch.setenv("TAILRACE_KAFKA_SASL_USERNAME", "environment")
    monkeypatch.setenv("TAILRACE_KAFKA_CLIENT_ID", "environment")
    found = Connection("kafka://h:1", {"client.id": "code"}).settings
    assert found == {"sasl.username": "environment", "client.id": "code"}


def test_no_value_of_a_setting_is_shown() -> None:
    made = Connection("kafka://h:1/p.", {"sasl.password": "secret"})
    assert "secret" not in repr(made)
    assert str(made) == "kafka://h:1/p."


@pytest.mark.parametrize(
    "name", ["isolation.level", "producer.acks", "consumer.enable.auto.commit", "transactional.id"]
)
def test_what_exactly_once_rests_on_cannot_be_set(name) -> None:
    with pytest.raises(UsageError, match="cannot be changed"):
        KafkaLog("kafka://h:1", LogOptions(settings={name: "x"}))


def test_readers_of_history_learn_soon_that_they_are_at_the_end_unless_a_wait_is_given() -> None:
    assert Connection("kafka://h:1").of_history() == {"fetch.wait.max.ms": 10}
    for name in ("fetch.wait.max.ms", "consumer.fetch.wait.max.ms"):
        assert Connection("kafka://h:1", {name: "500"}).of_history() == {}


@pytest.mark.parametrize(
    "url", ["kafka://", "kafka:///p", "kafka://user:password@h:1", "kafka://h:1/a/b", "http://h:1"]
)
def test_a_wrong_url_is_refused(url) -> None:
    with pytest.raises(UsageError, match="kafka://host:9092"):
        KafkaLog(url)


@pytest.mark.parametrize(
    ("interval", "timeout_ms", "refused"),
    [("31s", None, True), ("2m", "240000", False), ("2m", "200000", True), ("30s", None, False)],
)
def test_an_interval_of_commits_for_which_brokers_would_abort_transactions_is_refused(
    monkeypatch, tmp_path, interval, timeout_ms, refused
) -> None:
    if timeout_ms is not None:
        monkeypatch.setenv("TAILRACE_KAFKA_PRODUCER_TRANSACTION_TIMEOUT_MS", timeout_ms)
    monkeypatch.setattr(
        "tailrace.cli.service_options.LogOptions",
        lambda **given: replace(LogOptions(**given), patience_s=0.1),
    )
    where = ("--log", "kafka://127.0.0.1:1", "--state", tmp_path)
    ended = run("run", "tests.kafka.apps:app", *where, "--commit-interval", interval)
    said = f"--commit-interval is {interval}, and Kafka aborts a transaction that is open for"
    assert (ended.code, said in ended.err) == (2 if refused else 1, refused), ended.err  # no broker answers


@pytest.mark.parametrize(
    ("name", "value", "told"),
    [
        ("sasl.passwort", "secret", "sasl.passwort"),
        ("sasl.mechanism", "secret", "sasl.mechanism"),
        ("ssl.ca.location", "/secret", "ssl.ca.location"),
    ],
)
def test_a_setting_that_the_client_does_not_take_is_named_and_its_value_is_not(name, value, told) -> None:
    log = KafkaLog("kafka://h:1", LogOptions(settings={"security.protocol": "SASL_SSL", name: value}))
    with pytest.raises(UsageError, match="does not take its settings") as raised:
        log.topics()
    assert told in str(raised.value)
    assert "secret" not in str(raised.value)
