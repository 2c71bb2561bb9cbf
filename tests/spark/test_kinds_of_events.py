"""Events that are dataclasses and pydantic models, as tables: one column with what their records say."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tailrace.core.errors import BadRecordError
from tailrace.core.records import Output
from tailrace.log.embedded import EmbeddedLog
from tailrace.log.interface import TopicSettings
from tests.spark.reading import answer

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
