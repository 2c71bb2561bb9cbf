"""Credentials that are wrong at the start end a service. Those that become wrong under it delay it. No secret is ever shown."""

from __future__ import annotations

import signal
from pathlib import Path

from tests.kafka.security.guarded import with_password
from tests.kafka.security.orders import Orders
from tests.soak.processes import wait_until

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


def assert_secret(orders: Orders, *secrets: str) -> None:
    """None of these texts is in what processes have said, in their folders, or in the log."""
    files = [path for path in Path(orders.folder).rglob("*") if path.is_file()]
    assert files
    for path in files:
        data = path.read_bytes()
        assert not [one for one in secrets if one.encode() in data], path
    for topic in orders.log.topics():
        for value in orders.records(topic):
            assert not [one for one in secrets if one.encode() in (value or b"")], topic
