"""Schedules: the order and pieces in which the same records reach an app, and its tasks' faults meanwhile.

A schedule is drawn from a seed and a number, so it can be repeated. It decides only what no service controls:

    arrival     which topics are ahead, which partitions are slow, and how many records appear at once
    tasks       which task works when, as if they were in several workers, and how many records a slice has
    commits     after how many records, and at random moments of each task
    faults      crashes with and without loss of the local state, and rebalances
    the clock   stands still in most schedules; in some it advances
    idleness    inputs without further records may become idle; in some schedules others, too, when they are silent
                for longer than their ``idle_after``

Schedule 0 is the reference: all records are there from the beginning, tasks take turns, nothing fails.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import exp
from random import Random
from typing import Literal, TypeAlias

from tailrace.core.counting import counted
from tailrace.core.declare.plan import InputPlan, Plan
from tailrace.log.interface import TopicPartition
from tailrace.testing.exploring.feed import Feed, inputs_from_outside

Kind: TypeAlias = Literal["still", "clock", "idle"]

NEVER = 1 << 60
_PIECES = (1, 5, 25, 100)
_SLICES_OF_ALL = 100
"""The smallest slice is one such part of the history, so that runs over a long history end in time."""
_SLOW = 0.3


@dataclass(frozen=True, slots=True)
class Schedule:
    """One schedule; see the head of this file."""

    number: int
    seed: int
    waves: tuple[tuple[TopicPartition, ...], ...]
    """All records of a wave are appended before those of the next."""
    settled: tuple[bool, ...]
    """By wave, whether its records are also handled and committed before the next begins."""
    speeds: tuple[tuple[TopicPartition, float], ...]
    task_speeds: tuple[float, ...]
    piece: int = NEVER
    """The most records that appear at once."""
    slice_records: int = NEVER
    slices: int = 0
    """Number of slices after each piece. A random task takes each of them."""
    commit_records: int = NEVER
    commit_odds: float = 0.0
    """Probability that a task commits after a slice."""
    faults: int = 0
    firing_budget: int = 10_000
    kind: Kind = "still"
    """Whether the clock advances. ``idle``: it does, and silent inputs become idle after their ``idle_after``."""
    clock_ms: int = 0
    """By how much the clock advances in total; 0: it stands still."""
    quiet_idle: bool = False
    """Whether input partitions without further records become idle."""

    @property
    def is_reference(self) -> bool:
        """Whether it is schedule 0."""
        return self.number == 0

    @property
    def silences(self) -> bool:
        """Whether an input may be silent for longer than its ``idle_after``, and have more records."""
        return self.kind == "idle"

    def random(self) -> Random:
        """The generator that draws the single steps."""
        return Random(f"{self.seed}/{self.number}/steps")

    def __str__(self) -> str:
        """How this schedule differs from others, as text for people."""
        if self.is_reference:
            return "everything is there from the beginning"
        parts: list[str] = []
        if len(self.waves) > 1:
            parts.append(" before ".join(_named(wave) for wave in self.waves))
        slow = sorted(place for place, speed in self.speeds if speed < _SLOW)
        if slow:
            parts.append(f"{', '.join(_shown(place) for place in slow[:3])} slow")
        if self.piece < NEVER:
            parts.append(f"pieces of at most {counted(self.piece, 'record')}")
        if self.slice_records < NEVER:
            parts.append(f"slices of {counted(self.slice_records, 'record')}")
        if self.commit_records < NEVER:
            parts.append(f"commits after {counted(self.commit_records, 'record')}")
        if self.faults:
            parts.append(counted(self.faults, "fault"))
        if self.clock_ms:
            parts.append("the clock advances")
        if self.silences:
            parts.append("inputs are silent for longer than their idle_after")
        elif self.quiet_idle:
            parts.append("inputs become idle")
        return "; ".join(parts) or "tasks work in another order"


def reference(plan: Plan, feed: Feed, seed: int) -> Schedule:
    """Schedule 0."""
    places = tuple(feed.places)
    return Schedule(
        number=0,
        seed=seed,
        waves=(places,),
        settled=(True,),
        speeds=tuple((place, 1.0) for place in places),
        task_speeds=(1.0,) * plan.partitions,
    )


def drawn(plan: Plan, feed: Feed, seed: int, number: int, *, idleness: bool = True) -> Schedule:
    """The schedule with this number; 0 is the reference. ``idleness``: inputs may be silent (``silences``)."""
    if number == 0:
        return reference(plan, feed, seed)
    random = Random(f"{seed}/{number}")
    scale = max(1, feed.count // _SLICES_OF_ALL)
    waves = _waves(random, [place for place, fed in feed.places.items() if fed])
    longest_ms = max((one.idle_after_ms for one in inputs_from_outside(plan) if falls_idle(one)), default=0)
    kinds: tuple[Kind, ...] = ("still", "clock", "idle")
    kind = random.choices(kinds, (6, 1, 1 if longest_ms and idleness else 0))[0]
    return Schedule(
        number=number,
        seed=seed,
        waves=waves,
        settled=tuple(random.random() < 0.7 for _ in waves),
        speeds=tuple((place, _speed(random)) for place, fed in feed.places.items() if fed),
        piece=max(1, 2 * feed.count // random.choice(_PIECES)),
        slice_records=random.choice((scale, 5 * scale, 50 * scale, NEVER)),
        slices=random.choice((1, 2, plan.partitions)),
        task_speeds=tuple(_speed(random) for _ in range(plan.partitions)),
        commit_records=random.choice((scale, 10 * scale, NEVER, NEVER)),
        commit_odds=random.choice((0.0, 0.1, 0.5)),
        faults=random.choice((0, 0, 1, 2)),
        firing_budget=random.choice((10_000, 10_000, 5)),
        kind=kind,
        clock_ms=_clock_ms(random, kind, longest_ms),
        quiet_idle=random.random() < 0.5,
    )


def falls_idle(one: InputPlan) -> bool:
    """Whether an input becomes idle when it is silent, and operators then advance without it."""
    return bool(one.moves) and one.watermark != "upstream"


def _clock_ms(random: Random, kind: Kind, longest_ms: int) -> int:
    """By how much the clock advances in total; ``longest_ms`` is the longest ``idle_after`` of an input."""
    if kind == "idle":
        return longest_ms * random.choice((2, 5, 20))
    return 0 if kind == "still" else random.choice((1_000, 60_000, 3_600_000))


def _waves(random: Random, places: Sequence[TopicPartition]) -> tuple[tuple[TopicPartition, ...], ...]:
    """All partitions at once; topic after topic; or some partitions, of any topics, before the others."""
    kind = random.choice(("together", "together", "topics", "halves"))
    if kind == "together" or len(places) < 2:
        return (tuple(places),)
    if kind == "topics":
        topics = sorted({place.topic for place in places})
        random.shuffle(topics)
        return tuple(tuple(place for place in places if place.topic == topic) for topic in topics)
    shuffled = random.sample(places, len(places))
    at = random.randrange(1, len(places))
    return tuple(shuffled[:at]), tuple(shuffled[at:])


def _speed(random: Random) -> float:
    """Half of the speeds are normal; the others are ten or a hundred times slower."""
    return exp(random.choice((0.0, 0.0, -2.3, -4.6)))


def _named(wave: Sequence[TopicPartition]) -> str:
    topics = sorted({place.topic for place in wave})
    if len(wave) <= 2:
        return " and ".join(map(_shown, sorted(wave)))
    return " and ".join(topics) if len(topics) == 1 else counted(len(wave), "partition")


def _shown(place: TopicPartition) -> str:
    return f"{place.topic} partition {place.partition}"
