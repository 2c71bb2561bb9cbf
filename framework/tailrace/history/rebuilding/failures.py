"""Failures that are new in a rebuild: a handler that fails, or a record that no longer decodes, and did not fail before.

A failure that is on the tape is skipped, as in the first run. Any other is new: the code has changed, or is not
deterministic. The rebuild stops there and names the record, or, with ``on_error``, writes the dead letter that the service
would have written, and reports it. As in a service, a mistake in the code stops the rebuild even then, unless the rebuild
or the app sets ``dead-letter-all``.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from tailrace.core.declare.context import Context
from tailrace.core.declare.plan import ActorPlan, Plan
from tailrace.core.declare.topic import OnError
from tailrace.core.engine import tape
from tailrace.core.engine.failure import dead_letter_headers, handler_error, is_mistake, must_stop
from tailrace.core.engine.instance_cache import InstanceCache
from tailrace.core.engine.observer import Watch, _WatchedUnits
from tailrace.core.engine.units import TIMER, Units
from tailrace.core.engine.watermarks import Watermarks
from tailrace.core.errors import BadRecordError, ReplayDivergedError
from tailrace.core.records import InputRecord, Refused

STOP_HINT = "Correct the code, or rebuild with --on-error dead-letter: then it goes to the dead letters."
_MISTAKE_HINT = (
    "This is a mistake in the code, not a fault of the event: correct the code, or rebuild with --on-error "
    "dead-letter-all, then it goes to the dead letters."
)
_SHOWN = 20


@dataclass(slots=True)
class Failed:
    """Failures that the first run did not have: the texts of the first ones, and the refusals of this commit."""

    shown: list[str] = field(default_factory=list[str])
    count: int = 0
    refused: list[BadRecordError] = field(default_factory=list[BadRecordError])

    def note(self, said: str) -> None:
        """Add a failure."""
        self.count += 1
        if len(self.shown) < _SHOWN:
            self.shown.append(said)


@dataclass(frozen=True, slots=True)
class RebuildWatch(Watch):
    """Gives a task units that handle new failures."""

    on_error: OnError = "stop"
    failed: Failed = field(default_factory=Failed)

    def units(
        self,
        plan: Plan,
        partition: int,
        cells: InstanceCache,
        context: Context[Any],
        marks: Watermarks,
        totals: tape.Totals,
        log: tape.Tape,
    ) -> Units:
        """The units for a task of a rebuild."""
        if self.keys is None and self.observer is None:
            return _RebuiltUnits(self, plan, partition, cells, context, marks, totals, log)
        return _SomeUnits(self, plan, partition, cells, context, marks, totals, log)


class _Failing(Units):
    """Wraps the units of a task, and handles their failures."""

    __slots__ = ()

    _rebuild: RebuildWatch

    def failed(
        self,
        error: Exception,
        mark: int,
        number: int,
        at: int,
        record: InputRecord | None = None,
        timer: tuple[ActorPlan, str | None, int] | None = None,
    ) -> None:
        """See ``Units.failed``."""
        self.replaying = True
        try:
            super().failed(error, mark, number, at, record, timer)
        except ReplayDivergedError as diverged:
            if diverged.__cause__ is not error:
                raise
            route, key = self.unit.route, self.context.key
            failure = handler_error(self.plan, self.partition, error, route, number, at, key, timer)
            declared = self.plan.on_error if number == TIMER else self.plan.inputs[number].on_error
            policy = self._rebuild.on_error
            if policy == "dead-letter" and declared == "dead-letter-all":
                policy = declared
            if must_stop(policy, error, route):
                failure.hint = _MISTAKE_HINT if is_mistake(error, route) else STOP_HINT
                raise failure from error
            self.note_failure(str(failure).partition(failure.hint)[0].strip())
            self.skip(number, at, record, dead_letter_headers(failure, error))

    def note_failure(self, said: str) -> None:
        """Record the text of a failure."""
        self._rebuild.failed.note(said)

    def refuse(self, number: int, refused: Refused, record: InputRecord | None) -> None:
        """See ``Units.refuse``. Whether the first run refused the record too is known at the commit."""
        plan = self.plan.inputs[number]
        error = BadRecordError(
            refused.detail,
            reason=refused.reason,
            topic=plan.name,
            partition=self.partition,
            offset=None if record is None else record.offset,
            hint=STOP_HINT,
        )
        self._rebuild.failed.refused.append(error)
        if plan.on_error != "stop" or record is None:
            super().refuse(number, refused, record)
            return
        if self._rebuild.on_error == "stop":
            raise error
        self.totals.refused += 1
        headers = record.headers + dead_letter_headers(error, None)
        self.unit.outputs.append(
            (self.plan.dead_letters_topic, record.key, record.value, record.timestamp_ms, headers)
        )


class _RebuiltUnits(_Failing):
    """The units of a task with all of its keys: as fast as those of a service."""

    __slots__ = ("_rebuild",)

    def __init__(self, rebuild: RebuildWatch, *of_units: Any) -> None:
        super().__init__(*of_units)
        self._rebuild = rebuild


class _SomeUnits(_Failing, _WatchedUnits):
    """The units of a task that is restricted to some keys, or watched."""

    __slots__ = ("_rebuild",)

    def __init__(self, rebuild: RebuildWatch, *of_units: Any) -> None:
        super().__init__(rebuild, *of_units)
        self._rebuild = rebuild
