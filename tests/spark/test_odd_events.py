"""Events that are odd, as tables: fields that are left out where they hold their defaults, or called as columns of the log."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest

import tailrace as tr
from tailrace.core.errors import BadRecordError, UsageError
from tailrace.core.records import Output
from tailrace.log.embedded import EmbeddedLog
from tailrace.log.interface import TopicSettings
from tests.spark.reading import answer


class Inner(msgspec.Struct, omit_defaults=True):
    z: int = 3


class Spare(msgspec.Struct, omit_defaults=True, rename="camel"):
    name: str
    so_many: int = 0
    spare: int | msgspec.UnsetType = msgspec.UNSET
    inners: list[Inner] = []
    by_name: dict[str, Inner] = {}


class Left(msgspec.Struct, tag=True, omit_defaults=True):
    name: str
    number: int = 7


class Right(msgspec.Struct, tag=True):
    name: str
    what: Left | int | None = None


class Row(msgspec.Struct, array_like=True, omit_defaults=True):
    name: str
    number: int = 7


class Clash(msgspec.Struct):
    offset: int = msgspec.field(name="_offset")


app = tr.App("odd", partitions=1)
for type_ in (Spare, Row, Clash):
    app.topic(type_.__name__, type_)
app.topic("Either", Left | Right)


@pytest.fixture
def shown(tmp_path: Path):
    def read(topic: str, *values: bytes, **options: str) -> list[dict[str, object]]:
        log = EmbeddedLog(tmp_path / "log")
        log.create_topic(topic, TopicSettings(1))
        log.append_all([Output(topic, b"key", value, 0) for value in values])
        log.close()
        declared = "tests.spark.test_odd_events:app"
        found = answer(log=tmp_path / "log", topic=topic, app=declared, **options).rows
        return [{name: one for name, one in row.items() if name[1:] not in META} for row in found]

    return read


META = {"topic", "partition", "offset", "timestamp", "key", "headers"}


def test_a_default_that_is_left_out_of_an_event_is_in_its_row(shown):
    found = shown(
        "Spare", b'{"name":"a"}', b'{"name":"b","soMany":1,"spare":2,"inners":[{},{"z":4}],"byName":{"c":{}}}'
    )
    assert found == [
        {"name": "a", "soMany": 0, "spare": None, "inners": [], "byName": []},
        {"name": "b", "soMany": 1, "spare": 2, "inners": [{"z": 3}, {"z": 4}], "byName": [("c", {"z": 3})]},
    ]


def test_a_default_that_is_left_out_is_there_in_each_of_several_types_and_in_json(shown):
    found = shown(
        "Either",
        b'{"type":"Left","name":"a"}',
        b'{"type":"Right","name":"b","what":{"type":"Left","name":"c"}}',
    )
    assert found == [
        {"_type": "Left", "name": "a", "number": 7, "what": None},
        {"_type": "Right", "name": "b", "number": None, "what": '{"type":"Left","name":"c","number":7}'},
    ]


def test_an_event_that_is_an_array_has_all_its_fields(shown):
    assert shown("Row", b'["a"]', b'["b",1]') == [
        {"value": {"name": "a", "number": 7}},
        {"value": {"name": "b", "number": 1}},
    ]


def test_a_field_that_is_called_as_a_column_of_the_log_is_not_taken_for_it(shown):
    with pytest.raises(UsageError, match="a field '_offset'"):
        shown("Clash", b'{"_offset":77}', columns="_offset")


# --- dataclasses and pydantic models: one column with what their records say

KINDS = "tests.cli.kinds:app"
VISIT = b'{"user":"a","at":1600000000000,"score":1.5}'
PURCHASE = b'{"amount":"5","at":1600000000000,"user":"a"}'


@pytest.fixture
def log(tmp_path: Path) -> Path:
    log = EmbeddedLog(tmp_path / "log")
    for topic, value in (("visits", VISIT), ("purchases", PURCHASE)):
        log.create_topic(topic, TopicSettings(1))
        log.append_all([Output(topic, b"a", value, 0)])
    log.close()
    return tmp_path / "log"


def test_an_event_is_a_column_of_json_with_its_key_beside_it(log: Path) -> None:
    (visit,) = answer(log=log, topic="visits", app=KINDS).rows
    (purchase,) = answer(log=log, topic="purchases", app=KINDS).rows
    assert (visit["_key"], json.loads(visit["value"])) == ("a", json.loads(VISIT))
    assert (purchase["_key"], json.loads(purchase["value"])) == (
        "a",
        {"amount": 5, "at": 1600000000000, "user": "a"},
    )


def test_a_record_that_the_model_refuses_is_refused(log: Path) -> None:
    opened = EmbeddedLog(log)
    opened.append_all([Output("purchases", b"a", b'{"amount":-1,"at":1,"user":"a"}', 0)])
    opened.close()
    with pytest.raises(BadRecordError, match="amount: Input should be greater than or equal to 0"):
        answer(log=log, topic="purchases", app=KINDS)
