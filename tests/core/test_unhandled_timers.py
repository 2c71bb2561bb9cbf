"""Timers that are pending while their handler is gone are found at the start, not when they come due."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast

import msgspec
import pytest

import tailrace as tr
from tailrace.core import rows
from tailrace.core.declare.plan import Plan
from tailrace.core.declare.schema import decode_schemas, encode_schemas
from tailrace.core.errors import IncompatibleStateError, UsageError
from tests.core.driven import Driven
from tests.core.versions import Lives, Set
from tests.core.versions import plan_of as fields_of


class Told(msgspec.Struct, frozen=True):
    key: str
    at: int
    timers: tuple[str, ...] = ()


ALL = ("overdue", "", "processing:check", "processing:")


def plan_of(*handled: str, on_error: Any = "stop") -> Plan:
    """An actor that sets the timers an event names (``processing:check``, ``:`` for one without a name)."""
    app = tr.App("flights", partitions=1, on_error=on_error)
    topic = app.topic("told", Told, key="key", event_time="at")

    def take(self: Any, event: Told, ctx: tr.Context[str]) -> None:
        self.count += event.at == 0
        for number, timer in enumerate(event.timers):
            name = timer.removeprefix("processing:") or None
            set_timer = ctx.set_processing_timer if timer.startswith("processing:") else ctx.set_timer
            set_timer(1_000 + number, name)

    def handler(family: str) -> Callable[..., None]:
        def fire(self: Any, ctx: tr.Context[str]) -> None:
            self.fired += 1

        decorate = tr.on_processing_timer if family.startswith("processing:") else tr.on_timer
        name = family.removeprefix("processing:")
        return cast(Any, decorate(name) if name else decorate)(fire)  # type: ignore[no-any-return]  # a decorator

    body = {
        "__module__": __name__,
        "__annotations__": {"count": int, "fired": int},
        "count": 0,
        "fired": 0,
        "take": tr.process(topic)(take),
        **{f"fire{number}": handler(family) for number, family in enumerate(handled)},
    }
    app.actor(name="Aircraft")(cast(Any, type(tr.Actor))("Plane", (tr.Actor,), body))
    return app.plan()


def lived(*timers: str, at: int = 1, keys: Sequence[str] = "a") -> Driven:
    life = Driven(plan_of(*ALL))
    life.take(*(Told(key, at, timers) for key in keys))
    life.commit()
    return life


@pytest.mark.parametrize("keys", ["ab", ["\0", "b"], ["", "ÿ"], ["ÿ"]])
@pytest.mark.parametrize(
    ("timer", "handled", "what", "hint"),
    [
        ("overdue:JFK", ALL[1:], "timers of the family 'overdue'", '@tr.on_timer("overdue") again'),
        ("", ("overdue", *ALL[2:]), "timers without a name", "@tr.on_timer again"),
        (
            "processing:check",
            ("overdue", "", "processing:"),
            "processing-time timers of the family 'check'",
            '@tr.on_processing_timer("check") again',
        ),
        ("processing:", ALL[:3], "processing-time timers without a name", "@tr.on_processing_timer again"),
    ],
)
def test_a_start_without_their_handler_is_refused_with_actor_family_count_key_and_mend(
    timer: str, handled: tuple[str, ...], what: str, hint: str, keys: Sequence[str]
) -> None:
    life = lived(timer, keys=keys)
    with pytest.raises(IncompatibleStateError) as caught:
        life.start(plan_of(*handled))
    said = str(caught.value)
    assert said.startswith(f"Aircraft has pending {what} and no handler for them")
    assert f"the first is due at 1970-01-01T00:00:01.000Z, key {keys[0]!r}" in said
    assert f"Give Plane a method with {hint}" in said
    assert "--drop-state Aircraft." in said
    life.start(plan_of(*ALL))


def test_all_families_are_named_at_once() -> None:
    life = lived("overdue", "processing:check")
    with pytest.raises(
        IncompatibleStateError, match=r"the same applies to Aircraft\.processing-timers:check"
    ):
        life.start(plan_of())


def test_expiries_are_no_timers_of_a_handler() -> None:
    life = Lives(fields_of({"count": (int, tr.field(default=0, ttl="1h"))}))
    life.take(Set("a", 0, {"count": 1}))
    life.commit()
    schema = decode_schemas(life.store.get(rows.SCHEMA_ROW) or b"")["Plane"]
    gone = msgspec.structs.replace(schema, timers=("timers:gone",))
    life.store.write({rows.SCHEMA_ROW: encode_schemas({"Plane": gone})}, life.store.cut or b"")
    assert life.start().stored.orphans == ()


class TestDropped:
    def test_they_are_gone_with_their_index_and_the_others_stay(self) -> None:
        life = lived("overdue:x", "overdue", "processing:check", at=0)
        life.start(plan_of("processing:check"), "Aircraft.timers:overdue")
        life.commit()
        (value,) = [value for row, value in life.store.rows() if row[:1] == rows.STATE]
        assert [name for _, name in rows.timers_inside(value)] == [b"ncheck"]
        (index,) = [row for row, _ in life.store.rows() if row[:1] == rows.INDEX]
        assert rows.read_index_row(index)[3] == b"ncheck"
        life.start(plan_of(), "Aircraft.processing-timers:check")
        life.commit()
        (value,) = [value for row, value in life.store.rows() if row[:1] == rows.STATE]
        assert value[0] == rows.FORMAT, "it says that there are no timers"

    def test_one_that_is_due_before_the_first_commit_does_not_fire(self) -> None:
        life = lived("overdue", at=0)
        life.start(plan_of(), "Aircraft.timers:overdue")
        life.take(Told("a", 5_000), Told("a", 6_000))
        assert life.task.totals.fired == 0
        life.commit()
        assert [rows.read_state_row(row).rest for row in life.state()] == [b""]

    def test_timers_that_are_handled_cannot_be_dropped(self) -> None:
        life = lived("overdue")
        with pytest.raises(UsageError, match=r"Aircraft\.timers:overdue is declared"):
            life.start(plan_of("overdue"), "Aircraft.timers:overdue")
