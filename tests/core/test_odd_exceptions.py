"""Exceptions of a user's code that cannot be shown, or look like an end, make a dead letter of their record alone."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

import tailrace as tr
from tailrace.testing import Harness


class Broken(Exception):
    """An exception that cannot even be printed."""

    def __str__(self) -> str:
        raise RuntimeError("no words")


class OddNotes(Exception):
    """Its notes are no list of texts."""

    def __init__(self, notes: Any) -> None:
        super().__init__("odd")
        self.__notes__ = notes


class NoNotes(Exception):
    """An exception whose notes cannot be read."""

    @property
    def __notes__(self) -> list[str]:  # type: ignore[override]  # on purpose  # pyright: ignore[reportIncompatibleVariableOverride]
        raise RuntimeError("no notes")


class Exit(Exception):
    def __str__(self) -> str:
        raise SystemExit


ODD: dict[str, BaseException] = {
    "StopIteration": StopIteration(),
    "a text that raises": Broken(),
    "a text that ends the program": Exit(),
    "an end of the program": SystemExit(3),
    "notes that are an int": OddNotes(7),
    "a note that cannot be printed": OddNotes(["first", Broken()]),
    "notes that cannot be read": NoNotes("odd"),
}


class Picky(msgspec.Struct, frozen=True):
    key: str
    at: int
    fails_in: str = ""

    def __post_init__(self) -> None:
        fails_here(self, "validator")


RAISED: list[BaseException] = []


def fails_here(event: Picky, place: str) -> None:
    if event.fails_in == place:
        raise RAISED[0]


def odd_key(event: Picky) -> str:
    fails_here(event, "key")
    return event.key


def odd_time(event: Picky) -> int:
    fails_here(event, "time")
    return event.at


@pytest.mark.parametrize("place", ["validator", "key", "time", "handler"])
@pytest.mark.parametrize("what", ODD)
def test_an_odd_exception_makes_a_dead_letter_of_its_record_alone(what: str, place: str) -> None:
    app = tr.App("odd", partitions=1, on_error="dead-letter-all")
    events = app.topic("events", Picky, key=odd_key, key_type=str, event_time=odd_time)

    @app.actor
    class Count(tr.Actor):
        n: int = 0

        @tr.process(events)
        def take(self, event: Picky, ctx: tr.Context[str]) -> None:
            self.n += 1
            fails_here(event, "handler")

    RAISED[:] = [ODD[what]]
    with Harness(app) as h:
        values = [b'{"key":"a","at":1000,"fails_in":"%s"}' % one.encode() for one in ("", place, "")]
        for value in values:
            h.log.append("events", b"a", value, 1_000)
        h.advance_clock_by(0)
        assert [one.value for one in h.dead_letters()] == values[1:2]
        counted: Any = h.state(Count, "a")
        assert counted.n == 2
        h.replay()


# --- a key has exactly its declared type, whatever was seen before: ``True == 1``, but they are not one key
