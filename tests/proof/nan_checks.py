"""Checks that the bits of a nan reach neither state nor outputs."""

from __future__ import annotations

import math
from random import Random
from typing import Any

import msgspec

import tailrace as tr
from tailrace.core.engine.task import TaskSettings
from tailrace.core.records import InputRecord
from tailrace.core.values.canonical_nan import NAN_BYTES
from tests.proof.first_runs import replayed
from tests.proof.nans import Event, nan_app
from tests.proof.runs import Committed, First, Run, assert_equal, follow
from tests.proof.seeds import START_MS, Records


def records(random: Random) -> list[InputRecord]:
    count = random.choice((3, 10, 30))
    events = [Event(random.choice("ab"), START_MS + at * random.randrange(900)) for at in range(count)]
    return [InputRecord(at, one.at, b"", msgspec.json.encode(one)) for at, one in enumerate(events)]


def check_seed(seed: int, trace: list[str]) -> int:
    random = Random(seed)
    log: Records = {("events", 0): records(random)}
    plan = nan_app().plan()
    first = First(plan, log, random, trace)
    first.run(30)
    (run,) = first.runs
    then = run.committed
    assert_equal(then, replayed(plan, 0, then.tapes, log, random), "replay")
    assert_equal(then, follow(plan, 0, then.tapes, log, random, trace), "other batching")
    return len(then.outputs)


SOURCE = """
import msgspec, tailrace as tr

class Reading(msgspec.Struct, frozen=True):
    key: str
    at: int
    x: float

app = tr.App("warm", partitions=1)
readings = app.topic("readings", Reading, key="key", event_time="at", format="msgpack")
totals = app.topic("totals", Reading, key="key", format="msgpack")

def added(a: float, b: float) -> float:
    return a + b

@app.actor
class Total(tr.Actor):
    total: float = 0.0
    last: list[float] = []

    @tr.process(readings)
    def take(self, event: Reading, ctx: tr.Context[str]) -> None:
        nan = event.x - event.x
        self.total = added(nan, -nan)
        self.last = [added(-nan, nan), self.total]
        ctx.emit(totals, Reading(event.key, event.at, added(nan, -nan)))
"""


def cold_app() -> tr.App:
    """An app whose bytecode has not run yet: CPython has not specialised it."""
    namespace: dict[str, Any] = {"__name__": "warm_app"}
    exec(compile(SOURCE, "<warm app>", "exec"), namespace)
    app: tr.App = namespace["app"]
    return app


def check_warm() -> None:
    readings: Any = cold_app().plan().topics["readings"]
    values = [readings.encode(readings.type("a", START_MS + at, math.inf)) for at in range(60)]
    log: Records = {
        ("readings", 0): [InputRecord(at, START_MS + at, b"a", one) for at, one in enumerate(values)]
    }
    live = Committed()
    for start in range(0, 60, 3):
        run = Run(cold_app().plan(), 0, live, TaskSettings())
        run.task.run(0, run.task.decode(0, log["readings", 0][start : start + 3]))
        run.commit()
    assert_equal(
        live, replayed(cold_app().plan(), 0, live.tapes, log, Random(1)), "replay of a warm interpreter"
    )
    assert all((one.value or b"").endswith(b"\xcb" + NAN_BYTES) for one in live.outputs)
