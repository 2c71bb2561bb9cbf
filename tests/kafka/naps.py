"""An app whose handler takes as long as its event says."""

import time

import msgspec

import tailrace as tr


class Nap(msgspec.Struct, tr.Keyed[str], frozen=True):
    """Something that takes a while."""

    key: tr.Key[str]
    seconds: float
    at_ms: tr.EventTime[int]


class Rested(msgspec.Struct, tr.Keyed[str], frozen=True):
    """How often a key has napped."""

    key: tr.Key[str]
    count: int


app = tr.App("naps", partitions=1)
naps = app.topic("naps", Nap)
rested = app.topic("rested", Rested)


@app.actor
class Sleeper(tr.Actor):
    """Sleeps."""

    count: int = 0

    @tr.process(naps)
    def nap(self, event: Nap, ctx: tr.Context[str]) -> None:
        """Take as long as the event says."""
        time.sleep(event.seconds)
        self.count += 1
        ctx.emit(rested, Rested(ctx.key, self.count))
