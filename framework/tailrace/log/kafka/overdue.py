"""Transactions that were open for longer than the brokers allow.

The brokers abort a transaction that is open for longer than ``transaction.timeout.ms``, and fence its producer. The process makes another
producer and does the work again. That helps if it was suspended. If a handler takes so long, it happens again and again.
"""

from __future__ import annotations

import logging

from tailrace.core.durations import spelled
from tailrace.core.errors import FencedError

_log = logging.getLogger("tailrace.kafka")


def overdue(timeout_ms: int, open_s: float) -> FencedError | None:
    """The error for a transaction whose producer was fenced, if it was open for too long. ``timeout_ms`` is ``transaction.timeout.ms``."""
    if 1_000 * open_s <= timeout_ms:
        return None
    said = (
        f"a transaction was open for {spelled(int(1_000 * open_s))}, longer than transaction.timeout.ms ({spelled(timeout_ms)}), so the "
        "brokers have aborted it and fenced its producer"
    )
    _log.warning(
        "%s. Another producer does the work again. If this comes again, make the handlers faster, or set "
        "TAILRACE_KAFKA_PRODUCER_TRANSACTION_TIMEOUT_MS to more than they take, within the brokers' transaction.max.timeout.ms "
        "(15 minutes by default).",
        said,
    )
    return FencedError(said, hint="Nothing committed is lost. Another producer does the work again.")
