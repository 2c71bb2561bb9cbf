"""What the tests of misuse share: an app to misuse, and the misuses of a module."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

import tailrace as tr


class Departure(msgspec.Struct, frozen=True):
    tail: str
    at: int
    gate: str | None = None
    delay: float = 0.0


class Arrival(msgspec.Struct, frozen=True):
    tail: str
    number: int


class Deck:
    """An app with its topics."""

    def __init__(self) -> None:
        self.app = tr.App("flights")
        self.departures = self.app.topic("departures", Departure, key="tail", event_time="at")
        self.arrivals = self.app.topic("arrivals", Arrival, key="tail")
        self.numbers = self.app.topic("numbers", Arrival, key="number")
        self.plain = self.app.topic("plain", Arrival)
        self.stream = self.app.stream("stream", Departure)


Misuse = Callable[[Deck], Any]


def misuses(module: dict[str, Any]) -> list[Any]:
    """The functions of a module that take a deck, and nothing else."""
    found = [one for one in module.values() if getattr(one, "__annotations__", {}).keys() == {"d", "return"}]
    return [pytest.param(one, id=one.__name__) for one in found]
