"""The rules of ``log.topic_rules`` that are about settings of Kafka alone."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from tailrace.core.durations import spelled
from tailrace.log.admin import MIN_INSYNC, Circumstances, Finding, Level, NeededTopic, TopicDetails
from tailrace.log.kafka.topic_config import (
    AFTER_MS,
    BEFORE_MS,
    DELETIONS_KEPT_MS,
    DELETIONS_MS,
    LAG_MS,
    LARGEST,
    MAX_BYTES,
    RECORD_BYTES,
    TIME_TYPE,
    UNCLEAN,
)
from tailrace.log.kafka.watermarks import PUBLISHERS
from tailrace.log.options import NewTopics
from tailrace.log.topic_rules import POLICY, by_level, common_findings

REPLICAS: Final = "replication factor"
_GOOD_REPLICAS: Final = 3
_EVENT_BYTES: Final = 1 << 20


def findings(
    need: NeededTopic, found: TopicDetails, about: Circumstances, new_topics: NewTopics
) -> list[Finding]:
    """All that is to say of an existing topic, most important first."""
    said = [*common_findings(need, found, about), *_deletions(need, found)]
    if need.role != "input":
        if need.is_keyless and found.settings.compacted:
            why = "its records have no key, so they are refused, and the task ends"
            said.append(_setting(need, POLICY, found.config[POLICY], "delete", why, "error"))
        said += [*_times(need, found), *_replicas(need, found, new_topics), *_limits(need, found, about)]
    return by_level(said)


def _deletions(need: NeededTopic, found: TopicDetails) -> Iterator[Finding]:
    if not need.settings.compacted:
        return
    kept_ms = int(found.config.get(DELETIONS_MS, DELETIONS_KEPT_MS))
    if kept_ms < DELETIONS_KEPT_MS:
        kept = "rows" if need.is_internal else "keys"
        why = f"a process that was away for longer would keep {kept} that were deleted"
        level: Level = "error" if need.is_internal else "warning"
        yield _setting(need, DELETIONS_MS, str(kept_ms), str(DELETIONS_KEPT_MS), why, level)


def _times(need: NeededTopic, found: TopicDetails) -> Iterator[Finding]:
    if (kind := found.config[TIME_TYPE]) != "CreateTime":
        why = "records get the time of the broker in place of their event time"
        level: Level = "warning" if need.role == "output" else "error"
        yield _setting(need, TIME_TYPE, kind, "CreateTime", why, level)
    for name, says in ((BEFORE_MS, "older"), (AFTER_MS, "further in the future")):
        limit_ms = found.config.get(name, LARGEST)
        if limit_ms != LARGEST:
            why = f"records with an event time {says} than {spelled(int(limit_ms))} are refused, and the task ends"
            yield _setting(need, name, limit_ms, LARGEST, why)


def _replicas(need: NeededTopic, found: TopicDetails, new_topics: NewTopics) -> Iterator[Finding]:
    replicas = found.replicas or 0
    wanted = new_topics.replication or min(_GOOD_REPLICAS, found.brokers)
    if replicas < wanted:
        why = "if that many brokers lose their disks, committed records are lost"
        fix = "add replicas with kafka-reassign-partitions.sh"
        yield Finding("warning", REPLICAS, str(replicas), str(wanted), why, fix)
    in_sync = int(found.config[MIN_INSYNC])
    least = new_topics.min_insync or (2 if replicas >= _GOOD_REPLICAS else 1)
    if in_sync > replicas:
        why = f"with replication factor {replicas} nothing can be written"
        yield Finding("error", MIN_INSYNC, str(in_sync), str(least), why, _by_hand(MIN_INSYNC, str(least)))
    elif in_sync < least:
        why = f"a commit may be on {in_sync} of {replicas} brokers only, and is lost with it"
        yield _setting(need, MIN_INSYNC, str(in_sync), str(least), why)
    if found.config[UNCLEAN] != "false":
        why = "a broker without the last commits may become the leader, and they are lost"
        yield _setting(need, UNCLEAN, found.config[UNCLEAN], "false", why)


def _limits(need: NeededTopic, found: TopicDetails, about: Circumstances) -> Iterator[Finding]:
    size = int(found.config[MAX_BYTES])
    if need.is_internal and size < RECORD_BYTES:
        why = "large rows of state, or a large commit on the tape, are refused, and the task ends"
        yield _setting(need, MAX_BYTES, str(size), str(RECORD_BYTES), why)
    if not need.is_internal and size < _EVENT_BYTES:
        why = "larger events are refused, and the task ends: raise it, or set --max-record-bytes to some hundred bytes less"
        yield _setting(need, MAX_BYTES, str(size), str(_EVENT_BYTES), why)
    if about.followed is not None and not need.name.endswith(PUBLISHERS):  # of that, the last ones count
        kept_ms = about.followed.retention_ms
        wanted = LARGEST if kept_ms is None else str(kept_ms)
        if int(lag := found.config[LAG_MS]) < int(wanted):
            why = "a reader that is behind may miss watermarks that hold there"
            yield _setting(need, LAG_MS, lag, wanted, why)


def _setting(
    need: NeededTopic, setting: str, found: str, wanted: str, why: str, level: Level = "warning"
) -> Finding:
    """A setting that ``apply`` changes in internal topics alone."""
    theirs = f"the app declares this topic, and others may use it: {_by_hand(setting, wanted)}"
    fix = "" if need.is_internal else theirs
    return Finding(level, setting, found, wanted, why, fix, is_safe=need.is_internal)


def _by_hand(setting: str, value: str) -> str:
    return f"kafka-configs.sh --alter --add-config {setting}={value}"
