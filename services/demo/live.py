"""Runs both services over the history at the same time. One follows the other, which is killed half way.

Later both continue from snapshots, with empty state folders. At the end, all inputs end.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from services.demo.console import Console
from services.demo.process import Service, ServiceFailed

_LOOK_S = 0.05
_LOOK_AT_KAFKA_S = 0.1
_LOOK_AT_PROGRESS_S = 1.0
"""So often all counts are read, which takes longer than to look whether a condition holds."""
_SETTLED_S = 0.7
"""Longer than the services take from one commit to the next."""
_STANDSTILL_S = 180.0
"""If nothing is committed for this long, the run has failed. Quiet inputs hold everything back for 60 s (``idle_after``) after a start."""


class Live(NamedTuple):
    """The measurements of a run."""

    records: int
    seconds: float
    killed_at: int
    """Number of records that the killed service had committed."""
    back_s: float
    """Seconds from the kill to the next commit of the service."""


class LiveRun:
    """Call ``run``, ``go_on``, and ``finish``. ``end`` kills all processes, also after an error."""

    def __init__(self, aircraft: Service, airport: Service, console: Console) -> None:
        self._aircraft = aircraft
        self._airport = airport
        self._console = console
        self._on_kafka = aircraft.on_kafka
        self._running: list[Service] = []
        """The services that must not exit by themselves."""
        self._begun_s = time.monotonic()
        self._handled: list[int] = []
        """Number of offsets that each service has handled; 0 if it has not read all. Since ``_handled_s``."""
        self._handled_s = 0.0
        self._before = 0.0, 0
        self._rate = 0.0

    def run(self, record: Callable[[], None]) -> Live:
        """Run both until they have read the whole log, and stop them. ``record`` is called after the kill, and appends more.

        Raises:
            ServiceFailed: A service failed or exited too early, or was done before it could be killed.
        """
        aircraft, airport, say = self._aircraft, self._airport, self._console.say
        self._begun_s = time.monotonic()
        aircraft.start(end_of_input=False)
        airport.start(end_of_input=False)
        self._running = [aircraft, airport]
        say(
            f"   ✓ aircraft is process {aircraft.pid}, airport, which reads its output, is process {airport.pid}"
        )

        whole = aircraft.waiting()
        self._until(lambda: aircraft.committed() > whole // 2)
        pid, killed_s = aircraft.pid, time.monotonic()
        if not aircraft.kill() or (killed_at := aircraft.committed()) >= whole:
            raise ServiceFailed("aircraft was done before it could be killed: take more days")
        say(f"   ✗ aircraft {pid} is killed (SIGKILL) with {killed_at:,} of {whole:,} handled and committed")
        aircraft.start(end_of_input=False)
        record()
        self._until(lambda: aircraft.committed() > killed_at)
        back_s = time.monotonic() - killed_s
        say(f"   ✓ aircraft is process {aircraft.pid}: {back_s:.1f} s later it commits again")

        self._until(self._all_is_handled)
        seconds = time.monotonic() - self._begun_s
        records = self._records()
        self._stop()
        return Live(records, seconds, killed_at, back_s)

    def go_on(self, snapshots: Mapping[str, str]) -> Live:
        """Run both, from their snapshots, until they have read the whole log. Records that were committed before are not counted.

        Raises:
            ServiceFailed: A service failed or exited too early.
        """
        aircraft, airport, say = self._aircraft, self._airport, self._console.say
        self._begun_s, before = time.monotonic(), self._records()
        self._running = [aircraft, airport]
        for one in self._running:
            one.start(end_of_input=False, from_snapshot=snapshots[one.name])
        say(
            f"   ✓ aircraft is process {aircraft.pid}, airport {airport.pid}; both start from the rebuilt snapshots"
        )
        self._until(self._all_is_handled)
        records, seconds = self._records() - before, time.monotonic() - self._begun_s
        self._stop()
        return Live(records, seconds, 0, 0.0)

    def finish(self) -> None:
        """Run both to the end of all inputs.

        Raises:
            ServiceFailed: A service failed or exited too early.
        """
        aircraft, airport, say = self._aircraft, self._airport, self._console.say
        self._begun_s = time.monotonic()
        aircraft.start(end_of_input=True)
        self._until(aircraft.has_left)
        say("   ✓ aircraft, started again with --end-of-input, has handled all records, and exits")
        airport.start(end_of_input=True)
        self._until(airport.has_left)
        say("   ✓ so has airport, after it")

    def _records(self) -> int:
        return self._aircraft.totals().records + self._airport.totals().records

    def _all_is_handled(self) -> bool:
        """Whether all records are read, and the last of them have released nothing more for a while."""
        handled = [one.has_caught_up() and one.committed() for one in (self._aircraft, self._airport)]
        now_s = time.monotonic()
        if not all(handled) or handled != self._handled:
            self._handled, self._handled_s = handled, now_s
        return all(handled) and now_s - self._handled_s > _SETTLED_S

    def _stop(self) -> None:
        services, self._running = self._running, []
        for one in services:
            one.terminate()
        self._until(lambda: all(one.has_left() for one in services))
        self._console.say("   ✓ both have read all records, and exit on SIGTERM")

    def end(self) -> None:
        """Kill the processes that still run."""
        self._aircraft.end()
        self._airport.end()

    def _until(self, condition: Callable[[], bool]) -> None:
        """Wait for a condition, and show the progress."""
        committed, moved_s, looked_s = -1, time.monotonic(), 0.0
        while not condition():
            for one in self._running:
                if one.has_left():
                    raise ServiceFailed(f"{one.name} has exited too early")
            self._aircraft.has_left()
            now_s = time.monotonic()
            if now_s - looked_s > _LOOK_AT_PROGRESS_S:
                counts = [one.committed() for one in (self._aircraft, self._airport)]
                if sum(counts) > committed:
                    committed, moved_s = sum(counts), now_s
                elif now_s - moved_s > _STANDSTILL_S:
                    raise ServiceFailed(f"nothing was committed for {_STANDSTILL_S:.0f} s")
                self._console.progress(self._line(now_s, counts))
                looked_s = now_s
            time.sleep(_LOOK_AT_KAFKA_S if self._on_kafka else _LOOK_S)

    def _line(self, now_s: float, counts: Sequence[int]) -> str:
        now = sum(counts)
        since_s, before = self._before
        if now_s - since_s >= 2.0:
            self._before = now_s, now
            self._rate = (now - before) / (now_s - since_s) if since_s else 0.0
        shares = [
            f"{one.name} {count:9,} of {one.waiting():,}"
            for one, count in zip((self._aircraft, self._airport), counts, strict=True)
        ]
        rate = f"   {self._rate:7,.0f} records/s" if self._rate else ""
        return f"{now_s - self._begun_s:4.0f} s   {'   '.join(shares)}{rate}"
