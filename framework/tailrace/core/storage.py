"""The interface through which the core reads state, and the guarantees of a store.

The core never opens a file: it gets a ``StateReader`` and reads rows from it. A row is a pair of byte
strings; ``rows`` defines their meaning. Rows are ordered by their key bytes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Protocol, runtime_checkable


class StateReader(Protocol):
    """Committed rows of one task, as the core sees them."""

    def get(self, row: bytes, /) -> bytes | None:
        """The value stored under ``row``, or None."""
        ...

    def get_many(self, rows: Sequence[bytes], /) -> list[bytes | None]:
        """The values of several rows, in the order asked for."""
        ...

    def scan(self, start: bytes, stop: bytes, /, *, reverse: bool = False) -> Iterator[tuple[bytes, bytes]]:
        """The rows with ``start <= row < stop``, ascending by key bytes, or descending."""
        ...


@runtime_checkable
class Store(StateReader, Protocol):
    """A durable home for the rows of one task.

    A store is written only after the log has committed the same rows, so it is never ahead of the log. The
    cut of each batch is its position: an opaque blob, stored and returned unchanged.
    """

    @property
    def cut(self) -> bytes | None:
        """The cut of the last batch written, or None for a new store."""
        ...

    def write(self, rows: Mapping[bytes, bytes | None], cut: bytes, /) -> None:
        """Apply a batch and its cut atomically: all or nothing after a crash. A None value deletes a row."""
        ...

    def close(self) -> None:
        """Flush and release the folder. A closed store may be closed again."""
        ...
