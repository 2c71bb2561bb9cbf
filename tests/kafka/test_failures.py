"""The table of Kafka's errors: what is done about each, and what is said."""

from __future__ import annotations

import pytest
from confluent_kafka import KafkaError

from tailrace.core.errors import (
    FencedError,
    LogDeniedError,
    LogUnavailableError,
    RecordTooLargeError,
    UnknownTopicError,
)
from tailrace.log.kafka.failures import Kind, as_log_error, kind_of

TABLE = {
    KafkaError._FENCED: (Kind.FENCED, FencedError),
    KafkaError.INVALID_PRODUCER_EPOCH: (Kind.FENCED, FencedError),
    KafkaError.ILLEGAL_GENERATION: (Kind.FENCED, FencedError),
    KafkaError.UNKNOWN_MEMBER_ID: (Kind.FENCED, FencedError),
    KafkaError.STALE_MEMBER_EPOCH: (Kind.FENCED, FencedError),
    KafkaError.FENCED_INSTANCE_ID: (Kind.FENCED, FencedError),
    KafkaError.TOPIC_AUTHORIZATION_FAILED: (Kind.REFUSED, LogDeniedError),
    KafkaError.GROUP_AUTHORIZATION_FAILED: (Kind.REFUSED, LogDeniedError),
    KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: (Kind.REFUSED, LogDeniedError),
    KafkaError._AUTHENTICATION: (Kind.REFUSED, LogDeniedError),
    KafkaError.UNKNOWN_TOPIC_OR_PART: (Kind.REFUSED, UnknownTopicError),
    KafkaError._UNKNOWN_PARTITION: (Kind.REFUSED, UnknownTopicError),
    KafkaError.MSG_SIZE_TOO_LARGE: (Kind.REFUSED, RecordTooLargeError),
    KafkaError._TIMED_OUT: (Kind.RETRY, LogUnavailableError),
    KafkaError._TRANSPORT: (Kind.RETRY, LogUnavailableError),
    KafkaError.COORDINATOR_LOAD_IN_PROGRESS: (Kind.RETRY, LogUnavailableError),
}


@pytest.mark.parametrize("code", TABLE)
def test_each_error_has_its_kind_and_its_exception(code) -> None:
    kind, kept = TABLE[code]
    error = KafkaError(code, "the reason")
    assert kind_of(error) is kind
    made = as_log_error(error, "testing", "departures")
    assert type(made) is kept
    assert "the reason" in str(made)
    assert "while testing" in str(made)


def test_an_error_that_nobody_knows_ends_the_transaction() -> None:
    assert kind_of(KafkaError(KafkaError._STATE, "x")) is Kind.ABORT


def test_a_fatal_error_and_one_that_needs_an_abort_are_told_apart() -> None:
    assert kind_of(KafkaError(KafkaError._STATE, "x", fatal=True)) is Kind.FATAL
    assert kind_of(KafkaError(KafkaError._STATE, "x", txn_requires_abort=True)) is Kind.ABORT
    assert kind_of(KafkaError(KafkaError._FENCED, "x", fatal=True)) is Kind.FENCED
