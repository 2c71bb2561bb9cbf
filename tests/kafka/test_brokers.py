"""Brokers that are slow, stopped, killed, or taken for dead delay a log and a service, and change no result. What is gone from their files is
missed.
"""

from __future__ import annotations

import os
import resource
import secrets
import subprocess
import threading
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tailrace.core.errors import LogUnavailableError, OtherHistoryError, TailraceError
from tailrace.core.records import Output
from tailrace.core.values.partitioner import partition_of
from tailrace.history.snapshots.taking import take_snapshot
from tailrace.log import TopicPartition, TopicSettings
from tailrace.log.kafka import KafkaLog
from tailrace.log.kafka import reader as reader_
from tailrace.log.kafka import writer as writer_
from tailrace.log.options import LogOptions
from tailrace.state.snapshots import Snapshots
from tests.kafka.broker.artefacts import jars
from tests.kafka.broker.cluster import Cluster
from tests.kafka.broker.node import Node
from tests.kafka.shop import PLAN, serving
from tests.log.contract import A, visible
from tests.runtime.processes import wait_until
from tests.serve.asking import serving as answering
from tests.serve.stocked import stock_up


@pytest.fixture(scope="module")
def started(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with Cluster(tmp_path_factory.mktemp("kafka")) as made:
        yield made


@pytest.fixture
def cluster(started: Cluster) -> Iterator[Cluster]:
    """One node that a test may pause or kill; it runs again after the test."""
    yield started
    if started.nodes[0].runs:
        started.nodes[0].resume()
    started.start()


@pytest.fixture
def url(cluster: Cluster) -> str:
    return f"kafka://{cluster.bootstrap}/{secrets.token_hex(4)}."


@pytest.fixture
def log(url: str) -> Iterator[KafkaLog]:
    with closing(KafkaLog(url)) as made:
        made.create_topic("a", TopicSettings(1))
        yield made


def one(value: bytes) -> list[Output]:
    return [Output("a", b"k", value, 7)]


def test_a_writer_closes_soon_whatever_has_become_of_it_and_its_brokers(
    log: KafkaLog, cluster: Cluster
) -> None:
    fenced, cut_off = log.writer("fenced"), log.writer("cut off")
    for writer in (fenced, cut_off):
        writer.append(one(b"committed"))
        writer.commit()
    log.writer("fenced").close()
    fenced.append(one(b"lost"))
    fenced.close()
    cluster.nodes[0].pause()
    cut_off.append(one(b"lost"))
    begun_s = time.monotonic()
    cut_off.close()
    cut_off.close()
    assert time.monotonic() - begun_s < 20
    cluster.nodes[0].resume()
    assert visible(log, A) == [b"committed", b"committed"]


@pytest.mark.nightly
def test_quotas_make_a_log_slow_and_nothing_is_taken_for_lost(
    cluster: Cluster, log: KafkaLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A broker leaves a client that is over its quota without any answer for many seconds. (To one that may read 20 kB a second a broker
    gives nothing at all, whatever the client.)
    """
    values = [os.urandom(1_000) for _ in range(2_000)]
    reader: Any = log.reader({A: 0}, live=True)
    writer = log.writer("w")
    monkeypatch.setattr(writer_, "_WAITS_S", 0.5)
    monkeypatch.setattr(reader_, "_SILENT_S", 0.5)
    with quotas(cluster, producer_byte_rate=100_000, consumer_byte_rate=100_000):
        writer.append([Output("a", b"k", value, 7) for value in values])
        writer.commit()
        consumer, found = reader._consumer, list[bytes | None]()

        def read() -> bool:
            found.extend(one.value for one in reader.fetch(*A, 1_000).records)
            return len(found) >= len(values)

        wait_until(read, "all is read")
    assert found == values
    assert reader._consumer is consumer
    reader.close()


@contextmanager
def quotas(cluster: Cluster, **rates: int) -> Generator[None]:
    """Limits of a cluster for each client, in bytes per second."""

    def configure(*changes: str) -> None:
        about = ("--alter", "--entity-type", "clients", "--entity-default")
        command = ("java", "-cp", f"{jars()}/*", "kafka.admin.ConfigCommand")
        for last in (False, False, True):  # on a busy machine it gives up before it is connected
            ended = subprocess.run(
                [*command, "--bootstrap-server", cluster.bootstrap, *about, *changes],
                capture_output=True,
                text=True,
                check=False,
            )
            if ended.returncode == 0:
                return
            assert not last, ended.stderr

    configure("--add-config", ",".join(f"{name}={rate}" for name, rate in rates.items()))
    try:
        yield
    finally:
        configure("--delete-config", ",".join(rates))


def test_commits_continue_after_a_broker_was_killed_in_the_middle_of_them(
    log: KafkaLog, cluster: Cluster
) -> None:
    """librdkafka#5456: it could wait for its coordinator without an end, in the call that adds offsets to the transaction."""
    stop = threading.Event()
    begun_s = dict.fromkeys(range(6), 0.0)  # of the commit that each writer is about to do

    def commit_all_the_time(number: int) -> None:
        writer = None
        while not stop.is_set():
            begun_s[number] = time.monotonic()
            try:
                writer = writer or log.writer(f"w{number}")
                writer.append(one(b"v"))
                writer.commit({A: 1}, "group")
            except TailraceError:
                writer = None

    threads = [threading.Thread(target=commit_all_the_time, args=[one], daemon=True) for one in begun_s]
    for thread in threads:
        thread.start()
    try:
        wait_until(lambda: log.end_offset("a", 0) > 30, "the writers are at work")
        cluster.nodes[0].kill()
        cluster.start()
        back_s = time.monotonic()
        wait_until(lambda: min(begun_s.values()) > back_s, "all writers have committed", 45)
    finally:
        stop.set()
    for thread in threads:
        thread.join(60)


def test_a_reader_keeps_no_processor_busy_while_the_broker_is_away(log: KafkaLog, cluster: Cluster) -> None:
    with closing(log.reader({A: 0}, live=True)) as reader:
        wait_until(lambda: reader.fetch(*A, 10).idle, "the reader knows that there is nothing")
        cluster.nodes[0].kill()

        def is_calm() -> bool:
            # A question that waits for the broker wakes two threads in turn, some ten thousand times in a second.
            before = resource.getrusage(resource.RUSAGE_SELF).ru_nvcsw
            until_s = time.monotonic() + 1
            while time.monotonic() < until_s:
                reader.fetch(*A, 10)
                time.sleep(0.02)
            return resource.getrusage(resource.RUSAGE_SELF).ru_nvcsw - before < 2_000

        wait_until(is_calm, "the reader waits and does nothing")
        cluster.start()
        wait_until(lambda: reader.fetch(*A, 10).idle, "the reader knows it again")


def test_a_commit_that_a_stopped_broker_does_not_answer_is_sent_again_and_never_aborted(
    log: KafkaLog, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer_, "MOST_REQUEST_S", 0.4)
    writer = log.writer("w")
    writer.append(one(b"1"))
    (node,) = cluster.nodes
    node.pause()
    # Longer than one request is waited for, and shorter than the session of the broker: if the controller took it for dead when it
    # wakes, the producer might be cut off.
    resumed = threading.Timer(1.2, node.resume)
    resumed.start()
    ends = writer.commit({A: 5}, "group")
    resumed.join()
    assert ends == {A: 1}
    assert visible(log, A) == [b"1"]
    assert log.committed_offsets("group", [A]) == {A: 5}


# --- services


@contextmanager
def stumbling(node: Node, stop_s: float = 0.7, run_s: float = 0.5) -> Generator[None]:
    """A broker that is slow, and alive."""
    ended = threading.Event()

    def stumble() -> None:
        while not ended.wait(run_s):
            node.pause()
            ended.wait(stop_s)
            node.resume()

    thread = threading.Thread(target=stumble)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def test_a_slow_broker_and_one_that_is_down_while_a_service_restores_change_no_result(
    url: str, cluster: Cluster
) -> None:
    with serving(url) as shop:
        (node,) = cluster.nodes
        shop.order(100)
        shop.work()
        with stumbling(node):
            shop.order(100)
            shop.work()
            shop.restart(keep_state=False)
            shop.order(100)
            shop.work()
        shop.stop()
        shop.stores.clear()
        node.kill()
        starting = threading.Thread(target=shop.start)  # it restores while there is no broker
        starting.start()
        starting.join(2.0)
        cluster.start()
        starting.join()
        shop.order(100)
        shop.work()
        assert shop.counts() == {f"k{n}": 80 for n in range(5)}


@pytest.mark.nightly
def test_a_broker_that_is_taken_for_dead_delays_a_service(tmp_path: Path) -> None:
    """librdkafka#5301: the broker lives, and says that there are no brokers. The client believes it, and forgets the only one that it knows.

    The controller takes the broker for dead for four of fifteen seconds: the clients need some time to find it again.
    """
    rare = {"broker.heartbeat.interval.ms": "15000", "broker.session.timeout.ms": "11000"}
    with Cluster(tmp_path, settings=rare) as cluster, serving(f"kafka://{cluster.bootstrap}/dead.") as shop:
        (node,) = cluster.nodes

        def fenced() -> int:
            return node.log.read_text(errors="replace").count("Fencing broker")

        def await_fenced(before: int) -> None:
            wait_until(lambda: fenced() > before, "the broker is taken for dead")

        shop.order(100)
        shop.work()
        for _ in range(2):
            shop.order(100)
            await_fenced(fenced())
            shop.work(patience_s=600)  # each client that was made at a wrong moment costs some time
        assert shop.counts() == {f"k{n}": 60 for n in range(5)}


def test_topics_that_the_brokers_cannot_make_for_themselves_are_named(tmp_path: Path) -> None:
    topics = {
        "__transaction_state": "transaction.state.log.replication.factor",
        "__consumer_offsets": "offsets.topic.replication.factor",
    }
    with (
        Cluster(tmp_path, settings=dict.fromkeys(topics.values(), "3")) as cluster,
        closing(KafkaLog(f"kafka://{cluster.bootstrap}", LogOptions(patience_s=15))) as log,
    ):
        log.create_topic("t", TopicSettings(1))
        for (topic, setting), ask in zip(
            topics.items(),
            (lambda: log.writer("w"), lambda: log.committed_offsets("g", [TopicPartition("t", 0)])),
            strict=True,
        ):
            with pytest.raises(LogUnavailableError, match=f"{topic}, or .* if {setting} .* of which 1 is up"):
                ask()


def test_while_brokers_are_silent_answers_become_older_and_then_younger(
    url: str, cluster: Cluster, tmp_path: Path
) -> None:
    stock_up(url, tmp_path / "state")
    with answering(url) as asked:
        asked.until_ready()
        cluster.nodes[0].pause()
        wait_until(lambda: asked.ask("/actors/Depot/north").body["age_ms"] > 3_000, "the age grows")
        assert asked.ask("/actors/Depot/north/count").body["value"] == 2
        cluster.nodes[0].resume()
        wait_until(lambda: asked.ask("/actors/Depot/north").body["age_ms"] < 1_500, "the broker is heard")


# --- batches that are gone from the files of a broker


class Batch(NamedTuple):
    is_marker: bool
    data: bytes


def batches(data: bytes) -> Iterator[Batch]:
    """The batches of a log file (KIP-98): the length of the rest at byte 8, and the attributes at byte 21."""
    at = 0
    while at + 12 <= len(data) and (length := int.from_bytes(data[at + 8 : at + 12], "big")):
        end = at + 12 + length
        yield Batch(bool(data[at + 22] & 0x20), data[at:end])
        at = end


def rewrite(folder: Path, change: Callable[[list[Batch]], list[Batch]]) -> None:
    """Change the batches of a partition. The broker recovers indexes and producers from them."""
    file, *others = sorted(folder.glob("*.log"))
    found = [one for each in (file, *others) for one in batches(each.read_bytes())]
    kept = change(found)
    assert 0 < len(kept) < len(found)
    file.write_bytes(b"".join(one.data for one in kept))
    for each in others:
        each.unlink()
    for pattern in ("*.index", "*.timeindex", "*.txnindex", "*.snapshot"):
        for other in folder.glob(pattern):
            other.unlink()


def without_most_of_the_middle(found: list[Batch]) -> list[Batch]:
    """Without the rows of all commits but the first and the last two."""
    rows = [one for one in found if not one.is_marker]
    assert len(rows) > 5
    return [one for one in found if one.is_marker or one in rows[:1] or one in rows[-2:]]


def test_lost_batches_are_found_whatever_has_come_in_their_place(
    url: str, cluster: Cluster, tmp_path: Path
) -> None:
    """As after an unclean election or with a restored disk. Compaction leaves the same kind of file."""
    with serving(url) as shop:
        data = cluster.nodes[0].log.with_name("data")
        for _ in range(6):
            shop.order(10)
            shop.work()
        shop.stop()
        positions = [shop.log.end_offset("orders", number) for number in range(PLAN.partitions)]

        # An input loses its end, and grows past it again.
        cluster.nodes[0].kill()
        numbers = [number for number, at in enumerate(positions) if at > 2]
        for number in numbers:
            rewrite(data / f"{shop.prefix}orders-{number}", lambda found: found[: len(found) // 2])
        cluster.start()
        for said in ("ends at", "another record"):
            for _ in range(2):
                with pytest.raises(OtherHistoryError, match=rf"(?s){said}.*--after-deleted") as raised:
                    shop.start()
                assert raised.value.topic == "orders"
                shop.abandon()
            while any(shop.log.end_offset("orders", n) <= positions[n] + 5 for n in numbers):
                shop.order(10)
        before = shop.counts()
        shop.after_deleted = True
        shop.start()
        shop.after_deleted = False
        shop.work()
        after = shop.counts()
        assert sum(before.values()) < sum(after.values()) < shop.now + sum(before.values())
        shop.restart(keep_state=True)
        shop.work()
        shop.order(10)
        shop.work()
        assert sum(shop.counts().values()) == sum(after.values()) + 10
        for _ in range(2):  # the last commits are of one key
            shop.order(1)
            shop.work()
        shop.stop()

        # A changelog loses commits in the middle: older rows of the same keys are left.
        cluster.nodes[0].kill()
        number = partition_of(b"k0", PLAN.partitions)
        rewrite(data / f"{shop.prefix}shop.changelog-{number}", without_most_of_the_middle)
        cluster.start()
        shop.start()  # the stores have all of it
        shop.stop()
        shop.stores.clear()
        lost = r"its last commit notes .* has lost records in between"
        for _ in range(2):
            with pytest.raises(OtherHistoryError, match=lost):
                shop.start()
            shop.abandon()
        with pytest.raises(OtherHistoryError, match=lost):
            take_snapshot(PLAN, shop.log, Snapshots(str(tmp_path / "snapshots"), "shop"))
