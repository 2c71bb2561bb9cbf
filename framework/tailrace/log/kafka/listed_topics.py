"""The topics of a cluster by name. Their settings are asked for when one is first needed.

Most callers only look for a name, which any broker tells at once. The settings of all topics are a much longer answer, and need the
right to read them (DescribeConfigs).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from tailrace.log.interface import TopicSettings
from tailrace.log.kafka.cluster import Cluster


class ListedTopics(Mapping[str, TopicSettings]):
    """What ``Log.topics`` returns."""

    def __init__(self, cluster: Cluster, names: Iterable[str]) -> None:
        self._cluster = cluster
        self._settings: dict[str, TopicSettings | None] = dict.fromkeys(names)
        """None: they were not asked for yet, or the topic was deleted before they were."""

    def __getitem__(self, topic: str) -> TopicSettings:
        found = self._settings[topic]
        if found is None:
            left = self._settings.keys() & self._cluster.names()
            self._settings.update(described := self._cluster.describe({topic, *left}))
            found = described[topic]
        return found

    def __contains__(self, topic: object) -> bool:
        return topic in self._settings

    def __iter__(self) -> Iterator[str]:
        return iter(self._settings)

    def __len__(self) -> int:
        return len(self._settings)
