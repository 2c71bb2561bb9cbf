"""A replay compared with the live run that it repeats."""

from __future__ import annotations

from itertools import islice
from statistics import median

from benchmarks.apps import counting
from benchmarks.measure import Row, Scale, seconds
from benchmarks.served.house import House, Taken, endless
from tailrace.core.engine.task import TaskSettings
from tailrace.history.replay.replaying import replay
from tailrace.history.replay.report import ReplayOptions
from tailrace.processes.environment import timezones_version

TIMES = 2


def replaying(scale: Scale) -> list[Row]:
    """The same app over the same history: first live in a worker, then replayed along its tape."""
    live: list[float] = []
    again: list[float] = []
    for _ in range(scale.repeats):
        with House(counting) as house:
            live.append(_live(house, scale))
            count = house.records("events")
            again.append(count / seconds(lambda: _replay(house)))
    ratio = median(a / b for a, b in zip(again, live, strict=True))
    return [
        Row(
            case="replay",
            measured=median(again),
            unit="events/s",
            target="200 % or more",
            met=ratio >= TIMES,
            ratio=ratio,
            compared_with="the live run, a worker",
            compared=median(live),
        )
    ]


def _live(house: House, scale: Scale) -> float:
    """Events per second over the whole history, with the first event of each key, but without the start of the worker."""
    events, rounds = endless(scale.keys), list[Taken]()
    with house.start("benchmarks.apps:counting", scale.commit_ms) as service:
        service.wait_for_partitions(1)
        for count in (scale.keys, scale.served_events):
            rounds.append(house.take(service, islice(events, count), "totals"))
    return sum(one.events for one in rounds) / sum(one.events / one.rate for one in rounds)


def _replay(house: House) -> None:
    report = replay(
        counting.plan(), house.log, ReplayOptions(settings=TaskSettings(timezones=timezones_version()))
    )
    assert report.records == house.records("events")
