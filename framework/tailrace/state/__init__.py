"""Stores of keyed state: rows in memory or in RocksDB, behind the store interface of `core`.

A store writes one commit at a time, atomically, with its position in the log. In front of a store on disk, an
overlay can keep some commits in memory and write them together. It does not know what its rows mean.
"""

from __future__ import annotations

from pathlib import Path

from tailrace.core.storage import Store
from tailrace.state.folder import StateIdentity
from tailrace.state.memory import MemoryStore
from tailrace.state.overlay import OverlayStore
from tailrace.state.rocks import RocksStore
from tailrace.state.tuning import StateMemory

__all__ = ["MemoryStore", "OverlayStore", "RocksStore", "StateIdentity", "StateMemory", "open_store"]


def open_store(folder: Path | None, identity: StateIdentity, memory: StateMemory | None = None) -> Store:
    """The store of one task: in ``folder``, or only in memory if that is None.

    The stores of a process should share one ``memory``. Raises the errors of ``RocksStore``.
    """
    return MemoryStore() if folder is None else RocksStore(folder, identity, memory)
