"""Rebuilds a service's state with Spark, and compares it with the live one, with the commands that a user would run."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import msgspec

from services.demo.console import Console
from services.demo.process import Folders, Service, ServiceFailed

_LOOK_S = 0.05


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
    code, said = _run(service, console, "is being rebuilt", "rebuild", options)
    if code:
        raise _failed(service, "rebuild", code)
    return msgspec.json.decode(said, type=Rebuilt)


def compare(service: Service, folders: Folders, console: Console, other: Path | str) -> Compared:
    """Compare the latest snapshot of a service with its live state: a folder of state, or the log.

    Raises:
        ServiceFailed: The command has failed. Differences are not a failure.
    """
    arguments: list[str | Path] = [service.reference, other, folders.snapshots, "--json"]
    code, said = _run(service, console, "is being compared", "compare", arguments)
    try:
        return msgspec.json.decode(said, type=Compared)
    except msgspec.MsgspecError:
        raise _failed(service, "compare", code) from None


def _run(
    service: Service, console: Console, what: str, command: str, arguments: Sequence[str | Path]
) -> tuple[int, bytes]:
    begun_s = time.monotonic()
    with service.words.open("ab") as words:
        process = subprocess.Popen(
            [sys.executable, "-m", "tailrace", command, *map(str, arguments)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=words,
        )
    try:
        while True:
            try:
                said, _ = process.communicate(timeout=_LOOK_S)
                return process.returncode, said
            except subprocess.TimeoutExpired:
                console.progress(f"{time.monotonic() - begun_s:4.0f} s   {service.name} {what}")
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()


def _failed(service: Service, command: str, code: int) -> ServiceFailed:
    words = service.words.read_text("utf-8", errors="replace").splitlines()[-3:]
    return ServiceFailed(
        "\n   ".join(
            [f"tailrace {command} of {service.name} has exited with code {code}; its last output:", *words]
        )
    )
