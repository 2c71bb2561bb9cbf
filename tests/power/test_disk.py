"""The model of the disk: programs that trust in too much lose data in some of its states, and right ones in none."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from tests.power.disk import PAGE, Recorded
from tests.power.recording import record_program

CUTS = 300

BEGIN = """
import os
from tests.power.recording import mark

def sync(path):
    descriptor = os.open(path, os.O_RDONLY)
    os.fsync(descriptor)
    os.close(descriptor)

os.mkdir("disk")
open("disk/file", "wb").write(b"old" * 3000)
sync("disk/file"); sync("disk"); sync(".")
mark("old")
"""
WRITTEN = 'open("disk/new", "wb").write(b"new" * 3000)\n'
REPLACED = 'os.rename("disk/new", "disk/file")\n'
PROMISED = 'mark("new")\n'
OLD, NEW = b"old" * 3000, b"new" * 3000


def states(folder: Path, program: str) -> Counter[tuple[str, bytes | None]]:
    """By last promise and content of ``disk/file``, how many crash states there are. None: the file is not there."""
    (folder / "root").mkdir()
    made = Recorded(record_program(folder / "root", BEGIN + program))
    found: Counter[tuple[str, bytes | None]] = Counter()
    for seed in range(CUTS):
        cut = made.cut(seed)
        state = folder / str(seed)
        state.mkdir()
        made.build(cut, state)
        path = state / "disk" / "file"
        promised = made.promised(cut)
        found[promised[-1] if promised else "", path.read_bytes() if path.exists() else None] += 1
    return found


def test_a_file_that_is_synced_before_it_replaces_another_is_never_torn_nor_lost(tmp_path: Path) -> None:
    found = states(tmp_path, WRITTEN + 'sync("disk/new")\n' + REPLACED + 'sync("disk")\n' + PROMISED)
    assert {state for state in found if state[0]} == {("old", OLD), ("old", NEW), ("new", NEW)}


def test_a_file_that_replaces_another_unsynced_may_be_empty_or_torn(tmp_path: Path) -> None:
    found = {
        content for promise, content in states(tmp_path, WRITTEN + REPLACED + 'sync("disk")\n') if promise
    }
    assert b"" in found
    assert found > {b"", OLD, NEW}, "a page of three was written"


def test_a_name_is_not_durable_before_its_folder_is_synced(tmp_path: Path) -> None:
    found = states(tmp_path, WRITTEN + 'sync("disk/new")\n' + REPLACED + PROMISED)
    assert found["new", OLD]
    assert {content for promise, content in found if promise} == {OLD, NEW}


def test_data_that_was_not_synced_may_be_lost_or_full_of_zeros(tmp_path: Path) -> None:
    program = """
with open("disk/file", "ab", buffering=0) as file:
    for _ in range(8):
        file.write(b"more" * 1024)
mark("new")
"""
    found = {content for promise, content in states(tmp_path, program) if promise == "new"}
    assert OLD in found
    assert OLD + b"more" * 8 * 1024 in found
    assert any(content is not None and bytes(PAGE) in content for content in found)
    assert all(content is not None and content.startswith(OLD) for content in found), "what was synced stays"


def test_pages_written_in_place_may_be_of_any_version_since_the_last_sync(tmp_path: Path) -> None:
    program = """
descriptor = os.open("disk/file", os.O_RDWR)
for version in (b"1", b"2", b"3"):
    for page in range(2):
        os.pwrite(descriptor, version * 4096, 4096 * page)
mark("new")
"""
    found = {
        (content[100:101], content[PAGE + 100 : PAGE + 101])
        for promise, content in states(tmp_path, program)
        if promise == "new" and content is not None
    }
    assert {(b"3", b"3"), (b"o", b"o"), (b"l", b"l")} & found
    assert any(first != second for first, second in found)


@pytest.mark.parametrize("sync", ["os.fsync", "os.fdatasync"])
def test_what_a_sync_has_returned_for_is_there(tmp_path: Path, sync: str) -> None:
    program = f"""
descriptor = os.open("disk/file", os.O_RDWR)
os.write(descriptor, b"new" * 3000)
{sync}(descriptor)
mark("new")
os.ftruncate(descriptor, 10)
os.unlink("disk/file")
"""
    found = {content for promise, content in states(tmp_path, program) if promise == "new"}
    assert found == {NEW, NEW[:10], None}


def test_names_are_committed_in_their_order(tmp_path: Path) -> None:
    program = """
os.link("disk/file", "disk/other")
os.unlink("disk/file")
os.rename("disk/other", "disk/file")
"""
    (tmp_path / "root").mkdir()
    made = Recorded(record_program(tmp_path / "root", BEGIN + program))
    found: set[tuple[str, ...]] = set()
    for seed in range(CUTS):
        state = tmp_path / str(seed)
        state.mkdir()
        made.build(made.cut(seed), state)
        found.add(tuple(sorted(path.name for path in state.rglob("*") if path.is_file())))
    assert found == {(), ("file",), ("file", "other"), ("other",)}
