"""The findings of an exploration, for people and for programs."""

from __future__ import annotations

from dataclasses import dataclass, field

from tailrace.core.counting import counted
from tailrace.core.errors import TailraceError
from tailrace.history.comparing.differences import Difference

SHOWN = 3
"""Number of dependences and keys shown in full; the others are only counted."""
CHANGES = 2
"""Number of changed labels shown for each key."""


@dataclass(slots=True)
class Dependence:
    """One cause why results depend on the schedule, with the keys that it affects."""

    cause: str
    """Where the two schedules part, in words."""
    schedule: int
    """The schedule that differs from schedule 0."""
    special: str
    """How that schedule differs from schedule 0, as text."""
    declared: str = ""
    """The declaration of the app that allows this dependence; empty if there is none."""
    time_ms: int = 0
    """The event time at which the schedules part."""
    timer: str | None = None
    """The name of the timer involved, "" for an unnamed one; None if no timer is involved."""
    handlers: tuple[str, ...] = ()
    differences: list[Difference] = field(default_factory=list[Difference])
    keys: int = 0
    """Number of keys that differ for this cause, in the schedules whose causes were searched."""

    def lines(self) -> list[str]:
        """For a person."""
        lines = [self.cause]
        if self.declared:
            lines.append(f"    declared: {self.declared}")
        for one in self.differences:
            order = " (the same, in another order)" if one.only_order else ""
            lines.append(f"    {one.where}{order}")
            lines += [f"        {line}" for line in one.lines()[:CHANGES]]
        if self.keys > len(self.differences):
            lines.append(f"    and {counted(self.keys - len(self.differences), 'other key')}")
        lines.append(f"    schedule {self.schedule}: {self.special}")
        return lines


@dataclass(slots=True)
class ExploreReport:
    """The result of ``explore``: what was run, and what was found. ``str(report)`` is the text for people.

    ``errors`` are the causes of undeclared dependence on the schedule. ``declared`` are those that the app
    declares, for example with ``late="drop"``.
    """

    app: str
    seed: int
    schedules: int = 0
    """Number of schedules that were run, schedule 0 included."""
    records: int = 0
    """Number of records of the history."""
    keys: int = 0
    """Number of keys compared: of topics that the app writes, and of actors."""
    differing: dict[int, int] = field(default_factory=dict[int, int])
    """By schedule, the number of keys that differ from schedule 0."""
    errors: list[Dependence] = field(default_factory=list[Dependence])
    declared: list[Dependence] = field(default_factory=list[Dependence])
    unexplained: int = 0
    """Number of schedules that differ but whose cause was not searched, as enough others were."""
    seconds: float = 0.0

    @property
    def equal(self) -> bool:
        """Whether every schedule gave the same results."""
        return not self.differing and not self.errors

    def lines(self) -> list[str]:
        """For a person."""
        events = counted(self.schedules * self.records, "event")
        ran = f"{counted(self.schedules, 'schedule')} of {self.app}, {events}"
        if self.equal:
            return [f"{ran}: all {counted(self.keys, 'key')} equal"]
        lines = [f"{ran}: {counted(len(self.differing), 'schedule')} with other results than schedule 0"]
        for title, found in (("depends on the schedule", self.errors), ("declared to", self.declared)):
            for number, one in enumerate(sorted(found, key=lambda each: each.time_ms)[:SHOWN], 1):
                head, *rest = one.lines()
                lines += [f"{title}, {number}: {head}", *rest]
            if len(found) > SHOWN:
                lines.append(f"and {len(found) - SHOWN} more causes")
        if self.unexplained:
            lines.append(f"not looked into, as enough others were: {counted(self.unexplained, 'schedule')}")
        return lines

    def __str__(self) -> str:
        return "\n".join(self.lines())


class ScheduleDependentError(TailraceError, AssertionError):
    """Results depend on the schedule, and the app does not declare it. ``report``: the ``ExploreReport``."""

    def __init__(self, report: ExploreReport) -> None:
        number = next((one.schedule for one in (*report.errors, *report.declared)), 0)
        super().__init__(
            str(report),
            hint=f"To repeat one: schedule={number}, seed={report.seed}. Make the handlers commute, "
            "or let them compare event times; where the order of arrival is meant to count, declare "
            "it. See docs/explore.md.",
        )
        self.report = report

    def __str__(self) -> str:
        return f"{self.what}\n{self.hint}"

    def __reduce__(self) -> tuple[type[ScheduleDependentError], tuple[ExploreReport]]:
        return type(self), (self.report,)
