"""Opens history at the places that a user names: a log, an archive of a log, or both."""

from __future__ import annotations

from pathlib import Path

from tailrace.core.errors import OptionError
from tailrace.log.archive import Archive, ArchivedLog
from tailrace.log.interface import OneCommitLog
from tailrace.log.opening import open_log
from tailrace.state.snapshots import Place


def open_archive(uri: str) -> Archive:
    """The archive at a URI or path, which need not exist. Raises MissingExtraError or ArchiveError."""
    return Archive(Place.at(uri))


def open_history(log: str | Path | None, archive: str | None = None) -> OneCommitLog:
    """A log together with an archive of it, or one of the two alone. It is only read.
    Raises OptionError, CorruptLogError, ForeignLogError, LogUnavailableError or MissingExtraError.
    """
    if archive is None:
        if log is None:
            raise OptionError("neither a log nor an archive is named", hint="Name one of them, or both.")
        return open_log(log)
    found = open_archive(archive)
    opened = None if log is None else open_log(log)
    try:
        return ArchivedLog(found, opened)
    except BaseException:
        if opened is not None:
            opened.close()
        raise
