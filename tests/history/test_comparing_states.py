"""Two states are equal byte for byte, or the keys that differ are named, each with its differences."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tailrace.core import rows
from tailrace.history.comparing.matched_rows import Comparison, Side, compared_keys
from tailrace.state.snapshots import Manifest
from tests.core.versions import Fields, Lives, Set, plan_of
from tests.history.differences import Differing, differences_of, of_log, of_snapshot, of_stores
from tests.runtime.state_world import KEYS, World, edited


@pytest.fixture
def world(tmp_path) -> Iterator[World]:
    made = World(tmp_path)
    made.live()
    yield made
    made.log.close()


def by_the_log(world: World) -> Side:
    return of_log(world.plan, world.log)


def in_snapshot(world: World, made: Manifest) -> Side:
    return of_snapshot(world.plan, f"{world.folder / 'snapshots'}#{made.id}")


def test_a_snapshot_equals_the_changelog(world) -> None:
    one, other, counts = by_the_log(world), in_snapshot(world, world.take()), Comparison()
    found = [key for number in range(4) for key, _, _ in compared_keys(number, one, other, counts)]
    assert (counts.keys, counts.count, counts.defaults) == (len(found), 0, [])
    assert sum(len(key.was) for key in found) == sum(len(key.now) for key in found) > KEYS
    assert counts.keys >= KEYS


def test_what_was_edited_is_shown_field_by_field(world) -> None:
    world.take()
    actor = world.plan.actors[1]

    def change(row: bytes, value: bytes) -> bytes | None:
        if row.startswith(b"sCounter\0k3\0\0"):
            instance = actor.decode(value[rows.start_of_fields(value) :])
            instance.count = 99
            return b"".join((rows.PLAIN, actor.encode(instance)))  # without its timer
        return value

    made = edited(world.snapshots(), change)
    (one,) = differences_of(world.plan, by_the_log(world), in_snapshot(world, made))
    assert isinstance(one, Differing)
    assert (one.actor, one.key) == ("Counter", "'k3'")
    told = {label: (was, now) for label, was, now in one.changes}
    assert told["count"] == ("6", "99")
    assert told["timer 'final'"][1] == "nothing"


def test_a_key_that_only_one_side_has(world) -> None:
    world.take()
    made = edited(
        world.snapshots(), lambda row, value: None if row.startswith(b"sAuditor\0auditor-1\0\0") else value
    )
    sides = by_the_log(world), in_snapshot(world, made)
    (one,), (other,) = differences_of(world.plan, *sides), differences_of(world.plan, *sides[::-1])
    assert isinstance(one, Differing)
    assert isinstance(other, Differing)
    assert one[:2] == other[:2] == ("Auditor", "'auditor-1'")
    assert [(label, now, was) for label, was, now in one.changes] == list(other.changes)
    assert {now for _, _, now in other.changes} != {"nothing"}


def test_nothing_is_held_but_a_key_at_a_time(world) -> None:
    """Rows are taken from both sides in step: the first difference is known before the sides are read to their end."""
    taken = [0, 0]

    def counted(at: int, side: Side) -> Side:
        def rows(number: int) -> Iterator[tuple[bytes, bytes]]:
            for row in side.rows(number):
                taken[at] += 1
                yield row
                assert abs(taken[0] - taken[1]) < 50

        return Side(side.name, rows, side.schema)

    side = in_snapshot(world, world.take())
    assert differences_of(world.plan, counted(0, by_the_log(world)), counted(1, side)) == []
    assert min(taken) > KEYS


def of_versions(name: str, *versions: Fields) -> tuple[Lives, Side]:
    """The state that versions have left: of a key with an event under the first, and of one that is back to its defaults."""
    lives = Lives(plan_of(versions[0]))
    lives.take(Set("a", 1, {"kept": 1}), Set("back", 1, {"kept": 0}))
    lives.commit()
    for version in versions[1:]:
        lives.start(plan_of(version))
        lives.commit()
    return lives, of_stores(name, [lives.store])


def test_versions_are_compared_by_what_each_of_them_reads() -> None:
    kept: Fields = {"kept": (int, 0)}
    zero, seven = ({**kept, "n": (int, default)} for default in (0, 7))
    lives, one = of_versions("one", kept, zero)
    _, other = of_versions("other", kept, seven)
    default = "Plane.n of a key of which nothing is stored: 0 in one, 7 in other"
    assert differences_of(lives.plan, one, other) == [("Plane", "'a'", (("n", "0", "7"),)), default]
    _, again = of_versions("again", zero, seven)
    (said,) = differences_of(lives.plan, one, again)
    assert said == default.replace("other", "again"), "a key that is not stored differs"
    _, spelt = of_versions("spelt", zero)
    assert one.schema(0) != spelt.schema(0)
    assert differences_of(lives.plan, one, spelt) == []
