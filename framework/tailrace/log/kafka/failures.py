"""Sorts the errors of Kafka, in one table, by what has to be done.

=============  =============================================================================================================
retry          the same call again: a broker that restarts, a leader that moves, a time-out. Nothing was decided.
abort          the transaction has failed and must be aborted; the writer can be used after that
fenced         another has the transactional id, or the group has given the partition to another: stop
refused        Kafka will never do it: permission is denied, the topic is not there, the record is too large
fatal          the client is of no more use, and what became of the call is not known
=============  =============================================================================================================

librdkafka says of each error of a transaction whether it can be retried or needs an abort. Codes decide only where it does not.
"""

from __future__ import annotations

from enum import Enum
from typing import Final

from tailrace.core.errors import (
    FencedError,
    LogDeniedError,
    LogUnavailableError,
    RecordTooLargeError,
    TailraceError,
    UnknownTopicError,
    UsageError,
)
from tailrace.log.kafka.library import KafkaError, Producer, library


class Kind(Enum):
    """What has to be done about an error."""

    RETRY = "retry"
    ABORT = "abort"
    FENCED = "fenced"
    REFUSED = "refused"
    FATAL = "fatal"


_FENCED: Final = frozenset(
    {
        "_FENCED",
        "FENCED_INSTANCE_ID",
        "FENCED_MEMBER_EPOCH",
        "ILLEGAL_GENERATION",
        "INVALID_PRODUCER_EPOCH",
        "PRODUCER_FENCED",
        "STALE_MEMBER_EPOCH",
        "UNKNOWN_MEMBER_ID",
    }
)
DENIED_CONNECTION: Final = frozenset({"_AUTHENTICATION", "_SSL"})
"""What a client reports whose connection the brokers deny, or that does not trust them."""
_DENIED: Final = DENIED_CONNECTION | frozenset(
    {
        "CLUSTER_AUTHORIZATION_FAILED",
        "DELEGATION_TOKEN_AUTHORIZATION_FAILED",
        "GROUP_AUTHORIZATION_FAILED",
        "SASL_AUTHENTICATION_FAILED",
        "TOPIC_AUTHORIZATION_FAILED",
        "TRANSACTIONAL_ID_AUTHORIZATION_FAILED",
    }
)
_RESOURCES: Final = {
    "TOPIC_AUTHORIZATION_FAILED": "the topic",
    "GROUP_AUTHORIZATION_FAILED": "the consumer group",
    "TRANSACTIONAL_ID_AUTHORIZATION_FAILED": "the transactional id",
    "CLUSTER_AUTHORIZATION_FAILED": "the cluster",
}
CREDENTIALS: Final = (
    "Correct the credentials or certificates (TAILRACE_KAFKA_SASL_USERNAME, TAILRACE_KAFKA_SASL_PASSWORD, "
    "TAILRACE_KAFKA_SSL_CA_LOCATION, …)."
)
_UNKNOWN_TOPIC: Final = frozenset(
    {"_UNKNOWN_PARTITION", "_UNKNOWN_TOPIC", "UNKNOWN_TOPIC_ID", "UNKNOWN_TOPIC_OR_PART"}
)
_TOO_LARGE: Final = frozenset({"MSG_SIZE_TOO_LARGE", "RECORD_LIST_TOO_LARGE"})
_WRONG: Final = frozenset(
    {
        "INVALID_CONFIG",
        "INVALID_PARTITIONS",
        "INVALID_REPLICATION_FACTOR",
        "POLICY_VIOLATION",
        "TOPIC_EXCEPTION",
    }
)
"""What is asked for cannot be had on these brokers."""
_RETRIED: Final = frozenset(
    {
        "_ALL_BROKERS_DOWN", "_NOENT", "_RESOLVE", "_TIMED_OUT", "_TIMED_OUT_QUEUE", "_TRANSPORT", "_WAIT_COORD",
        "CONCURRENT_TRANSACTIONS", "COORDINATOR_LOAD_IN_PROGRESS", "COORDINATOR_NOT_AVAILABLE", "FENCED_LEADER_EPOCH",
        "KAFKA_STORAGE_ERROR", "LEADER_NOT_AVAILABLE", "NETWORK_EXCEPTION", "NOT_CONTROLLER", "NOT_COORDINATOR",
        "NOT_LEADER_FOR_PARTITION", "OFFSET_NOT_AVAILABLE", "REBALANCE_IN_PROGRESS", "REPLICA_NOT_AVAILABLE", "REQUEST_TIMED_OUT",
        "UNKNOWN_LEADER_EPOCH", "UNSTABLE_OFFSET_COMMIT",
    }
)  # fmt: skip
"""What passes, whether or not the library says so."""
_REFUSED: Final = _DENIED | _UNKNOWN_TOPIC | _TOO_LARGE | _WRONG


def kafka_error(error: BaseException) -> KafkaError:
    """The error of Kafka in an exception. Another exception is raised again."""
    found = error.args[0] if error.args else None
    if not isinstance(found, library().KafkaError):
        raise error
    return found


def standing_error(producer: Producer) -> Exception | None:
    """What beginning a transaction fails with while one is open: the fatal error of the producer, or why the transaction has
    to be aborted, if there is either. The producer must be transactional.
    """
    try:
        producer.begin_transaction()
    except Exception as error:  # noqa: BLE001  # the caller raises it or another
        return error
    return None


def passes(error: KafkaError) -> bool:
    """Whether the same call may succeed later."""
    return bool(error.retriable()) or error.name() in _RETRIED


def kind_of(error: KafkaError) -> Kind:
    """What has to be done about an error of a producer in a transaction."""
    name = error.name()
    if name in _FENCED:
        return Kind.FENCED
    if error.fatal() or name == "_FATAL":
        return Kind.FATAL
    if name in _REFUSED:
        return Kind.REFUSED
    if error.txn_requires_abort() or not passes(error):
        return Kind.ABORT
    return Kind.RETRY


def as_log_error(
    error: KafkaError,
    doing: str,
    topic: str | None = None,
    key: bytes | None = None,
    *,
    resource: str | None = None,
) -> TailraceError:
    """Our error for an error of Kafka. ``doing`` completes "... while ...", for example "reading offsets". ``resource`` is the name
    at the brokers of the topic, group or transactional id that a right may be missing for (default: ``topic``).
    """
    name, said = error.name(), f"{error.str()} ({error.name()}), while {doing}"
    if name in _FENCED:
        return FencedError(
            said, hint="The task continues from the last commit, in the process that has it now."
        )
    if name in _DENIED:
        return LogDeniedError(f"Kafka denies it: {said}", hint=_hint(name, resource or topic))
    if name in _UNKNOWN_TOPIC:
        return UnknownTopicError(f"the topic or partition does not exist: {said}", topic=topic)
    if name in _TOO_LARGE:
        return RecordTooLargeError(
            f"Kafka takes no record of this size: {said}",
            topic=topic,
            key=key,
            hint="Raise max.message.bytes of the topic; or write less at once: smaller events, MapState or ListState for what grows, "
            "and, for a tape, a shorter --commit-interval.",
        )
    if name in _WRONG:
        return UsageError(
            f"Kafka refuses it: {said}",
            hint="Correct the name or the partitions of the topic, or the settings of new topics (--replication, --min-insync).",
        )
    return LogUnavailableError(f"Kafka does not answer: {said}", hint="Nothing committed is lost. Retry.")


def _hint(name: str, resource: str | None) -> str:
    """What the user needs to be allowed to do."""
    if name not in _RESOURCES:
        return CREDENTIALS
    named = f" {resource!r}" if resource and name != "CLUSTER_AUTHORIZATION_FAILED" else ""
    return f"Give the user the rights on {_RESOURCES[name]}{named} that docs/kafka.md lists ('Rights')."
