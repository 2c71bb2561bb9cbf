"""What the pages about Kafka show is what their reader gets: the tutorial, and producers and readers that are other programs."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.docs.page import ROOT, play
from tests.kafka.broker.artefacts import jars
from tests.kafka.broker.cluster import Cluster
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
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "page"
    folder.mkdir()
    kafka = tmp_path / "kafka"
    kafka.mkdir()
    (kafka / "libs").symlink_to(jars())
    monkeypatch.setenv("KAFKA_HOME", str(kafka))
    with Cluster(tmp_path) as cluster:  # of its own: the page names no prefix of topics
        page = (ROOT / "docs/producing.md").read_text("utf-8").replace("localhost:9092", cluster.bootstrap)
        (found,) = JAVA.finditer(page)
        (folder / found["name"]).write_text(found["code"], "utf-8")
        assert play(JAVA.sub("", page), folder) == 1
