"""How the memory for the state of a process is shared out.

All of it is a bound, not a reservation. Beside it a process needs memory for Python and its libraries (about
70 MiB), for records that it has read and not yet handled, and for the partitions of keys that it has emitted
lately (about 100 bytes a key, for at most a million keys).
"""

from __future__ import annotations

from typing import NamedTuple

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
