"""A partition that lost batches of records: at its end, as after an unclean election or a restored disk, or in the middle.

The broker is killed, and the file of the partition is written without the batches. Compaction leaves the same kind of file.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from tailrace.core.errors import CorruptStateError, OffsetGoneError
from tailrace.core.values.partitioner import partition_of
from tailrace.history.snapshots.taking import take_snapshot
from tailrace.state.snapshots import Snapshots
from tests.kafka.bad_input.shop import PLAN, Shop, serving
from tests.kafka.bad_input.test_changelogs import abandon
from tests.kafka.broker.cluster import Cluster

CONTROL = 0x20
"""The attribute of batches with the markers of transactions."""


class Batch(NamedTuple):
    offset: int
    is_marker: bool
    data: bytes


def batches(data: bytes) -> Iterator[Batch]:
    """The batches of a log file (KIP-98): offset (8 bytes), length of the rest (4), and the attributes at byte 21."""
    at = 0
    while at + 12 <= len(data) and (length := int.from_bytes(data[at + 8 : at + 12], "big")):
        end = at + 12 + length
        yield Batch(int.from_bytes(data[at : at + 8], "big"), bool(data[at + 22] & CONTROL), data[at:end])
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


def lived(shop: Shop) -> None:
    """It has handled orders of the same keys, commit by commit."""
    for _ in range(6):
        shop.order(10)
        shop.work()
    shop.stop()


def test_lost_batches_are_found_whatever_has_come_in_their_place(tmp_path: Path) -> None:
    with Cluster(tmp_path) as cluster, serving(f"kafka://{cluster.bootstrap}/p.") as shop:
        data = tmp_path / "node-1" / "data"
        lived(shop)
        positions = [shop.log.end_offset("orders", number) for number in range(PLAN.partitions)]

        # An input loses its end, and grows past it again.
        cluster.nodes[0].kill()
        numbers = [number for number in range(PLAN.partitions) if positions[number] > 2]
        for number in numbers:
            rewrite(data / f"p.orders-{number}", lambda found: found[: len(found) // 2])
        cluster.start()
        for said in ("ends at", "another record"):
            for _ in range(2):
                with pytest.raises(OffsetGoneError, match=rf"(?s){said}.*--after-deleted") as raised:
                    shop.start()
                assert raised.value.topic == "orders"
                abandon(shop)
            while any(shop.log.end_offset("orders", n) <= positions[n] + 5 for n in numbers):
                shop.order(10)
        before = shop.counts()
        shop.after_deleted = True
        shop.start()
        shop.after_deleted = False
        shop.work()
        after = shop.counts()
        assert sum(after.values()) > sum(before.values())
        assert sum(after.values()) < shop.now + sum(before.values())
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
        for _ in range(2):
            with pytest.raises(
                CorruptStateError, match=r"its last commit notes .* has lost records in between"
            ):
                shop.start()
            abandon(shop)
        with pytest.raises(CorruptStateError, match="its last commit notes"):
            take_snapshot(PLAN, shop.log, Snapshots(str(tmp_path / "snapshots"), "shop"))
