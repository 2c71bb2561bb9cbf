"""Brokers that are slow, stopped, killed, or taken for dead: they delay a log and a service, and change no result. And the brokers of the
tests themselves, of which nothing is left behind.
"""

from __future__ import annotations

import resource
import secrets
import subprocess
import sys
import threading
import time
from collections.abc import Generator, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from tailrace.core.errors import TailraceError
from tailrace.core.records import Output
from tailrace.log import TopicSettings
from tailrace.log.kafka import KafkaLog
from tailrace.log.kafka.cluster import MOST_REQUEST_S
from tests.kafka.broker import bound
from tests.kafka.broker.artefacts import NoBrokerError
from tests.kafka.broker.cluster import Cluster
from tests.kafka.broker.node import Node
from tests.kafka.shop import serving
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
    tmp_path: Path,
) -> None:
    # If the controller took the broker for dead when it wakes, the producer might be cut off: see ``taken_for_dead`` below.
    patient = {"broker.session.timeout.ms": "20000"}
    with (
        Cluster(tmp_path, settings=patient) as cluster,
        closing(KafkaLog(f"kafka://{cluster.bootstrap}")) as log,
    ):
        log.create_topic("a", TopicSettings(1))
        writer = log.writer("w")
        writer.append(one(b"1"))
        (node,) = cluster.nodes
        node.pause()
        resumed = threading.Timer(MOST_REQUEST_S + 2, node.resume)  # longer than one request is waited for
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


# --- the brokers of the tests


@pytest.mark.nightly
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
