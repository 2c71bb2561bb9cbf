"""Replays a service in a separate process, with ``tailrace replay --compare``."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack

import msgspec

from services.demo.console import Console
from services.demo.process import Folders, Service, ServiceFailed

_LOOK_S = 0.05


class Replayed(msgspec.Struct, frozen=True):
    """The part of the command's output that is used here."""

    app: str
    commits: int
    records: int
    timers: int
    outputs: int
    rows: int
    seconds: float
    compared: list[str]
    """What the replay was compared with: state folders, changelog, outputs."""
    differences: int
    notes: list[str] = []
    first: list[msgspec.Raw] = []


def replay_all(services: Sequence[Service], folders: Folders, console: Console) -> list[Replayed]:
    """Replay services at the same time, each in its own process.

    Raises:
        ServiceFailed: A replay did not complete. Differences are not a failure.
    """
    begun_s = time.monotonic()
    with ExitStack() as closing:
        running = [_start(one, folders, closing) for one in services]
        while any(process.poll() is None for process in running):
            console.progress(f"{time.monotonic() - begun_s:4.0f} s   both are being replayed")
            time.sleep(_LOOK_S)
        return [_read(*pair, folders) for pair in zip(services, running, strict=True)]


def _start(service: Service, folders: Folders, closing: ExitStack) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "tailrace", "replay", service.reference, "--compare", "--json"]
    command += ["--log", str(folders.log), "--state", str(service.state)]
    said = closing.enter_context((folders.base / f"{service.name}.replay.json").open("wb"))
    words = closing.enter_context(service.words.open("ab"))
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=said, stderr=words)
    closing.callback(_end, process)
    return process


def _end(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        process.kill()
        process.wait()


def _read(service: Service, process: subprocess.Popen[bytes], folders: Folders) -> Replayed:
    said = (folders.base / f"{service.name}.replay.json").read_bytes()
    try:
        found = msgspec.json.decode(said, type=Replayed)
    except msgspec.MsgspecError:
        words = service.words.read_text("utf-8", errors="replace").splitlines()[-3:]
        words = [
            f"the replay of {service.name} has exited with code {process.returncode}; its last log lines:",
            *words,
        ]
        raise ServiceFailed("\n   ".join(words)) from None
    if bool(found.differences) != bool(process.returncode):
        raise ServiceFailed(
            f"the replay of {service.name} exited with code {process.returncode}: {said.decode()}"
        )
    return found
