"""An app whose handler ends its process, until the file that ``STUMBLES`` names has a byte for each of so many ends."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

import tailrace as tr

ENDS = 7


class Step(msgspec.Struct, frozen=True):
    who: tr.Key[str]
    at_ms: tr.EventTime[int]


app = tr.App("stumbles", partitions=2)
steps = app.topic("steps", Step)


@app.actor
class Walker(tr.Actor):
    walked: int = 0

    @tr.process(steps)
    def walk(self, event: Step, ctx: tr.Context[str]) -> None:
        with Path(os.environ["STUMBLES"]).open("ab") as ends:
            if ends.tell() < ENDS:
                ends.write(b".")
                ends.flush()
                os._exit(7)
        self.walked += 1
