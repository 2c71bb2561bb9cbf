"""What a process logs of brokers that cannot be reached, or that deny its connections: a line at first, one now and then, one at the end.

Each client of librdkafka (a process has some for reading, for writing and for questions) tries to connect again and again, and reports
each failure, twice: as a log line and as an error. Here the errors of all clients come together, and the lines are dropped.

    state       what it is                                            logged
    answering   nothing has failed since the last answer              "Kafka answers again", if something was logged before
    failing     a connection has failed, or was denied                at the first failure, and again every 30 s while there are more

Whether it failed or was denied are two reasons, each of which is logged at once. An answer counts if it was asked for after the last
failure. With several brokers, it may come from another one.

While a question waits for an answer, a line says for which addresses, and why (``waits``). It has a logger of its own, since commands
that log nothing show it, too.
"""

from __future__ import annotations

import logging
import re
import threading
import time
from collections.abc import Callable
from typing import Any, Final

from tailrace.log.kafka.failures import CREDENTIALS, DENIED_CONNECTION
from tailrace.log.kafka.library import KafkaError

_AGAIN_S: Final = 30.0
"""Time between two lines with the same reason."""
_FAILED: Final = "FAIL"
"""The facility of the library's lines about connections."""
_DETAILS: Final = re.compile(r" \((?:after|average) [^()]*\)")
"""How long it took, and in which state: other at each attempt."""
_PASSING: Final = (
    "Coordinator load in progress: retrying",
    "Coordinator not available: retrying",
    "Not coordinator: retrying",
    "another concurrent operation on the same transaction was ongoing: retrying",
)
"""Ends of warnings (facility GETPID) of a producer that starts before its coordinator is ready. It asks again after half a second."""
WAITING: Final = "waiting"
"""The name of the logger of ``waits``, below that of the rest."""


class Outages:
    """See the head of this file. For several threads."""

    def __init__(self, log: logging.Logger, clock: Callable[[], float] = time.monotonic) -> None:
        self._log = log
        self._clock = clock
        self._mutex = threading.Lock()
        self._failed_at: float | None = None
        """When the last failure was, if no answer has followed."""
        self._told: dict[str, float] = {}
        """When each kind of line was last logged."""
        self._is_told = False
        """Whether the present outage was logged."""
        self._reason = "there is no answer yet"
        """Of the last failure."""
        self.denial: KafkaError | None = None
        """Why the brokers have denied a connection, if they have answered nothing since."""

    def failed(self, error: KafkaError) -> None:
        """A client reports an error that belongs to no call. That all brokers are down it says as well when the only broker closes a
        connection that was idle; if it cannot connect again, another error follows.
        """
        if error.name() == "_ALL_BROKERS_DOWN":
            return
        denied = error.name() in DENIED_CONNECTION
        with self._mutex:
            self._failed_at = self._clock()
            self.denial = error if denied else self.denial
            self._reason = reason = _DETAILS.sub("", error.str())
            if not self._is_due("denied" if denied else "lost"):
                return
            self._is_told = True
        if denied:
            self._log.warning("Kafka denies the connection: %s. %s", reason, CREDENTIALS)
        else:
            self._log.warning("there is no connection to Kafka: %s", reason)

    def waits(self, addresses: str, left_s: float) -> None:
        """A question has no answer yet, and is asked again for so long."""
        with self._mutex:
            if left_s <= 0 or not self._is_due(WAITING):
                return
            reason = self._reason
        self._log.getChild(WAITING).warning(
            "waiting for Kafka at %s: %s. It is tried for %.0f s more", addresses, reason, left_s
        )

    def answered(self, asked_at: float) -> None:
        """A broker has answered a question that was asked then."""
        with self._mutex:
            if self._failed_at is None or asked_at <= self._failed_at:
                return
            is_told, self._is_told, self._failed_at, self.denial = self._is_told, False, None, None
            self._told.pop(WAITING, None)
        if is_told:
            self._log.info("Kafka answers again")

    def _is_due(self, kind: str) -> bool:
        now = self._clock()
        if now - self._told.get(kind, -_AGAIN_S) < _AGAIN_S:
            return False
        self._told[kind] = now
        return True

    def log(self, level: int, message: str, facility: str, client: str, text: str, *_rest: Any) -> None:
        """Called by the library as the method of a logger."""
        if facility == "GETPID" and text.endswith(_PASSING):
            level = min(level, logging.DEBUG)
        if facility != _FAILED:
            self._log.log(level, message, facility, client, text)
