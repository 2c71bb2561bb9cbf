"""A small disk of a soak's own, which can be made full. Only where a process may have mounts of its own."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.runtime.processes import wait_until
from tests.state.outages import may_mount

_INSIDE = "SOAK_HAS_MOUNTS_OF_ITS_OWN"


@dataclass(frozen=True, slots=True)
class Disk:
    """A small file system of its own, which can be made full."""

    mounted_at: Path
    bytes: int

    def fill(self) -> None:
        """Leave hardly any room."""

        def filled() -> bool:
            # Refused if more has been written since it was looked at.
            return self._resize(shutil.disk_usage(self.mounted_at).used + 4096)

        wait_until(filled, "the disk is full")

    def relieve(self) -> None:
        """Give the room back."""
        assert self._resize(self.bytes), "the disk cannot be made larger"

    def _resize(self, size: int) -> bool:
        command = ["mount", "-o", f"remount,size={size}", str(self.mounted_at)]
        return subprocess.run(command, capture_output=True, check=False).returncode == 0


def continue_with_mounts(module: str) -> None:
    """Run ``python -m module`` with the same arguments and mounts of its own, instead of this process, where that is allowed."""
    how = may_mount() if _INSIDE not in os.environ else None
    if how is not None:
        os.environ[_INSIDE] = "1"
        os.execvp(how[0], [*how, sys.executable, "-m", module, *sys.argv[1:]])


@contextmanager
def mounted(folder: Path, size: int) -> Generator[Disk | None]:
    """A new folder with a disk of ``size`` bytes; with None where mounting is not allowed."""
    folder.mkdir()
    if _INSIDE not in os.environ:
        yield None
        return
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "soak", str(folder)], check=True)
    try:
        yield Disk(folder, size)
    finally:
        subprocess.run(["umount", str(folder)], check=True)
