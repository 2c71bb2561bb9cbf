"""A service with the rights that docs/kafka.md lists works. Without one of them it ends soon, and names the resource and the right.

Credentials that are wrong at the start end a service. Those that become wrong under it delay it. No secret is ever shown.
"""

from __future__ import annotations

import json
import secrets
import shutil
import signal
import time
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path

import pytest
from confluent_kafka.admin._acl import AclOperation
from confluent_kafka.admin._resource import ResourceType

from tailrace.core.errors import LogDeniedError
from tailrace.core.records import InputRecord
from tailrace.history.reading.upstream_watermarks import tasks_beside
from tailrace.log import TopicPartition, TopicSettings
from tailrace.log.kafka import KafkaLog
from tailrace.log.kafka.library import Message
from tests.kafka.guarded import REAUTHENTICATION_MS, Guarded, Orders, Right, rights_to_follow, with_password
from tests.runtime.processes import wait_until

TOPIC, GROUP, TRANSACTION = ResourceType.TOPIC, ResourceType.GROUP, ResourceType.TRANSACTIONAL_ID
SOON_S = 60.0
"""Generous, for a busy machine: what waits for an answer of the brokers in vain does so for longer."""


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    """The broker."""
    made = Guarded(tmp_path_factory.mktemp("guarded"))
    yield made
    made.close()


@pytest.fixture
def orders(guarded: Guarded, tmp_path) -> Iterator[Orders]:
    """A service of this test alone."""
    made = Orders(guarded, f"{secrets.token_hex(6)}.", tmp_path)
    yield made
    made.close()


def test_a_service_with_the_rights_of_the_documentation_works_exactly_once(orders: Orders) -> None:
    """Over TLS, as a user of SCRAM. It creates its own topics, and is killed."""
    user = orders.user()
    orders.create_declared()
    orders.feed(500)
    process = orders.start(user)
    orders.await_all(process)
    orders.feed(300)
    process.kill()
    process = orders.start(user)
    until_s = time.monotonic() + 1.5 * REAUTHENTICATION_MS / 1_000
    while time.monotonic() < until_s:  # its connections are authenticated again meanwhile
        orders.feed(20)
        orders.log.end_offset("totals", 0)
    orders.await_all(process)
    process.signal(signal.SIGTERM)
    assert process.ended() == 0


def test_reading_needs_no_right_on_a_group(orders: Orders, monkeypatch: pytest.MonkeyPatch) -> None:
    """The brokers deny the group that readers name, which is not the app's."""
    access = orders.access(orders.user())
    orders.create_topics()
    orders.feed(20)
    for name, value in access.environment.items():
        monkeypatch.setenv(name, value)
    log = KafkaLog(access.url)
    read: list[InputRecord] = []
    reader = log.reader({TopicPartition("orders", number): 0 for number in range(log.partitions("orders"))})
    denials: list[object] = []
    heard = reader._heard

    def noted(message: Message) -> None:
        denials.append(message.topic() or message.error().name())
        heard(message)

    monkeypatch.setattr(reader, "_heard", noted)

    def is_read() -> bool:
        for number in range(log.partitions("orders")):
            read.extend(reader.fetch("orders", number, 100).records)
        reader.wait(0.1)
        return len(read) >= orders.fed and "GROUP_AUTHORIZATION_FAILED" in denials

    wait_until(is_read, "all is read, and the group is denied", SOON_S)
    assert len(read) == orders.fed
    reader.close()
    log.close()


def test_a_reader_that_may_not_see_all_tasks_of_a_writer_is_refused(
    orders: Orders, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would not wait for a task that has not committed yet, whose events would be late."""
    user = orders.user()
    orders.log.create_topic("up.tape", TopicSettings(3))
    access = orders.access(user)
    for name, value in access.environment.items():
        monkeypatch.setenv(name, value)
    with closing(KafkaLog(access.url)) as log:
        with pytest.raises(LogDeniedError, match=r"rights on the topic '.*\.up\.tape'"):
            tasks_beside("up-0", log)
        assert tasks_beside("append-cafe", log) == []
        orders.guarded.grant(user, rights_to_follow("up", orders.prefix))

        def found() -> list[str]:
            with suppress(LogDeniedError):
                return tasks_beside("up-0", log)
            return []

        wait_until(lambda: found() == ["up-0", "up-1", "up-2"], "the rights count", SOON_S)


DENIED = {
    "an input": (Right(TOPIC, "orders", AclOperation.READ), "{prefix}orders"),
    "settings": (Right(TOPIC, "orders", AclOperation.DESCRIBE_CONFIGS), "topic '{prefix}orders'"),
    "an output": (Right(TOPIC, "totals", AclOperation.WRITE), "{prefix}totals"),
    "the changelog": (Right(TOPIC, "shop.changelog", AclOperation.READ), "topic '{prefix}shop.changelog'"),
    "the group": (Right(GROUP, "shop", AclOperation.READ), "group '{prefix}shop'"),
    "the transactional id": (
        Right(TRANSACTION, "shop-process", AclOperation.WRITE, is_prefix=True),
        "transactional id '{prefix}shop-process-",
    ),
    "creating topics": (Right(TOPIC, "shop.", AclOperation.CREATE, is_prefix=True), "topic '{prefix}shop."),
}
LIVED = {"the changelog"}
"""Something is to be read there."""


@pytest.mark.parametrize("name", DENIED)
def test_a_right_that_is_missing_is_named_with_its_resource(orders: Orders, name: str) -> None:
    right, told = DENIED[name]
    user = orders.user()
    orders.create_declared() if right.operation is AclOperation.CREATE else orders.create_topics()
    orders.feed(20)
    if name in LIVED:
        before = orders.start(orders.user())
        orders.await_all(before)
        before.signal(signal.SIGTERM)
        assert before.ended() == 0
        shutil.rmtree(orders.folder / "state")
        orders.feed(20)
    orders.guarded.deny(user, [right._replace(name=orders.prefix + right.name)])
    process = orders.start(user)
    wait_until(lambda: process.code() is not None, "it has ended", SOON_S)
    assert process.code() == 1
    message = json.loads(process.text().splitlines()[-1])["message"]
    assert message.startswith("Kafka denies it: ")
    assert told.format(prefix=orders.prefix) in message
    assert "docs/kafka.md" in message


# --- credentials

WRONG = "a wrong password"


def test_a_wrong_password_at_the_start_is_named(orders: Orders) -> None:
    orders.create_topics()
    user = orders.user()
    process = orders.start(with_password(user, WRONG))
    assert process.ended() == 1
    message = process.text().splitlines()[-1]
    assert "Kafka denies it" in message
    assert "invalid credentials" in message
    assert "TAILRACE_KAFKA_SASL_PASSWORD" in message
    assert_secret(orders, WRONG, user.password)


def test_a_service_whose_password_was_changed_waits_until_it_is_right_again(orders: Orders) -> None:
    orders.create_topics()
    user = orders.user()
    process = orders.start(user)
    orders.feed(100)
    orders.await_all(process)
    orders.guarded.set_password(with_password(user, "another password"))
    wait_until(lambda: "denies the connection" in process.text(), "it says that it is refused", 60)
    # Before that, a connection may still be in use that is not refused yet.
    wait_until(lambda: not orders.log.admin.members("shop"), "its group has lost it", 60)
    orders.feed(100)
    assert process.code() is None
    assert sum(map(len, orders.counts().values())) < orders.fed  # nothing gets through
    orders.guarded.set_password(user)
    orders.await_all(process)
    process.signal(signal.SIGTERM)
    assert process.ended() == 0
    told = [line for line in process.text().splitlines() if '"tailrace.kafka"' in line]
    assert 2 <= len([line for line in told if "SASL" in line or "answers again" in line]) <= 4, told
    assert "Kafka answers again" in process.text()
    assert_secret(orders, user.password, "another password")


def assert_secret(orders: Orders, *hidden: str) -> None:
    """None of these texts is in what processes have said, in their folders, or in the log."""
    files = [path for path in Path(orders.folder).rglob("*") if path.is_file()]
    assert files
    for path in files:
        data = path.read_bytes()
        assert not [one for one in hidden if one.encode() in data], path
    for topic in orders.log.topics():
        for value in orders.records(topic):
            assert not [one for one in hidden if one.encode() in (value or b"")], topic
