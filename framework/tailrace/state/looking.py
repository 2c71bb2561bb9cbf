"""Reads a task's state while a service may have it open: without a lock, and without writing.

A RocksDB database opened read-only shows all batches written so far, including those in the write-ahead log,
and no later ones: open it again to see more.
"""

from __future__ import annotations

from collections.abc import Generator
from pathlib import Path

from rocksdict import AccessType, Rdict, ReadOptions

from tailrace.core.errors import CorruptStateError
from tailrace.state.batch_numbers import last_number
from tailrace.state.failures import as_state_error
from tailrace.state.folder import DATABASE
from tailrace.state.memory import RESERVED
from tailrace.state.tuning import MIB, StateMemory

_ATTEMPTS = 5
_BUDGET_BYTES = 8 * MIB


class StateView:
    """The rows of a state folder as of now. Close it after use.

    Raises:
        StateUnavailableError, CorruptStateError: It cannot be read, or there is none.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._database = self._opened()
        self.cut: bytes | None = self._database.get(RESERVED)
        """The cut of the last batch written."""

    def scan(self, start: bytes, stop: bytes, /) -> Generator[tuple[bytes, bytes]]:
        """The rows with ``start <= row < stop``, ascending by key bytes."""
        options = ReadOptions()
        options.set_iterate_upper_bound(stop)
        try:
            iterator = self._database.iter(options)
            iterator.seek(start)
            while iterator.valid():
                yield iterator.key(), iterator.value()
                iterator.next()
            iterator.status()  # raises where the end is an error
        except Exception as error:
            raise as_state_error(error, self.path, "scanning rows") from error

    def close(self) -> None:
        """Release the database. All scans must have ended."""
        self._database.close()

    def _opened(self) -> Rdict:
        if not (self.path / DATABASE / "CURRENT").is_file():
            raise CorruptStateError(
                "there is no database in the folder",
                path=str(self.path),
                hint="Check the path, or start the service.",
            )
        failure: Exception | None = None
        for _ in range(_ATTEMPTS):
            options = StateMemory(_BUDGET_BYTES).options()
            options.create_if_missing(False)
            try:
                database = Rdict(
                    str(self.path / DATABASE),
                    options,
                    column_families={"default": options},
                    access_type=AccessType.read_only(False),
                )
                last_number(database, str(self.path))
                return database
            except Exception as error:  # noqa: BLE001  # a compaction may have removed a file
                failure = as_state_error(error, self.path, "looking at the state")
        assert failure is not None
        raise failure
