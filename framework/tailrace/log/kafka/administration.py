"""What an operator asks of a cluster: the settings of topics, changes of them, the members of groups, deletions.

Services need none of it to read and write. They ask for the settings of their topics when they start, and change nothing.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, Final, NamedTuple

from tailrace.core.errors import LogUnavailableError
from tailrace.log.admin import Circumstances, Finding, NeededTopic, TopicDetails
from tailrace.log.interface import TopicPartition, TopicSettings
from tailrace.log.kafka.cluster import FAILED, Cluster
from tailrace.log.kafka.library import admin_library
from tailrace.log.kafka.topic_config import creation_config, described
from tailrace.log.kafka.topic_rules import findings
from tailrace.log.kafka.watermarks import PUBLISHERS, WATERMARKS
from tailrace.log.options import NewTopics
from tailrace.log.tasks import Owner

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

    # --- groups

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
