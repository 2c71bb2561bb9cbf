"""An app to which an input was added is replayed and rebuilt over its whole history: until the input was there,
no watermark waits for it.
"""

from __future__ import annotations

from collections import Counter
from contextlib import closing
from pathlib import Path
from random import Random
from typing import Literal, TypeAlias

import msgspec
import pytest

import tailrace as tr
from tailrace.core.records import Output
from tailrace.history.replay.replaying import replay
from tailrace.history.replay.report import ReplayOptions, ReplayReport
from tailrace.log.embedded import EmbeddedLog
from tailrace.processes.app_loading import find_app
from tests.history.rebuilding import any_app, lived
from tests.history.rebuilding.lived import done, live, rebuilt

Order: TypeAlias = Literal["arrival", "event-time"]
MINUTE_MS = 60_000
KEYS = "abcdef"


class Paid(msgspec.Struct, frozen=True):
    who: str
    at: int
    amount: int


class Minute(msgspec.Struct, frozen=True):
    who: str
    end: int
    amount: int


def made(*, refunds: bool, order: Order = "arrival") -> str:
    """Sums per key and minute. ``refunds``: the actor reads them as well, in addition to payments."""
    app = tr.App("tills", partitions=2)
    paid = app.topic("paid", Paid, key="who", event_time="at", out_of_order=0)
    given_back = app.topic("refunds", Paid, key="who", event_time="at", out_of_order=0, idle_after="1d")
    minutes = app.topic("minutes", Minute, key="who", event_time="end")
    read = [paid, given_back] if refunds else [paid]

    @app.actor
    class Till(tr.Actor, order=order):
        open: dict[str, int] = tr.field(default_factory=dict)

        @tr.process(*read)
        def moved(self, event: Paid, ctx: tr.Context[str]) -> None:
            end = event.at // MINUTE_MS * MINUTE_MS + MINUTE_MS - 1
            self.open[str(end)] = self.open.get(str(end), 0) + event.amount
            ctx.set_timer(end, f"end:{end}")

        @tr.on_timer("end")
        def ended(self, ctx: tr.Context[str]) -> None:
            end = str(ctx.timer_name).partition(":")[2]
            ctx.emit(minutes, Minute(ctx.key, int(end), self.open.pop(end)))

    return any_app.place(app)


def moves(topic: str, minutes: range, seed: int) -> list[Output]:
    random, sign = Random(seed), -1 if topic == "refunds" else 1
    found: list[Output] = []
    for minute in minutes:
        for second in sorted(random.sample(range(60), 12)):
            event = Paid(random.choice(KEYS), minute * MINUTE_MS + second * 1000, sign * random.randint(1, 9))
            found.append(Output(topic, event.who.encode(), msgspec.json.encode(event), event.at))
    return found


def expected(records: list[Output]) -> dict[tuple[str, int], int]:
    """The sums per key and minute, in plain Python."""
    sums = Counter[tuple[str, int]]()
    for one in records:
        event = msgspec.json.decode(one.value or b"", type=Paid)
        sums[event.who, event.at // MINUTE_MS * MINUTE_MS + MINUTE_MS - 1] += event.amount
    return dict(sums)


def emitted(folder: Path) -> dict[tuple[str, int], int]:
    found: dict[tuple[str, int], int] = {}
    for record in lived.read(folder, "minutes"):
        one = msgspec.json.decode(record.value or b"", type=Minute)
        assert (one.who, one.end) not in found, "twice"
        found[one.who, one.end] = one.amount
    return found


def replayed(folder: Path, app: str) -> ReplayReport:
    with closing(EmbeddedLog(folder / "log", create=False)) as log:
        return replay(find_app(app).plan(), log, ReplayOptions(compare=True, any_environment=True))


@pytest.fixture
def two_periods(tmp_path: Path, order: Order) -> tuple[Path, list[Output]]:
    """A service that reads payments for ten minutes, and payments and refunds after that."""
    first = moves("paid", range(10), 1)
    lived.append(tmp_path, first, {"paid": 2, "refunds": 2})
    lived.live_on(tmp_path, made(refunds=False, order=order))
    more = [
        record
        for at in range(10, 20)
        for topic in ("paid", "refunds")
        for record in moves(topic, range(at, at + 1), at)
    ]
    lived.append(tmp_path, more, {})
    lived.live_on(tmp_path, made(refunds=True, order=order), change_inputs=True)
    return tmp_path, first + more


@pytest.mark.parametrize("order", ["arrival", "event-time"])
def test_the_whole_history_is_replayed_and_rebuilt_with_the_code_that_has_the_input(
    two_periods: tuple[Path, list[Output]], order: Order
) -> None:
    folder, records = two_periods
    assert emitted(folder) == expected(records)
    app = made(refunds=True, order=order)
    report = replayed(folder, app)
    assert [str(one) for one in report.differences.shown] == []
    assert report.records == len(records)
    _, snapshot = done(folder, app)
    assert rebuilt(snapshot) == live(folder, find_app(app).plan())


def test_code_that_reads_one_more_input_is_compared_before_it_has_run(tmp_path: Path) -> None:
    lived.append(tmp_path, moves("paid", range(5), 1), {"paid": 2, "refunds": 2})
    lived.live_on(tmp_path, made(refunds=False))
    assert replayed(tmp_path, made(refunds=True)).differences.count == 0
