"""A house of worker processes on one log."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tailrace.core.records import Output
from tailrace.log.embedded import EmbeddedLog
from tailrace.runtime.preparing import prepare_log
from tests.runtime.processes import Running, wait_until
from tests.runtime.served import make_app
from tests.runtime.tallies import read

APP = "tests.runtime.served:app"


KEYS = 40


class House:
    """A folder with a log in it that has the app's topics, and what is run on it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.log = EmbeddedLog(folder / "log")
        prepare_log(self.log, make_app().plan(), create_declared=True)

    def feed(self, outputs: list[Output]) -> None:
        self.log.append_all(outputs)

    def run(
        self, *arguments: object, state: str = "state", slow_ms: int = 0, telling: bool = False
    ) -> Running:
        """With ``telling`` its handlers say when they have begun."""
        where: list[Any] = ["--log", self.folder / "log", "--state", self.folder / state]
        slow = {"TALLY_SLOW_MS": str(slow_ms), "TALLY_BEGUN": str(self.folder / "begun") if telling else ""}
        return Running(
            "run", APP, *where, "--after-end", "--commit-interval", "50ms", *arguments, environment=slow
        )

    def run_to_the_end(self, *arguments: object, state: str = "state") -> None:
        with self.run("--end-of-input", *arguments, state=state) as service:
            assert service.ended() == 0, service.lines

    def counted(self) -> int:
        return len(read(self.log, "counts"))

    def wait_until_at_work(self, processes: int) -> None:
        """Until so many processes are, or were, in a handler."""

        def begun() -> bool:
            told = self.folder / "begun"
            return told.exists() and len(set(told.read_text().split())) == processes

        wait_until(begun, "all are at work")

    def wait_for_more(self) -> None:
        """Until something new has been committed."""
        before = self.counted()
        wait_until(lambda: self.counted() > before, "something is committed")
