"""The state of services on Kafka: restored from nothing, and bounded in memory."""

from __future__ import annotations

from itertools import islice
from statistics import median
from time import perf_counter
from typing import NamedTuple

from benchmarks.apps import Event
from benchmarks.kafka.apps import counting, wide
from benchmarks.kafka.house import KafkaHouse
from benchmarks.kafka.throughput import APP
from benchmarks.measure import Row, Scale, load
from benchmarks.served.house import as_records, endless
from tailrace.runtime.states import DEFAULT_MIB

MOST_S = 10.0
MIB = 1 << 20
_SETTINGS_MIB = DEFAULT_MIB + 80 + 24 + 100
"""What is allowed beside Python and its libraries: state, records that are read and not handled, and partitions of keys."""
_ROUNDS = 8


class _Restored(NamedTuple):
    took_s: float
    processor_s: float


def restore(scale: Scale) -> list[Row]:
    """A worker without a state folder restores all tasks from the changelog."""
    keys, tasks = scale.restored_keys, counting.plan().partitions
    found: list[_Restored] = []
    with KafkaHouse(counting) as house:
        with house.start(APP, scale.commit_ms) as service:
            service.wait_for_partitions(tasks)
            events = (Event(f"key-{number}", number // 10, 1) for number in range(keys))
            house.take([service], counting.name, as_records(events))
        for number in range(scale.repeats):
            with house.start(APP, scale.commit_ms, state=f"empty-{number}") as service:
                service.wait_for_tasks(tasks)
                start, before_s = perf_counter(), service.processor_s()
                service.wait_for_partitions(tasks)
                found.append(_Restored(perf_counter() - start, service.processor_s() - before_s))
    took_s = median(one.took_s for one in found)
    return [
        Row(
            case=f"Kafka: {keys:,} entries restored from nothing",
            measured=took_s,
            unit="s",
            target=f"{MOST_S:g} s or less",
            met=took_s <= MOST_S,
            note=f"{median(one.processor_s for one in found):.1f} s of processor time; {tasks} tasks in one process; {load()}",
        )
    ]


def memory(scale: Scale) -> list[Row]:
    """Many tasks and many keys in one process: resident memory while it handles lump after lump."""
    seen: list[float] = []
    by_round: list[float] = []
    with KafkaHouse(wide) as house, house.start("benchmarks.kafka.apps:wide", scale.commit_ms) as service:
        service.wait_for_partitions(wide.plan().partitions)
        empty = service.resident_bytes() / MIB
        events = endless(scale.restored_keys)

        def look() -> None:
            seen.append(service.resident_bytes() / MIB)

        for _ in range(_ROUNDS):
            lump = islice(events, scale.restored_keys // 2)  # the first two rounds bring the keys
            house.take([service], wide.name, lump, look=look)
            by_round.append(seen[-1])
    return [
        Row(
            case=f"Kafka: {wide.plan().partitions} partitions and {scale.restored_keys:,} keys on one worker: peak memory",
            measured=max(seen),
            unit="MiB",
            target=f"{_SETTINGS_MIB} MiB above the start",
            met=max(seen) - empty <= _SETTINGS_MIB,
            note=f"{empty:.0f} MiB at the start; then after each of {_ROUNDS} lumps "
            + ", ".join(f"{one:.0f}" for one in by_round),
        )
    ]
