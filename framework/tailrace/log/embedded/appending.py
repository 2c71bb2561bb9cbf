"""Appends to the log: one frame for each commit, under the lock, completely or not at all.

The steps, each of which needs the one before: take the lock; follow the log to its end; cut off the incomplete frame of a dead
writer; let the caller check that it still holds its id, and provide the frame; write; sync, depending on the policy; follow
the log over the new frame; release the lock.
"""

from __future__ import annotations

import os
import threading
import time
import zlib
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from typing import Literal, TypeAlias

from tailrace.core.errors import CommitUnknownError, CorruptLogError, LogUnavailableError
from tailrace.log.embedded.failures import as_log_error, failing
from tailrace.log.embedded.files import SegmentFiles
from tailrace.log.embedded.folder import first_of_segment
from tailrace.log.embedded.frames import REPAIR, Meta, SegmentName, encode_frame
from tailrace.log.embedded.lock import AppendLock
from tailrace.log.embedded.view import View

FsyncPolicy: TypeAlias = Literal["never", "commit", "interval"]


class Appender:
    """Does all writes of one ``EmbeddedLog``. Many threads can use it; they take turns."""

    def __init__(
        self,
        files: SegmentFiles,
        lock: AppendLock,
        view: View,
        *,
        fsync: FsyncPolicy,
        fsync_interval_s: float,
        segment_bytes: int,
    ) -> None:
        self.files = files
        self.lock = lock
        self.view = view
        self.bytes_cut_off = 0
        """Number of bytes of incomplete commits that this process has cut off."""
        self._fsync = fsync
        self._interval_s = fsync_interval_s
        self._segment_bytes = segment_bytes
        self._mutex = threading.Lock()
        self._failure: OSError | None = None
        self._unsynced = threading.Event()
        self._closing = threading.Event()
        self._syncing: threading.Thread | None = None
        self._process = os.getpid()

    @contextmanager
    def turn(self) -> Generator[View]:
        """Hold the lock. Inside the block the view is at the log's end, and the log ends with a complete frame."""
        with self._mutex, self.lock.held() as machine_was_down:
            if self._failure is not None:
                raise LogUnavailableError(
                    f"an earlier commit could not be synced to the disk: {self._failure}",
                    hint="What the disk holds is not known to this process any more: restart it.",
                ) from self._failure
            view = self.view
            view.refresh()
            if machine_was_down:
                self._recover()
            with failing(self.files.folder, "repairing the log"):
                if view.torn:
                    self.bytes_cut_off += view.torn
                    self.files.truncate(view.active, view.position)
            if view.sealed:
                self._open_next()
            elif view.position >= self._segment_bytes:
                self._seal()
            yield view

    def write(self, meta: Meta, blocks: Sequence[bytes] = ()) -> None:
        """Append a frame, in a turn.

        Raises:
            LogUnavailableError: The frame was not written, and no reader will see any part of it.
            CommitUnknownError: The frame was written and is visible, but it could not be synced to the disk or read back.
        """
        view = self.view
        head = encode_frame(meta, sum(map(len, blocks)), view.sequence + 1, view.synced)
        try:
            self.files.write(view.active, view.position, [head, *blocks])
        except OSError as error:
            raise as_log_error(error, self.files.folder, "appending a commit") from error
        if self._fsync == "commit":
            self._sync()
        elif self._fsync == "interval":
            self._sync_later()
        try:
            view.refresh()
        except LogUnavailableError as error:
            # Other processes see the commit, so it must not be repeated.
            raise CommitUnknownError(
                f"what was committed last could not be read back: {error}",
                hint="Take the transactional id over again and read what is there.",
            ) from error
        if self._fsync == "commit":
            view.synced = view.position

    def roll(self) -> None:
        """Seal the active segment, in a turn."""
        self._seal()

    def write_starts(self, starts: Sequence[tuple[str, int, int]]) -> None:
        """Write new start offsets of partitions, in a turn."""
        self.write(Meta(now_ms(), starts=starts))

    def write_cleaned(self, cleaned: Mapping[int, int]) -> None:
        """Write a frame that names the new generations of segments."""
        with self.turn():
            self.write(Meta(now_ms(), cleaned=cleaned))

    def sync(self) -> None:
        """Wait until all commits of this process are on the disk, whatever the policy."""
        if self._failure is None:
            self._unsynced.clear()
            self._sync()

    def close(self) -> None:
        """Stop the thread that syncs at intervals, after a last sync."""
        self._closing.set()
        if self._syncing is not None and self._process == os.getpid():
            self._unsynced.set()
            self._syncing.join()

    # --- segments

    def _seal(self) -> None:
        """Seal the segment: it is then on the disk, and only cleaning changes it."""
        view, sealed = self.view, self.view.active
        with failing(self.files.folder, "sealing a segment"):
            self.files.sync(sealed)
            view.synced = view.position
        self.write(Meta(now_ms(), sealed=True))
        with failing(self.files.folder, "sealing a segment"):
            self.files.sync(sealed)
        self._open_next()

    def _open_next(self) -> None:
        """Create the index of the sealed segment and the next segment. A writer that died may have left this undone."""
        view, sealed = self.view, self.view.active
        state = view.catalog.state()
        with failing(self.files.folder, "beginning a segment"):
            self.files.create(sealed.index_file, [view.indexes[sealed.number].encode()])
            following = SegmentName(sealed.number + 1)
            first = first_of_segment(following, state, sequence=view.sequence + 1, now_ms=now_ms())
            self.files.create(following.file, first)
        view.refresh()

    # --- the disk

    def _recover(self) -> None:
        """After a power loss, check the frames that may not have been synced, and cut the log at the first damaged one."""
        view = self.view
        name, bad = view.active, None
        for position, head, meta in view.frames(name):
            begin = position + head.length - head.body_length
            if position + head.length <= view.synced:
                continue
            if not whole(self.files, name, begin, meta):
                bad = position
                break
        if bad is not None:
            with failing(self.files.folder, "repairing the log"):
                self.bytes_cut_off += self.files.size(name) - bad
                self.files.truncate(name, bad)
            view.load()
        self._sync()

    def _sync(self) -> None:
        try:
            self.files.sync(self.view.active)
        except OSError as error:
            # The kernel reports a failed write-back only once, so later successful syncs prove nothing.
            self._failure = error
            raise CommitUnknownError(
                f"what was committed last could not be synced to the disk in {str(self.files.folder)!r}: {error}",
                hint="Look at the disk, restart, and read what is there.",
            ) from error

    def _sync_later(self) -> None:
        self._unsynced.set()
        if self._syncing is None or self._process != os.getpid():
            self._process = os.getpid()
            self._syncing = threading.Thread(
                target=self._sync_at_intervals, name="tailrace-log-sync", daemon=True
            )
            self._syncing.start()

    def _sync_at_intervals(self) -> None:
        while self._failure is None:
            self._unsynced.wait()
            ended = self._closing.wait(self._interval_s)
            self._unsynced.clear()
            try:
                self._sync()
            except CommitUnknownError:
                return  # the next turn raises the error
            if ended:
                return


def whole(files: SegmentFiles, name: SegmentName, body: int, meta: Meta) -> bool:
    """Whether the checksums of all blocks of a frame match."""
    return all(
        zlib.crc32(files.read(name, body + block.position, block.length)) == block.checksum
        for block in meta.blocks
    )


def check_whole(view: View, name: SegmentName) -> None:
    """Read a segment to its end, and check it.

    Raises:
        CorruptLogError: A checksum in it does not match.
    """
    for position, head, meta in view.frames(name):
        if not whole(view.files, name, position + head.length - head.body_length, meta):
            raise CorruptLogError(
                "a commit does not have its checksum",
                segment=name.file,
                position=position,
                hint=REPAIR,
            )


def now_ms() -> int:
    """The current time in milliseconds since the epoch."""
    return time.time_ns() // 1_000_000
