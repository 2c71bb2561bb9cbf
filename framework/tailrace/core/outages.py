"""Outages that the operating system reports by number: what has failed, and what to do."""

from __future__ import annotations

import errno
from typing import Final

DISK_FULL: Final = ("the disk is full", "Make room")
DISK_FAILS: Final = ("the disk fails", "Look at the kernel's log, and repair or replace the disk")
OUTAGES: Final = {
    errno.ENOSPC: DISK_FULL,
    errno.EDQUOT: ("the disk quota is used up", "Raise the quota"),
    errno.EFBIG: (
        "a file has reached the size that the process or the file system allows",
        "Raise the limit",
    ),
    errno.EROFS: ("the file system is read-only", "Mount it for writing"),
    errno.EACCES: ("permission is denied", "Give this user permission"),
    errno.EPERM: ("permission is denied", "Give this user permission"),
    errno.EMFILE: ("the process has too many open files", "Raise its limit (ulimit -n)"),
    errno.ENFILE: ("the machine has too many open files", "Raise its limit"),
    errno.EIO: DISK_FAILS,
}
