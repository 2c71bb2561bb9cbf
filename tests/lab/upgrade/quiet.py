"""An app of a quiet hour: an ordered actor of two inputs, of which one is silent, tells another. A new version tells it more."""

from __future__ import annotations

import msgspec

import tailrace as tr

WEIGHT = 1


class Beat(msgspec.Struct, frozen=True):
    key: tr.Key[str]
    at: tr.EventTime[int]


class Note(msgspec.Struct, frozen=True):
    weight: int


class Total(msgspec.Struct, frozen=True):
    key: tr.Key[str]
    total: int


app = tr.App("quiet", version="1", partitions=2)
beats = app.topic("beats", Beat, out_of_order="1m", idle_after="1s")
silent = app.topic("silent", Beat, out_of_order="1m", idle_after="1s")
totals = app.topic("totals", Total)


@app.actor
class Listener(tr.Actor, order="event-time"):
    count: int = 0

    @tr.process(beats, silent)
    def heard(self, beat: Beat, ctx: tr.Context[str]) -> None:
        self.count += 1
        ctx.send(Board, "all", Note(WEIGHT))


@app.actor
class Board(tr.Actor, order="event-time"):
    total: int = 0

    @tr.on_message
    def told(self, note: Note, ctx: tr.Context[str]) -> None:
        self.total += note.weight
        ctx.emit(totals, Total(ctx.key, self.total))
