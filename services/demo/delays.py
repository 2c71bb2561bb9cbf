"""Compares a window with SQL: the mean delays per airport and hour by the service ``delays``, and by a query over the same log."""

from __future__ import annotations

import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import msgspec

from services.demo.accounts import read
from services.demo.console import Console
from services.demo.process import Folders, Service, ServiceFailed
from services.flights import delays
from services.flights.delays_sql import Row
from tailrace.log.embedded import EmbeddedLog
from tailrace.log.kafka import KafkaLog

_LOOK_S = 0.05


class Compared(NamedTuple):
    """How many hours of airports were compared, how many results corrected one, and the differences."""

    hours: int
    corrections: int
    differences: list[str]
    seconds: float


def compare(folders: Folders, log: EmbeddedLog | KafkaLog, console: Console, interval: str) -> Compared:
    """Run the service to the end of the log, and compare its last result of each hour with the query.

    Raises:
        ServiceFailed: The service or the query has failed.
    """
    begun_s = time.monotonic()
    service = Service(delays.app, "services.flights.delays:app", folders, log, interval)
    service.start(end_of_input=True, create_topics=True)
    with ThreadPoolExecutor(1) as threads:
        rows = threads.submit(_by_sql, str(folders.log), service)
        try:
            while not service.has_left():
                seconds = time.monotonic() - begun_s
                console.progress(
                    f"{seconds:4.0f} s   {service.name} runs to the end of the log; Spark asks it"
                )
                time.sleep(_LOOK_S)
        finally:
            service.end()
    found: dict[tuple[str, int], Row] = {}
    corrections = 0
    for one in read(log, delays.hourly_delays):
        found[one.airport, one.start] = Row(one.airport, one.start, one.mean_delay, one.departures)
        corrections += one.kind == "correction"
    wanted = {(row.airport, row.start): row for row in rows.result()}
    differing = [place for place in sorted({*found, *wanted}) if found.get(place) != wanted.get(place)]
    differences = [f"{place}: {found.get(place)}, by SQL {wanted.get(place)}" for place in differing]
    return Compared(len(wanted), corrections, differences, time.monotonic() - begun_s)


def _by_sql(log: str, service: Service) -> list[Row]:
    """The rows of the query, which runs in a process of its own."""
    with service.words.open("ab") as words:
        done = subprocess.run(
            [sys.executable, "-m", "services.flights.delays_sql", log],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=words,
            check=False,
        )
    if done.returncode:
        raise ServiceFailed(f"the query has exited with code {done.returncode}: see {service.words}")
    return [msgspec.json.decode(line, type=Row) for line in done.stdout.splitlines()]
