"""Partitions over the embedded log and RocksDB, struck at random: no schedule of faults changes what comes out."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from tailrace.core.records import InputRecord, Output
from tailrace.history.reading.app_topics import prepare_topics
from tailrace.log import TopicPartition
from tailrace.log.embedded import EmbeddedLog
from tailrace.log.embedded.reader import EmbeddedReader
from tailrace.log.embedded.writer import EmbeddedWriter
from tailrace.log.options import LogOptions
from tailrace.state import RocksStore, StateIdentity, StateMemory
from tests.runtime.test_any_schedule import Chaos
from tests.runtime.world import APPS, World, replayed, run_dry

OPTIONS = LogOptions()
MEMORY = StateMemory(8 << 20)


class StruckWriter:
    shared, lost = None, False

    def __init__(self, inner: EmbeddedWriter, strike: Callable[[str], None]) -> None:
        self.transactional_id = inner.transactional_id
        self.inner = inner
        self.strike = strike

    def append(self, outputs: Any, /, partition: int | None = None) -> None:
        self.strike("append")
        self.inner.append(outputs, partition)

    def commit(
        self,
        offsets: Mapping[TopicPartition, int] | None = None,
        group: str = "",
        watermarks: Mapping[str, int | None] | None = None,
        /,
    ) -> Mapping[TopicPartition, int]:
        self.strike("commit")
        ends = self.inner.commit(offsets, group, watermarks)
        self.strike("committed")
        return ends

    def abort(self) -> None:
        self.strike("abort")
        self.inner.abort()

    def close(self) -> None:
        self.inner.close()


class StruckReader(EmbeddedReader):
    strike: Callable[[str], None]

    def fetch(self, topic: str, partition: int, max_records: int, /) -> Any:
        self.strike("fetch")
        return super().fetch(topic, partition, max_records)


class StruckLog(EmbeddedLog):
    """Every operation passes the hook; what the memory log gives to tests, this one gives too."""

    def __init__(self, path: Path, strike: Callable[[str], None]) -> None:
        super().__init__(path, OPTIONS)
        self.strike = strike

    def writer(self, transactional_id: str, /) -> Any:
        self.strike("take-over")
        return StruckWriter(super().writer(transactional_id), self.strike)

    def reader(self, positions: Mapping[TopicPartition, int], /) -> StruckReader:
        reader = StruckReader(self._view)
        reader.strike = self.strike
        for place, offset in positions.items():
            reader.seek(*place, offset)
        return reader

    def end_offset(self, topic: str, partition: int, /) -> int:
        self.strike("query")
        return super().end_offset(topic, partition)

    def read(self, topic: str) -> list[InputRecord]:
        reader = EmbeddedLog(self.path).reader({TopicPartition(topic, 0): 0})
        return reader.fetch(topic, 0, 1_000_000).records


class StruckStore(RocksStore):
    """A copy of the store is what a killed process leaves: it never closes it."""

    strike: Callable[[str], None]

    def write(self, rows: Mapping[bytes, bytes | None], cut: bytes, /) -> None:
        self.strike("store")
        super().write(rows, cut)
        self.strike("stored")


class EmbeddedWorld(World):
    """The world with everything on a disk."""

    log: Any

    def __init__(self, app: Any, folder: Path) -> None:
        self.folder = folder
        self.stores = 0
        super().__init__(app)
        self.log = StruckLog(folder / "log", self.operation)
        prepare_topics(self.log, self.plan, create_declared=True)
        self.operations.clear()

    def new_store(self) -> None:
        """An empty folder, as on another machine."""
        self.stores += 1
        self.open_store()

    def open_store(self) -> None:
        store = StruckStore(self.folder / f"state-{self.stores}", StateIdentity("shop", 0), MEMORY)
        store.strike = self.operation
        self.store: Any = store

    def assigned(self, **options: Any) -> Any:
        # The owner before has ended, or is a zombie that keeps what it has on another machine.
        before: RocksStore = self.store
        before.close()
        self.open_store()
        return super().assigned(**options)


class EmbeddedChaos(Chaos):
    def __init__(self, seed: int, app: str, folder: Path) -> None:
        super().__init__(seed, app)
        self.world: World = EmbeddedWorld(APPS[app](), folder)
        self.log: EmbeddedLog = self.world.log

    def step(self) -> None:
        if self.dice.random() < 0.1:
            self.log.clean(least_gain=0)
        super().step()


@pytest.mark.one_seed_in(50)  # one takes 0.5 s
@pytest.mark.parametrize("app", APPS)
def test_no_schedule_of_faults_changes_what_comes_out(app, seeds) -> None:
    struck = 0
    for seed in seeds:
        folder = Path(tempfile.mkdtemp())
        try:
            chaos = EmbeddedChaos(seed, app, folder)
            world: Any = chaos.run()
            struck += chaos.struck
            reopened = RocksStore(folder / f"state-{world.stores}", StateIdentity("shop", 0), MEMORY)
            rows = list(reopened.rows())
            reopened.close()
            assert replayed(world) == (world.outputs(), rows), seed
        finally:
            shutil.rmtree(folder)
    assert struck > len(seeds)


def test_a_partition_restores_itself_from_the_log_alone_and_from_store_and_log(tmp_path) -> None:
    world = EmbeddedWorld(APPS["one input"](), tmp_path)
    for number in range(300):
        world.sell((f"s{number % 7}", number * 10, number % 5))
    first = world.running()
    for _ in range(5):
        first.poll(30)
        first.commit()
    world.log.close()  # the process dies here; what was not committed with it
    first._store.close()
    world.log = StruckLog(tmp_path / "log", world.operation)
    second = world.running()
    run_dry(second)
    second.revoke()
    on_store = world.outputs()
    world.new_store()
    third = world.running()
    world.sell(("s1", 9_000, 1))
    run_dry(third)
    third.commit()
    rows = world.rows()
    third.close()
    assert world.outputs()[: len(on_store)] == on_store
    assert len(world.outputs()) > len(on_store)
    assert replayed(world) == (world.outputs(), rows)


def test_what_is_written_goes_through_the_hook(tmp_path) -> None:
    seen: list[str] = []
    log = StruckLog(tmp_path, seen.append)
    log.create_topic("t", EmbeddedWorld(APPS["one input"](), tmp_path / "w").log.topics()["said"])
    writer = log.writer("w")
    writer.append([Output("t", b"k", b"v", 0)])
    writer.commit()
    assert seen == ["take-over", "append", "commit", "committed"]
