"""What a power cut may leave on the disk: crash states, built from a recording.

Theory. The model is ext4 as it is mounted by default (``data=ordered``, delayed allocation), without the favours that are
options: nothing is flushed because a file is renamed over another (``auto_da_alloc``) or because five seconds are over. What
is allowed here and is not allowed by a particular kernel makes the test stricter, not wrong.

    names        creates, links, renames, unlinks, folders and truncations go to a journal, which is committed in their order.
                 After a cut the names are those after some prefix of these operations: the *commit point*. It may be
                 anywhere between what a sync has forced and the cut.
    data         is written back page by page, at any time and in any order, each page in any version that it had since the
                 last sync of its file. A page in flight at the cut may be torn between sectors of 512 bytes.
    size         grows when a page behind the old end has been written back (delayed allocation), and is journaled: so growth
                 after the commit point is lost with its pages. A page before it that was not written back is a hole and reads
                 as zeros. Pages that were on the disk before are overwritten in place: no journal protects them.
    fsync        of a file: all of its pages and its size are on the disk, and the journal is committed up to the last change
                 of its inode; up to now, if blocks had to be allocated for it. Of a folder: up to the last change of a name
                 in it.
    fdatasync    the same, but a change of a name alone (rename, link, unlink) does not force a commit.
    sync         everything.

Two folders directly below the root may be two disks: then each has a commit point of its own.

Sources: Documentation/filesystems/ext4 of the kernel (journal, "data mode"; the options ``auto_da_alloc`` and ``delalloc`` in
admin-guide/ext4); ``ext4_sync_file`` and ``ext4_update_inode_fsync_trans`` (which transaction a sync waits for); Pillai et al.,
"All File Systems Are Not Created Equal", OSDI 2014 (the method, and its table of orders that file systems keep).

Not modelled: a disk that lies about its flushes, bad sectors (see ``corruption.py``), and file systems without an order of names.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

from tests.power.recording import (
    CREATE,
    FDATASYNC,
    FSYNC,
    LINK,
    MAKE_FOLDER,
    MARK,
    REMOVE_FOLDER,
    RENAME,
    SYNC_ALL,
    TRUNCATE,
    UNLINK,
    WRITE,
    Operation,
    change_content,
    change_names,
)

PAGE = 4096
SECTOR = 512
_WHOLE = 1 << 62
_NAMES = frozenset({CREATE, LINK, RENAME, UNLINK, MAKE_FOLDER, REMOVE_FOLDER})
_POINTS: tuple[Callable[[int, int, Random], int], ...] = (
    lambda least, _, __: least,
    lambda _, most, __: most,
    lambda least, most, random: random.randint(least, most),
)
"""Where the journal's commit point may be: as early or late as possible, or anywhere between."""
_SHARES = (0.0, 0.02, 0.3, 1.0)
"""Of pages that are written back by themselves, per write to the file: none, few, many, all."""


@dataclass(frozen=True, slots=True)
class Cut:
    """A power cut: before operation ``at``, with a commit point for each disk, and a share of pages written back."""

    at: int
    committed: dict[str, int]
    """By folder below the root: the operations before this one are committed."""
    share: float
    seed: int

    def __str__(self) -> str:
        points = ", ".join(f"{name} committed to {point:,}" for name, point in sorted(self.committed.items()))
        return f"cut before operation {self.at:,}, {points}, {self.share:.0%} of pages written back (seed {self.seed})"


@dataclass(slots=True)
class _File:
    """A file in memory, and on the disk."""

    live: bytearray
    disk: bytearray = field(default_factory=bytearray)
    dirty: set[int] = field(default_factory=set[int])
    """Pages that differ from the disk."""
    attached: int = _WHOLE
    """From this size on, pages belong to a file that a truncation has freed on the journal alone: the disk keeps the old ones."""

    def write_back(self, page: int, *, grows: bool, torn: slice | None = None) -> None:
        """Write one page to the disk. ``grows``: the journal has, or will have, the new size."""
        start = page * PAGE
        stop = min(start + PAGE, len(self.live), len(self.disk) if not grows else len(self.live))
        self.dirty.discard(page)
        if start >= self.attached or start >= stop:
            return
        if len(self.disk) < stop:
            self.disk.extend(bytes(stop - len(self.disk)))
        part = range(start, stop) if torn is None else range(start, stop)[torn]
        if part:
            self.disk[part.start : part.stop] = self.live[part.start : part.stop]

    def sync(self) -> None:
        """Everything is on the disk."""
        if self.attached < _WHOLE or len(self.disk) > len(self.live):
            self.disk[:] = self.live
        for page in list(self.dirty):
            self.write_back(page, grows=True)
        self.disk.extend(bytes(len(self.live) - len(self.disk)))
        self.attached = _WHOLE


class Recorded:
    """A recording, prepared for cuts."""

    def __init__(self, operations: list[Operation]) -> None:
        self.operations = operations
        self.disks = sorted({_disk_of(one) for one in operations if one.path} - {""})
        self._forced = self._find_forced()
        self.marks = [(at, one.data.decode()) for at, one in enumerate(operations) if one.kind == MARK]

    def promised(self, cut: Cut) -> list[str]:
        """What was promised before a cut."""
        return [text for at, text in self.marks if at < cut.at]

    def synced(self, cut: Cut, path: str) -> list[str]:
        """What was promised before the last sync, before a cut, of a file or of those that had its name before it."""
        last, paths = 0, dict[str, int]()
        for at, one in enumerate(self.operations[: cut.at]):
            change_names(paths, one)
            if one.kind in (FSYNC, FDATASYNC) and one.file == paths.get(path, -1):
                last = at
        return [text for at, text in self.marks if at < last]

    def cut(self, seed: int) -> Cut:
        """A cut drawn from a seed: anywhere, or right behind an operation that changes names, syncs or promises."""
        random = Random(f"cut {seed}")
        if random.random() < 0.5:
            at = random.randrange(len(self.operations) + 1)
        else:
            at = 1 + random.choice([at for at, one in enumerate(self.operations) if one.kind != WRITE])
        return self.cut_at(at, random, seed)

    def cut_at(self, at: int, random: Random, seed: int = 0) -> Cut:
        """A cut before an operation, with a drawn commit point of each disk, or of one that holds everything."""
        least = self._least(at)
        if random.random() < 0.5:
            least = dict.fromkeys(least, max(least.values(), default=0))
            point = random.choice(_POINTS)(max(least.values(), default=0), at, random)
            return Cut(at, dict.fromkeys(least, point), random.choice(_SHARES), seed)
        points = {name: random.choice(_POINTS)(forced, at, random) for name, forced in least.items()}
        return Cut(at, points, random.choice(_SHARES), seed)

    def worst_cut(self, at: int) -> Cut:
        """The cut before an operation that leaves nothing but what syncs have forced."""
        return Cut(at, self._least(at), 0.0, 0)

    def _least(self, at: int) -> dict[str, int]:
        """By disk, up to where syncs before an operation have forced the journal."""
        return {
            name: max(
                (forced for done, disk, forced in self._forced if done < at and disk in ("", name)), default=0
            )
            for name in self.disks
        }

    def build(self, cut: Cut, folder: Path) -> None:
        """Write the state after a cut into an empty folder."""
        names, files = self._state(cut)
        for path, number in sorted(names.items()):
            target, file = folder / path, files[number]
            if file is None:
                target.mkdir(parents=True, exist_ok=True)
            else:
                target.write_bytes(file.disk)

    def _state(self, cut: Cut) -> tuple[dict[str, int], dict[int, _File | None]]:
        random = Random(f"pages {cut.seed} {cut.at}")
        names: dict[str, int] = {}
        files: dict[int, _File | None] = {0: None}
        where: dict[int, str] = {0: ""}
        content: dict[int, bytearray | None] = {0: None}
        for at, one in enumerate(self.operations[: cut.at]):
            if one.kind in (CREATE, MAKE_FOLDER):
                files[one.file] = _File(bytearray()) if one.kind == CREATE else None
                content[one.file] = None if (made := files[one.file]) is None else made.live
                where[one.file] = _disk_of(one)
            committed = at < cut.committed.get(where.get(one.file, ""), cut.at)
            if one.kind in _NAMES:
                if committed:
                    change_names(names, one)
                continue
            if one.kind == SYNC_ALL:
                for known in filter(None, files.values()):
                    known.sync()
                continue
            file = files.get(one.file)
            if file is None:
                continue
            change_content(content, one)
            if one.kind in (FSYNC, FDATASYNC):
                file.sync()
            elif one.kind == WRITE:
                self._written(file, one, cut, random, grows=committed)
            elif one.kind == TRUNCATE:
                _truncated(file, one.size, committed=committed)
        for number, left in files.items():
            if left is not None and left.dirty:
                grows = cut.committed.get(where[number], cut.at) >= cut.at
                _last_pages(left, cut, random, grows=grows)
        return names, files

    def _written(self, file: _File, one: Operation, cut: Cut, random: Random, *, grows: bool) -> None:
        pages = range(one.offset // PAGE, -(-(one.offset + len(one.data)) // PAGE))
        file.dirty.update(pages)
        if cut.share and (cut.share == 1.0 or random.random() < 4 * cut.share):
            for page in sorted(file.dirty) if len(file.dirty) < 64 else pages:
                if random.random() < cut.share:
                    file.write_back(page, grows=grows)

    def _find_forced(self) -> list[tuple[int, str, int]]:
        """For each sync: where it stands, its disk (all: empty), and up to where it forces the journal."""
        found: list[tuple[int, str, int]] = []
        where: dict[int, str] = {0: ""}
        changed: dict[int, int] = {}
        """Of each file or folder, the operation after its last change of the journal that a sync waits for."""
        renamed: dict[int, int] = {}
        grown: dict[int, int] = {}
        """The size up to which blocks are allocated, of files with unsynced growth: the sync has to allocate them."""
        size: dict[int, int] = {}
        paths: dict[str, int] = {}
        for at, one in enumerate(self.operations):
            if one.kind in (CREATE, MAKE_FOLDER):
                where[one.file], changed[one.file], size[one.file] = _disk_of(one), at + 1, 0
            elif one.kind == TRUNCATE:
                changed[one.file] = at + 1
                size[one.file] = min(size.get(one.file, 0), one.size)
            elif one.kind == WRITE and one.offset + len(one.data) > size.get(one.file, 0):
                size[one.file] = grown[one.file] = one.offset + len(one.data)
            if one.kind in _NAMES:
                renamed[one.file] = at + 1
                for path in filter(None, (one.path, one.new_path)):
                    renamed[paths.get(path.rpartition("/")[0], 0)] = at + 1
                change_names(paths, one)
            elif one.kind in (FSYNC, FDATASYNC):
                forced = changed.get(one.file, 0)
                if one.kind == FSYNC:
                    forced = max(forced, renamed.get(one.file, 0))
                if grown.pop(one.file, None) is not None:
                    forced = at + 1
                found.append((at, where[one.file], forced))
            elif one.kind == SYNC_ALL:
                grown.clear()
                found.append((at, "", at + 1))
        return found


def _truncated(file: _File, size: int, *, committed: bool) -> None:
    file.dirty = {page for page in file.dirty if page * PAGE < size}
    if not committed:
        if size < len(file.disk):
            file.attached = min(file.attached, size)
        return
    if size < len(file.disk):
        del file.disk[size:]
    else:
        file.disk.extend(bytes(size - len(file.disk)))


def _last_pages(file: _File, cut: Cut, random: Random, *, grows: bool) -> None:
    """The pages that are still in memory at the cut: some were written before it, one may be torn."""
    if not cut.share:
        return
    for page in sorted(file.dirty):
        if random.random() < cut.share:
            sectors = random.randrange(1, PAGE // SECTOR) * SECTOR if random.random() < 0.1 else 0
            torn = None if not sectors else random.choice((slice(sectors), slice(sectors, None)))
            file.write_back(page, grows=grows, torn=torn)


def _disk_of(one: Operation) -> str:
    return one.path.partition("/")[0]
