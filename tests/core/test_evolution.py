from typing import Any, cast

import msgspec
import pytest

import tailrace as tr
from tailrace.core import rows
from tailrace.core.declare.plan import Plan
from tailrace.core.declare.schema import decode_schemas
from tailrace.core.engine.dropping import Dropping
from tailrace.core.engine.evolution import evolve, stored_state
from tailrace.core.engine.task import Task
from tailrace.core.errors import IncompatibleStateError, UsageError
from tailrace.core.values.type_schemas import ActorSchema
from tailrace.state import MemoryStore
from tests.core.driven import heads_of
from tests.core.versions import Lives


class Event(msgspec.Struct):
    tail: str
    number: int


def plan_of(
    annotations: dict[str, Any], *, name: str = "Aircraft", key: str = "tail", **defaults: Any
) -> Plan:
    """The plan of an app with one actor that has these fields."""
    app = tr.App("flights")
    events = app.topic("events", Event, key=key)
    key_type = {"tail": str, "number": int}[key]

    def seen(self: Any, event: Event, ctx: Any) -> None: ...

    seen.__annotations__["ctx"] = tr.Context[key_type]  # type: ignore[valid-type]  # a different one in each app
    body = {
        "__annotations__": annotations,
        "seen": tr.process(events)(seen),
        "__module__": __name__,
        **defaults,
    }
    app.actor(name=name)(cast(Any, type(tr.Actor))("Aircraft", (tr.Actor,), body))
    return app.plan()


def schema_of(annotations: dict[str, Any], **options: Any) -> ActorSchema:
    return plan_of(annotations, **options).actors[0].schema


def schema_rows(plan: Plan, stored: bytes | None) -> tuple[dict[bytes, bytes | None], tuple[str, ...]]:
    """What a start writes of the schema where this one is stored, and the orphans that it finds."""
    store = MemoryStore()
    if stored is not None:
        store.write({rows.SCHEMA_ROW: stored}, b"")
    found = stored_state(plan, store)
    return found.rows, found.orphans


def stored_by(plan: Plan, before: bytes | None = None) -> bytes:
    written, _ = schema_rows(plan, before)
    row = written.get(rows.SCHEMA_ROW, before)
    assert row is not None
    return row


def test_a_first_start_stores_the_schema_and_a_second_has_nothing_to_do() -> None:
    plan = plan_of({"legs": int}, legs=0)
    row = stored_by(plan)
    assert decode_schemas(row) == {"Aircraft": plan.actors[0].schema}
    assert schema_rows(plan, row) == ({}, ())


def test_an_incompatible_change_stops_the_start_and_names_actor_field_types_and_mend() -> None:
    row = stored_by(plan_of({"legs": int, "tail": str}, legs=0, tail=""))
    with pytest.raises(IncompatibleStateError) as caught:
        schema_rows(plan_of({"legs": str, "tail": int}, legs="", tail=0), row)
    error = caught.value
    assert (error.actor, error.field, error.stored, error.declared) == ("Aircraft", "legs", "int", "str")
    assert "name=" in str(error)
    assert "tail" in str(error), "all that has to be mended is named at once"


def test_a_removed_map_is_reported_until_it_is_declared_again() -> None:
    with_notes = plan_of({"notes": tr.MapState[str, int], "log": tr.ListState[int], "legs": int}, legs=0)
    without = plan_of({"log": tr.ListState[int]})
    row = stored_by(with_notes)
    changed, orphans = schema_rows(without, row)
    assert orphans == ("Aircraft.legs", "Aircraft.notes")
    row = changed[rows.SCHEMA_ROW] or b""
    assert schema_rows(without, row) == ({}, ("Aircraft.legs", "Aircraft.notes"))
    assert schema_rows(with_notes, row)[1] == ()
    with pytest.raises(IncompatibleStateError):
        schema_rows(plan_of({"notes": tr.MapState[int, int]}), row)


def test_what_is_stored_is_the_same_however_often_it_is_merged() -> None:
    first, second = schema_of({"a": int, "b": int}, a=0, b=0), schema_of({"a": int | None}, a=0)
    once, _ = evolve(first, second)
    assert evolve(once, second) == (once, [])


def orphaned_world() -> tuple[MemoryStore, Any]:
    """A store with state of two actors, one of them with a map, a list and a timer; and the plan without
    them.
    """

    class Event(msgspec.Struct):
        key: str
        at: int

    def app_of(old: bool) -> Any:
        app = tr.App("orphans", partitions=1)
        events = app.topic("events", Event, key="key", event_time="at")

        class Kept(tr.Actor):
            count: int = 0
            if old:
                notes: tr.MapState[str, int]

            @tr.process(events)
            def take(self, event: Event, ctx: tr.Context) -> None:
                self.count += 1
                if old:
                    self.notes["n"] = 1

        class Gone(tr.Actor):
            items: tr.ListState[int]

            @tr.process(events)
            def take(self, event: Event, ctx: tr.Context) -> None:
                self.items.append(1)
                ctx.set_timer(event.at + 1_000_000, "later")

            @tr.on_timer("later")
            def later(self, ctx: tr.Context) -> None: ...

        app.actor(Kept)
        if old:
            app.actor(Gone)
        return app.plan(), Event

    store = MemoryStore()
    plan, event = app_of(old=True)
    task = Task(plan, 0, store)
    task.run(0, heads_of(task, [event("a", 1), event("b", 2)], 0))
    batch = task.commit_batch()
    store.write({**batch.rows, **batch.index_rows}, batch.cut)
    return store, app_of(old=False)[0]


def restarted(store: MemoryStore, plan: Any, drop: tuple[str, ...] = ()) -> Task:
    task = Task(plan, 0, store, store.cut, drop=drop)
    batch = task.commit_batch()
    store.write({**batch.rows, **batch.index_rows}, batch.cut)
    task.committed()
    return task


def rows_of(store: MemoryStore, actor: str) -> list[bytes]:
    return [row for row, _ in store.scan(b"", b"\xff") if actor.encode() in row[:20] and row[:1] in b"si"]


def test_the_state_of_what_is_declared_no_more_is_dropped_only_when_told() -> None:
    store, plan = orphaned_world()
    before = rows_of(store, "Gone")
    assert before
    assert restarted(store, plan).stored.orphans == ("Gone", "Kept.notes")
    assert rows_of(store, "Gone") == before
    restarted(store, plan, drop=("Gone",))
    assert rows_of(store, "Gone") == []
    assert any(b"notes" in row for row in rows_of(store, "Kept"))
    assert restarted(store, plan, drop=("Gone", "Kept.notes")).stored.orphans == ("Kept.notes",)
    assert not any(b"notes" in row for row in rows_of(store, "Kept"))
    assert len(rows_of(store, "Kept")) == 2
    assert restarted(store, plan).stored.orphans == ()


def test_state_without_what_is_dropped_is_scanned_in_both_directions() -> None:
    store, plan = orphaned_world()
    without = Dropping(plan, store, ("Gone", "Kept.notes"))
    forward = [*without.scan(b"s", b"t")]
    assert 0 < len(forward) < len([*store.scan(b"s", b"t")])
    assert [*without.scan(b"s", b"t", reverse=True)] == forward[::-1]


def test_the_state_of_what_is_declared_cannot_be_dropped() -> None:
    store, plan = orphaned_world()
    with pytest.raises(UsageError, match=r"Kept is declared.*Gone, Kept.notes"):
        restarted(store, plan, drop=("Kept",))


class Place(msgspec.Struct, frozen=True):
    gate: str = ""


class Seen(msgspec.Struct, frozen=True):
    tail: str
    carrier: str
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


@pytest.mark.parametrize(
    ("before", "after"), [("tail", "carrier"), ("tail", "where.gate"), ("where.gate", "tail")]
)
def test_another_field_as_key_is_refused_with_topic_fields_and_mend(before: str, after: str) -> None:
    lives = Lives(keyed(before))
    lives.commit()
    with pytest.raises(IncompatibleStateError, match=r"@app.actor\(name=\.\.\.\)") as caught:
        lives.start(keyed(after))
    error = caught.value
    found = (error.actor, error.field, error.stored, error.declared)
    assert found == ("Aircraft", "key of seen", before, after)
    lives.start(keyed(after, name="Carrier"))


def test_a_key_that_is_renamed_and_keeps_its_name_in_the_events_is_the_same_key() -> None:
    lives = Lives(keyed("tail"))
    lives.commit()
    assert lives.start(keyed("registration", Renamed)).stored.notices == ()
