"""Faults of a soak on Kafka that strike where fencing decides: in an open transaction.

Elsewhere a mistake in fencing can stay unseen. A process that is killed between two transactions leaves nothing that a new owner has to
end.
"""

from __future__ import annotations

import signal
import time
from typing import TYPE_CHECKING

from confluent_kafka import KafkaException

from tests.kafka.transaction_states import OpenTransaction, TransactionStates
from tests.soak.processes import PATIENCE_S, wait_until

if TYPE_CHECKING:
    from tests.kafka.soak import Member, Round

_PAST_SESSION_S = 9.0
_TRIES = 20
_UNMOVED_S = 0.8
"""A transaction that has not ended after this is that of a process that is suspended: the others commit more often."""


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
