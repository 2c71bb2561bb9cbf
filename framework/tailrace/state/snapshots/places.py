"""Places: folders on a disk or in an object store, by URI, with the few operations that snapshots need.

A place is a plain path, ``file://``, ``s3://bucket/prefix?endpoint_override=...`` or another URI that pyarrow
reaches. The guarantees are the same everywhere:

- ``write`` makes a whole file appear, or nothing: on a disk a temporary file, flushed, then renamed; in an
  object store one PUT.
- ``stream`` makes a file that may be left in half by a crash; nobody looks at one that no manifest names.
- A file that has been written is there after a power cut once ``settle`` has returned (on a disk; elsewhere
  by its store).
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any, NamedTuple
from urllib.parse import unquote, urlsplit
from uuid import uuid4

from tailrace.core.errors import SnapshotUnavailableError, TailraceError
from tailrace.core.formats import FOLDER_MODE
from tailrace.state.failures import outage_of
from tailrace.state.snapshots.arrow import filesystems, pa

_OBJECT_STORES = frozenset({"s3", "gcs", "abfs"})
"""Stores without folders: making one would leave an empty object."""

WRITING = "writing"
_MAKING = "making the folder"


class Entry(NamedTuple):
    """Something in a folder. ``size`` in bytes and ``changed_ms`` are those of a file."""

    name: str
    is_folder: bool
    size: int
    changed_ms: int | None


class Place:
    """A folder or file, there or not. Pickled by its URI."""

    def __init__(self, uri: str, filesystem: Any, path: str) -> None:
        self.uri = uri
        self._filesystem = filesystem
        self.path = path
        """The path as ``filesystem`` takes it."""

    @classmethod
    def at(cls, uri: str | os.PathLike[str]) -> Place:
        """The place a URI or path names. Raises MissingExtraError or SnapshotUnavailableError."""
        text = os.fspath(uri)
        scheme, colon, _ = text.partition("://")
        if not colon:
            return cls(str(Path(text).absolute()), None, str(Path(text).absolute()))
        if scheme == "file":
            path = unquote(urlsplit(text).path)
            return cls(path, None, path)
        filesystem, path = _reached(text)
        return cls(text, filesystem, path.rstrip("/"))

    def __reduce__(self) -> tuple[Any, ...]:
        return Place.at, (self.uri,)

    def __truediv__(self, name: str) -> Place:
        head, mark, query = self.uri.partition("?") if self._filesystem is not None else (self.uri, "", "")
        return Place(f"{head.rstrip('/')}/{name}{mark}{query}", self._filesystem, f"{self.path}/{name}")

    def __repr__(self) -> str:
        return f"Place({self.shown!r})"

    @property
    def is_local(self) -> bool:
        """Whether it is a path of this machine."""
        return self._filesystem is None

    @property
    def shown(self) -> str:
        """The URI as it may be shown: without what could be a secret."""
        return self.path if self._filesystem is None else _without_secrets(self.uri)

    @property
    def filesystem(self) -> Any:
        """The pyarrow file system that reaches it."""
        return filesystems.LocalFileSystem() if self._filesystem is None else self._filesystem

    def read(self) -> bytes:
        """The whole file. Raises FileNotFoundError or SnapshotUnavailableError."""
        with self.open() as stream:
            return bytes(stream.read())

    @contextmanager
    def open(self) -> Generator[Any]:
        """The file, open for reading by pyarrow. Raises FileNotFoundError or SnapshotUnavailableError."""
        with self.failures("reading"):
            if self._filesystem is None and os.path.exists(self.path) and not os.path.isfile(self.path):  # noqa: PTH110, PTH113
                raise OSError("it is no regular file")
            with self.filesystem.open_input_file(self.path) as stream:
                yield stream

    def write(self, data: bytes, *, replace: bool = True) -> None:
        """Make a whole file appear, safe from a power cut. Raises SnapshotUnavailableError.

        Without ``replace`` raises FileExistsError if it exists (in an object store, if it is found before).
        """
        with self.failures(WRITING):
            if self._filesystem is None:
                _write_local(Path(self.path), data, replace=replace)
                return
            if not replace and self.exists():
                raise FileExistsError(self.path)
            self._make_parent()
            with self.filesystem.open_output_stream(self.path) as stream:
                stream.write(data)

    @contextmanager
    def stream(self) -> Generator[IO[bytes]]:
        """A new file to write from start to end; flushed to the disk at the end, removed after an error."""
        with self.failures(WRITING):
            try:
                if self._filesystem is None:
                    Path(self.path).parent.mkdir(FOLDER_MODE, parents=True, exist_ok=True)
                    with Path(self.path).open("wb") as file:
                        yield file
                        file.flush()
                        os.fsync(file.fileno())
                else:
                    self._make_parent()
                    with self._filesystem.open_output_stream(self.path) as stream:
                        yield stream
            except BaseException:
                with suppress(OSError):  # a file that no manifest names does no harm
                    self.filesystem.delete_file(self.path)
                raise

    def exists(self) -> bool:
        """Whether there is a file."""
        with self.failures("looking"):
            return bool(self.filesystem.get_file_info(self.path).type == filesystems.FileType.File)

    def remove(self) -> bool:
        """Take a file away, for good; False where there was none."""
        with self.failures("deleting"):
            try:
                if self._filesystem is None:
                    Path(self.path).unlink()
                    _sync_folder(Path(self.path).parent)
                elif not self.exists():  # an object store does not say
                    return False
                else:
                    self._filesystem.delete_file(self.path)
            except FileNotFoundError:
                return False
            return True

    def make(self) -> None:
        """Make the folder and those above it, where the place knows folders."""
        with self.failures(_MAKING):
            if self._filesystem is None:
                Path(self.path).mkdir(FOLDER_MODE, parents=True, exist_ok=True)
            elif self._filesystem.type_name not in _OBJECT_STORES:
                self._filesystem.create_dir(self.path, recursive=True)

    def entries(self) -> list[Entry]:
        """What the folder holds, by name; nothing where there is no folder."""
        with self.failures("listing"):
            selector = filesystems.FileSelector(self.path, allow_not_found=True)
            try:
                infos = self.filesystem.get_file_info(selector)
            except FileNotFoundError:
                return []  # it came or went while it was looked at, which `allow_not_found` does not cover
            found = [
                Entry(
                    info.base_name,
                    info.type == filesystems.FileType.Directory,
                    info.size or 0,
                    None if info.mtime_ns is None else info.mtime_ns // 1_000_000,
                )
                for info in infos
            ]
            return sorted(entry for entry in found if entry.name)

    def remove_folder(self) -> None:
        """Take a folder away with all that is in it; one that is not there is no error."""
        with self.failures("deleting"):
            try:
                if self._filesystem is None:
                    shutil.rmtree(self.path)
                else:
                    self._filesystem.delete_dir(self.path)
            except FileNotFoundError:
                pass

    def settle(self) -> None:
        """What was written into this folder is found after a power cut."""
        if self._filesystem is None:
            with self.failures(WRITING):
                _sync_folder(Path(self.path))

    @contextmanager
    def failures(self, doing: str) -> Generator[None]:
        """SnapshotUnavailableError for an OSError, except for a read of no file, and a write of an existing one."""
        try:
            yield
        except TailraceError:
            raise
        except FileNotFoundError as error:
            if doing not in (WRITING, _MAKING):
                raise
            raise self._unavailable(error, doing) from error
        except FileExistsError as error:
            if doing != _MAKING:
                raise
            raise self._unavailable(error, doing) from error
        except OSError as error:
            raise self._unavailable(error, doing) from error

    def _unavailable(self, error: OSError, doing: str) -> SnapshotUnavailableError:
        what, hint = outage_of(error) or (
            "the location of a snapshot failed",
            "Check the location and its permissions",
        )
        message = " ".join(str(error).split())
        return SnapshotUnavailableError(
            f"{what}, while {doing}: {message}",
            path=self.shown,
            hint=f"{hint}, then try again: no partial snapshot was published.",
        )

    def _make_parent(self) -> None:
        if self._filesystem.type_name not in _OBJECT_STORES:
            self._filesystem.create_dir(self.path.rpartition("/")[0], recursive=True)


def _reached(uri: str) -> tuple[Any, str]:
    """The file system and path of a URI with a scheme."""
    try:
        filesystem, path = filesystems.FileSystem.from_uri(uri)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, OSError) as error:
        shown = _without_secrets(uri)
        reason = str(error).replace(uri, shown)
        raise SnapshotUnavailableError(
            f"the location cannot be reached: {reason}", path=shown, hint="Correct the URI."
        ) from None
    return filesystem, str(path)


def _without_secrets(uri: str) -> str:
    """A URI without its user and its options, either of which may hold a secret."""
    scheme, _, rest = uri.partition("?")[0].partition("://")
    host, slash, path = rest.partition("/")
    return f"{scheme}://{host.rpartition('@')[2]}{slash}{path}"


def _write_local(path: Path, data: bytes, *, replace: bool) -> None:
    path.parent.mkdir(FOLDER_MODE, parents=True, exist_ok=True)
    making = path.with_name(f".{path.name}.{uuid4().hex}.new")
    try:
        with making.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        if replace:
            making.replace(path)
        else:
            os.link(making, path)  # fails where it is there, which a rename does not
    finally:
        making.unlink(missing_ok=True)
    _sync_folder(path.parent)


def _sync_folder(path: Path) -> None:
    folder = os.open(path, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
