"""A state folder after a power cut holds a whole batch and its cut, whatever RocksDB was doing; else it is set aside and said.

RocksDB may lose a batch and keep later ones, which is rare (see ``batch_numbers``). Such a folder is the only one set aside.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest

from tailrace.core.errors import CorruptStateError
from tailrace.state import RocksStore, StateIdentity, StateMemory
from tailrace.state.batch_numbers import MOST_UNSYNCED
from tailrace.state.damaged import SUFFIX, open_or_set_aside
from tests.power.disk import Recorded
from tests.power.recording import CREATE, FDATASYNC, FSYNC, WRITE, record_program

BATCHES, ROWS, KEYS = 60, 100, 300
IDENTITY = StateIdentity("app", 0)

# With so little memory, tables are written and merged all the time.
PROGRAM = """
from pathlib import Path
from tailrace.state import RocksStore, StateMemory
from tests.power.recording import mark
from tests.power.test_state import BATCHES, IDENTITY, batch
for part in range(3):
    store = RocksStore(Path("state/app/0").absolute(), IDENTITY, StateMemory(1 << 20))
    for number in range(part * BATCHES // 3, (part + 1) * BATCHES // 3):
        store.write(batch(number), b"%d" % number)
    store.close()
    mark(str(number))
"""

# Batches of a few bytes, which stay in one write-ahead log.
SMALL_BATCHES = 150
SMALL_PROGRAM = """
from pathlib import Path
from tailrace.state import RocksStore, StateMemory
from tests.power.test_state import IDENTITY, SMALL_BATCHES
store = RocksStore(Path("state/app/0").absolute(), IDENTITY, StateMemory(8 << 20))
for number in range(SMALL_BATCHES):
    store.write({b"%d" % (number % 40): b"%d" % number * 30}, b"%d" % number)
store.close()
"""


def batch(number: int) -> dict[bytes, bytes | None]:
    """The rows of a batch; every fifth one is a deletion."""
    random = Random(number)
    return {
        b"row %d" % random.randrange(KEYS): None if one % 5 == 0 else b"%d" % number + random.randbytes(1_000)
        for one in range(ROWS)
    }


def rows_after(cut: bytes | None) -> dict[bytes, bytes]:
    rows: dict[bytes, bytes] = {}
    for number in range(-1 if cut is None else int(cut) + 1):
        for row, value in batch(number).items():
            if value is None:
                rows.pop(row, None)
            else:
                rows[row] = value
    return rows


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Recorded:
    """A store that was opened, filled and closed, three times."""
    return Recorded(record_program(tmp_path_factory.mktemp("state"), PROGRAM))


def checked(
    made: Recorded, seed: int, folder: Path, after: Callable[[bytes | None], dict[bytes, bytes]] = rows_after
) -> int:
    """Open a crash state; the number of its last batch, or -1."""
    cut = made.cut(seed)
    folder.mkdir()
    made.build(cut, folder)
    place = folder / "state" / "app" / "0"
    store = open_or_set_aside(place, IDENTITY, StateMemory(8 << 20))
    if (aside := place.with_name(f"0{SUFFIX}")).exists():
        with pytest.raises(CorruptStateError) as damage:
            RocksStore(aside, IDENTITY, StateMemory(8 << 20))
        assert "not all before it" in damage.value.what, f"{cut}: the folder was damaged"
        assert list(store.rows()) == []
        store.close()
        shutil.rmtree(folder)
        return -1
    assert dict(store.rows()) == after(store.cut), str(cut)
    last = -1 if store.cut is None else int(store.cut)
    store.close()
    promised = made.promised(cut)
    assert last >= int(promised[-1] if promised else -1), f"{cut}: a store that was closed has lost rows"
    shutil.rmtree(folder)
    return last


@pytest.mark.one_seed_in(10)  # one takes 0.1 s
def test_after_a_power_cut_a_store_holds_a_whole_batch_and_its_cut(
    seeds: range, made: Recorded, tmp_path: Path
) -> None:
    for seed in seeds:
        checked(made, seed, tmp_path / str(seed))


def rows_after_small(cut: bytes | None) -> dict[bytes, bytes]:
    return {
        b"%d" % (number % 40): b"%d" % number * 30 for number in range(-1 if cut is None else int(cut) + 1)
    }


@pytest.fixture(scope="module")
def made_small(tmp_path_factory: pytest.TempPathFactory) -> Recorded:
    return Recorded(record_program(tmp_path_factory.mktemp("small"), SMALL_PROGRAM))


@pytest.mark.one_seed_in(10)
def test_after_a_power_cut_small_batches_are_whole_and_without_a_gap(
    seeds: range, made_small: Recorded, tmp_path: Path
) -> None:
    for seed in seeds:
        checked(made_small, seed, tmp_path / str(seed), rows_after_small)


def test_at_most_so_many_batches_are_not_synced(made_small: Recorded) -> None:
    """With more of them, a gap before as many whole batches would have no slot that shows it."""
    logs = {one.file for one in made_small.operations if one.kind == CREATE and one.path.endswith(".log")}
    unsynced, most = 0, 0
    for one in made_small.operations:
        if one.file in logs:
            unsynced = 0 if one.kind in (FDATASYNC, FSYNC) else unsynced + (one.kind == WRITE)
            most = max(most, unsynced)
    assert most == MOST_UNSYNCED


def test_a_store_whose_files_are_not_synced_is_found_to_be_damaged(made: Recorded, tmp_path: Path) -> None:
    unsynced = Recorded([one for one in made.operations if one.kind not in (FDATASYNC, FSYNC)])
    with pytest.raises(AssertionError, match=r"damaged|lost rows"):
        for seed in range(100):
            checked(unsynced, seed, tmp_path / str(seed))
