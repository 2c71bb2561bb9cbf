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
)
from tailrace.log.kafka.library import KafkaError, library


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
_DENIED: Final = frozenset(
    {
        "_AUTHENTICATION",
        "CLUSTER_AUTHORIZATION_FAILED",
        "DELEGATION_TOKEN_AUTHORIZATION_FAILED",
        "GROUP_AUTHORIZATION_FAILED",
        "SASL_AUTHENTICATION_FAILED",
        "TOPIC_AUTHORIZATION_FAILED",
        "TRANSACTIONAL_ID_AUTHORIZATION_FAILED",
    }
)
_UNKNOWN_TOPIC: Final = frozenset(
    {"_UNKNOWN_PARTITION", "_UNKNOWN_TOPIC", "UNKNOWN_TOPIC_ID", "UNKNOWN_TOPIC_OR_PART"}
)
_TOO_LARGE: Final = frozenset({"MSG_SIZE_TOO_LARGE", "RECORD_LIST_TOO_LARGE"})
RETRIED: Final = frozenset(
    {
        "_ALL_BROKERS_DOWN", "_RESOLVE", "_TIMED_OUT", "_TIMED_OUT_QUEUE", "_TRANSPORT", "_WAIT_COORD",
        "CONCURRENT_TRANSACTIONS", "COORDINATOR_LOAD_IN_PROGRESS", "COORDINATOR_NOT_AVAILABLE", "FENCED_LEADER_EPOCH",
        "KAFKA_STORAGE_ERROR", "LEADER_NOT_AVAILABLE", "NETWORK_EXCEPTION", "NOT_CONTROLLER", "NOT_COORDINATOR",
        "NOT_LEADER_FOR_PARTITION", "OFFSET_NOT_AVAILABLE", "REBALANCE_IN_PROGRESS", "REPLICA_NOT_AVAILABLE", "REQUEST_TIMED_OUT",
        "UNKNOWN_LEADER_EPOCH", "UNSTABLE_OFFSET_COMMIT",
    }
)  # fmt: skip
"""What passes, whether or not the library says so."""
_REFUSED: Final = _DENIED | _UNKNOWN_TOPIC | _TOO_LARGE


def kafka_error(error: BaseException) -> KafkaError:
    """The error of Kafka in an exception. Another exception is raised again."""
    found = error.args[0] if error.args else None
    if not isinstance(found, library().KafkaError):
        raise error
    return found


def kind_of(error: KafkaError) -> Kind:
    """What has to be done about an error of a producer in a transaction."""
    name = error.name()
    if name in _FENCED:
        return Kind.FENCED
    if error.fatal() or name == "_FATAL":
        return Kind.FATAL
    if name in _REFUSED:
        return Kind.REFUSED
    if error.txn_requires_abort() or not (error.retriable() or name in RETRIED):
        return Kind.ABORT
    return Kind.RETRY


def as_log_error(error: KafkaError, doing: str, topic: str | None = None) -> TailraceError:
    """Our error for an error of Kafka. ``doing`` completes "... while ...", for example "reading offsets"."""
    name, said = error.name(), f"{error.str()} ({error.name()}), while {doing}"
    if name in _FENCED:
        return FencedError(said, hint="Stop this task. Its new owner continues from the last commit.")
    if name in _DENIED:
        return LogDeniedError(
            f"Kafka denies it: {said}",
            hint="Give the user the right to it, or correct the credentials (TAILRACE_KAFKA_SASL_USERNAME, …).",
        )
    if name in _UNKNOWN_TOPIC:
        return UnknownTopicError(f"the topic or partition does not exist: {said}", topic=topic)
    if name in _TOO_LARGE:
        return RecordTooLargeError(
            f"Kafka takes no record of this size: {said}",
            topic=topic,
            hint="Emit less in one event, or raise max.message.bytes of the topic.",
        )
    return LogUnavailableError(f"Kafka does not answer: {said}", hint="Nothing committed is lost. Retry.")
