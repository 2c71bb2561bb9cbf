"""Fields of JSON lines that an event does not have: each is named, and no field that the event has."""

from __future__ import annotations

from typing import Any

import msgspec
import pydantic
import pytest

import tailrace as tr
from tailrace.cli.dropped import DroppedFields
from tests.cli.commands import SHOP, done, records, run


class Tagged(msgspec.Struct, tag_field="kind", tag="t", rename="camel"):
    ship_name: str = ""


class Other(msgspec.Struct, tag_field="kind", tag="o"):
    harbour: str = ""


class Row(msgspec.Struct, array_like=True):
    ship: str = ""


class ByName(pydantic.BaseModel, populate_by_name=True):
    port: str = pydantic.Field(default="", alias="harbour")


class Keeps(pydantic.BaseModel, extra="allow"):
    port: str = ""


class Renames(pydantic.BaseModel):
    port: str = ""

    @pydantic.model_validator(mode="before")
    @classmethod
    def old_name(cls, given: Any) -> Any:
        return {"port": given["harbour"]}


@pytest.mark.parametrize(
    ("declared", "line", "dropped"),
    [
        (Tagged | Other, b'{"kind":"t","shipName":"Ada"}', []),
        (Tagged | Other, b'{"kind":"t","ship_name":"Ada"}', ["ship_name"]),
        (Tagged | Other, b'{"kind":"o","shipName":"Ada","harbour":"x"}', ["shipName"]),
        (Row, b'["Ada"]', []),
        (dict[str, int], b'{"any":1}', []),
        (ByName, b'{"port":"x"}', []),
        (ByName, b'{"harbour":"x"}', []),
        (ByName, b'{"prot":"x"}', ["prot"]),
        (Keeps, b'{"prot":"x"}', []),
        (Renames, b'{"harbour":"x"}', []),
    ],
)
def test_the_names_that_a_line_may_have_are_those_of_its_own_event(
    declared: Any, line: bytes, dropped: list[str]
) -> None:
    fields = DroppedFields()
    is_model = isinstance(declared, type) and issubclass(declared, pydantic.BaseModel)
    event: Any = declared.model_validate_json(line) if is_model else msgspec.json.decode(line, type=declared)
    fields.count(line, event)
    assert [said.split("'")[1] for said in fields.said()] == dropped


def test_the_fields_of_most_lines_come_first_and_the_messages_are_few() -> None:
    fields = DroppedFields()
    for line in [b'{"b":1}', b'{"b":1,"a":1}', *(b'{"x%02d":1}' % number for number in range(30))]:
        fields.count(line, Other())
    said = list(fields.said())
    assert said[0] == "the field 'b' was dropped from 2 lines."
    assert said[1] == "the field 'a' was dropped from 1 line."
    assert said[10:] == ["22 more fields were dropped"]


def test_an_append_names_a_dropped_field_once_and_not_for_a_line_that_is_kept_aside(tmp_path) -> None:
    folder = tmp_path / "log"
    done("log", "create", "--app", SHOP, "--log", folder)
    good = b'{"customer":"a","at_ms":1,"cents":1,"noet":"x"}\n'
    broken = b'{"customer":"a","at_ms":"x","cents":1,"more":"x"}\n'
    side = tmp_path / "side"
    ended = run(
        "log",
        "append",
        "purchases",
        "--app",
        SHOP,
        "--log",
        folder,
        "--rejects",
        side,
        stdin=good * 2 + broken,
    )
    assert ended.code == 3
    assert ended.err.splitlines()[:2] == [
        "tailrace: the field 'noet' was dropped from 2 lines. Did you mean 'note'?",
        "2 records appended to purchases.",
    ]
    assert "'more'" not in ended.err
    assert len(records(folder, "purchases")) == 2


def test_a_model_that_forbids_other_fields_refuses_the_line() -> None:
    class Strict(pydantic.BaseModel, extra="forbid"):
        user: tr.Key[str]

    topic = tr.App("strict", partitions=1).topic("strict", Strict)
    with pytest.raises(msgspec.ValidationError, match="Extra inputs"):
        topic.decode(b'{"user":"a","x":1}')
