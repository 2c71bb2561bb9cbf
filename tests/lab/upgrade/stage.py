"""An app that is upgraded while a producer writes, as processes; and what must come of it."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from random import Random
from typing import Any

import msgspec

from tailrace.core.records import Output
from tailrace.history.reading.stretches import scan
from tailrace.history.reading.upgrades import last_upgrade
from tailrace.log import TopicSettings
from tailrace.log.interface import StoredLog
from tailrace.log.opening import open_log
from tests.lab.upgrade.clicking import FORGOTTEN, Click, Seen
from tests.runtime.processes import ROOT, Running, wait_until

USERS = 20
OLD = "tests.lab.upgrade.clicking:app"
BUG = "if event.amount % FORGOTTEN:"


class Producer(threading.Thread):
    """Writes clicks until it is stopped: about a thousand per second."""

    def __init__(self, log: str | Path, first: int = 300) -> None:
        super().__init__()
        self._log, self._random, self._stop_asked = log, Random(7), threading.Event()
        self.clicks: list[Click] = []
        with closing(open_log(log, create=True)) as opened:
            opened.create_topic("clicks", TopicSettings(2))
            opened.create_topic("seen", TopicSettings(2))
            self._write(opened, first)

    def _write(self, opened: StoredLog, count: int) -> None:
        made = [
            Click(f"user {self._random.randrange(USERS)}", 10 * (len(self.clicks) + at), self._random.randrange(100))
            for at in range(count)
        ]
        opened.append_all(
            Output("clicks", one.user.encode(), msgspec.json.encode(one), one.at) for one in made
        )
        self.clicks += made

    def run(self) -> None:
        with closing(open_log(self._log)) as opened:
            while not self._stop_asked.wait(0.05):
                self._write(opened, 50)

    def __enter__(self) -> Producer:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop_asked.set()
        self.join()


def service(app: str, log: str | Path, folder: Path, *more: object) -> Running:
    """A process of the app."""
    state = folder / f"state-{sum(1 for _ in folder.glob('state-*'))}"
    state.mkdir(parents=True)
    return Running("run", app, "--log", log, "--state", state, "--log-format", "json", "--commit-interval", "50ms", *more)


def outputs(log: str | Path) -> list[tuple[int, Seen]]:
    """By partition."""
    with closing(open_log(log)) as opened:
        return [
            (number, msgspec.json.decode(one.value or b"", type=Seen))
            for number in range(2)
            for one in scan(opened, "seen", number)
        ]


def totals(clicks: list[Click], *, forgets: bool) -> dict[int, int]:
    """By the time of each click, the total of its user."""
    found: dict[int, int] = {}
    sums: dict[str, int] = {}
    for one in clicks:
        if not forgets or one.amount % FORGOTTEN:
            sums[one.user] = sums.get(one.user, 0) + one.amount
        found[one.at] = sums.get(one.user, 0)
    return found


def step_of(log: str | Path, app: str = "clicking") -> str:
    """How far the last upgrade has come."""
    with closing(open_log(log)) as opened:
        found = last_upgrade(opened, app)
    return "" if found is None else found.step
