"""What is said of a unit that failed: the error for its driver, and the headers of its dead letter."""

from __future__ import annotations

import traceback
from collections.abc import Iterable
from typing import Any, Final

from tailrace.core.declare.plan import ActorPlan, Plan, Route
from tailrace.core.errors import (
    BadRecordError,
    FencedError,
    HandlerError,
    LogUnavailableError,
    RecordError,
    ReplayDivergedError,
    StateFolderError,
    StateLeakError,
    WrongPartitionError,
)
from tailrace.core.records import Headers

_ENGINE = __name__.rpartition(".")[0] + "."

REDRIVEN_HEADER: Final = "tailrace-redriven"
"""On a record that was redriven: the topic and id of its dead letter, ``<topic>/<id>``."""

_NOT_ITS_FAULT = (
    StateFolderError,
    StateLeakError,
    LogUnavailableError,
    FencedError,
    ReplayDivergedError,
    MemoryError,
)


def is_handlers_fault(error: Exception) -> bool:
    """Whether a failure belongs to the event at hand. Otherwise the task must stop whatever the app has chosen."""
    return not isinstance(error, _NOT_ITS_FAULT)


def handler_error(
    plan: Plan,
    partition: int,
    error: Exception,
    route: Route | None,
    number: int,
    at: int,
    key: Any,
    timer: tuple[ActorPlan, str | None, int] | None,
) -> HandlerError | WrongPartitionError:
    """The error that names the unit: the record at offset ``at`` of input ``number``, or a timer's firing."""
    topic = None if number < 0 else plan.inputs[number].name
    if isinstance(error, WrongPartitionError):
        error.topic, error.partition, error.offset = topic, partition, at
        return error
    actor = route.target.name if route is not None and route.target is not None else None
    if timer is not None:
        actor = timer[0].name
    place = "a handler" if route is None else route.name
    return HandlerError(
        f"{place} failed with {_with_notes(error)}",
        app=plan.app,
        actor=actor,
        handler=None if route is None else route.name,
        topic=topic,
        partition=partition,
        offset=None if number < 0 else at,
        key=key,
        timer=None if timer is None else f"{timer[1] or 'unnamed'} at {timer[2]} ms",
        mend="Nothing it did remains. Correct it and start again, or let such events go to the dead letters with "
        'on_error="dead-letter".',
    )


def dead_letter_headers(failure: HandlerError | RecordError, cause: Exception | None) -> Headers:
    """Headers that tell why a record is a dead letter, what to do about it, and where it comes from."""
    said: dict[str, object] = {
        "reason": failure.reason if isinstance(failure, BadRecordError) else "handler-failed",
        "error": _with_notes(cause) if cause is not None else _and_then(failure.what, failure.mend),
        "topic": failure.topic,
        "partition": failure.partition,
        "offset": failure.offset,
    }
    if isinstance(failure, WrongPartitionError):
        said["reason"] = "foreign-partition"
    if isinstance(failure, HandlerError):
        said |= {
            "handler": failure.handler,
            "actor": failure.actor,
            "key": failure.key,
            "timer": failure.timer,
        }
    if cause is not None:
        said["traceback"] = "".join(_traced(cause))
    return tuple(
        (f"tailrace-{name}", str(value).encode(errors="backslashreplace"))
        for name, value in said.items()
        if value is not None
    )


def redriven_ids(headers: Headers, topic: str) -> list[str]:
    """The ids of the dead letters in ``topic`` that a record was redriven for, that of the first failure first.

    There are none if it was not redriven, or for another app: then the app of ``topic`` has had the original.
    """
    said = [value for name, value in headers if name == REDRIVEN_HEADER]
    own = f"{topic}/".encode()
    if not said or not said[-1].startswith(own):
        return []
    return [one.removeprefix(own).decode(errors="replace") for one in said if one.startswith(own)]


TimerName = tuple[bytes | None, bytes | None, bytes | None]
"""What a dead letter says of a timer: actor, key, and name with time."""


def timer_of(headers: Iterable[tuple[str, bytes]]) -> TimerName:
    """Which timer a dead letter is of."""
    said = dict(headers)
    return said.get("tailrace-actor"), said.get("tailrace-key"), said.get("tailrace-timer")


def timer_named(actor: str, key: Any, name: str | None, time_ms: int) -> TimerName:
    """What a dead letter of this timer would say."""
    said = (actor, str(key), f"{name or 'unnamed'} at {time_ms} ms")
    actor_said, key_said, timer_said = (part.encode(errors="backslashreplace") for part in said)
    return actor_said, key_said, timer_said


def _traced(cause: Exception) -> list[str]:
    """The traceback from the handler on: by which way the engine came to call it depends on the settings."""
    trace = cause.__traceback__
    while trace is not None and trace.tb_frame.f_globals.get("__name__", "").startswith(_ENGINE):
        trace = trace.tb_next
    try:
        return traceback.format_exception(type(cause), cause, trace)
    except Exception:  # noqa: BLE001  # the exception is a user's, and so is the way it is spelled
        return traceback.format_tb(trace)


def _with_notes(error: Exception) -> str:
    """The error as it spells itself, then its notes; among these is what the engine knows of the mend."""
    said = _spelled(error)
    notes: list[Any] = getattr(error, "__notes__", [])
    for note in notes:
        said = _and_then(said, str(note))
    return said


def _and_then(sentence: str, more: str) -> str:
    return f"{sentence.rstrip('.')}. {more}" if more else sentence


def _spelled(error: Exception) -> str:
    try:
        return f"{type(error).__name__}: {error}"
    except Exception:  # noqa: BLE001  # the exception is a user's, and so is the way it is spelled
        return type(error).__name__
