"""The segment files: opened once, read and written at positions; a write is complete or undone."""

from __future__ import annotations

import os
import re
import threading
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from pathlib import Path

from tailrace.log.embedded.frames import SegmentName

_MOST_OPEN = 64
_MOST_BUFFERS = 512  # of one write; the system's own limit is 1024
_NAME = re.compile(r"(\d{12})-(\d{4,})\.segment")
MAKING = ".making"
"""The suffix of an incomplete file. Only the process that creates it uses it."""


class SegmentFiles:
    """The segments of a folder. Thread-safe: there is no shared file position."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._mutex = threading.Lock()
        self._reading: OrderedDict[SegmentName, int] = OrderedDict()
        self._writing: tuple[SegmentName, int] | None = None

    def names(self) -> list[SegmentName]:
        """All segments in the folder in order, including unreferenced ones."""
        found = (_NAME.fullmatch(entry.name) for entry in self.folder.iterdir())
        return sorted(SegmentName(int(one[1]), int(one[2])) for one in found if one)

    def path(self, name: SegmentName) -> Path:
        """The path of a segment."""
        return self.folder / name.file

    def size(self, name: SegmentName) -> int:
        """The current length of a segment in bytes."""
        with self._mutex:
            return os.fstat(self._opened(name)).st_size

    def read(self, name: SegmentName, position: int, length: int) -> bytes:
        """Read ``length`` bytes; fewer if the file ends before."""
        with self._mutex:
            descriptor = self._opened(name)
            data = os.pread(descriptor, length, position)
            while len(data) < length and (
                more := os.pread(descriptor, length - len(data), position + len(data))
            ):
                data += more
            return data

    def write(self, name: SegmentName, position: int, buffers: Sequence[bytes]) -> None:
        """Write at the end of a segment. If the write fails, the file is truncated again, as far as that succeeds."""
        descriptor = self._opened_for_writing(name)
        try:
            write_all(descriptor, position, buffers)
        except OSError:
            os.ftruncate(descriptor, position)
            raise

    def truncate(self, name: SegmentName, length: int) -> None:
        """Truncate a segment."""
        os.ftruncate(self._opened_for_writing(name), length)

    def sync(self, name: SegmentName) -> None:
        """Wait until a segment is on the disk."""
        # With its own descriptor: another thread may open the next segment meanwhile.
        descriptor = os.open(self.path(name), os.O_WRONLY | os.O_CLOEXEC)
        try:
            os.fdatasync(descriptor)
        finally:
            os.close(descriptor)

    def create(self, file: str, buffers: Iterable[bytes]) -> None:
        """Create a file with this content, synced to the disk. The name appears only when the file is complete."""
        making = self.folder / (file + MAKING)
        descriptor = os.open(making, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
        try:
            position = 0
            for buffer in buffers:
                write_all(descriptor, position, [buffer])
                position += len(buffer)
            os.fsync(descriptor)
        except OSError:
            making.unlink(missing_ok=True)
            raise
        finally:
            os.close(descriptor)
        making.replace(self.folder / file)
        self.sync_folder()

    def sync_folder(self) -> None:
        """Sync the folder, so that the names of its files are on the disk."""
        descriptor = os.open(self.folder, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def forget(self, name: SegmentName) -> None:
        """Close a segment that is not needed any more. A deleted file uses disk space as long as a process has it open."""
        with self._mutex:
            descriptor = self._reading.pop(name, None)
            if descriptor is not None:
                os.close(descriptor)
            if self._writing is not None and self._writing[0] == name:
                os.close(self._writing[1])
                self._writing = None

    def close(self) -> None:
        """Close all files. They are opened again on demand."""
        with self._mutex:
            for descriptor in self._reading.values():
                os.close(descriptor)
            self._reading.clear()
            if self._writing is not None:
                os.close(self._writing[1])
                self._writing = None

    def _opened(self, name: SegmentName) -> int:
        descriptor = self._reading.get(name)
        if descriptor is not None:
            self._reading.move_to_end(name)
            return descriptor
        descriptor = os.open(self.path(name), os.O_RDONLY | os.O_CLOEXEC)
        self._reading[name] = descriptor
        if len(self._reading) > _MOST_OPEN:
            os.close(self._reading.popitem(last=False)[1])
        return descriptor

    def _opened_for_writing(self, name: SegmentName) -> int:
        with self._mutex:
            if self._writing is not None and self._writing[0] == name:
                return self._writing[1]
            descriptor = os.open(self.path(name), os.O_WRONLY | os.O_CLOEXEC)
            if self._writing is not None:
                os.close(self._writing[1])
            self._writing = (name, descriptor)
            return descriptor


def write_all(descriptor: int, position: int, buffers: Sequence[bytes]) -> None:
    """Write all buffers one after the other, in as many calls as necessary."""
    begin = 0
    while begin < len(buffers):
        some = [buffer for buffer in buffers[begin : begin + _MOST_BUFFERS] if buffer]
        begin += _MOST_BUFFERS
        left: list[bytes | memoryview] = list(some)
        while left:
            written = os.pwritev(descriptor, left, position)
            position += written
            while left and written >= len(left[0]):
                written -= len(left.pop(0))
            if written:
                left[0] = memoryview(left[0])[written:]
