"""The faults of a soak on Kafka. Each strikes one member of a round, or the brokers, and leaves the round able to continue."""

from __future__ import annotations

import shutil
import signal
import time
from collections.abc import Callable
from contextlib import closing
from typing import TYPE_CHECKING

from confluent_kafka import Consumer, KafkaException, Producer

from tailrace.core.declare.plan import Plan
from tailrace.core.errors import LogUnavailableError
from tailrace.log import TopicPartition
from tailrace.log.kafka import KafkaLog
from tests.kafka.outside import Outside
from tests.runtime.processes import PATIENCE_S, UNLIMITED, limit_files, wait_until

if TYPE_CHECKING:
    from tests.kafka.soak import Member, Round

SESSION_S = 6.0
"""After which a member that is not heard of has lost its tasks. The least that a broker allows by default."""
_PAST_SESSION_S = 1.5 * SESSION_S
_TRIES = 20
_UNMOVED_S = 0.8
"""A transaction that has not ended after this is that of a process that is suspended: the others commit more often."""
_QUIET = {"log_level": 0}
_ANSWER_S = 10.0


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


# --- processes, where fencing decides: in an open transaction. A process that is killed between two leaves nothing that a new owner has to
# end, so a mistake in fencing can stay unseen.


def kill_in_transaction(made: Round, member: Member) -> None:
    """The records that it leaves hide all that comes after them, until a new owner of its tasks ends the transaction."""
    with closing(KafkaLog(made.url)) as log:
        left = _suspended_in_transaction(made, member, log)
        if left:
            assert member.process is not None
            member.process.kill()
            # It gets its tasks again, or others get them.
            time.sleep(made.random.choice((0.0, _PAST_SESSION_S)))
            _await_ended(made, member, log, left, made.members)


def stop_in_transaction(made: Round, member: Member) -> None:
    """Its tasks get new owners, who end the transaction that it has open. It wakes as a zombie, in the middle of its work. Half of the
    time it wakes without a look whether they have: if not, it may commit what they have done.
    """
    is_looked = made.random.random() < 0.5
    with closing(KafkaLog(made.url)) as log:
        left = _suspended_in_transaction(made, member, log, before_commit=not is_looked)
        if not left:
            return
        assert member.process is not None
        try:
            if is_looked:
                _await_ended(made, member, log, left, [one for one in made.members if one is not member])
            else:
                time.sleep(_PAST_SESSION_S)
            time.sleep(made.random.uniform(0, 3.0))  # the new owners commit
        finally:
            member.process.signal(signal.SIGCONT)


def hidden(log: KafkaLog, plan: Plan) -> dict[TopicPartition, int]:
    """Where the records begin that an open transaction of a service hides. It appends to its changelog for a commit, after all outputs. What
    the feeder writes to the inputs does not count.
    """
    topics = {*plan.outputs, plan.changelog_topic} - {one.name for one in plan.inputs}
    places = [TopicPartition(name, number) for name in topics for number in range(plan.partitions)]
    ends, stable = log._cluster.ends(places), log._cluster.stable_ends(places)
    return {place: at for place, at in stable.items() if ends[place] > at}


def _suspended_in_transaction(
    made: Round, member: Member, log: KafkaLog, *, before_commit: bool = False
) -> dict[TopicPartition, int]:
    """Suspend a process while a transaction of it is open at the brokers, and say what that hides. Nothing, and the process works on, if
    there was none at any try. ``before_commit`` wants one of which a commit has not begun: a new owner can restore beside it.
    """
    plan = made.plans[member.service]
    for _ in range(_TRIES):
        process, held = member.keep(), dict[TopicPartition, int]()
        process.signal(signal.SIGSTOP)
        try:
            before = hidden(log, plan)
            if before and not (before_commit and any(one.topic == plan.changelog_topic for one in before)):
                time.sleep(_UNMOVED_S)
                held = dict(before.items() & hidden(log, plan).items())
        except LogUnavailableError as error:
            made.note(f"the transactions are not known: {error}")
        finally:
            if not held:
                process.signal(signal.SIGCONT)
        if held:
            made.note(f"{member.state.name} has a transaction open")
            return held
        time.sleep(made.random.uniform(0.0, 0.5))
    made.note(f"{member.state.name} has no transaction open")
    return {}


def _await_ended(
    made: Round, member: Member, log: KafkaLog, left: dict[TopicPartition, int], alive: list[Member]
) -> None:
    """Wait until somebody has ended a transaction. A violation, if nobody does: its records hide all that comes after them."""
    plan = made.plans[member.service]

    def is_ended() -> bool:
        for one in alive:
            one.keep()
        try:
            return not left.items() & hidden(log, plan).items()
        except LogUnavailableError:
            return False

    what = f"the transaction that {member.state.name} has left open is ended by a new owner"
    wait_until(is_ended, what, PATIENCE_S / 2)
    made.note("the transaction is ended")


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
    try:
        named = Outside(made.url).named_producers(made.plans[member.service])
    except KafkaException as error:
        made.note(f"the transactional ids are not known: {error}")
        return
    ids = sorted({*named.values()} - {""})
    for name in made.random.sample(ids, min(2, len(ids))):
        stranger = Producer(
            {
                **made.cluster.client, **_QUIET,
                "transactional.id": made.prefix + name, "transaction.timeout.ms": 3_000, "metadata.recovery.strategy": "none",
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

NEED_NODES, NEED_DISK = {"broker lost", "two brokers lost"}, {"disk full"}
"""Those that need three nodes, or a small disk, which not every round has."""


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
