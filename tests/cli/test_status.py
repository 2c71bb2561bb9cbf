"""``tailrace status``: how an app stands, for people and as JSON, once or again and again."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from tailrace.history.status.inspection import AppReport
from tests.cli.commands import SHOP, done
from tests.log.embedded.owning import owning


@pytest.fixture
def folder(tmp_path: Path, quiet_logs: None) -> Path:
    """Where the shop has run to the end of three purchases; one of them could not be handled, and one has
    come since.
    """
    where = ("--log", tmp_path / "log")
    done("topics", "apply", "--app", SHOP, *where)

    def append(*cents: int) -> None:
        lines = [f'{{"customer": "ann", "at_ms": {1357017420000 + one}, "cents": {one}}}\n' for one in cents]
        done("log", "append", "purchases", "--app", SHOP, *where, stdin="".join(lines).encode())

    append(5, 13, 20)
    done("run", SHOP, *where, "--state", tmp_path / "state", "--end-of-input", "--allow-dead-letters")
    append(30)
    return tmp_path


def places(folder: Path) -> tuple[object, ...]:
    return ("--log", folder / "log")


def test_it_shows_tasks_inputs_and_actors_within_a_hundred_columns(folder: Path) -> None:
    lines = done("status", SHOP, *places(folder)).out.splitlines()
    assert lines[0] == "shop, version 1: 3 tasks, does not run, 1 record to read"
    assert max(map(len, lines)) <= 100
    assert lines[2].split("  ")[:2] == ["task", "process"]
    tasks = [line.split() for line in lines[3:6]]
    assert sorted(one[-2] for one in tasks) == ["0", "0", "1"], "to read"
    assert sorted(one[-1] for one in tasks) == ["0", "0", "1"], "dead letters"
    assert any(line.startswith("purchases") and "2013-01-01T04:17:00.019Z" in line for line in lines)
    actor = lines.index("actor Customer")
    assert lines[actor + 1].split() == ["task", "watermark"]
    assert "      all tasks: its input has ended for good" in lines


def test_json_has_all_of_it(folder: Path) -> None:
    owner = owning(folder / "log", "shop", [1])
    said = done("status", SHOP, *places(folder), "--json").out
    owner.close()
    report = msgspec.json.decode(said, type=AppReport)
    assert (report.app, len(report.tasks)) == ("shop", 3)
    assert [one.owner is not None for one in report.tasks] == [False, True, False]
    assert sum(one.lag for one in report.tasks) == 1
    assert sum(one.dead_letters for one in report.tasks) == 1
