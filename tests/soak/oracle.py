"""What must have come out of the soak's services, worked out from their inputs alone, without the framework.

It knows the rules of the apps and two of the framework's: a record is late when its time is at or before the watermark, which
is the highest time seen in its partition, less the disorder, less one; and every timer fires once, when the watermark has come
to its time, unless it was moved or cancelled before. All inputs have ended, so every timer's time has come.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field

from tests.soak import apps


@dataclass(slots=True)
class _Window:
    steps: int = 0
    amount: int = 0
    least: int | None = None
    calls: int = 0
    due_ms: int | None = None


@dataclass(slots=True)
class Expected:
    """What one service must have emitted."""

    closed: Counter[apps.Closed] = field(default_factory=Counter[apps.Closed])
    told: Counter[apps.Told] = field(default_factory=Counter[apps.Told])
    passed: dict[str, list[apps.Passed]] = field(default_factory=lambda: defaultdict(list))
    """By device, in order."""
    pairs: Counter[apps.Told] = field(default_factory=Counter[apps.Told])

    @property
    def timers(self) -> int:
        """How many timers must have fired."""
        told = self.told + self.pairs
        return self.closed.total() + sum(told[one] for one in told if one.what in ("echo", "past", "alone"))


class _Windows:
    def __init__(self, *, second: bool) -> None:
        self._second = second
        self._found: dict[tuple[str, int], _Window] = defaultdict(_Window)

    def step(self, key: str, at: int, kind: apps.Kind, amount: int) -> None:
        number = at // apps.WINDOW_MS
        found = self._found[key, number]
        if kind == "cancel":
            found.due_ms = None
            return
        found.steps += 1
        found.amount += amount
        found.least = amount if found.least is None else min(found.least, amount)
        if kind == "add":
            found.due_ms = apps.due(number, found.steps, second=self._second)

    def call(self, key: str, at: int) -> None:
        self._found[key, at // apps.WINDOW_MS].calls += 1

    def close(self, into: Expected) -> None:
        for (key, number), one in self._found.items():
            if one.due_ms is not None:
                into.closed[
                    apps.Closed(key, number, one.due_ms, one.steps, one.amount, one.least, one.calls)
                ] += 1
                if number % 2:
                    into.told[apps.Told(key, "echo", number)] += 1


def late_steps(partitions: Iterable[Sequence[apps.Step]]) -> set[int]:
    """The numbers of the steps that are late where steps are the only input."""
    late: set[int] = set()
    for steps in partitions:
        highest = 0
        for one in steps:
            if one.at <= highest - apps.DISORDER_MS - 1:
                late.add(one.number)
            highest = max(highest, one.at)
    return late


def of_first(
    partitions: Sequence[Sequence[apps.Step]],
    calls: Iterable[apps.Call],
    late: Collection[int],
    *,
    rich: bool,
) -> Expected:
    """What the first service must have emitted, apart from naps and audits."""
    expected, windows = Expected(), _Windows(second=False)
    amounts: dict[str, list[int]] = defaultdict(list)
    for steps in partitions:
        for one in steps:
            if one.number in late:
                expected.told[apps.Told(one.device, "late", one.number)] += 1
                expected.told[apps.Told(one.device, "past", one.number)] += 1
                continue
            so_far = amounts[one.device]
            so_far.append(one.amount)
            windows.step(one.device, one.at, one.kind, one.amount)
            group = apps.group_of(one.device, rich=rich)
            expected.passed[one.device].append(
                apps.Passed(
                    group, one.device, one.at, len(so_far), sum(so_far), min(so_far), one.kind, one.amount
                )
            )
    for call in calls:
        windows.call(call.device, call.at)
    windows.close(expected)
    if rich:
        expected.pairs = of_pairs(one for steps in partitions for one in steps if one.number not in late)
    return expected


def alarms(partitions: Sequence[Sequence[apps.Step]], late: Collection[int]) -> list[int]:
    """The numbers of the steps that raise an alarm."""
    numbers = (one.number for steps in partitions for one in steps)
    return [number for number in numbers if apps.raises_alarm(number) and number not in late]


def of_pairs(steps: Iterable[apps.Step]) -> Counter[apps.Told]:
    """Two steps of a pair are together if their times are close, whichever came first; else each is alone."""
    halves: dict[str, list[apps.Step]] = defaultdict(list)
    for one in steps:
        halves[apps.pair_of(one.number)].append(one)
    found: Counter[apps.Told] = Counter()
    for pair, members in halves.items():
        times = [one.at for one in members]
        if len(members) == 2 and max(times) - min(times) <= apps.TOGETHER_MS:
            found[apps.Told(pair, "together", sum(one.amount for one in members))] += 1
        else:
            found.update(apps.Told(pair, "alone", one.number) for one in members)
    return found


def of_second(partitions: Iterable[Sequence[apps.Passed]]) -> Expected:
    """What the second service must have emitted: nothing is late there, and nothing missing."""
    expected, windows = Expected(), _Windows(second=True)
    for passed in partitions:
        for one in passed:
            windows.step(one.group, one.at, one.kind, one.amount)
    windows.close(expected)
    return expected
