"""What the commits of an app note of offsets behind its positions that hold no record (``runtime.passed_offsets`` writes the notes).

Theory. On Kafka, the markers of transactions and the records of aborted ones take offsets, which readers of committed records do not
see. While such offsets are there, a reader passes them. Once brokers have deleted them, nothing tells them from records that were
deleted unread: the log knows only where it begins. So what is deleted counts as lost, unless a commit has noted that a reader had
passed it. ``may_be_empty`` says so in the messages.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from tailrace.core.engine import tape
from tailrace.core.records import Headers, InputRecord
from tailrace.history.changelog import last_cut
from tailrace.history.cut_notes import note_header, note_of
from tailrace.log.interface import KnowsTopicIds, Log, TopicPartition

NONE_PASSED: Final[Mapping[str, int]] = MappingProxyType({})
_NOTE: Final = "passed"


def passed_header(passed: Mapping[str, int]) -> Headers:
    """The header of a cut that notes, by input, up to where there is no record behind the position."""
    return note_header(_NOTE, passed) if passed else ()


def noted_with(cut: InputRecord | None) -> Mapping[str, int]:
    """What the record of a cut notes, by input."""
    return note_of(cut, _NOTE, dict[str, int]) or NONE_PASSED


def passed_from(log: Log, app: str, place: TopicPartition, position: int) -> int:
    """Up to where an input has no record from ``position`` on, as far as the last commit of an app that stands there has noted it."""
    changelog = TopicPartition(f"{app}.changelog", place.partition)
    is_there = changelog.topic in log.topics() and place.partition < log.partitions(changelog.topic)
    cut = last_cut(log, changelog) if is_there else None
    if cut is None or tape.decode_cut(cut.value or b"").positions.get(place.topic) != position:
        return position
    return max(position, noted_with(cut).get(place.topic, position))


def may_be_empty(log: Log) -> str:
    """What an error about deleted offsets adds on a log where offsets can be without a record: two sentences, and a space."""
    if not isinstance(log, KnowsTopicIds):
        return ""
    return (
        "These offsets may have held no record, but only transactions that were aborted, and markers of transactions; there is no way to "
        "find out. If you know that nothing was committed to the topic in that time, nothing is lost. "
    )
