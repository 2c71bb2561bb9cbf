"""Draws the operators of ``random_programs``: each is declared in the app, and paired with its oracle."""

from __future__ import annotations

import math
from collections.abc import Callable
from random import Random
from typing import Any, NamedTuple, TypeAlias

import msgspec

import tailrace as tr
from tailrace import agg, windows
from tests.library import oracle_joins, oracle_rolling, oracle_windows
from tests.library.oracle_joins import Arrival as Placed
from tests.library.oracle_rolling import Turn
from tests.library.oracle_windows import Arrival, Found, Value
from tests.library.random_programs import PASSED, TIMERS, Item, Node, Program, Result, ident, plain, weight

DAY_MS = 86_400_000
ORDERS: tuple[Any, ...] = None, None, "event-time"
KINDS = "tumbling", "tumbling", "sliding", "sessions", "sessions", "daily", "capped", "collected", "count"


class Seen(NamedTuple):
    """An event for the oracles of ``oracle_rolling``."""

    key: str
    at: int
    id: str
    amount: float
    item: Item


def pick(program: Program, usable: list[Node], *, settled: bool = False) -> Node | None:
    found = [one for one in usable if one.settled or not settled]
    return program.random.choice(found) if found else None


def passed_on(of: Node) -> int:
    """The rank of events that are passed on: an operator handles its events of a time before those that take its results."""
    return PASSED if of.is_topic else of.rank


def values(pairs: list[tuple[int, Any]]) -> list[float]:
    return [weight(one) for _, one in pairs]


def newest(pairs: list[tuple[int, Any]]) -> Any:
    return min(pairs, key=lambda pair: (-pair[0], msgspec.msgpack.encode(pair[1], order="deterministic")))[1]


AGGREGATES: dict[str, tuple[Callable[[], Any], Value]] = {
    "count": (agg.count, len),
    "mean": (lambda: agg.mean(weight), lambda pairs: math.fsum(values(pairs)) / len(pairs)),
    "total": (lambda: agg.total(weight), lambda pairs: math.fsum(values(pairs))),
    "max": (lambda: agg.max(weight), lambda pairs: max(values(pairs))),
    "least": (lambda: agg.min(weight), lambda pairs: min(values(pairs))),
    "several": (
        lambda: agg.several(n=agg.count(), sum=agg.total(weight)),
        lambda pairs: {"n": len(pairs), "sum": math.fsum(values(pairs))},
    ),
}


class Drawn(NamedTuple):
    """Windows of some kind, with their oracle."""

    windows: Any
    found: Callable[[list[Arrival]], Found]
    after: int = -1
    """From the end of a window to its result."""
    size: int = 0
    """Of windows that may be filled."""
    events: int = 0


def windows_of(random: Random, kind: str, value: Value, lateness: int, early: int) -> Drawn:
    """Draw windows of a kind."""
    if kind == "count":
        count = random.choice([1, 3, 5])
        return Drawn(
            windows.count(count), lambda all_: oracle_windows.count(all_, count, value), events=count
        )
    if kind in ("sessions", "capped"):
        gap = random.choice([5, 20, 60])
        if kind == "sessions":
            return Drawn(
                windows.sessions(gap),
                lambda all_: oracle_windows.sessions(all_, gap, value, lateness=lateness),
                gap,
            )
        at_most = gap * random.choice([1, 2, 5])
        return Drawn(
            windows.sessions(gap, at_most=at_most),
            lambda all_: oracle_windows.sessions(all_, gap, value, at_most=at_most, ordered=True),
            gap,
        )
    chosen: Any
    size = 0
    if kind == "tumbling":
        size, offset = random.choice([1, 10, 60, 600]), random.choice([0, 0, 7])
        offset %= size
        chosen, of = windows.tumbling(size, offset=offset), oracle_windows.tumbling(size, offset)
    elif kind == "daily":
        chosen, of = windows.daily(zone="UTC"), oracle_windows.tumbling(DAY_MS)
    elif kind == "sliding":
        length, every = random.choice([(60, 15), (100, 40), (90, 90), (120, 7)])
        chosen, of = windows.sliding(length, every=every), oracle_windows.sliding(length, every)
    else:
        chosen, of = windows.tumbling(60), oracle_windows.tumbling(60)
    return Drawn(
        chosen,
        lambda all_: oracle_windows.spans(all_, of, value, lateness, kind == "collected", early),
        size=size,
    )


def window(program: Program, name: str, usable: list[Node]) -> Node | None:
    """A window of any kind over an edge."""
    random = program.random
    kind = random.choice(KINDS)
    ordered = kind in ("capped", "collected")
    of = pick(program, usable, settled=kind in ("collected", "count"))
    if of is None or (
        kind == "collected" and not of.is_topic
    ):  # the type of what is collected is given by hand
        return None
    choice = random.choice(sorted(AGGREGATES))
    make, value = AGGREGATES[choice]
    if kind == "collected":
        make, value = (lambda: agg.collect(of.edge.type)), (lambda pairs: [plain(one) for _, one in pairs])
    options: dict[str, Any] = {}
    lateness = early = fill = 0
    if not ordered and kind != "count" and of.takes_corrections and random.random() < 0.5:
        options["lateness"] = lateness = random.choice([1, 50, 400])
    elif kind == "tumbling" and of.settled and random.random() < 0.2:
        options["early"] = early = random.choice([1, 3])
    drawn = windows_of(random, kind, value, lateness, early)
    if drawn.size and not lateness and not early and random.random() < 0.3:
        options |= {"fill": None, "fill_windows": 3}
        fill = drawn.size
    routes = kind != "count" and of.is_topic and not of.in_time and random.random() < 0.4
    if routes:
        options["late"] = program.late
    numbers = choice != "several" and kind != "collected" and not fill
    node = Node(
        name=name, edge=None, inputs=[of], ordered=ordered, rank=passed_on(of) if kind == "count" else TIMERS,
        in_time=kind != "count", ends=kind != "count", routes=routes, published=not numbers or random.random() < 0.75,
    )  # fmt: skip
    node.chains = node.published and not lateness and not early
    node.of_key = lambda key, inputs: results_of(key, [Arrival(*one) for one in inputs[0]], drawn, fill)
    if not node.published:  # of sessions, a correction has another start
        takes = kind in ("tumbling", "sliding", "daily") and all(
            one.edge is not program.last for one in program.nodes
        )
        options["into"] = program.last if takes else program.filled
    node.edge = program.app.window(name, of.edge, drawn.windows, make(), **options)
    return node


def results_of(key: str, all_: list[Arrival], drawn: Drawn, fill: int) -> Result:
    """The results of windows as items."""
    results, late = drawn.found(all_)
    items = []
    for number, (start, end, value, kind) in enumerate(filled(results, fill, 3) if fill else results):
        time, fired_to = end + drawn.after, end + drawn.after - 1
        if drawn.events:
            last = all_[(number + 1) * drawn.events - 1]
            time, fired_to = last.time, last.watermark
        how: Any = kind
        items.append(Item(fired_to, time, tr.Windowed(key, start, end, value, how)))
    return Result(items if drawn.events else sorted(items, key=lambda one: one.time), late)


def filled(results: list[Any], size: int, most: int) -> list[Any]:
    """With the windows without events that follow."""
    starts = {start for start, *_ in results}
    more = []
    for start in starts:
        for number in range(1, most + 1):
            at = start + number * size
            if at in starts:
                break
            more.append((at, at + size, None, "final"))
    return [*results, *more]


def seen(key: str, items: list[Item]) -> Any:
    found: list[Any] = [Seen(key, one.time, ident(one.event), weight(one.event), one) for one in items]
    return iter([Turn(one, one.item.fired_to) for one in found])


def passed(found: Any) -> Result:
    return Result([one.item for one in found.passed], [one.item.event for one in found.late])


def late_of(program: Program, of: Node) -> dict[str, Any]:
    """The option ``late``, or none."""
    return {"late": program.late} if of.is_topic and program.random.random() < 0.4 else {}


def dedupe(program: Program, name: str, usable: list[Node]) -> Node | None:
    """The first event of each id."""
    random, of = program.random, pick(program, usable, settled=True)
    if of is None:
        return None
    late, order = late_of(program, of), random.choice(ORDERS)
    within, lateness = random.choice([1, 30, 400, DAY_MS]), random.choice([0, 0, 50, 300])
    edge = program.app.dedupe(name, of.edge, by=ident, within=within, lateness=lateness, order=order, **late)

    def of_key(key: str, inputs: list[list[Item]]) -> Result:
        return passed(oracle_rolling.deduped(seen(key, inputs[0]), within, lateness))

    return Node(
        name=name, edge=edge, inputs=[of], of_key=of_key, ordered=bool(order), rank=passed_on(of), routes=bool(late)
    )  # fmt: skip


def limit(program: Program, name: str, usable: list[Node]) -> Node | None:
    """The first events of each period."""
    random, of = program.random, pick(program, usable, settled=True)
    if of is None:
        return None
    late, order = late_of(program, of), random.choice(ORDERS)
    n, per = random.choice([1, 2, 7]), random.choice([1, 10, 40])
    edge = program.app.limit(name, of.edge, n, per=per, order=order, **late)

    def of_key(key: str, inputs: list[list[Item]]) -> Result:
        return passed(oracle_rolling.limited(seen(key, inputs[0]), n, per))

    return Node(
        name=name, edge=edge, inputs=[of], of_key=of_key, ordered=bool(order), rank=passed_on(of), routes=bool(late)
    )  # fmt: skip


def top(program: Program, name: str, usable: list[Node]) -> Node | None:
    """The best ids."""
    of, best = pick(program, usable, settled=True), program.random.choice([1, 3])
    if of is None:
        return None

    def of_key(key: str, inputs: list[list[Item]]) -> Result:
        ranked: list[Any] = oracle_rolling.ranked(seen(key, inputs[0]), best)
        return Result([Item(0, at, tr.Top(key, tuple(map(tuple, names)), at)) for _, names, at in ranked])

    edge = program.app.top(name, of.edge, best, by=ident, of=weight)
    return Node(name=name, edge=edge, inputs=[of], of_key=of_key, chains=False, ends=False)


def running(program: Program, name: str, usable: list[Node]) -> Node | None:
    """An aggregate after every event."""
    of = pick(program, usable, settled=True)
    if of is None:
        return None
    make, value = AGGREGATES[program.random.choice(sorted(AGGREGATES))]

    def of_key(key: str, inputs: list[list[Item]]) -> Result:
        found = []
        for count in range(1, len(inputs[0]) + 1):
            some = [(one.time, one.event) for one in inputs[0][:count]]
            times = [time for time, _ in some]
            found.append(Item(0, times[-1], tr.Windowed(key, min(times), max(times), value(some), "early")))
        return Result(found)

    edge = program.app.window(name, of.edge, windows.global_(), make(), early=1)
    return Node(name=name, edge=edge, inputs=[of], of_key=of_key, chains=False, ends=False)


def throttle(program: Program, name: str, usable: list[Node]) -> Node | None:
    """The newest event of each interval."""
    of, every = pick(program, usable), program.random.choice([10, 60, 600])
    if of is None:
        return None
    late = late_of(program, of)

    def of_key(key: str, inputs: list[list[Item]]) -> Result:
        all_ = [Arrival(*one) for one in inputs[0]]
        drawn = Drawn(None, lambda all_: oracle_windows.spans(all_, oracle_windows.tumbling(every), newest))
        return results_of(key, all_, drawn, 0)

    edge = program.app.window(name, of.edge, windows.tumbling(every), agg.latest(of.edge.type), **late)
    return Node(
        name=name, edge=edge, inputs=[of], of_key=of_key, in_time=True, rank=TIMERS, routes=bool(late)
    )


def lookup(program: Program, name: str, usable: list[Node]) -> Node | None:
    """Each event with what the table has of its id."""
    of = pick(program, usable)
    if of is None:
        return None
    rows = program.rows

    def of_key(key: str, inputs: list[list[Item]]) -> Result:
        del key
        return Result(
            [one._replace(event=tr.Pair(one.event, rows.get(ident(one.event)))) for one in inputs[0]]
        )

    edge = program.app.lookup(name, of.edge, program.table, by=ident)
    return Node(
        name=name, edge=edge, inputs=[of], of_key=of_key, settled=of.settled, in_time=of.in_time, rank=passed_on(of),
        looks_up=True,
    )  # fmt: skip


def join(program: Program, name: str, usable: list[Node]) -> Node | None:
    """A join of two or three edges."""
    random = program.random
    kind = random.choice(["interval", "interval", "window", "asof", "gather"])
    left, right = pick(program, usable), pick(program, usable, settled=kind == "asof")
    if left is None or right is None or left is right:
        return None
    inputs = [left, right]
    if kind == "gather":
        inputs = list(
            {one.rank: one for one in random.sample(usable, min(3, len(usable))) if one.settled}.values()
        )
        if len(inputs) < 2:
            return None
    routes = all(one.is_topic for one in inputs) and random.random() < 0.4
    joins: Any = program.app
    options = {"late": program.late} if routes else {}
    edge, given, ends = _joined(random, joins, kind, name, [one.edge for one in inputs], options)

    def of_key(key: str, items: list[list[Item]]) -> Result:
        del key
        sides, late = [], list[Any]()
        for node, some in zip(inputs, items, strict=True):
            late += [one.event for one in some if one.time <= one.fired_to]
            in_time = [one for one in some if one.time > one.fired_to]
            sides.append([Placed(one.time, node.rank, at, one.event) for at, one in enumerate(in_time)])
        found = _gathered(inputs, sides, given) if kind == "gather" else given(*sides)
        return Result([Item(time - 1, time, event) for time, event in found], late)

    return Node(
        name=name, edge=edge, inputs=inputs, of_key=of_key, ordered=True, settled=False, in_time=True, rank=TIMERS,
        ends=ends, routes=routes,
    )  # fmt: skip


Joined: TypeAlias = Callable[..., list[tuple[int, Any]]]


def _joined(
    random: Random, joins: Any, kind: str, name: str, edges: list[Any], options: Any
) -> tuple[Any, Joined, bool]:
    """Declare a join: its edge, its oracle, and whether its state ends."""
    how = random.choice(["inner", "left", "right", "full"])
    keep = random.choice([1, 30, 200, None])
    oracle: Callable[..., list[Any]]
    if kind == "interval":
        first, last = sorted(random.choice([-200, -30, -5, -1, 0, 1, 5, 30, 200]) for _ in range(2))
        if first == last == 0:
            first = -1
        edge = joins.join(name, *edges, within=(first, last), how=how, **options)
        oracle = lambda left, right: oracle_joins.interval(left, right, first, last, how)  # noqa: E731  # one of several
    elif kind == "window":
        size = random.choice([1, 10, 60, 600])
        edge = joins.window_join(name, *edges, windows.tumbling(size), how=how, **options)
        oracle = lambda left, right: oracle_joins.window(left, right, size, 0, how)  # noqa: E731
    elif kind == "asof":
        edge = joins.asof(name, *edges, keep=keep, **options)
        oracle = lambda left, right: oracle_joins.asof(left, right, 10**15 if keep is None else keep)  # noqa: E731
    else:
        within = random.choice([1, 30, 200])
        edge = joins.gather(name, *edges, within=within, **options)
        return (
            edge,
            lambda sides: [(time, parts) for time, *parts in oracle_joins.gather(sides, within)],
            True,
        )
    pairs: Joined = lambda *sides: [(time, tr.Pair(*pair)) for time, *pair in oracle(*sides)]  # noqa: E731
    return edge, pairs, kind != "asof" or keep is not None


def _gathered(inputs: list[Node], sides: list[list[Placed]], given: Joined) -> list[tuple[int, Any]]:
    """The oracle of cases takes an input's rank for its place: here they are put in the order of their ranks, and back."""
    order = sorted(range(len(inputs)), key=lambda at: inputs[at].rank)
    found = []
    for time, case in given(
        [[one._replace(rank=place) for one in sides[at]] for place, at in enumerate(order)]
    ):
        parts: list[Any] = [None] * len(order)
        repeated = [0] * len(order)
        for place, at in enumerate(order):
            parts[at], repeated[at] = case[place], case[-1][place]
        found.append((time, tr.Gathered(tuple(parts), 0, tuple(repeated))))
    return found


OPERATORS = (window,) * 6 + (dedupe, limit, top, running, throttle, lookup) + (join,) * 6
