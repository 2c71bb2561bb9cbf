"""What was redriven to where a rebuild does not come takes effect there; what a rebuild has handled is not redriven any more."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tailrace.core.engine.replay import Limits
from tailrace.core.errors import SnapshotMismatchError
from tailrace.history.dead_letters.handled import handled_in
from tests.cli.commands import done as command
from tests.history.rebuilding import lived, orders
from tests.history.rebuilding.lived import done
from tests.history.rebuilding.ordering import ALL, ORDERS, RIGHT, World, of
from tests.history.rebuilding.orders import Order


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    return World(tmp_path, monkeypatch)


def test_what_is_redriven_and_not_read_yet_is_left_to_its_redriven_record(world: World) -> None:
    """The service handles it when it goes on: with the state of the rebuild as with its own."""
    world.order(Order("a", 1_000, 13), Order("a", 1_010, 13), Order("a", 1_020, 1))
    world.live(ALL)
    (first, _) = [one.id for one in world.letters()]
    world.redrive(lambda one: one.id == first)
    world.code(RIGHT)
    report, found = world.rebuilt(retry_failed=True)
    assert (report.retried, report.left_to_redriven) == (1, 1)
    assert found["a"].cents == 14
    assert any("1 record that had failed not run again" in note for note in report.notes)
    lived.live_on(world.folder, ORDERS, replace=str(world.folder / "snapshots"))
    assert world.of_service()["a"].cents == 27


def test_a_chain_of_redriven_records_of_which_the_last_is_not_read_yet_is_left_to_that(world: World) -> None:
    world.order(Order("a", 1_000, 13))
    world.live(ALL)
    world.redrive()
    world.live(ALL)
    world.redrive()
    world.code(RIGHT)
    report, found = world.rebuilt(retry_failed=True)
    assert (report.retried, report.left_to_redriven, found) == (0, 2, {})


def test_what_was_redriven_into_another_partition_is_left_to_its_redriven_record(world: World) -> None:
    """It came from a foreign one, where it cannot be handled by any code."""
    foreign = orders.record(Order("a", 1_000, 5))
    log = world.log()
    lived.append(world.folder, [], {"orders": 2})
    log.append_all([foreign], 1 - orders.place_of("a"))
    log.close()
    world.live(RIGHT)
    assert [one.reason for one in world.letters()] == ["foreign-partition"]
    world.redrive()
    world.live(RIGHT)
    assert world.of_service()["a"].cents == 5
    for order in ("tape", "canonical"):
        report, found = world.rebuilt(retry_failed=True, order=order)
        assert found["a"].cents == 5
        assert (report.retried, report.left_to_redriven, report.passed_over) == (0, 1, 0)


def test_what_a_rebuild_has_handled_is_not_redriven_once_the_service_was_started_from_it(
    world: World,
) -> None:
    world.order(Order("a", 1_000, 13), Order("a", 1_010, 14), Order("b", 1_000, 13), Order("b", 1_010, 1))
    world.live(ALL | {"always"})
    world.redrive(lambda one: b"13" in one.record.value and one.record.key == b"b")
    world.live(ALL | {"always"})  # it fails again, and has another letter
    world.code(frozenset({"always"}))
    report, _ = world.rebuilt(retry_failed=True, on_error="dead-letter")
    assert (report.retried, report.failed_again) == (3, 1)
    assert world.outcomes() == [  # nothing of the service is changed by a rebuild
        ("a", 13, "pending"),
        ("a", 14, "pending"),
        ("b", 13, "failed"),
        ("b", 13, "pending"),
    ]
    lived.live_on(world.folder, ORDERS, replace=str(world.folder / "snapshots"))
    assert world.outcomes() == [
        ("a", 13, "rebuilt"),
        ("a", 14, "pending"),
        ("b", 13, "failed"),
        ("b", 13, "rebuilt"),
    ]
    listed = command("dead-letters", "list", "orders", "--log", world.folder / "log").out
    assert listed.count("handled by a rebuild: snapshot 20") == 2
    world.code(RIGHT)
    said = command("dead-letters", "redrive", "orders", "--all", "--log", world.folder / "log").out
    assert (
        "1 dead letter was redriven.\n1 dead letter had been redriven before.\n2 dead letters handled by a rebuild"
        in said
    )
    lived.live_on(world.folder, ORDERS)
    assert {key: one.cents for key, one in world.of_service().items()} == {"a": 27, "b": 14}
    assert world.rebuilt()[1] == world.of_service()


@pytest.mark.parametrize("order", ["tape", "canonical"])
def test_a_snapshot_whose_records_were_redriven_since_is_refused(world: World, order: str) -> None:
    world.order(Order("a", 1_000, 13))
    world.live(ALL)
    world.code(RIGHT)
    world.rebuilt(retry_failed=True, order=order)
    world.redrive()
    with pytest.raises(SnapshotMismatchError, match=r"offset 1 of 'orders' .* would be handled twice"):
        lived.live_on(world.folder, ORDERS, replace=str(world.folder / "snapshots"))
    report, _ = world.rebuilt(retry_failed=True)
    assert report.left_to_redriven == 1
    lived.live_on(world.folder, ORDERS, replace=str(world.folder / "snapshots"))
    assert world.of_service()["a"].cents == 13


def test_a_limit_by_time_before_a_redriven_record_is_refused_and_the_hint_can_be_followed(
    world: World,
) -> None:
    """Along the tape it is not known beforehand which records come before a time; those before an offset are."""
    world.order(Order("a", 1_000, 13), Order("a", 3_000, 5))
    world.live(ALL)
    world.code(RIGHT)
    world.redrive()
    world.live(RIGHT)
    snapshots = str(world.folder / "snapshots")
    report, _ = world.rebuilt(retry_failed=True, until=Limits(watermark_ms=2_000))
    assert any("failures are counted as its tape has them, up to the last" in one for one in report.notes)
    with pytest.raises(SnapshotMismatchError, match="handled twice") as raised:
        lived.live_on(world.folder, ORDERS, replace=snapshots)
    assert "without --until and --until-clock" in raised.value.hint
    report, _ = world.rebuilt(retry_failed=True, until=Limits(offsets={"orders": {orders.place_of("a"): 2}}))
    assert (report.retried, report.left_to_redriven) == (0, 1)


def test_who_goes_on_from_what_was_retried_passes_over_what_was_redriven_since(world: World) -> None:
    world.order(Order("a", 1_000, 13), Order("b", 1_000, 13))
    world.live(ALL)
    world.code(RIGHT)
    base = str(world.folder / "snapshots")
    _, first = done(world.folder, ORDERS, retry_failed=True)
    world.redrive()
    world.live(RIGHT)
    with pytest.raises(SnapshotMismatchError, match="would be handled twice"):
        done(world.folder, ORDERS, base=base, base_id=first.manifest.id)
    for order, split in (("tape", 1), ("canonical", 1), ("canonical", 2)):
        options: Any = {"order": order, "split": split, "retry_failed": order == "tape"}
        report, snapshot = done(world.folder, ORDERS, base=base, base_id=first.manifest.id, **options)
        assert {key: one.cents for key, one in of(snapshot).items()} == {"a": 13, "b": 13}
        assert report.passed_over == 2
        again = [handled_in(one) for one in snapshot.manifest.tasks]
        assert again == [handled_in(one) for one in first.manifest.tasks]
