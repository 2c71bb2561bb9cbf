"""A task whose processes have clocks that differ by an hour: its clock never goes back, and each timer fires once and not before its time."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import msgspec
import pytest

from tailrace.core.records import Output
from tailrace.history.reading.app_topics import prepare_topics
from tailrace.log import TopicPartition
from tailrace.log.kafka import KafkaLog
from tests.kafka.clock_app import Reading, app
from tests.kafka.commands import tailrace
from tests.kafka.members import Members, await_tasks, stopped
from tests.soak.processes import Process, wait_until

APP = "tests.kafka.clock_app:app"
HOUR_S = 3_600
HOUR_MS = HOUR_S * 1_000


@pytest.fixture
def members(kafka_url: str, tmp_path: Path) -> Iterator[Members]:
    made = Members(kafka_url, tmp_path)
    yield made
    made.close()


@pytest.mark.parametrize("skews_s", [(HOUR_S, 0), (-HOUR_S, 0)], ids=["ahead", "behind"])
def test_the_clock_of_a_task_never_goes_back_when_it_moves_to_a_process_with_another_clock(
    members: Members, skews_s: tuple[int, int], tmp_path: Path
) -> None:
    log = KafkaLog(members.url)
    prepare_topics(log, app.plan(), create_declared=True)
    fed = 0

    def ask(count: int) -> None:
        nonlocal fed
        numbers = range(fed + 1, fed + count + 1)
        log.append_all(
            Output("asked", b"k", b'{"key":"k","at_ms":%d}' % number, number) for number in numbers
        )
        fed += count

    def readings() -> list[Reading]:
        with closing(log.reader({TopicPartition("readings", 0): 0})) as reader:
            found: list[Reading] = []
            while some := reader.fetch("readings", 0, 10_000).records:
                found += [msgspec.json.decode(one.value or b"", type=Reading) for one in some]
        return found

    def await_count(asked: int, fired: int) -> None:
        def done() -> bool:
            found = readings()
            return (sum(not one.fired for one in found), sum(one.fired for one in found)) == (asked, fired)

        wait_until(done, f"{asked} events are handled and {fired} timers have fired")

    def started(skew_s: int) -> Process:
        return members.start(APP, "state", by=("tests.kafka.skewed", skew_s))

    first_s, second_s = skews_s
    one = started(first_s)
    await_tasks(one, 1)
    ask(10)
    await_count(10, 10)
    stopped(one)
    two = started(second_s)
    await_tasks(two, 1)
    ask(10)
    # A clock that stands still until the right time has come: the timers of the second wait for it.
    await_count(20, 10 if first_s > second_s else 20)
    stopped(two)
    three = started(first_s + 2 * HOUR_S)
    await_tasks(three, 1)
    await_count(20, 20)
    stopped(three)

    found = readings()
    times = [one.now_ms for one in found]
    assert times == sorted(times)
    assert all(one.now_ms >= one.due_ms for one in found if one.fired)
    assert abs(found[0].now_ms - found[-1].now_ms) > HOUR_MS / 2
    report = json.loads(
        tailrace("replay", APP, "--log", members.url, "--state", tmp_path / "state", "--compare", "--json")
    )
    assert (report["differences"], report["records"]) == (0, 20)
    log.close()
