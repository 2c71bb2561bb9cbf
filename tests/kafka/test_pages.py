"""What the pages about Kafka show is what their reader gets: the tutorial, and producers and readers that are other programs. And the demo
of the flights on Kafka, with few days: real processes, a real kill, all of its checks.
"""

from __future__ import annotations

import re
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from services.demo import __main__ as demo
from services.demo import explorations, flights
from services.demo.console import Console
from services.demo.questions import Questions
from tests.docs.page import ROOT, play
from tests.kafka.broker.artefacts import jars
from tests.kafka.processes import SESSION

JAVA = re.compile(r"^```java\n// (?P<name>\w+\.java)\n(?P<code>.*?)^```$", re.MULTILINE | re.DOTALL)


@pytest.mark.long
def test_what_the_tutorial_says_is_what_happens(
    kafka_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TAILRACE_LOG", kafka_url)
    for name, value in SESSION.items():
        monkeypatch.setenv(name, value)
    assert play((ROOT / "docs/kafka-tutorial.md").read_text("utf-8"), tmp_path) >= 8


@pytest.mark.long
def test_producers_and_a_reader_of_other_programs_do_as_the_page_says(
    kafka_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, kafka = tmp_path / "page", tmp_path / "kafka"
    for one in (folder, kafka):
        one.mkdir()
    (kafka / "libs").symlink_to(jars())
    monkeypatch.setenv("KAFKA_HOME", str(kafka))
    page = (ROOT / "docs/producing.md").read_text("utf-8").replace("kafka://localhost:9092", kafka_url)
    bootstrap, _, prefix = kafka_url.removeprefix("kafka://").partition("/")
    page = page.replace("localhost:9092", bootstrap)
    for topic, behind in (("orders", ", json"), ("orders", ", null"), ("totals", ",\n        bootstrap")):
        page = page.replace(f'"{topic}"{behind}', f'"{prefix}{topic}"{behind}')
    (found,) = JAVA.finditer(page)
    (folder / found["name"]).write_text(found["code"], "utf-8")
    assert play(JAVA.sub("", page), folder) == 1


@pytest.mark.nightly
def test_the_demo_runs_on_kafka_with_all_of_its_checks(kafka_url, tmp_path, monkeypatch) -> None:
    """Spark and pictures are tested elsewhere: here another engine rebuilds."""
    lines: list[str] = []
    monkeypatch.setattr(Console, "say", lambda _, line="": lines.append(line))
    monkeypatch.setattr(flights, "ENGINES", dict.fromkeys(flights.ENGINES, "local"))
    monkeypatch.setattr(explorations, "RECORDS", 300)
    monkeypatch.setattr(Questions, "picture", lambda *_: None)
    monkeypatch.setattr(flights, "picture_of", lambda _, path: path)
    days = ["--since", "2013-07-13", "--until", "2013-07-15", "--commit-interval", "50ms"]
    code = demo.main(["flights", *days, "--out", str(tmp_path), "--log", kafka_url])
    shown = "\n".join(lines)
    assert code == 0, shown
    for pattern, count in (
        (r"is killed \(SIGKILL\)", None),
        (r"rows of state: differences 0 ", 2),
        (r"along the tape, with the local engine, in", 2),
        (r"(?m)compared with the log: [1-9][\d,]* rows, differences 0$", 2),
        (r"[1-9][\d,]* hours of airports, \d[\d,]* corrections by late departures: differences 0 ", None),
        (r"was forwarded, counted and joined exactly once", None),
        (r"All checks passed", None),
        # The last days begin with the snapshots, and not with what the changelogs have.
        (r"both start from the rebuilt snapshots", None),
    ):
        found = len(re.findall(pattern, shown))
        assert found if count is None else found == count, (pattern, shown)
    for name in ("aircraft", "airport"):
        told = (tmp_path / "flights-2013" / f"{name}.log").read_text("utf-8")
        assert '"start from a snapshot: filled"' in told
    ET.parse(tmp_path / "flights.svg")
