"""What is logged of brokers that cannot be reached: a line at first, one now and then, and one at the end."""

from __future__ import annotations

import logging
from functools import partial
from pathlib import Path

import pytest
from confluent_kafka import KafkaError

from tailrace.log.kafka.outages import Outages
from tests.soak.processes import Process, wait_until

REFUSED = KafkaError(
    KafkaError._TRANSPORT, "h:1/1: Connect to h:1 failed: Connection refused (after 3ms in state CONNECT)"
)
DENIED = KafkaError(KafkaError._AUTHENTICATION, "h:1/1: SASL authentication error (after 7ms in state AUTH)")


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
    world.outages.failed(DENIED)
    _, denied = world.told()
    assert denied.startswith(
        "Kafka denies the connection: h:1/1: SASL authentication error. Correct the credentials"
    )
    assert world.outages.denial is DENIED
    world.now_s += 1
    world.outages.answered(world.now_s)
    assert world.outages.denial is None


def test_other_lines_of_the_library_are_logged_and_those_of_connections_are_not(world: World) -> None:
    world.outages.log(logging.WARNING, "%s [%s] %s", "FAIL", "tailrace#consumer-1", "h:1/1: Disconnected")
    world.outages.log(logging.WARNING, "%s [%s] %s", "MAXPOLL", "tailrace#consumer-1", "exceeded")
    assert world.told() == ["MAXPOLL [tailrace#consumer-1] exceeded"]


def test_a_producer_that_starts_before_its_coordinator_warns_of_nothing(world: World) -> None:
    failed = "[thrd:main]: Failed to acquire transactional PID from broker TxnCoordinator/1: Broker: "
    passing = f"{failed}Coordinator load in progress: retrying"
    lasting = f"{failed}Transactional Id authorization failed: retrying"
    for text in (passing, lasting):
        world.outages.log(logging.WARNING, "%s [%s] %s", "GETPID", "tailrace#producer-1", text)
    assert world.told() == [f"GETPID [tailrace#producer-1] {lasting}"]
    world.outages.log(logging.WARNING, "%s [%s] %s", "OTHER", "tailrace#producer-1", passing)
    assert len(world.told()) == 1


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
    app, at = "tests.kafka.apps:app", ("--log", "kafka://127.0.0.1:1")
    commands = [
        ("run", app, *at, "--state", tmp_path / "state"),
        ("log", "list", *at),
        ("replay", app, *at),
        ("migrate", "--from", "kafka://127.0.0.1:1", "--to", tmp_path / "log", "--app", app),
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
