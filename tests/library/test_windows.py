"""Windows against the oracle: random histories, commits, crashes, lateness, several partitions, chained."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from random import Random
from typing import Any

import msgspec
import pytest

import tailrace as tr
from tailrace import agg, windows
from tailrace.core.values.keys import key_codec_for
from tailrace.core.values.partitioner import partition_of
from tailrace.library.windows import AnyWindows
from tailrace.testing import Harness
from tests.library import oracle_windows as oracle
from tests.library.oracle_windows import Arrival, Found, Value

BEGIN_MS = 1_700_000_000_000


class Reading(msgspec.Struct, tr.Keyed[str], frozen=True):
    room: tr.Key[str]
    at: tr.EventTime[int]
    value: float


class Given(msgspec.Struct, frozen=True):
    room: tr.Key[str]
    start: int
    end: int
    value: Any
    kind: str
    at: int


class Program(msgspec.Struct):
    """A drawn program: windows, aggregate and options, and what the oracle makes of the events of a key."""

    windows: AnyWindows
    aggregate: agg.Aggregate[Reading, Any, Any]
    options: dict[str, Any]
    expected: Callable[[list[Arrival]], Found]
    out_of_order_ms: int


def _of(events: list[tuple[int, Reading]]) -> list[float]:
    return [one.value for _, one in events]


AGGREGATES: dict[str, tuple[Callable[[], agg.Aggregate[Reading, Any, Any]], Value]] = {
    "count": (agg.count, len),
    "mean": (lambda: agg.mean(lambda e: e.value), lambda events: math.fsum(_of(events)) / len(events)),
    "total": (lambda: agg.total(lambda e: e.value), lambda events: math.fsum(_of(events))),
    "max": (lambda: agg.max(lambda e: e.value), lambda events: max(_of(events))),
}
ORDERED: dict[str, tuple[Callable[[], agg.Aggregate[Reading, Any, Any]], Value]] = {
    "collect": (lambda: agg.collect(Reading), lambda events: [msgspec.to_builtins(one) for _, one in events])
}


def drawn(random: Random) -> Program:
    """A program of any kind."""
    kind = random.choice(["tumbling", "sliding", "sessions", "capped", "collected", "count"])
    aggregates = ORDERED if kind == "collected" else AGGREGATES
    make, value = aggregates[random.choice(sorted(aggregates))]
    out_of_order_ms, lateness_ms = random.choice([0, 30, 200]), random.choice([0, 0, 1, 50, 400])
    options: dict[str, Any] = {"lateness": lateness_ms} if lateness_ms else {}
    chosen: AnyWindows
    if kind == "tumbling":
        size, offset = random.choice([1, 10, 60, 600]), random.choice([0, 0, 7])
        offset %= size
        chosen = windows.tumbling(size, offset=offset)
        of, early = oracle.tumbling(size, offset), random.choice([0, 0, 1, 3])
        options |= {"early": early} if early else {}
        expected = lambda all_: oracle.spans(all_, of, value, lateness_ms, early=early)  # noqa: E731  # one of several
    elif kind == "sliding":
        size, every = random.choice([(60, 15), (100, 40), (90, 90), (120, 7), (10, 1)])
        offset = random.choice([0, 3]) % every
        chosen = windows.sliding(size, every=every, offset=offset)
        of = oracle.sliding(size, every, offset)
        expected = lambda all_: oracle.spans(all_, of, value, lateness_ms)  # noqa: E731
    elif kind == "sessions":
        gap = random.choice([5, 20, 60])
        chosen = windows.sessions(gap)
        expected = lambda all_: oracle.sessions(all_, gap, value, lateness=lateness_ms)  # noqa: E731
    elif kind == "capped":
        gap = random.choice([5, 20, 60])
        at_most = gap * random.choice([1, 2, 5])
        chosen, options = windows.sessions(gap, at_most=at_most), {}
        expected = lambda all_: oracle.sessions(all_, gap, value, at_most=at_most, ordered=True)  # noqa: E731
    elif kind == "collected":
        chosen, options = windows.tumbling(60), {}
        expected = lambda all_: oracle.spans(all_, oracle.tumbling(60), value, ordered=True)  # noqa: E731
    else:
        events = random.choice([1, 3, 5])
        chosen, options = windows.count(events), {}
        expected = lambda all_: oracle.count(all_, events, value)  # noqa: E731
    return Program(chosen, make(), options, expected, out_of_order_ms)


def history(random: Random, count: int, disorder_ms: int) -> list[Reading]:
    """Events of few keys: bursts and pauses, out of order, some far behind, with equal times and before 1970."""
    now = random.choice([BEGIN_MS, BEGIN_MS, 86_400_000_000, -500])
    found: list[Reading] = []
    for _ in range(count):
        now += random.choice([0, 1, 1, 3, 10, random.randrange(200)])
        behind = random.randrange(disorder_ms + 1) if random.random() < 0.9 else random.randrange(800)
        value = random.choice([0.1, 1e16, -1e16, 3.0, random.random(), -random.random()])
        found.append(Reading(f"r{random.randrange(3)}", now - behind, value))
    return found


def app_of(program: Program, partitions: int) -> tuple[tr.App, tr.Topic[Reading, str], Any, Any]:
    app = tr.App("rooms", partitions=partitions)
    far = (-(10**15), 10**15)
    readings = app.topic("readings", Reading, out_of_order=program.out_of_order_ms, time_range=far)
    dropped = app.topic("dropped", Reading, time_range=far)
    given = app.topic("given", Given, event_time="at", time_range=far)
    options = dict(program.options)
    if not isinstance(program.windows, windows.Count):
        options["late"] = dropped
    results = app.window("w", readings, program.windows, program.aggregate, **options)

    @app.process(results)
    def publish(one: tr.Windowed[str, Any], ctx: tr.Context[str]) -> None:
        value = msgspec.to_builtins(one.value)
        ctx.emit(given, Given(one.key, one.start, one.end, value, one.kind, ctx.event_time))

    return app, readings, given, dropped


def expected_of(
    program: Program, events: list[Reading], partitions: int
) -> tuple[Counter[Any], Counter[Any]]:
    """The results and the dropped events, of all keys."""
    results: Counter[Any] = Counter()
    dropped: Counter[Any] = Counter()
    encode = key_codec_for(str).encode
    for partition in range(partitions):
        of_it = [one for one in events if partition_of(encode(one.room), partitions) == partition]
        by_key = oracle.arrivals([(one.room, one.at, one) for one in of_it], program.out_of_order_ms)
        for key, all_ in by_key.items():
            found = program.expected(all_)
            results += Counter(_line(key, *one) for one in found.results)
            dropped += Counter(repr(one) for one in found.dropped)
    return results, dropped


def _line(*parts: Any) -> str:
    return msgspec.json.encode(parts, order="sorted").decode()


def run(h: Harness, random: Random, topic: tr.Topic[Reading, str], events: list[Reading]) -> None:
    """Send the events, with commits and crashes in between, to the end of input."""
    at = 0
    while at < len(events):
        step = random.choice([1, 1, 2, 5, 20])
        h.send(topic, *events[at : at + step])
        at += step
        if random.random() < 0.2:
            h.commit()
        if random.random() < 0.1:
            h.crash()
    h.end_of_input()


@pytest.mark.one_seed_in(2)
def test_windows_give_what_the_definition_says(seeds: range) -> None:
    for seed in seeds:
        random = Random(seed)
        program, partitions = drawn(random), random.choice([1, 1, 3])
        events = history(random, random.choice([5, 30, 80]), random.choice([0, 40, 300]))
        app, readings, given, dropped = app_of(program, partitions)
        with Harness(app, partitions=partitions, checked=random.random() < 0.5) as h:
            run(h, random, readings, events)
            found = Counter(_line(g.room, g.start, g.end, g.value, g.kind) for g in h.emitted(given))
            results, left_out = expected_of(program, events, partitions)
            assert found == results, (seed, program, found - results, results - found)
            assert Counter(repr(one) for one in h.emitted(dropped)) == left_out, (seed, program)
            if not isinstance(program.windows, windows.Count):
                actor: Any = app.actors["w"]
                assert h.keys(actor) == [], (seed, program, h.state(actor, "r0"))
            h.replay()
