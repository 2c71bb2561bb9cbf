"""The interface of an archive's location. ``tailrace.state.snapshots.Place`` implements it; the caller passes it in."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, Self


class FolderEntry(Protocol):
    """Something in a folder."""

    @property
    def name(self) -> str:
        """Its last name."""
        ...

    @property
    def is_folder(self) -> bool:
        """Whether it is a folder."""
        ...


class Folder(Protocol):
    """A folder or file somewhere, there or not. Pickled by its URI."""

    def __truediv__(self, name: str) -> Self:
        """Something in it."""
        ...

    @property
    def shown(self) -> str:
        """Where it is, for a message."""
        ...

    @property
    def is_local(self) -> bool:
        """Whether it is a path of this machine."""
        ...

    @property
    def path(self) -> str:
        """That path."""
        ...

    def make(self) -> None:
        """Make the folder, where the place knows folders."""
        ...

    def entries(self) -> Sequence[FolderEntry]:
        """What the folder holds, by name; nothing where there is none."""
        ...

    def read(self) -> bytes:
        """The whole file. Raises FileNotFoundError."""
        ...

    def write(self, data: bytes, *, replace: bool = True) -> None:
        """Make a file of this content appear as a whole, and stay. Without ``replace`` raises FileExistsError."""
        ...

    def remove(self) -> bool:
        """Take a file away; False where there was none."""
        ...
