"""A small world for partitions: an app, a log in memory, a store per partition, and a clock that stands still."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import msgspec

import tailrace as tr
from tailrace.core import rows
from tailrace.core.declare.plan import Plan
from tailrace.core.engine import tape
from tailrace.core.engine.replay import Replay
from tailrace.core.engine.task import Task
from tailrace.core.records import InputRecord, Output
from tailrace.history.reading.app_topics import prepare_topics
from tailrace.log import TopicPartition
from tailrace.runtime.partition import Partition
from tailrace.runtime.slices import PartitionSettings
from tailrace.state import MemoryStore
from tailrace.testing.memory_log import MemoryLog, Operation

LINEAGE = b"lineage"


class Kill(BaseException):
    """The process ends here."""


class Sale(msgspec.Struct):
    shop: str
    at: int
    amount: int = 1


class Said(msgspec.Struct):
    shop: str
    what: str


def counting_app(**options: Any) -> tr.App:
    """Two inputs; an actor with a value, a map, timers of both kinds. A negative amount makes its handler fail.

    As long as nothing is returned and nothing has fallen idle, no event-time timer fires.
    """
    app = tr.App("shop", partitions=1, **options)
    sales = app.topic("sales", Sale, key="shop", event_time="at", out_of_order="10ms", idle_after="5s")
    returns = app.topic("returns", Sale, key="shop", event_time="at", idle_after="5s")
    said = app.topic("said", Said, key="shop")

    @app.actor
    class Shop(tr.Actor, order="arrival"):
        total: int = 0
        by_amount: tr.MapState[str, int]

        @tr.process(sales)
        def sold(self, event: Sale, ctx: tr.Context[str]) -> None:
            self.total += event.amount
            amount = str(event.amount)
            self.by_amount[amount] = self.by_amount.get(amount, 0) + 1
            ctx.set_timer(event.at + 100, name="quiet")
            ctx.emit(said, Said(event.shop, f"sold {self.total} {ctx.random.random()}"))
            if event.amount < 0:
                raise ValueError("negative")

        @tr.process(returns)
        def returned(self, event: Sale, ctx: tr.Context[str]) -> None:
            self.total -= event.amount
            ctx.set_processing_timer(ctx.now + 1_000)
            ctx.emit(said, Said(event.shop, f"returned {self.total}"))

        @tr.on_timer("quiet")
        def quiet(self, ctx: tr.Context[str]) -> None:
            ctx.emit(said, Said(ctx.key, f"quiet {self.total} {ctx.event_time}"))
            if self.total > 20:
                ctx.clear()

        @tr.on_processing_timer
        def later(self, ctx: tr.Context[str]) -> None:
            ctx.emit(said, Said(ctx.key, f"later {self.total}"))

    return app


def one_input_app() -> tr.App:
    """One input, so that the watermark moves with every record and timers fire between them."""
    app = tr.App("shop", partitions=1)
    sales = app.topic("sales", Sale, key="shop", event_time="at", out_of_order="10ms")
    said = app.topic("said", Said, key="shop")

    @app.actor
    class Shop(tr.Actor):
        total: int = 0

        @tr.process(sales)
        def sold(self, event: Sale, ctx: tr.Context[str]) -> None:
            self.total += event.amount
            for after_ms in (20, 20 + event.amount, 100):
                ctx.set_timer(event.at + after_ms)
            ctx.set_timer(event.at + 40, name="quiet")
            ctx.emit(said, Said(event.shop, f"sold {self.total} {ctx.watermark}"))

        @tr.on_timer
        def later(self, ctx: tr.Context[str]) -> None:
            self.total += 100
            ctx.emit(said, Said(ctx.key, f"later {self.total} {ctx.event_time}"))

        @tr.on_timer("quiet")
        def quiet(self, ctx: tr.Context[str]) -> None:
            ctx.emit(said, Said(ctx.key, f"quiet {self.total} {ctx.random.random()}"))
            ctx.clear()

    return app


APPS = {"one input": one_input_app, "two inputs": counting_app}


class CountingStore(MemoryStore):
    """A store whose writes pass a hook, before and after they take effect."""

    def __init__(self, on_operation: Callable[[str], None]) -> None:
        super().__init__()
        self.on_operation = on_operation
        self.closed = False

    def write(self, rows: Mapping[bytes, bytes | None], cut: bytes, /) -> None:
        self.on_operation("store")
        super().write(rows, cut)
        self.on_operation("stored")

    def close(self) -> None:
        self.closed = True


class World:
    """All that outlives a process."""

    def __init__(self, app: tr.App | None = None, **settings: Any) -> None:
        self.plan: Plan = (app or counting_app()).plan()
        self.log = MemoryLog(on_operation=self.operation)
        self.now_ms = 1_000_000
        self.settings = PartitionSettings(**settings)
        self.operations: list[str] = []
        self.strike: Callable[[str], None] = lambda operation: None
        self.new_store()
        prepare_topics(self.log, self.plan, create_declared=True)
        self.operations.clear()

    def new_store(self) -> None:
        """Another machine: nothing on its disk."""
        self.store: CountingStore = CountingStore(self.operation)

    def operation(self, name: Operation | str) -> None:
        self.operations.append(name)
        self.strike(name)

    @contextmanager
    def striking(self, at: str | int, error: BaseException, *, times: int = 1) -> Generator[None, None, None]:
        """Raise at the next operation of a name, or at the one of a number from here on."""
        left, begun = times, len(self.operations)

        def strike(name: str) -> None:
            nonlocal left
            if left and (name == at or len(self.operations) - begun == at):
                left -= 1
                raise error

        self.strike = strike
        try:
            yield
        finally:
            self.strike = lambda name: None

    def sell(self, *sales: tuple[str, int, int], topic: str = "sales") -> None:
        for shop, at, amount in sales:
            self.log.append(topic, shop.encode(), msgspec.json.encode(Sale(shop, at, amount)), at)

    def assigned(self, **options: Any) -> Partition:
        return Partition(
            self.plan, 0, self.log, self.store, lambda: self.now_ms, lineage=LINEAGE,
            settings=options.pop("settings", self.settings), **options,
        )  # fmt: skip

    def running(self, **options: Any) -> Partition:
        partition = self.assigned(**options)
        partition.restore()
        return partition

    def said(self) -> list[str]:
        return [msgspec.json.decode(one.value or b"", type=Said).what for one in self.log.read("said")]

    def outputs(self) -> list[tuple[Any, ...]]:
        """Everything that is visible, without its offsets."""
        return [record[1:] for record in self.log.read("said")]

    def rows(self) -> list[tuple[bytes, bytes]]:
        return in_one_form(self.store.rows())

    def committed(self) -> dict[str, int]:
        places = [TopicPartition(one.name, 0) for one in self.plan.inputs]
        return {place.topic: at for place, at in self.log.committed_offsets(self.plan.app, places).items()}


def in_one_form(found: Iterable[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
    """The rows of a store, with an index that is exact: as far as that of the store has it, at its time or before."""
    held = dict(found)
    kept = {row: value for row, value in held.items() if row[:1] != rows.INDEX}
    exact = rows.index_changes((row, None, value) for row, value in kept.items() if b"\0\0" in row)
    early: dict[tuple[int, str, bytes, bytes], int] = {}
    for row in sorted(held.keys() - kept.keys()):
        time_ms, actor, key, name = rows.read_index_row(row)
        early.setdefault((row[1], actor, key, name), time_ms)

    def is_there(row: bytes) -> bool:
        time_ms, actor, key, name = rows.read_index_row(row)
        return early.get((row[1], actor, key, name), time_ms + 1) <= time_ms

    return sorted((kept | dict.fromkeys(filter(is_there, exact), b"")).items())


def run_dry(partition: Partition, max_records: int = 10_000) -> None:
    """Take slices until there is nothing to do."""
    while partition.poll(max_records):
        pass


def quiet_outputs(values: Sequence[bytes]) -> list[Output]:
    """Records for a topic that nobody judges."""
    return [Output("sales", b"k", value, 0) for value in values]


def replayed(world: World) -> tuple[list[tuple[Any, ...]], list[tuple[bytes, bytes]]]:
    """Outputs and rows of a replay from nothing along the tape: what a world that lives by the laws must equal."""
    state, outputs = MemoryStore(), []
    task = Task(world.plan, 0, state, lineage=LINEAGE, replaying=True)

    def source(topic: str, start: int, stop: int) -> list[InputRecord]:
        return [one for one in world.log.read(topic) if start <= one.offset < stop]

    replay = Replay(task, source)
    for record in world.log.read(world.plan.tape_topic):
        replay.take(tape.decode_tape(record.value or b""))
        outputs += [(one.timestamp_ms, one.key, one.value, one.headers) for one in task.take_outputs()]
        batch = task.commit_batch()
        state.write(batch.rows | batch.index_rows, batch.cut)
        task.committed()
    return outputs, in_one_form(state.rows())


def sales(first: int, last: int) -> list[tuple[str, int, int]]:
    return [(f"s{number % 5}", 50 * number, number) for number in range(first, last)]


def worked(world: World, first: int, last: int) -> None:
    """One owner takes some sales, commit by commit, and leaves."""
    partition = world.running()
    world.sell(*sales(first, last))
    run_dry(partition, 4)
    partition.revoke()


def made() -> World:
    world = World(commit_interval_ms=0)
    worked(world, 0, 20)
    return world
