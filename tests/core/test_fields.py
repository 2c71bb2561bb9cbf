from __future__ import annotations

from datetime import timedelta
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

import tailrace as tr
from tailrace.core import rows
from tailrace.core.declare.actor import Declaration, declaration_of


def declared(cls: type[Any]) -> Declaration:
    return declaration_of(cls)


def test_a_ttl_is_any_duration_and_counts_event_time_unless_told() -> None:
    class Session(tr.Actor):
        user: str = tr.field(default="", ttl="1h30m")
        clicks: int = tr.field(default=0, ttl=timedelta(seconds=2), ttl_time="processing")
        pages: tr.MapState[str, int] = tr.field(ttl=500)
        log: tr.MapState[int, str] = tr.field(ttl="1d", ttl_time="processing")
        kept: int = 0

    assert [(one.attr, one.ttl_ms, one.ttl_domain) for one in declared(Session).fields] == [
        ("user", 5_400_000, rows.EVENT_TIME),
        ("clicks", 2_000, rows.PROCESSING_TIME),
        ("pages", 500, rows.EVENT_TIME),
        ("log", 86_400_000, rows.PROCESSING_TIME),
        ("kept", None, rows.EVENT_TIME),
    ]
    assert [one.attr for one in declared(Session).with_ttl()] == ["user", "clicks"]


def test_a_renamed_attribute_keeps_its_stored_name() -> None:
    class Session(tr.Actor):
        who: str = tr.field(default="", name="user")
        visited: tr.MapState[str, int] = tr.field(name="pages")

    assert [one.name for one in declared(Session).fields] == ["user", "pages"]
    assert msgspec.msgpack.Decoder(Session).decode(b"\x81\xa4user\xa1x").who == "x"


def test_a_field_without_default_may_have_a_stored_name() -> None:
    class Session(tr.Actor):
        who: str = tr.field(name="user")

    (one,) = declared(Session).fields
    assert (one.name, one.required) == ("user", True)


def test_a_default_factory_makes_a_value_for_each_instance() -> None:
    class Session(tr.Actor):
        pages: list[str] = tr.field(default_factory=lambda: ["home"])

    make: Any = Session
    one, other = make(), make()
    one.pages.append("cart")
    assert other.pages == ["home"]


def test_a_frozen_struct_may_be_a_default() -> None:
    class Money(msgspec.Struct, frozen=True):
        cents: int

    class Session(tr.Actor):
        spent: Money = Money(0)

    make: Any = Session
    assert make().spent == Money(0)


@given(
    default=st.recursive(st.integers() | st.text(), lambda inner: st.tuples(inner, inner) | st.lists(inner))
)
def test_whatever_instances_would_share_is_refused(default: Any) -> None:
    def holds_a_list(value: Any) -> bool:
        return isinstance(value, list) or (isinstance(value, tuple) and any(map(holds_a_list, value)))

    def declare() -> None:
        class Session(tr.Actor):
            value: int | str | tuple[int | str, ...] | None = default

    if holds_a_list(default) and default != []:
        with pytest.raises(tr.DefinitionError, match="all instances would share"):
            declare()
    else:
        declare()
