"""Lines of docs/upgrades.md on fields, defaults and TTLs. Each is tried by a function that bears its first cell."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import Any, Literal, NamedTuple
from uuid import UUID, uuid4

import msgspec
import pytest

import tailrace as tr
from tailrace.core.errors import DefinitionError, IncompatibleStateError
from tests.core.versions import Fields, Lives, Restart, Set, plan_of

# --- how a change is tried

LINES: dict[str, Callable[[Restart], None]] = {}
"""By the first cell of the row: what tries it, on local state or on state restored from the changelog."""


def line(name: str) -> Callable[[Callable[[Restart], None]], Callable[[Restart], None]]:
    def add(tried: Callable[[Restart], None]) -> Callable[[Restart], None]:
        assert name not in LINES
        LINES[name] = tried
        return tried

    return add


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


class Change(NamedTuple):
    """A change of fields: what the start says of it, and what the quiet key then reads; by default, it is refused."""

    before: Fields
    after: Fields
    values: dict[str, Any] = {}
    said: str = ""
    reads: Any = ...
    of: str = "n"

    def check(self, how: Restart) -> None:
        lives = lived(self.before, self.values)
        if self.reads is ...:
            refused(lives, how, self.after, self.said)
        else:
            assert warned(lives, how, self.after, self.said) == bool(self.said)
            assert read(upgraded(lives, how, self.after), self.of) == self.reads


def changes(name: str, *some: Change) -> None:
    """A line of changes."""

    @line(name)
    def _(how: Restart) -> None:
        for one in some:
            one.check(how)


def typed(before: tuple[Any, Any], after: tuple[Any, Any], *more: Any) -> Change:
    """The field n, with another type and default."""
    return Change({**KEPT, "n": before}, {**KEPT, "n": after}, *more)


# --- fields


class Colour(Enum):
    RED = "red"


class Colours(Enum):
    RED = "red"
    BLUE = "blue"


changes(
    "plain fields are declared in another order", Change(SEVEN, dict([*SEVEN.items()][::-1]), {"n": 3}, "", 3)
)

NAMED: Fields = {**KEPT, "m": (int, tr.field(default=0, name="n"))}
changes("a field is added, with a default", Change(KEPT, ZERO, reads=0))
changes(
    "a field is added, without a default",
    Change(KEPT, {**KEPT, "n": (int, None)}, said="Give the field a default"),
)
changes("a field is renamed, with `name=`", Change(ZERO, NAMED, {"n": 5}, reads=5, of="m"))
changes(
    "a type is widened",
    typed((int, 0), (int | None, 0), {"n": 5}, "", 5),
    typed((int, 0), (int | str, 0), {"n": 5}, "", 5),
    typed((Colour, Colour.RED), (Colours, Colours.RED), {"n": "red"}, "", "red"),
    typed((Literal["a"], "a"), (Literal["a", "b"], "a"), {"n": "a"}, "", "a"),
    typed((list[int], LIST), (list[int | None], LIST), {"n": [1]}, "", [1]),
)
changes(
    "a type is narrowed or replaced",
    typed((float, 0.0), (int, 0), {}, "Keep the type"),
    typed((int | None, 0), (int, 0), {}, "Keep the type"),
    typed((int, 0), (str, ""), {}, "Keep the type"),
    typed((Colours, Colours.RED), (Colour, Colour.RED), {}, "Keep the type"),
)
KINDS: list[tuple[Any, Any]] = [(int, 0), (tr.MapState[str, int], None), (tr.ListState[int], None)]
changes(
    "a plain field becomes a map or a list, or the other way round",
    *(typed(one, other, {}, "under another name") for one in KINDS for other in KINDS if one is not other),
)
changes(
    "the key type of a map changes",
    typed(KINDS[1], (tr.MapState[int, int], None), {"n[x]": 5}, "Keep the type of the key"),
)


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


@line("a field is renamed, without `name=`")
def _(how: Restart) -> None:
    renamed: Fields = {**KEPT, "m": (int, 0)}
    lives = lived(ZERO, {"n": 5})
    assert warned(lives, how, renamed, 'tr.field(name="n")')
    assert read(upgraded(lives, how, renamed), "m") == 0
    assert read(upgraded(lives, how, ZERO), "n") == 5


@line("an `int` becomes a `float`")
def _(how: Restart) -> None:
    lives = lived(ZERO, {"n": 5})
    refused(lives, how, {**KEPT, "n": (float, 0.0)}, "Keep the type")
    assert read(upgraded(lives, how, {**KEPT, "n": (int | float, 0)}), "n") == 5


@line("the values of a map or a list are widened")
def _(how: Restart) -> None:
    fields: Fields = {**KEPT, "m": (tr.MapState[str, int], None), "l": (tr.ListState[int], None)}
    wider: Fields = {**KEPT, "m": (tr.MapState[str, int | None], None), "l": (tr.ListState[int | None], None)}
    lives = lived(fields, {"m[x]": 5, "l[]": 6})
    assert not warned(lives, how, wider)
    found = upgraded(lives, how, wider).instance("a")
    assert (found.m["x"], [*found.l]) == (5, [6])


# --- defaults


changes(
    "a default changes",
    Change(ZERO, SEVEN, said="has the default 7 now, it had 0: stored values do not change", reads=0),
)


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


NESTED: list[Fields] = [{**KEPT, "p": (place(x=x) | None, OPTIONAL)} for x in (0, 1)]
changes(
    "the default of a field in a nested struct changes",
    Change(NESTED[0], NESTED[1], {"p": {"x": 0}}, "Plane.p.x has the default 1 now, it had 0", {"x": 0}, "p"),
)


@line("the default of a field that was added to a nested struct changes")
def _(how: Restart) -> None:
    def version(kind: Any, default: Any) -> Fields:
        struct = msgspec.defstruct("Place", [("x", int), ("y", kind, default)])
        return {**KEPT, "p": (struct | None, OPTIONAL)}

    lives = upgraded(lived(NESTED[0], {"p": {"x": 1}}), how, version(int, 2))
    assert read(lives, "p") == {"x": 1, "y": 2}
    refused(lives, how, version(int, 3), "Keep the default")
    refused(lives, how, version(int | msgspec.UnsetType, msgspec.UNSET), "Keep the default")


@line("a `default_factory` returns a different value at each call")
def _(how: Restart) -> None:
    with pytest.raises(DefinitionError, match="returns a different value at each call"):
        plan_of({"id": (UUID, tr.field(default_factory=uuid4))})


VARYING = msgspec.defstruct("Place", [("x", int), ("id", UUID, msgspec.field(default_factory=uuid4))])
changes(
    "a field with such a `default_factory` is added to a nested struct",
    Change(NESTED[0], {**KEPT, "p": (VARYING | None, OPTIONAL)}, {"p": {"x": 1}}, "the same at each call"),
)


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


changes(
    "a TTL is removed, or moves to the other time domain",
    Change(fading(100), fading(), FADED, "Keep the TTL"),
    Change(fading(100), fading(100, "processing"), FADED, "Keep the TTL"),
    Change(fading(100, "processing"), fading(100), FADED, "Keep the TTL"),
)


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
