"""Rebuilds a service's state, with the command that a user would run: it compares each row with the log."""

from __future__ import annotations

from pathlib import Path

import msgspec

from services.demo.commands import failed, run_command
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

    def failures(self) -> list[str]:
        """What is wrong: rows that are not those of the log, or none that were compared."""
        if self.same_rows and not self.other_rows:
            return []
        return [
            f"{self.same_rows:,} rows of the rebuilt state of {self.app} are those of the log, {self.other_rows:,} are not"
        ]


def rebuild(service: Service, folders: Folders, engine: str) -> Rebuilt:
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
    code, said = run_command(service, "rebuild", options)
    if code:
        raise failed(service, "rebuild", code)
    return msgspec.json.decode(said, type=Rebuilt)
