"""``tailrace migrate`` between the embedded log and Kafka, and between prefixes on Kafka: as an operator uses it."""

from __future__ import annotations

import signal
from collections import Counter
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tailrace.core.errors import AppMovedError
from tailrace.history.reading.residence import check_lives_here
from tailrace.log.kafka import KafkaLog
from tailrace.log.opening import open_log
from tests.cli.commands import Ended, done, run
from tests.kafka.killed_move import STEPS
from tests.kafka.members import Members, await_tasks, stopped
from tests.soak.processes import Process, wait_until

APP = "tests.kafka.apps:app"
KEYS = [f"k{number}" for number in range(20)]
OF_A_LEG = 3


pytestmark = pytest.mark.usefixtures("quiet_logs")


class Life:
    """The app, on one log after the other. In each leg it gets some events of every key, and emits the count of each key once."""

    def __init__(self, folder: Path, log: object) -> None:
        self.folder, self.log, self.legs = folder, log, 0
        done("topics", "apply", "--app", APP, "--log", log)

    def live(self) -> None:
        self.legs += 1
        events = [
            {"key": key, "at_ms": 1_000_000 + 100_000 * self.legs + 100 * number}
            for number in range(OF_A_LEG)
            for key in KEYS
        ]
        lines = b"\n".join(map(msgspec.json.encode, events))
        done("log", "append", "seen", "--app", APP, "--log", self.log, stdin=lines)
        done("run", APP, "--end-of-input", "--after-end", "--log", self.log, "--state", self.folder / "state")
        dumped = done("log", "dump", "totals", "--log", self.log).lines
        found = Counter((line["value"]["key"], line["value"]["count"]) for line in dumped)
        assert found == {(key, OF_A_LEG * leg): 1 for key in KEYS for leg in range(1, self.legs + 1)}

    def to(self, log: object) -> list[object]:
        """The command that moves it."""
        return ["migrate", "--from", self.log, "--to", log, "--app", APP, "--json"]

    def move(self, log: object) -> dict[str, Any]:
        (found,) = done(*self.to(log)).lines
        assert found["done"]
        self.log = log
        return dict(found)


def refused(ended: Ended, said: str) -> None:
    assert ended.code == 1, ended
    assert said in ended.err


def test_an_app_moves_to_kafka_to_another_prefix_and_to_a_folder(kafka_url: str, tmp_path: Path) -> None:
    life = Life(tmp_path, tmp_path / "log")
    life.live()
    for log in (f"{kafka_url}one.", f"{kafka_url}other.", tmp_path / "other log"):
        before = life.log
        moved = life.move(log)
        assert moved["rows"] > len(KEYS)
        assert {one["topic"]: one["records"] for one in moved["topics"]}[
            "seen"
        ] == life.legs * OF_A_LEG * len(KEYS)
        refused(
            run("run", APP, "--end-of-input", "--after-end", "--log", before, "--state", tmp_path / "unused"),
            f"was moved from this log to {log}",
        )
        life.live()
    (replayed,) = done("replay", APP, "--compare", "--json", "--log", life.log).lines
    assert replayed["differences"] == 0
    assert replayed["records"] == life.legs * OF_A_LEG * len(KEYS)


def test_an_app_returns_once_its_topics_there_are_deleted(kafka_url: str, tmp_path: Path) -> None:
    life = Life(tmp_path, f"{kafka_url}one.")
    life.live()
    life.move(f"{kafka_url}other.")
    life.live()
    refused(run(*life.to(f"{kafka_url}one.")), "the target has records in")
    log = KafkaLog(f"{kafka_url}one.")
    log.admin.delete_topics(list(log.topics()))
    log.close()
    life.move(f"{kafka_url}one.")
    life.live()


@pytest.mark.parametrize("to", ["kafka", "embedded"])
def test_a_move_that_is_killed_ends_with_the_same_command(kafka_url: str, tmp_path: Path, to: str) -> None:
    """A move is killed at every step. The app runs on the old log until the move is done, and never on both."""
    kafka, folder = f"{kafka_url}one.", tmp_path / "log"
    source, target = (folder, kafka) if to == "kafka" else (kafka, folder)
    life = Life(tmp_path, source)
    life.live()
    for step in STEPS:
        process = Process(tmp_path / f"{step}.log", "tests.kafka.killed_move", step, *life.to(target))
        assert process.ended() == -signal.SIGKILL, process.text()
        assert not lives(target)
        assert lives(source) == (step in ("arriving", "reading"))
        if step == "reading":
            life.live()
    life.move(target)
    life.live()
    (replayed,) = done("replay", APP, "--compare", "--json", "--log", life.log).lines
    assert replayed["differences"] == 0


def lives(place: Path | str) -> bool:
    with closing(open_log(place)) as log:
        try:
            check_lives_here(log, "totals")
        except AppMovedError:
            return False
        return True


def test_an_app_that_runs_is_not_moved(kafka_url: str, tmp_path: Path) -> None:
    source, target = f"{kafka_url}one.", f"{kafka_url}other."
    life = Life(tmp_path, source)
    life.live()
    with closing(Members(source, tmp_path)) as members:
        service = members.start(APP, "running")
        await_tasks(service, 4)
        refused(run(*life.to(target)), "runs")
        assert service.code() is None
        stopped(service)

        def is_moved() -> bool:
            return run(*life.to(target)).code == 0

        wait_until(is_moved, "the group has no member any more, and the app is moved")
    life.log = target
    life.live()


def test_a_process_that_was_suspended_while_the_app_moved_does_not_continue_on_the_old_log(
    kafka_url: str, tmp_path: Path
) -> None:
    source, target = f"{kafka_url}one.", f"{kafka_url}other."
    life = Life(tmp_path, source)
    life.live()
    with closing(Members(source, tmp_path)) as members:
        service = members.start(APP, "suspended")
        await_tasks(service, 4)
        service.signal(signal.SIGSTOP)

        def is_moved() -> bool:
            return run(*life.to(target)).code == 0

        wait_until(is_moved, "its session is over, and the app is moved")
        service.signal(signal.SIGCONT)
        assert service.ended() == 1
        assert "was moved from this log" in service.text()
    life.log = target
    life.live()
