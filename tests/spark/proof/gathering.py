"""Many rebuilds at once, whose units are run together: as soon as all that are left wait for theirs, one job does them all.

Their drivers are threads. To each the gathering is an engine; what its units have made, it finds in its work folder.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Condition
from typing import Any, Generic, TypeVar

from tailrace.core.errors import TailraceError
from tailrace.history.rebuilding.engines import Engine, OnProgress
from tailrace.history.rebuilding.job import Unit
from tailrace.history.rebuilding.results import UnitResult
from tailrace.history.rebuilding.work_folder import WorkFolder

T = TypeVar("T")


class Batch:
    """The units that one driver waits for."""

    def __init__(self, units: Sequence[Unit]) -> None:
        self.units = units
        self.done = False
        self.error: BaseException | None = None


class Gathering(Generic[T]):
    """See above. ``copies`` of each unit are run at the same time."""

    name = "gathering"

    def __init__(self, engine: Engine, copies: int = 1) -> None:
        self.jobs = self.units = 0
        self._engine = engine
        self._copies = copies
        self._coming = Condition()
        self._waiting: list[Batch] = []
        self._drivers = 0

    def all(self, rebuilds: Sequence[Callable[[Engine], T]]) -> list[T | TailraceError]:
        """Run each with an engine; what it returns, or what stands in its way."""
        self._drivers = len(rebuilds)
        with ThreadPoolExecutor(max(1, len(rebuilds))) as threads:
            coming = [threads.submit(self._drive, one) for one in rebuilds]
            while True:
                with self._coming:
                    self._coming.wait_for(lambda: len(self._waiting) == self._drivers)
                    batches, self._waiting = self._waiting, []
                    if not batches:
                        break
                error: BaseException | None = None
                try:
                    self._together(batches)
                except TailraceError as found:
                    error = found
                except BaseException as found:
                    error = found
                    raise
                finally:
                    with self._coming:
                        for batch in batches:
                            batch.done, batch.error = True, error
                        self._coming.notify_all()
            return [one.result() for one in coming]

    def run(self, units: Sequence[Unit], on_progress: OnProgress) -> Iterator[UnitResult]:
        """See ``Engine.run``."""
        batch = Batch(units)
        with self._coming:
            self._waiting.append(batch)
            self._coming.notify_all()
            self._coming.wait_for(lambda: batch.done)
        if batch.error is not None:
            raise batch.error
        on_progress()
        for unit in units:
            found = done(unit)
            # What failed has left nothing behind, and would fail again.
            yield from self._engine.run([unit], on_progress) if found is None else (found,)

    def close(self) -> None:
        """The engine is that of all rebuilds: whoever made it closes it."""

    def _drive(self, rebuild: Callable[[Engine], T]) -> T | TailraceError:
        try:
            return rebuild(self)
        except TailraceError as error:
            return error
        finally:
            with self._coming:
                self._drivers -= 1
                self._coming.notify_all()

    def _together(self, batches: Sequence[Batch]) -> None:
        units = [unit for batch in batches for unit in batch.units for _ in range(self._copies)]
        self.jobs += 1
        self.units += len(units)
        count = sum(1 for _ in self._engine.run(units, _nobody))
        assert count == len(units)


def done(unit: Unit) -> UnitResult | None:
    """What a unit has made, if it has been run."""
    return WorkFolder(Path(unit.job.work)).result(unit.name)


def _nobody(*_: Any) -> None:
    """Is told nothing."""
