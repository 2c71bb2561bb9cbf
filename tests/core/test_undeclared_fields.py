"""The values of a plain field that is no longer declared are carried until they are dropped."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

import tailrace as tr
from tailrace.core import rows
from tailrace.core.declare.schema import decode_schemas
from tailrace.core.engine.value_rows import joined, raw_fields
from tests.core.versions import Fields, Lives, Set, plan_of

WORDS: tuple[Any, Any] = (list[str], tr.field(default_factory=list))
OLD: Fields = {"count": (int, 0), "legs": (int, 7), "words": WORDS, "total": (int, 0)}
NEW: Fields = {"total": (int, 0), "count": (int, 0), "flights": (int, 0)}


class Life(Lives):
    """Versions of an actor. What goes wrong in it goes to the dead letters."""

    def __init__(self, fields: Fields, **settings: Any) -> None:
        super().__init__(plan_of(fields, "dead-letter"), **settings)

    def version(self, fields: Fields, *drop: str) -> tuple[str, ...]:
        """Run this version; what its start says."""
        return self.start(plan_of(fields, "dead-letter"), *drop).stored.notices

    def report(self, *what: str, key: str = "a", at: int = 0) -> None:
        """Set the fields that are named (``legs=3``), clear (``clear``), fail after that (``fail clear``), or only look."""
        for do in what:
            name, _, value = do.removeprefix("fail ").partition("=")
            given: Any = {"words": [value], "notes": 1}.get(name) or int(value or 0)
            place = f"notes[{value}]" if name == "notes" else name
            values = {place: given} if value else {}
            self.take(Set(key, at, values, clear=name == "clear", fails=do.startswith("fail ")))

    def fields(self, key: str = "a") -> dict[str, Any] | None:
        """The value row of a key, decoded without a declaration."""
        row = self.store.get(rows.actor_prefix("Plane") + rows.escaped(key.encode()))
        return None if row is None else msgspec.msgpack.decode(row[rows.start_of_fields(row) :])


def lived() -> Life:
    life = Life(OLD)
    life.report("legs=3", "words=wing", "count=1")
    life.report("count=2", key="b")
    life.commit()
    return life


class TestWhileItIsUndeclared:
    def test_its_values_are_carried_byte_for_byte_however_often_the_row_is_written(self) -> None:
        life = lived()
        for count in (5, 6):
            life.version(NEW)
            life.report(f"count={count}")
            life.commit()
        assert life.fields() == {"total": 0, "count": 6, "flights": 0, "legs": 3, "words": ["wing"]}
        assert life.fields("b") == {"count": 2, "legs": 7, "words": [], "total": 0}, "not touched"

    def test_a_cleared_instance_forgets_it_and_one_that_failed_to_clear_does_not(self) -> None:
        life = lived()
        life.version(NEW)
        life.report("fail clear")
        life.report("count=3")
        life.commit()
        assert life.fields() == {"total": 0, "count": 3, "flights": 0, "legs": 3, "words": ["wing"]}
        life.report("clear", "count=4")
        life.commit()
        assert life.fields() == {"total": 0, "count": 4, "flights": 0}

    def test_an_instance_that_holds_nothing_else_is_kept_for_it(self) -> None:
        life = lived()
        life.version(NEW)
        life.report("count=0")
        life.commit()
        assert life.fields() == {"total": 0, "count": 0, "flights": 0, "legs": 3, "words": ["wing"]}


class TestDropped:
    def test_it_is_gone_from_every_row_and_from_the_schema_and_the_others_stay(self) -> None:
        life = lived()
        life.version(NEW, "Plane.legs")
        assert life.task.dirty
        life.commit()
        assert life.fields() == {"count": 1, "words": ["wing"], "total": 0}
        assert life.fields("b") == {"count": 2, "words": [], "total": 0}
        (notice,) = life.version(NEW)
        assert notice.startswith("Plane.words")
        row = life.store.get(rows.SCHEMA_ROW)
        assert row is not None
        assert [one.name for one in decode_schemas(row)["Plane"].past] == ["words"]
        life.version(OLD)
        life.report("total=1")
        life.commit()
        assert life.fields() == {"count": 1, "legs": 7, "words": ["wing"], "total": 1}

    def test_a_key_that_is_touched_before_the_first_commit_has_its_new_values(self) -> None:
        life = lived()
        life.version(NEW, "Plane.legs", "Plane.words")
        life.report("count=9")
        life.commit()
        assert life.fields() == {"total": 0, "count": 9, "flights": 0}
        assert life.fields("b") == {"count": 2, "total": 0}

    def test_an_instance_that_held_nothing_else_is_gone_with_it(self) -> None:
        life = Life(OLD)
        life.report("legs=3")
        life.report("legs=3", "total=1", key="b")
        life.commit()
        life.version(NEW, "Plane.legs", "Plane.words")
        life.commit()
        assert (life.fields(), life.fields("b")) == (None, {"count": 0, "total": 1})

    def test_its_expiries_go_with_it(self) -> None:
        life = Life({"fading": (int, tr.field(default=0, ttl="1m")), "count": (int, 0)})
        life.report("fading=5", "count=1")
        life.commit()
        assert any(row[:1] == rows.INDEX for row, _ in life.store.rows())
        life.version({"count": (int, 0)}, "Plane.fading")
        life.report("count=2")
        life.commit()
        ((row, value),) = life.state().items()
        assert rows.read_state_row(row).rest == b""
        assert value[0] == rows.FORMAT, "it says that there are no timers"
        assert not any(row[:1] == rows.INDEX for row, _ in life.store.rows())

    def test_a_map_that_is_dropped_takes_bare_instances_with_it(self) -> None:
        noted: Fields = {"notes": (tr.MapState[str, int], None), "count": (int, 0)}
        life = Life(noted)
        life.report("notes=x")
        life.commit()
        life.version({"count": (int, 0)})
        life.report("count=1", "count=0")
        life.commit()
        assert life.fields() == {"count": 0}, "its entries hang on it"
        life.version({"count": (int, 0)}, "Plane.notes")
        life.commit()
        assert life.state() == {}


@pytest.mark.parametrize("size", [0, 1, 15, 16, 17, 70_000])
def test_fields_that_were_taken_apart_are_joined_to_the_same_bytes(size: int) -> None:
    encoded = msgspec.msgpack.encode({f"f{number}": number for number in range(size)})
    assert joined(raw_fields(encoded)) == encoded
