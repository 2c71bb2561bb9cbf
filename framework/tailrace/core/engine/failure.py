"""What becomes of a unit that failed, and what is said of it: the error for its driver, the headers of its dead letter.

With ``on_error="dead-letter"`` a failure that belongs to the event goes to the dead letters. A mistake in the code would
fail event after event, so it stops the task. Which one it is follows from the exception:

    UsageError, DefinitionError   a mistake: Tailrace itself says that its API was misused
    NameError, AttributeError     a mistake, wherever they were raised
    TypeError                     a mistake if the function that Tailrace called raised it, or a function within it: a wrong
                                  call, a wrong operand. Raised deeper, in what that function called, it is the event's
    any other                     the event's

Frames of Tailrace do not count for a TypeError: what ``ctx.emit`` raises is raised by the handler. With
``"dead-letter-all"`` mistakes go to the dead letters, too.
"""

from __future__ import annotations

import traceback
from collections.abc import Iterable
from inspect import unwrap
from types import CodeType, FrameType, FunctionType
from typing import Any

from tailrace.core.declare.plan import ActorPlan, Plan, Route
from tailrace.core.declare.topic import OnError
from tailrace.core.errors import (
    HANDLER_FAILED,
    BadRecordError,
    DefinitionError,
    EmittedTypeError,
    FencedError,
    HandlerError,
    IncompatibleStateError,
    LogUnavailableError,
    RecordError,
    ReplayDivergedError,
    StateFolderError,
    StateLeakError,
    UsageError,
    WrongPartitionError,
)
from tailrace.core.records import Headers

_TAILRACE = __name__.partition(".")[0]
_CALLERS = (__name__.rpartition(".")[0], f"{_TAILRACE}.history")
"""The packages that call handlers: a rebuild that retries comes between the engine and a handler."""

_NOT_ITS_FAULT = (
    IncompatibleStateError,
    StateFolderError,
    StateLeakError,
    EmittedTypeError,
    LogUnavailableError,
    FencedError,
    ReplayDivergedError,
    MemoryError,
)


_HINT = (
    "Nothing it did remains. Correct it and start again, or let such events go to the dead letters with "
    'on_error="dead-letter".'
)
_ALL = 'To send even mistakes in the code to the dead letters, declare on_error="dead-letter-all".'
_MISTAKE_HINT: dict[OnError, str] = {
    "stop": f"Nothing it did remains. Correct the code and start again. {_ALL}",
    "dead-letter": 'The task stops in spite of on_error="dead-letter": this is a mistake in the code, not a fault of the '
    f"event. Nothing the handler did remains. Correct the code and start again. {_ALL}",
    "dead-letter-all": "Nothing it did remains. Correct the code.",
}


def is_handlers_fault(error: Exception) -> bool:
    """Whether a failure belongs to the event at hand. Otherwise the task must stop whatever the app has chosen."""
    return not isinstance(error, _NOT_ITS_FAULT)


def must_stop(policy: OnError, error: Exception, route: Route | None) -> bool:
    """Whether a failure of ``route`` stops its task under ``policy``. See the head of this file."""
    return policy == "stop" or (policy == "dead-letter" and is_mistake(error, route))


def is_mistake(error: Exception, route: Route | None) -> bool:
    """Whether the code is at fault, and not the event. See the head of this file."""
    if isinstance(error, (UsageError, DefinitionError, NameError, AttributeError)):
        return True
    return isinstance(error, TypeError) and _raised_by_called(error, route)


def _raised_by_called(error: Exception, route: Route | None) -> bool:
    """Whether the app's function that Tailrace called has raised this itself, or a function written within it."""
    frames = [
        frame for frame, _ in traceback.walk_tb(error.__traceback__) if not _is_within(frame, _TAILRACE)
    ]
    if not frames:
        return True  # what the handler has left behind was refused
    called, last = [frames[0].f_code], frames[-1].f_code
    if route is not None and isinstance(handler := unwrap(route.call), FunctionType):
        called.append(handler.__code__)  # a decorator of the user's stands before it
    return any(last is one or _is_written_in(last, one) for one in called)


def _is_written_in(code: CodeType, outer: CodeType) -> bool:
    inside = code.co_qualname.startswith(f"{outer.co_qualname}.<locals>.")
    return inside and code.co_filename == outer.co_filename


def _is_within(frame: FrameType, package: str) -> bool:
    return f"{frame.f_globals.get('__name__', '')}.".startswith(f"{package}.")


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
    policy = plan.on_error if number < 0 else plan.inputs[number].on_error
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
        hint=_MISTAKE_HINT[policy] if is_mistake(error, route) else _HINT,
    )


def dead_letter_headers(failure: HandlerError | RecordError, cause: Exception | None) -> Headers:
    """Headers that tell why a record is a dead letter, what to do about it, and where it comes from."""
    said: dict[str, object] = {
        "reason": failure.reason if isinstance(failure, BadRecordError) else HANDLER_FAILED,
        "error": _with_notes(cause) if cause is not None else _and_then(failure.what, failure.hint),
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
    while trace is not None and any(_is_within(trace.tb_frame, caller) for caller in _CALLERS):
        trace = trace.tb_next
    try:
        return traceback.format_exception(type(cause), cause, trace)
    except Exception:  # noqa: BLE001  # the exception is a user's, and so is the way it is spelled
        return traceback.format_tb(trace)


def _with_notes(error: Exception) -> str:
    """The error as it spells itself, then its notes; among these is what the engine knows of the fix."""
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
