"""What ``quarantine`` needs of the other parts of a task, which have it as one of theirs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

from tailrace.core.declare.plan import Route
from tailrace.core.engine.timers import Entry, TimerQueue
from tailrace.core.records import Headers, InputRecord

if TYPE_CHECKING:
    from tailrace.core.declare.context import Context
    from tailrace.core.declare.current_unit import CurrentUnit
    from tailrace.core.engine.actor_table import Table
    from tailrace.core.engine.watermarks import Watermarks


class Units(Protocol):
    """What is needed of ``units.Units``, which has what waits."""

    unit: CurrentUnit
    context: Context[Any]
    marks: Watermarks
    apart: bool
    late: frozenset[int]
    operator: int
    replaying: bool
    skips: dict[tuple[int, int, int], Headers]

    def change(self, route: Route, table: Table, key: Any) -> None: ...  # noqa: D102
    def invoke(self, route: Route, table: Table | None, key: Any, event: Any) -> None: ...  # noqa: D102
    def trace(self, number: int, record: InputRecord, mark: int, *, released: bool) -> None: ...  # noqa: D102
    def deliver_chained(self, key: Any) -> None: ...  # noqa: D102
    def use_up(self, table: Table, instance: Any, timer: tuple[int, bytes]) -> bytes | None: ...  # noqa: D102
    def invoke_timer(  # noqa: D102
        self, route: Route, table: Table, instance: Any, timer: tuple[int, bytes]
    ) -> None: ...
    def skip(self, number: int, at: int, record: InputRecord | None) -> None: ...  # noqa: D102
    def failed(  # noqa: D102
        self, error: Exception, mark: int, number: int, at: int, record: InputRecord | None
    ) -> None: ...


class Firing(Protocol):
    """What is needed of ``firing.Firing``, which releases what waits."""

    marks: Watermarks
    events: Sequence[TimerQueue]
    processing: Sequence[TimerQueue]

    @property
    def units(self) -> Units: ...  # noqa: D102
    def fire(self, domain: int, entry: Entry, table: Table) -> None: ...  # noqa: D102
