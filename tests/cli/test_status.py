"""What is said of an app that has run: ``tailrace status``, ``tailrace retire`` and ``tailrace migrate``."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from tailrace.history.status.inspection import AppReport
from tailrace.log.embedded import EmbeddedLog
from tests.cli.commands import SHOP, done, refused, run
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


# --- status


def test_it_shows_tasks_inputs_and_actors_within_a_hundred_columns(folder: Path) -> None:
    lines = done("status", SHOP, "--log", folder / "log").out.splitlines()
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
    said = done("status", SHOP, "--log", folder / "log", "--json").out
    owner.close()
    report = msgspec.json.decode(said, type=AppReport)
    assert (report.app, len(report.tasks)) == ("shop", 3)
    assert [one.owner is not None for one in report.tasks] == [False, True, False]
    assert sum(one.lag for one in report.tasks) == 1
    assert sum(one.dead_letters for one in report.tasks) == 1


# --- retire


def published(folder: Path) -> set[int | None]:
    log = EmbeddedLog(folder / "log", create=False)
    try:
        return {mark for (topic, _), mark in log.publications().items() if topic == "totals"}
    finally:
        log.close()


@pytest.mark.parametrize("name", ["shop", SHOP])
def test_it_says_what_it_has_retired(folder: Path, name: str) -> None:
    assert None not in published(folder)
    first, header, *rows = done("retire", name, "--log", folder / "log").out.splitlines()
    assert first == "retired 'shop': 3 tasks"
    assert header.split("  ")[0] == "topic"
    assert ["totals", "3"] in [row.split()[:2] for row in rows]
    assert published(folder) == {None}
    again = done("retire", name, "--log", folder / "log").out
    assert again.startswith("'shop' holds no reader back: it was retired before")


def test_json_names_publishers_and_topics(folder: Path) -> None:
    said = msgspec.json.decode(done("retire", "shop", "--json", "--log", folder / "log").out)
    assert (said["app"], said["publishers"]) == ("shop", ["shop-0", "shop-1", "shop-2"])
    (totals,) = [one for one in said["topics"] if one["topic"] == "totals"]
    assert set(totals) == {"topic", "publishers", "lowest_ms", "highest_ms"}
    assert totals["publishers"] == 3


def test_what_cannot_be_retired_is_refused_in_one_line(folder: Path) -> None:
    assert "Did you mean 'shop'?" in refused("retire", "shopp", "--log", folder / "log")
    owner = owning(folder / "log", "shop", [2])
    ended = run("retire", "shop", "--log", folder / "log")
    owner.close()
    assert ended.code == 1
    (line,) = ended.err.splitlines()
    assert "the app 'shop' runs" in line
    assert run("retire", "shop", "--log", folder / "nowhere").code == 1


# --- migrate


@pytest.mark.parametrize(
    ("apps", "names", "was", "it"),
    [([SHOP], "shop", "was", "it"), ([SHOP, f"{SHOP}@copy"], "shop and copy", "were", "them")],
)
def test_the_report_names_the_apps_in_the_right_number(
    folder: Path, apps: list[str], names: str, was: str, it: str
) -> None:
    where = ("--log", folder / "log", "--state", folder / "copy", "--end-of-input", "--after-end")
    done("run", f"{SHOP}@copy", *where, "--create-topics", "--allow-dead-letters")
    done("run", SHOP, *where)
    moving = ("migrate", "--from", folder / "log", "--to", folder / "new")
    arguments = [*moving, *(part for app in apps for part in ("--app", app))]
    EmbeddedLog(folder / "new").close()
    (given_up,) = done(*arguments, "--cancel", "--json").lines
    assert given_up == {"apps": names.split(" and "), "done": False, "given_up": True}
    assert f"moved {names}: run {it} with --log " in done(*arguments).out
    assert f"{names} {was} moved to " in done(*arguments).out
