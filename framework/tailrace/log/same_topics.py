"""Whether topics are still those that were noted, by the ids that a log gives them (on Kafka: KIP-516).

Theory. A position counts from the beginning of its topic. A topic can be deleted and created again with the same name: a position in the
old one then also fits the new one, if that is long enough, and a reader would continue in the middle of other records.

    noted                                the topic is
    nothing, or an id of another log     accepted: the history came from a log without ids, or was moved here
    the id that the topic has now        accepted
    an id, and there is no such topic    accepted: it is missed elsewhere
    another id of this log               refused
"""

from __future__ import annotations

from collections.abc import Mapping

from tailrace.core.errors import OtherHistoryError
from tailrace.log.interface import Log


def replaced(noted: Mapping[str, str], now: Mapping[str, str]) -> list[str]:
    """The topics that were deleted and created again since these ids were noted of them. ``now``: the present ids (``Log.topic_ids``)."""
    pairs = ((topic, id_, now.get(topic, "")) for topic, id_ in noted.items())
    return [topic for topic, before, after in pairs if before != after and _log_of(before) == _log_of(after)]


def check_same(log: Log, noted: Mapping[str, str]) -> None:
    """Raises OtherHistoryError: one of the topics was deleted and created again since these ids were noted of them."""
    for topic in replaced(noted, log.topic_ids(noted)):
        raise OtherHistoryError(
            "the topic was deleted and created again since it was read: offsets in it mean other records now",
            why="topic",
            topic=topic,
            hint="Restore the old topic from a copy, if there is one; or begin again with what is there now (a rebuild: --restart).",
        )


def _log_of(id_: str) -> str:
    return id_.partition("/")[0]
