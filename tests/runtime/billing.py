"""Apps that bill by timers of one kind, their life on a log under a clock that the test sets, and what they should have billed.

``by_event`` bills each day of event time: its watermark goes on without a record, when one of its inputs falls idle. ``by_clock``
bills each day of processing time.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path

import msgspec

import tailrace as tr
from tailrace.core.engine import tape
from tailrace.core.records import Output
from tailrace.core.storage import Store
from tailrace.history.reading.app_history import AppHistory
from tailrace.history.reading.beginnings import base_name
from tailrace.history.reading.stretches import scan
from tailrace.history.snapshots.start_from_snapshot import Start, start_from
from tailrace.log.embedded import EmbeddedLog
from tailrace.runtime.preparing import prepare_log
from tailrace.runtime.slices import PartitionSettings
from tailrace.runtime.worker import Worker, WorkerHooks, WorkerSettings
from tailrace.state import MemoryStore
from tailrace.state.snapshots import Snapshots

DAY = 86_400_000
START = 1_700_000_000_000
WHO = tuple(f"who-{number}" for number in range(12))
PARTITIONS = 2
_SETTINGS = WorkerSettings(slice_records=10, partition=PartitionSettings(commit_interval_ms=1))


class Joined(msgspec.Struct, frozen=True):
    who: str
    at: int


class Bill(msgspec.Struct, frozen=True):
    who: str
    day: int


def _billing(name: str, *, by_clock: bool) -> tr.App:
    app = tr.App(name, partitions=PARTITIONS)
    joined = app.topic("joined", Joined, key="who", key_type=str, event_time="at", idle_after="60s")
    beats = app.topic("beats", Joined, key="who", key_type=str, event_time="at", idle_after="1000d")
    bills = app.topic(f"{name}-bills", Bill, key="who", key_type=str)

    @app.actor
    class Subscriber(tr.Actor, order="arrival"):
        since: int = 0
        days: int = 0
        heard: int = 0

        @tr.process(joined)
        def join(self, event: Joined, ctx: tr.Context[str]) -> None:
            self.since = event.at
            self._next(ctx)

        @tr.process(beats)
        def beat(self, event: Joined, ctx: tr.Context[str]) -> None:
            self.heard += 1

        @(tr.on_processing_timer("day") if by_clock else tr.on_timer("day"))
        def day(self, ctx: tr.Context[str]) -> None:
            self.days += 1
            ctx.emit(bills, Bill(ctx.key, self.days))
            self._next(ctx)

        def _next(self, ctx: tr.Context[str]) -> None:
            due = self.since + (self.days + 1) * DAY
            if by_clock:
                ctx.set_processing_timer(due, "day")
            else:
                ctx.set_timer(due, "day")

    return app


by_event = _billing("by_event", by_clock=False)
by_clock = _billing("by_clock", by_clock=True)
APPS = {app.name: f"tests.runtime.billing:{app.name}" for app in (by_event, by_clock)}


class Billing:
    """One of the apps on a log in a folder. ``now`` is the time that it goes by, in days since its customers joined."""

    def __init__(self, folder: Path, app: tr.App) -> None:
        self.folder, self.app, self.plan = folder, app, app.plan()
        self.log = EmbeddedLog(folder / "log")
        prepare_log(self.log, self.plan, create_declared=True)
        self.stores = [MemoryStore() for _ in range(PARTITIONS)]
        self.now = 0.0
        self.clock_ms = START

    def say(self, topic: str, at_ms: int, who: tuple[str, ...] = WHO) -> None:
        self.log.append_all(
            [
                Output(
                    topic, one.encode(), msgspec.json.encode(Joined(one, at_ms)), min(at_ms, self.clock_ms)
                )
                for one in who
            ]
        )

    def join(self) -> None:
        """All join at the start, and what tells of event time stands 100 days later."""
        self.say("joined", START)
        self.say("beats", START + 100 * DAY)
        self.run()

    def passes(self, days: float) -> None:
        """So much time passes without a record: for ``by_event`` the other input falls idle, and all 100 days are due at once."""
        self.now += days
        self.clock_ms += int(days * DAY)
        self.run()

    def run(self, start: Start | None = None) -> None:
        """Live until there is nothing to do by the clock as it is."""

        def begin(number: int, store: Store) -> None:
            assert start is not None
            start_from(self.plan, number, self.log, store, start, self.clock_ms)

        elapsed = [self.clock_ms]
        worker = Worker(
            self.plan,
            self.log,
            range(PARTITIONS),
            lambda number: self.stores[number],
            settings=replace(_SETTINGS, bounded=True),
            hooks=WorkerHooks() if start is None else WorkerHooks(begin=begin),
            clock=lambda: elapsed[0],
        )
        worker.start()
        for _ in range(2):
            while worker.turn() or not worker.quiet:
                pass
            if not self.now:
                break
            elapsed[0] += 61_000  # long enough for an input to be idle
        self.clock_ms = elapsed[0]
        worker.leave()

    def snapshots(self) -> Snapshots:
        return Snapshots(str(self.folder / "snapshots"), self.app.name)

    def start(self, which: str = "latest") -> Start:
        found = self.snapshots().open(which)
        return Start(found, base_name(found, str(self.folder / "snapshots")), replace=True)

    def cut(self, number: int) -> tape.Cut:
        data = AppHistory(self.plan, self.log).committed(number).cut
        assert data is not None
        return tape.decode_cut(data)

    def billed(self) -> Counter[tuple[str, int]]:
        """Who was billed for which day, and how often."""
        found: Counter[tuple[str, int]] = Counter()
        topic = f"{self.app.name}-bills"
        for number in range(self.log.partitions(topic)):
            for record in scan(self.log, topic, number, 0):
                bill = msgspec.json.decode(record.value or b"", type=Bill)
                found[bill.who, bill.day] += 1
        return found

    def owed(self) -> Counter[tuple[str, int]]:
        """The oracle: each day that has passed, once."""
        passed = int(self.now) if self.app is by_clock else 100 if self.now else 0
        # A watermark is a millisecond behind the highest event time.
        days = passed - (self.app is by_event and passed > 0)
        return Counter({(who, day): 1 for who in WHO for day in range(1, days + 1)})
