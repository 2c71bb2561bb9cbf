"""The state folders of a process, and how the memory for its state is shared out.

All of it is a bound, not a reservation. Beside it a process needs memory for Python and its libraries (about
70 MiB), for records that it has read and not yet handled, and for the partitions of keys that it has emitted
lately (about 100 bytes a key, for at most a million keys).
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from tailrace.core.storage import Store
from tailrace.state import OverlayStore, StateIdentity, StateMemory
from tailrace.state.damaged import open_or_set_aside

DEFAULT_MIB = 576
LEAST_MIB = 32


class Shares(NamedTuple):
    """Bytes, for all tasks of a process together."""

    live_bytes: int
    """Live instances."""
    folder_bytes: int
    """State folders: cached blocks, indexes, and rows that are not yet in a file."""
    waiting_bytes: int
    """Commits that wait for the folders, with ``store_every``."""


def shares_of(memory_mib: int) -> Shares:
    """Four ninths for live instances, as much for the folders, and one ninth for commits."""
    ninth = (memory_mib << 20) // 9
    return Shares(4 * ninth, 4 * ninth, ninth)


class States:
    """The stores of a process, opened as they are asked for.

    With ``store_every``, commits wait in memory until there are as many, or the share of one of ``tasks`` is full.
    """

    def __init__(
        self, folder: Path, app: str, store_every: int = 1, tasks: int = 1, memory_mib: int = DEFAULT_MIB
    ) -> None:
        shares = shares_of(memory_mib)
        self._folder = folder
        self._app = app
        self._memory = StateMemory(shares.folder_bytes)
        self._store_every = store_every
        self._waiting_bytes = shares.waiting_bytes // max(1, tasks)

    def take(self, number: int) -> Store:
        """The store of a task. The caller must close it."""
        store = open_or_set_aside(self._folder / str(number), StateIdentity(self._app, number), self._memory)
        if self._store_every == 1:
            return store
        return OverlayStore(store, self._store_every, self._waiting_bytes)
