"""Faults of a soak on Kafka that strike where fencing decides: in an open transaction.

Elsewhere a mistake in fencing can stay unseen. A process that is killed between two transactions leaves nothing that a new owner has to
end.

Which transactions are open is read from the topic of their coordinators: the clients of Python cannot ask for it. The key of a record is a
transactional id, and the value what the coordinator knows of it (``TransactionLogKey.json`` and ``TransactionLogValue.json`` of Kafka).
"""

from __future__ import annotations

import signal
import struct
import time
from collections import Counter
from collections.abc import Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple

from confluent_kafka import Consumer, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient

from tailrace.log.kafka.library import admin_library
from tests.runtime.processes import PATIENCE_S, wait_until

if TYPE_CHECKING:
    from tests.kafka.soak import Member, Round

_PAST_SESSION_S = 9.0
_TRIES = 20
_UNMOVED_S = 0.8
"""A transaction that has not ended after this is that of a process that is suspended: the others commit more often."""
_TOPIC = "__transaction_state"
_QUIET = {"log_level": 0}
_ANSWER_S = 10.0
_LENGTH = struct.Struct(">h")
_STATUS_AT = struct.calcsize(">hqhi")
"""Behind the version, the id and the epoch of the producer, and the time-out."""
_OPEN = frozenset({1, 2, 3})
"""Under way; decided, and not yet written everywhere."""


def kill_in_transaction(made: Round, member: Member) -> None:
    """The records that it leaves hide all that comes after them, until a new owner of its tasks ends the transaction."""
    with TransactionStates(made.cluster.client) as states:
        left = _suspended_in_transaction(made, member, states)
        if left:
            assert member.process is not None
            member.process.kill()
            # It gets its tasks again, or others get them.
            time.sleep(made.random.choice((0.0, _PAST_SESSION_S)))
            _await_ended(made, member, states, left, made.members)


def stop_in_transaction(made: Round, member: Member) -> None:
    """Its tasks get new owners, who end the transaction that it has open. It wakes as a zombie, in the middle of its work. Half of the
    time it wakes without a look whether they have: if not, it may commit what they have done.
    """
    is_looked = made.random.random() < 0.5
    with TransactionStates(made.cluster.client) as states:
        left = _suspended_in_transaction(made, member, states, before_commit=not is_looked)
        if not left:
            return
        assert member.process is not None
        try:
            if is_looked:
                _await_ended(made, member, states, left, [one for one in made.members if one is not member])
            else:
                time.sleep(_PAST_SESSION_S)
            time.sleep(made.random.uniform(0, 3.0))  # the new owners commit
        finally:
            member.process.signal(signal.SIGCONT)


# --- internal


def _suspended_in_transaction(
    made: Round, member: Member, states: TransactionStates, *, before_commit: bool = False
) -> dict[str, OpenTransaction]:
    """Suspend a process while a transaction of it is open at the brokers. That transaction; none, and the process works on, if there
    was none at any try. ``before_commit`` wants one of which a commit has not begun: a new owner can restore beside it.
    """
    wanted = f"{made.prefix}{member.service}-"
    for _ in range(_TRIES):
        process, held = member.keep(), dict[str, OpenTransaction]()
        process.signal(signal.SIGSTOP)
        try:
            before = {
                name: one
                for name, one in states.open().items()
                if name.startswith(wanted) and not (before_commit and one.is_committing)
            }
            if before:
                time.sleep(_UNMOVED_S)
                held = {name: one for name, one in states.open().items() if before.get(name) == one}
        except KafkaException as error:
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
    made: Round,
    member: Member,
    states: TransactionStates,
    left: dict[str, OpenTransaction],
    alive: list[Member],
) -> None:
    """Wait until somebody has ended a transaction. A violation, if nobody does: its records hide all that comes after them."""

    def is_ended() -> bool:
        for one in alive:
            one.keep()
        try:
            now = states.open()
        except KafkaException:
            return False
        return not any(name in now and now[name].number == one.number for name, one in left.items())

    what = f"the transaction that {member.state.name} has left open is ended by a new owner"
    wait_until(is_ended, what, PATIENCE_S / 2)
    made.note("the transaction is ended")


# --- the states of transactions


class OpenTransaction(NamedTuple):
    """A transaction that has not ended."""

    number: int
    """How many of its id have ended before: it tells one from the next."""
    is_committing: bool
    """Whether it has records of a changelog, which are appended for a commit, after all outputs."""


class TransactionStates:
    """Follows the coordinators of a cluster; the caller must close it. ``client`` are the settings with which it connects."""

    def __init__(self, client: Mapping[str, Any]) -> None:
        self._admin = AdminClient({**client, **_QUIET})
        self._reader = Consumer({**client, **_QUIET, "group.id": "look"})
        self._at: dict[int, int] = {}
        """By partition, up to where it was read."""
        self._values: dict[str, bytes] = {}
        self._ended: Counter[str] = Counter()

    def ids(self) -> set[str]:
        """All transactional ids that the coordinators know.

        Raises:
            KafkaException: The brokers do not answer.
        """
        self._read()
        return {*self._values}

    def open(self) -> dict[str, OpenTransaction]:
        """The transactions that are open, by id. Raises what ``ids`` raises."""
        self._read()
        return {
            name: OpenTransaction(self._ended[name], b".changelog" in value)
            for name, value in self._values.items()
            if _is_open(value)
        }

    def close(self) -> None:
        """Release its clients."""
        self._reader.close()

    def __enter__(self) -> TransactionStates:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _read(self) -> None:
        """Read what is new, up to the present end."""
        ends = self._ends()
        if not self._at:
            self._at = dict.fromkeys(ends, 0)
            self._reader.assign([TopicPartition(_TOPIC, number, 0) for number in ends])
        until_s = time.monotonic() + _ANSWER_S
        while any(self._at[number] < end for number, end in ends.items()):
            message = self._reader.poll(0.5)
            if message is None:
                if time.monotonic() > until_s:
                    raise KafkaException("the coordinators' topic gives nothing")
                continue
            if message.error() is not None:
                raise KafkaException(message.error())
            until_s = time.monotonic() + _ANSWER_S
            number, offset = message.partition(), message.offset()
            assert number is not None
            assert offset is not None
            self._at[number] = offset + 1
            self._note(message.key() or b"", message.value())

    def _ends(self) -> dict[int, int]:
        count = len(self._admin.list_topics(_TOPIC, timeout=_ANSWER_S).topics[_TOPIC].partitions)
        latest = admin_library().OffsetSpec.latest()
        places = {TopicPartition(_TOPIC, number): latest for number in range(count)}
        answers = self._admin.list_offsets(places, request_timeout=_ANSWER_S)
        return {place.partition: answer.result().offset for place, answer in answers.items()}

    def _note(self, key: bytes, value: bytes | None) -> None:
        (length,) = _LENGTH.unpack_from(key, 2)  # behind the version
        name = key[4 : 4 + length].decode()
        before = self._values.pop(name, None)
        if value is None:
            return
        if before is not None and _is_open(before) and not _is_open(value):
            self._ended[name] += 1
        self._values[name] = value


def _is_open(value: bytes) -> bool:
    return value[_STATUS_AT] in _OPEN
