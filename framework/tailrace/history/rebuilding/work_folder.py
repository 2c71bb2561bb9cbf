"""The work folder: the intermediate files of a rebuild, from which a killed rebuild resumes.

::

    lock                     held by the driver
    job                      the job, settled once
    <snapshot>/              belongs to that job alone; the units get this folder
      done/<unit>            the result of a unit: written to another name and linked into place, so that the
                             first one stays
      progress/<unit>        the progress of a unit, written from time to time
      tasks/                 of each attempt at a task that is under way: its state and its outputs
      blocks/                files that one round passes to the next

It is a folder of this machine, or one that all machines share. A job that begins again because its code has
changed has a folder of its own: a process that still works for the previous job, or starts late, cannot write
into the new one.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Generator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

import msgspec
from filelock import FileLock, Timeout

from tailrace.core.errors import CorruptStateError, OptionError, StateInUseError
from tailrace.core.formats import FOLDER_MODE
from tailrace.history.rebuilding.job import Job, Unit
from tailrace.history.rebuilding.results import UnitResult, decode_result, encode_result
from tailrace.state.failures import as_state_error, state_failures

_EVERY_S = 0.25
_PATIENCE_S = 0.2
"""Time for a few attempts: one fails if the previous driver removes the lock's file during the attempt."""


class UnitProgress(msgspec.Struct):
    """The progress of a unit: records done, by whichever attempt, of all its records."""

    records: int = 0
    of: int = 0


class WorkFolder:
    """The contents of the folder, for any process."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.tasks = path / "tasks"
        self.blocks = path / "blocks"
        self._done = path / "done"
        self._progress = path / "progress"
        self._folders = (self.tasks, self.blocks, self._done, self._progress)
        self._told_s: dict[str, float] = {}

    @contextmanager
    def held(self) -> Generator[None]:
        """Create the folder, and lock it for one driver. Only this driver, and its units, change the
        contents.

        Raises:
            StateInUseError: Another driver works in it.
            StateUnavailableError: It cannot be created: no space, no permission.
            OptionError: A part of its path is a file.
        """
        try:
            lock = self._locked()
        except (NotADirectoryError, FileExistsError) as error:
            raise OptionError(
                f"{str(self.path)!r} cannot be made: a part of that path is a file",
                hint="Name a folder with --to, and with --work.",
            ) from error
        except Timeout:
            raise StateInUseError(
                "the same rebuild is under way in another process",
                path=str(self.path),
                hint="Wait for it, or end it and start again: it resumes where it was.",
            ) from None
        except OSError as error:
            raise as_state_error(error, self.path, "making the work folder") from error
        try:
            yield
        finally:
            lock.release()

    def _locked(self) -> FileLock:
        """The acquired lock. A driver that ends removes file and folder: the next attempt makes new ones."""
        lock = FileLock(self.path / "lock", timeout=_PATIENCE_S, thread_local=False, fallback_to_soft=False)
        while True:
            self.path.mkdir(FOLDER_MODE, parents=True, exist_ok=True)
            try:
                lock.acquire()
                return lock
            except FileNotFoundError:
                pass

    def make(self) -> None:
        """Create the folders that units work in. Raises StateUnavailableError: no space, no permission."""
        with state_failures(self.path, "making the work folder"):
            for folder in self._folders:
                folder.mkdir(parents=True, exist_ok=True)

    def job(self) -> Job | None:
        """The job that has begun here; None if there is none. Raises CorruptStateError: it cannot be read."""
        try:
            data = (self.path / "job").read_bytes()
        except FileNotFoundError:
            return None
        try:
            return msgspec.msgpack.decode(data, type=Job)
        except msgspec.MsgspecError as error:
            raise CorruptStateError(
                f"the rebuild that was begun cannot be read: {error}",
                path=str(self.path),
                hint="Remove the folder; the rebuild then begins from the start.",
            ) from error

    def begin(self, job: Job) -> None:
        """Store a settled job."""
        place, making = self.path / "job", self.path / ".job"
        with state_failures(place, "writing to the work folder"):
            self._write(making, msgspec.msgpack.encode(job))
            making.replace(place)

    def empty(self) -> None:
        """Remove everything that was done, the job first, so that no driver resumes with a part of it."""
        with suppress(FileNotFoundError):
            (self.path / "job").unlink()
        for entry in [*self.path.iterdir()] if self.path.is_dir() else ():
            if entry.is_dir() and not entry.is_symlink():
                shutil.rmtree(entry, ignore_errors=True)
            elif entry.name != "lock":
                entry.unlink(missing_ok=True)

    def clear(self) -> None:
        """Remove the folder, the lock last of all: a driver that waits for it then creates both again."""
        self.empty()
        with suppress(OSError):
            (self.path / "lock").unlink()
            self.path.rmdir()
            self.path.parent.rmdir()

    def result(self, unit: str) -> UnitResult | None:
        """The result of a unit; None if it is not done."""
        try:
            return decode_result((self._done / unit).read_bytes())
        except FileNotFoundError:
            return None

    def finish(self, unit: Unit, result: UnitResult) -> UnitResult:
        """Record that a unit is done. Returns the result that counts: that of the first attempt to finish."""
        place = self._done / unit.name
        making = self._done / f".{unit.name}-{result.attempt}"
        with state_failures(place, "noting what is done"):
            self._write(making, encode_result(result))
            try:
                os.link(making, place)
            except FileExistsError:
                pass
            finally:
                making.unlink()
        return self.result(unit.name) or result

    def forget(self, unit: str) -> None:
        """Forget the result of a unit whose files are missing: the unit must run again."""
        (self._done / unit).unlink(missing_ok=True)

    def report(self, unit: str, records: int, of: int, *, now: bool = False) -> None:
        """Record the progress of a unit; most calls do nothing."""
        at_s = time.monotonic()
        if not now and at_s - self._told_s.get(unit, 0.0) < _EVERY_S:
            return
        self._told_s[unit] = at_s
        place = self._progress / unit
        making = place.with_name(f".{unit}-{os.getpid()}")
        with suppress(OSError):  # progress is only for display
            making.write_bytes(msgspec.msgpack.encode(UnitProgress(records, of)))
            making.replace(place)

    def progress(self, units: Mapping[str, int]) -> UnitProgress:
        """The total progress of units, given the number of records of those that have not begun."""
        found = UnitProgress()
        for unit, expected in units.items():
            try:
                one = msgspec.msgpack.decode((self._progress / unit).read_bytes(), type=UnitProgress)
            except (OSError, msgspec.MsgspecError):
                one = UnitProgress(0, expected)
            found.records += one.records
            found.of += one.of
        return found

    @staticmethod
    def _write(place: Path, data: bytes) -> None:
        with place.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
