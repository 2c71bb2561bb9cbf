"""Records that retention, compaction, or a broken disk has taken from a topic of a running service, or between two runs, are missed. The
markers of transactions are not.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import NamedTuple

import pytest

from tailrace.core.engine import tape
from tailrace.core.errors import AppMovedError, CorruptStateError, OffsetGoneError
from tailrace.core.records import Output
from tailrace.core.values.partitioner import partition_of
from tailrace.history.moving.moving import move_apps
from tailrace.history.reading.app_history import AppHistory
from tailrace.history.reading.changelog import last_cut
from tailrace.history.reading.cut_notes import NOTE, header_of
from tailrace.history.reading.residence import check_lives_here
from tailrace.history.snapshots.taking import take_snapshot
from tailrace.log import TopicPartition
from tailrace.log.embedded import EmbeddedLog
from tailrace.runtime import passed_offsets
from tailrace.state.snapshots import Snapshots
from tailrace.state.store_cut import decode_store_cut
from tests.cli.commands import run
from tests.kafka.broker.cluster import Cluster
from tests.kafka.shop import PLAN, Shop, serving
from tests.runtime.processes import wait_until

PARTITIONS = range(PLAN.partitions)
UNREAD = r"has deleted offsets .* before the app 'shop' read them"


def delete_all(shop: Shop, *, but: int = 0) -> None:
    """Delete what the input has, but for the last offsets."""
    for number in PARTITIONS:
        shop.delete_before("orders", shop.log.end_offset("orders", number) - but, number)


def test_records_that_are_deleted_before_they_were_read_are_missed(kafka_url: str) -> None:
    with serving(kafka_url) as shop:
        shop.lived()
        shop.order(60)
        delete_all(shop, but=1)
        shop.worker._reader.seek("orders", 0, 1)  # it has been slow
        with pytest.raises(OffsetGoneError, match="were deleted before they were read"):
            shop.work(lambda: False)
        with serving(kafka_url) as later, pytest.raises(OffsetGoneError, match=UNREAD) as raised:
            later.start()
        assert raised.value.topic == "orders"
        assert "--after-deleted" in raised.value.hint


def test_markers_of_transactions_that_are_deleted_behind_the_last_record_are_not_missed(
    kafka_url: str, tmp_path: Path
) -> None:
    with serving(kafka_url) as shop:
        shop.lived()
        cut = [tape.decode_cut(decode_store_cut(shop.stores[n].cut or b"").core or b"") for n in PARTITIONS]
        shop.stop()
        for number in PARTITIONS:  # the marker is behind the position
            assert cut[number].positions["orders"] == shop.log.end_offset("orders", number) - 1
        made = take_snapshot(PLAN, shop.log, Snapshots(str(tmp_path / "snapshots"), "shop"))
        for keep_state in (True, False):
            delete_all(shop)
            shop.restart(keep_state=keep_state)
            shop.order(5)
            shop.work()
        delete_all(shop)
        for slot in shop.worker.slots:
            assert slot.running is not None
            slot.running._roll_back()
        shop.order(5)
        shop.work()
        shop.stop()
        assert shop.counts() == {f"k{n}": 7 for n in range(5)}
        copy = (
            "run",
            "tests.kafka.shop:app",
            "--as",
            "copy",
            "--log",
            kafka_url,
            "--state",
            tmp_path / "copy",
        )
        begins = ("--from-snapshot", f"{tmp_path / 'snapshots'}#{made.id}", "--end-of-input", "--after-end")
        assert "continues from an offset that retention has deleted" in run(*copy, *begins).err
        shop.order(10)
        delete_all(shop)
        with pytest.raises(OffsetGoneError, match=UNREAD):
            shop.restart(keep_state=True)


def aborted(shop: Shop) -> dict[int, int]:
    """Add a transaction that is aborted to the end of each partition of the input. Returns the new ends."""

    def is_longer_than(end: int, partition: int) -> bool:
        return shop.log.end_offset("orders", partition) > end

    for number in PARTITIONS:
        writer, before = shop.log.writer("another"), shop.log.end_offset("orders", number)
        writer.append([Output("orders", b"k", b"x", 1)], number)
        wait_until(partial(is_longer_than, before, number), "the record is there")
        writer.abort()
        writer.close()
        wait_until(partial(is_longer_than, before + 1, number), "its transaction has ended")
    return {number: shop.log.end_offset("orders", number) for number in PARTITIONS}


def test_aborted_transactions_are_missed_only_where_the_service_has_not_passed_them(
    kafka_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(passed_offsets, "_ALONE_MS", 0)
    with serving(kafka_url) as shop:
        shop.lived()
        ends = aborted(shop)

        def noted() -> dict[int, int]:
            found: dict[int, int] = {}
            for number in PARTITIONS:
                place = TopicPartition("orders", number)
                cut = last_cut(shop.log, TopicPartition("shop.changelog", number))
                found[number] = shop.log.resume(header_of(cut, NOTE, bytes) or b"", {place: 0})[place]
            return found

        shop.work(lambda: noted() == ends)
        shop.stop()
        delete_all(shop)
        for keep_state in (True, False):
            shop.restart(keep_state=keep_state)
        shop.order(20)
        shop.work()
        assert shop.counts() == {f"k{n}": 8 for n in range(5)}
        shop.stop()
        aborted(shop)
        delete_all(shop)
        with pytest.raises(OffsetGoneError, match=UNREAD) as raised:
            shop.start()
        assert "may have held no record, but only transactions that were aborted" in raised.value.hint
        assert "--after-deleted" in raised.value.hint


# --- the changelog


def test_a_changelog_that_has_lost_rows_is_not_taken_for_the_state(kafka_url: str, tmp_path: Path) -> None:
    gone = "deleted the first 3 offsets of the changelog, and with them rows of the state"
    with serving(kafka_url) as shop, closing(EmbeddedLog(tmp_path / "log")) as other:
        shop.lived()
        shop.stop()
        shop.configure("shop.changelog", cleanup_policy="delete")
        shop.delete_before("shop.changelog", 3)
        shop.configure("shop.changelog", cleanup_policy="compact")
        shop.start()  # the store is complete
        shop.stop()
        shop.stores.clear()
        with pytest.raises(OffsetGoneError, match=gone) as raised:
            shop.start()
        assert raised.value.topic == "shop.changelog"
        snapshots = Snapshots(str(tmp_path / "snapshots"), "shop")
        with pytest.raises(OffsetGoneError, match=gone):
            take_snapshot(PLAN, shop.log, snapshots)
        assert not snapshots.list()
        with pytest.raises(OffsetGoneError, match=gone):
            AppHistory(PLAN, shop.log).committed(0, with_rows=True)
        with pytest.raises(OffsetGoneError, match=gone):
            move_apps([PLAN], shop.log, other)
        with pytest.raises(AppMovedError):
            check_lives_here(other, "shop")


# --- batches that are gone from the files of a broker


class Batch(NamedTuple):
    offset: int
    is_marker: bool
    data: bytes


def batches(data: bytes) -> Iterator[Batch]:
    """The batches of a log file (KIP-98): offset (8 bytes), length of the rest (4), and the attributes at byte 21."""
    at = 0
    while at + 12 <= len(data) and (length := int.from_bytes(data[at + 8 : at + 12], "big")):
        end = at + 12 + length
        yield Batch(int.from_bytes(data[at : at + 8], "big"), bool(data[at + 22] & 0x20), data[at:end])
        at = end


def rewrite(folder: Path, change: Callable[[list[Batch]], list[Batch]]) -> None:
    """Change the batches of a partition. The broker recovers indexes and producers from them."""
    file, *others = sorted(folder.glob("*.log"))
    found = [one for each in (file, *others) for one in batches(each.read_bytes())]
    kept = change(found)
    assert 0 < len(kept) < len(found)
    file.write_bytes(b"".join(one.data for one in kept))
    for each in others:
        each.unlink()
    for pattern in ("*.index", "*.timeindex", "*.txnindex", "*.snapshot"):
        for other in folder.glob(pattern):
            other.unlink()


def without_most_of_the_middle(found: list[Batch]) -> list[Batch]:
    """Without the rows of all commits but the first and the last two."""
    rows = [one for one in found if not one.is_marker]
    assert len(rows) > 5
    return [one for one in found if one.is_marker or one in rows[:1] or one in rows[-2:]]


def test_lost_batches_are_found_whatever_has_come_in_their_place(tmp_path: Path) -> None:
    """As after an unclean election or with a restored disk. Compaction leaves the same kind of file."""
    with Cluster(tmp_path) as cluster, serving(f"kafka://{cluster.bootstrap}/p.") as shop:
        data = tmp_path / "node-1" / "data"
        for _ in range(6):
            shop.order(10)
            shop.work()
        shop.stop()
        positions = [shop.log.end_offset("orders", number) for number in PARTITIONS]

        # An input loses its end, and grows past it again.
        cluster.nodes[0].kill()
        numbers = [number for number in PARTITIONS if positions[number] > 2]
        for number in numbers:
            rewrite(data / f"p.orders-{number}", lambda found: found[: len(found) // 2])
        cluster.start()
        for said in ("ends at", "another record"):
            for _ in range(2):
                with pytest.raises(OffsetGoneError, match=rf"(?s){said}.*--after-deleted") as raised:
                    shop.start()
                assert raised.value.topic == "orders"
                shop.abandon()
            while any(shop.log.end_offset("orders", n) <= positions[n] + 5 for n in numbers):
                shop.order(10)
        before = shop.counts()
        shop.after_deleted = True
        shop.start()
        shop.after_deleted = False
        shop.work()
        after = shop.counts()
        assert sum(before.values()) < sum(after.values()) < shop.now + sum(before.values())
        shop.restart(keep_state=True)
        shop.work()
        shop.order(10)
        shop.work()
        assert sum(shop.counts().values()) == sum(after.values()) + 10
        for _ in range(2):  # the last commits are of one key
            shop.order(1)
            shop.work()
        shop.stop()

        # A changelog loses commits in the middle: older rows of the same keys are left.
        cluster.nodes[0].kill()
        number = partition_of(b"k0", PLAN.partitions)
        rewrite(data / f"p.shop.changelog-{number}", without_most_of_the_middle)
        cluster.start()
        shop.start()  # the stores have all of it
        shop.stop()
        shop.stores.clear()
        lost = r"its last commit notes .* has lost records in between"
        for _ in range(2):
            with pytest.raises(CorruptStateError, match=lost):
                shop.start()
            shop.abandon()
        with pytest.raises(CorruptStateError, match=lost):
            take_snapshot(PLAN, shop.log, Snapshots(str(tmp_path / "snapshots"), "shop"))
