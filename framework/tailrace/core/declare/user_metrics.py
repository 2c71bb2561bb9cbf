"""A user's own metrics, measured in handlers: ``ctx.metrics``."""

from __future__ import annotations

from math import inf, isfinite
from typing import Any, Final, NamedTuple

from tailrace.core.errors import UsageError
from tailrace.core.handling.entries import MISSING

KINDS: Final = ("count", "gauge", "observe")


class Measurement(NamedTuple):
    """One change of a user's metric: ``kind`` is one of ``KINDS``. The runtime adds others, see ``runtime.commit_notes``."""

    kind: str
    name: Any
    """A string; of a kind that the engine or the runtime adds, what that says."""
    value: float


class Metrics:
    """A user's own metrics: ``ctx.metrics``.

    They are reported with the commit of the step that measured them, so nothing is counted twice after a
    crash. A replay does not report them.
    """

    __slots__ = ("_noted", "_undo")

    def __init__(self) -> None:
        self._noted: dict[int, Measurement] = {}
        self._undo: list[tuple[dict[Any, Any], Any, Any]] = []

    def _bind(self, undo: list[tuple[dict[Any, Any], Any, Any]]) -> None:
        """Undo the measurements of a unit together with the unit."""
        self._undo = undo

    def _take(self) -> list[Measurement]:
        """All measurements since ``_clear``."""
        return list(self._noted.values())

    def _clear(self) -> None:
        """The measurements have been reported."""
        self._noted.clear()

    def _note(self, measurement: Measurement) -> None:
        number = len(self._noted)
        self._undo.append((self._noted, number, MISSING))
        self._noted[number] = measurement

    def count(self, name: str, n: float = 1) -> None:
        """Add ``n`` to the counter ``name``. UsageError: a counter takes no negative number, and no infinity or NaN."""
        if not 0 <= n < inf:
            raise UsageError(
                f"the counter {name!r} takes no {n!r}", hint="A gauge can fall: ctx.metrics.gauge."
            )
        self._note(Measurement("count", name, n))

    def gauge(self, name: str, value: float) -> None:
        """Set the gauge ``name`` to a value."""
        self._note(Measurement("gauge", name, value))

    def observe(self, name: str, value: float) -> None:
        """Add a value to the histogram ``name``. UsageError: an infinity or NaN, which would spoil its sum."""
        if not isfinite(value):
            raise UsageError(f"the histogram {name!r} takes no {value!r}", hint="Leave such a value out.")
        self._note(Measurement("observe", name, value))
