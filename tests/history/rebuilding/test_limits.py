"""Limits of a rebuild or a replay: before the snapshot that a history begins with."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest

from tailrace.core.engine import tape
from tailrace.core.engine.describe_rows import instant
from tailrace.core.engine.replay import Limits
from tailrace.core.errors import OtherHistoryError, UsageError
from tailrace.history.rebuilding.driver import rebuild
from tailrace.history.rebuilding.engines import LocalEngine
from tailrace.history.replay.replaying import replay
from tailrace.history.replay.report import ReplayOptions
from tailrace.log.embedded import EmbeddedLog
from tailrace.processes.app_loading import find_app
from tailrace.state.snapshots import Snapshot
from tests.history.rebuilding import lived, priced, shops
from tests.history.rebuilding.lived import done, request

SHOPS = "tests.history.rebuilding.shops:app"


@pytest.fixture(scope="module")
def replaced(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Snapshot]:
    """A service whose state a snapshot has replaced after 200 of its 300 sales."""
    folder = tmp_path_factory.mktemp("replaced")
    lived.append(folder, shops.sales(200), {"sales": 2})
    lived.live_on(folder, SHOPS)
    _, base = done(folder, SHOPS, order="stages")  # a history of its own
    lived.live_on(folder, SHOPS, replace=f"{folder / 'snapshots'}#{base.manifest.id}")
    lived.append(folder, shops.sales(100, first=200), {})
    lived.live_on(folder, SHOPS)
    return folder, base


def cuts(snapshot: Snapshot) -> list[tape.Cut]:
    return [tape.decode_cut(one.cut) for one in snapshot.manifest.tasks]


def too_early(base: Snapshot) -> list[tuple[Limits, str]]:
    """Limits before the snapshot, and what the refusal says of them."""
    first, second = cuts(base)
    at = second.positions["sales"]
    return [
        (Limits({"sales": {0: 5, 1: 5}}), f"0 .* sales at {first.positions['sales']}, after the limit 5"),
        (Limits({"sales": {1: at - 1}}), f"1 .* sales at {at}, after the limit {at - 1}"),
        (
            Limits(watermark_ms=2_000),
            f"0 .* the watermark at {instant(first.watermark)}, at or after the limit 1970-01-01T00:00:02",
        ),
        (Limits(watermark_ms=first.watermark), "0 .* at or after the limit"),
    ]


@pytest.mark.parametrize("at", range(4))
def test_a_limit_before_the_snapshot_of_the_tape_is_refused(replaced: tuple[Path, Snapshot], at: int) -> None:
    folder, base = replaced
    limits, said = too_early(base)[at]
    with pytest.raises(UsageError, match=f"partition {said}") as refused:
        rebuild(request(folder, SHOPS, until=limits), LocalEngine(1))
    assert base.manifest.id in str(refused.value)
    with closing(EmbeddedLog(folder / "log", create=False)) as log, pytest.raises(UsageError, match=said):
        replay(find_app(SHOPS).plan(), log, ReplayOptions(limits=limits, any_environment=True))


@pytest.mark.parametrize("order", ["auto", "stages"])
def test_a_limit_before_the_requested_snapshot_is_refused(tmp_path: Path, order: str) -> None:
    lived.append(tmp_path, shops.sales(200), {"sales": 2})
    lived.live_on(tmp_path, SHOPS)
    _, base = done(tmp_path, SHOPS)
    named = {"base": str(tmp_path / "snapshots"), "base_id": base.manifest.id}
    for limits, said in too_early(base):
        with pytest.raises(UsageError, match=f"partition {said}"):
            rebuild(request(tmp_path, SHOPS, until=limits, order=order, **named), LocalEngine(1))


def test_a_limit_after_the_snapshot_ends_the_history_there(replaced: tuple[Path, Snapshot]) -> None:
    folder, base = replaced
    ends = {number: cut.positions["sales"] + 10 * number for number, cut in enumerate(cuts(base))}
    _, found = done(folder, SHOPS, until=Limits({"sales": ends}))
    assert [cut.positions["sales"] for cut in cuts(found)] == [ends[0], ends[1]]
    with closing(EmbeddedLog(folder / "log", create=False)) as log:
        report = replay(
            find_app(SHOPS).plan(), log, ReplayOptions(limits=Limits({"sales": ends}), any_environment=True)
        )
    assert report.records == 10
    # A rebuild in stages begins with the log.
    _, found = done(folder, SHOPS, until=Limits({"sales": {0: 5, 1: 5}}), order="stages")
    assert [cut.positions["sales"] for cut in cuts(found)] == [5, 5]


def test_outputs_from_before_the_snapshot_are_counted_in_a_note(replaced: tuple[Path, Snapshot]) -> None:
    folder, base = replaced
    report, _ = done(folder, SHOPS, outputs=f"parquet:{folder / 'out'}")
    before = sum(cut.totals.outputs for cut in cuts(base))
    assert before == report.outputs - report.written > 0
    said = f"not written: {before} outputs from before the snapshot {base.manifest.id}, of partitions 0, 1"
    assert said in report.notes
    report, _ = done(folder, SHOPS)
    assert not any("not written" in note for note in report.notes)
    report, _ = done(folder, SHOPS, outputs=f"parquet:{folder / 'whole'}", order="stages")
    assert report.written == report.outputs
    assert not any("not written" in note for note in report.notes)


def test_the_snapshot_that_the_tape_begins_with_need_not_be_requested(
    replaced: tuple[Path, Snapshot],
) -> None:
    folder, base = replaced
    with pytest.raises(OtherHistoryError, match="is not of the history") as refused:
        done(folder, SHOPS, base=str(folder / "snapshots"), base_id=base.manifest.id)
    assert "leave --from-snapshot out" in str(refused.value)


HIDDEN = "tests.history.rebuilding.priced:hidden"
INNER = "priced.orders.by-key"
UNTIL = {"orders": {0: 5, 1: 5}}


@pytest.fixture(scope="module")
def ordered(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A service with forty orders in one partition, which go to items in both."""
    folder = tmp_path_factory.mktemp("ordered")
    lived.append(
        folder,
        [priced.record("prices", priced.Price(f"item-{number}", 2, 0)) for number in range(8)],
        {"prices": 2, "orders": 2},
    )
    lived.live_on(folder, HIDDEN)
    orders = (priced.Order(f"order-{one}", f"item-{one % 8}", 1, 100 * one) for one in range(40))
    lived.append(folder, [priced.record("orders", one)._replace(key=b"one key") for one in orders], {})
    lived.live_on(folder, HIDDEN)
    return folder


def empty(folder: Path) -> int:
    """The partition without orders."""
    with closing(EmbeddedLog(folder / "log", create=False)) as log:
        ends = [log.end_offset("orders", number) for number in range(2)]
        assert sorted(ends) == [0, 40]
        assert all(log.end_offset(INNER, number) for number in range(2))
    return ends.index(0)


def test_in_stages_only_what_is_before_the_limit_is_forwarded(ordered: Path) -> None:
    _, found = done(ordered, HIDDEN, until=Limits(UNTIL), order="stages")
    assert sum(cut.positions["orders"] for cut in cuts(found)) == 5
    assert sum(cut.totals.records for cut in cuts(found)) == 8 + 5 + 5, (
        "prices, orders, and each order once more"
    )


def test_with_a_limit_of_the_hidden_topic_every_task_ends_at_a_limit(ordered: Path) -> None:
    until = {**UNTIL, INNER: {0: 2, 1: 2}}
    _, found = done(ordered, HIDDEN, until=Limits(until))
    for cut in cuts(found):
        assert cut.positions["orders"] <= 5
        assert cut.positions[INNER] <= 2


def test_a_limit_of_one_partition_leaves_the_others_whole(ordered: Path) -> None:
    number = 1 - empty(ordered)
    _, found = done(ordered, HIDDEN, until=Limits({"orders": {number: 5}}))
    assert tape.decode_cut(found.manifest.task(number).cut).positions["orders"] <= 5
