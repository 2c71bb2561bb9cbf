"""Ordered actors on Kafka: however transactions over their inputs become visible, results are those of plain Python over the log; and an
event that was deleted while it waited is missed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import closing
from pathlib import Path
from random import Random

import msgspec
import pytest

from tailrace.core.errors import OffsetGoneError
from tailrace.core.records import Output
from tailrace.history.snapshots.taking import take_snapshot
from tailrace.log import TopicPartition
from tailrace.log.kafka import KafkaLog
from tailrace.processes.app_loading import find_app
from tailrace.runtime.host import Host
from tailrace.runtime.options import ServiceOptions
from tailrace.runtime.preparing import prepare_log
from tailrace.runtime.slices import PartitionSettings
from tailrace.runtime.worker import Worker, WorkerSettings
from tailrace.state import MemoryStore
from tailrace.state.snapshots import Snapshots
from tests.cli.commands import done, run
from tests.core.ordered import Event, oracle, placed
from tests.kafka import gate
from tests.kafka.outside import Outside
from tests.kafka.processes import Members, await_tasks, stopped
from tests.runtime.processes import wait_until

APP, HASTY = "tests.kafka.gate:app", "tests.kafka.gate:hasty"
PLAN = gate.waits.plan()
STARTED_MS = 1_700_000_000_000
WAITS = "tests.kafka.gate:waits"
KIP_848 = {"TAILRACE_KAFKA_CONSUMER_GROUP_PROTOCOL": "consumer"}
KILLED_AT = {25: 1, 50: 2}
"""At how many transactions which process is killed."""


def lowest_unhandled(fed: gate.History) -> dict[TopicPartition, int]:
    """The offsets of the first events that wait while no input has ended, or of the ones that come next."""
    found: dict[TopicPartition, int] = {}
    for task, of_task in enumerate(fed):
        reached_ms = min(
            max(event.at for _, event in of_input) - gate.DISORDER_MS[name] - 1
            for name, of_input in of_task.items()
        )
        for name, of_input in of_task.items():
            places = placed([event for _, event in of_input], gate.DISORDER_MS[name])
            waiting = [
                offset for (offset, _), (at, _) in zip(of_input, places, strict=True) if at > reached_ms
            ]
            found[TopicPartition(name, task)] = min([*waiting, of_input[-1][0] + 1])
    return found


@pytest.mark.long
def test_neither_visibility_nor_kills_change_what_an_ordered_actor_does(
    kafka_url: str, tmp_path: Path
) -> None:
    bootstrap, _, prefix = kafka_url.removeprefix("kafka://").partition("/")
    snapshots = Snapshots(str(tmp_path / "snapshots"), "gate")
    Outside(kafka_url).shorten_session("gate")

    def said(app: str = "gate") -> list[list[tuple[str, str]]]:
        return gate.said(bootstrap, f"{prefix}{app}-said")

    def end(app: str, snapshot: str = "") -> None:
        state = tmp_path / "state of the end"
        options = ServiceOptions(app, kafka_url, state, end_of_input=True, from_snapshot=snapshot)
        assert not Host(options, find_app(app).plan()).run()

    with closing(KafkaLog(kafka_url)) as log, closing(Members(kafka_url, tmp_path, KIP_848)) as members:
        for one in (gate.app, gate.hasty):
            prepare_log(log, one.plan(), create_declared=True)
        working = [members.start(APP, name) for name in ("one", "two", "three")]
        other = members.start(HASTY, "hasty")
        for process in (*working, other):
            await_tasks(process, 1)

        def kill(committed: int) -> None:
            if len(killed) < sum(at <= committed for at in KILLED_AT):
                number = list(KILLED_AT.values())[len(killed)]
                killed.append(working[number])
                working[number].kill()
                working[number] = members.start(APP, f"another {number}")

        killed = list[object]()
        random = Random(0)
        gate.Transactions(bootstrap, prefix, random).write(gate.events(random, 3_000), 30, kill)
        assert len(killed) == len(KILLED_AT)
        fed = gate.history(bootstrap, prefix)
        lowest, wanted = lowest_unhandled(fed), gate.expected(fed)
        ends = {TopicPartition(name, task): fed[task][name][-1][0] + 1 for name, task in lowest}

        def stands() -> bool:
            for process in (*working, other):
                assert process.code() is None, process.text()[-3_000:]
            return all(
                log.committed_offsets(app, at) == at for app, at in (("gate", lowest), ("hasty", ends))
            )

        wait_until(stands, "the group stands at the first events that wait", 60)
        snapshot = snapshots.open(take_snapshot(gate.app.plan(), log, snapshots).id)
        for process in (*working, other):
            stopped(process)
        live, hasty = said(), said("hasty")
        assert live == [all_of_it[: len(some)] for all_of_it, some in zip(wanted, live, strict=True)]
        assert hasty != [all_of_it[: len(some)] for all_of_it, some in zip(wanted, hasty, strict=True)]
        assert min(map(len, live)) > 500
        end(APP)
        assert said() == wanted
        assert any(" late" in text for of_task in wanted for _, text in of_task)
        end(f"{APP}@copy", f"{tmp_path / 'snapshots'}#{snapshot.manifest.id}")
        after = [all_of_it[len(some) :] for all_of_it, some in zip(wanted, live, strict=True)]
        assert said() == [all_of_it + some for all_of_it, some in zip(wanted, after, strict=True)]


class Waits:
    """An app with one partition, in this process. ``left`` is ahead of the others, so its events wait."""

    def __init__(self, url: str) -> None:
        self.log = KafkaLog(url)
        prepare_log(self.log, PLAN, create_declared=True)
        self.store = MemoryStore()
        self.fed: dict[str, list[Event]] = {name: [] for name in gate.DISORDER_MS}
        self.outside = Outside(url)
        self.now_ms = STARTED_MS
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

    def said(self) -> list[tuple[str, str]]:
        return gate.said(self.outside.brokers, f"{self.outside.prefix}waits-said")[0]

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
    waits.outside.delete_before("left", 2)
    waits.feed(left=[9_500], middle=[6_500], right=[8_000])
    waits.work()  # the service has them in memory
    said = waits.said()
    assert ("a", "left 1 after 4999, 4") in said
    assert said == oracle(waits.fed, disorder_ms=gate.DISORDER_MS)[: len(said)]
    before = take_snapshot(PLAN, waits.log, Snapshots(str(tmp_path / "before"), "waits")).id
    waits.outside.delete_before("left", 3)
    waits.close()
    for after_deleted in (False, True):
        with pytest.raises(OffsetGoneError, match="begins with") as raised:
            waits.work(after_deleted=after_deleted)
        assert (raised.value.topic, raised.value.offset) == ("left", 2)
        waits.close()
    where = ("--log", str(waits.log))
    copy = ("run", WAITS, *where, "--as", "copy", "--state", tmp_path / "copy", "--end-of-input")
    assert (
        "this log does not have them" in run(*copy, "--from-snapshot", f"{tmp_path / 'before'}#{before}").err
    )
    to = ("--to", tmp_path / "again", "--name", "without")
    done("rebuild", WAITS, *where, *to, "--order", "canonical", "--after-deleted")
    done(*copy, "--from-snapshot", f"{tmp_path / 'again'}#without")
    after = waits.said()[len(said) :]
    found = [text.partition(" after ")[0] for _, text in after if " after " in text]
    assert found == ["middle 1", "right 1", "left 3"]
