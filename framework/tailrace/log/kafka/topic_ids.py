"""Finds topics that were deleted and created again while a process worked with them.

An offset means a record of one topic. If the topic is deleted and another one gets its name, the clients of librdkafka continue in
the new topic at the old offset, and report nothing: the records before that offset are never read, and a record that a
transaction has sent to the old topic is lost, although the commit succeeds.

Kafka gives each topic an id (KIP-516), which is never used again. So the ids of the topics that a process works with are remembered,
and asked for again within each commit, after the last record of the transaction was read and sent. If an id is still the same,
everything in the transaction was read from, and written to, the topic that was there at the start. If not, the commit is refused.
The question is on its way while the transaction's records are sent, so it hardly delays the commit.

What happens while no process runs is found by the next start, from the ids in the changelog: see ``log.same_topics``.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Mapping
from concurrent.futures import Future
from typing import Any, Final

from tailrace.core.errors import OtherHistoryError, TopicMismatchError, UnknownTopicError
from tailrace.log.kafka.cluster import Cluster
from tailrace.log.kafka.failures import kafka_error, passes
from tailrace.log.kafka.watermarks import PUBLISHERS, WATERMARKS

SURE_S: Final = 3.0
"""A topic is taken for deleted when brokers do not know it for so long: one that starts may not know all topics yet."""
_PAUSE_S: Final = 0.2
_LOOK_S: Final = 5.0
_WHEN_REPLACED: Final = (
    "The app has read the old topic up to its last commit, and its offsets mean other records in the new one. To begin again with "
    "the new topic, run the app under another name, or delete all of the app's own topics and its consumer group, too."
)
_WHEN_PUBLISHED: Final = "Start the service again: it continues with the new topic."
_WHEN_WRITTEN: Final = (
    "Start the service again: it only writes to this topic, and spreads its outputs over all partitions then."
)
_WHEN_CHANGED: Final = (
    "A key may be in another partition than its state. Create a new topic with the new number, send all records through it, and run "
    "the app with partitions= the new number under another name (docs/kafka.md, 'Another number of partitions')."
)


class WatchedTopics:
    """The topics that a process works with, and their ids at the first look. For several threads."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._mutex = threading.Lock()
        self._known: dict[str, tuple[str, int]] = {}
        """By topic, its id and its number of partitions at the first look."""
        self.read = set[str]()
        """Topics whose records this process takes; it only writes to the others."""
        self._looked_at, self._looking = time.monotonic(), dict[str, Future[Any]]()

    def ids(self, topics: Iterable[str]) -> dict[str, str]:
        """The ids that topics had at the first look. From then on they are compared with these.
        Raises UnknownTopicError: one of them does not exist.
        """
        wanted = list(topics)
        with self._mutex:
            new = [topic for topic in wanted if topic not in self._known]
        found = self._cluster.ids(new) if new else {}
        with self._mutex:
            known = self._known = {**found, **self._known}
            return {topic: known[topic][0] for topic in wanted}

    def now(self, topics: Iterable[str]) -> dict[str, str]:
        """The present ids of topics, without those that do not exist."""
        names = self._cluster.names()
        found = self._cluster.ids([topic for topic in topics if topic in names])
        return {topic: id_ for topic, (id_, _) in found.items()}

    def ask(self) -> Mapping[str, Future[Any]]:
        """Ask for the present ids, without waiting."""
        return self._cluster.ask_ids(self._known) if self._known else {}

    def check(self, asked: Mapping[str, Future[Any]]) -> None:
        """Wait for the answer to ``ask``, and compare.

        Raises:
            OtherHistoryError: A topic has another id.
            TopicMismatchError: A topic has another number of partitions.
            UnknownTopicError: A topic does not exist any more.
            LogUnavailableError: Brokers do not answer.
        """
        for topic, (now, partitions) in self._present(asked).items():
            known, count = self._known[topic]
            if now != known:
                raise OtherHistoryError(
                    "the topic was deleted and created again while this process was working with it: nothing of the new topic was "
                    "committed",
                    why="topic",
                    topic=topic,
                    hint=_WHEN_PUBLISHED if topic.endswith((WATERMARKS, PUBLISHERS)) else _WHEN_REPLACED,
                )
            if partitions != count:
                is_read = topic in self.read
                raise TopicMismatchError(
                    f"the topic had {count} partitions and has {partitions} now: its producers spread keys over all of them, and this "
                    f"process {'reads' if is_read else 'writes to'} the former ones",
                    topic=topic,
                    hint=_WHEN_CHANGED if is_read else _WHEN_WRITTEN,
                )

    def look(self) -> None:
        """Check now and then, without waiting, for a process that has nothing to commit. Raises what ``check`` raises."""
        if self._looking:
            if all(one.done() for one in self._looking.values()):
                asked, self._looking = self._looking, {}
                if not any(map(_passes, asked.values())):
                    self.check(asked)
        elif time.monotonic() - self._looked_at > _LOOK_S:
            self._looked_at, self._looking = time.monotonic(), dict(self.ask())

    def _present(self, asked: Mapping[str, Future[Any]]) -> dict[str, tuple[str, int]]:
        deadline = time.monotonic() + SURE_S
        answers: Mapping[str, Future[Any]] | None = asked
        while True:
            try:
                return self._cluster.ids(asked, answers)
            except UnknownTopicError as error:
                if time.monotonic() > deadline:
                    error.hint = (
                        error.hint or "It was there when this process started. Find out what has deleted it."
                    )
                    raise
                answers = None
                time.sleep(_PAUSE_S)


def _passes(asked: Future[Any]) -> bool:
    """Whether a question was not answered, and may be later."""
    error = asked.exception()
    return error is not None and passes(kafka_error(error))
