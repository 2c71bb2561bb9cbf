"""A state folder: its owner, its format, and its lock.

::

    <folder>/tailrace-state.json    the label: format, app, partition, checksum
    <folder>/lock                   locked by the process that has the folder open; the lock dies with the process
    <folder>/rocksdb/               the database

A folder is checked before anything in it is changed. It is refused, and left unchanged, unless it is absent,
empty, or labelled with the same app and partition and a known format. The label is written twice: incomplete
before the database is created, complete after. So the remains of an interrupted start are known to hold no
rows, and are replaced. A complete label without a database is damage.
"""

from __future__ import annotations

import os
import shutil
import zlib
from dataclasses import dataclass
from pathlib import Path

import msgspec
from filelock import FileLock, Timeout

from tailrace.core.errors import CorruptStateError, StateFolderError, StateUnavailableError
from tailrace.core.formats import FOLDER_MODE, check_format
from tailrace.state.failures import REBUILD, in_use, state_failures

FORMAT = 2
"""Version of the folder's layout, of its label and of how the database keeps rows and cut."""

LABEL = "tailrace-state.json"
LOCK = "lock"
DATABASE = "rocksdb"

_LABEL_IN_THE_MAKING = f"{LABEL}.new"
_BEFORE_A_LABEL = frozenset({LOCK, _LABEL_IN_THE_MAKING})


@dataclass(frozen=True, slots=True)
class StateIdentity:
    """The owner of the state."""

    app: str
    partition: int


class _Label(msgspec.Struct, kw_only=True, frozen=True):
    format: int
    app: str
    partition: int
    complete: bool
    checksum: int = 0

    def to_bytes(self) -> bytes:
        """Readable JSON, with the checksum of its other fields."""
        plain = msgspec.structs.replace(self, checksum=0)
        sealed = msgspec.structs.replace(plain, checksum=zlib.crc32(msgspec.json.encode(plain)))
        return msgspec.json.format(msgspec.json.encode(sealed)) + b"\n"


class _AnyLabel(msgspec.Struct):
    """The fields that the labels of all formats share."""

    format: int


class StateFolder:
    """A folder that this process holds, from construction until ``release``.

    Raises StateFolderError, FormatError, CorruptStateError, StateInUseError or
    StateUnavailableError; the folder is then unchanged.
    """

    def __init__(self, path: Path, identity: StateIdentity) -> None:
        self.path = path
        self.database = path / DATABASE
        self._identity = identity
        with state_failures(path, "opening the state folder"):
            self._look()  # refuse before creating a lock in a folder of another owner
            self._lock = self._hold()
            try:
                label = self._look()
                self.is_new = label is None or not label.complete
                if self.is_new:
                    self._write_label(complete=False)
                    if self.database.exists():
                        shutil.rmtree(self.database)
                elif not (self.database / "CURRENT").is_file():
                    raise CorruptStateError(
                        "the database is missing or has lost its CURRENT", path=str(path), hint=REBUILD
                    )
            except BaseException:
                self.release()
                raise

    def complete(self) -> None:
        """Record that the database exists, in this version's format. From here on its absence is damage."""
        if self.is_new:
            with state_failures(self.path, "creating the state folder"):
                self._write_label(complete=True)
            self.is_new = False

    def release(self) -> None:
        """Release the folder for another store."""
        self._lock.release()

    def _look(self) -> _Label | None:
        """The label, if the folder may be used; None for a folder that is absent or empty."""
        try:
            names = {entry.name for entry in self.path.iterdir()}
        except FileNotFoundError:
            return None
        except NotADirectoryError:
            raise self._foreign("the path of the state folder leads to a file") from None
        if LABEL not in names:
            if strangers := sorted(names - _BEFORE_A_LABEL):
                raise self._foreign(f"the folder holds something else: {', '.join(strangers[:3])}")
            return None
        return self._read_label()

    def _read_label(self) -> _Label:
        data = (self.path / LABEL).read_bytes()
        try:
            any_label = msgspec.json.decode(data, type=_AnyLabel)
            check_format("the state", any_label.format, FORMAT, path=str(self.path), hint=REBUILD)
            label = msgspec.json.decode(data, type=_Label)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise CorruptStateError(
                f"the label {LABEL} cannot be read: {error}", path=str(self.path), hint=REBUILD
            ) from error
        if label.to_bytes() != data:
            raise CorruptStateError(
                f"the label {LABEL} does not match its checksum", path=str(self.path), hint=REBUILD
            )
        ours = self._identity
        if (label.app, label.partition) != (ours.app, ours.partition):
            raise self._foreign(
                f"the folder holds the state of app {label.app!r}, partition {label.partition}, "
                f"not of app {ours.app!r}, partition {ours.partition}"
            )
        return label

    def _foreign(self, what: str) -> StateFolderError:
        hint = (
            "Give this task a folder of its own, or move the content away. Nothing in the folder was changed."
        )
        return StateFolderError(what, path=str(self.path), hint=hint)

    def _hold(self) -> FileLock:
        try:
            self.path.mkdir(FOLDER_MODE, parents=True, exist_ok=True)
        except FileNotFoundError as error:  # a file system without folders, such as /proc
            raise StateUnavailableError(
                f"the state folder cannot be created: {error}",
                path=str(self.path),
                hint="Give another folder (of a service: --state).",
            ) from error
        lock = FileLock(self.path / LOCK, timeout=0, thread_local=False, fallback_to_soft=False)
        try:
            lock.acquire()
        except Timeout:
            raise in_use(self.path) from None
        return lock

    def _write_label(self, *, complete: bool) -> None:
        """Replace the label atomically: after a crash it is the old one or the new one."""
        ours = self._identity
        label = _Label(format=FORMAT, app=ours.app, partition=ours.partition, complete=complete)
        making = self.path / _LABEL_IN_THE_MAKING
        with making.open("wb") as file:
            file.write(label.to_bytes())
            file.flush()
            os.fsync(file.fileno())
        making.replace(self.path / LABEL)
        folder = os.open(self.path, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
