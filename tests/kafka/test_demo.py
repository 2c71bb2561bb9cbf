"""The demo of the flights on Kafka, with few days: real processes, a real kill, all of its checks.

Spark and the pictures of pages are tested elsewhere: here another engine rebuilds, and plain Python takes the place of the query.
"""

from __future__ import annotations

import re
from collections import defaultdict
from contextlib import closing
from functools import partial
from xml.etree import ElementTree as ET

import pytest

from schemas.flights import HOUR_MS
from services.demo import __main__ as command
from services.demo import delays, explorations, flights
from services.demo.accounts import read
from services.demo.console import Console
from services.demo.questions import Questions
from services.demo.rebuilds import rebuild
from services.flights import aircraft
from services.flights.delays_sql import Row
from tailrace.log.opening import open_log

DAYS = ["--since", "2013-07-13", "--until", "2013-07-15"]


def means(log: str, _: object) -> list[Row]:
    """What the query of the demo gives, by plain Python."""
    found: dict[tuple[str, int], list[int]] = defaultdict(list)
    with closing(open_log(log)) as opened:
        for one in read(opened, aircraft.movements):
            found[one.airport, one.scheduled_ms - one.scheduled_ms % HOUR_MS].append(one.delay_minutes)
    return [Row(*place, sum(some) / len(some), len(some)) for place, some in found.items()]


@pytest.mark.nightly
def test_the_demo_runs_on_kafka_with_all_of_its_checks(kafka_url, tmp_path, monkeypatch) -> None:
    lines: list[str] = []
    monkeypatch.setattr(Console, "say", lambda _, line="": lines.append(line))
    monkeypatch.setattr(flights, "rebuild", partial(rebuild, engine="local"))
    monkeypatch.setattr(explorations, "RECORDS", 300)
    monkeypatch.setattr(delays, "_by_sql", means)
    monkeypatch.setattr(Questions, "picture", lambda *_: None)
    monkeypatch.setattr(flights, "picture_of", lambda *_: None)
    code = command.main(
        ["flights", *DAYS, "--out", str(tmp_path), "--commit-interval", "50ms", "--log", kafka_url]
    )
    shown = "\n".join(lines)
    assert code == 0, shown
    assert "is killed (SIGKILL)" in shown
    assert shown.count("rows of state: differences 0 ") == 2
    assert shown.count("along the tape, in") == 2
    assert (
        len(re.findall(r"compared with the log: [1-9][\d,]* rows, differences 0$", shown, re.MULTILINE)) == 2
    )
    assert re.search(
        r"[1-9][\d,]* hours of airports, \d[\d,]* corrections by late departures: differences 0 ", shown
    )
    assert "was forwarded, counted and joined exactly once" in shown
    assert "All checks passed" in shown
    # The last days begin with the snapshots, and not with what the changelogs have.
    assert "both start from the rebuilt snapshots" in shown
    for name in ("aircraft", "airport"):
        told = (tmp_path / "flights-2013" / f"{name}.log").read_text("utf-8")
        assert '"start from a snapshot: filled"' in told
    ET.parse(tmp_path / "flights.svg")
