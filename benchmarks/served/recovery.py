"""The outage of a service after its process is killed."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from statistics import median
from time import perf_counter
from typing import NamedTuple

from benchmarks import apps
from benchmarks.measure import Row, Scale, load
from benchmarks.served.house import House, as_records
from benchmarks.served.service import Service, wait_until
from tailrace.core.records import Output

MOST_S = 2.0
_AT_ONCE = 200
"""Number of events fed at each check, about 100 times a second."""
APP = "benchmarks.apps:counting"


class _Gone(NamedTuple):
    """Seconds since the kill."""

    running_s: float
    committed_s: float


def recovery(scale: Scale) -> list[Row]:
    """kill -9 with a million keys, while events keep coming: the time until the first new event is committed."""
    gone: list[_Gone] = []
    keys = scale.restored_keys
    with House(apps.counting) as house:
        service = house.start(APP, scale.commit_ms)
        try:
            house.feed(as_records(apps.Event(f"key-{number}", number // 10, 1) for number in range(keys)))
            house.wait_for(keys, service, "totals")
            events = as_records(apps.events(1 << 60, apps.keys(keys)))
            for _ in range(scale.repeats):
                service, found = _killed(house, service, events, scale.commit_ms)
                gone.append(found)
        finally:
            service.stop()
    committed_s = median(one.committed_s for one in gone)
    return [
        Row(
            case=f"kill -9 with {keys:,} keys: first new event committed",
            measured=committed_s,
            unit="s",
            target=f"{MOST_S:g} s or less",
            met=committed_s <= MOST_S,
            note=f"at work after {median(one.running_s for one in gone):.2f} s; "
            f"at worst {max(one.committed_s for one in gone):.2f} s; a commit every {scale.commit_ms:,} ms; {load()}",
        )
    ]


def _killed(
    house: House, service: Service, events: Iterator[Output], commit_ms: int
) -> tuple[Service, _Gone]:
    """Kill a service while it works, and start the next one at once."""

    def more_than(count: int) -> bool:
        house.feed(islice(events, _AT_ONCE))
        return house.records("totals") > count

    before = house.records("totals")
    wait_until(lambda: more_than(before + _AT_ONCE), "it is at work", service)
    for _ in range(3):
        more_than(0)
    service.kill()
    killed = perf_counter()
    committed = house.records("totals")
    following = house.start(APP, commit_ms)
    try:
        running_s = 0.0

        def is_back() -> bool:
            nonlocal running_s
            if not running_s and following.running():
                running_s = perf_counter() - killed
            return more_than(committed)

        wait_until(is_back, "the first new event is committed", following)
        return following, _Gone(running_s, perf_counter() - killed)
    except BaseException:
        following.stop()
        raise
