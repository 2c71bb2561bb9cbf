"""On which log an app lives: one that was moved must never run on both.

Theory. The topic ``<app>.moves`` has one partition. Its last record decides whether the app may run on this log::

    last record   the app                                     written to
    none          may run: it was never moved
    arriving      may not run: its history is not complete    the target, before the first record is copied
    left          may not run                                 the source, before its last records are copied
    arrived       may run                                     the target, when everything is copied and compared
    given up      may not run: its history is not complete    the target of a move that was given up
    stayed        may run: the move was given up              the source of it

So a move that is killed anywhere leaves an app that runs on the source alone, on the target alone, or, between ``left`` and ``arrived``,
on neither. A service that starts looks twice: before it creates topics, and when it owns its tasks or is a member of its group. A move
writes ``left`` and then looks whether the app runs: one of the two sees the other. A process of a group also looks before each restore.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import closing
from typing import Final, Literal

import msgspec

from tailrace.core.errors import OtherHistoryError
from tailrace.core.names import moves_of
from tailrace.core.records import Output
from tailrace.history.reading.stretches import decoding, last
from tailrace.log.interface import Log, TopicSettings

Step = Literal["arriving", "left", "arrived", "given up", "stayed"]


class Move(msgspec.Struct, frozen=True):
    """A record of ``<app>.moves``: the identity of the other log in hex, and its place."""

    step: Step
    other: str
    place: str


_move: Final = msgspec.json.Decoder(Move)


def last_move(log: Log, app: str) -> Move | None:
    """The last record of an app's moves; None if it was never moved."""
    topic = moves_of(app)
    found = last(log, topic, 0) if topic in log.topics() else None
    if found is None:
        return None
    hint = (
        "Find who else writes to it. If the app was never moved, delete the topic; otherwise delete what is behind the record of "
        "its last move."
    )
    with decoding(topic, found, "move of the app", hint):
        return _move.decode(found.value or b"")


def note_move(log: Log, apps: Sequence[str], move: Move) -> None:
    """Add a record to the moves of some apps, in one commit."""
    for app in apps:
        log.create_topic(moves_of(app), TopicSettings(1))
    now_ms, value = time.time_ns() // 1_000_000, msgspec.json.encode(move)
    with closing(log.writer(moves_of(apps[0]))) as writer:
        writer.append([Output(moves_of(app), None, value, now_ms) for app in apps], 0)
        writer.commit()


def check_lives_here(log: Log, app: str) -> None:
    """Check that an app may run on a log. Raises OtherHistoryError."""
    found = last_move(log, app)
    if found is None or found.step in ("arrived", "stayed"):
        return
    run = f"Run it there (--log {found.place})."
    what, hint = {
        "left": (
            f"the app {app!r} was moved from this log to {found.place}",
            f"{run} If the move was interrupted, run the same 'tailrace migrate' again, or give it up with --cancel.",
        ),
        "arriving": (
            f"the app {app!r} is being moved to this log from {found.place}, and not everything is here yet",
            "Run the same 'tailrace migrate' again: it continues. An interrupted 'tailrace reshape' begins again with an empty log.",
        ),
        "given up": (
            f"the app {app!r} lives on {found.place}: its move to this log was given up, and not everything is here",
            run,
        ),
    }[found.step]
    raise OtherHistoryError(what, why="log", hint=hint)
