"""A disk that is full, a file system that is read-only, a folder one may not write: a clear error, and nothing lost.

Each outage is made by the operating system, in a process of its own. A limit on the size of files and another user's
permissions can be had everywhere; a small disk and a read-only mount where a process may have mounts of its own.
"""

import functools
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

# A program is COMMON, then an outage, then what happens in it. Its argument is an empty folder.
COMMON = """
import os, pathlib, resource, subprocess, sys
from tailrace.core.errors import *
from tailrace.state import *

folder = pathlib.Path(sys.argv[1])
state = folder / "state"
OURS = StateIdentity("flights", 0)

def opened():
    return RocksStore(state, OURS, StateMemory(8 << 20))

def refused(call, *says):
    try:
        call()
    except StateUnavailableError as error:
        assert any(word in str(error) for word in says), error
        assert "Nothing committed is lost" in str(error), error
        return error
    raise AssertionError("not refused")

def batch(number):
    return {b"%d of %04d" % (n, number): os.urandom(100) for n in range(1000)}
"""

FILE_LIMIT = """
def outage(room=0):
    resource.setrlimit(resource.RLIMIT_FSIZE, (room, resource.RLIM_INFINITY))

def relief():
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
"""

SMALL_DISK = """
subprocess.run(["mount", "-t", "tmpfs", "-o", "size=24m", "small", folder], check=True)
ballast = folder / "ballast"

def outage(room=0):
    with ballast.open("wb", buffering=0) as file:
        try:
            while file.write(bytes(4096)) == 4096:
                pass
        except OSError:
            pass
        file.truncate(file.tell() - room)

def relief():
    ballast.unlink()
"""

READ_ONLY_MOUNT = """
subprocess.run(["mount", "-t", "tmpfs", "-o", "size=24m", "small", folder], check=True)

def outage():
    subprocess.run(["mount", "-o", "remount,bind,ro", folder], check=True)

def relief():
    subprocess.run(["mount", "-o", "remount,bind,rw", folder], check=True)
"""

# Permissions do not bind root, who becomes nobody, as far as files go.
PERMISSIONS = """
def outage():
    folder.chmod(0o555)
    for path in (state, *state.rglob("*")):
        if state.exists():
            path.chmod(0o555 if path.is_dir() else 0o444)
    if os.getuid() == 0:
        os.seteuid(65534)

def relief():
    if os.getuid() == 0:
        os.seteuid(0)
    for path in (folder, state, *state.rglob("*")):
        if state.exists() or path == folder:
            path.chmod(0o755 if path.is_dir() else 0o644)
"""

FULL_WHILE_RUNNING = """
store = opened()
model = {}
store.write(model, b"0")
outage(room=1 << 20)
try:
    for number in range(1, 10_000):
        rows = batch(number)
        store.write(rows, b"%d" % number)
        model |= rows
except StateUnavailableError as error:
    failure = error
assert "full" in str(failure) or "size" in str(failure), failure
assert "Nothing committed is lost" in str(failure)
assert number > 1
assert store.cut == b"%d" % (number - 1)
assert dict(store.rows()) == model, "what was written before must stay readable"

relief()
assert refused(lambda: store.write({b"later": b""}, b"later"), "full", "size") is failure, "a hole in the state"
store.close()

store = opened()
assert store.cut in (b"%d" % (number - 1), b"%d" % number)
if store.cut == b"%d" % number:
    model |= rows
assert dict(store.rows()) == model
for again in range(int(store.cut) + 1, number + 20):
    rows = batch(again)
    store.write(rows, b"%d" % again)
    model |= rows
store.close()
store = opened()
assert dict(store.rows()) == model
assert store.cut == b"%d" % again
"""

UNWRITABLE_AT_START = """
outage()
refused(opened, "read-only", "permission")
relief()
assert not state.exists() or not any(state.iterdir()), "something was left behind"

store = opened()
store.write({b"a": b"1"}, b"1")
store.close()
outage()
refused(opened, "read-only", "permission")
relief()
store = opened()
assert (store.cut, dict(store.rows())) == (b"1", {b"a": b"1"})
store.write({b"a": b"2"}, b"2")
"""

FULL_AT_START = """
outage()
refused(opened, "full", "size")
refused(opened, "full", "size")
relief()
store = opened()
assert store.cut is None
store.write({b"a": b"1"}, b"1")
store.close()

outage()
refused(opened, "full", "size")
refused(opened, "full", "size")
relief()
store = opened()
assert (store.cut, dict(store.rows())) == (b"1", {b"a": b"1"})
"""


@functools.cache
def may_mount() -> tuple[str, ...] | None:
    """How to run a process with mounts of its own, or None where that is forbidden."""
    if shutil.which("unshare") and shutil.which("mount"):
        for how in (("unshare", "--mount"), ("unshare", "--user", "--map-root-user", "--mount")):
            trial = [*how, "mount", "-t", "tmpfs", "trial", tempfile.gettempdir()]
            if subprocess.run(trial, capture_output=True, check=False).returncode == 0:
                return how
    return None


def run(outage: str, program: str, folder: Path) -> None:
    before = (may_mount() or ()) if "mount" in outage else ()
    command = [*before, sys.executable, "-c", COMMON + outage + program, str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder that every user may enter, as pytest's own is not."""
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o755)
        yield Path(name)


FULL = {"limit": FILE_LIMIT} | ({"disk": SMALL_DISK} if may_mount() else {})
UNWRITABLE = {"permissions": PERMISSIONS} | ({"mount": READ_ONLY_MOUNT} if may_mount() else {})


@pytest.mark.parametrize("outage", FULL)
def test_a_full_disk_ends_the_store_at_its_last_cut_from_which_it_goes_on_with_room_again(
    outage, folder: Path
) -> None:
    run(FULL[outage], FULL_WHILE_RUNNING, folder)


@pytest.mark.parametrize("outage", FULL)
def test_a_disk_that_is_full_at_the_start_stops_this_start_and_no_later_one(outage, folder: Path) -> None:
    run(FULL[outage], FULL_AT_START, folder)


@pytest.mark.parametrize("outage", UNWRITABLE)
def test_a_folder_that_cannot_be_written_is_refused_and_opens_unharmed_when_it_can(
    outage, folder: Path
) -> None:
    run(UNWRITABLE[outage], UNWRITABLE_AT_START, folder)
