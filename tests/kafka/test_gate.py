"""Ordered actors on Kafka: however transactions over their inputs become visible, results are those of plain Python over the log."""

from __future__ import annotations

from contextlib import closing
from datetime import date
from pathlib import Path
from random import Random

import pytest
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._config import AlterConfigOpType, ConfigEntry, ConfigResource
from confluent_kafka.admin._resource import ResourceType

from schemas.flights import Arrival, Departure
from services.flights import aircraft
from services.flights.history import facts
from services.flights.load import timed_records
from tailrace.core.engine.timers import FOREVER
from tailrace.core.records import Output
from tailrace.history.reading.stretches import scan
from tailrace.history.snapshots.taking import take_snapshot
from tailrace.log import Log, TopicPartition
from tailrace.log.kafka import KafkaLog
from tailrace.processes.app_loading import find_app
from tailrace.runtime.host import Host
from tailrace.runtime.options import ServiceOptions
from tailrace.runtime.preparing import prepare_log
from tailrace.runtime.slices import PartitionSettings
from tailrace.runtime.worker import Worker, WorkerSettings
from tailrace.state import MemoryStore
from tailrace.state.snapshots import Snapshots
from tailrace.testing import Harness
from tests.core.ordered import placed
from tests.kafka import gate
from tests.kafka.members import Members, await_tasks, stopped
from tests.soak.processes import wait_until

APP, HASTY = "tests.kafka.gate:app", "tests.kafka.gate:hasty"
AIRCRAFT = aircraft.app.plan()
FLOWN = ("movements", "legs-finished", "aircraft-overdue")
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


def shorten_session(bootstrap: str, group: str) -> None:
    """So that the brokers soon find that a member is dead."""
    entry = ConfigEntry("consumer.session.timeout.ms", "3000", incremental_operation=AlterConfigOpType.SET)
    admin = AdminClient({"bootstrap.servers": bootstrap})
    resource = ConfigResource(ResourceType.GROUP, group, incremental_configs=[entry])
    for done in admin.incremental_alter_configs([resource]).values():
        done.result()


@pytest.mark.long
def test_neither_visibility_nor_kills_change_what_an_ordered_actor_does(
    kafka_url: str, tmp_path: Path
) -> None:
    bootstrap, _, prefix = kafka_url.removeprefix("kafka://").partition("/")
    snapshots = Snapshots(str(tmp_path / "snapshots"), "gate")
    shorten_session(bootstrap, f"{prefix}gate")

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


def emitted(log: Log, topic: str) -> dict[bytes | None, list[tuple[int, bytes | None]]]:
    """By key, in their order. All tasks emit movements of an airport: these are sorted."""
    found: dict[bytes | None, list[tuple[int, bytes | None]]] = {}
    for number in range(log.partitions(topic)):
        for one in scan(log, topic, number):
            found.setdefault(one.key, []).append((one.timestamp_ms, one.value))
    return {key: sorted(some) for key, some in found.items()} if topic == "movements" else found


class Flights:
    """The aircraft, in this process, with a worker that is killed now and then: with its state, or without."""

    def __init__(self, log: KafkaLog, random: Random) -> None:
        self.log, self.random, self.now_ms = log, random, 0
        self.stores: dict[int, MemoryStore] = {}
        self.kills = self.started_ms = 0
        prepare_log(log, AIRCRAFT, create_declared=True)

    def start(self) -> None:
        self.worker = Worker(
            AIRCRAFT,
            self.log,
            range(AIRCRAFT.partitions),
            lambda number: self.stores.setdefault(number, MemoryStore()),
            settings=WorkerSettings(partition=PartitionSettings(commit_interval_ms=0)),
            clock=lambda: self.now_ms,
            reader=self.log.reader({}, live=True),
        )
        self.worker.start()
        self.started_ms = self.now_ms

    def work(self, _committed: int) -> None:
        if self.random.random() < 0.03:
            self.kills += 1
            for slot in self.worker.slots:
                if slot.partition is not None:
                    slot.partition.close()
            self.worker._reader.close()
            if self.random.random() < 0.5:
                self.stores.clear()
            self.start()
        for _ in range(self.random.randrange(4)):
            self.turn()

    def turn(self) -> None:
        self.now_ms += 20
        self.worker.turn()

    def is_done(self) -> bool:
        """Whether all is read and committed, and the registry has been idle."""
        self.turn()
        running = [slot.running for slot in self.worker.slots]
        return self.now_ms > self.started_ms + 2_000 and all(
            one is not None
            and not one.dirty
            and self.worker._reader.past_gaps.get(TopicPartition(name, one.partition), at)
            >= self.log.end_offset(name, one.partition)
            for one in running
            for name, at in (one.task.positions.items() if one is not None else {"": 0}.items())
        )


@pytest.mark.long
def test_the_flights_are_exact_however_their_transactions_become_visible(
    kafka_url: str, tmp_path: Path
) -> None:
    history = facts(date(2013, 7, 23), date(2013, 7, 24))
    inputs = {one.name for one in AIRCRAFT.inputs}
    records = [
        Output(topic.name, topic.encode_key(event), topic.encode(event), known_ms)
        for topic, event, known_ms in timed_records(history)
        if topic.name in inputs
    ]
    # By the tables alone.
    due_ms = {
        (one.tail, one.leg): one.expected_ms + aircraft.GRACE_MS
        for _, one in history
        if isinstance(one, Departure)
    }
    arrived_ms = {(one.tail, one.leg): one.arrived_ms for _, one in history if isinstance(one, Arrival)}
    overdue = sum(arrived_ms.get(leg, FOREVER) > at for leg, at in due_ms.items())
    assert overdue > 20
    with Harness(aircraft.app) as h:
        h.log.append_all(records)
        h.end_of_input()
        wanted = {topic: emitted(h.log, topic) for topic in FLOWN}
    counts = {topic: sum(map(len, found.values())) for topic, found in wanted.items()}
    assert counts == {"movements": len(due_ms), "legs-finished": len(arrived_ms), "aircraft-overdue": overdue}

    bootstrap, _, prefix = kafka_url.removeprefix("kafka://").partition("/")
    with closing(KafkaLog(kafka_url)) as log:
        flights = Flights(log, Random(0))
        transactions = gate.Transactions(bootstrap, prefix, flights.random)
        # The registry holds nobody back after a second: it is there when the service starts.
        registry = sum(one.topic == "airframes" for one in records)
        transactions.write(iter(records[:registry]), 500, lambda _: None)
        flights.start()
        transactions.write(iter(records[registry:]), 30, flights.work)
        wait_until(flights.is_done, "all is read and committed", 60)
        flights.worker.leave()
        assert flights.kills > 2
        assert sum(map(len, emitted(log, "movements").values())) > 0.5 * len(due_ms)
        options = ServiceOptions("services.flights.aircraft:app", kafka_url, tmp_path, end_of_input=True)
        assert not Host(options, AIRCRAFT).run()
        for topic, found in wanted.items():
            assert emitted(log, topic) == found, topic
