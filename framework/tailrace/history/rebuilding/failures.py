"""Failures in stages: of a handler, or of a record's decoding.

The rebuild stops there and names the record, or, with ``on_error``, writes the dead letter that the service would have written,
and reports it. As in a service, a mistake in the code stops the rebuild even then, unless the rebuild or the app sets
``dead-letter-all``. (Along the tape, units that are on the tape as failed are skipped, and any other failure is a difference.)
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, field

from tailrace.core.declare.topic import OnError
from tailrace.core.engine.failure import is_mistake, must_stop
from tailrace.core.engine.units import Failure
from tailrace.core.errors import (
    BadRecordError,
    EnvironmentMismatchError,
    InputsChangedError,
    ReplayDivergedError,
    UnknownTopicError,
)
from tailrace.history.rebuilding.results import NewFailures

STOP_HINT = "Correct the code, or rebuild with --on-error dead-letter: then it goes to the dead letters."
_MISTAKE_HINT = (
    "This is a mistake in the code, not a fault of the event: correct the code, or rebuild with --on-error "
    "dead-letter-all, then it goes to the dead letters."
)
_SHOWN = 20
STAGES_HINT = "--order stages needs no tape: it runs this code over the records of the inputs."
"""What the errors of a rebuild along the tape add."""


@dataclass(slots=True)
class Failed:
    """Decides about new failures (see ``NewFailures``), and keeps the texts of the first ones."""

    on_error: OnError = "stop"
    shown: list[str] = field(default_factory=list[str])
    count: int = 0

    def note(self, error: Failure) -> None:
        """Add a failure."""
        self.count += 1
        if len(self.shown) < _SHOWN:
            self.shown.append(str(error).removesuffix(error.hint).strip())

    def result(self) -> NewFailures:
        """The failures, for the result of a unit."""
        return NewFailures(self.count, tuple(self.shown))

    def decide(self, failure: Failure, cause: BaseException | None, declared: OnError, /) -> None:
        """Decide about a failure: see ``units.NewFailures``."""
        policy = self.on_error
        if isinstance(failure, BadRecordError):
            if declared == policy == "stop":
                failure.hint = STOP_HINT
                raise failure
            return
        assert cause is not None
        if policy == "dead-letter" and declared == "dead-letter-all":
            policy = declared
        if must_stop(policy, cause):
            failure.hint = _MISTAKE_HINT if is_mistake(cause) else STOP_HINT
            raise failure from cause
        self.note(failure)


@contextmanager
def naming_stages() -> Generator[None]:
    """Add to errors about a tape, or about code that does not follow it, that stages need no tape."""
    try:
        yield
    except (EnvironmentMismatchError, InputsChangedError, ReplayDivergedError, UnknownTopicError) as error:
        if "--order stages" not in error.hint:
            error.hint = f"{error.hint} {STAGES_HINT}".strip()
        raise
