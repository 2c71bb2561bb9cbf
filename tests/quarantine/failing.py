"""An event that fails if it says so, for the tests of quarantine."""

from __future__ import annotations

from typing import Any

import msgspec

from tailrace.testing import Harness


class Ev(msgspec.Struct, frozen=True):
    key: str
    at: int
    what: str = ""


class Broken:
    """Whether what fails fails."""

    now = True


def fail(event: Ev, what: str = "fails") -> None:
    """Fail if the event says so."""
    if Broken.now and event.what == what:
        raise ValueError(f"{what} at {event.at}")


def seen_of(h: Harness, actor: Any) -> list[int]:
    found: list[int] = state_of(h, actor, "ada").seen
    return found


def state_of(h: Harness, actor: Any, key: Any) -> Any:
    """The instance of a key, whatever its class."""
    return h.state(actor, key)
