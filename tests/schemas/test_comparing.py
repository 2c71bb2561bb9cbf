"""An app against its lock: topics, keys, messages, types that contain themselves; and the lock as a file."""

from __future__ import annotations

import json
from datetime import UTC, date, datetime
from decimal import Decimal
from enum import Flag, IntEnum, IntFlag
from itertools import product
from pathlib import Path
from typing import Annotated, Any, Literal
from uuid import UUID

import msgspec
import pytest
from pydantic import BaseModel

import tailrace as tr
from tailrace.core.errors import DefinitionError, FormatError, OptionError
from tailrace.registry import Registry
from tailrace.registry.avro import avro_schema, reader_of, writer_of
from tailrace.schemas.comparing import Break, Mode, breaks
from tailrace.schemas.lock import plain_of, read_lock, shape_of, write_lock
from tests.schemas.verdicts import lost


class Line(msgspec.Struct):
    sku: str
    pieces: int


class NewLine(msgspec.Struct):
    sku: str
    pieces: int
    cents: int


class Order(msgspec.Struct):
    id: str
    lines: list[Line] = []


class NewOrder(msgspec.Struct):
    id: str
    lines: list[NewLine] = []


class RenamedOrder(msgspec.Struct):
    name: str = msgspec.field(name="id")
    lines: list[Line] = []


def an_app(type_: Any = Order, **options: Any) -> tr.App:
    app = tr.App("orders")
    options.setdefault("key", "name" if type_ is RenamedOrder else "id")
    app.topic("orders", type_, **options)
    return app


def found(before: tr.App, after: tr.App, mode: Mode = "backward") -> list[Break]:
    return breaks("orders", shape_of(before.plan()), shape_of(after.plan()), mode)


def test_a_break_names_topic_type_field_reader_and_the_way_on() -> None:
    (one,) = found(an_app(), an_app(NewOrder))
    assert str(one) == (
        "topic orders, Order.lines[].cents, as the new code reads what the old code has written: the field "
        "is required, and may be absent. Give the field a default. If it was renamed, add its old name: "
        "msgspec.field(name=...)."
    )
    assert found(an_app(), an_app(NewOrder), "forward") == []
    assert found(an_app(), an_app(NewOrder), "full") == [one]
    (other,) = found(an_app(NewOrder), an_app(), "full")
    assert other.direction == "forward"
    assert "as the old code reads what the new code writes" in str(other)


def test_a_field_that_keeps_its_name_in_events_may_be_renamed_in_the_code() -> None:
    assert found(an_app(), an_app(RenamedOrder), "full") == []


def test_another_format_breaks_all() -> None:
    (one,) = found(an_app(), an_app(format="msgpack"))
    assert "records are json, and are read as msgpack" in one.why


@pytest.mark.parametrize(("key", "shown"), [(None, "none"), (lambda event: event.id, "a function (str)")])
def test_another_key_breaks_all(key: Any, shown: str) -> None:
    changed = {"key": key} if key is None else {"key": key, "key_type": str}
    (one,) = found(an_app(), an_app(**changed))
    assert one.why == f"the key is id (str), and is read as {shown}"


class Timed(msgspec.Struct):
    id: str
    at: int = 0
    began: int = 0


@pytest.mark.parametrize(
    ("before", "after", "shown"),
    [
        ("at", "began", "at, and is read from began"),
        ("at", tr.RECORD_TIME, "at, and is read from <record>"),
        (tr.ARRIVAL_TIME, lambda event: event.at, "<arrival>, and is read from a function"),
    ],
)
def test_another_event_time_breaks_all(before: Any, after: Any, shown: str) -> None:
    """The event time of the record itself and that of a field are others for the same events."""
    (one,) = found(an_app(Timed, event_time=before), an_app(Timed, event_time=after))
    assert one.why.startswith(f"the event time is {shown}")
    assert found(an_app(Timed, event_time=after), an_app(Timed, event_time=after), "full") == []


def test_a_topic_that_only_one_side_has_breaks_nothing() -> None:
    assert found(tr.App("orders"), an_app(), "full") == found(an_app(), tr.App("orders"), "full") == []


# --- messages ---


class Ask(msgspec.Struct, frozen=True):
    what: str


class AskMore(msgspec.Struct, frozen=True):
    what: str
    more: str


def with_messages(type_: Any = Ask, *, two: bool = False) -> tr.App:
    app = tr.App("orders")

    @app.actor
    class Desk(tr.Actor):
        asked: int = 0

        @tr.on_message(name="ask")
        def ask(self, message: type_, ctx: tr.Context[str]) -> None: ...  # pyright: ignore[reportInvalidTypeForm]  # a variable

        if two:

            @tr.on_message(name="other")
            def other(self, message: Line, ctx: tr.Context[str]) -> None: ...

    return app


def test_messages_are_compared_by_actor_and_name() -> None:
    (one,) = found(with_messages(), with_messages(AskMore))
    assert (one.where, one.field) == ("message ask to Desk", "Ask.more")
    assert found(with_messages(AskMore), with_messages()) == []


def test_a_message_that_is_taken_no_more_may_still_be_in_the_inbox() -> None:
    (one,) = found(with_messages(two=True), with_messages())
    assert (one.where, one.direction) == ("message other to Desk", "backward")
    (back,) = found(with_messages(), with_messages(two=True), "full")
    assert back.direction == "forward"


# --- types ---


class Tree(msgspec.Struct):
    name: str
    children: list[Tree] = []


class DeepTree(msgspec.Struct):
    name: str
    children: list[DeepTree] = []
    leaf: bool = True


class OtherTree(msgspec.Struct):
    name: str
    children: list[tuple[OtherTree, int]] = []


class Owner(msgspec.Struct):
    tree: dict[str, Tree]
    name: str


@pytest.mark.parametrize(
    ("written", "read", "expected"),
    [
        *((Tree, DeepTree, []), (DeepTree, Tree, []), (Tree, Tree, []), (Owner, Owner, [])),
        *((Tree, OtherTree, ["Tree.children[]"]), (OtherTree, Tree, ["OtherTree.children[]"])),
    ],
)
def test_types_that_contain_themselves_are_read_once(written: type, read: type, expected: list[str]) -> None:
    assert [one.field for one in lost(written, read)] == expected


class Nothing(msgspec.Struct):
    x: Annotated[str, msgspec.Meta(pattern="^a")]


class Text(msgspec.Struct):
    x: str


def test_a_pattern_may_go_and_not_come() -> None:
    assert [bool(lost(*pair)) for pair in product((Nothing, Text), repeat=2)] == [False, False, True, False]


@pytest.mark.parametrize("omitted", [False, True])
def test_defaults_are_not_compared_and_a_field_that_may_be_left_out_stays_so(omitted: bool) -> None:
    def event(*field: Any) -> Any:
        return msgspec.defstruct("Event", [("id", str), ("n", int, *field)], omit_defaults=omitted)

    assert not lost(event(1), event(2))
    assert bool(lost(event(1), event())) == omitted


# --- pydantic ---


class Model(BaseModel):
    id: str


class LargerModel(BaseModel):
    id: str
    size: int = 0


def test_a_pydantic_model_is_compared_as_a_whole() -> None:
    assert found(an_app(Model), an_app(Model), "full") == []
    (one,) = found(an_app(Model), an_app(LargerModel))
    assert "compared as a whole" in one.why


# --- the file ---


def test_the_lock_is_read_as_it_was_written(tmp_path: Path) -> None:
    shape = shape_of(an_app(NewOrder).plan())
    write_lock(tmp_path / "lock", {"orders": plain_of(shape)})
    locked = read_lock(tmp_path / "lock")["orders"]
    assert locked.plain == plain_of(shape)
    assert breaks("orders", locked.shape, shape, "full") == []
    text = (tmp_path / "lock").read_text()
    write_lock(tmp_path / "lock", {"orders": locked.plain})
    assert (tmp_path / "lock").read_text() == text
    assert '{"name": "cents", "type": {"kind": "int"}, "required": true}' in text


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"format": 1, "apps": {"a": {"topics": 3}}}'])
def test_what_is_no_lock_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "lock").write_text(text)
    with pytest.raises(OptionError, match="is no lock of schemas"):
        read_lock(tmp_path / "lock")


def test_a_lock_of_a_newer_version_is_refused(tmp_path: Path) -> None:
    (tmp_path / "lock").write_text(json.dumps({"format": 2, "apps": {}}))
    with pytest.raises(FormatError):
        read_lock(tmp_path / "lock")


class Own:
    """A type that msgspec decodes with a hook alone."""


class Holder(msgspec.Struct):
    id: str
    own: Own


def test_a_type_without_a_description_is_refused_by_name() -> None:
    with pytest.raises(DefinitionError, match="the topic 'orders' cannot be described"):
        shape_of(an_app(Holder).plan())


PLAIN: dict[str, tuple[Any, list[Any]]] = {
    "str": (str, ["a"]),
    "date": (date, [date(2020, 1, 1)]),
    "UUID": (UUID, [UUID(int=3)]),
    "money": (Annotated[Decimal, msgspec.Meta(extra={"precision": 6, "scale": 2})], [Decimal("1.25")]),
    "bytes": (bytes, [b"ab"]),
    "datetime": (datetime, [datetime(2020, 1, 1, tzinfo=UTC)]),
    "int": (int, [3]),
    "float": (float, [1.5]),
}
AVRO = {
    **PLAIN,
    **{f"{name}?": (type_ | None, [*some, None]) for name, (type_, some) in PLAIN.items()},
    **{f"{name}[]": (list[type_], [[], some]) for name, (type_, some) in PLAIN.items()},  # type: ignore[valid-type]
}


def test_what_is_compatible_is_decoded_from_avro_too() -> None:
    """All pairs of types, by what the reader does with the writer's values."""
    registry = Registry("mock://")
    events = {
        name: msgspec.defstruct("Event", [("id", str), ("f", type_)]) for name, (type_, _) in AVRO.items()
    }
    shapes = {name: shape_of(an_app(event, format=registry.avro).plan()) for name, event in events.items()}
    accepted = 0
    for written, read in product(AVRO, AVRO):
        if breaks("orders", shapes[written], shapes[read], "backward"):
            continue
        accepted += 1
        schema = avro_schema("orders", events[written])
        write, decode = writer_of("orders", schema), reader_of(1, schema, events[read])
        for value in AVRO[written][1]:
            assert decode(write(events[written]("k", value))) == events[read]("k", value)
    assert accepted == len(AVRO) + len(PLAIN)  # itself, and what may be None


class AnyBits(IntFlag):
    X = 1
    Y = 2


class Bits(Flag):
    X = 1
    Y = 2


class MoreBits(Flag):
    X = 1
    Y = 2
    Z = 4


class One(IntEnum):
    X = 1
    Y = 2


@pytest.mark.parametrize("json_", [True, False])
def test_a_flag_is_written_as_any_of_its_combinations(json_: bool) -> None:
    """IntFlag keeps all bits, another Flag refuses those that it does not know."""
    values: dict[Any, list[Any]] = {
        AnyBits: [AnyBits(0), AnyBits.X | AnyBits.Y, AnyBits(64)],
        Bits: [Bits(0), Bits.X | Bits.Y],
        MoreBits: [MoreBits.X | MoreBits.Z],
        One: list(One),
        int: [-5, 0, 9],
        Literal[1, 2]: [1, 2],
        Literal[0, 1, 2, 3]: [0, 3],
    }
    accepted = 0
    for written, read in product(values, values):
        module = msgspec.json if json_ else msgspec.msgpack
        if lost(written, read):
            continue
        accepted += 1
        for value in values[written]:
            module.decode(module.encode(value), type=read)
    assert 7 < accepted < 49
