"""A table that lives on a log: written and read by services, compacted, and read again. The oracle is a dict."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from random import Random

import msgspec

from tailrace.core.records import Output
from tailrace.history.reading.app_history import AppHistory
from tailrace.history.reading.stretches import scan
from tailrace.log.interface import StoredLog
from tests.cli.commands import run
from tests.tables.stock import PARTITIONS, Change, copy_in, late, oracle, reader, table_in

ITEMS = "abcdefghij"


def tailrace(*arguments: object, code: int = 0) -> str:
    """What a command says, which must end with this code."""
    ended = run(*arguments)
    assert ended.code == code, f"{ended.out[-3_000:]}\n{ended.err[-3_000:]}"
    return ended.out + ended.err


class Life:
    """Changes, and the services that handle them."""

    def __init__(self, log: StoredLog, folder: Path) -> None:
        self.log, self.folder = log, folder
        self.events: list[Change] = []
        self._random = Random(7)
        # Kafka goes by the timestamps of records: old ones are compacted at once.
        self._begun_ms = time.time_ns() // 1_000_000

    def change(self, count: int) -> None:
        """Append changes, and let the writer write them."""
        for _ in range(count):
            left = self._random.choice((None, self._random.randrange(100), self._random.randrange(100)))
            at = self._begun_ms + len(self.events)
            self.events.append(Change(self._random.choice(ITEMS), at, left))
        outputs = [
            Output("changes", e.item.encode(), msgspec.json.encode(e), e.at) for e in self.events[-count:]
        ]
        self.run("writer", "--until-end")
        self.log.append_all(outputs)
        self.run("writer", "--until-end")

    def run(self, app: str, *options: str) -> str:
        """Run an app as far as its inputs are there."""
        where = ("--log", self.log.place, "--state", self.folder / app, "--create-topics")
        return tailrace("run", f"tests.tables.stock:{app}", *where, *options)

    def copy(self, app: str) -> dict[str, int]:
        """The copy in the committed state of a reader."""
        history = AppHistory({"reader": reader, "late": late}[app].plan(), self.log)
        found: dict[str, int] = {}
        for number in range(PARTITIONS):
            rows = history.committed(number, with_rows=True).rows
            assert rows is not None
            found |= copy_in(rows)
        return found

    @property
    def records(self) -> int:
        """How many records the log has of the table."""
        return sum(1 for number in range(PARTITIONS) for _ in scan(self.log, "stocks", number))


def live(life: Life, compact: Callable[[], None]) -> None:
    """The whole life of a table. ``compact`` returns when the log has taken records of it away."""
    app, log = "tests.tables.stock:reader", ("--log", life.log.place)
    life.change(60)
    life.run("reader", "--until-end")
    assert life.log.topics()["stocks"].compacted
    assert not life.log.topics()["seen"].compacted
    assert life.records == 60
    assert table_in(life.log) == life.copy("reader") == oracle(life.events)
    tailrace("replay", app, *log, "--compare", "--any-environment")
    tailrace("archive", *log, "--to", life.folder / "archive")
    to = life.folder / "rebuilt"
    said = tailrace("rebuild", app, *log, "--to", to, "--workers", "2", "--any-environment")
    assert "all equal, byte for byte" in said

    compact()
    assert table_in(life.log) == oracle(life.events)
    assert "of them are missing in the log now" in tailrace("replay", app, *log, code=1)
    into = ("--to", life.folder / "rebuilt", "--workers", "1")
    assert "compacted topic" in tailrace("rebuild", app, *log, *into, code=1)
    tailrace("rebuild", app, *log, *into, "--archive", life.folder / "archive", "--restart")
    said = tailrace(
        "rebuild", app, *log, "--to", life.folder / "stages", "--order", "stages", "--workers", "1"
    )
    assert "stocks is compacted" in said

    life.change(30)
    wanted = oracle(life.events)
    for reading in ("reader", "late"):  # one that continues, and one that comes now
        life.run(reading, "--until-end")
        assert life.copy(reading) == table_in(life.log) == wanted, reading
