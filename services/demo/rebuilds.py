"""Rebuilds a service's state with Spark, and compares it with the live one, with the commands that a user would run."""

from __future__ import annotations

from pathlib import Path

import msgspec

from services.demo.commands import failed, run_command
from services.demo.console import Console
from services.demo.process import Folders, Service


class Rebuilt(msgspec.Struct, frozen=True):
    """The part of the output of ``tailrace rebuild`` that is used here."""

    app: str
    snapshot: str
    order: str
    engine: str
    events: int
    timers: int
    outputs: int
    rows: int
    keys: int
    seconds: float
    same_rows: int = 0
    other_rows: int = 0


class Compared(msgspec.Struct, frozen=True):
    """The output of ``tailrace compare``."""

    rows: tuple[int, int]
    keys: int
    differences: int
    notes: list[str] = []
    first: list[msgspec.Raw] = []


def rebuild(service: Service, folders: Folders, console: Console, engine: str = "spark") -> Rebuilt:
    """Rebuild the state of a service from the log into a snapshot.

    Raises:
        ServiceFailed: The command has failed.
    """
    options: list[str | Path] = [
        service.reference,
        "--log",
        folders.log,
        "--to",
        folders.snapshots,
        "--engine",
        engine,
        "--json",
    ]
    code, said = run_command(service, console, "is being rebuilt", "rebuild", options)
    if code:
        raise failed(service, "rebuild", code)
    return msgspec.json.decode(said, type=Rebuilt)


def compare(service: Service, folders: Folders, console: Console, other: Path | str) -> Compared:
    """Compare the latest snapshot of a service with its live state: a folder of state, or the log.

    Raises:
        ServiceFailed: The command has failed. Differences are not a failure.
    """
    arguments: list[str | Path] = [service.reference, other, folders.snapshots, "--json"]
    code, said = run_command(service, console, "is being compared", "compare", arguments)
    try:
        return msgspec.json.decode(said, type=Compared)
    except msgspec.MsgspecError:
        raise failed(service, "compare", code) from None
