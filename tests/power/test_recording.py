"""A recording is complete: carried out again, it gives the same folder, whichever library has written to it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.power.recording import FDATASYNC, FSYNC, MARK, record_program

OF_EVERY_KIND = """
import os, shutil
open("a", "wb").write(b"one" * 5000)
with open("a", "r+b") as file:
    file.seek(7); file.write(b"two"); file.truncate(9000); file.flush(); os.fsync(file.fileno())
with open("a", "ab") as file:
    file.write(b"behind")
descriptor = os.open("a", os.O_RDWR)
os.pwrite(descriptor, b"three", 10_000)
os.writev(descriptor, [b"four", b"", b"five"])
os.pwritev(descriptor, [b"six", b"seven"], 20_000)
os.posix_fallocate(descriptor, 0, 30_000)
os.dup2(descriptor, 77); os.write(77, b"by a copy of the descriptor"); os.close(77)
os.fdatasync(descriptor)
os.mkdir("folder"); os.makedirs("folder/deeper/deepest")
os.rename("a", "folder/b"); os.link("folder/b", "c"); os.unlink("folder/b")
shutil.copyfile("c", "folder/d"); shutil.copytree("folder", "other"); shutil.rmtree("other")
os.write(descriptor, b"under another name")
os.chdir("folder/deeper"); os.rename("deepest", "../e"); os.truncate("../d", 100)
open("../d", "wb").close(); open("../f", "xb").close(); os.remove("../f")
here = os.open("..", os.O_RDONLY)
os.close(os.open("g", os.O_CREAT | os.O_WRONLY, dir_fd=here)); os.rename("g", "h", src_dir_fd=here, dst_dir_fd=here)
os.mkdir("i", dir_fd=here); os.rmdir("i", dir_fd=here); os.fsync(here)
if os.fork() == 0:
    open("../by_a_child", "wb").write(b"child")
    os._exit(0)
os.wait()
"""

BY_SQLITE = """
import sqlite3
for mode in ("delete", "wal"):
    database = sqlite3.connect(mode)
    database.execute(f"pragma journal_mode={mode}")
    database.execute("create table t (a, b)")
    for number in range(50):
        with database:
            database.execute("insert into t values (?, randomblob(2000))", (number,))
    database.execute("delete from t where a < 40")
    database.commit()
    database.execute("vacuum")
    if mode == "delete":
        database.close()
"""

BY_ROCKSDB = """
from rocksdict import Options, Rdict
for _ in range(3):
    database = Rdict("database")
    for number in range(500):
        database[number] = b"x" * 1000
    database.flush()
    database.compact_range(None, None)
    database.close()
"""

BY_PYARROW = """
import pyarrow, pyarrow.parquet
table = pyarrow.table({"a": list(range(10_000))})
pyarrow.parquet.write_table(table, "table.parquet")
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "root").mkdir()
    return tmp_path / "root"


@pytest.mark.parametrize("program", [OF_EVERY_KIND, BY_SQLITE, BY_ROCKSDB, BY_PYARROW])
def test_a_recording_carried_out_again_gives_the_same_folder(folder: Path, program: str) -> None:
    assert len(record_program(folder, program)) > 3


def test_a_sync_of_every_kind_is_recorded(folder: Path) -> None:
    kinds = [one.kind for one in record_program(folder, OF_EVERY_KIND)]
    assert kinds.count(FSYNC) == 2
    assert kinds.count(FDATASYNC) == 1


def test_a_promise_stands_in_the_recording_behind_what_was_done_before_it(folder: Path) -> None:
    program = "from tests.power.recording import mark\nopen('a', 'wb').write(b'a')\nmark('written')\nopen('b', 'wb').close()"
    found = [(one.kind, one.data) for one in record_program(folder, program)]
    assert found[1:3] == [("W", b"a"), (MARK, b"written")]


def test_a_file_that_is_written_by_other_ways_fails_the_recording(folder: Path) -> None:
    program = "import mmap\nf = open('a', 'w+b')\nf.truncate(5000)\nmmap.mmap(f.fileno(), 0)[0] = 1"
    with pytest.raises(AssertionError, match=r"mapped for writing.*'a'"):
        record_program(folder, program)
