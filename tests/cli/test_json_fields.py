"""``--json``: the fields are those that the documentation names."""

from __future__ import annotations

import json
import re
from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

import pytest

from tailrace.log.embedded import EmbeddedLog
from tests.cli import shop
from tests.cli.commands import SHOP, done, run
from tests.cli.shop import Purchase
from tests.runtime.processes import Running, wait_until

TAKEOVER = "tests.faust.takeover:app"
PAGE = Path(__file__).parents[2] / "docs" / "cli.md"


def documented() -> dict[str, set[str]]:
    section = PAGE.read_text(encoding="utf-8").partition("\n## JSON\n")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| ((?:`[a-z -]+`(?:, )?)+) \| (.*) \|$", section, re.MULTILINE)
    return {
        command: set(re.findall(r"`(\w+)`", fields.partition(" — ")[0]))
        for commands, fields in rows
        for command in re.findall(r"`([a-z -]+)`", commands)
    }


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A log that the shop has run on, one purchase of which has failed; and two snapshots."""
    path = tmp_path_factory.mktemp("fields")
    done("topics", "apply", "--app", SHOP, "--log", path / "log")
    lines = b"\n".join(map(shop.purchases.encode, [Purchase("a", 1, 4), Purchase("b", 2, 13)]))
    done("log", "append", "purchases", "--app", SHOP, "--log", path / "log", stdin=lines)
    run("run", SHOP, "--end-of-input", "--after-end", "--log", path / "log", "--state", path / "state")
    done("topics", "apply", "--app", TAKEOVER, "--log", path / "log")
    done("log", "create", "shop-faust-counts-changelog", "--log", path / "log")
    done("snapshot", "create", SHOP, "--log", path / "log", "--snapshots", path / "snapshots")
    return path


@contextmanager
def started_when_it_waits(log: Path, *arguments: object) -> Generator[None]:
    """A process that is started once an upgrade has begun on the log, and ended with the context."""

    def start() -> Running:
        with closing(EmbeddedLog(log, create=False)) as opened:
            wait_until(lambda: "shop.upgrades" in opened.topics(), "the upgrade has begun")
        return Running(*arguments, environment={"PYTHONPATH": str(log.parent)})

    with ThreadPoolExecutor(1) as beside:
        started = beside.submit(start)
        yield
        with started.result():
            pass


@pytest.mark.parametrize("command", sorted(documented()))
def test_the_fields_are_those_that_are_documented(place: Path, tmp_path: Path, command: str) -> None:
    newer = f"{tmp_path / 'newer.py'}:app"
    arguments: dict[str, list[object]] = {
        "ab": [SHOP, SHOP, "--to", tmp_path / "ab", "--workers", 1],
        "archive": ["--to", tmp_path / "archive"],
        "dead-letters list": ["shop"],
        "dead-letters show": ["shop", "ID"],
        "dead-letters redrive": ["shop", "--all", "--dry-run"],
        "dead-letters drop": ["shop", "--all", "--dry-run"],
        "explore": [SHOP, "--schedules", 1],
        "export": [SHOP, "--to", "parquet", tmp_path / "out"],
        "faust import": [TAKEOVER, "--from", "faust://shop-faust/counts"],
        "get": [SHOP, "Customer", "a"],
        "graph": [SHOP],
        "log append": ["purchases", "--app", SHOP],
        "log copy": [tmp_path / "copy"],
        "log list": [],
        "log tail": ["purchases", "--no-follow"],
        "migrate": ["--from", tmp_path / "copied", "--to", tmp_path / "new", "--app", SHOP],
        "rebuild": [SHOP, "--to", tmp_path / "rebuilt", "--workers", 1],
        "rebuild --plan": [SHOP, "--to", tmp_path / "rebuilt", "--workers", 1],
        "replay": [SHOP],
        "reshape": [SHOP, "--partitions", 2, "--to", tmp_path / "new", "--snapshots", tmp_path / "snapshots"],
        "retire": ["shop"],
        "schemas check": ["services.sensors:app", "--lock", "schemas/schemas.lock.json"],
        "schemas lock": [SHOP, "--lock", tmp_path / "lock"],
        "snapshot create": [SHOP, "--snapshots", tmp_path / "snapshots"],
        "snapshot delete": [SHOP, "--keep", 1, "--snapshots", place / "snapshots"],
        "snapshot list": [SHOP, "--snapshots", place / "snapshots"],
        "snapshot migrate": [SHOP, "--check", "--snapshots", tmp_path / "snapshots"],
        "snapshot show": [SHOP, "--snapshots", place / "snapshots"],
        "snapshot verify": [SHOP, "--snapshots", place / "snapshots"],
        "status": [SHOP],
        "topics apply": ["--app", SHOP],
        "topics plan": ["--app", SHOP],
        "upgrade": [SHOP, "--to", newer, "--snapshots", tmp_path / "snapshots", "--workers", 1],
        "upgrade --plan": [SHOP, "--to", newer, "--snapshots", tmp_path / "snapshots"],
    }
    alone = (
        "graph",
        "migrate",
        "schemas check",
        "schemas lock",
        *(f"snapshot {one}" for one in ("delete", "list", "show", "verify")),
    )
    where = [] if command in alone else ["--log", place / "log"]
    given = arguments[command]
    if "ID" in given:
        (letter,) = done("dead-letters", "list", "shop", "--json", *where).lines
        given = [letter["id"] if one == "ID" else one for one in given]
    if command == "migrate":
        done("log", "copy", tmp_path / "copied", "--log", place / "log")
    if command.startswith("upgrade"):
        source = Path(shop.__file__).read_text("utf-8")
        (tmp_path / "newer.py").write_text(
            source.replace("partitions=3", 'partitions=3, version="2"'), "utf-8"
        )
        done("log", "copy", tmp_path / "copied", "--log", place / "log")
        where = ["--log", tmp_path / "copied"]
    with ExitStack() as beside:
        if command == "upgrade":
            run_new = ("run", "newer:app", *where, "--state", tmp_path / "state")
            beside.enter_context(started_when_it_waits(tmp_path / "copied", *run_new))
        ended = done(*command.split(), *given, *where, "--json")
    found = ended.out if command != "graph" else ended.out.replace("\n", "")
    said = [json.loads(line) for line in found.splitlines()]
    assert said
    for one in said:
        assert set(one) == documented()[command]
