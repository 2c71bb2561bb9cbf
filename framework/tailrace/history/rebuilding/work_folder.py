"""The work folder: what a rebuild keeps while it is under way, so that a killed one goes on.

::

    lock                     held by the driver
    job                      what was settled, once
    <snapshot>/              of that job alone; the units get this folder
      done/<unit>            the result of a unit: written beside and linked into place, so that the first one stays
      progress/<unit>        how far a unit has come, now and then
      tasks/<partition>/     a task on its way: its state, and its outputs up to that state
      blocks/                records dealt to shards, and what else one unit hands to another

It is a folder of this machine, or one that all machines share. A job that is begun again, as its code has changed, has a folder of
its own: a process that is still at work for the job before, or starts late, cannot leave anything in the new one.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Generator, Iterable
from contextlib import contextmanager, suppress
from pathlib import Path

import msgspec
from filelock import FileLock, Timeout

from tailrace.core.errors import CorruptStateError, StateInUseError, UsageError
from tailrace.history.rebuilding.job import Job, Unit, UnitResult, decode_result, encode_result
from tailrace.state.failures import as_state_error

_EVERY_S = 0.25
_PATIENCE_S = 0.2
"""Time for a few attempts: one fails if the driver before removes the lock's file in the middle of it."""


class UnitProgress(msgspec.Struct):
    """How far a unit has come: of its whole way, whichever attempt has gone it."""

    records: int = 0
    of: int = 0


class WorkFolder:
    """What is in the folder, as any process sees it."""

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
        """Make the folder, and hold it for one driver, which is the only one that changes what is in it.

        Raises:
            StateInUseError: Another driver is at work in it.
            StateUnavailableError: It cannot be made: no space, no permission.
            UsageError: A file is in its way.
        """
        try:
            lock = self._locked()
        except (NotADirectoryError, FileExistsError) as error:
            raise UsageError(
                f"{str(self.path)!r} cannot be made: a part of that path is a file",
                hint="Name a folder with --to, and with --work.",
            ) from error
        except Timeout:
            raise StateInUseError(
                "the same rebuild is under way in another process",
                path=str(self.path),
                hint="Wait for it, or end it and start again: this goes on where it was.",
            ) from None
        except OSError as error:
            raise as_state_error(error, self.path, "making the work folder") from error
        try:
            yield
        finally:
            lock.release()

    def _locked(self) -> FileLock:
        """The lock, held. A driver that ends removes the file, then the folder: the next attempt makes both again."""
        lock = FileLock(self.path / "lock", timeout=_PATIENCE_S, thread_local=False, fallback_to_soft=False)
        while True:
            self.path.mkdir(parents=True, exist_ok=True)
            try:
                lock.acquire()
                return lock
            except FileNotFoundError:
                pass

    def make(self) -> None:
        """Make the folders that units work in.

        Raises:
            StateUnavailableError: No space, no permission.
        """
        try:
            for folder in self._folders:
                folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise as_state_error(error, self.path, "making the work folder") from error

    # --- the job

    def job(self) -> Job | None:
        """The job that was begun here, if one was.

        Raises:
            CorruptStateError: It cannot be read.
        """
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
                hint="Remove the folder; the rebuild then begins anew.",
            ) from error

    def begin(self, job: Job) -> WorkFolder:
        """Keep what was settled; the folder of its units."""
        units = WorkFolder(Path(job.work))
        units.make()
        self._put(self.path / "job", msgspec.msgpack.encode(job))
        return units

    def empty(self) -> None:
        """Remove all that was done, the job first, so that nobody goes on with a part of it."""
        with suppress(FileNotFoundError):
            (self.path / "job").unlink()
        for entry in [*self.path.iterdir()] if self.path.is_dir() else ():
            if entry.is_dir() and not entry.is_symlink():
                shutil.rmtree(entry, ignore_errors=True)
            elif entry.name != "lock":
                entry.unlink(missing_ok=True)

    def clear(self) -> None:
        """Remove the folder, the lock last of all: whoever waits for it then makes both again."""
        self.empty()
        with suppress(OSError):
            (self.path / "lock").unlink()
            self.path.rmdir()
            self.path.parent.rmdir()

    # --- results of units

    def result(self, unit: str) -> UnitResult | None:
        """The result of a unit that is done."""
        try:
            return decode_result((self._done / unit).read_bytes())
        except FileNotFoundError:
            return None

    def finish(self, unit: Unit, result: UnitResult) -> UnitResult:
        """Say that a unit is done. Returns the result that counts: that of whoever said so first."""
        place = self._done / unit.name
        making = self._done / f".{unit.name}-{result.attempt}"
        try:
            self._write(making, encode_result(result))
            try:
                os.link(making, place)
            except FileExistsError:
                pass
            finally:
                making.unlink()
        except OSError as error:
            raise as_state_error(error, place, "noting what is done") from error
        return self.result(unit.name) or result

    def forget(self, unit: str) -> None:
        """What a unit had made is there no more: it is to be done again."""
        (self._done / unit).unlink(missing_ok=True)

    # --- progress

    def report(self, unit: str, records: int, of: int, *, now: bool = False) -> None:
        """Note how far a unit has come; most calls do nothing."""
        at_s = time.monotonic()
        if not now and at_s - self._told_s.get(unit, 0.0) < _EVERY_S:
            return
        self._told_s[unit] = at_s
        place = self._progress / unit
        making = place.with_name(f".{unit}-{os.getpid()}")
        with suppress(OSError):  # nothing depends on it
            making.write_bytes(msgspec.msgpack.encode(UnitProgress(records, of)))
            making.replace(place)

    def progress(self, units: Iterable[str]) -> UnitProgress:
        """How far units have come, together."""
        found = UnitProgress()
        for unit in units:
            try:
                one = msgspec.msgpack.decode((self._progress / unit).read_bytes(), type=UnitProgress)
            except (OSError, msgspec.MsgspecError):
                continue
            found.records += one.records
            found.of += one.of
        return found

    # --- writing

    def _put(self, place: Path, data: bytes) -> None:
        making = place.with_name(f".{place.name}")
        try:
            self._write(making, data)
            making.replace(place)
        except OSError as error:
            raise as_state_error(error, place, "writing to the work folder") from error

    @staticmethod
    def _write(place: Path, data: bytes) -> None:
        with place.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
