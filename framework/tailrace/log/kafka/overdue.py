"""Transactions that were open for longer than the brokers allow.

The brokers abort a transaction that is open for longer than ``transaction.timeout.ms``, and fence its producer. The process makes another
producer and does the work again. That helps if it was suspended. It does not help if a handler takes so long: then the next transaction is
aborted as well, and nothing is ever committed.
"""

from __future__ import annotations

import logging
from typing import Final

from tailrace.core.durations import spelled
from tailrace.core.errors import FencedError

_log = logging.getLogger("tailrace.kafka")
_MANY: Final = 2
"""So many in a row are no accident."""


class OverdueTransactions:
    """Counts them, and logs an error from the second in a row on. ``timeout_ms`` is ``transaction.timeout.ms``."""

    def __init__(self, timeout_ms: int) -> None:
        self._timeout_ms = timeout_ms
        self._count = 0

    def failed(self, open_s: float) -> FencedError | None:
        """A transaction has failed that was open for so long, because its producer was fenced. Its error, if it was open for too long."""
        open_ms = int(1_000 * open_s)
        if open_ms <= self._timeout_ms:
            return None
        self._count += 1
        allowed = f"transaction.timeout.ms ({spelled(self._timeout_ms)})"
        if self._count >= _MANY:
            _log.error(
                "%d transactions in a row were open for longer than %s, the last one for %s, so the brokers have aborted them: nothing is "
                "committed, and the same events are handled again and again. Make the handlers faster, or set "
                "TAILRACE_KAFKA_PRODUCER_TRANSACTION_TIMEOUT_MS to more than they take, within the brokers' transaction.max.timeout.ms "
                "(15 minutes by default).",
                self._count,
                allowed,
                spelled(open_ms),
            )
        return FencedError(
            f"a transaction was open for longer than {allowed}, so the brokers have aborted it and fenced its producer",
            hint="Nothing committed is lost. Another producer does the work again.",
        )

    def committed(self) -> None:
        """A transaction was committed."""
        self._count = 0
