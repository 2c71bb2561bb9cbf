"""Recordings of file operations: real processes run with ``recorder.c`` loaded, and their trace read back.

A recording is complete if carrying it out again gives the folder as the processes left it, byte for byte: ``record`` checks
this each time. So a library that writes in a way that the recorder does not see cannot pass unnoticed. The exceptions are
files that a process maps for writing or writes through stdio. Their content is not recorded. ``UNSEEN`` names those that
nothing depends on after a crash; any other one is an error.
"""

from __future__ import annotations

import atexit
import ctypes
import os
import shutil
import struct
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
SOURCE = Path(__file__).with_name("recorder.c")
_HEAD = struct.Struct("<IBIHHQQQ")

CREATE, TRUNCATE, WRITE, MAPPED, STDIO = "C", "T", "W", "m", "s"
RENAME, LINK, UNLINK, MAKE_FOLDER, REMOVE_FOLDER = "R", "L", "U", "M", "X"
FSYNC, FDATASYNC, SYNC_ALL, MARK = "F", "D", "S", "A"

MARKS = "RECORDER_MARKS"
"""Environment variable: the file for marks where there is no recorder."""
UNSEEN = ("-shm", "/LOCK")
"""Ends of the names of files whose content means nothing after a crash: SQLite's index of its write-ahead log, locks."""


class Operation(NamedTuple):
    """One operation. ``file`` numbers files and folders in the order of their creation; the root is 0."""

    kind: str
    file: int
    path: str = ""
    """Relative to the root; of a rename or link the old name."""
    new_path: str = ""
    offset: int = 0
    size: int = 0
    """The new size, of a truncation."""
    data: bytes = b""
    """What is written; the text of a mark."""


@cache
def library() -> Path:
    """The compiled recorder. A machine without a C compiler fails the test: nothing of this can be tested there."""
    folder = Path(tempfile.mkdtemp(prefix="tailrace-recorder-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    compiler = next(filter(None, map(shutil.which, ("cc", "gcc", "clang"))), None)
    assert compiler is not None, (
        "no C compiler was found; install one (Debian: apt-get install gcc libc6-dev)"
    )
    target = folder / "recorder.so"
    flags = ("-O2", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", "-ldl", "-lpthread")
    command = [compiler, str(SOURCE), "-o", str(target), *flags]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"the recorder does not compile:\n{done.stderr}"
    return target


def mark(text: str) -> None:
    """Note in the recording that something was promised at this point; without a recorder, in the file ``MARKS`` names."""
    noted = getattr(ctypes.CDLL(None), "recorder_mark", None)
    if noted is not None:
        data = text.encode()
        noted(ctypes.c_char_p(data), ctypes.c_size_t(len(data)))
    elif MARKS in os.environ:
        with Path(os.environ[MARKS]).open("ab", buffering=0) as file:
            file.write(f"{text}\n".encode())


def record(folder: Path, run: Callable[[Mapping[str, str]], None]) -> list[Operation]:
    """Record what processes do to an empty folder. ``run`` starts them with the given environment, and waits for them."""
    assert not any(folder.iterdir())
    with tempfile.NamedTemporaryFile(dir=folder.parent, prefix="trace-", delete=True) as trace:
        path = os.pathsep.join([str(ROOT / "framework"), str(ROOT)])
        run(
            {
                **os.environ,
                "PYTHONPATH": path,
                "PYTHONDONTWRITEBYTECODE": "1",
                "LD_PRELOAD": str(library()),
                "RECORDER_ROOT": str(folder),
                "RECORDER_TRACE": trace.name,
            }
        )
        operations = list(_read(trace.read(), folder))
    _check_complete(operations, folder)
    return operations


def carry_out(operations: list[Operation]) -> dict[str, bytes | None]:
    """The folder after all operations: by path, the content of each file, and None for each folder."""
    content: dict[int, bytearray | None] = {}
    names: dict[str, int] = {}
    for one in operations:
        if one.kind in (CREATE, MAKE_FOLDER):
            content[one.file] = bytearray() if one.kind == CREATE else None
        change_names(names, one)
        change_content(content, one)
    found = {path: content[file] for path, file in names.items()}
    return {path: None if data is None else bytes(data) for path, data in found.items()}


def change_names(names: dict[str, int], one: Operation) -> None:
    """Carry out an operation on the names of a folder."""
    if one.kind in (CREATE, MAKE_FOLDER):
        names[one.path] = one.file
    elif one.kind == LINK:
        names[one.new_path] = one.file
    elif one.kind in (UNLINK, REMOVE_FOLDER):
        del names[one.path]
    elif one.kind == RENAME:
        below = f"{one.path}/"
        for path in [path for path in names if path == one.path or path.startswith(below)]:
            names[one.new_path + path[len(one.path) :]] = names.pop(path)


def change_content(content: dict[int, bytearray | None], one: Operation) -> None:
    """Carry out a write or a truncation."""
    if one.kind not in (WRITE, TRUNCATE):
        return
    data = content[one.file]
    assert data is not None
    stop = one.offset + len(one.data) if one.kind == WRITE else one.size
    if len(data) < stop:
        data.extend(bytes(stop - len(data)))
    if one.kind == WRITE:
        data[one.offset : stop] = one.data
    else:
        del data[stop:]


def _read(trace: bytes, root: Path) -> Iterator[Operation]:
    """The operations of a trace, with files numbered; those on files outside of the folder are left out."""
    start = f"{root.resolve()}/"
    files = {root.stat().st_ino: 0}
    names: dict[str, int] = {}
    at, count = 0, 0
    while at < len(trace):
        length, code, _, first, second, inode, offset, size = _HEAD.unpack_from(trace, at)
        begin = at + _HEAD.size
        paths = (
            trace[begin : begin + first].decode(),
            trace[begin + first : begin + first + second].decode(),
        )
        path, new_path = (one.removeprefix(start) for one in paths)
        data = trace[begin + first + second : at + length]
        at += length
        kind = chr(code)
        if kind in (CREATE, MAKE_FOLDER):
            count += 1
            files[inode] = count
        if kind in (MARK, SYNC_ALL):
            file = 0
        elif kind in (RENAME, LINK, UNLINK, REMOVE_FOLDER):
            file = names[path]
        elif inode in files:
            file = files[inode]
        else:
            continue
        one = Operation(kind, file, path, new_path, offset, size if kind == TRUNCATE else 0, data)
        change_names(names, one)
        yield one


def _check_complete(operations: list[Operation], folder: Path) -> None:
    """Compare the recording, carried out, with the folder."""
    unseen = {one.file for one in operations if one.kind in (MAPPED, STDIO)}
    names: dict[str, int] = {}
    for one in operations:
        change_names(names, one)
    strange = [path for path, file in names.items() if file in unseen and not path.endswith(UNSEEN)]
    assert not strange, f"files were mapped for writing or written through stdio: {strange}"
    recorded = carry_out(operations)
    found = {
        str(path.relative_to(folder)): None if path.is_dir() else path.read_bytes()
        for path in sorted(folder.rglob("*"))
    }
    assert recorded.keys() == found.keys(), f"not recorded: {sorted(recorded.keys() ^ found.keys())}"
    different = [path for path in found if found[path] != recorded[path] and not path.endswith(UNSEEN)]
    assert not different, f"the recording of these files is not complete: {different}"


def record_program(folder: Path, program: str) -> list[Operation]:
    """Record what a program does in a folder."""

    def run(environment: Mapping[str, str]) -> None:
        subprocess.run([sys.executable, "-c", program], cwd=folder, env=environment, check=True)

    return record(folder, run)
