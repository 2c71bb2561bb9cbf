"""Runs the flights of some days, or of the year, through both services, replays them, and draws them into ``out/``.

python -m services.flights [2013-02-01 2013-02-15]
"""

from __future__ import annotations

import sys
import time
from datetime import date
from pathlib import Path

from services.flights.history import facts
from services.flights.picture import draw
from services.flights.rehearsal import Rehearsal


def main(arguments: list[str]) -> int:
    """Play, replay and draw the history, and print the results."""
    since, until = (date.fromisoformat(one) for one in (arguments or ["2013-01-01", "2014-01-01"]))
    out = Path("out")
    out.mkdir(exist_ok=True)
    history = facts(since, until)
    started = time.monotonic()
    with Rehearsal(checked=False) as rehearsal:
        results = rehearsal.play(history)
        played = time.monotonic()
        reports = rehearsal.aircraft.replay(), rehearsal.airport.replay()
    handled = sum(report.records for report in reports)
    print(f"{len(history):,} facts, {handled:,} events handled in {played - started:.0f} s")
    print(
        f"{len(results.hours):,} hours of airports, {sum(hour.departures for hour in results.hours):,} departures"
    )
    print(f"{len(results.overdue):,} aircraft overdue, {len(results.alerts):,} alerts of congestion")
    print(f"replayed in {time.monotonic() - played:.0f} s: equal in every byte")
    print(f"drawn: {draw(results, out / 'flights.svg')}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
