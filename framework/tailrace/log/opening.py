"""Opens logs. The only module that knows which logs there are: all others know the interface.

A service runs on the log at a place (``open_log``). A reader of history opens a *past* (``open_past``): a log, an archive of
it, or both as one history. It does not see which of these it reads.
"""

from __future__ import annotations

import logging
from functools import cache
from pathlib import Path
from typing import Final, Self, TypeAlias

import msgspec

from tailrace.core.errors import OptionError
from tailrace.log.embedded import EmbeddedLog
from tailrace.log.interface import EVERYTHING, OneCommitLog, RecordFilter, StoredLog
from tailrace.log.kafka import SCHEME, KafkaLog
from tailrace.log.kafka.connection import parse_url
from tailrace.log.kafka.outages import WAITING
from tailrace.log.options import LogOptions

FolderLog: TypeAlias = EmbeddedLog
"""A log in a folder, for those who take care of its files."""
WAITING_LOGGER: Final = f"tailrace.kafka.{WAITING}"
"""The logger of what a command waits for, if a log does not answer."""

_logger = logging.getLogger("tailrace.log")


def is_url(place: object) -> bool:
    """Whether a place is the URL of a Kafka cluster, and not a folder."""
    return isinstance(place, str) and place.startswith(SCHEME)


def check_url(place: str) -> None:
    """Check the form of a URL. Raises OptionError: it has no address, or a wrong one."""
    parse_url(place)


def open_log(place: str | Path, options: LogOptions | None = None, *, create: bool = False) -> StoredLog:
    """The log in a folder, or at the URL of a Kafka cluster (``kafka://host:9092,…``). The caller must close it.

    A folder must hold a log, unless ``create`` is true. Brokers are not asked before the first call.

    Raises:
        LogUnavailableError: The folder holds no log, and ``create`` is false.
        ForeignLogError, FormatError, CorruptLogError, LogUnavailableError: See ``log.embedded.EmbeddedLog``.
        OptionError, MissingExtraError: See ``log.kafka.KafkaLog``.
    """
    if is_url(place):
        return KafkaLog(str(place), options)
    return EmbeddedLog(place, options, create=create)


class Past(msgspec.Struct, frozen=True, kw_only=True):
    """Where history is read. A value, which can be pickled and encoded: any process opens the same history by it.

    With an archive, the log may be left out, or its folder be missing: then the archive alone is the history.
    """

    log: str | None = None
    """Folder of the log, or the URL of a Kafka cluster."""
    archive: str | None = None
    """URI of an archive of the log, for records that the log has deleted."""

    def absolute(self) -> Self:
        """The same for a process with another working folder."""
        return msgspec.structs.replace(self, log=_absolute(self.log), archive=_absolute(self.archive))


def _absolute(place: str | None) -> str | None:
    return place if place is None or "://" in place else str(Path(place).absolute())


@cache
def _tell_missing(folder: str) -> None:  # once, as each unit of a rebuild opens its past
    _logger.warning("there is no log in %r: its archive alone is read, up to its end", folder)


def open_past(past: Past, wanted: RecordFilter = EVERYTHING) -> OneCommitLog:
    """The history at a past, which is only read. The caller must close it.

    Raises:
        OptionError: Neither a log nor an archive is named.
        LogUnavailableError, ArchiveError: One of them is not there, or cannot be read.
        Else what ``open_log`` raises.
    """
    if past.archive is None:
        if past.log is None:
            raise OptionError("neither a log nor an archive is named", hint="Name one of them, or both.")
        return open_log(past.log)
    from tailrace.log.archive import Archive, ArchivedLog  # noqa: PLC0415 (a fifth of a process's start, and few need it)

    archive, log = Archive.at(past.archive), None
    if past.log is not None and (is_url(past.log) or Path(past.log).is_dir()):
        log = open_log(past.log)
    elif past.log is not None:
        _tell_missing(past.log)
    try:
        return ArchivedLog(log, archive, wanted)
    except BaseException:
        if log is not None:
            log.close()
        raise
