"""In canonical order each event takes effect at most once: what had failed in its place, what was redriven
where it is.
"""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import Any

import pytest

from tailrace.core.engine.replay import Limits
from tailrace.core.errors import HandlerError, SnapshotMismatchError
from tailrace.history.reading.beginnings import handled_in
from tests.cli.commands import done as command
from tests.history.rebuilding import lived, orders
from tests.history.rebuilding.lived import done, live, rebuilt
from tests.history.rebuilding.ordering import ALL, ORDERS, RIGHT, World, has_header, lived_through, of
from tests.history.rebuilding.orders import Order

CANONICAL: dict[str, Any] = {"order": "canonical"}


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    return World(tmp_path, monkeypatch)


@pytest.mark.one_seed_in(50)  # one takes 0.9 s
def test_along_the_tape_it_is_skipped_and_in_canonical_order_each_event_counts_once(
    seeds: range, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Held against a plain reading of the whole history."""
    for seed in seeds:
        world = lived_through(World(tmp_path / str(seed), monkeypatch), Random(seed))
        assert world.of_service() == world.books(), seed
        usual, snapshot = done(world.folder, ORDERS)
        assert rebuilt(snapshot) == live(world.folder, world.plan), seed
        assert usual.notes == []
        assert any(map(has_header, world.read()))
        report, found = world.rebuilt(**CANONICAL)
        assert found == world.corrected(), seed
        open_ = [one for one in world.letters() if one.topic and one.id not in world.redriven()]
        assert report.settled == len(open_)


def test_up_to_a_limit_it_handles_and_settles_the_same(world: World) -> None:
    world.order(Order("a", 1_000, 13), Order("a", 1_010, 14), Order("b", 1_000, 13), Order("b", 1_010, 1))
    world.live(ALL | {"always"})
    world.redrive(lambda one: b"13" in one.record.value and one.record.key == b"b")
    world.live(ALL | {"always"})
    world.code(frozenset({"always"}))
    log = world.log()
    until = Limits(offsets={"orders": {number: log.end_offset("orders", number) for number in range(2)}})
    log.close()
    _, one = done(world.folder, ORDERS, **CANONICAL)
    _, other = done(world.folder, ORDERS, **CANONICAL, until=until)
    assert [handled_in(task) for task in one.manifest.tasks] == [
        handled_in(task) for task in other.manifest.tasks
    ]
    assert {key: account.cents for key, account in of(one).items()} == {"a": 13, "b": 14}


def test_what_still_fails_is_named_or_goes_to_the_dead_letters(world: World) -> None:
    world.order(Order("a", 1_000, 13), Order("a", 1_010, 14), Order("a", 1_020, 13), Order("a", 1_030, 1))
    world.live(RIGHT)
    world.code(frozenset({"always"}))
    for options in ({}, CANONICAL):
        report, found = world.rebuilt(on_error="dead-letter", **options)
        assert found["a"].cents == 13 + 13 + 1
        assert report.failed_here == 1
        assert "14 brings bad luck" in report.failed[0]
    with pytest.raises(HandlerError, match=r"14 brings bad luck.*topic 'orders', partition ., offset 1"):
        world.rebuilt()


def test_what_is_redriven_and_not_read_yet_is_left_to_its_redriven_record(world: World) -> None:
    """The service handles it there, and so does the next rebuild, once the service has committed it."""
    world.order(Order("a", 1_000, 13), Order("a", 1_010, 13), Order("a", 1_020, 1))
    world.live(ALL)
    (first, _) = [one.id for one in world.letters()]
    world.code(RIGHT)
    limit: Any = {"until": Limits(offsets={"orders": {orders.place_of("a"): 3}})}
    world.redrive(lambda one: one.id == first)
    report, found = world.rebuilt(**CANONICAL, **limit)
    assert (report.settled, found["a"].cents) == (1, 14)
    world.live(RIGHT)
    _, found = world.rebuilt(base=str(world.folder / "snapshots"), **CANONICAL)
    assert found["a"].cents == 27


def test_what_was_redriven_into_another_partition_counts_there(world: World) -> None:
    """It came from a foreign one, where it cannot be handled by any code."""
    foreign = orders.record(Order("a", 1_000, 5))
    lived.append(world.folder, [], {"orders": 2})
    log = world.log()
    log.append_all([foreign], 1 - orders.place_of("a"))
    log.close()
    world.live(RIGHT)
    assert [one.reason for one in world.letters()] == ["foreign-partition"]
    world.redrive()
    world.live(RIGHT)
    assert world.of_service()["a"].cents == 5
    for options in ({}, CANONICAL):
        assert world.rebuilt(**options)[1]["a"].cents == 5


def test_what_a_rebuild_has_handled_is_not_redriven_once_the_service_was_started_from_it(
    world: World,
) -> None:
    world.order(Order("a", 1_000, 13), Order("a", 1_010, 14), Order("b", 1_000, 13), Order("b", 1_010, 1))
    world.live(ALL | {"always"})
    world.redrive(lambda one: b"13" in one.record.value and one.record.key == b"b")
    world.live(ALL | {"always"})  # it fails again, and has another letter
    world.code(frozenset({"always"}))
    report, _ = world.rebuilt(**CANONICAL)
    assert report.settled == 2
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
        "1 dead letter was redriven.\n1 dead letter had been redriven before.\n2 dead letters handled by a "
        "rebuild" in said
    )
    lived.live_on(world.folder, ORDERS)
    assert {key: one.cents for key, one in world.of_service().items()} == {"a": 27, "b": 14}
    assert world.rebuilt()[1] == world.of_service()


def test_a_snapshot_whose_records_were_redriven_since_is_refused(world: World) -> None:
    world.order(Order("a", 1_000, 13))
    world.live(ALL)
    world.code(RIGHT)
    base = str(world.folder / "snapshots")
    _, first = done(world.folder, ORDERS, **CANONICAL)
    world.redrive()
    with pytest.raises(SnapshotMismatchError, match=r"offset 1 of 'orders' .* would be handled twice"):
        lived.live_on(world.folder, ORDERS, replace=base)
    with pytest.raises(SnapshotMismatchError, match=r"offset 1 of 'orders' .* would be handled twice"):
        done(world.folder, ORDERS, base=base, base_id=first.manifest.id, **CANONICAL)
    world.live(RIGHT)
    report, found = world.rebuilt(**CANONICAL)
    assert (report.settled, found["a"].cents) == (0, 13)
    lived.live_on(world.folder, ORDERS, replace=base)
    assert world.of_service()["a"].cents == 13


def test_who_goes_on_from_a_snapshot_knows_what_is_handled_in_it(world: World) -> None:
    world.order(Order("a", 1_000, 13), Order("b", 1_000, 13))
    world.live(ALL)
    world.code(RIGHT)
    base = str(world.folder / "snapshots")
    _, first = done(world.folder, ORDERS, **CANONICAL)
    world.order(Order("a", 1_100, 1))
    world.live(RIGHT)
    _, second = done(world.folder, ORDERS, base=base, base_id=first.manifest.id, **CANONICAL)
    assert {key: one.cents for key, one in of(second).items()} == {"a": 14, "b": 13}
    again = [handled_in(one) for one in second.manifest.tasks]
    assert again == [handled_in(one) for one in first.manifest.tasks]
