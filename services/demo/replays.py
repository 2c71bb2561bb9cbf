"""Replays a service, with the command that a user would run: it compares state and outputs with those of the live run."""

from __future__ import annotations

import msgspec

from services.demo.commands import failed, run_command
from services.demo.process import Folders, Service, ServiceFailed


class Replayed(msgspec.Struct, frozen=True):
    """The part of the output of ``tailrace replay`` that is used here."""

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


def replay(service: Service, folders: Folders) -> Replayed:
    """Replay a service over its log.

    Raises:
        ServiceFailed: The replay did not complete. Differences are not a failure.
    """
    code, said = run_command(
        service,
        "replay",
        [service.reference, "--compare", "--json", "--log", folders.log, "--state", service.state],
    )
    try:
        found = msgspec.json.decode(said, type=Replayed)
    except msgspec.MsgspecError:
        raise failed(service, "replay", code) from None
    if bool(found.differences) != bool(code):
        raise ServiceFailed(f"the replay of {service.name} exited with code {code}: {said.decode()}")
    return found
