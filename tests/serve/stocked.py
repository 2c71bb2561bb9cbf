"""A log on which the app of ``depot`` has run, and the same events in a harness: the oracle of the answers."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date, timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

from tailrace.core.records import Output
from tailrace.log.opening import open_log
from tailrace.testing import Harness
from tests.cli.commands import done
from tests.serve.depot import (
    AT,
    DAY,
    Arrival,
    Moved,
    app,
    arrivals,
    by_day,
    by_id,
    by_lane,
    by_number,
    by_raw,
)

DEPOT = "tests.serve.depot:app"
ID = UUID("5f4dcc3b-5aa7-65d6-1d83-27deb882cf99")
RAW = b"\x00\xff/%.."
ODD = "a/b %2F?ü.."
"""A key with all that a URL could trip over."""


def stock() -> list[tuple[Any, Any]]:
    """Topic and event of all that has happened."""
    found: list[tuple[Any, Any]] = []
    for minute, (depot, what) in enumerate(
        [("north", "iron"), ("north", "tin"), ("south", "iron"), ("", "ash"), (ODD, "tin")]
    ):
        found.append((arrivals, Arrival(depot, DAY + timedelta(minutes=minute), what, 2.5 * (minute + 1))))
    moved = Moved(-17, RAW, "JFK", date(2024, 5, 1), ID)
    return [*found, *((topic, moved) for topic in (by_number, by_raw, by_lane, by_day, by_id))]


def append(place: Path | str, events: Sequence[tuple[Any, Any]]) -> None:
    log = open_log(place)
    try:
        log.append_all(
            [
                Output(topic.name, topic.key_codec.encode(topic.key_of(event)), topic.encode(event), AT)
                for topic, event in events
            ]
        )
    finally:
        log.close()


def run_on(log: Path | str, state: Path) -> None:
    """Let the app handle all that is there, in one commit of each task however slow the machine is."""
    done("run", DEPOT, "--log", log, "--state", state, "--until-end", "--commit-interval", "30s")


def stock_up(log: Path | str, state: Path) -> None:
    """Let all happen on a log."""
    done("topics", "apply", "--app", DEPOT, "--log", log)
    append(log, stock())
    run_on(log, state)


def stocked(folder: Path) -> Path:
    """A log in a folder on which all has happened."""
    stock_up(folder / "log", folder / "state")
    return folder / "log"


def oracle() -> Harness:
    harness = Harness(app)
    for topic, event in stock():
        harness.send(topic, event)
    return harness
