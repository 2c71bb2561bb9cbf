"""The schema of stored state over versions: what stops a start, and what is dropped. tests/docs/test_upgrades.py has each single change."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

import tailrace as tr
from tailrace.core.declare.plan import Plan
from tailrace.core.declare.schema import decode_schemas
from tailrace.core.engine.dropping import Dropping
from tailrace.core.engine.evolution import evolve
from tailrace.core.errors import IncompatibleStateError, UsageError
from tailrace.core.rows import SCHEMA_ROW
from tailrace.core.values.type_schemas import ActorSchema
from tests.core.versions import Fields, Lives, Set, plan_of

NOTED: Fields = {"notes": (tr.MapState[str, int], None), "log": (tr.ListState[int], None), "legs": (int, 0)}


def lived(fields: Fields, *values: dict[str, Any]) -> Lives:
    lives = Lives(plan_of(fields))
    lives.take(*(Set("a", 1, one) for one in values))
    lives.commit()
    return lives


def schema_of(fields: Fields) -> ActorSchema:
    return plan_of(fields).actors[0].schema


def test_a_first_start_stores_the_schema_and_a_second_has_nothing_to_do() -> None:
    lives = lived({"legs": (int, 0)})
    assert decode_schemas(lives.store.get(SCHEMA_ROW) or b"") == {"Plane": lives.plan.actors[0].schema}
    assert not lives.start().dirty


def test_an_incompatible_change_stops_the_start_and_names_actor_field_types_and_mend() -> None:
    lives = lived({"legs": (int, 0), "tail": (str, "")})
    with pytest.raises(IncompatibleStateError) as caught:
        lives.start(plan_of({"legs": (str, ""), "tail": (int, 0)}))
    error = caught.value
    assert (error.actor, error.field, error.stored, error.declared) == ("Plane", "legs", "int", "str")
    assert "name=" in str(error)
    assert "tail" in str(error), "all that has to be mended is named at once"


def test_a_removed_map_is_reported_until_it_is_declared_again() -> None:
    lives, without = lived(NOTED), plan_of({"log": NOTED["log"]})
    for _ in range(2):
        assert lives.start(without).stored.orphans == ("Plane.legs", "Plane.notes")
        lives.commit()
    assert lives.start(plan_of(NOTED)).stored.orphans == ()
    with pytest.raises(IncompatibleStateError):
        lives.start(plan_of({"notes": (tr.MapState[int, int], None)}))


def test_what_is_stored_is_the_same_however_often_it_is_merged() -> None:
    first, second = schema_of({"a": (int, 0), "b": (int, 0)}), schema_of({"a": (int | None, 0)})
    once, _ = evolve(first, second)
    assert evolve(once, second) == (once, [])


def test_the_state_of_what_is_declared_no_more_is_dropped_only_when_told() -> None:
    lives, left = lived(NOTED, {"notes[x]": 1, "log[]": 1, "legs": 2}), plan_of({"legs": NOTED["legs"]})
    before = lives.state()
    assert lives.start(left).stored.orphans == ("Plane.log", "Plane.notes")
    assert lives.state() == before
    with pytest.raises(UsageError, match=r"Plane\.legs is declared.*Plane\.log, Plane\.notes"):
        lives.start(left, "Plane.legs")
    without = Dropping(left, lives.store, ("Plane.notes",))
    forward = [*without.scan(b"s", b"t")]
    assert forward == [(row, value) for row, value in before.items() if b"notes" not in row]
    assert [*without.scan(b"s", b"t", reverse=True)] == forward[::-1]
    lives.start(left, "Plane.notes")
    lives.commit()
    assert [*lives.state().items()] == forward
    assert lives.start(left, "Plane.log").stored.orphans == ("Plane.log",)
    lives.commit()
    assert len(lives.state()) == 1
    assert lives.start(left).stored.orphans == ()


class Place(msgspec.Struct, frozen=True):
    gate: str = ""


class Seen(msgspec.Struct, frozen=True):
    tail: str
    where: Place = Place()


class Renamed(msgspec.Struct, frozen=True):
    registration: str = msgspec.field(name="tail")


def keyed(key: str, event: Any = Seen, name: str = "Aircraft") -> Plan:
    app = tr.App("keys", partitions=1)
    topic = app.topic("seen", event, key=key)

    @app.actor(name=name)
    class Aircraft(tr.Actor):
        count: int = 0

        @tr.process(topic)
        def see(self, event, ctx):
            self.count += 1

    return app.plan()


def test_another_field_as_key_is_refused_with_topic_fields_and_mend_and_a_renamed_one_is_the_same() -> None:
    lives = Lives(keyed("tail"))
    lives.commit()
    with pytest.raises(IncompatibleStateError, match=r"@app.actor\(name=\.\.\.\)") as caught:
        lives.start(keyed("where.gate"))
    error = caught.value
    found = (error.actor, error.field, error.stored, error.declared)
    assert found == ("Aircraft", "key of seen", "tail", "where.gate")
    assert lives.start(keyed("registration", Renamed)).stored.notices == ()
    lives.start(keyed("where.gate", name="Carrier"))
