"""What a rebuild can be asked for: some keys, up to somewhere, from a snapshot on; and what it says to what
makes no sense.
"""

from __future__ import annotations

import re
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tailrace.core import errors
from tailrace.core.engine import tape
from tailrace.core.engine.replay import Limits
from tailrace.core.records import Output
from tailrace.history.reading.stretches import scan
from tailrace.history.rebuilding.driver import rebuild
from tailrace.history.rebuilding.engines import LocalEngine
from tailrace.history.snapshots.taking import take_snapshot
from tailrace.log.embedded import EmbeddedLog
from tailrace.processes.app_loading import find_app
from tailrace.state.snapshots import Manifest, Snapshots
from tests.history.rebuilding import lived, shops
from tests.history.rebuilding.lived import done, live, rebuilt, request
from tests.runtime.served import Tick
from tests.runtime.tallies import ticks

SHOPS = "tests.history.rebuilding.shops:app"


def fill(folder: Path, parts: int = 3, first: int = 0) -> Path:
    """A service of shops that has lived in parts, with a restart between them."""
    for part in range(first, first + parts):
        lived.append(folder, shops.sales(100, first=100 * part), {"sales": 2})
        lived.live_on(folder, SHOPS)
    return folder


@pytest.fixture(scope="module")
def sold(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return fill(tmp_path_factory.mktemp("shops"))


@pytest.fixture
def own(tmp_path: Path) -> Path:
    return fill(tmp_path)


def refused(folder: Path, error: type[Exception], said: str, app: str = SHOPS, **options: Any) -> None:
    with pytest.raises(error, match=said):
        rebuild(request(folder, app, **options), LocalEngine(1))


def snapshot_now(folder: Path, app: str = SHOPS) -> Manifest:
    plan = find_app(app).plan()
    with closing(EmbeddedLog(folder / "log", create=False)) as log:
        return take_snapshot(plan, log, Snapshots(str(folder / "snapshots"), plan.app))


# --- from where, up to where, which keys ---


def test_up_to_an_offset_it_holds_what_came_before(sold: Path) -> None:
    until = {"sales": {0: 60, 1: 70}}
    report, snapshot = done(sold, SHOPS, until=Limits(until))
    cuts = [tape.decode_cut(one.cut) for one in snapshot.manifest.tasks]
    assert [cut.positions["sales"] for cut in cuts] == [60, 70]
    assert report.events == 130
    assert len(report.notes) == 2
    assert [one.changelog_position for one in snapshot.manifest.tasks] == [None, None]


def test_up_to_a_time_no_record_of_a_later_watermark_is_in_it(sold: Path) -> None:
    _, snapshot = done(sold, SHOPS, until=Limits(watermark_ms=2_000))
    marks = [tape.decode_cut(one.cut).watermark for one in snapshot.manifest.tasks]
    assert all(2_000 <= mark < 2_300 for mark in marks)


def test_messages_under_way_are_in_it_as_in_a_snapshot_of_the_service(tmp_path: Path) -> None:
    """A service that stops at a bad event leaves messages that nobody has read yet."""
    app = "tests.runtime.served:app"
    bad = Output("ticks", b"k3", msgspec.json.encode(Tick("k3", 8_000, -1)), 8_000)
    lived.append(tmp_path, [*ticks(20, 400), bad, *ticks(20, 2, 500)], {"ticks": 4})
    with pytest.raises(errors.HandlerError, match="a negative amount"):
        lived.live_on(tmp_path, app)
    taken = snapshot_now(tmp_path, app)
    wanted = Snapshots(str(tmp_path / "snapshots"), "tally").open(taken.id)
    _, snapshot = done(tmp_path, app)
    messages = [list(snapshot.messages(number)) for number in range(4)]
    assert messages == [list(wanted.messages(number)) for number in range(4)]
    assert sum(map(len, messages)) > 0
    assert rebuilt(snapshot) == rebuilt(wanted)
    assert snapshot.manifest.ends == taken.ends


# --- what makes no sense ---


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (
            {"until": Limits(watermark_ms=1)},
            "the time 1970-01-01T00:00:00.001Z is outside the log: its first record",
        ),
        ({"until": Limits(watermark_ms=10**12)}, "is outside the log: the highest watermark"),
        ({"outputs": "csv:x"}, "outputs cannot go to 'csv:x'"),
        ({"order": "canon"}, "Invalid enum value 'canon'"),
        ({"keys": "shop-1"}, "Expected `array`, got `str`"),
        ({"on_error": "deadletter"}, "Invalid enum value 'deadletter'"),
    ],
)
def test_what_lies_outside_the_log_is_refused_before_anything_is_made(
    sold: Path, options: dict[str, Any], said: str
) -> None:
    before = {one.name for one in (sold / "snapshots").rglob("*")} if (sold / "snapshots").exists() else set()
    refused(sold, errors.UsageError, said, **options)
    after = {one.name for one in (sold / "snapshots").rglob("manifest.json")}
    assert after <= before | {"manifest.json"}


def test_a_snapshot_of_another_history_is_no_base(sold: Path, tmp_path: Path) -> None:
    fill(tmp_path)
    _, foreign = done(tmp_path, SHOPS)
    asked = str(tmp_path / "snapshots")
    refused(sold, errors.OtherHistoryError, "is not of the history", base=asked, base_id=foreign.manifest.id)
    refused(sold, errors.UnknownSnapshotError, "there is no snapshot 'nix'", base=asked, base_id="nix")


def test_a_snapshot_that_stands_within_a_commit_is_no_base(sold: Path) -> None:
    _, within = done(sold, SHOPS, until=Limits({"sales": {0: 60}}))
    asked = str(sold / "snapshots")
    refused(
        sold, errors.SnapshotMismatchError, "stands within commit", base=asked, base_id=within.manifest.id
    )


@pytest.mark.parametrize("order", ["tape", "stages"])
def test_from_a_snapshot_of_some_keys_only_these_are_rebuilt(tmp_path: Path, order: str) -> None:
    """Of a whole one, all other keys would be gone, and nobody would know."""
    fill(tmp_path, 1)
    report, part = done(tmp_path, SHOPS, keys=("shop-1", "shop-4"), order=order)
    assert "it holds the keys shop-1, shop-4 only" in report.notes
    base: dict[str, Any] = {"base": str(tmp_path / "snapshots"), "base_id": part.manifest.id, "order": order}
    for keys in ((), ("shop-1", "shop-2")):
        refused(
            tmp_path, errors.SnapshotMismatchError, "holds the keys shop-1, shop-4 only", keys=keys, **base
        )
    assert len(Snapshots(base["base"], "shops").list()) == 1
    if order == "stages":
        _, same = done(tmp_path, SHOPS, keys=("shop-1", "shop-4"), **base)
        assert same.manifest.keys == ("shop-1", "shop-4")
        assert [one.rows for one in rebuilt(same)] == [one.rows for one in rebuilt(part)]


def test_an_app_that_has_never_run_has_no_history(tmp_path: Path) -> None:
    lived.append(tmp_path, shops.sales(3), {"sales": 2})
    refused(tmp_path, errors.UnknownTopicError, "has never run .*--order stages", order="tape")


@pytest.mark.parametrize("order", ["auto", "tape", "stages"])
def test_another_number_of_partitions_is_refused_with_both_numbers(sold: Path, order: str) -> None:
    said = "'shops' has 3 partitions, and ran with 2"
    refused(sold, errors.InputsChangedError, said, "tests.history.rebuilding.shops:wider", order=order)


def test_a_snapshot_with_another_number_of_partitions_is_no_base(sold: Path, tmp_path: Path) -> None:
    wider = "tests.history.rebuilding.shops:wider"
    lived.append(tmp_path, shops.sales(3), {"sales": 3})
    _, base = done(tmp_path, wider)
    named = {"base": str(tmp_path / "snapshots"), "base_id": base.manifest.id}
    refused(sold, errors.SnapshotMismatchError, "has 3 partitions, the app 'shops' has 2", **named)


def test_an_error_along_the_tape_names_the_order_that_needs_none(
    sold: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SHOPS_WRONG", "twice")
    refused(sold, errors.ReplayDivergedError, "outputs: .* then.*--order stages")
    done(sold, SHOPS, order="stages")


def test_deleted_history_is_named_and_gone_without_where_that_is_wanted(own: Path) -> None:
    with closing(EmbeddedLog(own / "log", create=False)) as log:
        log.delete_before("sales", 0, 40)
    refused(own, errors.OffsetGoneError, r"the log has deleted offsets 0 to 39.*topic 'sales', partition 0")
    report, snapshot = done(own, SHOPS, after_deleted=True)
    assert report.notes == [
        "--after-deleted is given: in stages",
        "offsets 0 to 39 of sales partition 0 are deleted, and left out",
    ]
    handled = [one.records for one in lived.totals(snapshot.manifest)]
    before = [tape.decode_cut(one.cut or b"").totals.records for one in live(own, find_app(SHOPS).plan())]
    assert handled == [before[0] - 40, before[1]]


@pytest.mark.parametrize(
    ("options", "said"),
    [({"after_deleted": True}, "--after-deleted"), ({"on_error": "dead-letter"}, "--on-error dead-letter")],
)
def test_what_allows_differences_does_not_go_with_the_tape(
    own: Path, options: dict[str, Any], said: str
) -> None:
    refused(own, errors.OptionError, f"--order tape does not go with {said}", order="tape", **options)
    report, _ = done(own, SHOPS, **options)
    assert (report.order, f"{said} is given: in stages" in report.notes) == ("stages", True)


def test_deleted_history_behind_a_base_is_named_with_its_mend(own: Path) -> None:
    _, base = done(own, SHOPS)
    fill(own, 1, first=3)
    log = EmbeddedLog(own / "log", create=False)
    for number in range(2):
        log.delete_before("sales", number, log.end_offset("sales", number))
    log.close()
    asked = {"base": str(own / "snapshots"), "base_id": base.manifest.id}
    refused(
        own,
        errors.OffsetGoneError,
        r"the log has deleted offsets \d+ to \d+.*newer snapshot \(--from-snapshot\)\.$",
        **asked,
    )
    _, newer = done(own, SHOPS, base=str(own / "snapshots"), base_id=snapshot_now(own).id)
    assert rebuilt(newer) == live(own, find_app(SHOPS).plan())


# --- code that has changed ---


@pytest.mark.parametrize(
    ("app", "on_error", "goes_on"),
    [
        *(("app", "stop", False), ("app", "dead-letter", False)),
        *(("app", "dead-letter-all", True), ("lenient", "dead-letter", False)),
        *(("lenient", "dead-letter-all", True), ("lenient_in_all", "dead-letter", True)),
    ],
)
def test_a_mistake_in_the_code_stops_a_rebuild_in_stages_as_it_stops_a_service(
    own: Path, monkeypatch: pytest.MonkeyPatch, app: str, on_error: str, *, goes_on: bool
) -> None:
    sale = shops.Sale("shop-2", 5_000, 77)
    lived.append(own, [Output("sales", b"shop-2", msgspec.json.encode(sale), sale.at)], {"sales": 2})
    lived.live_on(own, SHOPS)
    monkeypatch.setenv("SHOPS_WRONG", "mistaken")
    name = f"tests.history.rebuilding.shops:{app}"
    with pytest.raises(errors.ReplayDivergedError, match=r"that did not fail before: .*centss"):
        done(own, name, order="tape")
    if goes_on:
        report, snapshot = done(own, name, on_error=on_error, order="stages")
        assert report.failed_here == len(report.failed) == 1
        assert "centss" in report.failed[0]
        assert None in [one.changelog_position for one in snapshot.manifest.tasks]
        return
    with pytest.raises(errors.HandlerError, match="centss") as found:
        rebuild(request(own, name, on_error=on_error, order="stages"), LocalEngine(1))
    assert found.value.key == "shop-2"
    assert "dead-letter-all" in found.value.hint
    assert "mistake in the code" in found.value.hint or on_error == "stop"


def test_refused_records_are_not_counted_as_replayed_and_have_the_letters_of_the_service(
    tmp_path: Path,
) -> None:
    app, bad = "tests.history.rebuilding.shops:lenient", [Output("sales", b"b", b"no sale", 0)] * 3
    lived.append(tmp_path, [*shops.sales(40), *bad], {"sales": 2})
    lived.live_on(tmp_path, app)
    letters = [one.headers for one in lived.read(tmp_path, "shops.dead-letters")]
    report, snapshot = done(tmp_path, app, outputs=f"parquet:{tmp_path / 'out'}")
    assert (report.events, report.replayed, report.refused) == (40, 40, 3)
    assert report.notes == []
    written = lived.outputs(tmp_path / "out", snapshot, "shops.dead-letters")
    assert [one.headers for one in written] == letters


def test_records_that_no_longer_decode_are_told_by_the_first_offset(sold: Path) -> None:
    app = "tests.history.rebuilding.shops:strict"
    with pytest.raises(errors.ReplayDivergedError, match=r"not refused before: .*`int` <= 2500") as caught:
        rebuild(request(sold, app), LocalEngine(1))
    found = re.search(r"partition (\d+), offset (\d+)", caught.value.what)
    assert found is not None
    log = EmbeddedLog(sold / "log", create=False)
    times = [
        msgspec.json.decode(one.value or b"", type=shops.Sale).at for one in scan(log, "sales", int(found[1]))
    ]
    log.close()
    assert int(found[2]) == next(at for at, time_ms in enumerate(times) if time_ms > 2_500)
    report, _ = done(sold, app, on_error="dead-letter")
    assert report.refused == 150 - 1


def test_another_python_is_refused_unless_told(own: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    here = tape.environment
    monkeypatch.setattr(
        tape, "environment", lambda zones: msgspec.structs.replace(here(zones), python="cpython 3.99")
    )
    refused(own, errors.EnvironmentMismatchError, "cpython 3.99")
    _, snapshot = done(own, SHOPS, any_environment=True)
    assert rebuilt(snapshot) == live(own, find_app(SHOPS).plan())
    assert snapshot.manifest.environment["python"] == "cpython 3.99"
