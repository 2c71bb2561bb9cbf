"""A record that another program has written into a topic of an app is named by its offset, and never passed over."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tailrace.core.errors import BadRecordError, CorruptStateError, ForeignLogError
from tailrace.history.reading.residence import check_lives_here
from tailrace.history.reading.stretches import scan
from tailrace.history.rebuilding.driver import rebuild
from tailrace.history.rebuilding.engines import LocalEngine
from tailrace.history.rebuilding.request import Destination, Failures, Request, Source
from tailrace.history.replay.replaying import replay
from tailrace.history.replay.report import ReplayOptions
from tailrace.history.retirement import retire_rebuilds
from tailrace.log import TopicPartition
from tests.cli.commands import run
from tests.kafka.bad_input.shop import PLAN, Shop, serving

APP = "tests.kafka.bad_input.shop:app"


def rebuilt(url: str, folder: Path) -> None:
    asked = Request(
        app=APP,
        source=Source(log=url),
        to=Destination(uri=str(folder / "rebuilt")),
        failures=Failures(any_environment=True),
        order="tape",
    )
    rebuild(asked, LocalEngine(1))


def written_into_the_tape(shop: Shop, what: str) -> int:
    """Write a record into the tape of partition 0. Returns its offset."""
    before = [record.value or b"" for record in scan(shop.log, "shop.tape", 0)]
    at = shop.log.end_offset("shop.tape", 0)
    shop.append("shop.tape", None, before[0] if what == "an old one" else b"{}")
    return at


@pytest.mark.parametrize("what", ["of another form", "an old one"])
def test_a_record_behind_the_last_commit_of_a_tape_is_named_by_start_status_replay_and_rebuild(
    kafka_url: str, tmp_path: Path, what: str
) -> None:
    with serving(kafka_url) as shop:
        shop.order(20)
        shop.work()
        shop.stop()
        at = written_into_the_tape(shop, what)
        named = f"'shop.tape' partition 0 .*at offset {at}"
        for stores in (shop.stores.copy(), {}):
            shop.stores = stores
            with serving(kafka_url) as later, pytest.raises(CorruptStateError, match=named):
                later.start()
        if what == "of another form":
            with pytest.raises(CorruptStateError, match=named):
                replay(PLAN, shop.log, ReplayOptions(any_environment=True))
            with pytest.raises(CorruptStateError, match=named):
                rebuilt(kafka_url, tmp_path)
            (problem,) = json.loads(run("status", APP, "--log", kafka_url, "--json").out)["problems"]
            assert f"offset {at}" in problem


@pytest.mark.parametrize("what", ["of another form", "an old one"])
def test_a_record_between_two_commits_of_a_tape_is_named_by_replay_and_rebuild(
    kafka_url: str, tmp_path: Path, what: str
) -> None:
    with serving(kafka_url) as shop:
        shop.order(20)
        shop.work()
        at = written_into_the_tape(shop, what)
        shop.order(20)
        shop.work()
        shop.stop()
        named = f"'shop.tape' partition 0 has a record at offset {at} which no task has written"
        with pytest.raises(CorruptStateError, match=named):
            replay(PLAN, shop.log, ReplayOptions(any_environment=True))
        with pytest.raises(CorruptStateError, match=named):
            rebuilt(kafka_url, tmp_path)
        shop.start()  # it never reads its tape
        shop.order(20)
        shop.work()
        assert shop.counts() == {f"k{n}": 12 for n in range(5)}


def test_a_record_in_the_inbox_stops_its_task_and_is_named(kafka_url: str) -> None:
    with serving(kafka_url) as shop:
        shop.order(20)
        shop.work()
        at = shop.log.end_offset("shop.inbox", 0)
        shop.append("shop.inbox", b"k1", b"hello")
        with pytest.raises(BadRecordError, match="undecodable") as raised:
            shop.work(lambda: False)
        assert (raised.value.topic, raised.value.partition, raised.value.offset) == ("shop.inbox", 0, at)


@pytest.mark.parametrize("topic", ["totals.watermarks", "totals.publishers"])
def test_a_record_among_published_watermarks_is_named(kafka_url: str, topic: str) -> None:
    with serving(kafka_url) as shop:
        shop.order(20)
        shop.work()
        shop.append(topic, b"someone", b"hello")
        with pytest.raises(ForeignLogError, match=f"'{topic}' has a record at offset"):
            if topic.endswith(".publishers"):
                retire_rebuilds(PLAN, shop.log)  # as a service that starts
            else:
                shop.log.reader({TopicPartition("totals", 0): 0}).published("totals", 0)


def test_a_topic_that_only_has_the_name_of_one_with_publishers_is_nothing_of_ours(kafka_url: str) -> None:
    with serving(kafka_url) as shop:
        shop.create("books.publishers")
        shop.append("books.publishers", b"one", b"a publisher of books")
        retire_rebuilds(PLAN, shop.log)


def test_a_record_among_the_dead_letters_is_listed_as_that_of_another_program(kafka_url: str) -> None:
    with serving(kafka_url) as shop:
        shop.append("shop.dead-letters", b"k1", b"hello")
        (letter,) = map(
            json.loads, run("dead-letters", "list", APP, "--log", kafka_url, "--json").out.splitlines()
        )
        assert (letter["id"], letter["outcome"], letter["reason"]) == ("0-0", "foreign", "foreign")
        done = json.loads(run("dead-letters", "redrive", APP, "--all", "--log", kafka_url, "--json").out)
        assert (done["sent"], done["without_record"], done["foreign"]) == ([], [], ["0-0"])
        assert "another program" in run("dead-letters", "list", APP, "--log", kafka_url).out


@pytest.mark.parametrize("value", [b"{}", b"\xff"])
def test_a_record_among_notes_of_redrives_and_moves_is_named(kafka_url: str, value: bytes) -> None:
    with serving(kafka_url) as shop:
        run("dead-letters", "redrive", APP, "--all", "--log", kafka_url)  # creates the topic
        shop.append("shop.redriven", b"\xff", value)
        refused = run("dead-letters", "redrive", APP, "--all", "--log", kafka_url)
        assert refused.code
        assert "'shop.redriven' has a record at offset 0" in refused.err
        shop.create("shop.moves")
        shop.append("shop.moves", None, value)
        with pytest.raises(ForeignLogError, match=r"'shop.moves' has a record at offset 0"):
            check_lives_here(shop.log, "shop")  # as a service that starts
