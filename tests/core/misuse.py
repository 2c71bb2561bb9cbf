"""What the tests of misuse share: an app to misuse, and a table of what is said about it."""

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


class Table:
    """Misuses, each with the message it gets. A message that ends in an ellipsis is only the
    beginning of it.
    """

    def __init__(self) -> None:
        self.rows: list[Any] = []

    def said(self, message: str) -> Callable[[Misuse], Misuse]:
        """A row: the misuse decorated, and what is said about it."""

        def add(misuse: Misuse) -> Misuse:
            assert misuse.__name__ not in [row.id for row in self.rows], "a misuse hides another"
            self.rows.append(pytest.param(misuse, message, id=misuse.__name__))
            return misuse

        return add


def check(misuse: Misuse, message: str) -> None:
    """Hold a misuse against what should be said about it."""
    with pytest.raises(tr.DefinitionError) as caught:
        misuse(Deck())
    told = str(caught.value)
    if message.endswith("..."):
        told = told[: len(message) - 3] + "..."
    assert told == message
