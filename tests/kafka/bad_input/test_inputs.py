"""What others may do to the topics that a service reads: deleted records, more partitions, another partitioner, foreign records."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest
from confluent_kafka.cimpl import NewPartitions

from tailrace.core.engine import tape
from tailrace.core.errors import (
    BadRecordError,
    ForeignLogError,
    OffsetGoneError,
    TopicMismatchError,
    WrongPartitionError,
)
from tailrace.core.records import Output
from tailrace.history.reading.changelog import last_cut
from tailrace.history.reading.cut_notes import NOTE, header_of
from tailrace.history.snapshots.taking import take_snapshot
from tailrace.log import TopicPartition
from tailrace.runtime import passed_offsets
from tailrace.state.snapshots import Snapshots
from tailrace.state.store_cut import decode_store_cut
from tests.kafka.bad_input.shop import ORDER, PLAN, Shop, serving
from tests.kafka.commands import tailrace
from tests.soak.processes import wait_until


def test_records_deleted_before_they_were_read_are_missed(kafka_url: str) -> None:
    with serving(kafka_url) as shop:
        shop.order(20)
        shop.work()
        shop.stop()
        shop.order(60)
        number = max(range(2), key=lambda one: shop.log.end_offset("orders", one))
        end = shop.log.end_offset("orders", number)
        shop.delete_before("orders", end - 1, number)
        with pytest.raises(
            OffsetGoneError, match=r"has deleted offsets .* before the app 'shop' read them"
        ) as raised:
            shop.start()
        assert (raised.value.topic, raised.value.partition) == ("orders", number)
        assert "--after-deleted" in raised.value.hint


@pytest.mark.parametrize("keep_state", [True, False])
def test_markers_of_transactions_that_are_deleted_behind_the_last_record_are_not_missed(
    kafka_url: str, *, keep_state: bool
) -> None:
    with serving(kafka_url) as shop:
        shop.order(20)
        shop.work()
        shop.order(5)
        shop.work()
        cut = [tape.decode_cut(decode_store_cut(shop.stores[one].cut or b"").core or b"") for one in range(2)]
        shop.stop()
        for number in range(2):
            end = shop.log.end_offset("orders", number)
            assert cut[number].positions["orders"] == end - 1  # the marker is behind it
            shop.delete_before("orders", end, number)
        shop.restart(keep_state=keep_state)
        shop.order(10)
        shop.work()
        assert shop.counts() == {f"k{n}": 7 for n in range(5)}
        # Nothing is skipped that was deleted unread.
        shop.stop()
        shop.order(10)
        number = max(range(2), key=lambda one: shop.log.end_offset("orders", one))
        shop.delete_before("orders", shop.log.end_offset("orders", number), number)
        with pytest.raises(OffsetGoneError, match="before the app 'shop' read them"):
            shop.restart(keep_state=keep_state)


def aborted(shop: Shop) -> dict[int, int]:
    """Add a transaction that is aborted to the end of each partition of the input. Returns the new ends."""
    for number in range(2):

        def is_longer_than(end: int, partition: int = number) -> bool:
            return shop.log.end_offset("orders", partition) > end

        writer, before = shop.log.writer("another"), shop.log.end_offset("orders", number)
        writer.append([Output("orders", b"k", b"x", 1)], number)
        wait_until(partial(is_longer_than, before), "the record is there")
        writer.abort()
        writer.close()
        wait_until(partial(is_longer_than, before + 1), "its transaction has ended")
    return {number: shop.log.end_offset("orders", number) for number in range(2)}


@pytest.mark.parametrize("keep_state", [True, False])
def test_aborted_transactions_that_a_service_has_passed_are_not_missed_when_they_are_deleted(
    kafka_url: str, monkeypatch: pytest.MonkeyPatch, *, keep_state: bool
) -> None:
    monkeypatch.setattr(passed_offsets, "_ALONE_MS", 0)
    with serving(kafka_url) as shop:
        shop.order(20)
        shop.work()
        ends = aborted(shop)

        def noted() -> dict[int, int]:
            cuts = [last_cut(shop.log, TopicPartition("shop.changelog", number)) for number in range(2)]
            places = [TopicPartition("orders", number) for number in range(2)]
            notes = [header_of(cut, NOTE, bytes) or b"" for cut in cuts]
            return {
                place.partition: shop.log.resume(note, {place: 0})[place]
                for place, note in zip(places, notes, strict=True)
            }

        shop.work(lambda: noted() == ends)
        shop.stop()
        for number, end in ends.items():
            shop.delete_before("orders", end, number)
        shop.restart(keep_state=keep_state)
        shop.order(20)
        shop.work()
        assert shop.counts() == {f"k{n}": 8 for n in range(5)}


def test_deleted_offsets_that_nobody_has_passed_are_told_to_be_possibly_empty(kafka_url: str) -> None:
    with serving(kafka_url) as shop:
        shop.order(20)
        shop.work()
        shop.stop()
        for number, end in aborted(shop).items():
            shop.delete_before("orders", end, number)
        with pytest.raises(OffsetGoneError, match="before the app 'shop' read them") as raised:
            shop.start()
        assert "may have held no record, but only transactions that were aborted" in raised.value.hint
        assert "--after-deleted" in raised.value.hint


def test_a_start_from_a_snapshot_is_refused_where_offsets_were_deleted_even_if_they_held_markers_only(
    kafka_url: str, tmp_path: Path
) -> None:
    place = tmp_path / "snapshots"
    with serving(kafka_url) as shop:
        shop.order(20)
        shop.work()
        shop.stop()
        made = take_snapshot(PLAN, shop.log, Snapshots(str(place), "shop"))
        for number in range(2):
            shop.delete_before("orders", shop.log.end_offset("orders", number), number)
        again = [
            *("run", "tests.kafka.bad_input.shop:app", "--as", "copy", "--log", kafka_url, "--state"),
            *(tmp_path / "copy", "--from-snapshot", f"{place}#{made.id}", "--end-of-input", "--after-end"),
        ]
        with pytest.raises(AssertionError, match="continues from an offset that retention has deleted"):
            tailrace(*again)


def test_a_task_that_is_rolled_back_behind_deleted_markers_continues(kafka_url: str) -> None:
    with serving(kafka_url) as shop:
        shop.order(20)
        shop.work()
        for number in range(2):
            shop.delete_before("orders", shop.log.end_offset("orders", number), number)
        for slot in shop.worker.slots:
            assert slot.running is not None
            slot.running._roll_back()
        shop.order(10)
        shop.work()
        assert shop.counts() == {f"k{n}": 6 for n in range(5)}


def test_records_deleted_under_a_service_that_is_behind_are_missed(kafka_url: str) -> None:
    with serving(kafka_url) as shop:
        shop.order(20)
        shop.work()
        shop.order(60)
        shop.delete_before("orders", shop.log.end_offset("orders", 0) - 1, 0)
        shop.delete_before("orders", shop.log.end_offset("orders", 1) - 1, 1)
        shop.worker._reader.seek("orders", 0, 1)  # it has been slow
        with pytest.raises(OffsetGoneError, match="were deleted before they were read"):
            shop.work(lambda: False)


def test_more_partitions_are_found_under_a_service_and_by_the_next_start(kafka_url: str) -> None:
    with serving(kafka_url) as shop:
        shop.order(20)
        shop.work()
        for done in shop.admin.create_partitions([NewPartitions(f"{shop.prefix}orders", 3)]).values():
            done.result()
        with pytest.raises(TopicMismatchError, match="had 2 partitions and has 3 now") as raised:
            shop.work(lambda: False)
        assert raised.value.topic == "orders"
        assert "Another number of partitions" in raised.value.hint
        with (
            pytest.raises(
                TopicMismatchError, match="the input has 3 partitions, the app 'shop' has 2"
            ) as raised,
            serving(kafka_url),
        ):
            pass
        assert "Another number of partitions" in raised.value.hint


def test_a_producer_with_another_partitioner_is_named_at_its_first_event(kafka_url: str) -> None:
    with serving(kafka_url) as shop:
        shop.start()
        shop.append("orders", b"k1", ORDER % b"k1", 0)
        shop.append("orders", b"k1", ORDER % b"k1", 1)
        with pytest.raises(WrongPartitionError, match="orders") as raised:
            shop.work(lambda: False)
        assert "the key 'k1' belongs to partition 1" in str(raised.value)
        assert "repartition=True" in str(raised.value)


@pytest.mark.parametrize("topic", ["orders", "shop.inbox"])
def test_a_foreign_record_in_an_input_is_named(kafka_url: str, topic: str) -> None:
    with serving(kafka_url) as shop:
        shop.order(20)
        shop.work()
        at = shop.log.end_offset(topic, 0)
        shop.append(topic, b"k1", b"\xffforeign")
        with pytest.raises(BadRecordError) as raised:
            shop.work(lambda: False)
        assert (raised.value.topic, raised.value.partition, raised.value.offset) == (topic, 0, at)


def test_a_foreign_record_among_watermarks_is_named(kafka_url: str) -> None:
    with serving(kafka_url) as shop:
        shop.order(20)
        shop.work()
        shop.append("shop.inbox.watermarks", b"k1", b"\xffforeign")
        with pytest.raises(ForeignLogError, match="no watermark"):
            shop.work(lambda: False)
