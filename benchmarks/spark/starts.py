"""The start of a service from a snapshot, compared with a replay; and the cost of a snapshot of a running service."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from itertools import count, islice
from statistics import median
from time import perf_counter, sleep
from typing import NamedTuple

from benchmarks import apps
from benchmarks.measure import Row, Scale, load
from benchmarks.served.house import House, as_records, endless
from benchmarks.served.service import PATIENCE_S, BenchmarkError, Service, wait_until
from benchmarks.spark.processes import Command, Spent
from tailrace.core.records import Output

APP = "benchmarks.apps:counting"
MOST_S = 5.0
TIMES = 3
MOST_PAUSE_MS = 200
COMMIT_MS = 100
"""Commit interval of the service during a snapshot: short, as a pause would not be visible with an interval of a second."""
PER_S = 2_000
_AT_ONCE = 20
_LOOK_S = 0.003


class _Beside(NamedTuple):
    """A snapshot of a running service: its time, and the longest pause of the service with and without it."""

    spent: Spent
    with_ms: float
    without_ms: float


def snapshots(scale: Scale) -> list[Row]:
    """A million keys, several events each: a snapshot of the running service, a replay, and starts from the snapshot."""
    keys = scale.restored_keys
    with House(apps.counting) as house:
        events = endless(keys)
        with house.start(APP, COMMIT_MS) as service:
            house.feed(islice(events, scale.snapshot_events))
            house.wait_for(scale.snapshot_events, service, "totals")
            before = _create(house).wait()
            changes = house.log.end_offset(apps.counting.plan().changelog_topic, 0)
            # A service cleans its log from time to time; here it is cleaned now.
            house.log.clean()
            beside = [_beside(house, service, events, scale) for _ in range(scale.repeats)]
        replayed = Command(house.folder / "said-replay", "replay", APP, "--log", house.folder / "log").wait()
        fed = house.records("events")
        _create(house).wait()
        in_place = [_started(house, scale, number, other=False) for number in range(scale.repeats)]
        seeded = [_started(house, scale, number, other=True) for number in range(scale.repeats)]
    about = f"{fed:,} events of {keys:,} keys"
    return [
        *_of_taking(beside, before, changes, keys),
        *_of_starting("in place", in_place, replayed, about, keys, scale),
        *_of_starting("under another name", seeded, replayed, about, keys, scale),
    ]


# --- taking one


def _create(house: House) -> Command:
    return Command(
        house.folder / "said-snapshot",
        *(
            "snapshot",
            "create",
            APP,
            "--log",
            house.folder / "log",
            "--snapshots",
            house.folder / "snapshots",
        ),
    )


def _beside(house: House, service: Service, events: Iterator[Output], scale: Scale) -> _Beside:
    """Observe a service that is fed at a steady rate, first alone, then while a snapshot is taken."""
    start = perf_counter()
    without_ms = _longest_pause(house, service, events, lambda: perf_counter() - start > scale.pause_s)
    command = _create(house)
    spent: list[Spent] = []

    def taken() -> bool:
        found = command.ended()
        if found is not None:
            spent.append(found)
        return found is not None

    try:
        with_ms = _longest_pause(house, service, events, taken)
    finally:
        command.kill()
    return _Beside(spent[0], with_ms, without_ms)


def _longest_pause(
    house: House, service: Service, events: Iterator[Output], enough: Callable[[], bool]
) -> float:
    """The longest time in milliseconds between two visible outputs, while events keep coming."""
    start = perf_counter()
    fed, before, longest_s = 0, house.records("totals"), 0.0
    seen_s: float | None = None
    while True:
        now_s = perf_counter()
        due = int((now_s - start) * PER_S)
        if due > fed:
            fed += house.feed(islice(events, min(due - fed, PER_S)))
        found, now_s = house.records("totals"), perf_counter()
        if found != before:
            if seen_s is not None:
                longest_s = max(longest_s, now_s - seen_s)
            before, seen_s = found, now_s
            if longest_s and enough():
                return 1_000 * longest_s
        service.require_life()
        if now_s - (start if seen_s is None else seen_s) > PATIENCE_S:
            raise BenchmarkError("waited in vain for outputs")
        sleep(_LOOK_S)


def _of_taking(beside: list[_Beside], before: Spent, changes: int, keys: int) -> list[Row]:
    took_s = median(one.spent.wall_s for one in beside)
    longer_ms = median(max(0.0, one.with_ms - one.without_ms) for one in beside)
    with_ms, without_ms = median(one.with_ms for one in beside), median(one.without_ms for one in beside)
    return [
        Row(
            case=f"snapshot of {keys:,} keys, beside a running service",
            measured=took_s,
            unit="s",
            target=f"{MOST_S:g} s or less",
            met=took_s <= MOST_S,
            note=f"{median(one.spent.processor_s for one in beside):.2f} s of processor time, Python's start included; "
            f"{load()}",
        ),
        Row(
            case="the same, the changelog not compacted yet",
            measured=before.wall_s,
            unit="s",
            note=f"{changes:,} changes in it; {before.processor_s:.2f} s of processor time",
        ),
        Row(
            case="longest pause of the service meanwhile",
            measured=with_ms,
            unit="ms",
            target=f"at most {MOST_PAUSE_MS} ms more",
            met=longer_ms <= MOST_PAUSE_MS,
            ratio=with_ms / without_ms,
            compared_with="with no snapshot",
            compared=without_ms,
            note=f"{longer_ms:.0f} ms more; between two commits, one every {COMMIT_MS} ms, {PER_S:,} events/s",
        ),
    ]


# --- starting from one


class _Started(NamedTuple):
    running_s: float
    committed_s: float
    processor_s: float


def _started(house: House, scale: Scale, number: int, *, other: bool) -> _Started:
    """Start the service with an empty state folder, while events keep coming, and wait for its first commit of an event."""
    state = house.folder / f"state-{'other' if other else 'own'}-{number}"
    said = ("--from-snapshot", house.folder / "snapshots")
    named = ("--as", f"other-{number}", "--create-topics") if other else ()
    events = as_records(apps.Event(f"key-{at % scale.restored_keys}", 1 << 40, 1) for at in count())
    committed = house.records("totals")
    start = perf_counter()
    running_s = 0.0
    with house.start(APP, scale.commit_ms, *said, *named, "--state", state) as service:

        def at_work() -> bool:
            nonlocal running_s
            house.feed(islice(events, _AT_ONCE))
            if not running_s and service.running():
                running_s = perf_counter() - start
            return house.records("totals") > committed

        wait_until(at_work, "the first new event is committed", service)
        found = _Started(running_s, perf_counter() - start, service.processor_s())
    shutil.rmtree(state)
    return found


def _of_starting(
    how: str, started: list[_Started], replayed: Spent, about: str, keys: int, scale: Scale
) -> list[Row]:
    committed_s = median(one.committed_s for one in started)
    processor_s = median(one.processor_s for one in started)
    return [
        Row(
            case=f"from a snapshot of {keys:,} keys, {how}: first new event committed",
            measured=committed_s,
            unit="s",
            target=f"{MOST_S:g} s or less",
            met=committed_s <= MOST_S,
            note=f"at work after {median(one.running_s for one in started):.2f} s; a commit every {scale.commit_ms:,} ms; "
            f"{load()}",
        ),
        Row(
            case=f"the same, {how}, beside replaying the log",
            measured=committed_s,
            unit="s",
            target=f"{TIMES} times faster",
            met=replayed.wall_s >= TIMES * committed_s,
            ratio=committed_s / replayed.wall_s,
            compared_with="tailrace replay",
            compared=replayed.wall_s,
            note=f"{about}; processor time {processor_s:.2f} s beside {replayed.processor_s:.2f} s",
        ),
    ]
