"""Outages of a disk, made by the operating system in a process of its own.

A limit on the size of files and another user's permissions can be had everywhere; a small disk and a read-only mount where a
process may have mounts of its own. A program is its beginning, then an outage, then what happens in it: it calls ``outage``
and ``relief``. Its argument is an empty folder, which the beginning calls ``folder``, and what it uses there ``state``.
"""

from __future__ import annotations

import functools
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.runtime.processes import ROOT

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


@functools.cache
def may_mount() -> tuple[str, ...] | None:
    """How to run a process with mounts of its own, or None where that is forbidden."""
    if shutil.which("unshare") and shutil.which("mount"):
        for how in (("unshare", "--mount"), ("unshare", "--user", "--map-root-user", "--mount")):
            trial = [*how, "mount", "-t", "tmpfs", "trial", tempfile.gettempdir()]
            if subprocess.run(trial, capture_output=True, check=False).returncode == 0:
                return how
    return None


FULL = {"limit": FILE_LIMIT} | ({"disk": SMALL_DISK} if may_mount() else {})
UNWRITABLE = {"permissions": PERMISSIONS} | ({"mount": READ_ONLY_MOUNT} if may_mount() else {})


def run(begin: str, outage: str, program: str) -> None:
    """Run a program in a folder that every user may enter, as pytest's own is not."""
    before = (may_mount() or ()) if "mount" in outage else ()
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        # No bytecode is written: the limit on files would be met there first.
        command = [*before, sys.executable, "-B", "-c", begin + outage + program, folder]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 0, done.stderr
