"""What a task works on at a moment, as a message or a log line names it."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

_KEY_CHARACTERS: Final = 200


class AtWork(NamedTuple):
    """A handler, and the record or the timer that it was called for; or ``decoding TOPIC``, with the first of several records.
    Two that are equal are the same call.
    """

    handler: str
    key: Any
    partition: int
    topic: str | None = None
    """Of the record; None for a timer."""
    offset: int | None = None
    timer: str | None = None
    """Name and time of the timer; None for a record."""
    fired: int | None = None
    """Number of timers that the task had fired before this one."""

    @property
    def key_text(self) -> str:
        """The key as Python spells it, at most 200 characters of it."""
        text = repr(self.key)
        return text if len(text) <= _KEY_CHARACTERS else f"{text[:_KEY_CHARACTERS]}…"

    def __str__(self) -> str:
        """Handler and key, if it is known."""
        return self.handler if self.key is None else f"{self.handler} of the key {self.key_text}"

    def fields(self) -> dict[str, object]:
        """The fields of a log line."""
        found = {
            "handler": self.handler,
            "key": None if self.key is None else self.key_text,
            "partition": self.partition,
            "topic": self.topic,
            "offset": self.offset,
            "timer": self.timer,
        }
        return {name: value for name, value in found.items() if value is not None}
