"""Dead letters: records that a task could not handle, as they are read from ``<app>.dead-letters``."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple, get_args

from tailrace.core.engine.failure import CUT_HEADER
from tailrace.core.engine.redriven import OPERATORS_HEADER, REDRIVEN_HEADER, UNIT_HEADER, redriven_in
from tailrace.core.errors import HANDLER_FAILED, BadReason, UnknownTopicError
from tailrace.core.names import apps_in, dead_letters_of, inbox_of
from tailrace.core.records import InputRecord
from tailrace.core.suggestions import did_you_mean
from tailrace.history.reading.stretches import OnHidden, scan
from tailrace.log.interface import Log

REASONS = (HANDLER_FAILED, *get_args(BadReason))
"""All reasons."""
_FIRST_HEADER = "tailrace-reason"
FOREIGN = "foreign"
"""The reason of a record that no task has written."""
_BY_ANOTHER = "no task has written this record: another program writes to the dead letters"
_NUMBER = "([0-9]{1,18})"
_ID = re.compile(f"{_NUMBER}-{_NUMBER}")


class DeadLetter(NamedTuple):
    """A record or timer that was not handled. Of a timer ``topic``, ``record.key`` and ``value`` are None."""

    partition: int
    record: InputRecord
    """It has the key, value, timestamp and headers of the original, and the offset of the dead letter."""
    reason: str
    error: str
    topic: str | None
    origin_partition: int | None
    origin_offset: int | None
    handler: str | None
    actor: str | None
    timer: str | None
    key: str | None
    """The key that the handler had, as text."""
    operators: tuple[str, ...]
    """The operators of the unit, if others have handled the record in units of their own; otherwise none."""
    unit: str
    """The id of its unit, in hex; empty of a timer."""
    task: int | None
    """Which task handles it: that which has failed; of an event in a wrong partition, that of its key."""
    traceback: str | None
    cut: int | None
    """The bytes of the record, if the letter has only its beginning."""

    @property
    def id(self) -> str:
        """The position of the letter itself: ``<partition>-<offset>``."""
        return f"{self.partition}-{self.record.offset}"


def parse_id(text: str) -> tuple[int, int] | None:
    """Partition and offset of an id; None if the text is no id."""
    found = _ID.fullmatch(text)
    return None if found is None else (int(found[1]), int(found[2]))


def dead_letters(log: Log, app: str, on_hidden: OnHidden | None = None) -> Iterator[DeadLetter]:
    """All dead letters that the log still has, by partition; ``on_hidden`` as with ``stretches.scan``.
    Raises UnknownTopicError: the app has never run on this log.
    """
    topic = dead_letters_of(app)
    for partition in range(_partitions(log, app)):
        for record in scan(log, topic, partition, on_hidden=on_hidden):
            yield read(app, partition, record)


def dead_letter(
    log: Log, app: str, partition: int, offset: int, on_hidden: OnHidden | None = None
) -> DeadLetter | None:
    """One dead letter; None if it is missing."""
    if partition >= _partitions(log, app):
        return None
    found = next(scan(log, dead_letters_of(app), partition, offset, offset + 1, on_hidden=on_hidden), None)
    return None if found is None else read(app, partition, found)


def read(app: str, partition: int, record: InputRecord) -> DeadLetter:
    """A record of the dead-letter topic as a ``DeadLetter``. If a redriven record has failed again, the original counts."""
    names = [name for name, _ in record.headers]
    # Use the last one: the record may come from another app's dead letters.
    cut = len(names) - 1 - names[::-1].index(_FIRST_HEADER) if _FIRST_HEADER in names else len(names)
    found = {name: value.decode(errors="replace") for name, value in record.headers[cut:]}

    def number(name: str) -> int | None:
        text = found.get(name, "")
        return int(text) if re.fullmatch(_NUMBER, text) else None

    origin = found.get("tailrace-topic"), number("tailrace-partition"), number("tailrace-offset")
    operators = tuple(found[OPERATORS_HEADER].split(",")) if OPERATORS_HEADER in found else ()
    if origin[0] == inbox_of(app) and (redriven := redriven_in(record.headers[:cut])) is not None:
        origin, operators = (
            (redriven.input, redriven.partition, redriven.offset),
            operators or redriven.operators,
        )
    return DeadLetter(
        partition=partition,
        record=record._replace(
            headers=tuple(one for one in record.headers[:cut] if one[0] != REDRIVEN_HEADER)
        ),
        reason=found.get(_FIRST_HEADER, FOREIGN),
        error=found.get("tailrace-error", "" if _FIRST_HEADER in found else _BY_ANOTHER),
        topic=origin[0],
        origin_partition=origin[1],
        origin_offset=origin[2],
        handler=found.get("tailrace-handler"),
        actor=found.get("tailrace-actor"),
        timer=found.get("tailrace-timer"),
        key=found.get("tailrace-key"),
        operators=operators,
        unit=found.get(UNIT_HEADER, ""),
        task=number("tailrace-task" if "tailrace-task" in found else "tailrace-partition"),
        traceback=found.get("tailrace-traceback"),
        cut=number(CUT_HEADER),
    )


def _partitions(log: Log, app: str) -> int:
    try:
        return log.partitions(dead_letters_of(app))
    except UnknownTopicError:
        raise UnknownTopicError(
            f"the log has no dead letters of an app {app!r}",
            topic=dead_letters_of(app),
            hint=did_you_mean(
                app,
                apps_in(log.topics()),
                "Correct the app's name or the log's folder; an app that was run has this topic.",
            ),
        ) from None
