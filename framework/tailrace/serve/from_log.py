"""Answers one question from the log itself, by folding one partition of the changelog. No server is needed."""

from __future__ import annotations

import time

from tailrace.core.declare.plan import Plan
from tailrace.history.reading.app_history import AppHistory
from tailrace.log.interface import Log
from tailrace.runtime.worker import system_clock
from tailrace.serve.answers import Answer, Answering, Question
from tailrace.serve.unanswered import NOT_FOUND, Unanswered


def answer_from_log(plan: Plan, log: Log, question: Question) -> Answer:
    """The answer at the end of the changelog. Takes the memory and time of folding the partition of the key.

    Raises:
        Unanswered: There is no such instance, or its query failed.
        UnknownTopicError, InputsChangedError, OffsetGoneError, LogUnavailableError: See ``AppHistory``.
    """
    begun_s = time.monotonic()
    found = AppHistory(plan, log).committed(question.partition, with_rows=True)
    if found.cut is None or found.rows is None:
        raise Unanswered(
            f"partition {question.partition} of {plan.app!r}, which the key belongs to, has no commit",
            status=NOT_FOUND,
            actor=question.actor.name,
            key=question.key,
        )
    age_ms = int((time.monotonic() - begun_s) * 1_000)
    answering = Answering(plan, question.partition, found.rows)
    return answering.answer(question, found.cut, found.position, age_ms, system_clock())
