"""Where keyed state is kept: rows in memory or in RocksDB, behind the store interface of `core`.

A store writes one commit at a time, atomically, with the log position it stands at.
It does not know what its rows mean.
"""

from __future__ import annotations

from pathlib import Path

from tailrace.core.storage import Store
from tailrace.state.folder import StateIdentity
from tailrace.state.memory import MemoryStore
from tailrace.state.rocks import RocksStore
from tailrace.state.tuning import StateMemory

__all__ = ["MemoryStore", "RocksStore", "StateIdentity", "StateMemory", "open_store"]


def open_store(folder: Path | None, identity: StateIdentity, memory: StateMemory | None = None) -> Store:
    """The store of one task: in ``folder``, or in memory only where that is None.

    Give every store of a process the same ``memory``; they share it. Raises what ``RocksStore`` raises.
    """
    return MemoryStore() if folder is None else RocksStore(folder, identity, memory)
