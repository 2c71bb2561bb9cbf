"""Notices that a file of the log was deleted or replaced while this process has it open.

SQLite continues with the file that it has open, and what it writes to it is lost. So a writer looks in each
turn, before anything else is checked, and a reader once a second.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from tailrace.core.errors import CorruptLogError
from tailrace.log.embedded.failures import failing


class OpenFiles:
    """The files of a log that a connection has open. The first check notes which they are."""

    def __init__(self, folder: Path, names: Iterable[str]) -> None:
        self._folder = folder
        self._paths = [folder / name for name in names]
        self._inodes: dict[Path, int] = {}

    def check(self) -> None:
        """Check that the files are still those of the log.

        Raises:
            CorruptLogError: One was deleted or replaced.
            LogUnavailableError: The folder cannot be read.
        """
        with failing(self._folder, "looking at the log's files"):
            found = {path: _inode(path) for path in self._paths}
        wrong = [path.name for path, inode in self._inodes.items() if inode not in (0, found[path])]
        if wrong:
            raise CorruptLogError(
                f"{', '.join(wrong)}: deleted or replaced while this process had the log open",
                path=str(self._folder),
                hint="End all processes of the log, and start them again. If commits are lost, the start reports it.",
            )
        self._inodes = found

    def forget(self) -> None:
        """Forget the files: the connection is closed."""
        self._inodes = {}


def _inode(path: Path) -> int:
    """The inode of a file; 0 if there is none yet: a copy of a log has no WAL before it is written to."""
    try:
        return path.stat().st_ino
    except FileNotFoundError:
        return 0
