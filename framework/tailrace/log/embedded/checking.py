"""Verifies a log: the file's structure, every row, and that rows fit together."""

from __future__ import annotations

from itertools import pairwise

import msgspec

from tailrace.core.errors import CorruptLogError
from tailrace.log.embedded.failures import DAMAGED
from tailrace.log.embedded.rows import Bounds, Rows, Topic

_MOST_FINDINGS = 10
"""After which SQLite looks no further."""


def verify(rows: Rows) -> None:
    """Check everything, in one moment. See ``EmbeddedLog.verify``."""
    rows.forget()
    said = [str(row[0]) for row in rows.connection.execute(f"PRAGMA integrity_check({_MOST_FINDINGS})")]
    if said != ["ok"]:
        first, *others = [line for one in said for line in one.splitlines() if not line.startswith("***")]
        least = "at least " if len(others) + 1 >= _MOST_FINDINGS else ""
        more = f", and {least}{len(others)} more findings" if others else ""
        raise CorruptLogError(f"the file is damaged: {first}{more}", path=str(rows.path), hint=DAMAGED)
    rows.check_digest()
    _, commits, _, published = rows.state()
    next_place = 0
    for topic in rows.topics().values():
        if topic.first_place != next_place:
            raise rows.damage("the place of a topic")
        next_place += topic.partitions
        ends = [_check_partition(rows, place, commits).end for place in topic.places]
        _check_publications(rows, topic, ends)
    for (checksum,) in rows.connection.execute("SELECT checksum FROM publications"):
        published ^= checksum
    if published:
        raise rows.damage("a publication")


def _check_partition(rows: Rows, place: int, commits: int) -> Bounds:
    """Check that the blocks of a partition follow each other from its start to its end, and decode each."""
    bounds = rows.bounds(place)
    at, highest_ms, last_commits, size = None, Bounds().highest_ms, 0, 0
    for block in rows.blocks(place):
        if (
            (block.first > bounds.start if at is None else block.first != at)
            or not block.first < block.end
            or not (block.highest_ms >= max(highest_ms, block.max_ms) or not block.length)
            or not last_commits <= block.commits <= commits
        ):
            raise rows.damage("a block", place, block.first if at is None else at)
        try:
            records = rows.decoded(block, rows.data(block))
        except msgspec.MsgspecError:
            raise rows.damage("a block", place, block.first) from None
        offsets = [one.offset for one in records]
        if offsets and not (
            block.first <= block.base == offsets[0]
            and offsets[-1] == block.last < block.end
            and all(one < other for one, other in pairwise(offsets))
        ):
            raise rows.damage("a block", place, block.first)
        at, highest_ms, last_commits = block.end, block.highest_ms, block.commits
        size += block.length
    if (bounds.start if at is None else at) != bounds.end or size != bounds.bytes:
        raise rows.damage("a block", place, at or 0)
    return bounds


def _check_publications(rows: Rows, topic: Topic, ends: list[int]) -> None:
    before = [0] * len(ends)
    for one in rows.published(topic.number, 0):
        rising = len(one.ends) == len(ends) and all(
            low <= end <= high for low, end, high in zip(before, one.ends, ends, strict=True)
        )
        if not rising:
            raise rows.damage("a publication")
        before = list(one.ends)
