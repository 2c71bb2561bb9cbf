"""In canonical order each event takes effect once, in its place: redriven records are skipped."""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import Any

import pytest

from tailrace.core.engine.replay import Limits
from tailrace.core.errors import HandlerError
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
        open_ = [one for one in world.letters() if one.id not in world.redriven()]
        assert any(f"records of {len(open_)} open dead letters" in one for one in report.notes) == bool(open_)


def test_up_to_a_limit_it_handles_the_same(world: World) -> None:
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
    for found in (one, other):
        assert {key: account.cents for key, account in of(found).items()} == {"a": 13, "b": 14}


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


def test_what_had_failed_before_the_base_is_handled_where_it_was_redriven(world: World) -> None:
    world.order(Order("a", 1_000, 13), Order("a", 1_010, 1))
    world.live(ALL)
    world.code(RIGHT)
    _, base = done(world.folder, ORDERS, order="tape")
    world.redrive()
    world.live(RIGHT)
    options = {"base": str(world.folder / "snapshots"), "base_id": base.manifest.id}
    assert world.rebuilt(**options, **CANONICAL)[1]["a"].cents == 14


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


def test_letters_whose_records_a_rebuild_has_handled_stay_open_until_they_are_dropped(world: World) -> None:
    world.order(Order("a", 1_000, 13), Order("a", 1_010, 14), Order("b", 1_000, 13), Order("b", 1_010, 1))
    world.live(ALL | {"always"})
    world.redrive(lambda one: b"13" in one.record.value and one.record.key == b"b")
    world.live(ALL | {"always"})  # it fails again, and has another letter
    world.code(RIGHT)
    report, _ = world.rebuilt(**CANONICAL)
    assert any("records of 3 open dead letters are handled in their places" in one for one in report.notes)
    lived.live_on(world.folder, ORDERS, replace=str(world.folder / "snapshots"))
    where = ("orders", "--log", world.folder / "log")
    assert command("dead-letters", "list", *where).err.startswith("3 open dead letters")
    assert command("dead-letters", "drop", *where, "--all").out.startswith("3 dead letters were dropped.\n")
    said = command("dead-letters", "redrive", *where, "--all").out
    assert said == "0 dead letters were redriven.\n4 dead letters had been redriven or dropped before.\n"
    lived.live_on(world.folder, ORDERS)
    assert {key: one.cents for key, one in world.of_service().items()} == {"a": 27, "b": 14}
    assert world.rebuilt()[1] == world.of_service()
