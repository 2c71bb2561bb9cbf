"""A record that another program has written into a topic of an app is named by its offset, and never passed over."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from confluent_kafka import Producer

from tailrace.core.errors import (
    BadRecordError,
    CorruptStateError,
    ForeignLogError,
    OtherHistoryError,
    RecordTooLargeError,
)
from tailrace.core.records import UNREADABLE
from tailrace.history.provenance.moves import check_lives_here
from tailrace.history.reading.stretches import scan
from tailrace.history.replay.replaying import replay
from tailrace.history.replay.report import ReplayOptions
from tailrace.history.retirement import publishers_of
from tailrace.log import TopicPartition
from tests.cli.commands import Ended, run
from tests.kafka.processes import rebuilt
from tests.kafka.shop import ORDER, PLAN, Shop, serving
from tests.kafka.visits import Visits

APP = "tests.kafka.shop:app"


def check_no_history(shop: Shop, folder: Path, named: str) -> None:
    """Neither a replay nor a rebuild reads past a record."""
    with pytest.raises(CorruptStateError, match=named):
        replay(PLAN, shop.log, ReplayOptions(any_environment=True))
    with pytest.raises(CorruptStateError, match=named):
        rebuilt(APP, shop.url, folder / "rebuilt", order="tape")


def written_into_the_tape(shop: Shop, what: str) -> int:
    """Write a record into the tape of partition 0. Returns its offset."""
    before = [record.value or b"" for record in scan(shop.log, "shop.tape", 0)]
    at = shop.log.end_offset("shop.tape", 0)
    shop.append("shop.tape", None, before[0] if what == "an old one" else b"{}")
    return at


@pytest.mark.parametrize("what", ["of another form", "an old one"])
def test_a_record_behind_the_last_commit_of_a_tape_is_named_by_start_status_replay_and_rebuild(
    shop: Shop, tmp_path: Path, what: str
) -> None:
    shop.lived()
    shop.stop()
    named = f"'shop.tape' partition 0 .*at offset {(at := written_into_the_tape(shop, what))}"
    shop.refuses(OtherHistoryError if what == "an old one" else CorruptStateError, named)
    if what == "of another form":
        check_no_history(shop, tmp_path, named)
        (problem,) = json.loads(run("status", APP, "--log", shop.url, "--json").out)["problems"]
        assert f"offset {at}" in problem


def test_a_record_between_two_commits_of_a_tape_is_named_by_replay_and_rebuild(
    shop: Shop, tmp_path: Path
) -> None:
    shop.lived()
    at = written_into_the_tape(shop, "an old one")
    shop.lived()
    shop.stop()
    check_no_history(
        shop, tmp_path, f"'shop.tape' partition 0 has a record at offset {at} which no task has written"
    )
    shop.lived()  # it never reads its tape
    assert shop.counts() == {f"k{n}": 12 for n in range(5)}


@pytest.mark.parametrize(
    ("key", "said"),
    [(None, "without a key"), (b"sCounter\0k9\0\0", "Counter")],
    ids=["no key", "a key like a row"],
)
def test_a_record_behind_the_last_commit_of_a_changelog_is_named(
    shop: Shop, key: bytes | None, said: str
) -> None:
    shop.lived()
    shop.stop()
    if key is None:
        shop.configure("shop.changelog", cleanup_policy="delete")  # a compacted topic takes none without
    shop.append("shop.changelog", key, b"\x10\x80")
    at = next(one.offset for one in scan(shop.log, "shop.changelog", 0) if one.value == b"\x10\x80")
    for stores in (shop.stores.copy(), {}):
        shop.stores = stores
        with pytest.raises(CorruptStateError, match=f"{said}.* at offset {at}, which no task has written"):
            shop.start()
        shop.abandon()


def test_a_record_between_two_commits_of_a_changelog_is_found_by_its_key(shop: Shop) -> None:
    shop.lived()
    at = shop.log.end_offset("shop.changelog", 0)
    shop.append("shop.changelog", b"order-7", b"{}")
    shop.lived()
    shop.restart(keep_state=True)  # its own store has not read it
    with pytest.raises(CorruptStateError, match=f"with the key b'order-7' at offset {at},"):
        shop.restart(keep_state=False)


@pytest.mark.parametrize("topic", ["orders", "shop.inbox"])
def test_a_record_in_an_input_or_inbox_stops_its_task_and_is_named(shop: Shop, topic: str) -> None:
    shop.lived()
    at = shop.log.end_offset(topic, 0)
    shop.append(topic, b"k1", b"\xffforeign")
    with pytest.raises(BadRecordError, match="undecodable" if topic == "shop.inbox" else None) as raised:
        shop.work(lambda: False)
    assert (raised.value.topic, raised.value.partition, raised.value.offset) == (topic, 0, at)


def test_records_among_watermarks_are_named_and_those_of_a_topic_that_is_not_ours_are_not(shop: Shop) -> None:
    shop.create("books.publishers")
    shop.append("books.publishers", b"one", b"a publisher of books")
    publishers_of(shop.log)  # as a service that starts
    shop.lived()
    shop.append("totals.watermarks", b"someone", b"\xffhello")
    with (
        closing(shop.log.reader({TopicPartition("totals", 0): 0})) as reader,
        pytest.raises(ForeignLogError, match=r"'totals\.watermarks' has a record at offset"),
    ):
        reader.published("totals", 0)
    shop.append("totals.publishers", b"someone", b"\xffhello")
    with pytest.raises(ForeignLogError, match=r"'totals\.publishers' has a record at offset"):
        publishers_of(shop.log)
    shop.append("shop.inbox.watermarks", b"someone", b"\xffhello")
    with pytest.raises(ForeignLogError, match="no watermark"):
        shop.work(lambda: False)


def test_records_among_dead_letters_and_notes_are_listed_or_named(kafka_url: str) -> None:
    log, every = ("--log", kafka_url), ("dead-letters", "redrive", APP, "--all", "--json", "--log", kafka_url)
    with serving(kafka_url) as shop:
        shop.append("shop.dead-letters", b"k1", b"hello")
        (letter,) = map(json.loads, run("dead-letters", "list", APP, *log, "--json").out.splitlines())
        assert (letter["id"], letter["reason"]) == ("0-0", "foreign")
        done = json.loads(run(*every).out)
        assert (done["done"], done["without_record"], done["foreign"]) == ([], [], ["0-0"])
        assert "another program" in run("dead-letters", "list", APP, *log).out
        shop.append("shop.redriven", b"\xff", b"\xff")
        refused = run(*every)
        assert refused.code
        assert "'shop.redriven' has a record at offset 0" in refused.err
        shop.create("shop.moves")
        shop.append("shop.moves", None, b"{}")
        with pytest.raises(ForeignLogError, match=r"'shop.moves' has a record at offset 0"):
            check_lives_here(shop.log, "shop")  # as a service that starts


def test_a_record_that_is_too_large_is_named_and_handled_once_there_is_room(shop: Shop) -> None:
    """An event, an entry of the changelog, and the record of the tape. Nothing is committed, and nothing is lost."""
    shop.lived()
    for topic, note, key in (("totals", "emit", b"k0"), ("shop.changelog", "keep", b"Counter\0k0")):
        shop.configure(topic, max_message_bytes="100000")
        shop.order(1, note + os.urandom(75_000).hex())
        for _ in range(2):
            with pytest.raises(RecordTooLargeError, match=r"max\.message\.bytes") as raised:
                shop.work()
            assert raised.value.topic == topic
            assert isinstance(raised.value.key, bytes)
            assert key in raised.value.key
            shop.restart(keep_state=True)
        shop.configure(topic, max_message_bytes="1000000")
        shop.order(4)
        shop.work()
    assert shop.counts() == {"k0": 8, "k1": 6, "k2": 6, "k3": 6, "k4": 4}
    shop.configure("shop.tape", max_message_bytes="100")
    shop.order(20)
    with pytest.raises(RecordTooLargeError, match="shorter --commit-interval") as raised:
        shop.work()
    assert raised.value.topic == "shop.tape"


# --- a default producer of confluent-kafka spreads keys by CRC32


class Way(Visits):
    """The service by its commands, and producers beside it."""

    def __init__(self, url: str, state: Path) -> None:
        super().__init__(url, prepared=False)
        self.where = ("--log", url, "--state", state)

    def produce(self, **settings: str) -> None:
        """An event of each key, by a producer with these settings and else its defaults."""
        brokers, _, prefix = self.log.place.removeprefix("kafka://").partition("/")
        producer = Producer({"bootstrap.servers": brokers, **settings})
        for one in self.next(1):
            producer.produce(prefix + one.topic, one.value, one.key, timestamp=one.timestamp_ms)
        assert producer.flush(30) == 0

    def run(self, app: str, *arguments: str) -> Ended:
        """Run the service until it has read all."""
        return run("run", f"tests.kafka.apps:{app}", *self.where, *(arguments or ("--until-end",)))

    def done(self, app: str, *arguments: str) -> None:
        ended = self.run(app, *arguments)
        assert ended.code == 0, ended.err


@pytest.fixture
def way(kafka_url: str, tmp_path: Path) -> Iterator[Way]:
    made = Way(kafka_url, tmp_path)
    with closing(made.log):
        yield made


def stop_by_default_producer(way: Way, app: str) -> None:
    """Run the app, and have it stopped by the first event of a default producer. The error names its setting and two ways on."""
    way.done(app, "--until-end", "--create-topics")
    way.produce(partitioner="murmur2_random")
    way.done(app)
    way.produce()
    ended = way.run(app)
    assert ended.code == 1
    for words in (
        "belongs to partition",
        "partitioner=murmur2_random",
        'on_error="dead-letter"',
        "tailrace dead-letters redrive APP --reason foreign-partition",
        "repartition=True",
        "--change-inputs --create-topics",
    ):
        assert words in ended.err.replace('\\"', '"')


def test_what_a_default_producer_has_written_is_redriven_and_the_corrected_producer_goes_on(way: Way) -> None:
    """For an actor with events in their order."""
    stop_by_default_producer(way, "ordered")
    way.done("dead_lettering", "--until-end", "--allow-dead-letters")
    way.produce(partitioner="murmur2_random")
    # Again: those that an ordered actor kept waiting are handled now.
    way.done("dead_lettering", "--until-end", "--allow-dead-letters")
    redriven = run("dead-letters", "redrive", "visits", "--reason", "foreign-partition", *way.where[:2])
    assert redriven.code == 0
    assert "0 dead letters were redriven" not in redriven.out
    way.done("ordered", "--end-of-input")
    way.await_all()
    assert run("replay", "tests.kafka.apps:ordered", *way.where[:2]).code == 0


def test_an_app_that_has_run_reads_a_default_producer_by_repartitioning(way: Way) -> None:
    stop_by_default_producer(way, "first")
    way.done("repartitioned", "--until-end", "--change-inputs", "--create-topics")
    way.produce()
    way.done("repartitioned")
    way.await_all()


def write_a_header_whose_name_is_not_utf_8(brokers: str, topic: str, value: bytes) -> None:
    """A record by librdkafka itself, in a process of its own."""
    code = f"""
import ctypes, glob, os, confluent_kafka.cimpl
libs = os.path.join(os.path.dirname(os.path.dirname(confluent_kafka.__file__)), "confluent_kafka.libs", "librdkafka*")
lib, pointer, number, size = ctypes.CDLL(glob.glob(libs)[0]), ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t
for name in ("rd_kafka_conf_new", "rd_kafka_new", "rd_kafka_headers_new"):
    getattr(lib, name).restype = pointer
error = ctypes.create_string_buffer(512)
conf = lib.rd_kafka_conf_new()
lib.rd_kafka_conf_set(pointer(conf), b"bootstrap.servers", {brokers.encode()!r}, error, size(512))
producer = lib.rd_kafka_new(number(0), pointer(conf), error, size(512))
headers, value = lib.rd_kafka_headers_new(size(1)), {value!r}
lib.rd_kafka_header_add(pointer(headers), b"\\xff\\xfe", ctypes.c_ssize_t(2), b"v", ctypes.c_ssize_t(1))
TOPIC, VALUE, KEY, PARTITION, TIME, HEADERS, END = 1, 4, 5, 3, 8, 10, 0
assert lib.rd_kafka_producev(
    pointer(producer), TOPIC, {topic.encode()!r}, VALUE, value, size(len(value)), KEY, b"k3", size(2), PARTITION, number(0),
    TIME, ctypes.c_int64(1_000_000), HEADERS, pointer(headers), END,
) == 0
assert lib.rd_kafka_flush(pointer(producer), number(20_000)) == 0
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_a_header_whose_name_is_not_utf_8_makes_its_record_undecodable_and_no_other(shop: Shop) -> None:
    producer, value = Producer({"bootstrap.servers": shop.brokers}), ORDER % b"k3"
    producer.produce(f"{shop.prefix}orders", value, b"k3", 0, headers=[("before", b"\xff")])
    producer.flush(30)
    write_a_header_whose_name_is_not_utf_8(shop.brokers, f"{shop.prefix}orders", value)
    producer.produce(f"{shop.prefix}orders", value, b"k3", 0, headers=[("after", None)])
    producer.flush(30)
    with closing(shop.log.reader({TopicPartition("orders", 0): 0})) as reader:
        found = reader.fetch("orders", 0, 10).records
    assert [one.headers for one in found] == [(("before", b"\xff"),), ((UNREADABLE, b""),), (("after", b""),)]
    with pytest.raises(BadRecordError, match="the name of a header is not UTF-8") as raised:
        shop.work()
    assert (raised.value.topic, raised.value.offset) == ("orders", 1)
