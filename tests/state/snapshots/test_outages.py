"""A location that is full or read-only: a clear error, nothing published in part, and it works again with room."""

import pytest

from tests.state.outages import FULL, UNWRITABLE, run

COMMON = """
import os, pathlib, resource, subprocess, sys
from tailrace.core.errors import SnapshotUnavailableError
from tailrace.core.rows import PLAIN
from tailrace.state.snapshots import Snapshots, TaskEntry, write_task
from tests.state.snapshots.making import manifest_of, published

folder = state = pathlib.Path(sys.argv[1])
rows = {b"sA\\0%09d\\0\\0" % n: PLAIN + os.urandom(99) for n in range(40_000)}
few = dict(list(rows.items())[:10])
"""

FULL_WHILE_WRITING = """
snapshots = Snapshots(str(folder / "snapshots"), "flights")
whole = published(snapshots, [few])
outage(room=1 << 20)
for attempt in range(3):
    try:
        published(snapshots, [rows])
    except SnapshotUnavailableError as error:
        assert "space" in str(error) or "size" in str(error), error
        assert "try again" in str(error), error
    else:
        raise AssertionError("not refused")
    assert not [path for path in (folder / "snapshots").rglob("*") if path.stat().st_size > 1 << 19], "left behind"
assert snapshots.list() == [whole]
assert list(snapshots.open().rows(0)) == list(few.items())

relief()
bigger = published(snapshots, [rows])
assert snapshots.list() == [whole, bigger]
assert list(snapshots.open().rows(0)) == list(rows.items())
"""

FULL_AT_THE_MANIFEST = """
snapshots = Snapshots(str(folder / "snapshots"), "flights")
draft = snapshots.begin()
files = write_task(draft.folder_uri, 0, "a", few.items())
manifest = manifest_of(snapshots, draft.id, 1, (TaskEntry(0, b"cut" * 5000, files=files),))
outage()
try:
    snapshots.publish(manifest)
except SnapshotUnavailableError as error:
    assert "space" in str(error) or "size" in str(error), error
else:
    raise AssertionError("not refused")
assert snapshots.list() == []
assert {path.name for path in pathlib.Path(draft.folder_uri).iterdir()} == {file.name for file in files}
relief()
sealed = snapshots.publish(manifest)
assert snapshots.list() == [sealed]
"""

UNWRITABLE_PLACE = """
snapshots = Snapshots(str(folder), "flights")
outage()
try:
    published(snapshots, [few])
except SnapshotUnavailableError as error:
    assert "read-only" in str(error) or "permission" in str(error), error
else:
    raise AssertionError("not refused")
relief()
published(snapshots, [few])
assert snapshots.open().verify() == []
"""


@pytest.mark.parametrize("outage", FULL)
def test_a_place_that_fills_up_keeps_what_was_published_and_takes_more_when_there_is_room(outage) -> None:
    run(COMMON, FULL[outage], FULL_WHILE_WRITING)


@pytest.mark.parametrize("outage", FULL)
def test_a_manifest_that_finds_no_room_is_not_there(outage) -> None:
    run(COMMON, FULL[outage], FULL_AT_THE_MANIFEST)


@pytest.mark.parametrize("outage", UNWRITABLE)
def test_a_place_that_may_not_be_written_is_told(outage) -> None:
    run(COMMON, UNWRITABLE[outage], UNWRITABLE_PLACE)
