"""Sorts the errors of Kafka, in one table, by what has to be done. A test takes all codes of the library, and each is in one table.

=============  =============================================================================================================
retry          the same call again: a broker that restarts, a leader that moves, a time-out. Nothing was decided.
abort          the transaction has failed and must be aborted; the writer can be used after that
fenced         another has the transactional id, or the group has given the partition to another: stop
refused        Kafka will never do it: permission is denied, the topic is not there, a setting has to be changed; or the record
               is one that its topic never takes
fatal          the client is of no more use, and what became of the call is not known
=============  =============================================================================================================

librdkafka says of each error of a transaction whether it can be retried or needs an abort. Codes decide only where it does not, and what
is lasting whatever it says.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Final

from tailrace.core.errors import (
    FencedError,
    LogDeniedError,
    LogUnavailableError,
    RecordTooLargeError,
    TailraceError,
    TopicMismatchError,
    UnknownTopicError,
    UsageError,
)
from tailrace.log.kafka.library import KafkaError, Producer, library
from tailrace.log.kafka.topic_config import AFTER_MS, BEFORE_MS, LARGEST


class Kind(Enum):
    """What has to be done about an error."""

    RETRY = "retry"
    ABORT = "abort"
    FENCED = "fenced"
    REFUSED = "refused"
    FATAL = "fatal"


def _by_name(names_by_hint: Mapping[str, str]) -> dict[str, str]:
    return {name: hint for hint, names in names_by_hint.items() for name in names.split()}


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
        "DELEGATION_TOKEN_AUTH_DISABLED",
        "DELEGATION_TOKEN_EXPIRED",
        "DELEGATION_TOKEN_NOT_FOUND",
        "DELEGATION_TOKEN_OWNER_MISMATCH",
        "DELEGATION_TOKEN_REQUEST_NOT_ALLOWED",
        "ILLEGAL_SASL_STATE",
        "INVALID_PRINCIPAL_TYPE",
        "PRINCIPAL_DESERIALIZATION_FAILURE",
        "SECURITY_DISABLED",
        "UNACCEPTABLE_CREDENTIAL",
        "UNSUPPORTED_SASL_MECHANISM",
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
_LARGE_HINT: Final = (
    "Raise max.message.bytes of the topic; or write less at once: smaller events, MapState or ListState for what grows, and, for a tape, a "
    "shorter --commit-interval."
)
_UNTAKEN: Final = _by_name(
    {
        "Give each output a key, if the topic is compacted (cleanup.policy); the log of the brokers has the reason.": (
            "INVALID_RECORD _INVALID_DIFFERENT_RECORD"
        ),
        "An event time is further from the clock of the brokers than the topic takes. Remove the limit: kafka-configs.sh --alter --add-config "
        f"{AFTER_MS}={LARGEST},{BEFORE_MS}={LARGEST}": "INVALID_TIMESTAMP",
    }
)
"""Of a record that its topic never takes as it is: what to do."""
_LASTING: Final = _by_name(
    {
        "Correct the name or the partitions of the topic, or the settings of new topics (--replication, --min-insync).": (
            "INVALID_CONFIG INVALID_PARTITIONS INVALID_REPLICA_ASSIGNMENT INVALID_REPLICATION_FACTOR POLICY_VIOLATION TOPIC_EXCEPTION"
        ),
        "Brokers and client do not go together: docs/kafka.md lists the versions. Look at the settings TAILRACE_KAFKA_….": (
            "_INVALID_ARG _NOT_CONFIGURED _NOT_IMPLEMENTED _UNKNOWN_PROTOCOL _UNSUPPORTED_FEATURE INVALID_REQUEST INVALID_REQUIRED_ACKS "
            "UNSUPPORTED_COMPRESSION_TYPE UNSUPPORTED_FOR_MESSAGE_FORMAT UNSUPPORTED_VERSION"
        ),
        "Set TAILRACE_KAFKA_PRODUCER_TRANSACTION_TIMEOUT_MS to no more than transaction.max.timeout.ms of the brokers, or raise that.": (
            "INVALID_TRANSACTION_TIMEOUT"
        ),
        "Set TAILRACE_KAFKA_CONSUMER_SESSION_TIMEOUT_MS to a value from group.min.session.timeout.ms to group.max.session.timeout.ms of the "
        "brokers, or change these.": "INVALID_SESSION_TIMEOUT",
        "A process with another protocol is in the group (TAILRACE_KAFKA_CONSUMER_GROUP_PROTOCOL: classic, the default, or consumer). Stop "
        "all processes of the app, then start all with the same one.": (
            "GROUP_ID_NOT_FOUND INCONSISTENT_GROUP_PROTOCOL UNSUPPORTED_ASSIGNOR"
        ),
        "Give each process an id of its own (TAILRACE_KAFKA_CONSUMER_GROUP_INSTANCE_ID).": "UNRELEASED_INSTANCE_ID",
        "Raise group.max.size of the brokers, or start fewer processes.": "GROUP_MAX_SIZE_REACHED",
        "Raise offset.metadata.max.bytes of the brokers.": "INVALID_COMMIT_OFFSET_SIZE OFFSET_METADATA_TOO_LARGE",
        "Give the app another name.": "INVALID_GROUP_ID INVALID_REGULAR_EXPRESSION",
        "Set delete.topic.enable=true at the brokers.": "TOPIC_DELETION_DISABLED",
        "This machine has no memory, threads or files left.": "_CRIT_SYS_RESOURCE _FS",
    }
)
"""What Kafka will never do as things are, and the setting that helps."""
_RETRIED: Final = frozenset(
    {
        "_ALL_BROKERS_DOWN", "_NOENT", "_RESOLVE", "_RETRY", "_TIMED_OUT", "_TIMED_OUT_QUEUE", "_TRANSPORT", "_WAIT_COORD",
        "CONCURRENT_TRANSACTIONS", "COORDINATOR_LOAD_IN_PROGRESS", "COORDINATOR_NOT_AVAILABLE", "FENCED_LEADER_EPOCH",
        "KAFKA_STORAGE_ERROR", "LEADER_NOT_AVAILABLE", "NETWORK_EXCEPTION", "NOT_CONTROLLER", "NOT_COORDINATOR",
        "NOT_LEADER_FOR_PARTITION", "OFFSET_NOT_AVAILABLE", "REBALANCE_IN_PROGRESS", "REPLICA_NOT_AVAILABLE", "REQUEST_TIMED_OUT",
        "UNKNOWN_LEADER_EPOCH", "UNSTABLE_OFFSET_COMMIT",
    }
)  # fmt: skip
"""What passes, whether or not the library says so."""
_REFUSED: Final = _DENIED | _UNKNOWN_TOPIC | _TOO_LARGE | _UNTAKEN.keys() | _LASTING.keys()


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
    name, said = _lasting_name(error), f"{error.str()} ({error.name()}), while {doing}"
    if name in _FENCED:
        return FencedError(
            said, hint="The task continues from the last commit, in the process that has it now."
        )
    if name in _DENIED:
        return LogDeniedError(f"Kafka denies it: {said}", hint=_hint(name, resource or topic))
    if name in _UNKNOWN_TOPIC:
        return UnknownTopicError(f"the topic or partition does not exist: {said}", topic=topic)
    if name in _TOO_LARGE:
        said = f"Kafka takes no record of this size: {said}"
        return RecordTooLargeError(said, topic=topic, key=key, hint=_LARGE_HINT)
    if name in _UNTAKEN:
        return TopicMismatchError(
            f"the topic does not take a record: {said}", topic=topic, hint=_UNTAKEN[name]
        )
    if name in _LASTING:
        return UsageError(f"Kafka refuses it: {said}", hint=_LASTING[name])
    return LogUnavailableError(f"Kafka does not answer: {said}", hint="Nothing committed is lost. Retry.")


def _lasting_name(error: KafkaError) -> str:
    """The name of an error. That of a client that has ended for good says no more than that, and its text has that of the cause."""
    made = library().KafkaError
    causes = _LASTING if error.name() == "_FATAL" else ()
    return next((one for one in causes if made(getattr(made, one)).str() in error.str()), error.name())


def _hint(name: str, resource: str | None) -> str:
    """What the user needs to be allowed to do."""
    if name not in _RESOURCES:
        return CREDENTIALS
    named = f" {resource!r}" if resource and name != "CLUSTER_AUTHORIZATION_FAILED" else ""
    return f"Give the user the rights on {_RESOURCES[name]}{named} that docs/kafka.md lists ('Rights')."
