"""A default that changes: what is stored keeps reading as before, whether its key is busy or quiet."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from random import Random
from typing import Any
from uuid import UUID, uuid4

import msgspec
import pytest

import tailrace as tr
from tailrace.core.errors import DefinitionError, IncompatibleStateError
from tests.core.versions import Fields, Lives, Restart, Set, plan_of


class Colour(Enum):
    RED = "red"
    BLUE = "blue"


def place(**defaults: Any) -> Any:
    """A struct with these fields, each an int with a default."""
    return msgspec.defstruct(
        "Place", [(name, int, default) for name, default in defaults.items()], frozen=True
    )


def tree(**defaults: Any) -> Any:
    """The same, that may hold itself."""
    fields: list[Any] = [(name, int, default) for name, default in defaults.items()]
    own = msgspec.defstruct("Tree", [*fields, ("below", "list[Tree]", msgspec.field(default_factory=list))])
    own.__annotations__["below"] = list.__class_getitem__(own)
    return own


POINT = place(x=0)
MAP: Any = tr.MapState  # so that a type made here may stand in its brackets
LIST: Any = tr.ListState
KEPT: Fields = {"kept": (int, 0)}


def upgraded(before: Fields, values: dict[str, Any], *after: Fields, how: Restart = "local") -> Lives:
    """A key that is set under one version, and then left alone while others run."""
    lives = Lives(plan_of(before))
    lives.report(Set("a", 1, {"kept": 1, **values}))
    lives.commit()
    for fields in after:
        lives.start(plan_of(fields), how)
        lives.commit()
    return lives


def read(lives: Lives, attr: str, key: str = "a") -> Any:
    """What a query reads, and a handler that touches the key."""
    found = msgspec.to_builtins(getattr(lives.instance(key), attr))
    lives.report(Set(key, 1, {"kept": 2}))
    lives.commit()
    assert msgspec.to_builtins(getattr(lives.instance(key), attr)) == found
    return found


@pytest.mark.parametrize("how", ["local", "restored"])
class TestWhatIsStored:
    def test_a_field_at_its_default_keeps_it(self, how: Restart) -> None:
        lives = upgraded({**KEPT, "n": (int, 0)}, {}, {**KEPT, "n": (int, 7)}, how=how)
        assert read(lives, "n") == 0

    def test_a_row_from_before_the_field_reads_the_default_that_it_was_added_with(self, how: Restart) -> None:
        lives = upgraded(KEPT, {}, {**KEPT, "n": (int, 0)}, {**KEPT, "n": (int, 7)}, how=how)
        assert read(lives, "n") == 0
        lives = upgraded(
            KEPT, {}, *({**KEPT, "n": (int, default)} for default in (3, 7, 3, 9)), {**KEPT, "n": (int, 7)}
        )
        assert read(lives, "n") == 3

    def test_a_key_of_which_nothing_is_stored_reads_the_new_default(self, how: Restart) -> None:
        lives = upgraded({**KEPT, "n": (int, 0)}, {"kept": 0}, {**KEPT, "n": (int, 7)}, how=how)
        assert lives.instance("a") is None
        lives.report(Set("a", 2, {"kept": 1}), Set("never", 2, {"kept": 1}))
        lives.commit()
        assert (lives.instance("a").n, lives.instance("never").n) == (7, 7)

    def test_a_nested_struct_keeps_what_it_was_added_with(self, how: Restart) -> None:
        one, two, three = place(x=1), place(x=1, y=2), place(x=5, y=6)
        for kind, value in (
            (lambda p: (p | None, None), {"x": 4}),
            (lambda p: (list.__class_getitem__(p), tr.field(default_factory=list)), [{"x": 4}]),
            (
                lambda p: (dict.__class_getitem__((str, p)), tr.field(default_factory=dict)),
                {"k": {"x": 4}},
            ),
            (
                lambda p: (tuple.__class_getitem__((int, p)), tr.field(default=(0, p()))),
                [1, {"x": 4}],
            ),
        ):
            versions: list[Fields] = [
                {**KEPT, "p": kind(one)},
                *({**KEPT, "p": kind(p)} for p in (two, three)),
            ]
            lives = upgraded(versions[0], {"p": value}, *versions[1:], how=how)
            expected = msgspec.json.decode(msgspec.json.encode(value).replace(b'"x":4', b'"x":4,"y":2'))
            assert msgspec.json.decode(msgspec.json.encode(read(lives, "p"))) == expected

    def test_entries_and_items_keep_what_their_fields_were_added_with(self, how: Restart) -> None:
        one, two, three = place(x=1), place(x=1, y=2), place(x=5, y=6)
        versions: list[Fields] = [
            {
                **KEPT,
                "m": (MAP[str, p], None),
                "l": (LIST[p], None),
            }
            for p in (one, two, three)
        ]
        lives = upgraded(versions[0], {"m[k]": one(4), "l[]": one(4)}, how=how)
        for version in versions[1:]:
            lives.start(plan_of(version), how)
            lives.commit()
        found = lives.instance("a")
        assert (found.m["k"].x, found.m["k"].y, found.l[0].x, found.l[0].y) == (4, 2, 4, 2)

    def test_a_struct_that_holds_itself_does_so_all_the_way_down(self, how: Restart) -> None:
        one, two, three = tree(x=1), tree(x=1, y=2), tree(x=5, y=6)
        versions: list[Fields] = [{**KEPT, "t": (t | None, None)} for t in (one, two, three)]
        for version in versions:
            version["t"] = (version["t"][0], tr.field(default=None))
        value = {"x": 4, "below": [{"x": 3, "below": [{"x": 2, "below": []}]}]}
        lives = upgraded(versions[0], {"t": value}, *versions[1:], how=how)
        assert read(lives, "t") == {
            "x": 4,
            "y": 2,
            "below": [{"x": 3, "y": 2, "below": [{"x": 2, "y": 2, "below": []}]}],
        }


@pytest.mark.parametrize(
    ("kind", "before", "after", "shown"),
    [
        (int, 0, 7, "the default 7 now, it had 0"),
        (Colour, Colour.RED, Colour.BLUE, "the default 'blue' now, it had 'red'"),
        (
            list[int],
            tr.field(default_factory=list),
            tr.field(default_factory=lambda: [1]),
            "the default [1] now, it had []",
        ),
        (POINT, POINT(1), POINT(2), "the default {'x': 2} now, it had {'x': 1}"),
    ],
)
def test_a_change_is_said_once_at_the_start(kind: Any, before: Any, after: Any, shown: str) -> None:
    versions: list[Fields] = [{**KEPT, "n": (kind, default)} for default in (before, after)]
    lives = upgraded(versions[0], {})
    (said,) = lives.start(plan_of(versions[1])).stored.notices
    assert said.startswith(
        f"Plane.n has {shown}: stored values do not change, and a key without stored values"
    )
    lives.commit()
    assert lives.start(plan_of(versions[1])).stored.notices == ()


def test_the_default_of_a_nested_field_is_said_too() -> None:
    versions: list[Fields] = [{**KEPT, "p": (place(x=x) | None, tr.field(default=None))} for x in (1, 2)]
    lives = upgraded(versions[0], {})
    (said,) = lives.start(plan_of(versions[1])).stored.notices
    assert said == "Plane.p.x has the default 2 now, it had 1: stored values do not change."


def test_a_version_is_committed_even_where_no_event_comes() -> None:
    lives = upgraded(KEPT, {})
    assert not lives.start(plan_of(KEPT)).dirty
    assert lives.start(plan_of({**KEPT, "n": (int, 0)})).dirty
    lives.commit()
    assert not lives.task.dirty
    assert not Lives(plan_of(KEPT)).task.dirty, "a new task has nothing to commit yet"


def test_a_widened_type_is_no_other_default() -> None:
    lives = upgraded({**KEPT, "n": (int, 0)}, {})
    assert lives.start(plan_of({**KEPT, "n": (float, 0.0)})).stored.notices == ()


def test_a_default_that_is_another_at_each_call_is_refused() -> None:
    with pytest.raises(
        DefinitionError, match=r"Plane\.id has a default_factory that returns a different value at each call"
    ):
        plan_of({"id": (UUID, tr.field(default_factory=uuid4))})


def test_a_field_added_to_a_nested_struct_with_such_a_default_is_refused() -> None:
    varying = msgspec.defstruct("Place", [("x", int), ("id", UUID, msgspec.field(default_factory=uuid4))])
    plain = msgspec.defstruct("Place", [("x", int)])
    optional = tr.field(default=None)
    lives = upgraded({**KEPT, "p": (plain | None, optional)}, {"p": {"x": 1}})
    with pytest.raises(IncompatibleStateError, match="the same at each call") as caught:
        lives.start(plan_of({**KEPT, "p": (varying | None, optional)}))
    assert caught.value.field == "p.id"
    lives = upgraded({**KEPT, "p": (varying | None, optional)}, {"p": {"x": 1, "id": UUID(int=1)}})
    lives.start(plan_of({**KEPT, "p": (varying | None, optional)}))


def test_a_default_that_becomes_unset_is_refused_where_rows_are_without_the_field() -> None:
    def versions(kind: Any, default: Any) -> Fields:
        struct = msgspec.defstruct("Place", [("x", int), ("y", kind, default)])
        return {**KEPT, "p": (struct | None, tr.field(default=None))}

    first: Fields = {
        **KEPT,
        "p": (msgspec.defstruct("Place", [("x", int)]) | None, tr.field(default=None)),
    }
    unset = versions(int | msgspec.UnsetType, msgspec.UNSET)
    lives = upgraded(first, {"p": {"x": 1}}, versions(int, 3))
    with pytest.raises(IncompatibleStateError, match="Use None as the default"):
        lives.start(plan_of(unset))
    lives = upgraded(first, {"p": {"x": 1}}, unset, versions(int, 7))
    assert read(lives, "p") == {"x": 1, "y": 7}, "UNSET was never a value of an int"


# --- ints that are floats now


@pytest.mark.parametrize(
    ("before", "value", "after", "where"),
    [
        ((int, 0), 2**53 + 1, (float, 0.0), "n"),
        ((int | None, 0), 2**53 + 1, (float | None, 0.0), "n"),
        (
            (list[int], tr.field(default_factory=list)),
            [1, 2**60 + 1],
            (list[float], tr.field(default_factory=list)),
            "n",
        ),
        (
            (dict[str, int], tr.field(default_factory=dict)),
            {"k": -(2**53) - 1},
            (dict[str, float], tr.field(default_factory=dict)),
            "n",
        ),
    ],
)
def test_an_int_that_no_float_equals_is_refused_and_never_rounded(
    before: Any, value: Any, after: Any, where: str
) -> None:
    lives = upgraded({**KEPT, "n": before}, {"n": value}, {**KEPT, "n": after})
    with pytest.raises(IncompatibleStateError, match=r"Declare the field as int \| float") as caught:
        lives.report(Set("a", 2, {"kept": 2}))
    assert (caught.value.actor, caught.value.field) == ("Plane", where)
    assert "of the key 'a' is" in str(caught.value)
    with pytest.raises(IncompatibleStateError):
        lives.instance("a")


def test_an_entry_that_no_float_equals_is_refused() -> None:
    lives = upgraded(
        {**KEPT, "m": (tr.MapState[str, int], None)},
        {"m[x]": 2**53 + 1, "m[y]": 5},
        {**KEPT, "m": (tr.MapState[str, float], None)},
    )
    assert lives.instance("a").m["y"] == 5.0
    with pytest.raises(IncompatibleStateError, match=r"Plane\.m of the key 'a' is 9007199254740993"):
        lives.instance("a").m["x"]


def test_ints_that_floats_equal_are_read_as_these_and_int_or_float_reads_both() -> None:
    lives = upgraded({**KEPT, "n": (int, 0)}, {"n": -(2**53)}, {**KEPT, "n": (float, 0.0)})
    assert read(lives, "n") == -(2.0**53)
    lives = upgraded(
        {**KEPT, "n": (int, 0)},
        {"n": 2**53 + 1},
        {**KEPT, "n": (float, 0.0)},
        {**KEPT, "n": (int | float, 0)},
    )
    assert read(lives, "n") == 2**53 + 1


# --- any changes, against an oracle


@dataclass
class Oracle:
    """What each key reads: a value once it is stored, the default at which a field was added, else that of now."""

    defaults: dict[str, int]
    stored: dict[str, dict[str, int]] = field(default_factory=dict)

    def start(self, defaults: dict[str, int]) -> None:
        self.defaults = defaults
        for values in self.stored.values():
            for name, default in defaults.items():
                values.setdefault(name, default)

    def set(self, key: str, given: dict[str, int]) -> None:
        values = {**self.stored.get(key, self.defaults), **given}
        self.stored[key] = values
        if values == self.defaults:
            del self.stored[key]


@pytest.mark.one_seed_in(5)  # one takes 40 ms
def test_any_changes_of_defaults_read_as_an_oracle_that_looks_at_every_key_at_once(seeds: range) -> None:
    for seed in seeds:
        chance = Random(seed)
        defaults = {"kept": 0}
        oracle = Oracle(defaults)
        runs = [Lives(versioned(defaults), reload=bool(seed % 2)), Lives(versioned(defaults), cache_bytes=0)]
        for _ in range(chance.randrange(2, 7)):
            for at in range(chance.randrange(6)):
                given = {name: chance.randrange(3) for name in defaults if chance.random() < 0.4}
                key = chance.choice("abcd")
                for one in runs:
                    one.report(Set(key, at, dict(given)))
                    one.commit()
                oracle.set(key, given)
            for key in "abcd":
                for one in runs:
                    found = one.instance(key)
                    expected = oracle.stored.get(key)
                    assert (found is None) == (expected is None), f"seed {seed}"
                    if found is not None and expected is not None:
                        assert {name: getattr(found, name) for name in defaults} == expected, f"seed {seed}"
            assert runs[0].state() == runs[1].state()
            defaults = {
                name: chance.randrange(3) if chance.random() < 0.5 else old for name, old in defaults.items()
            }
            if chance.random() < 0.4:
                defaults[f"f{len(defaults)}"] = chance.randrange(3)
            for one, how in zip(runs, ("local", "restored"), strict=True):
                one.start(versioned(defaults), how)  # type: ignore[arg-type]  # zip widens the literals
                one.commit()
            oracle.start(defaults)


def versioned(defaults: dict[str, int]) -> Any:
    return plan_of({name: (int, default) for name, default in defaults.items()})
