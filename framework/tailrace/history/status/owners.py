"""Which process owns a task now. On the embedded log its claim says so; on Kafka, the group of its app.

A process that was killed remains a member of its group until ``session.timeout.ms`` is over, and counts as
the owner for so long.
"""

from __future__ import annotations

import time
from typing import Final

import msgspec

from tailrace.log.embedded import EmbeddedLog, owner_of
from tailrace.log.interface import StoredLog, TopicPartition
from tailrace.log.kafka import KafkaLog, Member

_FRESH_S: Final = 5.0
"""For how long the members of a group are not asked for again."""


class Owner(msgspec.Struct, frozen=True):
    """The process that owns a task now. ``pid`` is 0 if it is unknown."""

    pid: int
    stopped: bool
    host: str = ""
    """Its host; empty on the embedded log, where all processes are on one."""


class Owners:
    """The owners of tasks on one log. May be asked often."""

    def __init__(self, log: StoredLog) -> None:
        self._log = log
        self._members: dict[str, tuple[float, list[Member]]] = {}

    def of(self, transactional_id: str) -> Owner | None:
        """The owner of the task with this transactional id; None if no process owns it."""
        if isinstance(self._log, EmbeddedLog):
            found = owner_of(self._log.path, transactional_id)
            return None if found is None else Owner(found.pid, found.is_stopped)
        app, _, number = transactional_id.rpartition("-")
        if not app or not number.isdecimal():
            return None
        place = TopicPartition(f"{app}.tape", int(number))
        for member in self.members(app):
            if place in member.partitions:
                return Owner(member.pid, stopped=False, host=member.host)
        return None

    def is_owned(self, transactional_id: str) -> bool:
        """Whether a live process owns the task with this transactional id."""
        return self.of(transactional_id) is not None

    def members(self, app: str) -> list[Member]:
        """The live processes of an app on Kafka; none on the embedded log."""
        if isinstance(self._log, EmbeddedLog):
            return []
        at_s, found = self._members.get(app, (0.0, []))
        now_s = time.monotonic()
        if not at_s or now_s - at_s > _FRESH_S:
            assert isinstance(self._log, KafkaLog)
            found = self._log.admin.members(app)
            self._members[app] = (now_s, found)
        return found
