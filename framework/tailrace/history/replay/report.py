"""The options, the progress and the result of a replay."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any

from tailrace.core.engine.observer import Observer
from tailrace.core.engine.replay import Limits
from tailrace.core.engine.task import TaskSettings
from tailrace.history.comparing.differences import Differences


@dataclass(frozen=True, slots=True)
class ReplayOptions:
    """Options of a replay."""

    partitions: Collection[int] | None = None
    """Partitions to replay; None: all."""
    keys: Collection[Any] | None = None
    """Keys to replay; None: all. With some keys no outputs are compared, as their numbers are over all."""
    limits: Limits = field(default_factory=Limits)
    compare: bool = False
    """Compare with the first run: outputs, and state if the replay reaches the last commit."""
    any_environment: bool = False
    observer: Observer | None = None
    settings: TaskSettings = field(default_factory=TaskSettings)


@dataclass(slots=True)
class ReplayReport:
    """The result of a replay: counts of what it has replayed, and the differences that it found."""

    partitions: int = 0
    commits: int = 0
    records: int = 0
    timers: int = 0
    """Timers fired and entries expired."""
    outputs: int = 0
    rows: int = 0
    """Rows of state compared."""
    met: set[Any] = field(default_factory=set[Any])
    """If only some keys were replayed: the keys that had a record or a timer."""
    limit_reached: bool = False
    """A partition has stopped at its limit."""
    seconds: float = 0.0
    differences: Differences = field(default_factory=Differences)
    compared: list[str] = field(default_factory=list[str])
    """The states and outputs that the replay was compared with."""
    notes: list[str] = field(default_factory=list[str])
    """Remarks that help to understand the result."""

    def note(self, *notes: str) -> None:
        """Add notes, each once."""
        self.notes += [one for one in dict.fromkeys(notes) if one not in self.notes]


@dataclass(frozen=True, slots=True)
class ReplayStatus:
    """The progress of a replay."""

    partition: int
    commit: int
    commits: int
    """Number of commits of this partition."""
    records: int
    """Number of records of all partitions so far."""
