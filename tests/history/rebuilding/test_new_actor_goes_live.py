"""A new actor gets its history by a rebuild and goes live in the running app, while producers write all the time."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from random import Random
from typing import Any

import msgspec
import pytest

import tailrace as tr
from tailrace.core import rows
from tailrace.core.engine import tape
from tailrace.core.engine.describe_rows import picture
from tailrace.core.errors import SnapshotMismatchError
from tailrace.core.records import Output
from tailrace.core.values.keys import key_codec_for
from tailrace.core.values.partitioner import partition_of
from tailrace.history.reading.app_history import AppHistory
from tailrace.log.embedded import EmbeddedLog
from tailrace.processes.app_loading import find_app
from tailrace.runtime.host import Host
from tailrace.runtime.options import ServiceOptions
from tests.history.rebuilding import any_app, lived, two_inputs
from tests.history.rebuilding.lived import done

MINUTE_MS, OUT_OF_ORDER_MS, EVENTS = 60_000, 5_000, 1_000
KEYS = "abcdefgh"


class Paid(msgspec.Struct, frozen=True):
    who: str
    at: int
    amount: int


class Minute(msgspec.Struct, frozen=True):
    who: str
    end: int
    amount: int


class Seen(msgspec.Struct, frozen=True):
    amount: int


def made(new: str = "", watches: two_inputs.Order = "arrival") -> str:
    """An app with payments per account and minute. ``new``: how version 2 lets ``Watch`` know of them."""
    app = tr.App("accounts", partitions=2, version="2" if new else "1")
    paid = app.topic("paid", Paid, key="who", event_time="at", out_of_order=OUT_OF_ORDER_MS)
    minutes = app.topic("minutes", Minute, key="who", event_time="end")
    alerts = app.topic("alerts", Minute, key="who", event_time="end")

    def counted(self: Any, amount: int, ctx: tr.Context[str]) -> None:
        end = ctx.event_time // MINUTE_MS * MINUTE_MS + MINUTE_MS - 1
        self.total += amount
        self.open[str(end)] = self.open.get(str(end), 0) + amount
        ctx.set_timer(end, f"end:{end}")

    @app.actor
    class Account(tr.Actor):
        total: int = 0
        open: dict[str, int] = tr.field(default_factory=dict)

        @tr.process(paid)
        def came(self, event: Paid, ctx: tr.Context[str]) -> None:
            counted(self, event.amount, ctx)
            if new == "message":
                ctx.send(Watch, ctx.key, Seen(event.amount))

        @tr.on_timer("end")
        def ended(self, ctx: tr.Context[str]) -> None:
            end = str(ctx.timer_name).partition(":")[2]
            ctx.emit(minutes, Minute(ctx.key, int(end), self.open.pop(end)))

    class Watch(tr.Actor, order=watches):
        total: int = 0
        open: dict[str, int] = tr.field(default_factory=dict)

        if new == "message":

            @tr.on_message
            def seen(self, message: Seen, ctx: tr.Context[str]) -> None:
                counted(self, message.amount, ctx)

        else:

            @tr.process(paid)
            def came(self, event: Paid, ctx: tr.Context[str]) -> None:
                counted(self, event.amount, ctx)

        @tr.on_timer("end")
        def ended(self, ctx: tr.Context[str]) -> None:
            end = str(ctx.timer_name).partition(":")[2]
            ctx.emit(alerts, Minute(ctx.key, int(end), self.open.pop(end)))

    if new:
        app.actor(Watch)
    return any_app.place(app)


def payments() -> list[Paid]:
    random, at = Random(7), 10_000
    found: list[Paid] = []
    for _ in range(EVENTS):
        at += random.randrange(2_000)
        found.append(Paid(random.choice(KEYS), at - random.randrange(4_000), random.randint(1, 9)))
    return found


class Producer(threading.Thread):
    """Writes the payments, a few in each commit, from beginning to end, whether the service runs or not."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self._folder, self.events = folder, payments()
        self.pause = threading.Event()

    def run(self) -> None:
        with closing(EmbeddedLog(self._folder / "log")) as log:
            writer = log.writer("producer")
            for start in range(0, EVENTS, 10):
                some = self.events[start : start + 10]
                writer.append(
                    [Output("paid", one.who.encode(), msgspec.json.encode(one), one.at) for one in some]
                )
                writer.commit()
                self.pause.wait(0.01)
            writer.close()


def committed(folder: Path, app: str) -> int:
    """The number of payments that the service has committed, without those of which a message is under way."""
    plan = find_app(app).plan()
    with closing(EmbeddedLog(folder / "log", create=False)) as log:
        if not {plan.changelog_topic, plan.tape_topic} <= log.topics().keys():  # they are created one by one
            return 0
        found = [(number, AppHistory(plan, log).committed(number).cut) for number in range(2)]
        stands = [(number, tape.decode_cut(cut).positions) for number, cut in found if cut is not None]
        count = sum(at["paid"] for _, at in stands)
        inbox = plan.inbox_topic
        if inbox is None or inbox not in log.topics():
            return count
        return count - sum(log.end_offset(inbox, number) - at.get(inbox, 0) for number, at in stands)


def serve(folder: Path, app: str, stop_after: int, replace: str = "") -> None:
    """Run the service until it has committed a number of payments: it stops at any point of its history."""
    options = ServiceOptions(
        app,
        folder / "log",
        folder / "state",
        commit_interval_ms=20,
        create_topics=True,
        from_snapshot=replace,
        replace_state=bool(replace),
        log_format="json",
    )
    host = Host(options, find_app(app).plan())
    left = threading.Event()

    def watch() -> None:
        try:
            while not left.wait(0.02) and committed(folder, app) < stop_after:
                pass
        finally:
            while getattr(host, "worker", None) is None and not left.wait(0.02):
                pass  # it has not joined yet
            if not left.is_set():
                host.stop()

    watching = threading.Thread(target=watch)
    watching.start()
    try:
        host.run()
    finally:
        left.set()
        watching.join()


def totals(folder: Path, app: str) -> dict[str, dict[str, int]]:
    """The totals in the changelog, by actor and key."""
    plan = find_app(app).plan()
    actors = {one.name: one for one in plan.actors}
    found: dict[str, dict[str, int]] = {name: {} for name in actors}
    for state in lived.live(folder, plan):
        for row, value in state.rows:
            parts = rows.read_state_row(row)
            if not parts.rest:
                said = picture(actors[parts.actor], {b"": value})
                found[parts.actor][key_codec_for(str).decode(parts.key)] = int(said["total"])
    return found


def minutes_in(values: Iterator[bytes | None]) -> Counter[tuple[str, int, int]]:
    decoded = (msgspec.json.decode(value or b"", type=Minute) for value in values)
    return Counter((one.who, one.end, one.amount) for one in decoded)


def expected(events: list[Paid]) -> tuple[dict[str, int], Counter[tuple[str, int, int]]]:
    """In plain Python: the totals, and the sums of all minutes that are over for every key's partition."""
    sums, windows = Counter[str](), Counter[tuple[str, int]]()
    for one in events:
        sums[one.who] += one.amount
        windows[one.who, one.at // MINUTE_MS * MINUTE_MS + MINUTE_MS - 1] += one.amount
    return dict(sums), Counter((who, end, amount) for (who, end), amount in windows.items())


def handled(events: list[Paid]) -> dict[str, int]:
    """In plain Python: the totals of the events whose turn has come, by the watermark of their partition."""
    last = Counter[int]()
    for one in events:
        number = partition_of(one.who.encode(), 2)
        last[number] = max(last[number], one.at)
    sums = Counter[str]()
    for one in events:
        if one.at < last[partition_of(one.who.encode(), 2)] - OUT_OF_ORDER_MS:
            sums[one.who] += one.amount
    return dict(sums)


@pytest.mark.parametrize(
    ("new", "watches", "order"),
    [
        ("topic", "arrival", "auto"),
        ("topic", "arrival", "canonical"),
        ("topic", "event-time", "auto"),
        ("topic", "event-time", "canonical"),
        ("message", "arrival", "canonical"),
    ],
)
def test_it_takes_part_with_its_whole_history_and_no_event_is_lost_or_counted_twice(
    tmp_path: Path, new: str, watches: two_inputs.Order, order: str
) -> None:
    lived.append(tmp_path, [], {"paid": 2})
    producer = Producer(tmp_path)
    producer.start()
    try:
        serve(tmp_path, made(), EVENTS // 4)
        app = made(new, watches)
        _, snapshot = done(tmp_path, app, order=order, outputs=f"parquet:{tmp_path / 'outputs'}")
        serve(tmp_path, app, EVENTS // 2, f"{tmp_path / 'snapshots'}#{snapshot.manifest.id}")
        serve(tmp_path, app, EVENTS)
    finally:
        producer.join()
    serve(tmp_path, app, EVENTS)
    sums, windows = expected(producer.events)
    seen = handled(producer.events) if watches == "event-time" else sums
    assert totals(tmp_path, app) == {"Account": sums, "Watch": seen}
    before = minutes_in(one.value for one in lived.outputs(tmp_path / "outputs", snapshot, "alerts"))
    alerts = minutes_in(one.value for one in lived.read(tmp_path, "alerts"))
    assert before, "the history has no alert before the actor went live"
    assert alerts, "the actor has not gone live"
    open_since = max(one.at for one in producer.events) - 2 * MINUTE_MS
    for found in (before + alerts, minutes_in(one.value for one in lived.read(tmp_path, "minutes"))):
        assert not found - windows, "twice, or another amount"
        assert all(end > open_since for _, end, _ in windows - found), "lost"


def test_a_start_is_refused_if_messages_wait_that_are_only_in_the_rebuild(tmp_path: Path) -> None:
    events = payments()[:100]
    records = [Output("paid", one.who.encode(), msgspec.json.encode(one), one.at) for one in events]
    lived.append(tmp_path, records, {"paid": 2})
    app = made("message", "event-time")
    _, snapshot = done(tmp_path, app)
    with pytest.raises(SnapshotMismatchError, match=r"waited for their turn in Watch.*--order tape"):
        lived.live_on(tmp_path, app, f"{tmp_path / 'snapshots'}#{snapshot.manifest.id}")
