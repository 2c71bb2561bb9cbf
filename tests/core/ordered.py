"""An ordered actor with two inputs, and an oracle: plain Python over the whole history."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import msgspec

import tailrace as tr

DISORDER_MS = {"left": 5, "right": 20}


class Event(msgspec.Struct, frozen=True):
    key: tr.Key[str]
    at: tr.EventTime[int]
    number: int


class Said(msgspec.Struct, frozen=True):
    key: tr.Key[str]
    text: str


def joining(
    order: Any = "event-time",
    partitions: int = 1,
    *,
    name: str = "joining",
    said_in: str = "said",
    disorder_ms: Mapping[str, int] = DISORDER_MS,
    idle_after: Mapping[str, str] | None = None,
) -> tr.App:
    """Everything that a handler can see is said: the order of events and timers, the watermark, whether it is late."""
    app = tr.App(name, partitions=partitions)
    idle: Any = {one: {"idle_after": after} for one, after in (idle_after or {}).items()}
    topics = {
        one: app.topic(one, Event, out_of_order=ms, **idle.get(one, {})) for one, ms in disorder_ms.items()
    }
    said = app.topic(said_in, Said)

    def handler(name: str) -> Any:
        def take(self: Any, event: Event, ctx: tr.Context[str]) -> None:
            self.seen += 1
            late = " late" if ctx.is_late else ""
            ctx.emit(said, Said(ctx.key, f"{name} {event.number} after {ctx.watermark}{late}, {self.seen}"))
            ctx.set_timer(event.at + event.number % 13)
            ctx.set_timer(event.at - event.number % 5, "moved")

        return tr.process(topics[name])(take)

    def unnamed(self: Any, ctx: tr.Context[str]) -> None:
        ctx.emit(said, Said(ctx.key, f"timer of {ctx.event_time} at {ctx.watermark}"))

    def moved(self: Any, ctx: tr.Context[str]) -> None:
        ctx.emit(said, Said(ctx.key, f"moved to {ctx.event_time} at {ctx.watermark}"))

    body = {
        "__module__": __name__,
        "__annotations__": {"seen": int},
        "seen": 0,
        **{f"on_{one}": handler(one) for one in reversed(topics)},
        "unnamed": tr.on_timer(unnamed),
        "moved": tr.on_timer("moved")(moved),
    }
    app.actor(cast(Any, type(tr.Actor))("Join", (tr.Actor,), body, order=order))
    return app


def placed(of_input: list[Event], disorder_ms: int) -> list[tuple[int, bool]]:
    """The time at which each event is handled, and whether it is late: behind the watermark of its input."""
    found: list[tuple[int, bool]] = []
    watermark_ms = tr.NO_WATERMARK
    for event in of_input:
        late = event.at <= watermark_ms
        found.append((watermark_ms + 1 if late else event.at, late))
        watermark_ms = max(watermark_ms, event.at - disorder_ms - 1)
    return found


def oracle(
    events: dict[str, list[Event]], *, ends: bool = False, disorder_ms: Mapping[str, int] = DISORDER_MS
) -> list[tuple[str, str]]:
    """What is said: all events in the order of their places, and each timer at its instant.

    ``ends``: the inputs have ended for good, so all timers fire.
    """
    said: list[tuple[str, str]] = []
    timers: dict[tuple[str, str], int] = {}
    seen = dict[str, int]()
    reached_ms = tr.NO_WATERMARK

    def fire(until_ms: int) -> None:
        nonlocal reached_ms
        while due := sorted(
            (at, key, name != "moved") for (key, name), at in timers.items() if at <= until_ms
        ):
            at, key, unnamed = due[0]
            del timers[key, str(at) if unnamed else "moved"]
            reached_ms = max(reached_ms, at)
            what = "timer of" if unnamed else "moved to"
            said.append((key, f"{what} {at} at {reached_ms}"))

    in_order = sorted(
        (at, list(events).index(name), number, name, event, " late" if late else "")
        for name, of_input in events.items()
        for number, (event, (at, late)) in enumerate(
            zip(of_input, placed(of_input, disorder_ms[name]), strict=True)
        )
    )
    for at, _, _, name, event, late in in_order:
        fire(at - 1)
        reached_ms = max(reached_ms, at - 1)
        seen[event.key] = seen.get(event.key, 0) + 1
        said.append((event.key, f"{name} {event.number} after {at - 1}{late}, {seen[event.key]}"))
        due_ms = event.at + event.number % 13
        timers[event.key, str(due_ms)] = due_ms
        timers[event.key, "moved"] = event.at - event.number % 5
    fire(
        1 << 50
        if ends
        else max([tr.NO_WATERMARK, *(event.at for of_input in events.values() for event in of_input)])
    )
    return said
