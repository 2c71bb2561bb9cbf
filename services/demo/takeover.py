"""The last act: a corrected airport service is compared with the one that runs, and takes over from it while flights are recorded.

    tailrace ab         both versions over the year: a page with what differs, and from which event on
    tailrace upgrade    the state of version 2, made from history; version 1 ends, and version 2 continues

Three checks: version 1 does not differ from the service, and the two versions differ where their alerts do; the alerts of each are those that plain Python
finds in the statistics of the hours; and the hours that version 2 has in the end are those that plain Python counts in the whole history.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple, TypeAlias

import msgspec

from schemas.flights import HOUR_MS, Cancellation, Departure
from services.demo.accounts import read
from services.demo.commands import failed, run_command
from services.demo.console import Console
from services.demo.live import LiveRun
from services.demo.process import Folders, Service, ServiceFailed
from services.flights import airport, airport_2
from services.flights.history import Fact
from services.flights.load import load
from tailrace.history.reading.upgrades import last_upgrade
from tailrace.log import Log
from tailrace.log.embedded import EmbeddedLog
from tailrace.log.kafka import KafkaLog

REFERENCE = "services.flights.airport_2:app"
METRICS = Path(airport.__file__).with_name("alerts.sql")
_LOOK_S = 0.05
_LOAD_EVERY_S = 0.5
_BATCHES = 60
"""The facts are appended in about so many batches, so that some are still to come when version 1 ends."""
_HOURS_QUERY = """select key, entry, value.departures as departures, value.cancelled as cancelled,
value.delayed as delayed, value.delay_minutes as minutes from states.Airport_hours"""
_KEPT_MS = 48 * HOUR_MS
"""The hours of the last two days cannot have expired."""

Hours: TypeAlias = dict[tuple[str, int], tuple[int, int, int, int]]
"""By airport and hour: departures, cancelled flights, delayed departures, minutes of delay."""


class Counts(msgspec.Struct, frozen=True):
    """The part of the counts of ``tailrace ab`` that is used here: of version 1, and of version 2."""

    keys: int
    keys_differ: int
    outputs: tuple[int, int]
    outputs_differ: int


class Metric(msgspec.Struct, frozen=True):
    """A number in both versions."""

    name: str
    a: float
    b: float


class Held(msgspec.Struct, frozen=True):
    """The part of the report of ``tailrace ab`` that is used here."""

    counts: Counts
    order: str
    noise: list[str]
    metrics: list[Metric]
    seconds: float


class TakenOver(NamedTuple):
    """How version 2 took over, and how many records were appended meanwhile."""

    gap_s: float
    seconds: float
    appended: int
    hours: int
    errors: list[str]


class Upgraded(msgspec.Struct, frozen=True):
    """The part of the report of ``tailrace upgrade`` that is used here."""

    stopped_s: float


def hold_against(service: Service, folders: Folders, to: Path) -> Held:
    """Run ``tailrace ab`` on the whole history. The results, a page among them, are in the folder ``to``.

    Raises:
        ServiceFailed: The command has failed.
    """
    shutil.rmtree(to, ignore_errors=True)
    arguments: list[str | Path] = [service.reference, REFERENCE, "--log", folders.log, "--to", to]
    arguments += ["--metrics", METRICS, "--json"]
    code, said = run_command(service, "ab", arguments)
    try:
        return msgspec.json.decode(said, type=Held)
    except msgspec.MsgspecError:
        raise failed(service, "ab", code) from None


def alerts_due(log: Log, cancelled_minutes: int) -> dict[str, float]:
    """The metrics of ``alerts.sql`` in plain Python, from what was known of each hour when it was complete.

    A cancelled flight counts as one with this delay; with 0 it does not count at all.
    """
    hours = {
        (one.airport, one.hour_ms): one for one in read(log, airport.hourly_statistics) if one.revision == 1
    }

    def is_congested(place: tuple[str, int]) -> bool:
        if (hour := hours.get(place)) is None:
            return False
        flights = hour.departures + (hour.cancelled if cancelled_minutes else 0)
        minutes = hour.delay_minutes + cancelled_minutes * hour.cancelled
        enough = flights >= airport.CONGESTED_DEPARTURES
        return enough and minutes >= airport.CONGESTED_MINUTES * flights

    runs = [
        [(name, hour_ms + number * HOUR_MS) for number in range(airport.CONGESTED_HOURS)]
        for name, hour_ms in hours
        if not is_congested((name, hour_ms - HOUR_MS))
    ]
    alerts = [run for run in runs if all(map(is_congested, run))]
    departures = sum(hours[place].departures for run in alerts for place in run)
    return {"alerts": len(alerts), "departures_in_alerts": departures}


class TakeOver:
    """Version 1 runs, flights are recorded, and version 2 takes over."""

    def __init__(
        self,
        services: Sequence[Service],
        log: EmbeddedLog | KafkaLog,
        folders: Folders,
        console: Console,
        interval: str,
    ) -> None:
        self._aircraft, self._old = services
        self._log, self._folders, self._console = log, folders, console
        self._new = Service(airport_2.app, REFERENCE, folders, log, interval)
        self._new.state = self._old.state
        self._appended = 0

    def run(self, rest: Sequence[Fact], history: Sequence[Fact]) -> TakenOver:
        """Let version 2 take over while ``rest`` is appended, and compare its state with ``history``.

        Raises:
            ServiceFailed: A process or the upgrade has failed.
        """
        begun_s = time.monotonic()
        command: subprocess.Popen[bytes] | None = None
        try:
            self._aircraft.start(end_of_input=False)
            self._old.start(end_of_input=False)
            command = self._upgrade()
            said = self._record_meanwhile(rest, command)
        finally:
            for one in (self._aircraft, self._old, self._new):
                one.end()
            if command is not None and command.poll() is None:
                command.kill()
                command.wait()
        appended = self._appended
        load(self._log, rest[appended:])
        live = LiveRun(self._aircraft, self._new, self._console)
        try:
            live.finish()
        finally:
            live.end()
        found, due = self._hours(), counted(history)
        return TakenOver(
            said.stopped_s, time.monotonic() - begun_s, appended, len(found), errors_of(found, due)
        )

    def _upgrade(self) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "tailrace", "upgrade", self._old.reference]
        command += ["--to", self._new.reference, "--log", str(self._folders.log)]
        command += ["--snapshots", str(self._folders.upgrades), "--json"]
        with self._new.words.open("ab") as words:
            return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=words)

    def _record_meanwhile(self, rest: Sequence[Fact], command: subprocess.Popen[bytes]) -> Upgraded:
        """Append facts until the upgrade has ended. Version 2 is started as soon as it is under way, and waits."""
        begun_s, loaded_s, started = time.monotonic(), 0.0, False
        at_once = max(1, len(rest) // _BATCHES)
        while command.poll() is None:
            now_s = time.monotonic()
            if now_s - loaded_s > _LOAD_EVERY_S and self._appended < len(rest):
                batch = rest[self._appended : self._appended + at_once]
                load(self._log, batch)
                self._appended += len(batch)
                loaded_s = now_s
            upgrade = None if started else last_upgrade(self._log, self._old.name)
            if upgrade is not None and upgrade.is_open:
                self._new.start(end_of_input=False)
                started = True
            self._console.progress(
                f"{now_s - begun_s:4.0f} s   airport is being upgraded, {self._appended:,} records appended meanwhile"
            )
            time.sleep(_LOOK_S)
        assert command.stdout is not None
        said = command.stdout.read()
        command.stdout.close()
        if command.returncode:
            raise failed(self._new, "upgrade", command.returncode)
        if not started or not self._old.is_replaced():
            raise ServiceFailed("version 1 of airport still runs after the upgrade")
        return msgspec.json.decode(said, type=Upgraded)

    def _hours(self) -> Hours:
        """The hours in the committed state of version 2."""
        arguments: list[str | Path] = [
            self._new.reference,
            _HOURS_QUERY,
            "--log",
            self._folders.log,
            "--json",
        ]
        code, said = run_command(self._new, "sql", arguments)
        if code:
            raise failed(self._new, "sql", code)
        rows = map(msgspec.json.decode, said.splitlines())
        return {
            (row["key"], int(row["entry"])): (
                row["departures"],
                row["cancelled"],
                row["delayed"],
                row["minutes"],
            )
            for row in rows
        }


def counted(history: Sequence[Fact]) -> Hours:
    """What an airport counts in each hour, in plain Python."""
    found: dict[tuple[str, int], list[int]] = defaultdict(lambda: [0, 0, 0, 0])
    for _, event in history:
        match event:
            case Departure():
                delay = event.delay_minutes
                place = event.origin, event.scheduled_ms - event.scheduled_ms % HOUR_MS
                for number, more in enumerate((1, 0, delay >= airport.DELAYED_MINUTES, delay)):
                    found[place][number] += more
            case Cancellation():
                found[event.airport, event.scheduled_ms - event.scheduled_ms % HOUR_MS][1] += 1
            case _:
                pass
    return {place: (one[0], one[1], one[2], one[3]) for place, one in found.items()}


def errors_of(found: Hours, due: Hours) -> list[str]:
    """The hours of a state that are not as counted, and those of the last days that are missing."""
    nothing = 0, 0, 0, 0
    wrong = {place for place, one in found.items() if one != due.get(place, nothing)}
    last_ms = max(hour_ms for _, hour_ms in due)
    wrong |= {place for place in due if place[1] > last_ms - _KEPT_MS and place not in found}
    return [f"{place}: {found.get(place)}, by plain Python {due.get(place)}" for place in sorted(wrong)]
