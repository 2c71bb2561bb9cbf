"""Answers one question from the log itself, by folding one partition of the changelog, or a table. No server is needed."""

from __future__ import annotations

import time

from tailrace.core.declare.plan import Plan
from tailrace.core.declare.topic import Topic
from tailrace.history.reading.app_history import AppHistory
from tailrace.log.interface import Log
from tailrace.runtime.worker import system_clock
from tailrace.serve.answers import Answer, Answering, Question
from tailrace.serve.tables import rows_from_log
from tailrace.serve.unanswered import NOT_FOUND, Unanswered


def answer_from_log(plan: Plan, log: Log, question: Question) -> Answer:
    """The answer at the end of the changelog, or of the table. Takes the memory and time of folding the partition of the key.

    Raises:
        Unanswered: There is no such instance or value, or a query failed.
        BadRecordError, WrongPartitionError: See ``TableRows``.
        UnknownTopicError, InputsChangedError, OffsetGoneError, LogUnavailableError: See ``AppHistory``.
    """
    begun_s = time.monotonic()
    if isinstance(question.of, Topic):
        rows, position = rows_from_log(plan.app, log, question.of, question.of.key_codec.encode(question.key))
        age_ms = int((time.monotonic() - begun_s) * 1_000)
        return rows.answer(question, b"", position, age_ms, 0)
    found = AppHistory(plan, log).committed(question.partition, with_rows=True)
    if found.cut is None or found.rows is None:
        raise Unanswered(
            f"there is no instance of this key: partition {question.partition} of {plan.app!r} has no commit",
            status=NOT_FOUND,
            actor=question.of.name,
            key=question.key,
        )
    age_ms = int((time.monotonic() - begun_s) * 1_000)
    answering = Answering(plan, question.partition, found.rows)
    return answering.answer(question, found.cut, found.position, age_ms, system_clock())
