"""Verifies a log: SQLite checks the structure of the file, and each block of records its checksum and its place."""

from __future__ import annotations

from tailrace.core.errors import CorruptLogError
from tailrace.log.embedded.failures import DAMAGED
from tailrace.log.embedded.rows import Rows

_MOST_FINDINGS = 10
"""After which SQLite looks no further."""


def verify(rows: Rows) -> None:
    """Check everything, in one moment. See ``EmbeddedLog.verify``."""
    said = [str(row[0]) for row in rows.connection.execute(f"PRAGMA integrity_check({_MOST_FINDINGS})")]
    if said != ["ok"]:
        first, *others = [line for one in said for line in one.splitlines() if not line.startswith("***")]
        least = "at least " if len(others) + 1 >= _MOST_FINDINGS else ""
        more = f", and {least}{len(others)} more findings" if others else ""
        raise CorruptLogError(f"the file is damaged: {first}{more}", path=str(rows.path), hint=DAMAGED)
    for topic in rows.topics().values():
        for place in topic.places:
            start, end, _, size = rows.bounds(place)
            at = None
            for block in rows.blocks(place):
                rows.records(block)
                if block.first != at and (at is not None or block.first > start):
                    raise rows.damage("a block", place, at or start)
                at, size = block.end, size - block.length
            if (start if at is None else at) != end or size:
                raise rows.damage("a block", place, at or start)
