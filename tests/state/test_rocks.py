"""What a store in RocksDB keeps through a kill, and how damage to its files shows: loudly, or not at all."""

import contextlib
import os
import pickle
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Generator
from functools import partial
from pathlib import Path

import pytest

from tailrace.core.errors import CorruptStateError
from tailrace.state import RocksStore, StateIdentity, StateMemory
from tailrace.state.folder import DATABASE

OURS = StateIdentity("flights", 0)
SMALL = 1 << 20  # so little memory that flushes and compactions are frequent

WRITER = """
import sys
from pathlib import Path
from tailrace.state import RocksStore, StateIdentity, StateMemory

store = RocksStore(Path(sys.argv[1]), StateIdentity("flights", 0), StateMemory(1 << 20))
number = int(store.cut or b"0")
print(number, flush=True)
while True:
    number += 1
    rows = {b"all %04d" % row: b"%d" % number for row in range(2000)}
    rows[b"one %08d" % number] = b""
    rows[b"one %08d" % (number - 10)] = None
    store.write(rows, b"%d" % number)
    print(number, flush=True)
"""


@contextlib.contextmanager
def opened(path: Path) -> Generator[RocksStore]:
    with contextlib.closing(RocksStore(path, OURS, StateMemory(SMALL))) as store:
        yield store


@pytest.mark.parametrize("round_", range(4))
def test_a_kill_leaves_whole_batches_and_the_cut_of_the_last(tmp_path: Path, round_: int) -> None:
    chance = random.Random(round_)
    reached = 0
    for life in range(3):
        with subprocess.Popen([sys.executable, "-c", WRITER, tmp_path], stdout=subprocess.PIPE) as writer:
            assert writer.stdout is not None
            assert int(writer.stdout.readline()) >= reached
            if life == 2 and not reached:
                writer.stdout.readline()  # on a machine so slow that no batch was written yet
            time.sleep(chance.uniform(0.0, 0.15))
            writer.send_signal(signal.SIGKILL)
            said = writer.stdout.read().split()  # the last line may be cut short by the kill
        assert writer.returncode == -signal.SIGKILL
        with opened(tmp_path) as store:
            held = int(store.cut or b"0")
            assert held >= max([reached, *map(int, said[:-1])]), "a batch that was written is gone"
            assert {value for _, value in store.scan(b"all", b"alm")} <= {b"%d" % held}
            ones = [row for row, _ in store.scan(b"one", b"onf")]
            assert ones == [b"one %08d" % number for number in range(max(1, held - 9), held + 1)]
        reached = held
    assert reached > 0


GROWER = """
import os, pickle, signal, sys
from pathlib import Path
from tailrace.state import RocksStore, StateIdentity, StateMemory

for batches in pickle.load(sys.stdin.buffer):
    store = RocksStore(Path(sys.argv[1]), StateIdentity("flights", 0), StateMemory(1 << 20))
    for cut, rows in batches:
        store.write(rows, cut)
    if cut == b"9":
        os.kill(os.getpid(), signal.SIGKILL)
    store.close()
"""

Rows = dict[bytes, bytes]


@pytest.fixture(scope="module")
def grown(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[bytes | None, Rows]]:
    """A folder with tables of several ages and a log not yet flushed, and the rows that belong to each of its cuts."""
    path = tmp_path_factory.mktemp("grown") / "state"
    rows: Rows = {}
    history: dict[bytes | None, Rows] = {None: rows}
    batches: list[tuple[bytes, dict[bytes, bytes | None]]] = []
    for number in range(1, 10):
        batch: dict[bytes, bytes | None] = dict.fromkeys(b"%05d" % row for row in range(0, 3000, 50 + number))
        batch |= {b"%05d" % row: b"%05d of %d" % (row, number) for row in range(number, 3000, 2 + number)}
        rows = {row: value for row, value in {**rows, **batch}.items() if value is not None}
        history[b"%d" % number] = rows
        batches.append((b"%d" % number, batch))
    openings = [batches[0:3], batches[3:6], batches[6:9]]
    child = subprocess.run([sys.executable, "-c", GROWER, path], input=pickle.dumps(openings), check=False)
    assert child.returncode == -signal.SIGKILL
    return path, history


def sound(path: Path, history: dict[bytes | None, Rows]) -> bool:
    """Every way of reading gives the rows of the store's cut, or else CorruptStateError: True if none was refused."""
    try:
        store = RocksStore(path, OURS, StateMemory(SMALL))
    except CorruptStateError:
        return False
    with contextlib.closing(store):
        rows = history[store.cut]
        some = [b"%05d" % row for row in range(0, 3000, 7)]
        reads: list[tuple[Callable[[], object], object]] = [
            (lambda: dict(store.rows()), rows),
            (lambda: dict(store.scan(b"01", b"02")), {r: v for r, v in rows.items() if b"01" <= r < b"02"}),
            (lambda: store.get_many(some), [rows.get(row) for row in some]),
            *((partial(store.get, row), rows.get(row)) for row in some),
        ]
        refused = 0
        for read, expected in reads:
            try:
                found = read()
            except CorruptStateError:
                refused += 1
            else:
                assert found == expected
    return not refused


def files(path: Path, pattern: str) -> list[Path]:
    return sorted((path / DATABASE).glob(pattern))


def flipped(file: Path, place: int) -> None:
    data = bytearray(file.read_bytes())
    data[place] ^= 0x40
    file.write_bytes(data)


def test_an_undamaged_folder_is_sound_and_holds_its_last_cut(grown, tmp_path: Path) -> None:
    path = shutil.copytree(grown[0], tmp_path / "state")
    assert sound(path, grown[1])
    with opened(path) as store:
        assert store.cut == b"9"


def test_a_changed_byte_in_a_table_is_found_by_every_way_of_reading_it(grown, tmp_path: Path) -> None:
    path = shutil.copytree(grown[0], tmp_path / "state")
    rows = list(grown[1][b"9"])
    for table in files(path, "*.sst"):
        flipped(
            table, table.stat().st_size // 2
        )  # in a block of rows; the first one is read when a store is opened
    with opened(path) as store:
        for read in (store.rows, lambda: store.scan(b"", b"\xff"), lambda: store.get_many(rows)):
            with pytest.raises(CorruptStateError, match="rebuilt from the changelog"):
                list(read())
        with pytest.raises(CorruptStateError):
            list(map(store.get, rows))


def test_a_changed_byte_in_the_block_of_the_cut_is_found_when_the_store_is_opened(
    grown, tmp_path: Path
) -> None:
    path = shutil.copytree(grown[0], tmp_path / "state")
    for table in files(path, "*.sst"):
        flipped(table, 100)
    with pytest.raises(CorruptStateError, match="rebuilt from the changelog"), opened(path):
        pass


@pytest.mark.one_seed_in(10)  # it opens a database: 60 ms
def test_any_damage_is_refused_or_leaves_the_rows_of_a_cut(grown, seeds: range) -> None:
    for seed in seeds:
        chance = random.Random(seed)
        with tempfile.TemporaryDirectory() as folder:
            path = shutil.copytree(grown[0], Path(folder) / "state")
            file = chance.choice(files(path, "*"))
            size = file.stat().st_size
            match chance.choice(["flip", "flip", "flip", "cut", "blank", "lose"]):
                case "flip" if size:
                    flipped(file, chance.randrange(size))
                case "cut":
                    os.truncate(file, chance.randrange(size + 1))
                case "blank" if size:
                    start = chance.randrange(size)
                    file.write_bytes(file.read_bytes()[:start].ljust(size, b"\0"))
                case _:
                    file.unlink()
            sound(path, grown[1])
