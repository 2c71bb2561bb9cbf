"""Explores a service with ``tailrace explore``: the first events of its history, under many schedules."""

from __future__ import annotations

import msgspec

from services.demo.commands import failed, run_command
from services.demo.process import Folders, Service

SCHEDULES, RECORDS = 10, 6_000


class Cause(msgspec.Struct, frozen=True):
    """Why results differ."""

    cause: str


class Explored(msgspec.Struct, frozen=True):
    """The part of the output of ``tailrace explore`` that is used here."""

    app: str
    schedules: int
    records: int
    keys: int
    differing: dict[int, int]
    """By schedule, the number of keys with other results."""
    errors: list[Cause]
    declared: list[Cause]
    seconds: float


def explore(service: Service, folders: Folders) -> Explored:
    """Explore a service over its log. The order of movements, which several tasks write for an airport, is free.

    Schedules in which inputs are silent for longer than their ``idle_after`` are left out: the topics declare what happens then.

    Raises:
        ServiceFailed: The command has failed. Differences are not a failure.
    """
    arguments = [
        service.reference,
        "--log",
        folders.log,
        "--no-idleness",
        "--unordered",
        "movements",
        "--json",
    ]
    arguments += ["--schedules", str(SCHEDULES), "--records", str(RECORDS)]
    code, said = run_command(service, "explore", arguments)
    try:
        return msgspec.json.decode(said, type=Explored)
    except msgspec.MsgspecError:
        raise failed(service, "explore", code) from None
