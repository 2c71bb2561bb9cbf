"""Two states are matched key by key: equal byte for byte, or the keys that differ are named, each with its differences."""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from random import Random

import pytest

from tailrace.core import rows
from tailrace.core.records import Output
from tailrace.history.comparing.differences import Differences
from tailrace.history.comparing.matched_rows import MatchedKey, Side, matched_keys
from tailrace.history.comparing.outputs import OutputComparison, output_difference
from tailrace.history.reading.app_history import Emitted, hash_of
from tailrace.state.snapshots import Manifest
from tests.core.versions import Fields, Lives, Set, plan_of
from tests.history.differences import Differing, differences_of, of_log, of_snapshot, of_stores
from tests.runtime.served import make_app
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


def test_plain_fields_in_another_order_are_no_difference_and_entries_are() -> None:
    fields: Fields = {"kept": (int, 0), "n": (int, 0), "by": (dict[str, int], {})}
    sides: list[Side] = []
    for number, (order, by) in enumerate([(1, "xy"), (-1, "xy"), (1, "yx")]):
        lives = Lives(plan_of(dict([*fields.items()][::order])))
        lives.take(Set("a", 1, {"kept": 1, "n": 2, "by": dict.fromkeys(by, 3)}))
        lives.commit()
        sides.append(of_stores(str(number), [lives.store]))
    one, turned, inserted = sides
    assert [*one.rows(0)] != [*turned.rows(0)]
    assert one.schema(0) == turned.schema(0)
    plan = plan_of(fields)
    assert differences_of(plan, one, turned) == []
    (found,) = differences_of(plan, one, inserted)
    assert "{'y': 3, 'x': 3}" in str(found), "handlers see the order of a dict"


def some_state(random: Random) -> dict[bytes, bytes]:
    """Rows of a few keys of two actors, and rows that are not state."""
    found = {b"kcut": b"cut", b"i\0index": b""}
    for _ in range(random.randrange(12)):
        key = bytes(random.choice((0, 1, 255)) for _ in range(random.randrange(4)))
        rest = random.choice((b"", b"l\0", b"m\0\0a", b"t\0name"))
        found[rows.actor_prefix(random.choice("AB")) + rows.escaped(key) + rest] = random.choice((b"1", b"2"))
    return found


def by_key(state: dict[bytes, bytes]) -> dict[tuple[str, bytes], dict[bytes, bytes]]:
    found: dict[tuple[str, bytes], dict[bytes, bytes]] = {}
    for name, value in state.items():
        if name[:1] == rows.STATE:
            parts = rows.read_state_row(name)
            found.setdefault((parts.actor, parts.key), {})[name] = value
    return found


def test_every_key_of_either_side_comes_once_in_order_with_all_its_rows(seeds: range) -> None:
    for seed in seeds:
        random = Random(seed)
        one, other = some_state(random), some_state(random)
        matched = list(matched_keys(sorted(one.items()), sorted(other.items())))
        was, now = by_key(one), by_key(other)
        assert [key.prefix for key in matched] == sorted({key.prefix for key in matched})
        assert {(key.actor, key.key) for key in matched} == was.keys() | now.keys()
        for key in matched:
            place = key.actor, key.key
            assert (dict(key.was), dict(key.now)) == (was.get(place, {}), now.get(place, {}))
            assert key.differs({}) == (was.get(place) != now.get(place))


def test_what_no_actor_explains_is_described_in_bytes() -> None:
    prefix = rows.actor_prefix("A") + rows.escaped(b"k")
    key = MatchedKey(prefix, [(prefix + b"m\0x", b"1")], [])
    assert [change.between("one", "other") for change in key.describe(None, {})] == [
        "the bytes of b'm\\x00x': 31 in one, nothing in other"
    ]


def test_a_timer_with_another_cause_is_named() -> None:
    """Nothing else of it can be seen, before its handler draws."""
    actor = make_app().plan().actors[0]
    prefix = rows.actor_prefix(actor.name) + rows.escaped(b"k")
    one, other = (
        sorted(
            rows.gathered(
                {b"": rows.WITH_TIMER_ROWS + b"\x80", timer: rows.encode_timer(rows.Timer(1_000, cause))}
            ).items()
        )
        for timer in (rows.timer_row(b"", rows.EVENT_TIME, b"nlate"),)
        for cause in (b"\x07", b"\x08")
    )
    was, now = ([(prefix + rest, value) for rest, value in side] for side in (one, other))
    assert [tuple(one) for one in MatchedKey(prefix, was, now).describe(actor, {})] == [
        ("the cause of timer 'late'", "07", "08")
    ]


def test_outputs_that_read_the_same_are_described_in_bytes() -> None:
    plan = make_app().plan()
    one, other = (Output("nowhere", b"k", b"v", 0, (("task", number),)) for number in (b"\xfe", b"\xff"))
    found = output_difference(plan, 0, (3, one), (3, other))
    assert [change.label for change in found.changes] == ["headers"]
    assert [change.label for change in output_difference(plan, 0, (3, one), (4, one)).changes] == ["number"]
    assert {change.is_ for change in output_difference(plan, 0, (3, one), None).changes} == {"nothing"}


def test_of_each_key_in_the_first_commit_that_differs_the_first_output_is_described_in_order() -> None:
    plan = make_app().plan()

    def numbered(values: dict[int, tuple[bytes, bytes]]) -> dict[int, Output]:
        return {
            number: Output("nowhere", key, value, 0, (("tailrace-origin", b"%d" % number),))
            for number, (key, value) in values.items()
        }

    # The keys begin in the order a, b, and differ first in the order b, a.
    live = numbered({0: (b"a", b"1"), 1: (b"b", b"1"), 2: (b"b", b"2"), 3: (b"a", b"2"), 4: (b"a", b"3")})
    again = numbered({0: (b"a", b"1"), 1: (b"b", b"0"), 2: (b"b", b"0"), 3: (b"a", b"0"), 4: (b"a", b"3")})
    emitted = Emitted(array("q", [hash_of(one) for one in live.values()]), {})
    comparison = OutputComparison(plan, 0, emitted, 100)
    comparison.take(0, 5, list(again.values()))
    comparison.take(5, 6, [])
    assert comparison.wanted() == range(5)
    found = Differences()
    comparison.report(live, found)
    assert [one.key_bytes for one in found.shown] == [b"b", b"a"]
    assert found.count == 2
