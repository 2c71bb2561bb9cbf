"""The state folders of a process."""

from __future__ import annotations

from pathlib import Path

from tailrace.core.storage import Store
from tailrace.runtime.memory_shares import DEFAULT_MIB, shares_of
from tailrace.state import OverlayStore, StateIdentity, StateMemory
from tailrace.state.damaged import open_or_set_aside


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
