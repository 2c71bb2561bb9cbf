"""Compares a window with SQL: the mean delays per airport and hour by the service ``delays``, and by a query over the same log."""

from __future__ import annotations

import time
from pathlib import Path
from typing import NamedTuple

import msgspec

from services.demo.accounts import read
from services.demo.commands import failed, run_command
from services.demo.process import Folders, Service
from services.flights import delays
from tailrace.log import Log

QUERY = Path(delays.__file__).with_suffix(".sql")
_LOOK_S = 0.05


class Row(msgspec.Struct, frozen=True):
    """A row of the table."""

    airport: str
    start: int
    mean_delay: float
    departures: int


class Compared(NamedTuple):
    """How many hours of airports were compared, how many results corrected one, and the differences."""

    hours: int
    corrections: int
    differences: list[str]


def run_to_end(service: Service) -> float:
    """Run the service to the end of the log. Returns the seconds that this took.

    Raises:
        ServiceFailed: The service has failed.
    """
    begun_s = time.monotonic()
    service.start(end_of_input=True, create_topics=True)
    try:
        while not service.has_left():
            time.sleep(_LOOK_S)
    finally:
        service.end()
    return time.monotonic() - begun_s


def rows_by_sql(service: Service, folders: Folders) -> list[Row]:
    """The rows of the query.

    Raises:
        ServiceFailed: The command has failed.
    """
    query = QUERY.read_text("utf-8")
    code, said = run_command(service, "sql", [service.reference, query, "--log", folders.log, "--json"])
    if code:
        raise failed(service, "sql", code)
    return [msgspec.json.decode(line, type=Row) for line in said.splitlines()]


def compare(log: Log, rows: list[Row]) -> Compared:
    """Compare the last result of each hour with its row."""
    found: dict[tuple[str, int], Row] = {}
    corrections = 0
    for one in read(log, delays.hourly_delays):
        found[one.airport, one.start] = Row(one.airport, one.start, one.mean_delay, one.departures)
        corrections += one.kind == "correction"
    wanted = {(row.airport, row.start): row for row in rows}
    differing = [place for place in sorted({*found, *wanted}) if found.get(place) != wanted.get(place)]
    differences = [f"{place}: {found.get(place)}, by SQL {wanted.get(place)}" for place in differing]
    return Compared(len(wanted), corrections, differences)
