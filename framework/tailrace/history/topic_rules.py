"""The rules for the topics of an app: how each must be set, what a deviation endangers, and how it is corrected.

``plan`` and ``apply`` of ``tailrace topics`` and the start of a service on Kafka go by this table. On the embedded log only the first
two rows apply. *Internal* are all topics that the app alone uses; it *writes* these, its outputs and its in-app topics.

=================================  =====================  =========================================  =========  ==================
setting                            of                     must be                                    deviation  apply changes it
=================================  =====================  =========================================  =========  ==================
partitions                         all but outputs        those of the app; 1 of watermarks          error      never
cleanup.policy                     internal               compact: changelog, watermarks, redriven;  error      if empty, or with
                                                          else delete                                           --change-cleanup
retention.ms, retention.bytes      internal               -1                                         error      yes: it keeps more
delete.retention.ms                internal, compacted    1 day or more                              error      yes
message.timestamp.type             internal               CreateTime                                 error      yes
                                   in-app                 CreateTime                                 error      no
                                   outputs                CreateTime                                 warning    no
message.timestamp.…max.ms          written                without limit                              warning    internal ones
max.message.bytes                  internal               32 MiB or more                             warning    yes
min.compaction.lag.ms              watermarks             the retention of their topic               warning    yes
unclean.leader.election.enable     written                false                                      warning    internal ones
replication factor                 written                3, or as many as there are brokers;        warning    never
                                                          or --replication
min.insync.replicas                written                2 of 3 replicas, 1 of fewer; or            warning    internal ones, to
                                                          --min-insync                                          more
                                   written                at most the number of replicas             error      no
cleanup.policy, retention.ms, …    inputs, in-app         any: but history is replayable only as     note       no
                                                          far back as records are kept
=================================  =====================  =========================================  =========  ==================

``apply`` never changes a topic that an app declares: others may use it, too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final, Literal, NamedTuple, TypeAlias

import msgspec

from tailrace.core.durations import spelled
from tailrace.history.app_topics import NeededTopic
from tailrace.log.interface import TopicSettings
from tailrace.log.kafka import TopicDetails
from tailrace.log.kafka.topic_config import (
    AFTER_MS,
    BEFORE_MS,
    DELETIONS_KEPT_MS,
    DELETIONS_MS,
    LAG_MS,
    LARGEST,
    MAX_BYTES,
    MIN_INSYNC,
    POLICY,
    RECORD_BYTES,
    RETENTION_BYTES,
    RETENTION_MS,
    TIME_TYPE,
    UNCLEAN,
)
from tailrace.log.options import NewTopics

Level: TypeAlias = Literal["error", "warning", "note"]
REPLICAS: Final = "replication factor"
PARTITIONS: Final = "partitions"
_GOOD_REPLICAS: Final = 3
_NEVER_DELETED: Final = "-1"


class Finding(msgspec.Struct, frozen=True):
    """A setting of a topic that is not as it must be; or, as a ``note``, one that the operator should know."""

    level: Level
    setting: str
    found: str
    wanted: str
    why: str
    """What it endangers."""
    fix: str = ""
    """What to do about it, if ``apply`` does not change it."""
    is_safe: bool = False
    """Whether ``apply`` changes it."""

    def __str__(self) -> str:
        """For a person: ``retention.ms is 604800000, and must be -1: …``."""
        must = f", and must be {self.wanted}" if self.wanted else ""
        return f"{self.setting} is {self.found}{must}: {self.why}"


class Circumstances(NamedTuple):
    """What the rules need to know beside the topic."""

    app: str
    brokers: int
    new_topics: NewTopics
    is_empty: Callable[[str], bool]
    """Whether a topic has never had a record."""
    followed: TopicSettings | None = None
    """The topic that a topic of watermarks is about."""
    place: str = ""
    """The URL of the log, for commands in messages."""


def findings(need: NeededTopic, found: TopicDetails, about: Circumstances) -> list[Finding]:
    """All that is to say of an existing topic, most important first."""
    said = [*_partitions(need, found, about)]
    if need.is_internal:
        said += _kept(need, found, about)
    elif need.role != "output":
        said += _history(found)
    if found.config and need.role != "input":
        said += [*_times(need, found, about), *_replicas(need, found, about), *_limits(need, found, about)]
    return sorted(said, key=lambda one: ("error", "warning", "note").index(one.level))


def _by_hand(about: Circumstances, topic: str, setting: str, value: str) -> str:
    """The command of Kafka that changes a setting."""
    addresses, _, prefix = about.place.partition("://")[2].partition("/")
    return (
        f"kafka-configs.sh --bootstrap-server {addresses} --alter --entity-type topics --entity-name {prefix}{topic} "
        f"--add-config {setting}={value}"
    )


def _partitions(need: NeededTopic, found: TopicDetails, about: Circumstances) -> Iterator[Finding]:
    wanted = need.settings.partitions
    if need.role == "output" or found.settings.partitions == wanted:
        return
    yield Finding(
        "error",
        PARTITIONS,
        str(found.settings.partitions),
        str(wanted),
        f"the keys of {about.app!r} are spread over {wanted} tasks, and task p reads partition p of every input",
        "partitions are never changed: other keys would be in them. "
        + (
            f"Give the app partitions={found.settings.partitions} again, or another name"
            if need.is_internal
            else f"Give the app partitions={found.settings.partitions}, or copy the topic into one with {wanted} partitions"
        )
        + " (docs/kafka.md, 'Another number of partitions')",
    )


def _kept(need: NeededTopic, found: TopicDetails, about: Circumstances) -> Iterator[Finding]:
    """What is deleted of an internal topic."""
    wanted, config = need.settings, found.config
    policy = config.get(POLICY, "compact" if found.settings.compacted else "delete")
    must = "compact" if wanted.compacted else "delete"
    if policy != must:
        danger = (
            "rows that have not changed for long are deleted"
            if wanted.compacted
            else "records are lost that are needed"
        )
        both = wanted.compacted and "compact" in policy
        safe = bool(config) and (both or about.is_empty(need.name))
        fix = (
            ""
            if safe
            else "the topic has data, and some of it may be lost already: look, then run `tailrace topics apply --change-cleanup`"
        )
        yield Finding("error", POLICY, policy, must, danger, fix, is_safe=safe)
    if wanted.compacted:
        kept_ms = int(config.get(DELETIONS_MS, DELETIONS_KEPT_MS))
        if kept_ms < DELETIONS_KEPT_MS:
            why = "a process that was away for longer would keep rows that were deleted"
            yield Finding("error", DELETIONS_MS, str(kept_ms), str(DELETIONS_KEPT_MS), why, is_safe=True)
        return
    for name, limit in (
        (RETENTION_MS, found.settings.retention_ms),
        (RETENTION_BYTES, found.settings.retention_bytes),
    ):
        if limit is not None:
            why = "records are deleted that a replay, or the app itself, needs"
            yield Finding("error", name, str(limit), _NEVER_DELETED, why, is_safe=True)


def _history(found: TopicDetails) -> Iterator[Finding]:
    """How far back the history of an input goes by its settings."""
    one = found.settings
    if one.compacted:
        why = "only the last record of each key is kept, so a replay from the beginning has fewer records than the app has read"
        yield Finding("note", POLICY, found.config.get(POLICY, "compact"), "", why)
    if one.retention_ms is not None:
        why = f"history is replayable for {spelled(one.retention_ms)} by the records' timestamps"
        yield Finding("note", RETENTION_MS, str(one.retention_ms), "", why)
    if one.retention_bytes is not None:
        why = "history is replayable as far back as this size of a partition goes"
        yield Finding("note", RETENTION_BYTES, str(one.retention_bytes), "", why)


def _times(need: NeededTopic, found: TopicDetails, about: Circumstances) -> Iterator[Finding]:
    if (kind := found.config[TIME_TYPE]) != "CreateTime":
        yield _setting(
            need,
            about,
            TIME_TYPE,
            kind,
            "CreateTime",
            "records get the time of the broker in place of their event time",
            level="warning" if need.role == "output" else "error",
        )
    for name, says in ((BEFORE_MS, "older"), (AFTER_MS, "further in the future")):
        limit_ms = found.config.get(name, LARGEST)
        if limit_ms != LARGEST:
            why = f"records with an event time {says} than {spelled(int(limit_ms))} are refused, and the task ends"
            yield _setting(need, about, name, limit_ms, LARGEST, why)


def _replicas(need: NeededTopic, found: TopicDetails, about: Circumstances) -> Iterator[Finding]:
    wanted = about.new_topics.replication or min(_GOOD_REPLICAS, about.brokers)
    if found.replicas < wanted:
        yield Finding(
            "warning",
            REPLICAS,
            str(found.replicas),
            str(wanted),
            "if that many brokers lose their disks, committed records are lost",
            "add replicas with kafka-reassign-partitions.sh",
        )
    in_sync = int(found.config[MIN_INSYNC])
    least = about.new_topics.min_insync or (2 if found.replicas >= _GOOD_REPLICAS else 1)
    if in_sync > found.replicas:
        yield Finding(
            "error",
            MIN_INSYNC,
            str(in_sync),
            str(least),
            f"with replication factor {found.replicas} nothing can be written",
            _by_hand(about, need.name, MIN_INSYNC, str(least)),
        )
    elif in_sync < least:
        why = f"a commit may be on {in_sync} of {found.replicas} brokers only, and is lost with it"
        yield _setting(need, about, MIN_INSYNC, str(in_sync), str(least), why)
    if found.config[UNCLEAN] != "false":
        why = "a broker without the last commits may become the leader, and they are lost"
        yield _setting(need, about, UNCLEAN, found.config[UNCLEAN], "false", why)


def _limits(need: NeededTopic, found: TopicDetails, about: Circumstances) -> Iterator[Finding]:
    if need.is_internal and (size := int(found.config[MAX_BYTES])) < RECORD_BYTES:
        why = "large rows of state, or a large commit on the tape, are refused, and the task ends"
        yield _setting(need, about, MAX_BYTES, str(size), str(RECORD_BYTES), why)
    if about.followed is not None:
        kept_ms = about.followed.retention_ms
        wanted = LARGEST if kept_ms is None else str(kept_ms)
        if int(lag := found.config[LAG_MS]) < int(wanted):
            why = "a reader that is behind may miss watermarks that hold there"
            yield _setting(need, about, LAG_MS, lag, wanted, why)


def _setting(
    need: NeededTopic,
    about: Circumstances,
    setting: str,
    found: str,
    wanted: str,
    why: str,
    *,
    level: Level = "warning",
) -> Finding:
    """A setting that ``apply`` changes in internal topics alone."""
    safe = need.is_internal
    fix = (
        ""
        if safe
        else f"the app declares this topic, and others may use it: {_by_hand(about, need.name, setting, wanted)}"
    )
    return Finding(level, setting, found, wanted, why, fix, is_safe=safe)
