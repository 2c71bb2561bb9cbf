"""Metrics in Python, for comparisons of versions: functions of an output, or of the state of a key."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeAlias, TypeVar

from tailrace.core.declare.topic import Topic

T = TypeVar("T")
Number: TypeAlias = float | tuple[float, float] | None


class Metric(Generic[T]):
    """A function that ``metric`` has made a metric. It can be called as before."""

    def __init__(
        self, of: Topic[T, Any] | type[T], unit: Callable[[T], object] | None, function: Callable[[T], Number]
    ) -> None:
        self.of, self.unit, self.function = of, unit, function
        self.name = function.__name__

    def __call__(self, one: T, /) -> Number:
        """The number of an output or a state."""
        return self.function(one)


def metric(
    of: Topic[T, Any] | type[T], *, unit: Callable[[T], object] | None = None
) -> Callable[[Callable[[T], Number]], Metric[T]]:
    """Make a function a metric of ``tailrace ab --metrics FILE.py``; its name is that of the metric.

    The function is called with each output to the topic ``of``, or with the state of each key of the actor ``of``. The metric is the
    total of the numbers that it returns. If it returns pairs, it is the total of the first numbers, divided by that of the second. None
    counts as nothing.

    ``unit`` returns what the output or the state belongs to, such as its customer. It is what the interval of the difference
    is computed over; without it there is no interval.
    """
    return lambda function: Metric(of, unit, function)
