"""The end of a run closes nothing on Kafka, either; against plain Python over the whole history."""

from __future__ import annotations

from collections import Counter
from contextlib import closing
from itertools import islice
from pathlib import Path
from random import Random
from typing import Any

import msgspec
import pytest

from tailrace.log.kafka import KafkaLog
from tests.cli.commands import Ended, done, run
from tests.kafka import gate
from tests.kafka.outside import messages
from tests.runtime.nights import Bill, Hour, Reading, all_bills, all_hours, hours_over, nights_of

METERS, ORDERED = "tests.runtime.nights:app", "tests.kafka.gate:nightly"

pytestmark = pytest.mark.usefixtures("quiet_logs")


class Place:
    """An app on Kafka, run by night."""

    def __init__(self, app: str, url: str, state: Path) -> None:
        self.app, self.url, self.state = app, url, state
        self.bootstrap, _, self.prefix = url.removeprefix("kafka://").partition("/")
        done("topics", "apply", "--app", app, "--log", url)

    def run(self, *options: object) -> Ended:
        return run("run", self.app, "--log", self.url, "--state", self.state, *options)

    def night(self, *options: object) -> str:
        """What a run has said, which has to succeed."""
        ended = self.run(*options)
        assert ended.code == 0, ended.err
        return ended.err

    def append(self, readings: list[Reading]) -> None:
        lines = b"\n".join(map(msgspec.json.encode, readings))
        done("log", "append", "readings", "--app", self.app, "--log", self.url, stdin=lines)

    def emitted(self, topic: str, type_: type[Any]) -> Counter[Any]:
        decode = msgspec.json.Decoder(type_).decode
        found = messages(self.bootstrap, self.prefix + topic)
        return Counter(decode(one.value() or b"") for records in found for one in records)


def test_two_nights_of_hourly_windows_are_one_run_over_both(kafka_url: str, tmp_path: Path) -> None:
    place = Place(METERS, kafka_url, tmp_path)
    first, second = nights_of(Random(0))
    place.append(first)
    place.night("--until-end")
    assert place.emitted("hours", Hour) == hours_over(first) != all_hours(first)
    place.append(second)
    place.night("--until-end")
    assert place.emitted("hours", Hour) == hours_over([*first, *second])
    place.night("--end-of-input")
    assert place.emitted("hours", Hour) == all_hours([*first, *second])
    assert place.emitted("bills", Bill) == all_bills([*first, *second])
    place.append([second[-1]])
    failed = place.run()
    assert failed.code == 1
    assert "--after-end" in failed.err
    place.night("--until-end", "--after-end")


def test_two_nights_of_an_ordered_actor_are_one_run_over_both(kafka_url: str, tmp_path: Path) -> None:
    place, records = Place(ORDERED, kafka_url, tmp_path), gate.events(Random(0), 1_000)
    before: list[int] = []
    wanted: list[list[tuple[str, str]]] = []
    with closing(KafkaLog(kafka_url)) as log:
        while some := list(islice(records, 500)):
            log.append_all(some)
            assert " events wait for their turn in Join" in place.night("--until-end")
            fed = gate.history(place.bootstrap, place.prefix)
            wanted, found = gate.expected(fed), gate.said(place.bootstrap, f"{place.prefix}nightly-said")
            assert found == [said[: len(part)] for said, part in zip(wanted, found, strict=True)]
            before.append(sum(map(len, found)))
    place.night("--end-of-input")
    assert gate.said(place.bootstrap, f"{place.prefix}nightly-said") == wanted
    assert 0 < before[0] < before[1] < sum(map(len, wanted))
