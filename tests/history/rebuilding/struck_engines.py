"""Engines of rebuilds that stop on the way, or with which something happens before they begin."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from tailrace.history.rebuilding.engines import LocalEngine, OnProgress
from tailrace.history.rebuilding.job import Unit
from tailrace.history.rebuilding.results import UnitResult


class Stopping(LocalEngine):
    """Stops after so many units, as if the driver was killed then. ``ran`` is the names of these."""

    def __init__(self, most: int) -> None:
        super().__init__(1)
        self.most, self.ran = most, list[str]()

    def run(self, units: Sequence[Unit], on_progress: OnProgress) -> Iterator[UnitResult]:
        for one in super().run(units, on_progress):
            self.ran.append(one.unit)
            yield one
            if len(self.ran) == self.most:
                raise InterruptedError


class During(LocalEngine):
    """Has something happen before its first units run."""

    def __init__(self, what: Callable[[Sequence[Unit]], object], processes: int = 1) -> None:
        super().__init__(processes)
        self._what: Callable[[Sequence[Unit]], object] | None = what

    def run(self, units: Sequence[Unit], on_progress: OnProgress) -> Iterator[UnitResult]:
        what, self._what = self._what, None
        if what is not None:
            what(units)
        yield from super().run(units, on_progress)
