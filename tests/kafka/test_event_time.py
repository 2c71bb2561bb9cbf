"""Event time and operators on Kafka, against plain Python: a chain of three services gives what the times say, and operators of all kinds
what a loop over the events gives, whatever comes and goes.

The chain: readings get another key, are counted by minutes, and the minutes are summed up by ten minutes.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import TypeVar

import msgspec
import pytest

import tailrace as tr
from tailrace.core.engine import tape
from tailrace.core.records import Output
from tailrace.history.reading.app_history import AppHistory
from tailrace.history.status.inspection import AppReport
from tailrace.history.status.stored import Stored
from tailrace.log.kafka import KafkaLog
from tailrace.runtime.preparing import prepare_log
from tailrace.runtime.slices import PartitionSettings
from tailrace.runtime.worker import Worker, WorkerSettings
from tailrace.state import MemoryStore
from tests.cli.commands import done
from tests.kafka.processes import Members, come_and_go
from tests.library.random_programs import program
from tests.library.random_programs import records as records_of
from tests.library.test_random_programs import app_of, check_outputs, outputs
from tests.runtime.bounded_run import read_all
from tests.runtime.processes import wait_until

MINUTE_MS = 60_000
SPAN_MS = 10 * MINUTE_MS
DISORDER_MS = 30_000
KEYS = 12


class Reading(msgspec.Struct, frozen=True):
    """What comes from outside."""

    key: str
    at: int


class Minute(msgspec.Struct, frozen=True):
    """The readings of a key in a minute."""

    key: str
    end: int
    count: int


class Span(msgspec.Struct, frozen=True):
    """Ten minutes of a key."""

    key: str
    end: int
    minutes: int
    count: int


first = tr.App("chain-first", partitions=3)
_inputs = [
    first.topic(
        name, Reading, key="key", event_time="at", out_of_order=DISORDER_MS, idle_after="20s", late="drop"
    )
    for name in ("left", "right")
]
_middle = first.topic("middle", Reading, key="key", event_time="at", out_of_order=DISORDER_MS)


@first.process(*_inputs, order="arrival")
def other(event: Reading, ctx: tr.Context[str]) -> None:
    """Give it another key."""
    ctx.emit(_middle, Reading(other_key(event.key), event.at))


second = tr.App("chain-second", partitions=3)
_followed = second.topic("middle", Reading, key="key", event_time="at", watermark="upstream", late="drop")
_minutes = second.topic("minutes", Minute, key="key", event_time="end")


@second.actor
class Minutes(tr.Actor):
    """Counts by minutes."""

    counts: dict[int, int] = tr.field(default_factory=dict)

    @tr.process(_followed)
    def read(self, event: Reading, ctx: tr.Context[str]) -> None:
        """Count, and emit at the end of the minute."""
        end = _end(event.at, MINUTE_MS)
        self.counts[end] = self.counts.get(end, 0) + 1
        ctx.set_timer(end, f"end:{end}")

    @tr.on_timer("end")
    def end(self, ctx: tr.Context[str]) -> None:
        """The minute is complete."""
        ctx.emit(_minutes, Minute(ctx.key, ctx.event_time, self.counts.pop(ctx.event_time)))


third = tr.App("chain-third", partitions=3)
_taken = third.topic("minutes", Minute, key="key", event_time="end", watermark="upstream", late="drop")
_spans = third.topic("spans", Span, key="key")


@third.actor
class Spans(tr.Actor):
    """Sums up by ten minutes."""

    sums: dict[int, list[int]] = tr.field(default_factory=dict)

    @tr.process(_taken)
    def read(self, event: Minute, ctx: tr.Context[str]) -> None:
        """Add, and emit at the end of the ten minutes."""
        end = _end(event.end, SPAN_MS)
        minutes, count = self.sums.get(end, (0, 0))
        self.sums[end] = [minutes + 1, count + event.count]
        ctx.set_timer(end, f"end:{end}")

    @tr.on_timer("end")
    def end(self, ctx: tr.Context[str]) -> None:
        """The ten minutes are complete."""
        minutes, count = self.sums.pop(ctx.event_time)
        ctx.emit(_spans, Span(ctx.key, ctx.event_time, minutes, count))


def other_key(key: str) -> str:
    """A key that is often in another partition."""
    return f"o{(int(key[1:]) * 5 + 3) % KEYS}"


def _end(at: int, width_ms: int) -> int:
    return at - at % width_ms + width_ms - 1


def readings(seed: int, begin_ms: int, count: int) -> list[tuple[str, Reading]]:
    """Readings of 25 minutes, with their topics: most are of few keys, and in disorder. Few are of the right topic, in the first
    minutes only, and none of some of its partitions.
    """
    random = Random(f"{seed} {begin_ms}")
    found: list[tuple[int, str, Reading]] = []
    for number in range(count):
        at = begin_ms + number * 25 * MINUTE_MS // count
        key = f"k{min(random.randrange(KEYS), random.randrange(KEYS))}"
        is_right = key == "k1" and number < count // 5
        arrives = at + random.randrange(DISORDER_MS)
        found.append((arrives, "right" if is_right else "left", Reading(key, at)))
    return [(topic, one) for _, topic, one in sorted(found, key=lambda item: item[:2])]


def records(found: list[tuple[str, Reading]]) -> list[Output]:
    """As they are written."""
    return [Output(topic, one.key.encode(), msgspec.json.encode(one), one.at) for topic, one in found]


def expected(found: list[tuple[str, Reading]]) -> tuple[Counter[Minute], Counter[Span]]:
    """The oracle: by the times alone."""
    minutes = Counter((other_key(one.key), _end(one.at, MINUTE_MS)) for _, one in found)
    spans: dict[tuple[str, int], list[int]] = {}
    for (key, end), count in minutes.items():
        sums = spans.setdefault((key, _end(end, SPAN_MS)), [0, 0])
        sums[0] += 1
        sums[1] += count
    return (
        Counter(Minute(key, end, count) for (key, end), count in minutes.items()),
        Counter(Span(key, end, *sums) for (key, end), sums in spans.items()),
    )


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
    services = [Service(app, kafka_url, clock) for app in (first, second, third)]
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

    def split(found: list[tuple[str, Reading]]) -> list[list[tuple[str, Reading]]]:
        size = len(found) // len(moves) + 1
        return [found[at : at + size] for at in range(0, len(found), size)]

    fed: list[tuple[str, Reading]] = []
    moves: list[list[tuple[Service, tuple[list[int], list[int]]]]] = [
        [(one, ([0, 1, 2], [])), (two, ([0, 1], [2])), (three, ([0], [1, 2]))],
        [(one, ([0, 1], [2])), (two, ([0], [1, 2]))],
        [(one, ([0], [1, 2])), (three, ([], [0, 1, 2]))],
        [(two, ([0, 1, 2], []))],
    ]
    found = readings(1, 0, 1_500)
    for part, moved in zip(split(found), moves, strict=True):
        for service, shares in moved:
            service.move(shares)
        outside.append_all(records(part))
        fed += part
        for _ in range(20):
            clock[0] += 200
            for service in services:
                service.turn()
    minutes, spans = expected(fed)
    # The last readings bring all watermarks past all timers, in every partition.
    last = [("left", Reading(f"k{n}", 100 * MINUTE_MS)) for n in range(KEYS)]
    outside.append_all(records(last))
    settle("minutes", Minute, minutes)
    settle("spans", Span, spans)
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
    service = Service(first, kafka_url, clock)
    service.move(([0, 1, 2], []))

    def published() -> list[int | None]:
        clock[0] += 10
        service.turn()
        return list(outside.publications().values())

    begun = [(side, Reading(f"k{n}", clock[0])) for side in ("left", "right") for n in range(KEYS)]
    outside.append_all(records(begun))
    start_ms = clock[0] - 2 * DISORDER_MS - 1  # the disorder of the inputs, and that declared for the output
    wait_until(lambda: published() == [start_ms] * 3, "all tasks have published their watermarks")

    def idle() -> bool:
        outside.append_all(records([("left", Reading("k1", clock[0]))]))
        for _ in range(20):
            clock[0] += 100
            service.turn()
        # On a loaded machine the records come so late that their task falls idle, too, until they are there.
        running = [one for one in published() if one is not None]
        return len(running) == 1 and running[0] > start_ms

    wait_until(idle, "the tasks without records hold nobody back")
    service.close()
    outside.close()


def test_operators_of_all_kinds_are_exact_with_members_that_come_and_go(
    kafka_url: str, tmp_path: Path
) -> None:
    made, app = program(7), app_of(7)
    plan, events = made.app.plan(), made.events(1_500)

    def counted() -> list[Stored]:
        told = done("status", app, "--log", kafka_url, "--stored", "--json").out
        report = msgspec.json.decode(told, type=AppReport)
        return [one.stored for task in report.tasks for one in task.operators if one.stored is not None]

    with closing(KafkaLog(kafka_url)) as log, closing(Members(kafka_url, tmp_path)) as members:
        one, two, three = events[:700], events[700:1_100], events[1_100:]
        parts = records_of(one), records_of(two), records_of(three)
        state = come_and_go(members, log, app, plan, parts, lambda: bool(outputs(log, made).given))
        assert any(one.open for one in counted())
        done("run", app, "--log", kafka_url, "--state", state, "--end-of-input")
        check_outputs(log, made, made.expected(events))
        assert json.loads(done("replay", app, "--log", kafka_url, "--json").out)["differences"] == 0
        assert not any(number for one in counted() for what, number in one.open.items() if what == "windows")
