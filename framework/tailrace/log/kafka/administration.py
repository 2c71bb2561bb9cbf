"""What an operator asks of a cluster: the settings of topics, changes of them, the members of groups, deletions.

Services need none of it to read and write. They ask for the settings of their topics when they start, and change nothing.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Any, Final, NamedTuple

from tailrace.core.durations import spelled
from tailrace.core.errors import LogUnavailableError
from tailrace.log.admin import MIN_INSYNC, Circumstances, Finding, Level, NeededTopic, TopicDetails
from tailrace.log.interface import TopicPartition, TopicSettings
from tailrace.log.kafka.cluster import FAILED, Cluster
from tailrace.log.kafka.library import admin_library
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
    creation_config,
    described,
)
from tailrace.log.kafka.watermarks import PUBLISHERS, WATERMARKS
from tailrace.log.options import NewTopics
from tailrace.log.tasks import Owner
from tailrace.log.topic_rules import POLICY, by_level, common_findings

_PAUSE_S: Final = 0.1
_PROCESS = re.compile(r"tailrace-(.+)-(\d+)")


class Member(NamedTuple):
    """A live member of a consumer group."""

    owner: Owner
    """Its process. ``pid`` is 0, and ``host`` the address, if the client has an id of its own choice."""
    partitions: frozenset[TopicPartition]


class KafkaAdmin:
    """Asks and changes a cluster; implements ``log.admin.Admin``. All names are without the prefix of the log."""

    deletion_refused = ""

    def __init__(
        self, cluster: Cluster, new_topics: NewTopics | None, follow: Callable[[str], object]
    ) -> None:
        self._cluster = cluster
        self._new_topics = new_topics or NewTopics()
        self._follow = follow
        """Creates the topics with the watermarks of a topic."""

    def names(self) -> Collection[str]:
        return self._cluster.names().keys()

    def details(self, topics: Iterable[str], /) -> Mapping[str, TopicDetails]:
        listed = self._cluster.listed()
        replicas = listed.topics
        found = self._cluster.config_of(one for one in dict.fromkeys(topics) if one in replicas)
        return {
            name: TopicDetails(
                described(len(replicas[name]), config), min(replicas[name], default=0), config, listed.brokers
            )
            for name, config in found.items()
        }

    def new_config(self, settings: TopicSettings, /) -> dict[str, str]:
        return creation_config(settings, self._new_topics)

    def findings(self, need: NeededTopic, found: TopicDetails, about: Circumstances, /) -> list[Finding]:
        return findings(need, found, about, self._new_topics)

    def watermark_topics(self, topic: str, /) -> Collection[str]:
        return [f"{topic}{suffix}" for suffix in (WATERMARKS, PUBLISHERS)]

    def follow(self, topics: Iterable[str], /) -> None:
        for topic in topics:
            self._follow(topic)

    def alter(self, topic: str, changes: Mapping[str, str], /) -> None:
        admin = admin_library()
        entries = [
            admin.ConfigEntry(name, value, incremental_operation=admin.AlterConfigOpType.SET)
            for name, value in changes.items()
        ]
        resource = admin.ConfigResource(
            admin.ResourceType.TOPIC, self._cluster.prefix + topic, incremental_configs=entries
        )
        self._cluster.ask(
            lambda: self._cluster.results(self._cluster.client().incremental_alter_configs, [resource]),
            f"changing settings of the topic {topic!r}",
            topic,
        )
        self._cluster.forget(topic)

    def delete_topics(self, topics: Iterable[str], /) -> None:
        """See ``Admin.delete_topics``. LogUnavailableError: the brokers still list one when the patience is over."""
        known = self._cluster.names()
        wanted = [one for one in topics if one in known]
        if not wanted:
            return
        names = [self._cluster.prefix + one for one in wanted]

        def delete() -> None:
            self._cluster.results(self._cluster.client().delete_topics, names, unless="UNKNOWN_TOPIC_OR_PART")

        self._cluster.ask(delete, "deleting topics", wanted[0])
        for one in wanted:
            self._cluster.forget(one)
        deadline = time.monotonic() + self._cluster.patience_s
        while left := self._cluster.names().keys() & wanted:
            if time.monotonic() > deadline:
                raise LogUnavailableError(
                    f"the brokers still list {', '.join(map(repr, sorted(left)))}, which were deleted",
                    hint="If something creates them again, stop it: a running service, for example. Then delete them again.",
                )
            time.sleep(_PAUSE_S)

    def members(self, group: str) -> list[Member]:
        """The live members of a group; none if there is no such group."""

        def ask() -> list[Any]:
            return self._of_group(self._cluster.client().describe_consumer_groups, group)

        (found,) = self._cluster.ask(ask, f"reading the members of the group {group!r}")
        return [] if found is FAILED else [self._member(one) for one in found.members]

    def _of_group(self, ask: Callable[..., Mapping[Any, Any]], group: str) -> list[Any]:
        return self._cluster.results(ask, [self._cluster.prefix + group], unless="GROUP_ID_NOT_FOUND")

    def _member(self, found: Any) -> Member:
        places = found.assignment.topic_partitions if found.assignment else ()
        named = _PROCESS.fullmatch(found.client_id or "")
        owner = Owner(
            int(named[2]) if named else 0,
            stopped=False,
            host=named[1] if named else str(found.host).lstrip("/"),
        )
        return Member(owner, frozenset(map(self._cluster.place, places)))

    def delete_groups(self, groups: Iterable[str], /) -> list[str]:
        done: list[str] = []
        for group in groups:

            def delete(group: str = group) -> list[Any]:
                return self._of_group(self._cluster.client().delete_consumer_groups, group)

            if self._cluster.ask(delete, f"deleting the group {group!r}") != [FAILED]:
                done.append(group)
        return done


# --- the rules of ``log.topic_rules`` that are about settings of Kafka alone

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
