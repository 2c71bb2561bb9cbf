"""What a log in a folder has besides the interface: its files, of which nobody else takes care."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from tailrace.log.interface import Cleaned, StoredLog


@dataclass(frozen=True, slots=True)
class Copied:
    """A copy of a log."""

    topics: int
    commits: int
    """Number of the last commit that the copy has."""
    bytes: int
    """Size of its file."""


class FolderLog(StoredLog, Protocol):
    """A log in a folder. See ``log.embedded.EmbeddedLog``."""

    def set_retention(self, topic: str, /, *, retention_ms: int | None, retention_bytes: int | None) -> None:
        """Change for how long, or up to which size, a topic's records are kept."""
        ...

    def clean(
        self, *, now_ms: int | None = None, deletions_kept_ms: int = 86_400_000, least_gain: float = 0.1
    ) -> Cleaned:
        """See ``ServiceLog.clean``."""
        ...

    def cleaning_is_due(self, *, now_ms: int | None = None, least_gain: float = 0.1) -> bool:
        """See ``ServiceLog.cleaning_is_due``."""
        ...

    def verify(self) -> None:
        """Read the whole log and check it. CorruptLogError if anything is damaged."""
        ...

    def copy_to(self, folder: Path | str) -> Copied:
        """Copy the log, as of one moment, to a folder that does not exist or is empty."""
        ...
