"""Two states are matched key by key, and two sequences are compared up to where they differ first."""

from __future__ import annotations

from random import Random

from tailrace.core import rows
from tailrace.core.records import Output
from tailrace.history.comparing.differences import SHOWN, Difference, Differences, first_apart
from tailrace.history.comparing.matched_rows import MatchedKey, matched_keys
from tailrace.history.comparing.outputs import output_difference
from tests.runtime.served import make_app


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


def test_the_first_place_where_two_sequences_differ() -> None:
    assert first_apart("abc", "abc") is None
    assert first_apart("abc", "aXY") == ("b", "X")
    assert first_apart("abc", "ab") == ("c", None)
    assert first_apart("", "a") == (None, "a")
    assert first_apart("abC", "ABD", str.lower) == ("C", "D")


def test_outputs_that_read_the_same_are_described_in_bytes() -> None:
    plan = make_app().plan()
    one, other = (Output("nowhere", b"k", b"v", 0, (("task", number),)) for number in (b"\xfe", b"\xff"))
    found = output_difference(plan, 0, (3, one), (3, other))
    assert [change.label for change in found.changes] == ["headers"]
    assert [change.label for change in output_difference(plan, 0, (3, one), (4, one)).changes] == ["number"]
    assert {change.is_ for change in output_difference(plan, 0, (3, one), None).changes} == {"nothing"}


def test_the_differences_of_several_parts_are_counted_and_the_first_are_described() -> None:
    whole, part = Differences(), Differences()
    for number in range(SHOWN + 5):
        part.add(Difference(kind="state", where=str(number)))
    part.add(Difference(kind="commit", where="the reason"))
    whole.add_all(part)
    whole.add_all(part)
    assert whole.count == 2 * (SHOWN + 6)
    assert [one.kind for one in whole.shown[:3]] == ["commit", "commit", "state"]
    assert len(whole.shown) == SHOWN + 1
