"""An app that counts what it reads from one input or from two, on any log: an input that is left and taken up again counts once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import msgspec

import tailrace as tr
from tailrace.core.declare.plan import Plan
from tailrace.core.records import Output
from tailrace.core.values.partitioner import partition_of
from tailrace.history.reading.stretches import scan
from tailrace.history.snapshots.start_from_snapshot import Start, start_from
from tailrace.log.embedded import EmbeddedLog
from tailrace.log.kafka import KafkaLog
from tailrace.runtime.preparing import prepare_log
from tailrace.runtime.slices import PartitionSettings
from tailrace.runtime.worker import Worker, WorkerSettings
from tailrace.state import MemoryStore
from tests.runtime.processes import wait_until

PARTITIONS = 2
KEYS = [
    [key for key in map(str, range(20)) if partition_of(key.encode(), PARTITIONS) == n]
    for n in range(PARTITIONS)
]
EVERY = KEYS[0] + KEYS[1]


class Paid(msgspec.Struct, tr.Keyed[str], frozen=True):
    """Something was paid."""

    key: tr.Key[str]
    at_ms: tr.EventTime[int]


class Sum(msgspec.Struct, tr.Keyed[str], frozen=True):
    """The number of payments of a key."""

    key: tr.Key[str]
    count: int


def tills_app(*inputs: str, name: str = "tills") -> tr.App:
    """An app that counts what it reads."""
    app = tr.App(name, partitions=PARTITIONS)
    read = [app.topic(one, Paid) for one in inputs]
    sums = app.topic("sums", Sum)

    @app.actor
    class Till(tr.Actor, order="arrival"):
        count: int = 0

        @tr.process(*read)
        def paid(self, _event: Paid, ctx: tr.Context[str]) -> None:
            self.count += 1
            ctx.emit(sums, Sum(ctx.key, self.count))

    return app


def tills(*inputs: str, name: str = "tills") -> Plan:
    """Its plan."""
    return tills_app(*inputs, name=name).plan()


cash = tills_app("cash")
both = tills_app("cash", "cards")


class Tills:
    """The app in this process, and what it has to count. Each run has empty stores, as on another machine."""

    def __init__(self, log: EmbeddedLog | KafkaLog) -> None:
        self.log = log
        self.paid: Counter[str] = Counter()
        prepare_log(self.log, tills("cash", "cards"), create_declared=True)

    def pay(self, topic: str, keys: Sequence[str], count: int) -> None:
        """Some payments, one after the other."""
        made = [keys[n % len(keys)] for n in range(count)]
        self.log.append_all(payments(topic, made))
        self.paid.update(made)

    def run(
        self,
        *inputs: str,
        after_deleted: bool = False,
        prepare: bool = True,
        name: str = "tills",
        start: Start | None = None,
    ) -> None:
        """Run until everything is handled, and stop. ``start``: begin from a snapshot."""
        plan = tills(*inputs, name=name)
        log = KafkaLog(str(self.log)) if isinstance(self.log, KafkaLog) else self.log
        if prepare:
            prepare_log(log, plan, create_declared=True)
        for number in range(PARTITIONS) if start is not None else ():
            assert start is not None
            start_from(plan, number, log, start, 1)
        worker = Worker(
            plan,
            log,
            range(PARTITIONS),
            lambda _: MemoryStore(),
            settings=WorkerSettings(
                change_inputs=True,
                partition=PartitionSettings(commit_interval_ms=0, after_deleted=after_deleted),
            ),
            reader=log.live_reader(),
        )
        try:
            worker.start()

            def done() -> bool:
                while worker.turn():
                    pass
                return self.counts() == self.paid and not any(
                    slot.running is None or slot.running.dirty for slot in worker.slots
                )

            wait_until(done, "all payments are counted", 90)
            worker.leave()
        finally:
            if log is not self.log:
                log.close()

    def counts(self) -> Counter[str]:
        """The highest count of each key; each count must be there once."""
        records = [one for number in range(PARTITIONS) for one in scan(self.log, "sums", number)]
        sums = [msgspec.json.decode(one.value or b"", type=Sum) for one in records]
        found = [(one.key, one.count) for one in sums]
        assert len(found) == len(set(found)), "counted twice"
        return Counter({key: max(count for other, count in found if other == key) for key, _ in found})


def payments(topic: str, keys: Sequence[str]) -> list[Output]:
    """The records of payments."""
    return [Output(topic, key.encode(), msgspec.json.encode(Paid(key, n)), n) for n, key in enumerate(keys)]
