"""A write-ahead log that lost a part of itself: the store is as after an earlier batch, or it is damaged and says so."""

from __future__ import annotations

import contextlib
import shutil
import struct
from collections.abc import Generator, Iterator
from itertools import combinations
from pathlib import Path

import pytest

from tailrace.core.errors import CorruptStateError
from tailrace.state import RocksStore, StateIdentity, StateMemory
from tailrace.state.batch_numbers import MOST_UNSYNCED
from tailrace.state.folder import DATABASE

OURS = StateIdentity("flights", 0)


@contextlib.contextmanager
def opened(path: Path) -> Generator[RocksStore]:
    with contextlib.closing(RocksStore(path, OURS, StateMemory(8 << 20))) as store:
        yield store


def written(path: Path, numbers: Iterator[int] | range) -> None:
    """Batches as a process leaves them that is killed: the write-ahead log is not synced, and nothing is flushed."""
    with opened(path.with_name("running")) as store:
        for number in numbers:
            store.write({b"row %d" % number: b"", b"last": b"%d" % number}, b"%d" % number)
        shutil.copytree(store.path, path)


def rows_after(last: int) -> list[tuple[bytes, bytes]]:
    rows = {b"row %d" % number: b"" for number in range(1, last + 1)}
    return sorted((rows | {b"last": b"%d" % last}).items()) if last else []


def write_ahead_log(path: Path) -> Path:
    (log,) = (path / DATABASE).glob("*.log")
    return log


def records(log: bytes) -> list[bytes]:
    """The physical records of a log of less than a block: checksum (4 bytes), length (2), kind (1), and content."""
    assert len(log) < 32 << 10
    found: list[bytes] = []
    while log:
        length: int = struct.unpack_from("<4xH", log)[0]
        found.append(log[: 7 + length])
        log = log[7 + length :]
    return found


def test_of_all_ways_to_lose_batches_only_that_of_the_last_ones_is_a_state(tmp_path: Path) -> None:
    written(tmp_path / "whole", range(1, 8))
    all_of_it = records(write_ahead_log(tmp_path / "whole").read_bytes())
    assert len(all_of_it) == 7
    seen: set[str] = set()
    for count in range(8):
        for kept in combinations(range(7), count):
            folder = tmp_path / ("kept" + "".join(map(str, kept)))
            shutil.copytree(tmp_path / "whole", folder)
            write_ahead_log(folder).write_bytes(b"".join(all_of_it[one] for one in kept))
            if kept == tuple(range(count)):
                with opened(folder) as store:
                    assert list(store.rows()) == rows_after(count)
                    assert store.cut == (b"%d" % count if count else None)
                seen.add("whole")
            else:
                with pytest.raises(CorruptStateError, match="not all before it"), opened(folder):
                    pass
                seen.add("damaged")
            shutil.rmtree(folder)
    assert seen == {"whole", "damaged"}


@pytest.mark.parametrize(
    "batches", [2, MOST_UNSYNCED - 1, MOST_UNSYNCED, MOST_UNSYNCED + 1, 3 * MOST_UNSYNCED]
)
def test_a_write_ahead_log_that_is_gone_before_a_newer_one_is_found(tmp_path: Path, batches: int) -> None:
    """RocksDB changes to a new log when a table in memory is full; the old one may lose its end, the new one nothing."""
    path = tmp_path / "state"
    with opened(tmp_path / "running") as store:
        for number in range(1, batches):
            store.write({b"row %d" % number: b""}, b"%d" % number)
        shutil.copytree(store.path, path)
        store._database.flush()
        store.write({b"row %d" % batches: b""}, b"%d" % batches)
        newer = write_ahead_log(store.path)
        shutil.copy(newer, path / DATABASE)
        (older,) = set((path / DATABASE).glob("*.log")) - {path / DATABASE / newer.name}
    with opened(shutil.copytree(path, tmp_path / "kept")) as store:
        assert store.cut == b"%d" % batches
        assert len(list(store.rows())) == batches
    older.write_bytes(b"".join(records(older.read_bytes())[:-1]))
    with (
        pytest.raises(CorruptStateError, match=rf"has batch {batches}, .*missing: {batches - 1}\)"),
        opened(path),
    ):
        pass


def test_a_log_without_its_end_is_a_state_as_after_an_earlier_batch(tmp_path: Path) -> None:
    written(tmp_path / "whole", range(1, 100))
    all_of_it = write_ahead_log(tmp_path / "whole").read_bytes()
    for length in range(0, len(all_of_it), 61):
        folder = tmp_path / str(length)
        shutil.copytree(tmp_path / "whole", folder)
        write_ahead_log(folder).write_bytes(all_of_it[:length])
        with opened(folder) as store:
            assert list(store.rows()) == rows_after(int(store.cut or b"0"))
        shutil.rmtree(folder)


def test_numbers_go_on_where_a_store_is_opened_again(tmp_path: Path) -> None:
    for life in range(5):
        with opened(tmp_path) as store:
            for number in range(MOST_UNSYNCED // 2 + life):
                store.write({b"row": b"%d" % number}, b"%d %d" % (life, number))
    with opened(tmp_path) as store:
        assert store.cut == b"4 %d" % (MOST_UNSYNCED // 2 + 3)
