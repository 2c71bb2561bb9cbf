"""Event time through services and topics on Kafka: a chain of three services gives what the times say, whatever comes and goes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import TypeVar

import pytest

import tailrace as tr
from tailrace.core.engine import tape
from tailrace.history.reading.app_history import AppHistory
from tailrace.log.kafka import KafkaLog
from tailrace.runtime.preparing import prepare_log
from tailrace.runtime.slices import PartitionSettings
from tailrace.runtime.worker import Worker, WorkerSettings
from tailrace.state import MemoryStore
from tests.kafka import chain
from tests.runtime.bounded_run import read_all
from tests.soak.processes import wait_until

T = TypeVar("T")
SETTINGS = WorkerSettings(partition=PartitionSettings(commit_interval_ms=0))


class Service:
    """A service in two processes: each has a worker, and a connection of its own. Their clock is the test's."""

    def __init__(self, app: tr.App, url: str, clock: list[int]) -> None:
        self.plan = app.plan()
        self.stores = [MemoryStore() for _ in range(self.plan.partitions)]
        self.logs = [KafkaLog(url) for _ in range(2)]
        prepare_log(self.logs[0], self.plan, create_declared=True)
        self.workers = [
            Worker(
                self.plan,
                log,
                (),
                self.stores.__getitem__,
                settings=replace(SETTINGS, tasks_move=True),
                clock=lambda: clock[0],
                reader=log.reader({}, live=True),
            )
            for log in self.logs
        ]

    def move(self, shares: Sequence[Sequence[int]]) -> None:
        """Give each process these tasks."""
        for worker, share in zip(self.workers, shares, strict=True):
            worker.give_back({slot.number for slot in worker.slots} - set(share))
        for worker, share in zip(self.workers, shares, strict=True):
            worker.assign(share)

    def turn(self) -> None:
        for worker in self.workers:
            worker.turn()

    def late(self) -> int:
        """The number of late events, by what was committed."""
        history = AppHistory(self.plan, self.logs[0])
        cuts = [history.committed(number).cut for number in range(self.plan.partitions)]
        return sum(tape.decode_cut(cut or b"").totals.late for cut in cuts)

    def close(self) -> None:
        for worker in self.workers:
            worker.leave()
        for log in self.logs:
            log.close()


@pytest.mark.long
def test_every_timer_of_a_chain_fires_once_all_is_there(kafka_url: str) -> None:
    clock = [1_000_000]
    outside = KafkaLog(kafka_url)
    services = [Service(app, kafka_url, clock) for app in (chain.first, chain.second, chain.third)]
    one, two, three = services

    def settle(topic: str, kind: type[T], wanted: Counter[T]) -> None:
        def come() -> bool:
            clock[0] += 500  # a partition without records becomes idle
            for service in services:
                service.turn()
            # Offsets count the markers of transactions as well.
            enough = sum(outside.end_offset(topic, n) for n in range(3)) >= wanted.total()
            return enough and Counter(read_all(outside, topic, kind)) == wanted

        wait_until(come, f"{topic} has what is expected")

    def split(found: list[tuple[str, chain.Reading]]) -> list[list[tuple[str, chain.Reading]]]:
        size = len(found) // len(moves) + 1
        return [found[at : at + size] for at in range(0, len(found), size)]

    fed: list[tuple[str, chain.Reading]] = []
    moves: list[list[tuple[Service, tuple[list[int], list[int]]]]] = [
        [(one, ([0, 1, 2], [])), (two, ([0, 1], [2])), (three, ([0], [1, 2]))],
        [(one, ([0, 1], [2])), (two, ([0], [1, 2]))],
        [(one, ([0], [1, 2])), (three, ([], [0, 1, 2]))],
        [(two, ([0, 1, 2], []))],
    ]
    found = chain.readings(1, 0, 1_500)
    for part, moved in zip(split(found), moves, strict=True):
        for service, shares in moved:
            service.move(shares)
        outside.append_all(chain.records(part))
        fed += part
        for _ in range(20):
            clock[0] += 200
            for service in services:
                service.turn()
    minutes, spans = chain.expected(fed)
    # The last readings bring all watermarks past all timers, in every partition.
    last = [("left", chain.Reading(f"k{n}", 100 * chain.MINUTE_MS)) for n in range(chain.KEYS)]
    outside.append_all(chain.records(last))
    settle("minutes", chain.Minute, minutes)
    settle("spans", chain.Span, spans)
    assert [service.late() for service in services] == [0, 0, 0]
    assert len(minutes) > 200
    assert len({outside.end_offset("left", n) for n in range(3)}) == 3  # uneven
    assert not all(outside.end_offset("right", n) for n in range(3))  # without any
    for service in services:
        service.close()
    outside.close()


def test_a_partition_without_records_falls_idle_while_its_process_commits_for_others(kafka_url: str) -> None:
    clock = [1_000_000]
    outside = KafkaLog(kafka_url)
    service = Service(chain.first, kafka_url, clock)
    service.move(([0, 1, 2], []))

    def published() -> list[int | None]:
        clock[0] += 10
        service.turn()
        return list(outside.publications().values())

    begun = [
        (side, chain.Reading(f"k{n}", clock[0])) for side in ("left", "right") for n in range(chain.KEYS)
    ]
    outside.append_all(chain.records(begun))
    start_ms = (
        clock[0] - 2 * chain.DISORDER_MS - 1
    )  # the disorder of the inputs, and that declared for the output
    wait_until(lambda: published() == [start_ms] * 3, "all tasks have published their watermarks")

    def idle() -> bool:
        outside.append_all(chain.records([("left", chain.Reading("k1", clock[0]))]))
        for _ in range(20):
            clock[0] += 100
            service.turn()
        # On a loaded machine the records come so late that their task falls idle, too, until they are there.
        running = [one for one in published() if one is not None]
        return len(running) == 1 and running[0] > start_ms

    wait_until(idle, "the tasks without records hold nobody back")
    service.close()
    outside.close()
