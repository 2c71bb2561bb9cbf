"""How long the tasks of a killed worker stand still, with standbys in the other worker and without.

Two workers share four tasks, and get events all the time. One is killed with SIGKILL. The gap of a task is the longest time in which
its committed position did not move, seen from outside: it has the session timeout of the group in it, the move of the tasks, their
restores, and the first commit. The session timeout is the least that brokers allow by default (6 s).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from itertools import islice
from statistics import median

from benchmarks.apps import Event
from benchmarks.kafka.apps import EVENTS, counting
from benchmarks.kafka.house import KafkaHouse
from benchmarks.kafka.throughput import APP
from benchmarks.measure import Row, Scale, load
from benchmarks.served.house import as_records, endless
from benchmarks.served.service import Service, wait_until
from tailrace.core.records import Output
from tailrace.log import TopicPartition

MOST_S = 3.0
COMMIT_MS = 200
_AT_ONCE = 100
"""Number of events fed 20 times a second: 2,000 events/s."""
_FEED_S = _LOOK_S = 0.05
_PLACES = [TopicPartition(EVENTS, number) for number in range(counting.plan().partitions)]


def gap(scale: Scale) -> list[Row]:
    """kill -9 of one of two workers under load."""
    rows: list[Row] = []
    most_s, without_s = scale.session_s + MOST_S, None
    for standbys in (0, 1):
        found = [_killed(scale, standbys) for _ in range(scale.repeats)]
        gap_s = median(found)
        rows.append(
            Row(
                case=f"Kafka: tasks of a killed worker, {'with' if standbys else 'without'} standbys: stand still for",
                measured=gap_s,
                unit="s",
                target=f"under {most_s:g} s" if standbys else "",
                met=gap_s < most_s if standbys else None,
                ratio=gap_s / without_s if without_s else None,
                compared_with="without standbys" if without_s else "",
                compared=without_s,
                note=f"{scale.session_s:g} s of it are the session timeout; at worst {max(found):.1f} s; "
                f"{scale.restored_keys:,} keys, {_AT_ONCE / _FEED_S:,.0f} events/s, a commit every {COMMIT_MS} ms; {load()}",
            )
        )
        without_s = gap_s
    return rows


def _killed(scale: Scale, standbys: int) -> float:
    """Seconds of the longest gap of a task."""
    settings = {"TAILRACE_KAFKA_CONSUMER_SESSION_TIMEOUT_MS": int(scale.session_s * 1_000)}
    tasks = len(_PLACES)
    with KafkaHouse(counting) as house:

        def started(name: str) -> Service:
            return house.start(APP, COMMIT_MS, "--standbys", standbys, state=name, **settings)

        with started("one") as one, started("two") as two:
            for service in (one, two):
                service.wait_for_tasks(tasks // 2)
            keys = (Event(f"key-{number}", number // 10, 1) for number in range(scale.restored_keys))
            house.take([one, two], counting.name, as_records(keys))
            if standbys:
                for service in (one, two):
                    service.wait_for_standbys(tasks // 2)
            with _fed(house, islice(endless(scale.keys), scale.keys, None)):
                return _longest(house, two.kill, one, scale.session_s)


@contextmanager
def _fed(house: KafkaHouse, events: Iterator[Output]) -> Generator[None]:
    """Feed events all the time."""
    ended = threading.Event()

    def feed() -> None:
        while not ended.wait(_FEED_S):
            house.feed(islice(events, _AT_ONCE))

    thread = threading.Thread(target=feed, name="feed")
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def _longest(house: KafkaHouse, kill: Callable[[], None], left: Service, session_s: float) -> float:
    """Kill while all tasks move; the longest time for which one of them then stood still."""
    seen = house.taken(counting.name, _PLACES)

    def moving() -> bool:
        now = house.taken(counting.name, _PLACES)
        return all(now[place] > seen[place] for place in _PLACES)

    wait_until(moving, "all tasks take events", left)
    kill()
    killed_s = time.perf_counter()
    last = house.taken(counting.name, _PLACES)
    moved_s = dict.fromkeys(_PLACES, killed_s)
    longest_s = dict.fromkeys(_PLACES, 0.0)

    def all_moved_after_a_session() -> bool:
        now, now_s = house.taken(counting.name, _PLACES), time.perf_counter()
        for place in _PLACES:
            longest_s[place] = max(longest_s[place], now_s - moved_s[place])
            if now[place] > last[place]:
                last[place], moved_s[place] = now[place], now_s
        time.sleep(_LOOK_S)
        return min(moved_s.values()) > killed_s + session_s / 2 and max(longest_s.values()) > session_s / 2

    wait_until(all_moved_after_a_session, "another worker has the tasks", left)
    return max(longest_s.values())
