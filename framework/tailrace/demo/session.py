"""The session that `tailrace demo` shows: append, run, kill, run again, compare, replay.

All steps are the commands that a user types, in processes of their own. What they come to is compared with plain Python.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from tailrace.client import Client
from tailrace.core.errors import TailraceError
from tailrace.demo import cards
from tailrace.demo.history import Paid, expected, payments

PAYMENTS: Final = 100_000
_KILL_WITHIN_S: Final = 120.0

Tell = Callable[[str, str], None]
"""Called with the name of a step, and what came of it."""


class DemoFailedError(TailraceError):
    """A command of the demo failed, or its result is not what it must be."""


def run_session(folder: Path, tell: Tell) -> str:
    """Run all steps in an empty folder. Returns the card with the last alert. Raises DemoFailedError."""
    return _Session(folder, tell).run()


class _Session:
    def __init__(self, folder: Path, tell: Tell) -> None:
        self._folder, self._tell = folder, tell

    def run(self) -> str:
        """See ``run_session``."""
        (self._folder / "cards.py").write_bytes(Path(cards.__file__).read_bytes())
        paid = payments(PAYMENTS)
        due = expected(paid[:PAYMENTS])  # event time does not pass the last ones
        self._command("topics", "apply", "--app", "cards:app")
        with self._client() as client:
            client.send(cards.payments, *(cards.Payment(*one) for one in paid))
        self._tell("append", f"{len(paid):,} payments of 5,000 cards, up to ten minutes out of order")
        before = self._killed()
        self._tell("kill -9", f"in the middle of its work, with {before:,} of {len(due):,} alerts out")
        begun = time.monotonic()
        self._command("run", "cards:app", "--until-end")
        self._tell("run again", f"it resumes, and has handled the rest in {time.monotonic() - begun:.1f} s")
        found = self._alerts()
        if found != due:
            raise DemoFailedError(
                f"the service has emitted {len(found):,} alerts, and plain Python finds {len(due):,}"
            )
        self._tell(
            "compare",
            f"{len(found):,} alerts, as in a loop of plain Python: none lost, none twice, none wrong",
        )
        done = json.loads(self._command("replay", "cards:app", "--compare", "--json"))
        if done["differences"]:
            raise DemoFailedError(f"{done['differences']} rows or outputs of the replay differ")
        self._tell(
            "replay",
            f"{done['records']:,} payments and {done['timers']:,} timers again: {done['rows']:,} rows of state and "
            f"{done['outputs']:,} outputs, 0 bytes differ",
        )
        return max(due, key=lambda one: one[1])[0]

    def _killed(self) -> int:
        """Start the service, and kill it when its first alerts are out. Returns their number."""
        with (self._folder / "run.log").open("ab") as log_file:
            process = subprocess.Popen(
                [*_TAILRACE, "run", "cards:app"],
                cwd=self._folder,
                env=_environment(),
                stdout=log_file,
                stderr=log_file,
            )
        try:
            until_s = time.monotonic() + _KILL_WITHIN_S
            while not self._alerts():
                if process.poll() is not None or time.monotonic() > until_s:
                    raise DemoFailedError(
                        "the service emits nothing", hint=f"Look at {self._folder / 'run.log'}."
                    )
                time.sleep(0.01)
        finally:
            process.kill()
            process.wait()
        return len(self._alerts())

    def _alerts(self) -> list[Paid]:
        """The committed alerts."""
        with self._client() as client:
            events = [one.event for one in client.read(cards.alerts)]
        return sorted((one.card, one.at_ms, one.cents) for one in events if one is not None)

    def _client(self) -> Client:
        return Client(cards.app, self._folder / "data" / "log")

    def _command(self, *arguments: str) -> str:
        done = subprocess.run(
            [*_TAILRACE, *arguments],
            cwd=self._folder,
            env=_environment(),
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            raise DemoFailedError(
                f"`tailrace {' '.join(arguments)}` ended with exit code {done.returncode}: {done.stderr.strip()}"
            )
        return done.stdout


_TAILRACE: Final = (sys.executable, "-m", "tailrace")


def _environment() -> dict[str, str]:
    """The environment without settings of other services: the session has a log and a state of its own."""
    return {name: value for name, value in os.environ.items() if not name.startswith("TAILRACE_")}
