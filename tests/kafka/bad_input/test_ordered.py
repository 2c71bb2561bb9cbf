"""Events that wait in an ordered actor: deleted from the log meanwhile, or redriven."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import closing
from pathlib import Path

import msgspec
import pytest
from confluent_kafka import TopicPartition as At
from confluent_kafka.admin import AdminClient

from tailrace.core.errors import OffsetGoneError
from tailrace.core.records import Output
from tailrace.history.dead_letters.letters import redrive
from tailrace.history.snapshots.taking import take_snapshot
from tailrace.log.kafka import KafkaLog
from tailrace.runtime.preparing import prepare_log
from tailrace.runtime.slices import PartitionSettings
from tailrace.runtime.worker import Worker, WorkerSettings
from tailrace.state import MemoryStore
from tailrace.state.snapshots import Snapshots
from tests.cli.commands import done, run
from tests.core.ordered import Event, oracle
from tests.kafka import gate
from tests.soak.processes import wait_until

APP = "tests.kafka.gate:waits"
PLAN = gate.waits.plan()
STARTED = 1_700_000_000_000


class Waits:
    """An app with one partition, in this process. ``left`` is ahead of the others, so its events wait."""

    def __init__(self, url: str) -> None:
        self.log = KafkaLog(url)
        prepare_log(self.log, PLAN, create_declared=True)
        self.store = MemoryStore()
        self.fed: dict[str, list[Event]] = {name: [] for name in gate.DISORDER_MS}
        bootstrap, _, self.prefix = url.removeprefix("kafka://").partition("/")
        self.bootstrap = bootstrap
        self.now_ms = STARTED
        self.worker: Worker | None = None

    def feed(self, **ats: list[int]) -> None:
        for name, found in ats.items():
            events = [Event("a", at, len(self.fed[name]) + n) for n, at in enumerate(found)]
            self.fed[name] += events
            self.log.append_all(Output(name, b"a", msgspec.json.encode(one), one.at) for one in events)

    def work(self, *, after_deleted: bool = False) -> None:
        """Until all is taken and committed."""
        worker = self.worker or Worker(
            PLAN,
            self.log,
            range(1),
            lambda _: self.store,
            settings=WorkerSettings(
                partition=PartitionSettings(commit_interval_ms=0, after_deleted=after_deleted)
            ),
            clock=lambda: self.now_ms,
            reader=self.log.reader({}, live=True),
        )
        if self.worker is None:
            self.worker = worker
            worker.start()

        idle_ms = self.now_ms + 2_000  # by then, the input that never comes is

        def is_done() -> bool:
            self.now_ms += 100
            worker.turn()
            running = worker.slots[0].running
            if running is None or running.dirty or self.now_ms < idle_ms:
                return False
            return self._read(running.task.positions)

        wait_until(is_done, "all is taken and committed")

    def _read(self, positions: Mapping[str, int]) -> bool:
        return all(positions[name] >= self.log.end_offset(name, 0) - 1 for name in self.fed)

    @property
    def late(self) -> int:
        assert self.worker is not None
        (slot,) = self.worker.slots
        assert slot.running is not None
        return slot.running.task.totals.late

    def said(self) -> list[tuple[str, str]]:
        return gate.said(self.bootstrap, f"{self.prefix}waits-said")[0]

    def delete_before(self, topic: str, offset: int) -> None:
        admin = AdminClient({"bootstrap.servers": self.bootstrap})
        for answer in admin.delete_records([At(self.prefix + topic, 0, offset)]).values():
            answer.result()

    def close(self) -> None:
        worker, self.worker = self.worker, None
        if worker is not None:
            worker.leave()


@pytest.fixture
def waits(kafka_url: str) -> Iterator[Waits]:
    with closing(made := Waits(kafka_url)):
        yield made
    made.log.close()


def test_events_that_were_deleted_while_they_waited_are_missed_by_the_next_start(
    waits: Waits, tmp_path: Path
) -> None:
    waits.feed(left=[1_000, 5_000, 9_000], middle=[1_000], right=[1_000])
    waits.work()
    waits.delete_before("left", 2)
    waits.feed(left=[9_500], middle=[6_500], right=[8_000])
    waits.work()  # the service has them in memory
    said = waits.said()
    assert ("a", "left 1 after 4999, 4") in said
    assert said == oracle(waits.fed, disorder_ms=gate.DISORDER_MS)[: len(said)]
    before = take_snapshot(PLAN, waits.log, Snapshots(str(tmp_path / "before"), "waits")).id
    waits.delete_before("left", 3)
    waits.close()
    for after_deleted in (False, True):
        with pytest.raises(OffsetGoneError, match="begins with") as raised:
            waits.work(after_deleted=after_deleted)
        assert (raised.value.topic, raised.value.offset) == ("left", 2)
        waits.close()
    where = ("--log", str(waits.log))
    copy = ("run", APP, *where, "--as", "copy", "--state", tmp_path / "copy", "--end-of-input")
    assert (
        "this log does not have them" in run(*copy, "--from-snapshot", f"{tmp_path / 'before'}#{before}").err
    )
    to = ("--to", tmp_path / "again", "--name", "without")
    done("rebuild", APP, *where, *to, "--order", "canonical", "--after-deleted")
    done(*copy, "--from-snapshot", f"{tmp_path / 'again'}#without")
    after = waits.said()[len(said) :]
    found = [text.partition(" after ")[0] for _, text in after if " after " in text]
    assert found == ["middle 1", "right 1", "left 3"]


def test_a_redriven_event_waits_for_its_turn_and_is_not_late(waits: Waits) -> None:
    gate.BROKEN.add(2)
    waits.feed(left=[1_000, 5_000, 4_990, 9_000], middle=[6_500], right=[8_000])
    waits.work()
    gate.BROKEN.clear()
    assert redrive(waits.log, "waits", lambda _: True, now_ms=0).sent
    waits.work()
    waits.close()
    waits.feed(left=[9_300], middle=[9_600], right=[11_100])
    waits.work()
    left = waits.fed["left"]
    events = {**waits.fed, "left": [*left[:2], left[3], left[2], left[4]]}
    said = waits.said()
    assert said == oracle(events, disorder_ms=gate.DISORDER_MS)[: len(said)]
    assert ("a", "left 2 after 8949 late, 5") in said
    assert waits.late == 0
