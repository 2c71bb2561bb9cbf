"""Small programs that events carry: what a handler does is data, so that a seed makes random behaviour.

An operation is a name, two small numbers and a program of its own (what a timer, a message or another topic's handler
is to run later). Programs are finite, so every run ends.
"""

from __future__ import annotations

from random import Random

import msgspec


class Op(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One operation; what ``a`` and ``b`` mean is up to it."""

    kind: str
    a: int = 0
    b: int = 0
    then: tuple[Op, ...] = ()


Program = tuple[Op, ...]

TIMER_NAMES = (None, "", "a", "b:1", "b:2", "b:3")
"""None is an unnamed timer; the others have handlers by the part before the colon."""

PLAIN_STATE = ("count", "change-ratio", "divide-ratio", "nan")
IN_PLACE = ("box", "nest", "keep-event", "instant", "union")
MAPS = ("put", "drop", "scan", "box-put", "box-change", "brief", "blink")
LISTS = ("append", "take-left", "change-item", "queue")
FADING = ("fade", "fade-same", "flicker")
TIMERS = ("timer", "timer", "timer", "clock-timer", "clock-timer", "cancel", "cancel-clock", "past-timer")
OUTPUTS = ("emit", "emit", "note", "chain", "chain")
CHANCE = ("random", "uuid")
MESSAGES = ("send", "send-self")
ENDS = ("clear", "clear-set", "clear-map")
FAILURES = ("fail", "fail-rich", "fail-odd", "wrong-value", "flaky")

_WEIGHTS: tuple[tuple[tuple[str, ...], int], ...] = (
    *((PLAIN_STATE, 4), (IN_PLACE, 6), (MAPS, 7), (LISTS, 4)),
    *((FADING, 3), (TIMERS, 8), (OUTPUTS, 5), (CHANCE, 2), (ENDS, 1)),
)


class Programmer:
    """Writes random programs. ``messages``, ``failures`` and ``flaky`` say which operations may occur."""

    def __init__(
        self, random: Random, *, messages: bool, failures: bool, flaky: bool, processing_time: bool
    ) -> None:
        self.random = random
        groups = list(_WEIGHTS)
        if messages:
            groups.append((MESSAGES, 3))
        if failures:
            groups.append((FAILURES if flaky else FAILURES[:-1], 1))
        self._kinds: list[str] = []
        self._odds: list[float] = []
        for kinds, weight in groups:
            for kind in kinds:
                if processing_time or kind not in ("clock-timer", "cancel-clock", "blink", "flicker"):
                    self._kinds.append(kind)
                    self._odds.append(weight / len(kinds))

    def without(self, *kinds: str) -> None:
        """Leave some operations out."""
        kept = [(kind, odds) for kind, odds in zip(self._kinds, self._odds, strict=True) if kind not in kinds]
        self._kinds, self._odds = [kind for kind, _ in kept], [odds for _, odds in kept]

    def program(self, depth: int = 0) -> Program:
        """A program of up to six operations, shorter the deeper it stands."""
        random = self.random
        length = random.randint(0, max(1, 5 - 2 * depth))
        ops = tuple(self._op(kind, depth) for kind in random.choices(self._kinds, self._odds, k=length))
        return (Op("quiet"), *ops) if random.random() < 0.1 else ops

    def _op(self, kind: str, depth: int) -> Op:
        random = self.random
        nested = kind in ("timer", "clock-timer", "past-timer", "chain", "emit", "send", "send-self")
        then = self.program(depth + 1) if nested and depth < 3 else ()
        return Op(kind, random.randint(0, 6), random.choice((0, 1, 2, 3, 500, 2_000, 7_000, 20_000)), then)
