"""An app whose actors send each other money, payments for it, and how much money there is in a snapshot of it: none is ever lost or made,
so that tells whether tasks stand at a consistent cut.
"""

from __future__ import annotations

import threading
from contextlib import suppress
from random import Random

import msgspec

import tailrace as tr
from tailrace.core import rows
from tailrace.core.errors import TailraceError
from tailrace.core.records import Output
from tailrace.log.kafka import KafkaLog
from tailrace.state.snapshots import Snapshot

ACCOUNTS = 30


class Pay(msgspec.Struct, tr.Keyed[str], frozen=True):
    """A payment from one account to another."""

    key: tr.Key[str]
    to: str
    amount: int
    at_ms: tr.EventTime[int]


class Paid(msgspec.Struct, frozen=True):
    """Money on its way."""

    amount: int


class Booked(msgspec.Struct, tr.Keyed[str], frozen=True):
    """What an account has after a payment."""

    key: tr.Key[str]
    balance: int


app = tr.App("bank", partitions=4)
pays = app.topic("pays", Pay)
booked = app.topic("booked", Booked)


@app.actor
class Account(tr.Actor):
    """An account, which may be in debt."""

    balance: int = 0

    @tr.process(pays)
    def pay(self, event: Pay, ctx: tr.Context[str]) -> None:
        """Send money."""
        self.balance -= event.amount
        ctx.send(Account, event.to, Paid(event.amount))

    @tr.on_message
    def receive(self, message: Paid, ctx: tr.Context[str]) -> None:
        """Receive money."""
        self.balance += message.amount
        ctx.emit(booked, Booked(ctx.key, self.balance))


class Payments:
    """Pays from a thread of its own, until it is stopped."""

    def __init__(self, url: str) -> None:
        self._log = KafkaLog(url)
        self._random = Random(5)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._go)
        self.made = 0

    def pay(self) -> None:
        some: list[Output] = []
        for _ in range(20):
            one, other = self._random.sample(range(ACCOUNTS), 2)
            at_ms = 1_700_000_000_000 + self.made * 10
            event = {
                "key": f"a{one}",
                "to": f"a{other}",
                "amount": self._random.randint(1, 99),
                "at_ms": at_ms,
            }
            some.append(Output("pays", b"a%d" % one, msgspec.json.encode(event), at_ms))
            self.made += 1
        self._log.append_all(some)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        """Stop. It may be called again."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join()
        self._log.close()

    def _go(self) -> None:
        while not self._stop.wait(0.4):
            with suppress(TailraceError):  # on a busy machine; then some payments are not made
                self.pay()


def balances(snapshot: Snapshot) -> dict[bytes, int]:
    """What each account has, by its row."""
    found: dict[bytes, int] = {}
    for task in snapshot.manifest.tasks:
        for row, value in snapshot.rows(task.partition):
            if row[:1] == rows.STATE:
                found[row] = msgspec.msgpack.decode(value[rows.start_of_fields(value) :]).get("balance", 0)
    return found


def on_way(snapshot: Snapshot) -> list[int]:
    """The amounts in messages that are on their way."""
    return [
        amount_in(one.value or b"")
        for task in snapshot.manifest.tasks
        for one in snapshot.messages(task.partition)
    ]


def money(snapshot: Snapshot) -> int:
    """All money there is: 0 if the tasks stand at a consistent cut."""
    return sum(balances(snapshot).values()) + sum(on_way(snapshot))


def amount_in(message: bytes) -> int:
    """The amount in a message of the inbox: an actor, a handler, and what was sent."""
    _, _, sent = msgspec.msgpack.decode(message)
    return int(msgspec.msgpack.decode(sent)["amount"])
