"""The clients of Kafka without a broker: what is done about each error, what is logged of brokers that are away, settings, and their end."""

from __future__ import annotations

import logging
import subprocess
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from confluent_kafka import KafkaError

from tailrace.core import errors
from tailrace.log.kafka import KafkaLog
from tailrace.log.kafka.connection import Connection
from tailrace.log.kafka.failures import Kind, as_log_error, kind_of
from tailrace.log.kafka.outages import Outages
from tailrace.log.options import LogOptions
from tests.cli.commands import run
from tests.runtime.processes import Process, wait_until

APP, NOWHERE = "tests.kafka.apps:app", ("--log", "kafka://127.0.0.1:1")

# --- errors: what is done about each, and what is said

FENCED = (Kind.FENCED, errors.FencedError)
DENIED = (Kind.REFUSED, errors.LogDeniedError)
UNKNOWN = (Kind.REFUSED, errors.UnknownTopicError)
TOO_LARGE = (Kind.REFUSED, errors.RecordTooLargeError)
WRONG = (Kind.REFUSED, errors.UsageError)
UNTAKEN = (Kind.REFUSED, errors.TopicMismatchError)
PASSES = (Kind.RETRY, errors.LogUnavailableError)
ABORTED = (Kind.ABORT, errors.LogUnavailableError)
KINDS = {
    FENCED: """
        _FENCED FENCED_INSTANCE_ID FENCED_MEMBER_EPOCH ILLEGAL_GENERATION INVALID_PRODUCER_EPOCH
        PRODUCER_FENCED STALE_MEMBER_EPOCH UNKNOWN_MEMBER_ID
    """,
    DENIED: """
        _AUTHENTICATION _SSL CLUSTER_AUTHORIZATION_FAILED DELEGATION_TOKEN_AUTHORIZATION_FAILED
        GROUP_AUTHORIZATION_FAILED SASL_AUTHENTICATION_FAILED TOPIC_AUTHORIZATION_FAILED
        TRANSACTIONAL_ID_AUTHORIZATION_FAILED DELEGATION_TOKEN_AUTH_DISABLED DELEGATION_TOKEN_EXPIRED
        DELEGATION_TOKEN_NOT_FOUND DELEGATION_TOKEN_OWNER_MISMATCH DELEGATION_TOKEN_REQUEST_NOT_ALLOWED
        ILLEGAL_SASL_STATE INVALID_PRINCIPAL_TYPE PRINCIPAL_DESERIALIZATION_FAILURE SECURITY_DISABLED
        UNACCEPTABLE_CREDENTIAL UNSUPPORTED_SASL_MECHANISM
    """,
    UNKNOWN: """
        _UNKNOWN_PARTITION _UNKNOWN_TOPIC UNKNOWN_TOPIC_ID UNKNOWN_TOPIC_OR_PART
    """,
    TOO_LARGE: """
        MSG_SIZE_TOO_LARGE RECORD_LIST_TOO_LARGE
    """,
    WRONG: """
        INVALID_CONFIG INVALID_PARTITIONS INVALID_REPLICA_ASSIGNMENT INVALID_REPLICATION_FACTOR
        POLICY_VIOLATION TOPIC_EXCEPTION _INVALID_ARG _NOT_CONFIGURED _NOT_IMPLEMENTED _UNKNOWN_PROTOCOL
        _UNSUPPORTED_FEATURE INVALID_REQUEST INVALID_REQUIRED_ACKS UNSUPPORTED_COMPRESSION_TYPE
        UNSUPPORTED_FOR_MESSAGE_FORMAT UNSUPPORTED_VERSION INVALID_TRANSACTION_TIMEOUT INVALID_SESSION_TIMEOUT
        GROUP_ID_NOT_FOUND INCONSISTENT_GROUP_PROTOCOL UNSUPPORTED_ASSIGNOR UNRELEASED_INSTANCE_ID
        GROUP_MAX_SIZE_REACHED INVALID_COMMIT_OFFSET_SIZE OFFSET_METADATA_TOO_LARGE INVALID_GROUP_ID
        INVALID_REGULAR_EXPRESSION TOPIC_DELETION_DISABLED _CRIT_SYS_RESOURCE _FS
    """,
    UNTAKEN: """
        INVALID_RECORD _INVALID_DIFFERENT_RECORD INVALID_TIMESTAMP
    """,
    PASSES: """
        _ALL_BROKERS_DOWN _NOENT _RESOLVE _RETRY _TIMED_OUT _TIMED_OUT_QUEUE _TRANSPORT _WAIT_COORD
        CONCURRENT_TRANSACTIONS COORDINATOR_LOAD_IN_PROGRESS COORDINATOR_NOT_AVAILABLE
        FENCED_LEADER_EPOCH KAFKA_STORAGE_ERROR LEADER_NOT_AVAILABLE NETWORK_EXCEPTION
        NOT_CONTROLLER NOT_COORDINATOR NOT_LEADER_FOR_PARTITION OFFSET_NOT_AVAILABLE
        REBALANCE_IN_PROGRESS REPLICA_NOT_AVAILABLE REQUEST_TIMED_OUT UNKNOWN_LEADER_EPOCH
        UNSTABLE_OFFSET_COMMIT
    """,
    ABORTED: """
        _BAD_MSG _BAD_COMPRESSION _DESTROY _FAIL _MSG_TIMED_OUT _PARTITION_EOF _QUEUE_FULL _ISR_INSUFF
        _NODE_UPDATE _UNKNOWN_GROUP _IN_PROGRESS _PREV_IN_PROGRESS _EXISTING_SUBSCRIPTION _ASSIGN_PARTITIONS
        _REVOKE_PARTITIONS _CONFLICT _STATE _NO_OFFSET _OUTDATED _WAIT_CACHE _INTR _KEY_SERIALIZATION
        _VALUE_SERIALIZATION _KEY_DESERIALIZATION _VALUE_DESERIALIZATION _PARTIAL _READ_ONLY _UNDERFLOW
        _INVALID_TYPE _PURGE_QUEUE _PURGE_INFLIGHT _INCONSISTENT _GAPLESS_GUARANTEE _MAX_POLL_EXCEEDED
        _UNKNOWN_BROKER _APPLICATION _ASSIGNMENT_LOST _NOOP _AUTO_OFFSET_RESET _LOG_TRUNCATION
        _DESTROY_BROKER UNKNOWN OFFSET_OUT_OF_RANGE INVALID_MSG INVALID_MSG_SIZE BROKER_NOT_AVAILABLE
        STALE_CTRL_EPOCH NOT_ENOUGH_REPLICAS NOT_ENOUGH_REPLICAS_AFTER_APPEND TOPIC_ALREADY_EXISTS
        OUT_OF_ORDER_SEQUENCE_NUMBER DUPLICATE_SEQUENCE_NUMBER INVALID_TXN_STATE INVALID_PRODUCER_ID_MAPPING
        TRANSACTION_COORDINATOR_FENCED OPERATION_NOT_ATTEMPTED LOG_DIR_NOT_FOUND UNKNOWN_PRODUCER_ID
        REASSIGNMENT_IN_PROGRESS NON_EMPTY_GROUP FETCH_SESSION_ID_NOT_FOUND INVALID_FETCH_SESSION_EPOCH
        LISTENER_NOT_FOUND STALE_BROKER_EPOCH MEMBER_ID_REQUIRED PREFERRED_LEADER_NOT_AVAILABLE
        ELIGIBLE_LEADERS_NOT_AVAILABLE ELECTION_NOT_NEEDED NO_REASSIGNMENT_IN_PROGRESS
        GROUP_SUBSCRIBED_TO_TOPIC THROTTLING_QUOTA_EXCEEDED RESOURCE_NOT_FOUND DUPLICATE_RESOURCE
        INCONSISTENT_VOTER_SET INVALID_UPDATE_VERSION FEATURE_UPDATE_FAILED INCONSISTENT_TOPIC_ID
        MISMATCHED_ENDPOINT_TYPE UNSUPPORTED_ENDPOINT_TYPE UNKNOWN_CONTROLLER_ID UNKNOWN_SUBSCRIPTION_ID
        TELEMETRY_TOO_LARGE INVALID_REGISTRATION TRANSACTION_ABORTABLE INVALID_RECORD_STATE
        SHARE_SESSION_NOT_FOUND INVALID_SHARE_SESSION_EPOCH FENCED_STATE_EPOCH INVALID_VOTER_KEY
        DUPLICATE_VOTER VOTER_NOT_FOUND REBOOTSTRAP_REQUIRED STREAMS_INVALID_TOPOLOGY
        STREAMS_INVALID_TOPOLOGY_EPOCH STREAMS_TOPOLOGY_FENCED SHARE_SESSION_LIMIT_REACHED
    """,
}
TABLE = {name: kind for kind, names in KINDS.items() for name in names.split()}
"""After those that are aborted the transaction is repeated: nothing says that they last."""
UNTAKEN_NAMES = KINDS[UNTAKEN].split()
NO_CODES = {"NO_ERROR", "_FATAL"}
"""The second one says that there was another."""


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


def test_each_error_of_the_library_is_in_one_of_the_tables() -> None:
    """One that a new version of the library adds is missing here until somebody has decided what is done about it."""
    names = {KafkaError(code).name() for code in range(-1_000, 1_000)}
    known = {name for name in names if hasattr(KafkaError, name)}
    assert len(known) > 180
    assert known == TABLE.keys() | NO_CODES
    assert sum(len(names.split()) for names in KINDS.values()) == len(TABLE), "each is in one table"


@pytest.mark.parametrize(
    ("name", "setting"),
    [
        ("INVALID_TIMESTAMP", "message.timestamp.after.max.ms=9223372036854775807"),
        ("INVALID_RECORD", "cleanup.policy"),
        ("INVALID_TRANSACTION_TIMEOUT", "TAILRACE_KAFKA_PRODUCER_TRANSACTION_TIMEOUT_MS"),
        ("INVALID_SESSION_TIMEOUT", "TAILRACE_KAFKA_CONSUMER_SESSION_TIMEOUT_MS"),
        ("GROUP_ID_NOT_FOUND", "TAILRACE_KAFKA_CONSUMER_GROUP_PROTOCOL"),
        ("OFFSET_METADATA_TOO_LARGE", "offset.metadata.max.bytes"),
    ],
)
def test_what_lasts_is_said_with_the_setting_that_helps(name: str, setting: str) -> None:
    fatal = KafkaError(
        code_of("_FATAL"), f"Fatal error: {KafkaError(code_of(name)).str()}: of a member", fatal=True
    )
    for error in (KafkaError(code_of(name)), *((fatal,) if name not in UNTAKEN_NAMES else ())):
        said = str(as_log_error(error, "committing", "totals"))
        assert setting in said
        assert "Retry" not in said


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


def test_an_error_that_nobody_knows_ends_the_transaction_unless_it_is_fatal() -> None:
    assert kind_of(KafkaError(code_of("_STATE"), "x")) is Kind.ABORT
    assert kind_of(KafkaError(code_of("_STATE"), "x", fatal=True)) is Kind.FATAL
    assert kind_of(KafkaError(code_of("_STATE"), "x", txn_requires_abort=True)) is Kind.ABORT
    assert kind_of(KafkaError(code_of("_FENCED"), "x", fatal=True)) is Kind.FENCED


# --- outages: a line at first, one now and then, and one at the end

REFUSED = KafkaError(
    KafkaError._TRANSPORT, "h:1/1: Connect to h:1 failed: Connection refused (after 3ms in state CONNECT)"
)
DENIAL = KafkaError(KafkaError._AUTHENTICATION, "h:1/1: SASL authentication error (after 7ms in state AUTH)")


class World:
    """Outages, with a clock."""

    def __init__(self, caplog: pytest.LogCaptureFixture) -> None:
        self.now_s = 1_000.0
        self._caplog = caplog
        caplog.set_level(logging.INFO, "tailrace.kafka")
        self.outages = Outages(logging.getLogger("tailrace.kafka"), lambda: self.now_s)

    def told(self) -> list[str]:
        """What was logged since the last call."""
        found = [record.getMessage() for record in self._caplog.records]
        self._caplog.clear()
        return found


@pytest.fixture
def world(caplog: pytest.LogCaptureFixture) -> World:
    return World(caplog)


def test_a_lost_connection_is_logged_once_now_and_then_and_at_the_end(world: World) -> None:
    lost = "there is no connection to Kafka: h:1/1: Connect to h:1 failed: Connection refused"
    for _ in range(100):
        world.outages.failed(REFUSED)
        world.now_s += 0.2
    assert world.told() == [lost]
    world.now_s += 11
    world.outages.failed(REFUSED)
    world.outages.failed(REFUSED)
    assert world.told() == [lost]
    world.outages.answered(world.now_s - 1)  # asked before the last failure
    assert world.told() == []
    world.now_s += 2
    world.outages.answered(world.now_s)
    world.outages.answered(world.now_s)
    assert world.told() == ["Kafka answers again"]


def test_a_connection_that_was_closed_and_is_made_again_is_not_logged(world: World) -> None:
    """The library says that all brokers are down when the only one closes a connection that nobody uses."""
    world.outages.failed(KafkaError(KafkaError._ALL_BROKERS_DOWN, "1/1 brokers are down"))
    assert world.told() == []
    world.outages.failed(REFUSED)
    assert len(world.told()) == 1


def test_connections_that_fail_all_the_time_while_others_work_do_not_fill_the_log(world: World) -> None:
    for _ in range(300):
        world.outages.failed(REFUSED)
        world.now_s += 1
        world.outages.answered(world.now_s)
    assert len(world.told()) == 20  # in five minutes: two each 30 s


def test_a_denied_connection_is_logged_beside_a_lost_one_and_remembered_until_there_is_an_answer(
    world: World,
) -> None:
    world.outages.failed(REFUSED)
    world.outages.failed(DENIAL)
    _, denied = world.told()
    assert denied.startswith(
        "Kafka denies the connection: h:1/1: SASL authentication error. Correct the credentials"
    )
    assert world.outages.denial is DENIAL
    world.now_s += 1
    world.outages.answered(world.now_s)
    assert world.outages.denial is None


def test_lines_of_the_library_are_logged_but_for_those_of_connections_and_of_coordinators_that_load(
    world: World,
) -> None:
    failed = "[thrd:main]: Failed to acquire transactional PID from broker TxnCoordinator/1: Broker: "
    passing = f"{failed}Coordinator load in progress: retrying"
    for kind, text in (
        ("FAIL", "h:1/1: Disconnected"),
        ("MAXPOLL", "exceeded"),
        ("GETPID", passing),
        ("GETPID", lasting := f"{failed}Transactional Id authorization failed: retrying"),
        ("OTHER", passing),
    ):
        world.outages.log(logging.WARNING, "%s [%s] %s", kind, "tailrace#1", text)
    said = [
        "MAXPOLL [tailrace#1] exceeded",
        f"GETPID [tailrace#1] {lasting}",
        f"OTHER [tailrace#1] {passing}",
    ]
    assert world.told() == said


def test_a_question_that_waits_is_logged_with_addresses_and_reason(world: World) -> None:
    world.outages.waits("h:1,g:1", 55.2)
    assert world.told() == ["waiting for Kafka at h:1,g:1: there is no answer yet. It is tried for 55 s more"]
    world.outages.waits("h:1,g:1", 50)
    world.outages.failed(REFUSED)
    world.now_s += 31
    world.told()
    world.outages.waits("h:1,g:1", 20)
    assert world.told() == [
        "waiting for Kafka at h:1,g:1: h:1/1: Connect to h:1 failed: Connection refused. It is tried for 20 s more"
    ]


def test_every_command_says_which_address_it_waits_for(tmp_path: Path) -> None:
    commands = [
        ("run", APP, *NOWHERE, "--state", tmp_path / "state"),
        ("log", "list", *NOWHERE),
        ("replay", APP, *NOWHERE),
        ("migrate", "--from", NOWHERE[1], "--to", tmp_path / "log", "--app", APP),
    ]
    started = [Process(tmp_path / f"{number}.log", "tailrace", *one) for number, one in enumerate(commands)]
    said = "waiting for Kafka at 127.0.0.1:1: 127.0.0.1:1/bootstrap: Connect to ipv4#127.0.0.1:1 failed"
    try:
        for process in started:
            wait_until(partial(_has, process, said), "the command says what it waits for")
            assert process.code() is None
            assert process.text().count("waiting for Kafka") == 1
    finally:
        for process in started:
            process.kill()


def _has(process: Process, text: str) -> bool:
    return text in process.text()


# --- addresses and settings: from the environment and code, and never shown


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
    with pytest.raises(errors.UsageError, match="cannot be changed"):
        KafkaLog("kafka://h:1", LogOptions(settings={name: "x"}))


def test_readers_of_history_learn_soon_that_they_are_at_the_end_unless_a_wait_is_given() -> None:
    assert Connection("kafka://h:1").of_history() == {"fetch.wait.max.ms": 10}
    for name in ("fetch.wait.max.ms", "consumer.fetch.wait.max.ms"):
        assert Connection("kafka://h:1", {name: "500"}).of_history() == {}


def test_settings_of_the_environment_that_cannot_be_used_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("ACKS", "1"), ("NO_SUCH_SETTING", "1"), ("FILE", "nowhere.properties")):
        with monkeypatch.context() as changed:
            changed.setenv(f"TAILRACE_KAFKA_{name}", value)
            assert run("status", APP, *NOWHERE).code == 2


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["run", APP, "--state", "s", "--log", "kafka://"], "kafka://host:9092"),
        (["run", APP, "--state", "s", *NOWHERE, "--workers", "2"], "--workers is not for Kafka"),
        (
            ["run", APP, "--state", "s", *NOWHERE, "--from-snapshot", "x"],
            "needs the name or id of a snapshot",
        ),
        (["log", "copy", "copied", *NOWHERE], "works with the embedded log only"),
    ],
)
def test_what_is_not_there_on_kafka_is_refused_by_name(tmp_path, monkeypatch, arguments, told) -> None:
    monkeypatch.chdir(tmp_path)
    ended = run(*arguments)
    assert ended.code
    assert told in ended.err


@pytest.mark.parametrize(
    "url", ["kafka://", "kafka:///p", "kafka://user:password@h:1", "kafka://h:1/a/b", "http://h:1"]
)
def test_a_wrong_url_is_refused(url) -> None:
    with pytest.raises(errors.UsageError, match="kafka://host:9092"):
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
        "tailrace.cli.run.LogOptions", lambda **given: replace(LogOptions(**given), patience_s=0.1)
    )
    ended = run("run", APP, *NOWHERE, "--state", tmp_path, "--commit-interval", interval)
    said = f"--commit-interval is {interval}, and Kafka aborts a transaction that is open for"
    assert (ended.code, said in ended.err) == (2 if refused else 1, refused), ended.err  # no broker answers


@pytest.mark.parametrize("name", ["sasl.passwort", "sasl.mechanism", "ssl.ca.location"])
def test_a_setting_that_the_client_does_not_take_is_named_and_its_value_is_not(name) -> None:
    log = KafkaLog("kafka://h:1", LogOptions(settings={"security.protocol": "SASL_SSL", name: "/secret"}))
    with pytest.raises(errors.UsageError, match="does not take its settings") as raised:
        log.topics()
    assert name in str(raised.value)
    assert "secret" not in str(raised.value)


# --- a client that does not come back must not keep its process from ending

_PROGRAM = """
import sys
from tailrace.log.kafka.library import never_freed

class Client:
    def __init__(self):
        self.callback = lambda: self  # a circle, as a client is part of one

    def __del__(self):
        print("freed", flush=True)

client = Client()
if sys.argv[1] == "left":
    never_freed(client)
"""


@pytest.mark.parametrize(("how", "said"), [("left", ""), ("closed", "freed")])
def test_a_client_that_is_left_is_not_freed_at_the_end_either(how: str, said: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM, how], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.strip() == said
