"""The settings of topics on Kafka: those that a new topic is created with, and what those of one that exists mean for a log.

Topics that are created here keep all that the settings say: Kafka deletes by the records' timestamps, which are event times here,
so a topic without a limit has ``retention.ms=-1``. Brokers refuse timestamps of more than an hour in the future by default; event
times may be. Records of state and of the tape can be large.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from tailrace.core.errors import OptionError
from tailrace.log.admin import MIN_INSYNC
from tailrace.log.interface import TopicSettings
from tailrace.log.options import NewTopics
from tailrace.log.topic_rules import POLICY, RETENTION_BYTES, RETENTION_MS

_FOREVER: Final = "-1"
LARGEST: Final = str(2**63 - 1)
RECORD_BYTES: Final = 32 << 20
"""Size limit of a batch in topics that are created here."""
DELETIONS_KEPT_MS: Final = 86_400_000
"""A restore trusts half of it: a process that was away for less has missed no deletion of a row."""
_UNTOUCHED_MS: Final = 600_000
"""For so long a compacted topic stays as it is behind the moment from which it is read; see ``KafkaLog.compaction_paused``."""
MAX_BYTES, TIME_TYPE, UNCLEAN = (
    "max.message.bytes",
    "message.timestamp.type",
    "unclean.leader.election.enable",
)
BEFORE_MS, AFTER_MS = "message.timestamp.before.max.ms", "message.timestamp.after.max.ms"
DELETIONS_MS, LAG_MS = "delete.retention.ms", "min.compaction.lag.ms"


def creation_config(settings: TopicSettings, new_topics: NewTopics | None = None) -> dict[str, str]:
    """The settings that a new topic is created with."""
    if settings.compacted and (settings.retention_ms is not None or settings.retention_bytes is not None):
        raise OptionError(
            "a compacted topic keeps the last record of each key, however old",
            hint="Give a retention or compaction, not both.",
        )
    return {
        POLICY: "compact" if settings.compacted else "delete",
        RETENTION_MS: _FOREVER if settings.retention_ms is None else str(settings.retention_ms),
        RETENTION_BYTES: _FOREVER if settings.retention_bytes is None else str(settings.retention_bytes),
        **({LAG_MS: str(_UNTOUCHED_MS), DELETIONS_MS: str(DELETIONS_KEPT_MS)} if settings.compacted else {}),
        TIME_TYPE: "CreateTime",
        BEFORE_MS: LARGEST,
        AFTER_MS: LARGEST,
        MAX_BYTES: str(RECORD_BYTES),
        UNCLEAN: "false",
        **({MIN_INSYNC: str(new_topics.min_insync)} if new_topics and new_topics.min_insync else {}),
    }


def described(partitions: int, config: Mapping[str, str]) -> TopicSettings:
    """The settings of a topic, by what the brokers say of it."""
    policies = config[POLICY].split(",")
    deletes = "delete" in policies
    limit_ms, limit_bytes = int(config[RETENTION_MS]), int(config[RETENTION_BYTES])
    return TopicSettings(
        partitions,
        compacted="compact" in policies,
        retention_ms=limit_ms if deletes and limit_ms >= 0 else None,
        retention_bytes=limit_bytes if deletes and limit_bytes >= 0 else None,
    )
