"""An app for worker processes: every key counts what it is told, and tells an auditor of another key of it.

What comes out shows whether anything was lost or repeated: the counts of a key go up by one, and the auditors' sums
are those of all. ``TALLY_SLOW_MS`` makes every handler take so long; in the file ``TALLY_BEGUN`` it then says which process
has begun with an event.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

import msgspec

import tailrace as tr

SLOW_S = int(os.environ.get("TALLY_SLOW_MS", "0")) / 1_000
BEGUN = os.environ.get("TALLY_BEGUN", "")
AUDITORS = 5
TIMER_MS = 1_000


class Tick(msgspec.Struct):
    who: str
    at: int
    amount: int = 1


class Count(msgspec.Struct):
    who: str
    count: int


class Told(msgspec.Struct):
    amount: int


def make_app(
    partitions: int = 4, *, slow_s: float = 0.0, extra_input: bool = False, twice_from: int | None = None
) -> tr.App:
    """``twice_from``: another version of the code, which counts events from that time on as two."""
    app = tr.App("tally", partitions=partitions)
    ticks = app.topic("ticks", Tick, key="who", event_time="at")
    counts = app.topic("counts", Count, key="who")
    audits = app.topic("audits", Count, key="who")
    finals = app.topic("finals", Count, key="who")
    more = app.topic("more", Tick, key="who", event_time="at", watermark=False) if extra_input else None

    @app.actor
    class Auditor(tr.Actor):
        total: int = 0

        @tr.on_message
        def told(self, message: Told, ctx: tr.Context[str]) -> None:
            self.total += message.amount
            ctx.emit(audits, Count(ctx.key, self.total))

    @app.actor
    class Counter(tr.Actor):
        count: int = 0

        @tr.process(ticks)
        def ticked(self, event: Tick, ctx: tr.Context[str]) -> None:
            if event.amount < 0:
                raise ValueError("a negative amount")
            if slow_s:
                if BEGUN:
                    with Path(BEGUN).open("a") as file:
                        file.write(f"{os.getpid()}\n")
                time.sleep(slow_s)
            self.count += 1 if twice_from is None or event.at < twice_from else 2
            ctx.emit(counts, Count(event.who, self.count))
            ctx.send(Auditor, f"auditor-{self.count % AUDITORS}", Told(1))
            ctx.set_timer(event.at + TIMER_MS, "final")

        @tr.on_timer("final")
        def final(self, ctx: tr.Context[str]) -> None:
            ctx.emit(finals, Count(ctx.key, self.count))

    if more is not None:

        @app.process(more)
        def seen(event: Tick, ctx: tr.Context[str]) -> None:
            ctx.emit(finals, Count(event.who, -1))

    return app


app = make_app(slow_s=SLOW_S)
