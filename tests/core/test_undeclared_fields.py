"""A plain field that is no longer declared is named at the start, and its values are carried until they are
dropped.
"""

from __future__ import annotations

from random import Random
from typing import Any, cast

import msgspec
import pytest

import tailrace as tr
from tailrace.core import rows
from tailrace.core.declare.plan import Plan
from tailrace.core.declare.schema import decode_schemas
from tailrace.core.engine.value_rows import joined, raw_fields
from tailrace.state import MemoryStore
from tests.core.driven import Driven

MINUTE = 60_000


class Told(msgspec.Struct, frozen=True):
    key: str
    at: int
    do: str = ""


def plan_of(fields: dict[str, tuple[Any, Any]]) -> Plan:
    """The plan of an app with one actor that has these fields: type and default, or None for a collection.

    An event sets the field that it names (``legs=3``), clears (``clear``), fails after it has done so (``fail
    clear``), or only looks.
    """
    app = tr.App("flights", partitions=1, on_error="dead-letter")
    topic = app.topic("told", Told, key="key", event_time="at")

    def take(self: Any, event: Told, ctx: tr.Context[str]) -> None:
        name, _, value = event.do.removeprefix("fail ").partition("=")
        if name == "clear":
            ctx.clear()
        elif name in fields:
            kind, default = fields[name]
            if default is None:
                getattr(self, name)[value] = 1
            else:
                setattr(self, name, int(value) if kind is int else [value])
        if event.do.startswith("fail "):
            raise ValueError("told to fail")

    body = {
        "__annotations__": {name: kind for name, (kind, _) in fields.items()},
        "__module__": __name__,
        "take": tr.process(topic)(take),
        **{name: default for name, (_, default) in fields.items() if default is not None},
    }
    app.actor(name="Aircraft")(cast(Any, type(tr.Actor))("Aircraft", (tr.Actor,), body))
    return app.plan()


WORDS: tuple[Any, Any] = (list[str], tr.field(default_factory=list))
OLD = {"count": (int, 0), "legs": (int, 7), "words": WORDS, "total": (int, 0)}
NEW = {"total": (int, 0), "count": (int, 0), "flights": (int, 0)}


class Life(Driven):
    """A task of one version of the code after another."""

    def report(self, *what: str, key: str = "a", at: int = 0) -> None:
        self.take(*(Told(key, at, do) for do in what))

    def changes(self) -> dict[bytes, bytes | None]:
        """Commit; the rows of actors that it writes."""
        return {row: value for row, value in self.commit().rows.items() if row[:1] == rows.STATE}

    def fields(self, key: str = "a") -> dict[str, Any] | None:
        """The value row of a key, decoded without a declaration."""
        row = self.store.get(rows.actor_prefix("Aircraft") + rows.escaped(key.encode()))
        return None if row is None else msgspec.msgpack.decode(row[rows.start_of_fields(row) :])


def lived() -> Life:
    life = Life(plan_of(OLD))
    life.report("legs=3", "words=wing", "count=1")
    life.report("count=2", key="b")
    life.commit()
    return life


class TestAtTheStart:
    def test_it_is_named_with_its_type_and_with_new_fields_of_that_type(self) -> None:
        life = lived()
        legs, words = life.start(plan_of(NEW)).stored.notices
        assert legs.startswith("Aircraft.legs (int) is stored and no longer declared; its values are kept. ")
        assert 'give it its old name: tr.field(name="legs")' in legs
        assert "--drop-state Aircraft.legs." in legs
        assert words.startswith("Aircraft.words (list[str]) is stored")
        assert life.task.stored.orphans == ("Aircraft.legs", "Aircraft.words")

    def test_it_is_named_at_later_starts_as_well(self) -> None:
        life = lived()
        first = life.start(plan_of(NEW)).stored.notices
        life.report("flights=1")
        life.commit()
        assert life.start(plan_of(NEW)).stored.notices == first


class TestWhileItIsUndeclared:
    def test_its_values_are_carried_byte_for_byte_however_often_the_row_is_written(self) -> None:
        life = lived()
        for count in (5, 6):
            life.start(plan_of(NEW))
            life.report(f"count={count}")
            life.commit()
        assert life.fields() == {"total": 0, "count": 6, "flights": 0, "legs": 3, "words": ["wing"]}
        assert life.fields("b") == {"count": 2, "legs": 7, "words": [], "total": 0}, "not touched"

    def test_a_cleared_instance_forgets_it_and_one_that_failed_to_clear_does_not(self) -> None:
        life = lived()
        life.start(plan_of(NEW))
        life.report("fail clear")
        life.report("count=3")
        life.commit()
        assert life.fields() == {"total": 0, "count": 3, "flights": 0, "legs": 3, "words": ["wing"]}
        life.report("clear", "count=4")
        life.commit()
        assert life.fields() == {"total": 0, "count": 4, "flights": 0}

    def test_an_instance_that_holds_nothing_else_is_kept_for_it(self) -> None:
        life = lived()
        life.start(plan_of(NEW))
        life.report("count=0")
        life.commit()
        assert life.fields() == {"total": 0, "count": 0, "flights": 0, "legs": 3, "words": ["wing"]}


class TestDropped:
    def test_it_is_gone_from_every_row_and_from_the_schema_and_the_others_stay(self) -> None:
        life = lived()
        life.start(plan_of(NEW), "Aircraft.legs")
        assert life.task.dirty
        life.commit()
        assert life.fields() == {"count": 1, "words": ["wing"], "total": 0}
        assert life.fields("b") == {"count": 2, "words": [], "total": 0}
        (notice,) = life.start(plan_of(NEW)).stored.notices
        assert notice.startswith("Aircraft.words")
        row = life.store.get(rows.SCHEMA_ROW)
        assert row is not None
        assert [one.name for one in decode_schemas(row)["Aircraft"].past] == ["words"]
        life.start(plan_of(OLD))
        life.report("total=1")
        life.commit()
        assert life.fields() == {"count": 1, "legs": 7, "words": ["wing"], "total": 1}

    def test_a_key_that_is_touched_before_the_first_commit_has_its_new_values(self) -> None:
        life = lived()
        life.start(plan_of(NEW), "Aircraft.legs", "Aircraft.words")
        life.report("count=9")
        life.commit()
        assert life.fields() == {"total": 0, "count": 9, "flights": 0}
        assert life.fields("b") == {"count": 2, "total": 0}

    def test_an_instance_that_held_nothing_else_is_gone_with_it(self) -> None:
        life = Life(plan_of(OLD))
        life.report("legs=3")
        life.report("legs=3", "total=1", key="b")
        life.commit()
        life.start(plan_of(NEW), "Aircraft.legs", "Aircraft.words")
        life.commit()
        assert (life.fields(), life.fields("b")) == (None, {"count": 0, "total": 1})

    def test_its_expiries_go_with_it(self) -> None:
        life = Life(plan_of({"fading": (int, tr.field(default=0, ttl="1m")), "count": (int, 0)}))
        life.report("fading=5", "count=1")
        life.commit()
        assert any(row[:1] == rows.INDEX for row, _ in life.store.rows())
        life.start(plan_of({"count": (int, 0)}), "Aircraft.fading")
        life.report("count=2")
        life.commit()
        ((row, value),) = life.state().items()
        assert rows.read_state_row(row).rest == b""
        assert value[0] == rows.FORMAT, "it says that there are no timers"
        assert not any(row[:1] == rows.INDEX for row, _ in life.store.rows())

    def test_a_map_that_is_dropped_takes_bare_instances_with_it(self) -> None:
        noted = {"notes": (tr.MapState[str, int], None), "count": (int, 0)}
        life = Life(plan_of(noted))
        life.report("notes=x")
        life.commit()
        life.start(plan_of({"count": (int, 0)}))
        life.report("count=1", "count=0")
        life.commit()
        assert life.fields() == {"count": 0}, "its entries hang on it"
        life.start(plan_of({"count": (int, 0)}), "Aircraft.notes")
        life.commit()
        assert life.state() == {}


def test_a_cleared_instance_loses_the_entries_of_a_map_that_is_no_longer_declared() -> None:
    noted = {"notes": (tr.MapState[str, int], None), "count": (int, 0)}
    life = Life(plan_of(noted))
    life.report("notes=x", "count=1")
    life.commit()
    life.start(plan_of({"count": (int, 0)}))
    life.report("clear")
    life.commit()
    assert life.state() == {}
    life.start(plan_of(noted))
    life.report("count=1")
    life.commit()
    assert [rows.read_state_row(row).rest for row in life.state()] == [b""]


DEEDS = [
    "count=1",
    "count=0",
    "flights=2",
    "",
    "",
    "clear",
    "fail count=5",
    "fail clear",
    "total=3",
    "total=0",
]


def test_what_rows_become_does_not_depend_on_where_commits_and_restarts_fall(seeds: range) -> None:
    plan = plan_of(NEW)
    for seed in seeds:
        chance = Random(seed)
        base = lived()
        base.report("legs=1", key="c")
        base.commit()
        once, often = (Life(plan, _copied(base.store), reload=bool(seed % 2)) for _ in range(2))
        for at in range(chance.randrange(1, 12)):
            key, do = chance.choice("abcd"), chance.choice(DEEDS)
            once.report(do, key=key, at=at)
            often.report(do, key=key, at=at)
            if chance.random() < 0.4:
                often.commit()
                if chance.random() < 0.4:
                    often.start(plan)
        once.commit()
        often.commit()
        assert often.state() == once.state(), f"seed {seed}"


def _copied(store: MemoryStore) -> MemoryStore:
    copy = MemoryStore()
    copy.write(dict(store.rows()), store.cut or b"")
    return copy


@pytest.mark.parametrize("size", [0, 1, 15, 16, 17, 70_000])
def test_fields_that_were_taken_apart_are_joined_to_the_same_bytes(size: int) -> None:
    encoded = msgspec.msgpack.encode({f"f{number}": number for number in range(size)})
    assert joined(raw_fields(encoded)) == encoded
