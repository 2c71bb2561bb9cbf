"""Power cuts of a real ext4 file system. As root: ``unshare --mount python -m tests.power.real_disk POLICY FIRST_SEED COUNT``.

The program needs mounts of its own (unshare): a copy of the mount in another process's view would keep the file system alive.

A service and its operator work on an ext4 file system in an image, mounted by a loop device. After a number of promises drawn
from the seed, the file system is shut down (FS_IOC_SHUTDOWN without a flush of the journal, as xfstests does it): from then on
nothing reaches the image, neither data in memory nor the journal. The image is then mounted again, which replays its journal,
and the state is checked like a crash state of the model. Meanwhile some files are written back in parts at drawn moments.

What this cannot show: a disk that loses its own cache or writes in another order than asked (all that was sent to the loop
device stays). The model covers what the file system allows; this checks the model's assumptions against the file system.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from random import Random

from tests.power.checks import check
from tests.power.files import DURABLE
from tests.power.recording import MARKS, ROOT
from tests.power.scenario import run_processes
from tests.state.outages import may_mount

_SHUTDOWN = 0x8004587D  # FS_IOC_SHUTDOWN: _IOR('X', 125, __u32)
_NO_FLUSH = 2
_BEGIN_WRITING = 2  # SYNC_FILE_RANGE_WRITE
_IMAGE_BYTES = 256 << 20
_MOST_MARKS = 90
_PATIENCE_S = 120.0
PROBE = """
set -e
truncate -s 16M image && mkfs.ext4 -q image && mkdir mounted && mount -o loop image mounted && umount mounted
"""


def may_cut() -> tuple[str, ...] | None:
    """The command in front of a program that mounts images, or None if this is not possible here."""
    before = may_mount()
    if before is None or os.getuid() != 0:
        return None
    with tempfile.TemporaryDirectory() as name:
        done = subprocess.run([*before, "sh", "-c", PROBE], cwd=name, capture_output=True, check=False)
    return before if done.returncode == 0 else None


def real_cut(policy: str, seed: int, folder: Path) -> None:
    """One cut, checked."""
    random = Random(f"real {seed}")
    image, mounted, marks = folder / "image", folder / "mounted", folder / "marks"
    mounted.mkdir()
    marks.touch()
    with image.open("wb") as file:
        file.truncate(_IMAGE_BYTES)
    subprocess.run(["mkfs.ext4", "-q", image], check=True)
    with _mounted(image, mounted):
        root = mounted / "root"
        root.mkdir()
        os.sync()
        wanted = random.randrange(1, _MOST_MARKS)

        def cut() -> None:
            deadline_s = time.monotonic() + _PATIENCE_S
            while marks.read_bytes().count(b"\n") < wanted:
                assert time.monotonic() < deadline_s, "the service does not work"
                _write_back_some(root, random)
                time.sleep(0.005)
            _shut_down(mounted)

        path = os.pathsep.join([str(ROOT / "framework"), str(ROOT)])
        run_processes(root, policy, {**os.environ, "PYTHONPATH": path, MARKS: str(marks)}, cut)
    promised = marks.read_text().splitlines()
    with _mounted(image, mounted):
        check(mounted / "root", policy, promised, promised if policy == DURABLE else ())


@contextmanager
def _mounted(image: Path, at: Path) -> Generator[None]:
    subprocess.run(["mount", "-o", "loop,commit=1", image, at], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", at], check=True)


def _shut_down(mounted: Path) -> None:
    descriptor = os.open(mounted, os.O_RDONLY)
    try:
        fcntl.ioctl(descriptor, _SHUTDOWN, struct.pack("I", _NO_FLUSH))
    finally:
        os.close(descriptor)


def _write_back_some(root: Path, random: Random) -> None:
    """Let the kernel write a part of some file, as it does when memory is short."""
    if random.random() < 0.7:
        return
    files = [path for path in root.rglob("*") if path.is_file()]
    if not files:
        return
    try:
        descriptor = os.open(random.choice(files), os.O_RDONLY)
    except FileNotFoundError:
        return  # it was deleted meanwhile
    try:
        at = random.randrange(max(1, os.fstat(descriptor).st_size))
        libc = ctypes.CDLL(None, use_errno=True)
        libc.sync_file_range(descriptor, ctypes.c_int64(at), ctypes.c_int64(1 << 16), _BEGIN_WRITING)
    finally:
        os.close(descriptor)


def main() -> None:
    """Check some cuts. An outcome that must not be ends the program with its error."""
    policy, first, count = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    for seed in range(first, first + count):
        with tempfile.TemporaryDirectory(prefix="tailrace-disk-") as name:
            real_cut(policy, seed, Path(name))


if __name__ == "__main__":
    main()
