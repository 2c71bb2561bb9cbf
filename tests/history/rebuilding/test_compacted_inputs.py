"""An input that compaction has taken records from: no replay passes over them in silence."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

import tailrace as tr
from tailrace.core.engine.replay import Limits
from tailrace.core.errors import OffsetGoneError
from tailrace.core.records import Output
from tailrace.log import TopicSettings
from tailrace.log.archive import Archive, archive_log
from tailrace.log.embedded import EmbeddedLog
from tailrace.state.snapshots import Snapshot
from tests.history.rebuilding import lived
from tests.history.rebuilding.lived import done, fields, rebuilt

APP, NEWER = f"{__name__}:app", f"{__name__}:newer"
GONE = "commit 0 .* 40 records, and 19 of them are missing in the log now .*prices, offsets 0 to 19: 1 left"


ROUNDS = 20


class Price(msgspec.Struct, frozen=True):
    thing: str
    at: int
    cents: int


class Order(msgspec.Struct, frozen=True):
    thing: str
    at: int


def make_app(version: str = "1", *, strict: bool = False) -> tr.App:
    """``strict``: an order without a price fails."""
    app = tr.App("referring", partitions=1, version=version)
    orders = app.topic("orders", Order, key="thing", event_time="at")
    prices = app.topic("prices", Price, key="thing", event_time="at")

    @app.actor
    class Bill(tr.Actor, order="arrival"):
        cents: int = 0
        total: int = 0
        bought: int = 0

        @tr.process(prices)
        def priced(self, event: Price, ctx: tr.Context[str]) -> None:
            self.cents = event.cents

        @tr.process(orders)
        def ordered(self, event: Order, ctx: tr.Context[str]) -> None:
            if strict and not self.cents:
                raise ValueError("an order without a price")
            self.total += self.cents
            self.bought += 1

    return app


app = make_app()
newer = make_app("2", strict=True)


def records() -> list[Output]:
    """Prices of 1, 2, 3, ... cents, every ten seconds, and five seconds after each an order."""
    rounds = range(ROUNDS)
    prices = [Price("a", at * 10_000, at + 1) for at in rounds]
    orders = [Order("a", at * 10_000 + 5_000) for at in rounds]
    return [
        Output(topic, b"a", msgspec.json.encode(one), one.at)
        for topic, events in (("prices", prices), ("orders", orders))
        for one in events
    ]


BILL = sum(range(1, ROUNDS + 1))
"""The total of all orders."""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A service has lived on prices of a compacted topic, in one commit; none of them is gone yet."""
    log = EmbeddedLog(tmp_path / "log")
    log.create_topic("prices", TopicSettings(1, compacted=True))
    log.close()
    lived.append(tmp_path, records(), {"orders": 1})
    lived.live_on(tmp_path, APP)
    return tmp_path


def compact(folder: Path) -> None:
    """Leave only the last price."""
    log = EmbeddedLog(folder / "log", create=False)
    log.clean()
    log.close()
    assert len(lived.read(folder, "prices")) == 1


def total(snapshot: Snapshot) -> int:
    (found,) = fields(rebuilt(snapshot)).values()
    return int(found["total"])


@pytest.mark.parametrize("app", [APP, NEWER])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"keys": ("a",)},
        {"until": Limits(offsets={"orders": {0: 10}})},
        {"until": Limits(watermark_ms=100_000)},
    ],
)
def test_along_the_tape_missing_records_are_an_error_whatever_is_accepted(
    folder: Path, app: str, options: dict[str, Any]
) -> None:
    asked: dict[str, Any] = {"order": "tape", **options}
    _, before = done(folder, app, **asked)
    if "until" not in asked:
        assert total(before) == BILL
    compact(folder)
    with pytest.raises(OffsetGoneError, match=GONE) as raised:
        done(folder, app, **asked, uri=str(folder / "after"))
    assert (raised.value.topic, raised.value.partition, raised.value.offset) == ("prices", 0, 0)
    assert "compacted" in raised.value.hint


def test_a_limit_before_all_gaps_needs_none_of_the_records_behind_it(folder: Path) -> None:
    """Only orders were read up to here: no price is missing."""
    compact(folder)
    _, snapshot = done(folder, until=Limits(offsets={"orders": {0: 0}, "prices": {0: 0}}), app=APP)
    assert list(snapshot.rows(0)) == []


def test_in_stages_the_records_that_are_left_are_read_and_the_report_says_so(folder: Path) -> None:
    ends = Limits(offsets={"orders": {0: 20}, "prices": {0: 20}})
    report, before = done(folder, APP, order="stages", until=ends)
    assert total(before) == BILL
    compact(folder)
    report, after = done(folder, APP, order="stages", until=ends, uri=str(folder / "after"))
    assert report.events == 21
    assert any("prices is compacted: records that it no longer has" in one for one in report.notes)
    assert tuple(report.notes) == after.manifest.notes


def test_an_archive_has_the_records_that_compaction_has_taken(folder: Path) -> None:
    log = EmbeddedLog(folder / "log", create=False)
    archive_log(log, Archive.at(str(folder / "archive")))
    log.close()
    compact(folder)
    report, snapshot = done(folder, APP, archive=str(folder / "archive"))
    assert total(snapshot) == BILL
    assert report.same_rows


def test_a_rebuild_from_a_snapshot_needs_only_what_comes_after_it(folder: Path) -> None:
    _, first = done(folder, APP)
    compact(folder)
    base = str(folder / "snapshots")
    _, again = done(folder, APP, base=base, base_id=first.manifest.id, uri=str(folder / "after"))
    assert total(again) == BILL
