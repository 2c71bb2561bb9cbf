"""The topics of one test on a broker that it shares with others."""

from __future__ import annotations

from collections.abc import Mapping

from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from tests.soak.processes import wait_until

ANSWER_S = 60.0


class Topics:
    """Creates topics with names that begin with ``prefix``. Groups and transactional ids of the test should begin with it, too."""

    def __init__(self, admin: AdminClient, prefix: str) -> None:
        self.admin = admin
        self.prefix = prefix

    def create(self, name: str, partitions: int = 1, config: Mapping[str, str] | None = None) -> str:
        """Create a topic and return its full name. Clients find its partitions from then on: the controller answers earlier."""
        full = f"{self.prefix}-{name}"
        made = self.admin.create_topics([NewTopic(full, partitions, config=dict(config or {}))])
        made[full].result(ANSWER_S)
        wait_until(
            lambda: self._partitions_with_leader(full) == partitions,
            f"all partitions of {full} have a leader",
        )
        return full

    def names(self) -> list[str]:
        """The full names of all topics with this prefix, also those that the code under test has created."""
        return [
            name
            for name in self.admin.list_topics(timeout=ANSWER_S).topics
            if name.startswith(f"{self.prefix}-")
        ]

    def delete(self) -> None:
        """Delete all topics with this prefix, and wait until clients find none."""
        if names := self.names():
            for deleted in self.admin.delete_topics(names).values():
                deleted.result(ANSWER_S)
            wait_until(lambda: not self.names(), f"the topics {self.prefix}-* are gone")

    def _partitions_with_leader(self, full: str) -> int:
        topic = self.admin.list_topics(timeout=ANSWER_S).topics.get(full)
        return sum(partition.leader >= 0 for partition in topic.partitions.values()) if topic else 0
