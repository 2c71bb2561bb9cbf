"""The faults of a soak on Kafka. Each strikes one member of a round, or the brokers, and leaves the round able to continue."""

from __future__ import annotations

import shutil
import signal
import time
from collections.abc import Callable
from enum import Enum
from typing import TYPE_CHECKING

from confluent_kafka import Consumer, KafkaException, Producer

from tests.kafka.fencing_faults import TransactionStates, kill_in_transaction, stop_in_transaction
from tests.runtime.processes import UNLIMITED, limit_files

if TYPE_CHECKING:
    from tests.kafka.soak import Member, Round

SESSION_S = 6.0
"""After which a member that is not heard of has lost its tasks. The least that a broker allows by default."""
_QUIET = {"log_level": 0}
_ANSWER_S = 10.0


class Needs(Enum):
    """What a fault needs, which not every round has."""

    NOTHING = "nothing"
    NODES = "three nodes"
    DISK = "a small disk"


# --- processes


def kill(made: Round, member: Member) -> None:
    member.keep().signal(signal.SIGKILL)
    if made.random.random() < 0.5:
        time.sleep(made.random.uniform(0, 1.5 * SESSION_S))  # others may take its tasks over
    member.keep()


def kill_while_starting(made: Round, member: Member) -> None:
    member.keep().kill()
    process = member.start()
    time.sleep(made.random.uniform(0.3, 4.0))
    process.kill()
    member.start()


def kill_service(made: Round, member: Member) -> None:
    for one in _of_service(made, member):
        if one.process is not None:
            one.process.kill()


def terminate(made: Round, member: Member) -> None:
    member.keep()
    member.terminate()
    time.sleep(made.random.uniform(0, 2.0))
    member.start()


def stop_past_the_session(made: Round, member: Member) -> None:
    """The group gives its tasks to others, and it wakes as a zombie, or to tasks that nobody has."""
    stopped = _of_service(made, member) if made.random.random() < 0.2 else [member]
    _stopped(stopped, SESSION_S * made.random.uniform(1.2, 2.0))


def stop_shortly(made: Round, member: Member) -> None:
    _stopped([member], SESSION_S * made.random.uniform(0.05, 0.6))


def come_and_go(made: Round, member: Member) -> None:
    """A third process joins for a while. It finds the state folder of the last that did."""
    guest = type(member)(member.service, 9, made)
    process = guest.start()
    time.sleep(made.random.uniform(1.0, 6.0))
    if made.random.random() < 0.5:
        process.kill()
    else:
        guest.terminate()


# --- state


def lose_state(made: Round, member: Member) -> None:
    """The state of a task, or of all, is gone, or is that of another time or of another process."""
    member.keep().kill()
    chance, copy = made.random.random(), made.folder / "copies" / member.state.name
    if chance < 0.3:
        number = made.random.randrange(4)
        shutil.rmtree(member.state / member.service / str(number), ignore_errors=True)
    elif chance < 0.5:
        shutil.rmtree(member.state, ignore_errors=True)
    elif chance < 0.7:
        for one in (others := _of_service(made, member)):
            one.keep().kill()
        states = [one.state for one in others]
        for one, state in zip(others, [*states[1:], states[0]], strict=True):
            one.state = state
            one.start()
        return
    elif copy.is_dir():
        shutil.rmtree(member.state, ignore_errors=True)
        shutil.move(copy, member.state)
    elif member.state.is_dir():
        copy.parent.mkdir(exist_ok=True)
        shutil.copytree(member.state, copy)
    member.start()


def limit_state_files(made: Round, member: Member) -> None:
    """What a process writes past some size is refused, as by a full disk."""
    process = member.keep()
    member.may_be_full()
    limit_files(process.pid, made.random.choice((0, 1_000, 100_000)))
    time.sleep(made.random.uniform(0.3, 2.0))
    limit_files(process.pid, UNLIMITED)


def fill_disk(made: Round, _member: Member) -> None:
    """All states share a disk."""
    assert made.disk is not None
    for one in made.members:
        one.may_be_full()
    made.disk.fill()
    try:
        time.sleep(made.random.uniform(0.3, 2.0))
    finally:
        made.disk.relieve()


# --- brokers


def kill_broker(made: Round, _member: Member) -> None:
    made.random.choice(made.cluster.nodes).kill()
    time.sleep(made.random.uniform(0, 2.0))
    made.cluster.start()


def lose_broker(made: Round, _member: Member) -> None:
    """The services work with two of three for a while. The lost one was killed, or has shut down."""
    node = made.random.choice(made.cluster.nodes)
    node.kill() if made.random.random() < 0.5 else node.stop()
    time.sleep(made.random.uniform(2.0, 8.0))
    made.cluster.start()


def lose_two_brokers(made: Round, _member: Member) -> None:
    """Too few replicas are in sync, so nothing can be committed."""
    lost = made.random.sample(made.cluster.nodes, 2)
    for node in lost:
        node.kill()
    time.sleep(made.random.uniform(0.5, 4.0))
    made.cluster.start()


def stop_broker(made: Round, _member: Member) -> None:
    """It is slow, and alive; longer than an impatient process waits, or not."""
    node = made.random.choice(made.cluster.nodes)
    node.pause()
    time.sleep(made.random.choice((0.3, 1.0, 4.0)))
    node.resume()
    made.cluster.wait_until_ready()


def leave_commits_unanswered(made: Round, member: Member) -> None:
    """All nodes stop while commits are under way. Then the process that waits is killed, or the brokers are, or both continue."""
    process = member.keep()
    for node in made.cluster.nodes:
        node.pause()
    time.sleep(made.random.uniform(0.2, 2.5))
    chance = made.random.random()
    if chance < 0.4:
        process.kill()
    if 0.3 < chance < 0.7:
        for node in made.cluster.nodes:
            node.kill()
    for node in made.cluster.nodes:
        if node.runs:
            node.resume()
    made.cluster.start()


# --- the group and the transactional ids


def take_over_an_id(made: Round, member: Member) -> None:
    """A stranger takes over a transactional id of the service, and may leave a transaction open, with records in it."""
    wanted = f"{made.prefix}{member.service}-"
    try:
        with TransactionStates(made.cluster.client) as states:
            ids = sorted(one for one in states.ids() if one.startswith(wanted))
    except KafkaException as error:
        made.note(f"the transactional ids are not known: {error}")
        return
    for name in made.random.sample(ids, min(2, len(ids))):
        stranger = Producer(
            {
                **made.cluster.client, **_QUIET,
                "transactional.id": name, "transaction.timeout.ms": 3_000, "metadata.recovery.strategy": "none",
            }
        )  # fmt: skip
        try:
            stranger.init_transactions(_ANSWER_S)
            if made.random.random() < 0.6:
                stranger.begin_transaction()
                topic = made.random.choice((f"{member.service}.changelog", f"{member.service}-told"))
                stranger.produce(made.prefix + topic, b"not of this app", b"k", made.random.randrange(4))
                stranger.flush(1.0)
        except KafkaException as error:
            made.note(f"the stranger was refused: {error}")


def rebalance_storm(made: Round, member: Member) -> None:
    """Strangers join the group, are given tasks that they do nothing for, and leave again."""
    protocol = (
        {"group.protocol": "consumer"}
        if made.plan.consumer_protocol
        else {"partition.assignment.strategy": "cooperative-sticky", "session.timeout.ms": int(SESSION_S * 1_000), "heartbeat.interval.ms": 500}
    )  # fmt: skip
    settings = {**made.cluster.client, **_QUIET, **protocol, "enable.auto.commit": False}
    for _ in range(made.random.randint(2, 5)):
        strangers = [
            Consumer({**settings, "group.id": made.prefix + member.service})
            for _ in range(made.random.randint(1, 2))
        ]
        for one in strangers:
            one.subscribe([f"{made.prefix}{member.service}.tape"])
        until_s = time.monotonic() + made.random.uniform(0.2, 2.0)
        while time.monotonic() < until_s:
            for one in strangers:
                one.poll(0.05)
        for one in strangers:
            one.close()


# --- the feeder


def kill_feeder(made: Round, _member: Member) -> None:
    assert made.feeder is not None
    made.feeder.kill()


FAULTS: dict[str, tuple[int, Callable[[Round, Member], None]]] = {
    "kill -9": (4, kill),
    "kill -9 while starting": (2, kill_while_starting),
    "kill -9 of a service": (1, kill_service),
    "SIGTERM and restart": (3, terminate),
    "SIGSTOP past the session": (3, stop_past_the_session),
    "SIGSTOP, short": (2, stop_shortly),
    "kill -9 in a transaction": (3, kill_in_transaction),
    "SIGSTOP in a transaction": (3, stop_in_transaction),
    "a third process": (2, come_and_go),
    "lost or other state": (3, lose_state),
    "no room for files": (2, limit_state_files),
    "disk full": (2, fill_disk),
    "broker killed": (2, kill_broker),
    "broker lost": (4, lose_broker),
    "two brokers lost": (1, lose_two_brokers),
    "broker stopped": (2, stop_broker),
    "commits unanswered": (3, leave_commits_unanswered),
    "id taken over": (3, take_over_an_id),
    "rebalance storm": (2, rebalance_storm),
    "feeder killed": (1, kill_feeder),
}
"""Each with its odds."""

NEEDS = {"broker lost": Needs.NODES, "two brokers lost": Needs.NODES, "disk full": Needs.DISK}


# --- internal


def _of_service(made: Round, member: Member) -> list[Member]:
    return [one for one in made.members if one.service == member.service]


def _stopped(members: list[Member], seconds: float) -> None:
    processes = [one.keep() for one in members]
    for one in processes:
        one.signal(signal.SIGSTOP)
    time.sleep(seconds)
    for one in processes:
        one.signal(signal.SIGCONT)
