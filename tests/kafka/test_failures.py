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
    UsageError,
)
from tailrace.log.kafka.failures import Kind, as_log_error, kind_of

FENCED = (Kind.FENCED, FencedError)
DENIED = (Kind.REFUSED, LogDeniedError)
UNKNOWN = (Kind.REFUSED, UnknownTopicError)
TOO_LARGE = (Kind.REFUSED, RecordTooLargeError)
WRONG = (Kind.REFUSED, UsageError)
PASSES = (Kind.RETRY, LogUnavailableError)
ABORTED = (Kind.ABORT, LogUnavailableError)
TABLE = {
    "_FENCED": FENCED,
    "FENCED_INSTANCE_ID": FENCED,
    "FENCED_MEMBER_EPOCH": FENCED,
    "ILLEGAL_GENERATION": FENCED,
    "INVALID_PRODUCER_EPOCH": FENCED,
    "PRODUCER_FENCED": FENCED,
    "STALE_MEMBER_EPOCH": FENCED,
    "UNKNOWN_MEMBER_ID": FENCED,
    "_AUTHENTICATION": DENIED,
    "_SSL": DENIED,
    "CLUSTER_AUTHORIZATION_FAILED": DENIED,
    "DELEGATION_TOKEN_AUTHORIZATION_FAILED": DENIED,
    "GROUP_AUTHORIZATION_FAILED": DENIED,
    "SASL_AUTHENTICATION_FAILED": DENIED,
    "TOPIC_AUTHORIZATION_FAILED": DENIED,
    "TRANSACTIONAL_ID_AUTHORIZATION_FAILED": DENIED,
    "_UNKNOWN_PARTITION": UNKNOWN,
    "_UNKNOWN_TOPIC": UNKNOWN,
    "UNKNOWN_TOPIC_ID": UNKNOWN,
    "UNKNOWN_TOPIC_OR_PART": UNKNOWN,
    "MSG_SIZE_TOO_LARGE": TOO_LARGE,
    "RECORD_LIST_TOO_LARGE": TOO_LARGE,
    "INVALID_CONFIG": WRONG,
    "INVALID_PARTITIONS": WRONG,
    "INVALID_REPLICATION_FACTOR": WRONG,
    "POLICY_VIOLATION": WRONG,
    "TOPIC_EXCEPTION": WRONG,
    "_ALL_BROKERS_DOWN": PASSES,
    "_NOENT": PASSES,
    "_RESOLVE": PASSES,
    "_TIMED_OUT": PASSES,
    "_TIMED_OUT_QUEUE": PASSES,
    "_TRANSPORT": PASSES,
    "_WAIT_COORD": PASSES,
    "CONCURRENT_TRANSACTIONS": PASSES,
    "COORDINATOR_LOAD_IN_PROGRESS": PASSES,
    "COORDINATOR_NOT_AVAILABLE": PASSES,
    "FENCED_LEADER_EPOCH": PASSES,
    "KAFKA_STORAGE_ERROR": PASSES,
    "LEADER_NOT_AVAILABLE": PASSES,
    "NETWORK_EXCEPTION": PASSES,
    "NOT_CONTROLLER": PASSES,
    "NOT_COORDINATOR": PASSES,
    "NOT_LEADER_FOR_PARTITION": PASSES,
    "OFFSET_NOT_AVAILABLE": PASSES,
    "REBALANCE_IN_PROGRESS": PASSES,
    "REPLICA_NOT_AVAILABLE": PASSES,
    "REQUEST_TIMED_OUT": PASSES,
    "UNKNOWN_LEADER_EPOCH": PASSES,
    "UNSTABLE_OFFSET_COMMIT": PASSES,
    # Of records that were not taken in time: the transaction has to be repeated.
    "_MSG_TIMED_OUT": ABORTED,
    "NOT_ENOUGH_REPLICAS": ABORTED,
    "INVALID_TXN_STATE": ABORTED,
    "UNKNOWN_PRODUCER_ID": ABORTED,
}


def code_of(name: str) -> int:
    """The number of an error."""
    return int(getattr(KafkaError, name))


@pytest.mark.parametrize("name", TABLE)
def test_each_error_has_its_kind_and_its_exception(name: str) -> None:
    kind, kept = TABLE[name]
    error = KafkaError(code_of(name), "the reason")
    assert error.name() == name
    assert kind_of(error) is kind
    made = as_log_error(error, "testing", "departures")
    assert type(made) is kept
    assert "the reason" in str(made)
    assert "while testing" in str(made)


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("TOPIC_AUTHORIZATION_FAILED", "the topic 'p.a'"),
        ("GROUP_AUTHORIZATION_FAILED", "the consumer group 'p.a'"),
        ("TRANSACTIONAL_ID_AUTHORIZATION_FAILED", "the transactional id 'p.a'"),
        ("CLUSTER_AUTHORIZATION_FAILED", "the cluster that"),
    ],
)
def test_what_a_right_is_missing_for_is_named(name: str, told: str) -> None:
    made = as_log_error(KafkaError(code_of(name)), "committing", "a", resource="p.a")
    assert f"Give the user the rights on {told}" in str(made)


def test_an_error_that_nobody_knows_ends_the_transaction() -> None:
    assert kind_of(KafkaError(code_of("_STATE"), "x")) is Kind.ABORT


def test_a_fatal_error_and_one_that_needs_an_abort_are_told_apart() -> None:
    assert kind_of(KafkaError(code_of("_STATE"), "x", fatal=True)) is Kind.FATAL
    assert kind_of(KafkaError(code_of("_STATE"), "x", txn_requires_abort=True)) is Kind.ABORT
    assert kind_of(KafkaError(code_of("_FENCED"), "x", fatal=True)) is Kind.FENCED
