"""The metrics of several processes as one: counters and histograms add up; a gauge is that of its task, which one process has.

A counter must not fall when a process ends. Those of tasks are in their commits, and the next process continues them. What begins at
0 in each process is kept of those that have ended (``lasting``), as they have published it last.
"""

from __future__ import annotations

from collections.abc import Iterable
from operator import add

from tailrace.runtime.measuring import Family, Observed


def merged(families: Iterable[Family]) -> list[Family]:
    """One family of each name."""
    found: dict[str, Family] = {}
    for one in families:
        before = found.get(one.name)
        found[one.name] = one if before is None else _sum(before, one)
    return list(found.values())


def lasting(families: Iterable[Family]) -> list[Family]:
    """What counts on when its process has ended."""
    return [one for one in families if one.kind != "gauge" and "partition" not in one.labels]


def _sum(before: Family, more: Family) -> Family:
    samples = dict(before.samples)
    for labels, value in more.samples:
        known = samples.get(labels)
        if known is None or before.kind == "gauge":
            samples[labels] = value
        elif isinstance(known, Observed) and isinstance(value, Observed):
            samples[labels] = Observed(tuple(map(add, known.counts, value.counts)), known.total + value.total)
        elif not isinstance(known, Observed) and not isinstance(value, Observed):
            samples[labels] = known + value
    return before._replace(samples=tuple(sorted(samples.items())))
