"""How a process uses a log: one set of options, of which each log reads those that concern it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, NamedTuple, TypeAlias

from tailrace.core.errors import UsageError
from tailrace.core.records import MAX_RECORD_BYTES

FsyncPolicy: TypeAlias = Literal["interval", "commit"]


class NewTopics(NamedTuple):
    """How topics are created that are not there. None: as the brokers' defaults say."""

    replication: int | None = None
    min_insync: int | None = None


@dataclass(frozen=True, slots=True)
class LogOptions:
    """Options of a process. Processes on one log may use different ones. Can be pickled.

    ``fsync`` decides what survives a power loss in a folder. A kill never loses a commit. "commit": all commits survive.
    "interval": all but those of about the last ``fsync_interval_s``. In both cases the log ends with a complete commit.
    """

    max_record_bytes: int = MAX_RECORD_BYTES
    """Size limit of an event, key and value together. An event over it fails the handler that emits it."""
    patience_s: float = 60.0
    """How long to wait for the holder of the append lock, or for brokers that do not answer."""

    fsync: FsyncPolicy = "interval"
    fsync_interval_s: float = 1.0
    compaction_bytes: int = 16 << 20
    """In a folder, compaction is not due before this much was added to compacted topics since the last one."""

    settings: Mapping[str, str] | None = None
    """Settings of librdkafka, see ``log.kafka.connection``."""
    hidden_s: float = 10.0
    """How long a reader of history waits for the end of a transaction that hides records."""
    group: str = "tailrace"
    """The consumer group that readers name to the brokers. They commit nothing in it."""
    new_topics: NewTopics | None = None
    """Replication of topics that are created on Kafka (default: that of the brokers)."""

    def __post_init__(self) -> None:
        if self.fsync not in ("interval", "commit"):
            raise UsageError(f"fsync is {self.fsync!r}", hint='Write "interval" or "commit".')
