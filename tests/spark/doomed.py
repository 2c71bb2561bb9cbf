"""An app whose handlers can be told, through a file, to end their own process or to be slow: once for each file.

The file's name is in the event. While there is no such file, as when the service lives, the handler does as any other;
its state and outputs are the same either way.
"""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import msgspec

import tailrace as tr

SLOW_S = 600.0
"""Far longer than anything else here takes on a busy machine."""


class Hop(msgspec.Struct):
    who: str
    at: int
    doom: str = ""


class Sum(msgspec.Struct):
    who: str
    hops: int


app = tr.App("doomed", partitions=4)
hops = app.topic("hops", Hop, key="who", event_time="at")
sums = app.topic("sums", Sum, key="who")


@app.actor
class Hopper(tr.Actor):
    count: int = 0
    seen: tr.MapState[int, int]

    @tr.process(hops)
    def hopped(self, hop: Hop, ctx: tr.Context[str]) -> None:
        self.count += 1
        self.seen[hop.at] = self.count
        if hop.doom:
            meet(Path(hop.doom))
        ctx.set_timer(hop.at + 1_000, "rest")
        ctx.emit(sums, Sum(hop.who, self.count))

    @tr.on_timer("rest")
    def rests(self, ctx: tr.Context[str]) -> None:
        self.count += 100


def meet(doom: Path) -> None:
    """Do what the file says; unless that is "always ...", take it away, so that it is done once."""
    try:
        said = doom.read_text()
        if not said.startswith("always "):
            doom.unlink()
    except FileNotFoundError:
        return
    with doom.with_suffix(".met").open("a") as told:
        told.write(f"{said} {os.getpid()}\n")
    if said.endswith("die"):
        os.kill(os.getpid(), signal.SIGKILL)
    if said == "raise":
        raise OSError("the disk is tired")
    if said == "wait":
        time.sleep(SLOW_S)
