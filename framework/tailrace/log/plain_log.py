"""What logs without brokers have in common: their topics are never deleted, and their tasks do not move."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Generator, Iterable, Mapping
from contextlib import closing, contextmanager

from tailrace.core.records import Headers, Output
from tailrace.log.interface import TopicPartition
from tailrace.log.tasks import AppTasks, OnAssigned, OnRevoked, Tasks, nothing


class PlainLog(ABC):
    """The part of ``tailrace.log.Log`` and of ``TaskLog`` that follows from that."""

    moves_tasks = False
    transaction_timeout_ms = 0

    @abstractmethod
    def append_all(
        self, outputs: Iterable[Output], /, partition: int | None = None
    ) -> Mapping[TopicPartition, int]:
        """Append many records as a producer outside, in one commit. Returns the new end of each partition."""

    def append(
        self,
        topic: str,
        key: bytes | None,
        value: bytes | None,
        timestamp_ms: int,
        headers: Headers = (),
        partition: int | None = None,
    ) -> int:
        """Append one record as a producer outside, without a transactional id. Returns its offset."""
        ((_, end),) = self.append_all((Output(topic, key, value, timestamp_ms, headers),), partition).items()
        return end - 1

    @abstractmethod
    def committed_offsets(
        self, group: str, partitions: Iterable[TopicPartition], /
    ) -> Mapping[TopicPartition, int]:
        """The offsets that a group has committed, without partitions for which it has none."""

    def offsets_before_open_transactions(
        self, group: str, partitions: Iterable[TopicPartition], /
    ) -> Mapping[TopicPartition, int]:
        """See ``Log.offsets_before_open_transactions``: nothing is waited for here."""
        return self.committed_offsets(group, partitions)

    def topic_ids(self, _topics: Iterable[str], /) -> Mapping[str, str]:
        """See ``Log.topic_ids``: no topic is deleted."""
        return {}

    def watch(self, _topics: Iterable[str], /) -> Mapping[str, str]:
        """Topics have no ids here: see ``Log.watch``."""
        return {}

    @abstractmethod
    def join(
        self, tasks: AppTasks, on_assigned: OnAssigned = nothing, _on_revoked: OnRevoked = nothing, /
    ) -> Tasks:
        """Own the tasks at once. See ``TaskLog.join``."""

    @contextmanager
    def reserve(self, app: str, numbers: Collection[int], /) -> Generator[None]:
        """Own the tasks inside the block. See ``TaskLog.reserve``."""
        with closing(self.join(AppTasks(app, "", 0, numbers))):
            yield

    def limit_patience(self, patience_s: float, /) -> None:  # noqa: B027  # there is nothing to limit
        """See ``TaskLog.limit_patience``: such a log answers, or raises."""
