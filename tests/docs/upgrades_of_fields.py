"""Lines of docs/upgrades.md on fields, defaults and TTLs."""

from __future__ import annotations

from enum import Enum
from typing import Any, Literal
from uuid import UUID, uuid4

import msgspec
import pytest

import tailrace as tr
from tailrace.core.errors import DefinitionError, IncompatibleStateError
from tests.core.versions import Fields, Lives, Restart, Set, plan_of
from tests.docs.upgrade_lines import line

# --- how a change is tried

KEPT: Fields = {"kept": (int, 0)}
ZERO: Fields = {**KEPT, "n": (int, 0)}
SEVEN: Fields = {**KEPT, "n": (int, 7)}
LIST: Any = tr.field(default_factory=list)
OPTIONAL: Any = tr.field(default=None)


def lived(fields: Fields, values: dict[str, Any] | None = None) -> Lives:
    """A quiet key ``a`` and a busy one ``b``, set alike by the first version."""
    lives = Lives(plan_of(fields))
    lives.clock(1)
    lives.take(*(Set(key, 1, {"kept": 1, **(values or {})}) for key in "ab"))
    lives.commit()
    return lives


def upgraded(lives: Lives, how: Restart, *versions: Fields) -> Lives:
    """Run other versions; under each of them the busy key has an event."""
    for fields in versions:
        lives.restart(plan_of(fields), how)
        lives.take(Set("b", 1, {"kept": 2}))
        lives.commit()
    return lives


def read(lives: Lives, attr: str) -> Any:
    """What the quiet key reads, which is what the busy one does."""
    quiet, busy = (msgspec.to_builtins(getattr(lives.instance(key), attr)) for key in "ab")
    assert quiet == busy
    return quiet


def warned(lives: Lives, how: Restart, fields: Fields, said: str = "") -> bool:
    """Whether the start says something of it, with ``said`` in it."""
    notices = lives.restart(plan_of(fields), how).stored.notices
    assert all(said in one for one in notices)
    return bool(notices)


def refused(lives: Lives, how: Restart, fields: Fields, said: str = "") -> None:
    before = lives.state()
    with pytest.raises(IncompatibleStateError, match=said):
        lives.restart(plan_of(fields), how)
    assert lives.state() == before


# --- fields


@line("a field is added, with a default")
def _(how: Restart) -> None:
    lives = lived(KEPT)
    assert not warned(lives, how, ZERO)
    assert read(upgraded(lives, how, ZERO), "n") == 0


@line("a field is added, without a default")
def _(how: Restart) -> None:
    refused(lived(KEPT), how, {**KEPT, "n": (int, None)}, "Give the field a default")


@line("a field is removed")
def _(how: Restart) -> None:
    lives = lived(ZERO, {"n": 5})
    assert warned(lives, how, KEPT, "Plane.n (int) is stored and no longer declared; its values are kept")
    assert read(upgraded(lives, how, KEPT, ZERO), "n") == 5
    lives.restart(plan_of(KEPT), how, "Plane.n")
    lives.commit()
    assert read(upgraded(lives, how, ZERO), "n") == 0


@line("a removed field is declared again")
def _(how: Restart) -> None:
    lives = lived(ZERO, {"n": 5})
    upgraded(lives, how, KEPT)
    lives.take(Set("c", 1, {"kept": 1}))
    lives.commit()
    assert not warned(lives, how, ZERO)
    assert read(upgraded(lives, how, ZERO), "n") == 5
    assert lives.instance("c").n == 0


@line("a field is renamed, with `name=`")
def _(how: Restart) -> None:
    renamed: Fields = {**KEPT, "m": (int, tr.field(default=0, name="n"))}
    lives = lived(ZERO, {"n": 5})
    assert not warned(lives, how, renamed)
    assert read(upgraded(lives, how, renamed), "m") == 5


@line("a field is renamed, without `name=`")
def _(how: Restart) -> None:
    renamed: Fields = {**KEPT, "m": (int, 0)}
    lives = lived(ZERO, {"n": 5})
    assert warned(lives, how, renamed, 'tr.field(name="n")')
    assert read(upgraded(lives, how, renamed), "m") == 0
    assert read(upgraded(lives, how, ZERO), "n") == 5


class Colour(Enum):
    RED = "red"


class Colours(Enum):
    RED = "red"
    BLUE = "blue"


@line("a type is widened")
def _(how: Restart) -> None:
    changes: list[tuple[Any, Any, Any, Any, Any]] = [
        (int, 0, 5, int | None, 5),
        (int, 0, 5, int | str, 5),
        (Colour, Colour.RED, "red", Colours, "red"),
        (Literal["a"], "a", "a", Literal["a", "b"], "a"),
        (list[int], LIST, [1], list[int | None], [1]),
    ]
    for before, default, value, after, expected in changes:
        lives = lived({**KEPT, "n": (before, default)}, {"n": value})
        now = Colours.RED if after is Colours else default
        assert not warned(lives, how, {**KEPT, "n": (after, now)})
        assert (
            [*read(upgraded(lives, how, {**KEPT, "n": (after, now)}), "n")] == [*expected]
            if isinstance(expected, list)
            else read(lives, "n") == expected
        )


@line("an `int` becomes a `float`")
def _(how: Restart) -> None:
    lives = lived(ZERO, {"n": 5})
    refused(lives, how, {**KEPT, "n": (float, 0.0)}, "Keep the type")
    assert read(upgraded(lives, how, {**KEPT, "n": (int | float, 0)}), "n") == 5


@line("a type is narrowed or replaced")
def _(how: Restart) -> None:
    changes: list[tuple[Any, Any, Any, Any]] = [
        (float, 0.0, int, 0),
        (int | None, 0, int, 0),
        (int, 0, str, ""),
        (Colours, Colours.RED, Colour, Colour.RED),
    ]
    for before, default, after, now in changes:
        refused(lived({**KEPT, "n": (before, default)}), how, {**KEPT, "n": (after, now)}, "Keep the type")


@line("a plain field becomes a map or a list, or the other way round")
def _(how: Restart) -> None:
    kinds: list[tuple[Any, Any]] = [(int, 0), (tr.MapState[str, int], None), (tr.ListState[int], None)]
    for before in kinds:
        for after in kinds:
            if after is not before:
                refused(lived({**KEPT, "n": before}), how, {**KEPT, "n": after}, "under another name")


@line("the values of a map or a list are widened")
def _(how: Restart) -> None:
    fields: Fields = {**KEPT, "m": (tr.MapState[str, int], None), "l": (tr.ListState[int], None)}
    wider: Fields = {**KEPT, "m": (tr.MapState[str, int | None], None), "l": (tr.ListState[int | None], None)}
    lives = lived(fields, {"m[x]": 5, "l[]": 6})
    assert not warned(lives, how, wider)
    found = upgraded(lives, how, wider).instance("a")
    assert (found.m["x"], [*found.l]) == (5, [6])


@line("the key type of a map changes")
def _(how: Restart) -> None:
    lives = lived({**KEPT, "m": (tr.MapState[str, int], None)}, {"m[x]": 5})
    refused(lives, how, {**KEPT, "m": (tr.MapState[int, int], None)}, "Keep the type of the key")


# --- defaults


@line("a default changes")
def _(how: Restart) -> None:
    lives = lived(ZERO)
    assert warned(lives, how, SEVEN, "has the default 7 now, it had 0: stored values do not change")
    assert read(upgraded(lives, how, SEVEN), "n") == 0


@line("a default changes, and a key is not stored")
def _(how: Restart) -> None:
    lives = lived(ZERO)
    lives.take(Set("a", 1, {"kept": 0}), Set("b", 1, {"kept": 0}))
    lives.commit()
    assert lives.instance("a") is None
    assert warned(lives, how, SEVEN, "a key without stored values, new or back to its defaults, reads 7")
    lives.take(*(Set(key, 1, {"kept": 1}) for key in "abc"))
    lives.commit()
    assert [lives.instance(key).n for key in "abc"] == [7, 7, 7]


@line("a default changes, and rows are without the field")
def _(how: Restart) -> None:
    lives = lived(KEPT)
    lives.restart(plan_of(ZERO), how)
    lives.commit()
    refused(lives, how, SEVEN, "Keep the default")
    assert read(upgraded(lives, how, ZERO), "n") == 0


def place(**defaults: int) -> Any:
    return msgspec.defstruct("Place", [(name, int, default) for name, default in defaults.items()])


@line("the default of a field in a nested struct changes")
def _(how: Restart) -> None:
    versions: list[Fields] = [{**KEPT, "p": (place(x=x) | None, OPTIONAL)} for x in (0, 1)]
    lives = lived(versions[0], {"p": {"x": 0}})
    assert warned(lives, how, versions[1], "Plane.p.x has the default 1 now, it had 0")
    assert read(upgraded(lives, how, versions[1]), "p") == {"x": 0}


@line("the default of a field that was added to a nested struct changes")
def _(how: Restart) -> None:
    def version(kind: Any, default: Any) -> Fields:
        struct = msgspec.defstruct("Place", [("x", int), ("y", kind, default)])
        return {**KEPT, "p": (struct | None, OPTIONAL)}

    lives = upgraded(
        lived({**KEPT, "p": (place(x=0) | None, OPTIONAL)}, {"p": {"x": 1}}), how, version(int, 2)
    )
    assert read(lives, "p") == {"x": 1, "y": 2}
    refused(lives, how, version(int, 3), "Keep the default")
    refused(lives, how, version(int | msgspec.UnsetType, msgspec.UNSET), "Keep the default")


@line("a `default_factory` returns a different value at each call")
def _(how: Restart) -> None:
    with pytest.raises(DefinitionError, match="returns a different value at each call"):
        plan_of({"id": (UUID, tr.field(default_factory=uuid4))})


@line("a field with such a `default_factory` is added to a nested struct")
def _(how: Restart) -> None:
    varying = msgspec.defstruct("Place", [("x", int), ("id", UUID, msgspec.field(default_factory=uuid4))])
    lives = lived({**KEPT, "p": (place(x=0) | None, OPTIONAL)}, {"p": {"x": 1}})
    refused(lives, how, {**KEPT, "p": (varying | None, OPTIONAL)}, "the same at each call")


@line("the default of an event's field changes")
def _(how: Restart) -> None:
    for default in (2, 3):
        event = msgspec.defstruct("Seen", [("key", str), ("at", int), ("y", int, default)])
        app = tr.App("versions", partitions=1)
        topic = app.topic("seen", event, key="key", event_time="at")
        assert topic.decode(b'{"key":"a","at":1}').y == default


# --- times to live


def fading(ttl: int | None = None, ttl_time: Literal["event", "processing"] = "event") -> Fields:
    """A plain field and a map with this TTL."""
    options: Any = {} if ttl is None else {"ttl": ttl, "ttl_time": ttl_time}
    return {
        **KEPT,
        "p": (int, tr.field(default=0, **options)),
        "m": (tr.MapState[str, int], tr.field(**options) if options else None),
    }


FADED = {"p": 5, "m[x]": 5}


def passed(lives: Lives, at: int) -> bool:
    """Let event time and the clock pass, and see whether the two of the quiet key have gone: both or neither."""
    lives.take(Set("other", at + 1, {"kept": 1}))
    lives.clock(at)
    lives.commit()
    found = lives.instance("a")
    assert (found.p == 0) == ("x" not in found.m)
    return bool(found.p == 0)


def rewritten(lives: Lives, at: int) -> Lives:
    lives.take(Set("a", at, FADED))
    lives.commit()
    return lives


@line("a TTL is added")
def _(how: Restart) -> None:
    lives = lived(fading(), FADED)
    assert warned(lives, how, fading(100), "written before do not expire until they are written again")
    assert not passed(lives, 1_000)
    assert passed(rewritten(lives, 1_002), 1_102)


@line("a TTL becomes longer or shorter")
def _(how: Restart) -> None:
    for other in (30, 300):
        lives = lived(fading(100), FADED)
        assert warned(lives, how, fading(other), "written before keep their expiry until")
        assert not passed(lives, 100)
        assert passed(lives, 101)
        assert not passed(rewritten(lives, 103), 102 + other)
        assert passed(lives, 103 + other)


@line("a TTL is removed, or moves to the other time domain")
def _(how: Restart) -> None:
    refused(lived(fading(100), FADED), how, fading(), "Keep the TTL")
    refused(lived(fading(100), FADED), how, fading(100, "processing"), "Keep the TTL")
    refused(lived(fading(100, "processing"), FADED), how, fading(100), "Keep the TTL")


@line("a field with a TTL is undeclared for a while")
def _(how: Restart) -> None:
    for meanwhile, then in ((50, 100), (1_000, None)):
        lives = lived(fading(100), FADED)
        assert warned(lives, how, KEPT, "Plane.p (int) is stored and no longer declared")
        lives.take(Set("other", meanwhile, {"kept": 1}))
        lives.commit()
        lives.restart(plan_of(fading(100)), how)
        if then is not None:
            assert not passed(lives, then)
        assert passed(lives, 1_001)
