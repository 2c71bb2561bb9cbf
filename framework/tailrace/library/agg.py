"""Aggregates: how the events of a window become one value.

An aggregate keeps an *accumulator*: a durable value that never changes in place. ``add`` returns the accumulator with one
event more, ``merge`` the one of two sets of events, ``result`` the value. The accumulators here are functions of the *set* of
events, with their event times: neither their order nor the way in which sets were merged can be seen in them.

- Sums of floats are exact. The accumulator is the exact sum S as floats whose sum it is: S rounded, then what is left of S
  rounded, until nothing is left (Shewchuk 1997; ``math.fsum``). There is one such list for each S. Numbers of 2**960 or more
  in size are refused, so that no sum overflows. A sum with NaN, or with infinities of both signs, is NaN.
- Equal values are distinguished by event time, then by the encoded record.
- What may grow has a limit, and reaching it raises ``LimitError``: the handler fails.

``ordered`` aggregates (``collect``, ``reduce``) need their events in the order of event time.
"""

from __future__ import annotations

import operator
from bisect import bisect_left
from collections.abc import Callable
from hashlib import blake2b
from math import fsum, inf, isfinite, isnan, nan
from typing import Any, Generic, TypeVar, get_type_hints

import msgspec

from tailrace.core.errors import DefinitionError
from tailrace.library.operators import unchanging
from tailrace.library.sketches import Distinct, Quantiles, place
from tailrace.library.windows import at_least_one

E = TypeVar("E")
A = TypeVar("A")
V = TypeVar("V")
E_contra = TypeVar("E_contra", contravariant=True)
V_co = TypeVar("V_co", covariant=True)
B = TypeVar("B")
N = TypeVar("N", bound=float)
O = TypeVar("O", int, float, str)  # noqa: E741  # what has an order

_encode = msgspec.msgpack.Encoder(order="deterministic").encode
_HUGE = 2.0**960
Sum = int | tuple[float, ...]
"""An exact sum: an int of ints only, else floats in canonical form."""


class LimitError(ValueError):
    """An aggregate would hold more than its limit."""


class Aggregate(Generic[E_contra, A, V_co]):
    """The base of all aggregates; derive from it for your own.

    ::

        class Spread(agg.Aggregate[Reading, tuple[float, float], float]):
            def start(self) -> tuple[float, float]:
                return (math.inf, -math.inf)

            def add(self, acc: tuple[float, float], event: Reading, time_ms: int) -> tuple[float, float]:
                return (min(acc[0], event.celsius), max(acc[1], event.celsius))

            def merge(self, a: tuple[float, float], b: tuple[float, float]) -> tuple[float, float]:
                return (min(a[0], b[0]), max(a[1], b[1]))

            def result(self, acc: tuple[float, float]) -> float:
                return acc[1] - acc[0]

    ``start`` and ``result`` must be annotated: their types are those of the stored accumulator and of the value. The
    accumulator must not be changed in place: lists, dicts, sets and structs that are not frozen are refused. Without ``merge``,
    sliding windows and sessions that are not in the order of event time refuse it. ``ordered = True`` asks for that order.
    """

    ordered: bool = False

    def start(self) -> A:
        """The accumulator of no events."""
        raise NotImplementedError

    def add(self, acc: A, event: E_contra, time_ms: int) -> A:
        """The accumulator with one more event, of the given event time."""
        raise NotImplementedError

    def merge(self, a: A, b: A) -> A:
        """The accumulator of the events of both."""
        raise NotImplementedError

    def result(self, acc: A) -> V_co:
        """The value of a window."""
        raise NotImplementedError

    def types(self, event_type: Any, /) -> tuple[Any, Any]:
        """The types of the accumulator and of the value, for events of a type; None: it is not known."""
        del event_type
        try:
            hints = get_type_hints(self.start).get("return"), get_type_hints(self.result).get("return")
        except NameError as error:
            raise DefinitionError(
                f"an annotation of {self.spec} cannot be looked up: {error}",
                hint="Define what it names at the top of the module.",
            ) from None
        if None in hints:
            raise DefinitionError(
                f"the aggregate {self.spec} does not say what it holds",
                hint="Annotate what its methods start and result return.",
            )
        unchanging(f"the accumulator of {self.spec}", hints[0])
        return hints

    @property
    def spec(self) -> str:
        """What a stored accumulator means, in a few words. State of another meaning is refused at the start."""
        return type(self).__name__

    @property
    def merges(self) -> bool:
        """Whether two accumulators can be merged."""
        return "merge" in {
            name for one in type(self).__mro__[:-2] for name in vars(one) if one is not Aggregate
        }


class _Made(Aggregate[E, A, V]):
    """An aggregate of this module: its functions, and what it holds and gives (``EVENT`` in it: the type of events)."""

    def __init__(
        self,
        spec: str,
        types: Callable[[Any], tuple[Any, Any]],
        start: A,
        add: Callable[[A, E, int], A],
        merge: Callable[[A, A], A] | None,
        result: Callable[[A], V],
        *,
        ordered: bool = False,
    ) -> None:
        self._spec, self._merges, self.ordered = spec, merge is not None, ordered
        self.__dict__.update(types=types, start=lambda: start, add=add, merge=merge, result=result)

    @property
    def spec(self) -> str:
        return self._spec

    @property
    def merges(self) -> bool:
        return self._merges


def _same(acc: A) -> A:
    return acc


# --- counts and sums ---


def count() -> Aggregate[Any, int, int]:
    """The number of events."""
    return _Made("count", lambda _: (int, int), 0, lambda acc, _, __: acc + 1, operator.add, _same)


def total(of: Callable[[E], N]) -> Aggregate[E, Any, N]:
    """The exact sum of numbers: an int if all are ints (of 64 bits, the sum too), else the float nearest to it."""

    def add(acc: Sum, event: E, _: int) -> Sum:
        return plus(acc, of(event))

    return _Made[E, Any, Any]("total", lambda _: (Sum, int | float), 0, add, joined, rounded)


def mean(of: Callable[[E], float]) -> Aggregate[E, Any, float]:
    """The exact sum of numbers, rounded to a float, divided by their count. NaN without events."""

    def add(acc: tuple[int, Any], event: E, _: int) -> tuple[int, Sum]:
        (count, exact), number = acc, of(event)
        if int is type(number) is type(exact):  # a common case, without a call
            return (count + 1, exact + number)
        return (count + 1, plus(exact, number))

    def merge(a: tuple[int, Sum], b: tuple[int, Sum]) -> tuple[int, Sum]:
        return (a[0] + b[0], joined(a[1], b[1]))

    def result(acc: tuple[int, Sum]) -> float:
        return rounded(acc[1]) / acc[0] if acc[0] else nan

    return _Made("mean", lambda _: (tuple[int, Sum], float), (0, 0), add, merge, result)


def plus(acc: Sum, number: Any) -> Sum:
    """An exact sum and one number more."""
    if isinstance(number, int) and isinstance(acc, int):
        return acc + number
    parts = acc if isinstance(acc, tuple) else _parts(acc)
    if type(number) is not float:
        if not isinstance(number, int | float):
            raise TypeError(f"a sum takes int and float, not {type(number).__name__} ({number!r:.60})")
        return joined(parts, _parts(number)) if isinstance(number, int) else plus(parts, float(number))
    if not -_HUGE < number < _HUGE:
        if isfinite(number):
            raise ValueError(f"{number} is too large for an exact sum: the limit is 2**960")
        return _special(parts, number)
    if len(parts) == 1:  # the common case: two floats, by Knuth's exact addition
        first = parts[0]
        whole = first + number
        back = whole - first
        rest = (first - (whole - back)) + (number - back)
        if rest:  # NaN if the sum is not finite
            return (whole, rest) if rest == rest else parts
        return (whole,) if whole else ()
    return _canonical([*parts, number]) if parts else ((number,) if number else ())


def joined(a: Sum, b: Sum) -> Sum:
    """The exact sum of two."""
    if isinstance(a, int) and isinstance(b, int):
        return a + b
    first, second = (one if isinstance(one, tuple) else _parts(one) for one in (a, b))
    for one, other in ((first, second), (second, first)):
        if other and not isfinite(other[0]):
            return _special(one, other[0])
    return _canonical([*first, *second])


def rounded(acc: Sum) -> float:
    """An exact sum as a number: an int, or the nearest float."""
    return acc if isinstance(acc, int) else acc[0] if acc else 0.0


def _special(parts: tuple[float, ...], number: float) -> tuple[float]:
    before = parts[0] if parts and not isfinite(parts[0]) else number
    return (number,) if before == number else (nan,)


def _canonical(numbers: list[float]) -> tuple[float, ...]:
    found: list[float] = []
    while whole := fsum(numbers):
        found.append(whole)
        numbers.append(-whole)
    return tuple(found)


def _parts(number: int) -> tuple[float, ...]:
    found: list[float] = []
    while number:
        found.append(float(number))
        number -= int(found[-1])
    return tuple(found)


# --- the least and the greatest ---


def min(of: Callable[[E], O]) -> Aggregate[E, Any, O]:  # noqa: A001  # it is agg.min
    """The least of numbers or texts. NaN is refused with an error."""
    return _extreme("min", of, greatest=False)


def max(of: Callable[[E], O]) -> Aggregate[E, Any, O]:  # noqa: A001  # it is agg.max
    """The greatest of numbers or texts. NaN is refused with an error."""
    return _extreme("max", of, greatest=True)


def min_by(event: type[E], by: Callable[[E], int | float | str]) -> Aggregate[E, Any, E]:
    """The event of this type with the least number or text. Of several, the earliest by event time, then by its encoding."""
    return _extreme_record("min_by", event, by, greatest=False)


def max_by(event: type[E], by: Callable[[E], int | float | str]) -> Aggregate[E, Any, E]:
    """The event of this type with the greatest number or text. Of several, the earliest by event time, then by its encoding."""
    return _extreme_record("max_by", event, by, greatest=True)


def first(event: type[E]) -> Aggregate[E, Any, E]:
    """The earliest event by event time, of this type. Of several at one time, the first by its encoding."""
    return _extreme_record("first", event, None, greatest=False)


def latest(event: type[E]) -> Aggregate[E, Any, E]:
    """The latest event by event time, of this type. Of several at one time, the first by its encoding."""
    return _extreme_record("latest", event, None, greatest=True)


def _extreme(spec: str, of: Callable[[E], Any], *, greatest: bool) -> Aggregate[E, Any, Any]:
    def merge(a: Any, b: Any) -> Any:
        if a is None or b is None:
            return b if a is None else a
        if a != b:
            return a if (a > b) == greatest else b
        return a if _encode(a) <= _encode(b) else b  # 1 and 1.0, 0.0 and -0.0

    held = int | float | str | None
    return _Made(
        spec, lambda _: (held, held), None, lambda a, e, _: merge(a, _not_nan(spec, of(e))), merge, _same
    )


def _extreme_record(
    spec: str, event: type[E], by: Callable[[E], Any] | None, *, greatest: bool
) -> Aggregate[E, Any, Any]:
    def add(acc: Any, one: E, time_ms: int) -> Any:
        return merge(acc, (time_ms if by is None else _not_nan(spec, by(one)), time_ms, one))

    def merge(a: Any, b: Any) -> Any:
        if a is None or b is None:
            return b if a is None else a
        if a[0] != b[0]:
            return a if (a[0] > b[0]) == greatest else b
        return a if (a[1], _encode(a)) <= (b[1], _encode(b)) else b

    def types(event_type: Any) -> tuple[Any, Any]:
        record: Any = event if event_type is None else event_type
        return tuple[int | float | str, int, record] | None, record

    return _Made(spec, types, None, add, merge, lambda acc: acc and acc[2])


def _not_nan(spec: str, value: Any) -> Any:
    if value != value:  # NaN
        raise ValueError(f"agg.{spec} was given NaN, which is neither less nor greater than a number")
    return value


# --- many values ---


def top(
    n: int, by: Callable[[E], B], of: Callable[[E], N], *, limit: int = 1_000
) -> Aggregate[E, Any, list[tuple[B, N]]]:
    """The ``n`` names (str or int) with the greatest exact sums, each with its sum; of equal sums, the lesser name first.

    All names of a window are kept, at most ``limit`` of them, and each event costs a look at all.
    """
    at_least_one("agg.top", "n", n)
    at_least_one("agg.top", "limit", limit)

    def add(acc: tuple[Any, ...], event: E, _: int) -> tuple[Any, ...]:
        name, at = by(event), 0
        at = bisect_left(acc, (name,))
        if at < len(acc) and acc[at][0] == name:
            return (*acc[:at], (name, plus(acc[at][1], of(event))), *acc[at + 1 :])
        return _limited("top", (*acc[:at], (name, plus(0, of(event))), *acc[at:]), limit)

    def merge(a: tuple[Any, ...], b: tuple[Any, ...]) -> tuple[Any, ...]:
        sums = dict(a)
        for name, part in b:
            sums[name] = joined(sums.get(name, 0), part)
        return _limited("top", tuple(sorted(sums.items())), limit)

    def result(acc: tuple[Any, ...]) -> list[tuple[Any, Any]]:
        sums = [(name, rounded(part)) for name, part in acc]
        return sorted(sums, key=lambda one: (inf if isnan(one[1]) else -one[1], one[0]))[:n]  # NaN comes last

    def types(_: Any) -> tuple[Any, Any]:
        return tuple[tuple[str | int, Sum], ...], list[tuple[str | int, int | float]]

    return _Made(f"top {n}", types, (), add, merge, result)


def distinct(
    of: Callable[[E], Any], *, limit: int = 10_000, error: float | None = None
) -> Aggregate[E, Any, int]:
    """The number of distinct values, exactly. 16 bytes per value are kept, for at most ``limit`` values in a window.

    With ``error``, such as 0.02, it is an estimate with this standard error, for any number of values, in a bounded number of bytes
    (1,024 for 0.04, 4,096 for 0.02). Few values are counted exactly.
    """
    if error is not None:
        sketch = Distinct(of, _fraction("distinct", "error", error, 0.002, 0.13))
        spec = f"distinct {sketch.bits} bits"
        return _Made(spec, lambda _: (bytes, int), b"", sketch.add, sketch.merge, sketch.result)
    at_least_one("agg.distinct", "limit", limit)

    def held(acc: bytes) -> bytes:
        if len(acc) > 16 * limit:
            raise LimitError(
                f"agg.distinct has more than {limit:,} values in one window: raise limit=, or estimate with error="
            )
        return acc

    def add(acc: bytes, event: E, _: int) -> bytes:
        one = blake2b(_encode(of(event)), digest_size=16).digest()
        at = place(acc, one, 16)
        return acc if acc[at : at + 16] == one else held(acc[:at] + one + acc[at:])

    def merge(a: bytes, b: bytes) -> bytes:
        return held(b"".join(sorted({acc[at : at + 16] for acc in (a, b) for at in range(0, len(acc), 16)})))

    return _Made("distinct", lambda _: (bytes, int), b"", add, merge, lambda acc: len(acc) // 16)


def quantiles(
    of: Callable[[E], float], *at: float, error: float = 0.01, limit: int = 4_096
) -> Aggregate[E, Any, tuple[float, ...]]:
    """Quantiles of numbers: ``agg.quantiles(lambda r: r.ms, 0.5, 0.99)`` gives a tuple of two.

    Each is within a relative ``error`` of the value of its rank, the smallest that is not less than this part of all. 12 bytes are kept
    for each bin that is not empty: 50 bins per power of two for 0.01, at most ``limit`` in a window.
    """
    at_least_one("agg.quantiles", "limit", limit)
    for one in at:
        _fraction("quantiles", "at", one, 0, 1)

    def limited(acc: bytes) -> bytes:
        if len(acc) > 12 * limit:
            raise LimitError(
                f"agg.quantiles has more than {limit:,} bins in one window: raise limit= or error="
            )
        return acc

    sketch = Quantiles(of, at, _fraction("quantiles", "error", error, 0.0001, 0.5), limited)
    types = bytes, tuple[float, ...]
    return _Made(f"quantiles {error}", lambda _: types, b"", sketch.add, sketch.merge, sketch.result)


def _fraction(what: str, name: str, number: Any, least: float, most: float) -> float:
    if not isinstance(number, float | int) or not least <= number <= most:
        raise DefinitionError(
            f"agg.{what} has {name}={number!r}", hint=f"Give a number from {least} to {most}."
        )
    return number


def collect(event: type[E], *, limit: int = 1_000) -> Aggregate[E, Any, tuple[E, ...]]:
    """All events of this type, in the order of event time; at most ``limit`` in a window."""
    at_least_one("agg.collect", "limit", limit)

    def merge(a: tuple[E, ...], b: tuple[E, ...]) -> tuple[E, ...]:
        return _limited("collect", (*a, *b), limit)

    def types(event_type: Any) -> tuple[Any, Any]:
        record: Any = event if event_type is None else event_type
        return tuple[record, ...], tuple[record, ...]

    return _Made[E, Any, Any](
        "collect", types, (), lambda acc, e, _: merge(acc, (e,)), merge, _same, ordered=True
    )


def _limited(what: str, acc: tuple[B, ...], limit: int) -> tuple[B, ...]:
    if len(acc) > limit:
        raise LimitError(f"agg.{what} has more than {limit:,} entries in one window: raise limit=")
    return acc


# --- your own, and several ---


def reduce(step: Callable[[A, E], A], start: A) -> Aggregate[E, A, A]:
    """A fold over the events in the order of event time: ``step(accumulator, event)``, from ``start``.

    The accumulator has the type that ``step`` is annotated to return, else that of ``start``: a tuple, not a list.
    """
    held = get_type_hints(step).get("return", type(start))
    unchanging("the accumulator of reduce", held)
    return _Made(
        "reduce", lambda _: (held, held), start, lambda acc, e, _: step(acc, e), None, _same, ordered=True
    )


def several(**aggregates: Aggregate[E, Any, Any]) -> Aggregate[E, Any, Any]:
    """Several aggregates at once: the value is a frozen struct with a field for each, ``hour.value.mean``."""
    if not aggregates:
        raise DefinitionError(
            "agg.several has no aggregates", hint="Write agg.several(mean=..., n=agg.count())."
        )
    parts = tuple(aggregates.values())
    adds = tuple(one.add for one in parts)
    new: Any = None
    of: Any = None

    def types(event_type: Any) -> tuple[Any, Any]:
        nonlocal new, of
        if new is not None and of != event_type:
            raise DefinitionError(
                "one agg.several is used for events of two types", hint="Make another one for the other type."
            )
        both = [one.types(event_type) for one in parts]
        if new is None:
            fields = [(name, gives) for name, (_, gives) in zip(aggregates, both, strict=True)]
            new, of = msgspec.defstruct("Several", fields, frozen=True), event_type
        return tuple.__class_getitem__(tuple(holds for holds, _ in both)), new

    def add(acc: tuple[Any, ...], event: E, time_ms: int) -> tuple[Any, ...]:
        return tuple([one(part, event, time_ms) for one, part in zip(adds, acc, strict=True)])

    def merge(a: tuple[Any, ...], b: tuple[Any, ...]) -> tuple[Any, ...]:
        return tuple([one.merge(x, y) for one, x, y in zip(parts, a, b, strict=True)])

    return _Made(
        ", ".join(f"{name}: {one.spec}" for name, one in aggregates.items()),
        types,
        tuple([one.start() for one in parts]),
        add,
        merge if all(one.merges for one in parts) else None,
        lambda acc: new(*[one.result(part) for one, part in zip(parts, acc, strict=True)]),
        ordered=any(one.ordered for one in parts),
    )
