"""What quarantine must come to, in plain Python over the whole history, key by key. It imports nothing of the model but its events.

1. A key's events are handled in their order, and each timer between them where it belongs: as if nothing had ever failed.
2. What was dropped is not handled, and has no other effect.
3. What is dropped is what had failed when somebody decided to drop it, or what waited behind it.
4. Until all is released, what a key has handled is the beginning of that.
"""

from __future__ import annotations

from collections.abc import Container, Sequence

from tests.oracle.quarantine.model import Event, SetTimer


def handled_of(events: Sequence[Event], dropped: Container[str]) -> dict[str, list[str]]:
    """By key, what its handlers have done in the end."""
    found: dict[str, list[str]] = {}
    for name in {one.key for one in events}:
        done: list[str] = []
        timers: dict[str, SetTimer] = {}
        watermark = -1
        for event in events:
            if event.key == name and f"e{event.number}" not in dropped:
                done.append(f"e{event.number}")
                timers = {one: timer for one, timer in timers.items() if one not in event.cancels}
                timers |= {one.name: one for one in event.sets}
            watermark = max(watermark, event.at - 3)
            for timer in sorted(timers.values(), key=lambda one: (one.at, one.name)):
                if timer.at <= watermark:
                    del timers[timer.name]
                    done += [f"t{timer.name}"] if f"t{timer.name}" not in dropped else []
        found[name] = done
    return found
