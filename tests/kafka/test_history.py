"""History on Kafka is read like history on the embedded log: replayed, compared, rebuilt, archived, redriven."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tailrace.core.records import Output
from tailrace.history.app_topics import prepare_topics
from tailrace.log.kafka import KafkaLog
from tailrace.processes.app_loading import find_app

APP = "tests.kafka.apps:app"
PLAN = find_app(APP).plan()


def events() -> list[Output]:
    """5,000 events of 50 keys, some out of order, and one that cannot be read."""
    start = 1_700_000_000_000
    times = [(number * 7 % 50, start + number * 90 - number % 5 * 40) for number in range(5_000)]
    good = [Output("seen", b"k%d" % key, b'{"key":"k%d","at_ms":%d}' % (key, at), at) for key, at in times]
    return [*good, Output("seen", b"k1", b'{"key":"k1","at_ms":"never"}', start)]


@pytest.fixture(scope="module")
def lived(kafka: str, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    """A service that has run to its end, with an event that went to the dead letters: the URL and the folder of its state."""
    url, folder = f"kafka://{kafka}/history.", tmp_path_factory.mktemp("history")
    log = KafkaLog(url)
    prepare_topics(log, PLAN, create_declared=True)
    log.append_all(events())
    log.close()
    tailrace("run", APP, "--log", url, "--state", folder / "state", "--until-end", "--allow-dead-letters")
    return url, folder


def tailrace(*arguments: object, code: int = 0) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "tailrace", *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == code, done.stderr[-3_000:]
    return done.stdout


@pytest.mark.parametrize("workers", [1, 2])
def test_a_replay_equals_the_service_byte_for_byte(lived, workers) -> None:
    url, folder = lived
    found = json.loads(
        tailrace(
            *("replay", APP, "--log", url, "--state", folder / "state", "--compare", "--json"),
            *("--workers", workers),
        )
    )
    assert found["differences"] == 0
    assert found["records"] == 5_000
    assert len(found["compared"]) == 3


@pytest.mark.parametrize(
    "options",
    [[], ["--order", "canonical"], ["--engine", "spark"], ["--archive"]],
    ids=["along the tape", "canonical", "by Spark", "with an archive"],
)
def test_a_rebuild_gives_the_state_of_the_service(lived, tmp_path, options) -> None:
    url, folder = lived
    if "--archive" in options:
        tailrace("archive", "--log", url, "--to", tmp_path / "archive")
        options = ["--archive", str(tmp_path / "archive")]
    tailrace(
        "rebuild", APP, "--log", url, "--to", tmp_path / "rebuilt", *options, "--on-error", "dead-letter"
    )
    found = json.loads(tailrace("compare", APP, folder / "state", tmp_path / "rebuilt", "--json"))
    assert found["differences"] == 0


def test_a_snapshot_is_taken_from_the_log(lived, tmp_path) -> None:
    url, folder = lived
    tailrace("snapshot", "create", APP, "--log", url, "--snapshots", tmp_path / "snapshots")
    found = json.loads(tailrace("compare", APP, folder / "state", tmp_path / "snapshots", "--json"))
    assert found["differences"] == 0


def test_a_dead_letter_is_listed_and_redriven_once(lived) -> None:
    url, _ = lived
    (letter,) = map(json.loads, tailrace("dead-letters", "list", APP, "--log", url, "--json").splitlines())
    assert letter["reason"] == "wrong-type"
    for sent in (1, 0):
        done = json.loads(tailrace("dead-letters", "redrive", APP, "--all", "--log", url, "--json"))
        assert len(done["sent"]) == sent
