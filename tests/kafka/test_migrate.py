"""``tailrace migrate`` between the embedded log and Kafka, and between prefixes on Kafka: as an operator uses it."""

from __future__ import annotations

import signal
from collections import Counter
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tailrace.history.moving.moving import move_apps
from tests.cli.commands import Ended, done, run
from tests.kafka.members import Members, await_tasks, stopped
from tests.soak.processes import wait_until

APP = "tests.kafka.apps:app"
KEYS = [f"k{number}" for number in range(20)]
OF_A_LEG = 3


pytestmark = pytest.mark.usefixtures("quiet_logs")


class Life:
    """The app, on one log after the other. In each leg it gets some events of every key, and emits the count of each key once."""

    def __init__(self, folder: Path, log: object) -> None:
        self.folder, self.log, self.legs = folder, log, 0
        done("log", "create", "--app", APP, "--log", log)

    def live(self) -> None:
        self.legs += 1
        events = [
            {"key": key, "at_ms": 1_000_000 + 100_000 * self.legs + 100 * number}
            for number in range(OF_A_LEG)
            for key in KEYS
        ]
        lines = b"\n".join(map(msgspec.json.encode, events))
        done("log", "append", "seen", "--app", APP, "--log", self.log, stdin=lines)
        done("run", APP, "--until-end", "--log", self.log, "--state", self.folder / "state")
        dumped = done("log", "dump", "totals", "--log", self.log).lines
        found = Counter((line["value"]["key"], line["value"]["count"]) for line in dumped)
        assert found == {(key, OF_A_LEG * leg): 1 for key in KEYS for leg in range(1, self.legs + 1)}

    def to(self, log: object, *options: object) -> list[object]:
        """The command that moves it."""
        return ["migrate", "--from", self.log, "--to", log, "--app", APP, "--json", *options]

    def move(self, log: object, *options: object) -> dict[str, Any]:
        (found,) = done(*self.to(log, *options)).lines
        assert found["done"]
        self.log = log
        return dict(found)


def refused(ended: Ended, said: str) -> None:
    assert ended.code == 1, ended
    assert said in ended.err


def compared(found: dict[str, Any]) -> dict[str, Any]:
    assert found["compared"]["differences"] == []
    return dict(found["compared"])


def test_an_app_moves_to_kafka_and_back_and_each_record_is_compared(kafka_url: str, tmp_path: Path) -> None:
    life = Life(tmp_path, tmp_path / "log")
    life.live()
    there = compared(life.move(kafka_url, "--check"))
    assert there["rows"] > len(KEYS)
    assert there["records"] > 2 * len(KEYS)
    assert not there["has_run"]
    life.live()
    refused(
        run("run", APP, "--until-end", "--log", tmp_path / "log", "--state", tmp_path / "other"),
        f"was moved from this log to {kafka_url}",
    )
    back = life.move(tmp_path / "log", "--check")
    assert compared(back)["records"] > there["records"]
    copied = {one["topic"]: one["records"] for one in back["topics"]}
    assert copied["seen"] == OF_A_LEG * len(KEYS)  # only what came since
    life.live()
    (replayed,) = done("replay", APP, "--compare", "--json", "--log", life.log).lines
    assert replayed["differences"] == 0
    assert replayed["records"] == 3 * OF_A_LEG * len(KEYS)


def test_an_app_moves_to_another_prefix_and_what_was_prepared_is_not_copied_again(
    kafka_url: str, tmp_path: Path
) -> None:
    life = Life(tmp_path, f"{kafka_url}one.")
    life.live()
    target = f"{kafka_url}other."
    (prepared,) = done(*life.to(target, "--prepare")).lines
    assert not prepared["done"]
    life.live()  # it still lives on the old log
    moved = life.move(target, "--check")
    compared(moved)
    assert {one["topic"]: one["records"] for one in moved["topics"]}["seen"] == OF_A_LEG * len(KEYS)
    life.live()
    life.log = f"{kafka_url}one."
    again = life.move(target, "--check")
    assert again["topics"] == []
    assert compared(again)["has_run"]


def test_an_interrupted_move_ends_with_the_same_command_or_is_given_up(
    kafka_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    life = Life(tmp_path, tmp_path / "log")
    life.live()
    starts = ("run", APP, "--until-end", "--state", tmp_path / "other", "--log")

    def interrupted(*arguments: Any, **options: Any) -> Any:
        """Ctrl-C once the app has left the source."""
        with monkeypatch.context() as patch:
            patch.setattr("tailrace.history.moving.moving._Moving._commit_positions", lambda _: _interrupt())
            return move_apps(*arguments, **options)

    with monkeypatch.context() as patch:
        patch.setattr("tailrace.cli.migrate.move_apps", interrupted)
        for _ in range(2):
            assert run(*life.to(kafka_url)).code == 130
            refused(run(*starts, life.log), "was moved from this log")
            refused(run(*starts, kafka_url), "is being moved to this log")
        (given_up,) = done(*life.to(kafka_url, "--cancel")).lines
        assert given_up["given_up"]
        life.live()
        refused(run(*starts, kafka_url), "is being moved to this log")
        assert run(*life.to(kafka_url)).code == 130
    compared(life.move(kafka_url, "--check"))
    life.live()
    life.log = tmp_path / "log"
    refused(run(*life.to(kafka_url, "--cancel")), "lives on the target")


def _interrupt() -> None:
    raise KeyboardInterrupt


def test_an_app_that_runs_is_not_moved(kafka_url: str, tmp_path: Path) -> None:
    source, target = f"{kafka_url}one.", f"{kafka_url}other."
    life = Life(tmp_path, source)
    life.live()
    with closing(Members(source, tmp_path)) as members:
        service = members.start(APP, "running")
        await_tasks(service, 4)
        refused(run(*life.to(target, "--check")), "runs")
        assert service.code() is None
        (prepared,) = done(*life.to(target, "--prepare")).lines
        assert not prepared["done"]
        stopped(service)

        def is_moved() -> bool:
            return run(*life.to(target, "--check")).code == 0

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
            return run(*life.to(target, "--check")).code == 0

        wait_until(is_moved, "its session is over, and the app is moved")
        service.signal(signal.SIGCONT)
        assert service.ended() == 1
        assert "was moved from this log" in service.text()
    life.log = target
    life.live()
