"""A failed unit: whether its task stops, the error for its driver, and the headers of its dead letter.

With ``on_error="dead-letter"`` an event that causes a failure goes to the dead letters. A mistake in the code
would fail event after event, so it stops the task. The exception tells the cause:

    UsageError, DefinitionError             a mistake: Tailrace reports that its API was misused
    NameError, AttributeError, TypeError    a mistake, wherever they were raised
    UnfitValueError                         the event: a value of the right type, such as an int beyond 64 bits
    any other                               the event

With ``"dead-letter-all"`` mistakes go to the dead letters, too.
"""

from __future__ import annotations

import traceback
from types import FrameType
from typing import Any, Final

from tailrace.core.declare.actor import Actor, declaration_of
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
    RegistryError,
    ReplayDivergedError,
    StateFolderError,
    StateLeakError,
    TailraceError,
    UnfitValueError,
    UsageError,
    WrongPartitionError,
)
from tailrace.core.records import RECORD_BYTES, Headers, InputRecord, RawOutput
from tailrace.core.suggestions import did_you_mean

_TAILRACE = __name__.partition(".")[0]
_CALLERS = (__name__.rpartition(".")[0], f"{_TAILRACE}.history")
"""The packages that call handlers: an observer of a replay comes between the engine and a handler."""

_NOT_ITS_FAULT = (
    IncompatibleStateError,
    StateFolderError,
    StateLeakError,
    EmittedTypeError,
    LogUnavailableError,
    RegistryError,
    FencedError,
    ReplayDivergedError,
    MemoryError,
)
FAILURES = (Exception, SystemExit)
"""What a handler raises, not who stops the process: ``sys.exit()`` in a handler must not pass for the end of a run."""
_MISTAKES = (UsageError, DefinitionError, NameError, AttributeError, TypeError, SystemExit)

_HINT = (
    "All of its changes are undone. Fix it and start again, or send such events to the dead letters with "
    'on_error="dead-letter".'
)
_ALL = 'To send even mistakes in the code to the dead letters, declare on_error="dead-letter-all".'
_MISTAKE_HINT: dict[OnError, str] = {
    "stop": f"All of its changes are undone. Fix the code and start again. {_ALL}",
    "dead-letter": 'The task stops in spite of on_error="dead-letter": this is a mistake in the code, not a '
    f"fault of the event. All changes of the handler are undone. Fix the code and start again. {_ALL}",
    "dead-letter-all": "All of its changes are undone. Fix the code.",
}


def is_handlers_fault(error: BaseException) -> bool:
    """Whether the handler or the event caused a failure. If not, the task stops despite ``on_error``."""
    return not isinstance(error, _NOT_ITS_FAULT)


def is_mistake(error: BaseException) -> bool:
    """Whether the code is at fault, not the event. See the head of this file."""
    return isinstance(error, _MISTAKES) and not isinstance(error, UnfitValueError)


def must_stop(policy: OnError, error: BaseException) -> bool:
    """Whether a failure stops its task under ``policy``. See the head of this file."""
    return policy == "stop" or (policy == "dead-letter" and is_mistake(error))


def _is_within(frame: FrameType, package: str) -> bool:
    return f"{frame.f_globals.get('__name__', '')}.".startswith(f"{package}.")


def handler_error(
    plan: Plan,
    partition: int,
    error: BaseException,
    route: Route | None,
    number: int,
    at: int,
    key: Any,
    timer: tuple[ActorPlan, str | None, int] | None,
    policy: OnError,
) -> HandlerError | WrongPartitionError:
    """The error for a failed unit: the record at offset ``at`` of input ``number``, or a timer that fires."""
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
        hint=_MISTAKE_HINT[policy] if is_mistake(error) else _HINT,
    )


REASON_HEADER: Final = "tailrace-reason"
CUT_HEADER: Final = "tailrace-cut"
"""Header of a dead letter that is not all of its record: the bytes of the record."""
_KEPT_BYTES: Final = 1 << 20
_TEXT: Final = 10_000
_SHORT: Final = 200


def dead_letter(topic: str, record: InputRecord, headers: Headers) -> RawOutput:
    """The dead letter of a record. Of one that is too large, it has the beginnings of key and value, and none of its headers."""
    _, at_ms, key, value, own = record
    size = len(key or b"") + len(value or b"") + sum(len(name) + len(text) for name, text in own)
    if size <= RECORD_BYTES:
        return topic, key, value, at_ms, own + headers
    cut = (CUT_HEADER, str(size).encode())
    return topic, key and key[:_KEPT_BYTES], value and value[:_KEPT_BYTES], at_ms, (*headers, cut)


def dead_letter_headers(
    failure: TailraceError, cause: BaseException | None, *, is_short: bool = False
) -> Headers:
    """The headers of a dead letter: its reason, what to do about it, and its origin. ``is_short``: of each, the beginning and the end."""
    fields: dict[str, object] = {
        "reason": failure.reason if isinstance(failure, BadRecordError) else HANDLER_FAILED,
        "error": _with_notes(cause) if cause is not None else _and_then(failure.what, failure.hint),
        "topic": failure.topic,
        "partition": failure.partition,
        "offset": failure.offset,
    }
    if isinstance(failure, WrongPartitionError):
        fields |= {"reason": "foreign-partition", "task": failure.belongs_to}
    if isinstance(failure, HandlerError):
        fields |= {
            "handler": failure.handler,
            "actor": failure.actor,
            "key": failure.key,
            "timer": failure.timer,
        }
    if cause is not None:
        fields["traceback"] = "".join(_traced(cause))
    return tuple(
        (
            f"tailrace-{name}",
            _bounded(str(value), _SHORT if is_short else _TEXT).encode(errors="backslashreplace"),
        )
        for name, value in fields.items()
        if value is not None
    )


def _bounded(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[: most // 2]} ... {text[-most // 2 :]}"


def _traced(cause: BaseException) -> list[str]:
    """The traceback from the handler on; the engine's frames before it depend on the settings."""
    trace = cause.__traceback__
    while trace is not None and any(_is_within(trace.tb_frame, caller) for caller in _CALLERS):
        trace = trace.tb_next
    try:
        return traceback.format_exception(type(cause), cause, trace)
    except FAILURES:  # the exception is a user's, and so is the way it is spelled
        return traceback.format_tb(trace)


def _with_notes(error: BaseException) -> str:
    """The text of the error, then its notes, which may contain the engine's hint."""
    text = spelled_error(error)
    try:
        for note in getattr(error, "__notes__", ()):
            text = _and_then(text, str(note))
    except FAILURES:  # so are its notes
        pass
    return text


def _and_then(sentence: str, more: str) -> str:
    return f"{sentence.rstrip('.')}. {more}" if more else sentence


def spelled_error(error: BaseException, *, bare: bool = False) -> str:
    """The name of the error's type and its text; ``bare``: the text alone. Only the name, if the text cannot be made."""
    try:
        return str(error) if bare else f"{type(error).__name__}: {error}"
    except FAILURES:  # the exception is a user's, and so is the way it is spelled
        return type(error).__name__


def explain_attribute_error(error: AttributeError) -> str | None:
    """A note for an attribute that an actor does not have; None for any other error.

    Python does not give the object of a failed assignment: its message names class and attribute.
    """
    if not isinstance(error.obj, Actor):
        return None
    cls, attr = type(error.obj), error.name
    known = [one.attr for one in declaration_of(cls).fields]
    if attr in known:
        return (
            f"{cls.__name__}.{attr} was read before it had a value. "
            "Give the field a default, or set it in every handler that may be a key's first."
        )
    hint = did_you_mean(attr, known, f"Declare it in the class: {attr}: type = default.")
    return f"{cls.__name__} has no durable field {attr!r}. {hint}"
