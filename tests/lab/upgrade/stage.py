"""An app that is upgraded while a producer writes, as processes; and what must come of it."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from random import Random
from types import ModuleType
from typing import Any

import msgspec

from tailrace.core.records import Output
from tailrace.history.reading.stretches import scan
from tailrace.history.reading.upgrades import last_upgrade
from tailrace.history.rebuilding.engines import Where
from tailrace.lab.upgrade.driver import Upgrading, Wanted
from tailrace.log import TopicSettings
from tailrace.log.interface import StoredLog
from tailrace.log.opening import open_log
from tests.lab.selling import version
from tests.lab.upgrade import clicking, quiet
from tests.lab.upgrade.clicking import FORGOTTEN, Click, Seen
from tests.runtime.processes import ROOT, Running, wait_until

USERS = 20
OLD = "tests.lab.upgrade.clicking:app"
BUG = "if event.amount % FORGOTTEN:"
PER_S = int(os.environ.get("TAILRACE_CLICKS_PER_S", "200"))
"""Events per second under which an upgrade and its rollback are made. A command that is killed often takes minutes on a busy machine, and
the history must not grow too long for it, so the suite has fewer than a run of this test alone can have (1000)."""
STEPS = [
    *["begun", "kept", "round", "written", "verified"],
    *["fenced", "kept", "last", "written", "verified", "ready", "done"],
]


def corrected(folder: Path, *more: tuple[str, str], of: ModuleType = clicking, number: int = 2) -> str:
    """A version without the bug."""
    changes = ((BUG, "if True:"), ('version="1"', f'version="{number}"'), *more)
    return version(folder, f"corrected_{number}", *changes, of=str(of.__file__))


class Producer(threading.Thread):
    """Writes clicks until it is stopped: about 20 times ``batch`` per second."""

    def __init__(self, log: str | Path, first: int = 300, *, batch: int = 50) -> None:
        super().__init__()
        self._batch = batch
        self._log, self._random, self._stop_asked = log, Random(7), threading.Event()
        self.clicks: list[Click] = []
        with closing(open_log(log, create=True)) as opened:
            for topic in ("clicks", "seen", "later"):
                opened.create_topic(topic, TopicSettings(2))
            self._write(opened, first)

    def _write(self, opened: StoredLog, count: int) -> None:
        made = [
            Click(
                f"user {self._random.randrange(USERS)}",
                10 * (len(self.clicks) + at),
                self._random.randrange(100),
            )
            for at in range(count)
        ]
        opened.append_all(
            Output("clicks", one.user.encode(), msgspec.json.encode(one), one.at) for one in made
        )
        self.clicks += made

    def run(self) -> None:
        """Write."""
        with closing(open_log(self._log)) as opened:
            while not self._stop_asked.wait(0.05):
                self._write(opened, self._batch)

    def more(self, count: int) -> None:
        """Write some now."""
        with closing(open_log(self._log)) as opened:
            self._write(opened, count)

    def __enter__(self) -> Producer:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        """Write no more."""
        self._stop_asked.set()
        self.join()


def service(app: str, log: str | Path, folder: Path, *more: object) -> Running:
    """A process of the app, with a state folder of its own. Versions that are files are in ``folder``."""
    state = folder / f"state-{sum(1 for _ in folder.glob('state-*'))}"
    state.mkdir(parents=True)
    options = ("--log", log, "--state", state, "--log-format", "json", "--commit-interval", "50ms", *more)
    path = os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")])
    return Running("run", module_of(app), *options, environment={"PYTHONPATH": path})


def module_of(app: str) -> str:
    """The name by which a service finds a version."""
    return f"{Path(app.removesuffix(':app')).stem}:app" if "/" in app else app


def step_of(log: str | Path, app: str = "clicking") -> str:
    """How far the last upgrade has come."""
    with closing(open_log(log)) as opened:
        found = last_upgrade(opened, app)
    return "" if found is None else found.step


# --- what must come of it


def outputs(log: str | Path, topic: str) -> list[list[Seen]]:
    """By partition."""
    with closing(open_log(log)) as opened:
        return [
            [msgspec.json.decode(one.value or b"", type=Seen) for one in scan(opened, topic, number)]
            for number in range(2)
        ]


def await_outputs(log: str | Path, more_than: int) -> None:
    """Wait until so many clicks were handled."""
    with closing(open_log(log)) as opened:

        def count() -> int:
            return sum(1 for number in range(2) for _ in scan(opened, "seen", number))

        wait_until(lambda: count() > more_than, "what is written is handled")


def check(log: str | Path, clicks: list[Click], versions: str) -> None:
    """All inputs have ended. Each click has led to one output of each kind, by the versions in this order: ``on`` means old, then new.

    Each version goes by the whole history, so its totals are those of plain sums over all clicks.
    """
    old, new = totals(clicks, forgets=True), totals(clicks, forgets=False)
    pattern = re.compile("".join(f"[{one}b]*" for one in versions))
    for topic in ("seen", "later"):
        assert Counter(one.at for part in outputs(log, topic) for one in part) == Counter(
            one.at for one in clicks
        )
    ran = ""
    for part in outputs(log, "seen"):
        ran = "".join(_by(one.total, old[one.at], new[one.at]) for one in part)
        assert pattern.fullmatch(ran), ran
    for one in {*versions}:
        assert one in ran
    last = {click.user: click for click in clicks}
    final = {one.user: one.total for part in outputs(log, "later") for one in part}
    assert final == {user: (old if versions[-1] == "o" else new)[one.at] for user, one in last.items()}


def _by(total: int, old: int, new: int) -> str:
    if old == new == total:
        return "b"
    return "o" if total == old else "n" if total == new else "?"


def totals(clicks: list[Click], *, forgets: bool) -> dict[int, int]:
    """By the time of each click, the total of its user."""
    found: dict[int, int] = {}
    sums: dict[str, int] = {}
    for one in clicks:
        if not forgets or one.amount % FORGOTTEN:
            sums[one.user] = sums.get(one.user, 0) + one.amount
        found[one.at] = sums.get(one.user, 0)
    return found


def last_totals(clicks: list[Click], *, forgets: bool) -> dict[str, int]:
    """By user, after the last click."""
    of_click = totals(clicks, forgets=forgets)
    return {one.user: of_click[one.at] for one in clicks}


# --- the command, killed


def main(wanted: bytes, killed_after: str) -> None:
    """Upgrade, and be killed after a step."""

    def reached(step: str) -> None:
        if step == killed_after:
            os.kill(os.getpid(), signal.SIGKILL)

    with ExitStack() as stack:
        report = Upgrading(msgspec.json.decode(wanted, type=Wanted), stack).run(reached)
    sys.stdout.write(msgspec.json.encode(report).decode())


def command(wanted: Wanted, killed_after: str = "", *, fails: bool = False) -> Any:
    """Its report; None if it was killed, and what it says if it fails, as it had to."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.lab.upgrade.stage", msgspec.json.encode(wanted).decode(), killed_after],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": f"{ROOT / 'framework'}:{ROOT}"},
        timeout=600,
    )
    if killed_after:
        assert done.returncode == -signal.SIGKILL, done.stderr
        return None
    if fails:
        assert done.returncode == 1, done.stderr
        return done.stderr
    assert done.returncode == 0, done.stderr
    return msgspec.json.decode(done.stdout)


def wanted_in(folder: Path, new: str, *, rollback: bool = False, log: str = "") -> Wanted:
    """An upgrade to ``new``."""
    return Wanted(
        old=OLD,
        new=new,
        log=log or str(folder / "log"),
        snapshots=str(folder / "snapshots"),
        rollback=rollback,
        where=Where(workers=1),
    )


def upgraded_and_back(log: str, folder: Path, kills: Sequence[str], of_rollback: Sequence[str] = ()) -> None:
    """An upgrade, and its rollback, under production; the command is killed after these steps of each."""
    new = corrected(folder)
    with ExitStack() as stack:
        producer = stack.enter_context(Producer(log, batch=PER_S // 20))
        runs = stack.enter_context(service(OLD, log, folder))
        runs.wait_for("a partition runs", times=2)
        for next_app, back, killed in ((new, False, kills), (OLD, True, of_rollback)):
            asked = wanted_in(folder, new, rollback=back, log=log)
            command(asked, killed_after="begun")
            waits = stack.enter_context(service(next_app, log, folder))
            for step in killed[1:]:
                command(asked, killed_after=step)
            report = command(asked)
            assert report["done"]
            assert killed or report["rows"] > 0
            assert runs.ended() == 1
            assert (
                f"is being {'rolled back' if back else 'upgraded'}" in runs.complaint
                or "has replaced" in runs.complaint
            )
            assert command(asked)["done"] is False
            late = stack.enter_context(service(OLD if next_app == new else new, log, folder))
            assert late.ended() == 1
            assert "has replaced" in late.complaint
            await_outputs(log, len(producer.clicks))
            runs = waits
        producer.stop()
        runs.signal(signal.SIGTERM)
        assert runs.ended() == 0, runs.complaint
        with service(OLD, log, folder, "--end-of-input") as last:
            assert last.ended() == 0, last.complaint
    check(log, producer.clicks, "ono")
    assert step_of(log) == "done"


def refused_while_the_old_version_runs(log: str, folder: Path) -> None:
    """In the new version events wait for their turn that the old one has handled on arrival. The old one is never stopped."""
    new = corrected(folder, ("(tr.Actor)", '(tr.Actor, order="event-time")'))
    with ExitStack() as stack:
        producer = stack.enter_context(Producer(log, batch=5))
        runs = stack.enter_context(service(OLD, log, folder))
        runs.wait_for("a partition runs", times=2)
        assert "wait for their turn in User" in command(wanted_in(folder, new, log=log), fails=True)
        assert step_of(log) == "begun"
        await_outputs(log, len(producer.clicks))
        producer.stop()
        runs.signal(signal.SIGTERM)
        assert runs.ended() == 0, runs.complaint


def upgraded_in_a_quiet_hour(log: str, folder: Path) -> None:
    """One event a minute, one input silent, both idle by the clock: the new version stands where the old one does, and continues."""
    old, new = (
        "tests.lab.upgrade.quiet:app",
        version(
            folder,
            "louder",
            ("WEIGHT = 1", "WEIGHT = 10"),
            ('version="1"', 'version="2"'),
            of=str(quiet.__file__),
        ),
    )
    start_ms = 1_772_323_200_000

    def feed(opened: StoredLog, *minutes: int) -> None:
        some = [quiet.Beat(f"k{at % 3}", start_ms + at * 60_000) for at in minutes]
        opened.append_all(Output("beats", one.key.encode(), msgspec.json.encode(one), one.at) for one in some)

    def told(opened: StoredLog) -> list[int]:
        found = [one for number in range(2) for one in scan(opened, "totals", number)]
        return [msgspec.json.decode(one.value or b"", type=quiet.Total).total for one in found]

    with ExitStack() as stack:
        opened = stack.enter_context(closing(open_log(log, create=True)))
        for topic in ("beats", "silent", "totals"):
            opened.create_topic(topic, TopicSettings(2))
        feed(opened, *range(5))
        runs = stack.enter_context(service(old, log, folder))
        wait_until(lambda: told(opened) == [1, 2, 3, 4, 5], "what waits is handled, as all inputs are idle")
        asked = Wanted(old=old, new=new, log=log, snapshots=str(folder / "snapshots"), where=Where(workers=1))
        command(asked, killed_after="begun")
        waits = stack.enter_context(service(new, log, folder))
        report = command(asked)
        assert report["done"]
        assert runs.ended() == 1
        feed(opened, 60, 61)
        wait_until(lambda: told(opened)[5:] == [60, 70], "the new version continues, by the whole history")
        waits.signal(signal.SIGTERM)
        assert waits.ended() == 0, waits.complaint


if __name__ == "__main__":
    main(sys.argv[1].encode(), sys.argv[2])
