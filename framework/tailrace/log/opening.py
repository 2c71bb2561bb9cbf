"""Opens the log at a place. The only module that knows which logs there are: all others know the interface."""

from __future__ import annotations

from pathlib import Path
from typing import Final, TypeAlias

from tailrace.log.embedded import EmbeddedLog
from tailrace.log.interface import StoredLog
from tailrace.log.kafka import SCHEME, KafkaLog
from tailrace.log.kafka.connection import parse_url
from tailrace.log.kafka.outages import WAITING
from tailrace.log.options import LogOptions

FolderLog: TypeAlias = EmbeddedLog
"""A log in a folder, for those who take care of its files."""
WAITING_LOGGER: Final = f"tailrace.kafka.{WAITING}"
"""The logger of what a command waits for, if a log does not answer."""


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
