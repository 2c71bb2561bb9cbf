"""Failed and redriven records of what an app sends to itself take effect once in a rebuild that delivers it."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tailrace.core.values.partitioner import partition_of
from tailrace.log.embedded import EmbeddedLog
from tests.history.rebuilding import lived
from tests.history.rebuilding.lived import done
from tests.history.rebuilding.priced import Order, Price, Sum, record

T0 = 1_772_323_200_000
HIDDEN, SHOWN = (f"tests.history.rebuilding.priced:{name}" for name in ("hidden", "shown"))
WAYS = {HIDDEN: ("orders", {"orders": 2, "prices": 2}), SHOWN: ("raw", {"raw": 2, "prices": 2})}
WRITTEN = {HIDDEN: "priced.orders.by-key", SHOWN: "orders"}
PRICE = Price("a", 10, T0 + 100_000)


class Life:
    """A service that runs to the end of what there is, again and again."""

    def __init__(self, folder: Path, app: str) -> None:
        self.folder, self.app = folder, app
        self.topic, self.topics = WAYS[app]

    def run(self, *events: Order | Price, replace: str = "") -> None:
        records = [record("prices" if isinstance(one, Price) else self.topic, one) for one in events]
        lived.append(self.folder, records, self.topics)
        lived.live_on(self.folder, self.app, replace=replace)

    def redrive(self) -> int:
        return lived.close(self.folder, "priced", "redriven")

    def rebuilt(self, **options: Any) -> tuple[int, str]:
        """The last sum that a canonical rebuild comes to, and its snapshot."""
        place = f"parquet:{self.folder / 'out'}"
        _, snapshot = done(
            self.folder, self.app, order="canonical", outputs=place, on_error="dead-letter", **options
        )
        found = lived.outputs(self.folder / "out", snapshot, "sums")
        totals = [msgspec.json.decode(one.value or b"", type=Sum).total for one in found]
        return max(totals, default=0), f"{self.folder / 'snapshots'}#{snapshot.manifest.id}"

    def total(self) -> int:
        """The last sum that the service has emitted."""
        return max(
            msgspec.json.decode(one.value or b"", type=Sum).total for one in lived.read(self.folder, "sums")
        )


@pytest.fixture(params=[HIDDEN, SHOWN], ids=["by-key", "own-topic"])
def life(tmp_path: Path, request: pytest.FixtureRequest) -> Life:
    return Life(tmp_path, request.param)


def test_what_was_redriven_and_fails_again_in_its_place_fails_in_the_rebuild(life: Life) -> None:
    life.run(Order("o1", "a", 3, T0))
    life.run(PRICE, Order("o9", "a", 4, T0 + 200_000))
    assert life.redrive() == 1
    life.run()
    assert life.total() == 70
    assert life.rebuilt()[0] == 40


def test_what_failed_before_the_base_is_run_by_its_redriven_record(life: Life) -> None:
    life.run(Order("o1", "a", 3, T0))
    _, base = life.rebuilt()
    uri, _, base_id = base.partition("#")
    life.run(PRICE, Order("o9", "a", 4, T0 + 200_000))
    assert life.redrive() == 1
    life.run()
    assert life.rebuilt(base=uri, base_id=base_id)[0] == 70


def test_a_letter_of_what_failed_again_stays_open(life: Life) -> None:
    life.run(Order("o1", "a", 3, T0))
    _, snapshot = life.rebuilt()
    life.run(replace=snapshot)
    life.run(PRICE, Order("o9", "a", 4, T0 + 200_000))
    assert life.redrive() == 1
    life.run()
    assert life.total() == 70


def test_what_is_handled_in_its_place_is_handled_again_if_it_is_redriven(life: Life) -> None:
    """So its letter is dropped. It stays open until then, and the rebuild says so."""
    life.run(Order("o1", "a", 3, T0))
    life.run(Price("a", 10, T0 - 100_000))  # in canonical order it comes first
    total, snapshot = life.rebuilt()
    assert total == 30
    life.run(replace=snapshot)
    assert life.redrive() == 1
    life.run()
    assert life.total() == 60


def test_a_redriven_record_of_a_foreign_partition_counts(tmp_path: Path) -> None:
    life = Life(tmp_path, SHOWN)
    life.run(Price("a", 10, T0 - 100_000))
    with closing(EmbeddedLog(tmp_path / "log", create=False)) as log:
        foreign = record("orders", Order("x", "a", 100, T0 + 5_000))
        log.append_all([foreign], 1 - partition_of(b"a", 2))
    life.run(Order("o1", "a", 3, T0))
    assert life.redrive() == 1
    life.run()
    assert life.total() == life.rebuilt()[0] == 1_030
