"""A rebuild of a part (some keys, up to a limit, as of a time) has the messages of the code that runs, or is refused."""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import Any

import msgspec
import pytest

from tailrace.core.engine.replay import Limits
from tailrace.core.errors import OptionError, ReplayDivergedError, SnapshotMismatchError
from tailrace.processes.app_loading import find_app
from tests.history.rebuilding import lived, payments, shops, two_inputs
from tests.history.rebuilding.lived import done
from tests.history.rebuilding.payments import oracle
from tests.history.rebuilding.payments_read import APP, outputs_of, stored

CORRECTED = "tests.history.rebuilding.payments:corrected"
SHOPS = "tests.history.rebuilding.shops:app"
EVENTS = payments.payments(150)
MIDDLE_MS = EVENTS[75].at
PARTS: dict[str, dict[str, Any]] = {
    "keys": {"keys": ("region-1",)},
    "an offset": {"until": Limits({"paid": {0: 20, 1: 20}})},
    "a time": {"until": Limits(watermark_ms=MIDDLE_MS)},
}


@pytest.fixture(scope="module")
def wrong(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A service that has sent twice each amount."""
    folder = tmp_path_factory.mktemp("wrong")
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("PAYMENTS_WRONG", "amount")
        lived.append(folder, payments.outputs(EVENTS), {"paid": 2})
        lived.live_on(folder, APP)
    return folder


@pytest.fixture(scope="module")
def right(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("right")
    lived.append(folder, payments.outputs(EVENTS), {"paid": 2})
    lived.live_on(folder, APP)
    return folder


@pytest.mark.parametrize("part", PARTS)
def test_along_the_tape_a_part_is_refused_if_the_code_sends_something_else(wrong: Path, part: str) -> None:
    for app in (APP, CORRECTED):
        with pytest.raises(ReplayDivergedError, match=r"is not what is recorded.*--order canonical"):
            done(wrong, app, **PARTS[part])


@pytest.mark.parametrize("part", PARTS)
def test_along_the_tape_a_part_is_rebuilt_if_the_code_sends_the_same(right: Path, part: str) -> None:
    report, snapshot = done(right, APP, **PARTS[part])
    assert not any("recorded" in note for note in report.notes)
    if part == "keys":
        wanted = oracle(EVENTS).regions["region-1"]
        assert stored(snapshot) == ({}, {"region-1": wanted})


def test_in_canonical_order_some_keys_get_the_messages_that_this_code_sends_them(wrong: Path) -> None:
    wanted = oracle(EVENTS)
    report, snapshot = done(wrong, CORRECTED, order="canonical", keys=("region-1", "customer-3"))
    assert stored(snapshot) == (
        {"customer-3": wanted.accounts["customer-3"]},
        {"region-1": wanted.regions["region-1"]},
    )
    assert "it holds the keys region-1, customer-3 only" in report.notes


@pytest.mark.parametrize(
    ("part", "said"),
    [
        (PARTS["a time"], "--until stops each partition at a record of its own.*Use --as-of"),
        (
            PARTS["keys"] | {"outputs": "parquet:out"},
            "outputs of some keys cannot be separated.*Leave out --outputs",
        ),
        ({"as_of_ms": 1, "base": "snapshots"}, "--as-of does not go with --from-snapshot"),
        ({"as_of_ms": 1, "until": Limits({"paid": {0: 1}})}, "--as-of does not go with another limit"),
    ],
)
def test_in_canonical_order_what_cannot_be_computed_is_refused(
    right: Path, part: dict[str, Any], said: str
) -> None:
    if "base" in part:
        done(right, APP)
        part = part | {"base": str(right / "snapshots")}
    with pytest.raises(OptionError, match=said):
        done(right, APP, order="canonical", **part)


def test_the_tape_is_no_order_of_event_time(right: Path) -> None:
    with pytest.raises(OptionError, match="--as-of does not go with --order tape"):
        done(right, APP, order="tape", as_of_ms=MIDDLE_MS)


@pytest.mark.parametrize("share", [0.0, 0.2, 0.5, 0.9, 1.0])
def test_as_of_a_time_it_has_the_events_up_to_it_and_all_that_they_have_sent(
    wrong: Path, share: float
) -> None:
    as_of_ms = EVENTS[int(share * (len(EVENTS) - 1))].at
    for to in (
        as_of_ms,
        as_of_ms - 1,
        as_of_ms // payments.MINUTE_MS * payments.MINUTE_MS + payments.MINUTE_MS - 1,
    ):
        folder = wrong / f"outputs-{to}"
        _, snapshot = done(wrong, CORRECTED, as_of_ms=to, outputs=f"parquet:{folder / 'outputs'}")
        wanted = oracle([one for one in EVENTS if one.at <= to])
        assert stored(snapshot) == (wanted.accounts, wanted.regions)
        over = {place: amount for place, amount in wanted.windows.items() if place[1] <= to}
        assert outputs_of(folder, snapshot) == over


@pytest.mark.parametrize("seed", range(3))
def test_as_of_a_time_neither_disorder_nor_a_quiet_partition_matters(tmp_path: Path, seed: int) -> None:
    """The app sends nothing to itself: each partition ends there on its own."""
    random = Random(seed)
    records = [one for one in shops.sales(200, shops=4) if one.key != b"shop-1" or random.random() < 0.1]
    arrived = sorted(records, key=lambda one: one.timestamp_ms + random.randrange(400))
    lived.append(tmp_path, arrived, {"sales": 2})
    lived.live_on(tmp_path, SHOPS)
    as_of_ms = random.randrange(1_000, 3_000)
    wanted: dict[str, dict[int, int]] = {}
    for one in records:
        sale = msgspec.json.decode(one.value or b"", type=shops.Sale)
        if sale.at <= as_of_ms:
            of_shop = wanted.setdefault(sale.shop, {})
            of_shop[sale.cents % 5] = of_shop.get(sale.cents % 5, 0) + 1
    report, snapshot = done(tmp_path, SHOPS, as_of_ms=as_of_ms)
    assert shops.stored(snapshot, find_app(SHOPS).plan()) == wanted
    assert report.events == sum(
        msgspec.json.decode(one.value or b"", type=shops.Sale).at <= as_of_ms for one in records
    )


@pytest.mark.parametrize("order", ["arrival", "event-time"])
def test_as_of_a_time_two_inputs_end_there_one_of_which_came_far_ahead(
    tmp_path: Path, order: two_inputs.Order
) -> None:
    """All refunds have arrived before the first payment."""
    records = [*two_inputs.moves("refunds", range(10), 2), *two_inputs.moves("paid", range(10), 1)]
    lived.append(tmp_path, records, {"paid": 2, "refunds": 2})
    app = two_inputs.made(refunds=True, order=order)
    for as_of_ms in (0, 59_999, 60_000, 299_998, 300_123):
        folder = tmp_path / str(as_of_ms)
        report, snapshot = done(tmp_path, app, as_of_ms=as_of_ms, outputs=f"parquet:{folder}")
        until = [one for one in records if one.timestamp_ms <= as_of_ms]
        assert (report.events, report.late) == (len(until), 0)
        found = [
            msgspec.json.decode(one.value or b"", type=two_inputs.Minute)
            for one in lived.outputs(folder, snapshot, "minutes")
        ]
        wanted = {place: sum_ for place, sum_ in two_inputs.expected(until).items() if place[1] <= as_of_ms}
        assert {(one.who, one.end): one.amount for one in found} == wanted
        assert len(found) == len(wanted)


def test_nothing_continues_from_a_snapshot_as_of_a_time(right: Path, tmp_path: Path) -> None:
    """It has left out events from before its positions."""
    _, snapshot = done(right, APP, as_of_ms=MIDDLE_MS, uri=str(tmp_path))
    with pytest.raises(SnapshotMismatchError, match=r"is as of .* it has left out events"):
        done(right, APP, order="canonical", base=str(tmp_path), base_id=snapshot.manifest.id)
    # Two copies of this app cannot run on one log.
    lived.append(tmp_path / "beside", payments.outputs(EVENTS), {"paid": 2})
    with pytest.raises(SnapshotMismatchError, match="which would be lost"):
        lived.live_on(tmp_path / "beside", APP, str(tmp_path))
