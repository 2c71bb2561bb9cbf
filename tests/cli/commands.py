"""Runs commands in this process, as the command line would."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

import click
import msgspec
from click.testing import CliRunner

from tailrace.cli.main import execute, tailrace
from tailrace.history.reading.stretches import scan
from tailrace.log.embedded import EmbeddedLog

SHOP = "tests.cli.shop:app"
TO_THE_END = ("--end-of-input", "--after-end")


def at(folder: Path) -> tuple[str, Path, str, Path]:
    """Where a service is that has all it has in a folder."""
    return "--log", folder / "log", "--state", folder / "state"


class Ended(NamedTuple):
    """How a command ended, and what it said."""

    code: int
    out: str
    err: str

    @property
    def lines(self) -> list[Any]:
        """Its output as JSON lines."""
        return [msgspec.json.decode(line) for line in self.out.splitlines()]


def run(*arguments: object, stdin: bytes = b"") -> Ended:
    with CliRunner().isolation(input=stdin) as streams:
        code = execute([str(one) for one in arguments])
        sys.stdout.flush()
        sys.stderr.flush()
        return Ended(code, streams[0].getvalue().decode(), streams[1].getvalue().decode())


def done(*arguments: object, stdin: bytes = b"") -> Ended:
    """Run a command that has to succeed."""
    ended = run(*arguments, stdin=stdin)
    assert ended.code == 0, ended.err
    return ended


def refused(*arguments: object, code: int = 2) -> str:
    """What a command says that has to fail with this code."""
    ended = run(*arguments)
    assert ended.code == code, ended.err
    return ended.err


def records(folder: Path, topic: str) -> list[Any]:
    """All records of a topic, with their partitions."""
    log = EmbeddedLog(folder, create=False)
    try:
        return [(number, one) for number in range(log.partitions(topic)) for one in scan(log, topic, number)]
    finally:
        log.close()


def cleaned(folder: Path, topic: str) -> None:
    """Let a log delete the records of a topic, but for the last ones."""
    with closing(EmbeddedLog(folder)) as log:
        log.set_retention(topic, retention_ms=None, retention_bytes=1)
        log.clean()


def commands(group: click.Group, *before: str) -> Iterator[tuple[str, click.Command]]:
    """Every command that does something, by what is typed for it."""
    for name, one in sorted(group.commands.items()):
        if isinstance(one, click.Group):
            yield from commands(one, *before, name)
        else:
            yield " ".join([*before, name]), one


ALL = dict(commands(tailrace))
"""Every command, by what is typed for it."""
