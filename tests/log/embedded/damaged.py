"""Logs to be damaged, and what is expected of them."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import apsw

from tailrace.core.records import Output
from tailrace.log import TopicPartition, TopicSettings
from tailrace.log.embedded import EmbeddedLog
from tailrace.log.embedded.database import DATABASE, SHARED_MEMORY, WAL
from tailrace.log.options import LogOptions
from tests.log.embedded.inside import checkpoint

A0, B1 = TopicPartition("a", 0), TopicPartition("b", 1)


def made(folder: Path, commits: int = 2, **options: Any) -> EmbeddedLog:
    log = EmbeddedLog(folder, LogOptions(**options))
    log.create_topic("a", TopicSettings(1))
    log.create_topic("b", TopicSettings(2))
    writer = log.writer("w")
    for number in range(commits):
        writer.append([Output("a", b"k", b"%d of a" % number, number)])
        writer.append([Output("b", b"k", b"%d of b" % number, number)], 1)
        writer.commit({A0: number + 1}, "g", {"a": number})
    return log


def read(log: EmbeddedLog) -> list[bytes | None]:
    reader = log.reader({A0: 0, B1: 0})
    return [one.value for place in (A0, B1) for one in reader.fetch(*place, 100).records]


def whole(commits: int) -> list[bytes]:
    return [b"%d of %s" % (number, name) for name in (b"a", b"b") for number in range(commits)]


def on_disk(folder: Path, commits: int = 2) -> Path:
    """A closed log, all of it in the database."""
    made(folder, commits).close()
    checkpoint(folder)
    return folder / DATABASE


def changed(folder: Path, *statements: str) -> None:
    """The log after a change that passes by all checksums."""
    connection = apsw.Connection(str(folder / DATABASE))
    for statement in statements:
        connection.execute(statement)
    connection.close()


def cut_off(log: EmbeddedLog, folder: Path) -> None:
    """A copy of the files of a log as a power loss leaves them, without a part of the last commit."""
    shutil.copytree(log.path, folder)
    (folder / SHARED_MEMORY).unlink()
    os.truncate(folder / WAL, (folder / WAL).stat().st_size - 10)


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}


def flipped(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)


def on_disk_and_in_wal(folder: Path) -> EmbeddedLog:
    """A log with a commit that is only in the WAL."""
    log = made(folder)
    checkpoint(folder)
    log.append("a", b"k", b"in the WAL", 0)
    return log
