"""Two states are equal byte for byte, or the keys that differ are named, each with its differences."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tailrace.core import rows
from tailrace.core.rows import SCHEMA_ROW
from tailrace.history.comparing.states import Side, compare_states
from tailrace.history.reading.app_history import AppHistory
from tailrace.state.snapshots import Manifest
from tests.core.versions import Fields, Lives, Set, plan_of
from tests.runtime.state_world import KEYS, World, edited


@pytest.fixture
def world(tmp_path) -> Iterator[World]:
    made = World(tmp_path)
    made.live()
    yield made
    made.log.close()


def of_log(world: World) -> Side:
    history = AppHistory(world.plan, world.log)

    def rows(number: int) -> Iterator[tuple[bytes, bytes]]:
        found = history.committed(number, with_rows=True).rows
        assert found is not None
        return found.rows()

    return Side(
        "the log",
        rows,
        lambda number: history.committed(number).cut,
        lambda number: world.state("tally", number).get(SCHEMA_ROW),
    )


def of_snapshot(world: World, made: Manifest) -> Side:
    found = world.snapshots().open(made.id)
    task = found.manifest.task
    return Side(
        "the snapshot", found.rows, lambda number: task(number).cut, lambda number: task(number).schema
    )


def test_a_snapshot_equals_the_changelog(world) -> None:
    found = compare_states(world.plan, of_log(world), of_snapshot(world, world.take()))
    assert found.count == 0
    assert found.rows[0] == found.rows[1] > KEYS
    assert found.keys >= KEYS
    assert found.cuts == []


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
    found = compare_states(world.plan, of_log(world), of_snapshot(world, made))
    assert found.count == len(found.shown) == 1
    (one,) = found.shown
    assert (one.actor, one.key) == ("Counter", "'k3'")
    told = {label: (was, now) for label, was, now in one.changes}
    assert told["count"] == ("6", "99")
    assert told["timer 'final'"][1] == "nothing"


def test_a_key_that_only_one_side_has(world) -> None:
    world.take()
    made = edited(
        world.snapshots(), lambda row, value: None if row.startswith(b"sAuditor\0auditor-1\0\0") else value
    )
    found = compare_states(world.plan, of_log(world), of_snapshot(world, made))
    assert [(each.actor, each.key) for each in found.shown] == [("Auditor", "'auditor-1'")]
    found = compare_states(world.plan, of_snapshot(world, made), of_log(world))
    assert {now for _, _, now in found.shown[0].changes} != {"nothing"}


def test_nothing_is_held_but_a_key_at_a_time(world) -> None:
    """Rows are taken from both sides in step: the first difference is known before the sides are read to their end."""
    taken = [0, 0]

    def counted(at: int, side: Side) -> Side:
        def rows(number: int) -> Iterator[tuple[bytes, bytes]]:
            for row in side.rows(number):
                taken[at] += 1
                yield row
                assert abs(taken[0] - taken[1]) < 50

        return Side(side.name, rows, side.cut, side.schema)

    side = of_snapshot(world, world.take())
    found = compare_states(world.plan, counted(0, of_log(world)), counted(1, side))
    assert found.count == 0
    assert min(taken) > KEYS


def of_versions(name: str, *versions: Fields) -> tuple[Lives, Side]:
    """The state that versions have left: of a key with an event under the first, and of one that is back to its defaults."""
    lives = Lives(plan_of(versions[0]))
    lives.take(Set("a", 1, {"kept": 1}), Set("back", 1, {"kept": 0}))
    lives.commit()
    for version in versions[1:]:
        lives.start(plan_of(version))
        lives.commit()
    store = lives.store
    return lives, Side(name, lambda _: store.rows(), lambda _: store.cut, lambda _: store.get(SCHEMA_ROW))


def test_versions_are_compared_by_what_each_of_them_reads() -> None:
    kept: Fields = {"kept": (int, 0)}
    zero, seven = ({**kept, "n": (int, default)} for default in (0, 7))
    lives, one = of_versions("one", kept, zero)
    _, other = of_versions("other", kept, seven)
    found = compare_states(lives.plan, one, other)
    (difference,) = found.shown
    assert (difference.key, difference.changes) == ("'a'", (("n", "0", "7"),))
    assert found.defaults == ["Plane.n of a key of which nothing is stored: 0 in one, 7 in other"]
    _, again = of_versions("again", zero, seven)
    found = compare_states(lives.plan, one, again)
    assert (found.count, found.as_read, found.differs) == (0, True, True), "a key that is not stored differs"
    _, spelt = of_versions("spelt", zero)
    found = compare_states(lives.plan, one, spelt)
    assert (found.count, found.as_read, found.differs) == (0, True, False)
