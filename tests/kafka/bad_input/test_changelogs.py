"""A changelog that has lost rows, or has records that no task has written, is never restored from in silence."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest

from tailrace.core.errors import AppMovedError, CorruptStateError, OffsetGoneError, OffsetsDisagreeError
from tailrace.history.moving.moving import move_apps
from tailrace.history.reading.app_history import AppHistory
from tailrace.history.reading.residence import check_lives_here
from tailrace.history.reading.stretches import scan
from tailrace.history.snapshots.taking import take_snapshot
from tailrace.log.embedded import EmbeddedLog
from tailrace.state.snapshots import Snapshots
from tests.kafka.bad_input.shop import PLAN, Shop, serving


def lived(shop: Shop) -> None:
    """It has handled some orders, and stopped."""
    shop.order(20)
    shop.work()
    shop.stop()


def test_rows_that_retention_has_deleted_are_missed(kafka_url: str) -> None:
    with serving(kafka_url) as shop:
        lived(shop)
        shop.configure("shop.changelog", cleanup_policy="delete")
        shop.delete_before("shop.changelog", 3)
        shop.configure("shop.changelog", cleanup_policy="compact")
        shop.start()  # the store is complete
        shop.stop()
        shop.stores.clear()
        with pytest.raises(OffsetGoneError, match="deleted the first 3 offsets of the changelog") as raised:
            shop.start()
        assert raised.value.topic == "shop.changelog"


def test_a_changelog_that_has_lost_rows_is_not_taken_for_the_state(kafka_url: str, tmp_path: Path) -> None:
    gone = "deleted the first 3 offsets of the changelog, and with them rows of the state"
    with serving(kafka_url) as shop, closing(EmbeddedLog(tmp_path / "log")) as other:
        lived(shop)
        shop.configure("shop.changelog", cleanup_policy="delete")
        shop.delete_before("shop.changelog", 3)
        shop.configure("shop.changelog", cleanup_policy="compact")
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


@pytest.mark.parametrize(
    ("key", "said"),
    [(b"order-7", "order-7"), (None, "without a key"), (b"sCounter\0k9\0\0", "Counter")],
    ids=["a key that is no row", "no key", "a key like a row"],
)
def test_a_record_of_another_program_behind_the_last_commit_is_named(
    kafka_url: str, key: bytes | None, said: str
) -> None:
    with serving(kafka_url) as shop:
        lived(shop)
        if key is None:
            shop.configure("shop.changelog", cleanup_policy="delete")  # a compacted topic takes none without
        shop.append("shop.changelog", key, b"\x10\x80")
        at = next(one.offset for one in scan(shop.log, "shop.changelog", 0) if one.value == b"\x10\x80")
        for stores in (shop.stores.copy(), {}):
            shop.stores = stores
            with pytest.raises(
                CorruptStateError, match=f"{said}.* at offset {at}, which no task has written"
            ):
                shop.start()
            abandon(shop)


def test_a_record_of_another_program_between_commits_is_found_by_its_key(kafka_url: str) -> None:
    with serving(kafka_url) as shop:
        shop.order(20)
        shop.work()
        at = shop.log.end_offset("shop.changelog", 0)
        shop.append("shop.changelog", b"order-7", b"{}")
        shop.order(20)
        shop.work()
        shop.stop()
        shop.start()  # its own store has not read it
        shop.stop()
        shop.stores.clear()
        with pytest.raises(CorruptStateError, match=f"with the key b'order-7' at offset {at},"):
            shop.start()


def test_a_changelog_that_has_lost_its_end_is_told_by_the_group(kafka_url: str) -> None:
    with serving(kafka_url) as shop:
        lived(shop)
        shop.replace("shop.changelog")
        with serving(kafka_url) as later:
            later.stores = shop.stores
            with pytest.raises(OffsetsDisagreeError, match="no commit at all"):
                later.start()
            assert all(store.cut for store in shop.stores.values())  # left as it was


def abandon(shop: Shop) -> None:
    """Forget a worker that could not start."""
    worker, shop._worker = shop._worker, None
    assert worker is not None
    worker._reader.close()
