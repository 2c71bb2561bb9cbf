"""What strikes a worker in the simulator, and the disks it has: exceptions that come out of operations.

An operation is a call of the log or of a store; it passes a hook before it takes effect, and the ones that
matter also after (``committed``, ``stored``). What the hook raises comes out of the operation.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from random import Random

from tailrace.core.engine.settings import TaskSettings
from tailrace.core.errors import CommitUnknownError, LogUnavailableError, StateUnavailableError
from tailrace.runtime.slices import PartitionSettings
from tailrace.state import MemoryStore


class Kill(BaseException):
    """The process ends here."""


@dataclass(frozen=True, slots=True)
class Strike:
    """A fault: what is raised, and at which operations it makes sense. None strikes at any."""

    name: str
    error: Callable[[], BaseException]
    at: frozenset[str] | None


KILL = Strike("kill", Kill, None)
UNKNOWN = Strike("unknown", lambda: CommitUnknownError("no answer"), frozenset({"commit", "committed"}))
AWAY = Strike(
    "log away",
    lambda: LogUnavailableError("no answer"),
    frozenset({"append", "commit", "fetch", "query", "take-over"}),
)
FULL = Strike("disk full", lambda: StateUnavailableError("no space left"), frozenset({"store"}))
STRIKES = (KILL, UNKNOWN, AWAY, FULL)


class SimulatedStore(MemoryStore):
    """A disk: it outlives its worker, calls a hook around each write, and can lose what it held last."""

    def __init__(self, on_operation: Callable[[str], None]) -> None:
        super().__init__()
        self._on_operation = on_operation

    def write(self, rows: Mapping[bytes, bytes | None], cut: bytes, /) -> None:
        """See ``MemoryStore.write``; a hook may raise before it, or after it has taken effect."""
        self._on_operation("store")
        super().write(rows, cut)
        self._on_operation("stored")

    def copy(self) -> SimulatedStore:
        """What it holds now."""
        other = SimulatedStore(self._on_operation)
        if self.cut is not None:
            MemoryStore.write(other, dict(self.rows()), self.cut)
        return other


def random_settings(random: Random) -> PartitionSettings:
    """Settings that make as much as possible happen in little time."""
    return PartitionSettings(
        commit_interval_ms=random.choice((0, 100, 1_000, 1 << 40)),
        commit_records=random.choice((1, 5, 500_000)),
        merge_tolerance_ms=random.choice((0, 100, 1_000)),
        task=TaskSettings(
            cache_bytes=random.choice((0, 3_000, 1 << 28)),
            timers_in_memory=random.choice((1, 3, 200_000)),
            firing_budget=random.choice((1, 2, 10_000)),
            reload=random.random() < 0.3,
            checked=random.random() < 0.3,
        ),
    )
