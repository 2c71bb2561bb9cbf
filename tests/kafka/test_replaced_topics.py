"""A topic that is deleted and created again is named, by a service that runs, the next start, and all that reads history: its offsets mean
other records.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from contextlib import closing
from functools import partial
from pathlib import Path

import pytest
from confluent_kafka.cimpl import NewPartitions

from tailrace.core import errors
from tailrace.history.moving.moving import move_apps
from tailrace.history.replay.replaying import replay
from tailrace.history.replay.report import ReplayOptions
from tailrace.history.snapshots.taking import take_snapshot
from tailrace.log import TopicPartition
from tailrace.log.archive import Archive, archive_log
from tailrace.log.interface import Ends
from tailrace.log.kafka import KafkaLog
from tailrace.state.snapshots import Snapshots
from tests.cli.commands import run
from tests.kafka.processes import rebuilt
from tests.kafka.shop import PLAN, Shop, serving

APP = "tests.kafka.shop:app"
AGAIN = "deleted and created again"


def committed(shop: Shop) -> dict[TopicPartition, int]:
    """The offsets of the group. Kafka deletes those of a topic with the topic."""
    places = [TopicPartition(name, number) for name in ("orders", "shop.inbox") for number in range(2)]
    return dict(shop.log.committed_offsets("shop", places))


@pytest.mark.parametrize("topic", ["orders", "shop.inbox", "shop.tape", "totals"])
def test_a_service_commits_nothing_once_a_topic_was_replaced_and_does_not_start_on_it(
    shop: Shop, topic: str
) -> None:
    shop.lived()
    before = committed(shop)
    shop.replace(topic)
    shop.order(60)  # more than the position in the old topic
    with pytest.raises(errors.OtherHistoryError, match=AGAIN) as raised:
        shop.work()
    assert raised.value.topic == topic
    after = committed(shop)
    assert {place: at for place, at in before.items() if place in after} == after
    if topic != "totals":
        shop.refuses(errors.OtherHistoryError, f"{AGAIN} since.*topic '{topic}'")


def test_a_changelog_that_was_replaced_is_told_by_the_group_and_without_it_by_the_tape(shop: Shop) -> None:
    shop.lived()
    shop.stop()
    shop.replace("shop.changelog")
    with serving(shop.url) as later, pytest.raises(errors.OtherHistoryError, match="no commit at all"):
        later.stores = shop.stores
        later.start()
    assert all(store.cut for store in shop.stores.values())  # left as it was
    for done in shop.admin.delete_consumer_groups([f"{shop.prefix}shop"]).values():
        done.result()  # as if the offsets had expired
    with (
        serving(shop.url) as later,
        pytest.raises(errors.OtherHistoryError, match="the changelog was deleted"),
    ):
        later.start()


def test_a_topic_that_was_only_deleted_is_named(shop: Shop) -> None:
    shop.lived()
    shop.delete("orders")
    with pytest.raises(errors.UnknownTopicError, match="orders"):
        shop.work(lambda: False)


def test_more_partitions_are_found_under_a_service_and_by_the_next_start(shop: Shop) -> None:
    shop.lived()
    for done in shop.admin.create_partitions([NewPartitions(f"{shop.prefix}orders", 3)]).values():
        done.result()
    with pytest.raises(errors.TopicMismatchError, match="had 2 partitions and has 3 now") as raised:
        shop.work(lambda: False)
    assert raised.value.topic == "orders"
    assert "Another number of partitions" in raised.value.hint
    at_start = "the input has 3 partitions, the app 'shop' has 2"
    with pytest.raises(errors.TopicMismatchError, match=at_start) as raised, serving(shop.url):
        pass
    assert "Another number of partitions" in raised.value.hint


def test_more_partitions_of_an_output_need_no_more_than_another_start(shop: Shop) -> None:
    shop.lived()
    for done in shop.admin.create_partitions([NewPartitions(f"{shop.prefix}totals", 3)]).values():
        done.result()
    with pytest.raises(errors.TopicMismatchError, match="writes to the former ones") as raised:
        shop.work(lambda: False)
    assert raised.value.topic == "totals"
    assert "Start the service again" in raised.value.hint
    assert "under another name" not in raised.value.hint
    with serving(shop.url) as later:
        later.start()


# --- history


def replayed(url: str, _: Path) -> None:
    with closing(KafkaLog(url)) as log:
        replay(PLAN, log, ReplayOptions(any_environment=True))


def snapshot(url: str, folder: Path) -> None:
    with closing(KafkaLog(url)) as log:
        take_snapshot(PLAN, log, Snapshots(str(folder / "snapshots"), PLAN.app))


def moved(url: str, _: Path) -> None:
    with closing(KafkaLog(url)) as source, closing(KafkaLog(f"{url.rstrip('.')}-moved.")) as target:
        move_apps([PLAN], source, target)


READERS: list[Callable[[str, Path], object]] = [replayed, partial(rebuilt, APP), snapshot]


@pytest.mark.parametrize("topic", ["orders", "shop.tape"])
def test_no_history_is_read_from_a_topic_that_was_replaced(
    kafka_url: str, tmp_path: Path, topic: str
) -> None:
    with serving(kafka_url) as shop:
        shop.lived()
        shop.stop()
        for read in READERS:
            read(kafka_url, tmp_path)
        shop.replace(topic)
        shop.order(60)  # more than the position in the old topic
    for read in (*READERS, moved):
        with pytest.raises(errors.OtherHistoryError, match=f"{AGAIN} since the app 'shop'") as raised:
            read(kafka_url, tmp_path / "later")
        assert raised.value.topic == topic
    refused = run("archive", "--log", kafka_url, "--to", str(tmp_path / "archive"))
    assert refused.code
    assert f"{topic!r}" in refused.err
    assert "--topic" in refused.err
    report = json.loads(run("status", APP, "--log", kafka_url, "--json").out)
    assert any(problem.startswith(f"{topic} was deleted") for problem in report["problems"])
    if topic == "orders":  # the app runs on what is there, and says so
        notes = rebuilt(APP, kafka_url, tmp_path / "stages", order="stages").notes
        assert [note for note in notes if note.startswith(f"orders was {AGAIN}")]


def test_a_topic_that_is_replaced_while_history_is_read_is_found_at_the_end(
    kafka_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with serving(kafka_url) as shop, closing(KafkaLog(kafka_url)) as log:
        shop.lived()
        shop.stop()
        snapshots, ends = Snapshots(str(tmp_path / "snapshots"), PLAN.app), log.ends

        def while_reading(topics: Iterable[str]) -> Ends:
            found = ends(topics)
            shop.replace("orders")
            shop.order(60)
            return found

        monkeypatch.setattr(log, "ends", while_reading)
        with pytest.raises(errors.OtherHistoryError, match=AGAIN):
            take_snapshot(PLAN, log, snapshots)
        assert not snapshots.list()


def test_an_archive_is_continued_and_joined_only_with_the_topic_that_it_is_of(
    kafka_url: str, tmp_path: Path
) -> None:
    """Even if the records of both topics are the same."""
    place = str(tmp_path / "archive")
    with serving(kafka_url) as shop:
        shop.lived()
        shop.stop()
        archive_log(shop.log, Archive.at(place))
        shop.replace("orders")
        shop.now = 0
        shop.order(20)
        since = f"'orders' was {AGAIN} since it was archived"
        with closing(KafkaLog(kafka_url)) as log, pytest.raises(errors.ArchiveError, match=since):
            archive_log(log, Archive.at(place), topics=["orders"])
    with pytest.raises(errors.OtherHistoryError):
        rebuilt(APP, kafka_url, tmp_path / "rebuilt", archive=place)
    assert rebuilt(APP, str(tmp_path / "none"), tmp_path / "from-archive", archive=place).same_rows
