"""The broker of the tests itself: nothing of it is left behind."""

from __future__ import annotations

import secrets
import subprocess
import sys
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient

from tests.kafka.broker import bound
from tests.kafka.broker.cluster import Cluster
from tests.kafka.broker.errors import NoBrokerError
from tests.kafka.topics import Topics
from tests.soak.processes import wait_until


def test_the_topics_of_a_test_are_gone_after_it(kafka: str) -> None:
    admin = AdminClient({"bootstrap.servers": kafka})
    one, other = (Topics(admin, secrets.token_hex(6)) for _ in range(2))
    one.create("letters", partitions=3)
    kept = other.create("letters")
    one.delete()
    assert (one.names(), other.names()) == ([], [kept])
    other.delete()


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
