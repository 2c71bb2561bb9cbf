"""Records that retention, compaction, or a broken disk has taken from a topic of a running service, or between two runs, are missed. The
markers of transactions are not.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import closing
from functools import partial
from pathlib import Path

import pytest

from tailrace.core.engine import tape
from tailrace.core.errors import LogUnavailableError, OffsetGoneError, OtherHistoryError, ReplayDivergedError
from tailrace.core.records import Output
from tailrace.history.moving.moving import move_apps
from tailrace.history.provenance.moves import check_lives_here
from tailrace.history.reading.app_history import AppHistory
from tailrace.history.reading.changelog import last_cut
from tailrace.history.replay.replaying import replay
from tailrace.history.replay.report import ReplayOptions
from tailrace.history.snapshots.taking import take_snapshot
from tailrace.log import TopicPartition, TopicSettings
from tailrace.log.embedded import EmbeddedLog
from tailrace.log.kafka import KafkaLog
from tailrace.log.kafka.topic_config import LAG_MS
from tailrace.runtime import commit_notes
from tailrace.state.provenance import provenance_of
from tailrace.state.snapshots import Snapshots
from tailrace.state.store_cut import decode_store_cut
from tests.cli.commands import run
from tests.kafka.shop import PLAN, Shop, serving
from tests.runtime.processes import wait_until
from tests.tables.lived import Life
from tests.tables.stock import oracle, reader, table_in

PARTITIONS = range(PLAN.partitions)
UNREAD = r"has deleted offsets .* before the app 'shop' read them"


def delete_all(shop: Shop, *, but: int = 0) -> None:
    """Delete what the input has, but for the last offsets."""
    for number in PARTITIONS:
        shop.delete_before("orders", shop.log.end_offset("orders", number) - but, number)


def test_records_that_are_deleted_before_they_were_read_are_missed(shop: Shop) -> None:
    shop.lived()
    shop.order(60)
    delete_all(shop, but=1)
    shop.worker._reader.seek("orders", 0, 1)  # it has been slow
    with pytest.raises(OffsetGoneError, match="were deleted before they were read"):
        shop.work(lambda: False)
    with serving(shop.url) as later, pytest.raises(OffsetGoneError, match=UNREAD) as raised:
        later.start()
    assert raised.value.topic == "orders"
    assert "--after-deleted" in raised.value.hint


def test_markers_of_transactions_that_are_deleted_behind_the_last_record_are_not_missed(
    shop: Shop, tmp_path: Path
) -> None:
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
    copy = ("run", "tests.kafka.shop:app", "--as", "copy", "--log", shop.url, "--state", tmp_path / "copy")
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
    monkeypatch.setattr(commit_notes, "_ALONE_MS", 0)
    with serving(kafka_url) as shop:
        shop.lived()
        ends = aborted(shop)

        def noted() -> dict[int, int]:
            found: dict[int, int] = {}
            for number in PARTITIONS:
                cut = last_cut(shop.log, TopicPartition("shop.changelog", number))
                found[number] = provenance_of(cut).topics["orders"].passed
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
        with pytest.raises(OtherHistoryError):
            check_lives_here(other, "shop")


# --- compaction


def compact(log: KafkaLog, topic: str, count: Callable[[], int], write: Callable[[], None]) -> None:
    """Wait until the brokers have compacted a topic. A segment is closed when another record comes, which ``write`` adds."""
    wanted = {
        "segment.ms": "100",
        "min.cleanable.dirty.ratio": "0",
        "min.compaction.lag.ms": "0",
        "max.compaction.lag.ms": "100",
    }
    before = count()
    log.admin.alter(topic, wanted)

    def is_compacted() -> bool:
        write()
        return count() < before

    wait_until(is_compacted, "the brokers have compacted it")


def test_a_table_is_what_a_dict_is_before_and_after_a_compaction_and_is_not_replayed_in_part(
    log: KafkaLog, tmp_path: Path
) -> None:
    life = Life(log, tmp_path)

    def of_other_keys() -> None:
        """They change no value."""
        log.append_all([Output("stocks", b"other", None, time.time_ns() // 1_000_000)] * 2)

    life.change(60)
    life.run("reader", "--until-end")
    assert table_in(log) == life.copy("reader") == oracle(life.events)
    compact(log, "stocks", lambda: life.records, of_other_keys)
    assert table_in(log) == oracle(life.events)
    with pytest.raises((OffsetGoneError, ReplayDivergedError)):
        replay(reader.plan(), log, ReplayOptions(any_environment=True))
    life.change(30)
    wanted = oracle(life.events)
    for reading in ("reader", "late"):  # one that continues, and one that comes now
        life.run(reading, "--until-end")
        assert life.copy(reading) == table_in(log) == wanted, reading


def test_a_reading_that_took_longer_than_brokers_leave_a_topic_alone_is_an_error(log: KafkaLog) -> None:
    """Rows could be missing. The brokers may compact as soon as the lag is over."""
    log.create_topic("some.changelog", TopicSettings(1, compacted=True))
    with log.compaction_paused(["some.changelog"]):
        pass
    with (
        pytest.raises(LogUnavailableError, match=r"min\.compaction\.lag\.ms"),
        log.compaction_paused(["some.changelog"]),
    ):
        log.admin.alter("some.changelog", {"min.compaction.lag.ms": "0"})
        # A broker answers before it has the change itself.
        wait_until(
            lambda: log._cluster.config_of(["some.changelog"])["some.changelog"][LAG_MS] == "0", "it is set"
        )
