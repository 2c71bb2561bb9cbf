"""The broker of the tests itself: what Kafka guarantees there, and that nothing of it is left behind."""

from __future__ import annotations

import secrets
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from tests.kafka.broker import bound
from tests.kafka.broker.cluster import Cluster, User
from tests.kafka.broker.errors import NoBrokerError
from tests.kafka.topics import ANSWER_S, Topics
from tests.soak.processes import wait_until

ALICE = User("alice", "the password of alice")


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A cluster that the tests of this file may kill and stop."""
    with Cluster(tmp_path_factory.mktemp("own"), user=ALICE) as cluster:
        yield cluster


def create(client: Mapping[str, str], name: str) -> str:
    return Topics(AdminClient(dict(client)), "own").create(name)


def commit(client: Mapping[str, str], topic: str, values: list[bytes], *, aborted: bool = False) -> None:
    """Write values in one transaction."""
    producer = Producer({**client, "transactional.id": f"{topic}-writer"})
    producer.init_transactions(ANSWER_S)
    producer.begin_transaction()
    for value in values:
        producer.produce(topic, value)
    producer.flush(ANSWER_S)
    (producer.abort_transaction if aborted else producer.commit_transaction)(ANSWER_S)


def committed(client: Mapping[str, str], topic: str) -> list[bytes]:
    """All committed values of partition 0, up to the end that it has now."""
    config: dict[str, Any] = {
        **client,
        "group.id": "unused",
        "isolation.level": "read_committed",
        "enable.partition.eof": True,
    }
    consumer = Consumer(config)  # fmt: skip
    consumer.assign([TopicPartition(topic, 0, 0)])
    found: list[bytes] = []
    try:
        while (message := consumer.poll(ANSWER_S)) is not None:
            error = message.error()
            if error is None:
                found.append(message.value() or b"")
            elif error.code() == KafkaError._PARTITION_EOF:
                return found
            else:
                raise KafkaException(error)
    finally:
        consumer.close()
    raise AssertionError(f"{topic} is not read to its end within {ANSWER_S} s, only {found}")


def test_a_reader_gets_what_transactions_have_committed_and_nothing_else(kafka: str, topics: Topics) -> None:
    topic, client = topics.create("letters"), {"bootstrap.servers": kafka}
    commit(client, topic, [b"a", b"b"])
    commit(client, topic, [b"lost"], aborted=True)
    commit(client, topic, [b"c"])
    assert committed(client, topic) == [b"a", b"b", b"c"]


@pytest.mark.parametrize("compression", ["gzip", "lz4", "snappy", "zstd"])
def test_the_broker_reads_every_compression(kafka: str, topics: Topics, compression: str) -> None:
    # A topic with another compression than its writer's: the broker unpacks each batch and packs it again.
    topic = topics.create("letters", config={"compression.type": "gzip" if compression != "gzip" else "lz4"})
    client = {"bootstrap.servers": kafka, "compression.type": compression}
    commit(client, topic, [b"a" * 1000] * 10)
    assert committed({"bootstrap.servers": kafka}, topic) == [b"a" * 1000] * 10


def test_the_topics_of_a_test_are_gone_after_it(kafka: str) -> None:
    admin = AdminClient({"bootstrap.servers": kafka})
    one, other = (Topics(admin, secrets.token_hex(6)) for _ in range(2))
    one.create("letters", partitions=3)
    kept = other.create("letters")
    one.delete()
    assert (one.names(), other.names()) == ([], [kept])
    other.delete()


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_both_protocols_of_consumer_groups_hand_out_partitions(
    kafka: str, topics: Topics, protocol: str
) -> None:
    topic = topics.create("letters")
    commit({"bootstrap.servers": kafka}, topic, [b"a"])
    consumer = Consumer(
        {
            "bootstrap.servers": kafka,
            "group.id": f"{topics.prefix}-{protocol}",
            "group.protocol": protocol,
            "auto.offset.reset": "earliest",
        }
    )
    consumer.subscribe([topic])
    message = consumer.poll(ANSWER_S)
    assert message is not None
    assert message.error() is None
    assert message.value() == b"a"
    consumer.close()


def test_committed_records_survive_the_death_of_the_broker(own: Cluster) -> None:
    topic = create(own.client, "deaths")
    commit(own.client, topic, [b"before"])
    own.nodes[0].kill()
    assert not own.nodes[0].runs
    own.start()
    commit(own.client, topic, [b"after"])
    assert committed(own.client, topic) == [b"before", b"after"]


def test_a_paused_broker_answers_nobody_until_it_is_resumed(own: Cluster) -> None:
    node = own.nodes[0]
    admin = AdminClient({**own.client, "log_level": 0})
    node.pause()
    try:
        with pytest.raises(KafkaException):
            admin.list_topics(timeout=0.5)
    finally:
        node.resume()
    assert set(admin.list_topics(timeout=ANSWER_S).brokers) == {node.number}


def test_a_broker_that_is_stopped_shuts_down_cleanly(own: Cluster) -> None:
    node = own.nodes[0]
    node.stop()
    assert (node.log.parent / "data" / ".kafka_cleanshutdown").exists()
    own.start()


def test_a_user_writes_and_reads_over_an_encrypted_connection(own: Cluster) -> None:
    topic = create(own.secure_client, "secrets")
    commit(own.secure_client, topic, [b"a"])
    assert committed(own.secure_client, topic) == [b"a"]


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"sasl.password": "guessed"}, KafkaError._AUTHENTICATION),
        ({"sasl.username": "mallory"}, KafkaError._AUTHENTICATION),
        ({"ssl.ca.location": "probe"}, KafkaError._SSL),
    ],
    ids=["password", "user", "authority"],
)
def test_a_client_that_cannot_be_trusted_is_refused(
    own: Cluster, changed: dict[str, str], reason: int
) -> None:
    reasons: list[int] = []
    config: dict[str, Any] = {
        **own.secure_client,
        **changed,
        "log_level": 0,
        "error_cb": lambda error: reasons.append(error.code()),
    }
    admin = AdminClient(config)  # fmt: skip
    wait_until(lambda: admin.poll(0.1) or reason in reasons, f"the client is refused with {reason}")
    with pytest.raises(KafkaException):
        admin.list_topics(timeout=0.5)


def test_three_nodes_continue_when_one_dies(tmp_path: Path) -> None:
    settings = {
        "broker.heartbeat.interval.ms": "500",
        "broker.session.timeout.ms": "3000",
    }  # a death is noticed soon
    with Cluster(tmp_path, 3, settings=settings) as cluster:
        topic = create(cluster.client, "letters")
        commit(cluster.client, topic, [b"before"])
        cluster.nodes[0].kill()
        commit(cluster.client, topic, [b"meanwhile"])
        cluster.start()
        assert committed(cluster.client, topic) == [b"before", b"meanwhile"]


def test_a_cluster_that_cannot_start_shows_its_log_and_leaves_no_process(tmp_path: Path) -> None:
    with pytest.raises(NoBrokerError, match=r"(?s)node 1 cannot format.*num\.io\.threads"):
        Cluster(tmp_path / "unformatted", settings={"num.io.threads": "0"})
    with pytest.raises(NoBrokerError, match=r"(?s)node 1 has ended.*no\.such\.Reporter"):
        Cluster(tmp_path / "started", settings={"metric.reporters": "no.such.Reporter"})
    assert not processes_with(str(tmp_path))


def test_a_bound_program_ends_with_the_process_that_started_it(tmp_path: Path) -> None:
    mark = str(tmp_path)
    program = [sys.executable, "-c", "import time; print('runs', flush=True); time.sleep(60)", mark]
    starts = """
import os, subprocess, sys, time
subprocess.Popen([sys.executable, sys.argv[1], str(os.getpid()), *sys.argv[2:]])
time.sleep(60)
"""
    command = [sys.executable, "-c", starts, str(bound.__file__), *program]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        assert parent.stdout.readline() == b"runs\n"
        assert len(processes_with(mark)) == 2
        parent.kill()
    wait_until(lambda: not processes_with(mark), "the program has ended", 20)


def processes_with(argument: str) -> list[int]:
    """The processes that run with a text in their arguments; one that has ended has none."""
    found: list[int] = []
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if argument.encode() in entry.read_bytes():
                found.append(int(entry.parent.name))
        except OSError:
            continue
    return found
