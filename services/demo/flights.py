"""Three months of flights, or a year: loaded into a log, run through both services as real processes (one is killed), replayed, drawn.

The last days are loaded later, after both states are rebuilt from the log. The services continue from these states. The
very last facts are recorded while a corrected version of one service takes over.

Nine checks. The exit code is 1 if one fails:

    rebuild       the states that Spark and local processes rebuild from the log equal those that the services have stored there
    replay        state and outputs of a replay along the tape equal those of the live run byte for byte
    the tape      the replays did as much work as the live run
    questions     what is asked over HTTP is what the outputs say
    schedules     the first events give the same results, whatever arrives first, and whenever tasks commit and crash
    a window      the mean delays per airport and hour equal a query in SQL over the log
    two versions  a corrected airport service has other alerts than the one that ran, and both those of plain Python
    a take-over   the hours of the corrected service, which took over while facts were recorded, are those of plain Python
    accounts      every departure and cancellation of the history is in the outputs of the services exactly once
"""

from __future__ import annotations

import gc
import shutil
import sys
import time
from collections.abc import Sequence
from concurrent.futures import Future
from contextlib import closing
from dataclasses import dataclass
from datetime import date, timedelta
from functools import partial
from pathlib import Path
from typing import NamedTuple

import msgspec

from services.demo.accounts import Accounts, results_of
from services.demo.commands import SideBySide, side_by_side
from services.demo.console import Console
from services.demo.delays import Row, compare, rows_by_sql, run_to_end
from services.demo.explorations import Explored, explore
from services.demo.live import LiveRun
from services.demo.process import Folders, Service, ServiceFailed, kafka_url
from services.demo.questions import Questions, picture_of
from services.demo.rebuilds import rebuild
from services.demo.replays import Replayed, replay
from services.demo.summary import row, summary
from services.demo.takeover import Held, TakeOver, alerts_due, hold_against
from services.flights import aircraft, airport, airport_2, delays
from services.flights.history import Fact, facts
from services.flights.load import load
from services.flights.picture import draw
from tailrace.core.engine.tape import Totals
from tailrace.core.errors import TailraceError
from tailrace.log import Log
from tailrace.log.embedded import EmbeddedLog
from tailrace.log.kafka import KafkaLog

ABOUT = """The flights from New York in 2013, through two services. Each is a process on one log.

   departures, arrivals, airframes  ──►  aircraft  ──►  movements  ──►  airport  ◄──  weather, cancellations
   keyed by tail number                                                               keyed by airport"""

KEPT_BACK = 40
"""One part in this many of the facts is loaded later."""
RECORDED_MEANWHILE = 1_000
"""At most so many facts are recorded after the first service was killed: it may have handled all of the others before."""
RECORDED_LAST = 1_500
"""Number of facts that are recorded while the corrected version takes over."""
YEAR = date(2013, 1, 1), date(2014, 1, 1)
ENGINES = {"aircraft": "spark", "airport": "local"}
"""What rebuilds the state of each service."""
COMPARED = 3
"""Number of things that a replay is compared with: the state folders, the changelog, the outputs."""


@dataclass(frozen=True, slots=True)
class Settings:
    """The days, and the folder for log, state and picture. Results of an earlier run are removed from it."""

    since: date = date(2013, 1, 1)
    until: date = date(2013, 4, 1)
    """The day after the last."""
    out: Path = Path("out")
    commit_interval: str = "300ms"
    log: str = ""
    """``kafka://host:port``, to run on Kafka instead of a log on disk. Each run has topics of its own there."""


def main(settings: Settings) -> int:
    """Run the demo. Returns the exit code."""
    console, begun_s = Console(), time.monotonic()
    console.say(ABOUT)
    try:
        failures = Demo(settings, console).run()
    except (ServiceFailed, TailraceError, FileNotFoundError) as error:
        failures = [str(error)]
    for failure in failures:
        console.say(f"\nFAILED: {failure}")
    if not failures:
        console.say(f"\nAll checks passed, in {time.monotonic() - begun_s:.0f} s.")
    return 1 if failures else 0


class _Begun(NamedTuple):
    """What runs side by side."""

    versions: list[Future[Held]]
    replays: list[Future[Replayed]]
    window: list[Future[float]]
    rows: list[Future[list[Row]]]


class Demo:
    """The parts of the demo, in their order."""

    def __init__(self, settings: Settings, console: Console) -> None:
        self._settings = settings
        self._console = console
        self._folders = Folders(settings.out / "flights-2013", kafka_url(settings.log))
        folders = self._folders
        for left in (
            folders.base / "log",
            folders.state,
            folders.snapshots,
            folders.rebuilt,
            folders.upgrades,
        ):
            shutil.rmtree(left, ignore_errors=True)
        for left in self._folders.base.glob("*.log"):
            left.unlink()
        self._folders.base.mkdir(parents=True, exist_ok=True)
        self._to = settings.out / "airport-ab"
        """The results of the comparison of versions."""
        self._snapshots: dict[str, str] = {}
        """By service, its rebuilt snapshot: ``URI#ID``."""

    def run(self) -> list[str]:
        """Run all parts. Returns the failures."""
        log = self._folders.open_log()
        with closing(log), side_by_side(self._console) as beside:
            first, rest, last = self._history()
            meanwhile = first[-min(RECORDED_MEANWHILE, len(first) // 10) :]
            self._load(log, first[: -len(meanwhile)])
            *services, window = (
                Service(
                    app,
                    f"services.flights.{app.name}:app",
                    self._folders,
                    log,
                    self._settings.commit_interval,
                )
                for app in (aircraft.app, airport.app, delays.app)
            )
            self._live(log, services, meanwhile)
            failures = self._rebuild(beside, services)
            explorations = beside.begin(partial(explore, folders=self._folders), *services)
            with Questions(services[0], self._folders, self._console) as questions:
                self._go_on(log, services, rest)
                begun = self._begin(beside, services, window)
                failures += self._ask(log, questions)
            totals = [one.totals() for one in services]
            failures += self._replay(beside, begun, services, totals)
            failures += self._explore(beside, explorations, services)
            failures += self._delays(beside, begun, log)
            failures += self._two_versions(beside, begun, log)
            page, picture = self._to / "report.html", self._to.with_suffix(".png")
            pictures = beside.begin(partial(picture_of, path=picture), page.resolve().as_uri())
            history = [*first, *rest, *last]
            failures += self._take_over(log, services, last, history)
            failures += self._close(log, Accounts.of(history), totals)
            beside.results(pictures, "a picture is taken")
            return failures

    def _history(self) -> tuple[list[Fact], list[Fact], list[Fact]]:
        """The history in three parts: the second is loaded after the first has been run and rebuilt, the third in the last act."""
        console, settings = self._console, self._settings
        console.title("The history, into the log")
        begun_s = time.monotonic()
        history = facts(settings.since, settings.until)
        days = f"{day_of(settings.since)} to {day_of(settings.until - timedelta(days=1))} 2013"
        took_s = time.monotonic() - begun_s
        console.say(f"   {len(history):,} facts of {days}, read and sorted in {took_s:.1f} s")
        later = max(1, len(history) // KEPT_BACK)
        last = min(later // 2, RECORDED_LAST)
        return history[:-later], history[-later:-last], history[-last:]

    def _load(self, log: EmbeddedLog | KafkaLog, history: Sequence[Fact]) -> None:
        console = self._console
        begun_s = time.monotonic()
        # Nothing becomes garbage before everything is loaded.
        gc.disable()
        try:

            def on_progress(loaded: int) -> None:
                rate = loaded / (time.monotonic() - begun_s)
                console.progress(f"{loaded:9,} records   {rate:7,.0f} records/s")

            loaded = load(log, history, on_progress)
            rate = loaded / (time.monotonic() - begun_s)
            console.say(
                f"   {loaded:,} records appended, in the order in which they became known: {rate:,.0f} records/s"
            )
        finally:
            gc.enable()

    def _live(
        self, log: EmbeddedLog | KafkaLog, services: Sequence[Service], meanwhile: Sequence[Fact]
    ) -> None:
        console = self._console
        console.title("Live: both services run, and one is killed halfway")
        live = LiveRun(services[0], services[1], console)
        try:
            found = live.run(lambda: self._load(log, meanwhile))
        finally:
            live.end()
        rate = found.records / found.seconds
        console.say(
            f"   {found.records:,} records, exactly once, in {found.seconds:.0f} s: {rate:,.0f} records/s"
        )

    def _rebuild(self, beside: SideBySide, services: Sequence[Service]) -> list[str]:
        console, folders = self._console, self._folders
        console.title(
            "Rebuild: the state of both services from the log, of one by Spark, compared byte by byte"
        )
        failures: list[str] = []
        begun = beside.begin(lambda one: rebuild(one, folders, ENGINES[one.name]), *services)
        all_made = beside.results(begun, "both are being rebuilt")
        for service, made in zip(services, all_made, strict=True):
            console.say(
                f"   {made.app:9}{made.events:8,} events, {made.keys:,} keys, {made.rows:,} rows, along the {made.order}, "
                f"with the {made.engine} engine, in {made.seconds:.1f} s   ({made.events / max(made.seconds, 0.001):,.0f} events/s)"
            )
            self._snapshots[service.name] = f"{folders.snapshots}#{made.snapshot}"
            console.say(
                f"   {'':9}compared with the log: {made.same_rows:,} rows, differences {made.other_rows:,}"
            )
            failures += made.failures()
        return failures

    def _go_on(self, log: EmbeddedLog | KafkaLog, services: Sequence[Service], rest: Sequence[Fact]) -> None:
        console, folders = self._console, self._folders
        console.title(
            "The last days: both services start from the rebuilt snapshots, with empty state folders"
        )
        self._load(log, rest)
        for service in services:
            service.state = folders.rebuilt
        live = LiveRun(services[0], services[1], console)
        try:
            found = live.go_on(self._snapshots)
        finally:
            live.end()
        console.say(f"   {found.records:,} more records, exactly once, in {found.seconds:.0f} s")

    def _begin(self, beside: SideBySide, services: Sequence[Service], window: Service) -> _Begun:
        """Begin what does not change the two services: the next acts show the results. What takes longest comes first."""
        folders = self._folders
        return _Begun(
            versions=beside.begin(partial(hold_against, folders=folders, to=self._to), services[1]),
            replays=beside.begin(partial(replay, folders=folders), *services),
            window=beside.begin(run_to_end, window),
            rows=beside.begin(partial(rows_by_sql, folders=folders), window),
        )

    def _ask(self, log: Log, questions: Questions) -> list[str]:
        console = self._console
        console.title("Questions: what is committed, asked over HTTP and compared with the outputs")
        said = questions.compare(log)
        console.say(
            f"   {said.asked} aircraft asked for in {said.seconds:.1f} s: differences {len(said.errors)}; {said.example}"
        )
        picture = questions.picture(self._settings.out / "page.png")
        console.say(
            "   no picture of the page: no Chromium was found"
            if picture is None
            else f"   the page for people: {picture}"
        )
        return said.errors

    def _replay(
        self, beside: SideBySide, begun: _Begun, services: Sequence[Service], totals: Sequence[Totals]
    ) -> list[str]:
        console = self._console
        console.title("Replay: the whole history along the tape, compared byte by byte")
        failures: list[str] = []
        all_found = beside.results(begun.replays, "both are being replayed")
        for service, live, found in zip(services, totals, all_found, strict=True):
            console.say(replay_line(found))
            for note in found.notes:
                console.say(f"      note: {note}")
            if found.differences:
                shown = "\n   ".join(msgspec.json.format(one).decode() for one in found.first[:3])
                failures.append(
                    f"the replay of {service.name} differs {found.differences:,} times:\n   {shown}"
                )
            if len(found.compared) < COMPARED:
                failures.append(
                    f"the replay of {service.name} was compared with {', '.join(found.compared) or 'nothing'} only"
                )
            if (found.records, found.timers, found.outputs) != (live.records, live.fired, live.outputs):
                failures.append(f"the replay of {service.name} has other counts than the live run: {live}")
        return failures

    def _explore(
        self, beside: SideBySide, begun: Sequence[Future[Explored]], services: Sequence[Service]
    ) -> list[str]:
        console = self._console
        console.title("Schedules: the first events in many orders of arrival, compared key by key")
        failures: list[str] = []
        all_found = beside.results(begun, "both are being explored")
        for service, found in zip(services, all_found, strict=True):
            console.say(
                f"   {found.app:9}{found.schedules} schedules of {found.records:,} events, {found.keys:,} keys: "
                f"differences {len(found.differing):,}   ({found.seconds:.1f} s)"
            )
            if found.differing:
                causes = "\n   ".join(one.cause for one in (*found.errors, *found.declared))
                failures.append(f"the results of {service.name} depend on the schedule:\n   {causes}")
        return failures

    def _delays(self, beside: SideBySide, begun: _Begun, log: Log) -> list[str]:
        console = self._console
        console.title("A window: mean delays per airport and hour, compared with a query in SQL over the log")
        (seconds,) = beside.results(begun.window, "delays runs to the end of the log")
        (rows,) = beside.results(begun.rows, "SQL is asked for the same")
        found = compare(log, rows)
        console.say(
            f"   {found.hours:,} hours of airports, {found.corrections:,} corrections by late departures: "
            f"differences {len(found.differences):,}   ({seconds:.1f} s)"
        )
        return [f"the delays differ from the query in {one}" for one in found.differences[:3]]

    def _two_versions(self, beside: SideBySide, begun: _Begun, log: Log) -> list[str]:
        console = self._console
        console.title(
            "Two versions: an airport service that counts cancelled flights, compared with the first"
        )
        (found,) = beside.results(begun.versions, "airport is compared with version 2")
        counts = found.counts
        console.say(
            f"   {counts.outputs_differ:,} outputs differ, of {counts.outputs[0]:,} and {counts.outputs[1]:,}, "
            f"along the {found.order}; version 1 differs from itself: {'; '.join(found.noise) or 'nowhere'}   ({found.seconds:.1f} s)"
        )
        due = alerts_due(log, 0), alerts_due(log, airport_2.CANCELLED_MINUTES)
        for one in found.metrics:
            console.say(
                f"   {one.name.replace('_', ' ')}: {one.a:,.0f} in version 1, {one.b:,.0f} in version 2; "
                f"by plain Python {due[0][one.name]:,} and {due[1][one.name]:,}"
            )
        console.say(
            f"   the page: {self._to / 'report.html'}; a picture of it: {self._to}.png, if there is a Chromium"
        )
        failures = [f"version 1 of airport differs from itself: {one}" for one in found.noise]
        failures += [
            f"the metric {one.name!r} is not as counted by plain Python"
            for one in found.metrics
            if (one.a, one.b) != (due[0][one.name], due[1][one.name])
        ]
        if (due[0] != due[1]) != bool(counts.outputs_differ):
            failures.append("the outputs of the two versions do not differ as their alerts do")
        return failures

    def _take_over(
        self,
        log: EmbeddedLog | KafkaLog,
        services: Sequence[Service],
        last: Sequence[Fact],
        history: list[Fact],
    ) -> list[str]:
        console = self._console
        console.title("An upgrade: the corrected version takes over while flights are recorded")
        act = TakeOver(services, log, self._folders, console, self._settings.commit_interval)
        found = act.run(last, history)
        console.say(
            f"   {found.appended:,} records appended meanwhile; no process of airport worked for {found.gap_s:.1f} s; "
            f"{found.hours:,} hours in the state, compared with plain Python: differences {len(found.errors)}   ({found.seconds:.0f} s)"
        )
        return [f"the state of version 2: {one}" for one in found.errors[:3]]

    def _close(self, log: Log, accounts: Accounts, totals: Sequence[Totals]) -> list[str]:
        console, settings = self._console, self._settings
        results = results_of(log)
        errors = accounts.errors(log, results)
        console.title("The year" if (settings.since, settings.until) == YEAR else "These days")
        for line in summary(results):
            console.say(line)
        console.say()
        timers, late = sum(one.fired for one in totals), sum(one.late for one in totals)
        console.say(
            row("time", f"{timers:,} timers fired and entries expired; {late:,} late events, all handled")
        )
        if not errors:
            console.say(
                row(
                    "accounts",
                    f"each of {accounts.departures.total():,} departures was forwarded, counted and joined exactly once",
                )
            )
        console.say(row("picture", str(draw(results, settings.out / "flights.svg"))))
        tailrace, where = f"{interpreter()} -m tailrace", f"--log {self._folders.log}"
        for name, rest in (
            ("next", f"replay services.flights.aircraft:app {where} --trace N328AA"),
            ("", f"log tail congestion-alerts {where}"),
        ):
            console.say(row(name, f"{tailrace} {rest}"))
        return [f"the accounts: {error}" for error in errors]


def interpreter() -> Path:
    """The path of the running interpreter, relative to the working folder if possible."""
    path = Path(sys.executable)
    return path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path


def day_of(day: date) -> str:
    """A day of the year, as text."""
    return f"{day.day} {day:%B}"


def replay_line(found: Replayed) -> str:
    """A line with the counts of a replay and its number of differences."""
    return (
        f"   {found.app:9}{found.records:8,} records, {found.timers:,} timers, {found.outputs:,} outputs, "
        f"{found.rows:,} rows of state: differences {found.differences:,}   "
        f"({found.records / max(found.seconds, 0.001):,.0f} records/s)"
    )
