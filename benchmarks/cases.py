"""The cases: each measures one thing, in its own process, and returns lines of the table.

Targets are part of the product. A change of a target must be explained in docs/performance.md.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from random import Random
from time import perf_counter

import tailrace as tr
from benchmarks import apps, loops
from benchmarks.drive import SLICE, Drive
from benchmarks.measure import Row, Scale, alternating, clock, peak_bytes, rate
from tailrace.core.engine.task import TaskSettings
from tailrace.state import RocksStore, StateIdentity, StateMemory
from tailrace.testing import Harness

MIB = 1 << 20
CACHE_BYTES = 256 * MIB
Case = Callable[[Scale], list[Row]]


def _through(app: tr.App, events: list[apps.Event]) -> Drive:
    drive = Drive(app)
    drive.feed(events)
    return drive


def core(scale: Scale) -> list[Row]:
    """Count and sum per key, one output per event, compared with a hand-written loop."""
    events = list(apps.events(scale.events, apps.keys(scale.keys)))
    count = len(events)

    def case() -> Drive:
        return _through(apps.counting, events)

    full = alternating(count, case, lambda: loops.encoding_loop(events), scale.repeats)
    bare = alternating(count, case, lambda: loops.bare_loop(events), scale.repeats)
    return [
        Row(
            case="core only",
            measured=full.case,
            unit="events/s",
            target="400,000 or more",
            met=full.case >= 400_000,
        ),
        Row(
            case="core only, beside a loop by hand",
            measured=full.case,
            unit="events/s",
            target="65 % or more",
            met=full.ratio >= 0.65,
            ratio=full.ratio,
            compared_with="hand-written loop, the same outputs",
            compared=full.baseline,
        ),
        Row(
            case="core only, beside a loop that encodes nothing",
            measured=bare.case,
            unit="events/s",
            ratio=bare.ratio,
            compared_with="hand-written loop, outputs left as objects",
            compared=bare.baseline,
        ),
    ]


def _plain(name: str, app: tr.App, least: int, scale: Scale) -> list[Row]:
    events = list(apps.events(scale.events, apps.keys(scale.keys)))
    measured = rate(len(events), lambda: _through(app, events), scale.repeats)
    target = f"{least:,} or more"
    return [Row(case=name, measured=measured, unit="events/s", target=target, met=measured >= least)]


def timer(scale: Scale) -> list[Row]:
    """As ``core``, and each event moves a named timer of its key."""
    return _plain("a named timer moved per event", apps.timing, 200_000, scale)


def entry(scale: Scale) -> list[Row]:
    """As ``core``, and each event changes an entry of a map."""
    return _plain("a map entry changed per event", apps.mapping, 200_000, scale)


def two_inputs(scale: Scale) -> list[Row]:
    """The same events from two topics, merged by event time, compared with one topic."""
    events = list(apps.events(scale.events, apps.keys(scale.keys)))
    halves = events[::2], events[1::2]

    def merged(app: tr.App, *inputs: list[apps.Event]) -> Drive:
        drive = Drive(app)
        drive.merge(inputs)
        return drive

    pairs = alternating(
        len(events),
        lambda: merged(apps.joining, *halves),
        lambda: merged(apps.counting, events),
        scale.repeats,
    )
    return [
        Row(
            case="two interleaved inputs",
            measured=pairs.case,
            unit="events/s",
            target="85 % or more",
            met=pairs.ratio >= 0.85,
            ratio=pairs.ratio,
            compared_with="one input",
            compared=pairs.baseline,
        )
    ]


def two_actors(scale: Scale) -> list[Row]:
    """The same events to two actors, each with its own count and output, compared with one actor."""
    events = list(apps.events(scale.events, apps.keys(scale.keys)))
    pairs = alternating(
        len(events),
        lambda: _through(apps.sharing, events),
        lambda: _through(apps.counting, events),
        scale.repeats,
    )
    return [
        Row(
            case="two actors on one input",
            measured=pairs.case,
            unit="events/s",
            ratio=pairs.ratio,
            compared_with="one actor",
            compared=pairs.baseline,
        )
    ]


def rekeyed(scale: Scale) -> list[Row]:
    """Orders, and payments that a function re-keys by order: each order moves a timer, each payment cancels it.

    A payment is handled twice, and passes through a topic inside the app in between.
    """
    names, half = apps.keys(scale.keys), scale.events // 2
    orders, payments = list(apps.events(half, names)), list(apps.paying(half, names))

    def run() -> Drive:
        drive = Drive(apps.rekeying)
        number_of = {one.name: one.index for one in drive.task.plan.inputs}
        drive.rejoin(((number_of["orders"], orders), (number_of["payments"], payments)), number_of["paid"])
        return drive

    measured = rate(2 * half, run, scale.repeats)
    note = "each payment is handled twice, and written and read in between"
    return [Row(case="a re-keyed join", measured=measured, unit="events/s", note=note)]


# --- with a store ---


def _settings() -> TaskSettings:
    """Half of the cache is for live instances, half for the store: 256 MiB in total."""
    return TaskSettings(cache_bytes=CACHE_BYTES // 2)


def _rocks(folder: str) -> RocksStore:
    memory = StateMemory(CACHE_BYTES // 2)
    return RocksStore(Path(folder) / "state", StateIdentity("counting", 0), memory)


def _for_a_while(drive: Drive, events: list[apps.Event], lasting_s: float, commit_every_s: float) -> float:
    """Feed the events repeatedly for ``lasting_s``, with a commit every ``commit_every_s``. Returns events per second.

    Event times start again with each round, so all events after the first round are late. This does not affect the result.
    """
    start = last = clock()
    taken = 0
    while (now := clock()) - start < lasting_s:
        at = taken % len(events)
        slice_ = events[at : at + SLICE]
        drive.run(0, drive.heads(slice_))
        taken += len(slice_)
        if now - last >= commit_every_s:
            drive.commit()
            last = now
    drive.commit()
    return taken / (clock() - start)


def durable(scale: Scale) -> list[Row]:
    """RocksDB with a commit per second, compared with memory with the same commits, and with memory without commits."""
    events = list(apps.events(scale.events, apps.keys(scale.keys)))
    every_s = min(1.0, scale.durable_s / 4)
    in_rocks: list[float] = []
    in_memory: list[float] = []
    wall: list[float] = []
    commits: list[float] = []
    for _ in range(scale.repeats):
        in_memory.append(_for_a_while(Drive(apps.counting), events, scale.durable_s, every_s))
        with tempfile.TemporaryDirectory() as folder:
            store = _rocks(folder)
            drive = Drive(apps.counting, store, _settings())
            start, began = perf_counter(), clock()
            in_rocks.append(_for_a_while(drive, events, scale.durable_s, every_s))
            wall.append((perf_counter() - start) / (clock() - began))
            commits.append(drive.commit_s / drive.commits)
            store.close()
    never = rate(len(events), lambda: _through(apps.counting, events), scale.repeats)
    middle = scale.repeats // 2
    ratios = sorted(r / m for r, m in zip(in_rocks, in_memory, strict=True))
    measured, memory = sorted(in_rocks)[middle], sorted(in_memory)[middle]
    commit_ms = 1000 * sorted(commits)[middle]
    note = f"{commit_ms:.0f} ms per commit; wall time was {sorted(wall)[middle]:.2f} of processor time"
    return [
        Row(
            case="RocksDB, a commit per second",
            measured=measured,
            unit="events/s",
            target="60 % or more",
            met=ratios[middle] >= 0.6,
            ratio=ratios[middle],
            compared_with="in memory, a commit per second",
            compared=memory,
            note=note,
        ),
        Row(
            case="RocksDB, beside no commits at all",
            measured=measured,
            unit="events/s",
            ratio=measured / never,
            compared_with="in memory, no commit",
            compared=never,
        ),
    ]


def _permuted(count: int) -> Iterator[apps.Event]:
    """One event for each of ``count`` keys, not in the order of the keys. Does not keep the events in memory."""
    stride = 7_368_787  # a prime, so that it steps through all keys
    for number in range(count):
        yield apps.Event(f"key-{number * stride % count}", number // 10, number % 100)


def _revisits(count: int, keys: int, first_ms: int) -> Iterator[apps.Event]:
    draw = Random(2).random
    for number in range(count):
        yield apps.Event(f"key-{int(draw() * keys)}", first_ms + number // 10, number % 100)


def _lazily(drive: Drive, events: Iterator[apps.Event], commit_every_s: float) -> tuple[int, float]:
    """Feed events that are created slice by slice. Returns their number, and the seconds without their creation."""
    taken, took, since = 0, 0.0, 0.0
    while slice_ := list(islice(events, SLICE)):
        start = clock()
        drive.run(0, drive.heads(slice_))
        taken += len(slice_)
        step = clock() - start
        since += step
        if since >= commit_every_s:
            start = clock()
            drive.commit()
            step += clock() - start
            since = 0.0
        took += step
    start = clock()
    drive.commit()
    return taken, took + clock() - start


def large(scale: Scale) -> list[Row]:
    """Ten million keys with a 256 MiB cache: each key once, then random keys, of which almost none is in the cache."""
    keys, every_s = scale.large_keys, 1.0
    with tempfile.TemporaryDirectory() as folder:
        store = _rocks(folder)
        drive = Drive(apps.counting, store, _settings())
        count, took = _lazily(drive, _permuted(keys), every_s)
        filling = count / took
        count, took = _lazily(drive, _revisits(scale.large_revisits, keys, keys // 10), every_s)
        visiting = count / took
        store.close()
    peak = peak_bytes()
    with tempfile.TemporaryDirectory() as folder:
        store = _rocks(folder)
        drive = Drive(apps.counting, store, _settings())
        few = min(scale.keys, keys)
        _lazily(drive, _permuted(few), every_s)
        count, took = _lazily(drive, _revisits(scale.large_revisits, few, few // 10), every_s)
        cached = count / took
        store.close()
    name = f"{keys / 1e6:g} million keys, 256 MiB cache"
    return [
        Row(
            case=f"{name}: events of random keys",
            measured=visiting,
            unit="events/s",
            target="25 % or more",
            met=visiting / cached >= 0.25,
            ratio=visiting / cached,
            compared_with=f"{few:,} keys, all cached",
            compared=cached,
        ),
        Row(
            case=f"{name}: first event of each key",
            measured=filling,
            unit="events/s",
            ratio=filling / cached,
            compared_with=f"{few:,} keys, all cached",
            compared=cached,
        ),
        Row(
            case=f"{name}: peak memory",
            measured=peak / MIB,
            unit="MiB",
            target="under 1,024 MiB",
            met=peak < 1024 * MIB,
            note="the whole process, Python and its libraries included",
        ),
    ]


# --- growth and size ---


def _growth(name: str, app: tr.App, scale: Scale) -> list[Row]:
    names = apps.keys(scale.keys // 10)
    rows: list[Row] = []
    costs: list[float] = []
    for count in scale.growth:
        drive, taken, took = Drive(app), 0, 0.0
        events = apps.events(count, names)
        while slice_ := list(islice(events, SLICE)):
            start = clock()
            drive.run(0, drive.heads(slice_))
            taken += len(slice_)
            if taken % (10 * SLICE) == 0 or taken == count:
                drive.commit()
            took += clock() - start
        costs.append(took / taken)
        last = len(costs) == len(scale.growth)
        ratio = costs[-1] / costs[0] if len(costs) > 1 else None
        rows.append(
            Row(
                case=f"{name}: {count:,} events",
                measured=costs[-1] * 1e9,
                unit="ns/event",
                target="at most 115 % of the fewest" if last else "",
                met=ratio is not None and ratio <= 1.15 if last else None,
                ratio=ratio,
                compared_with=f"{scale.growth[0]:,} events" if ratio else "",
                compared=costs[0] * 1e9 if ratio else None,
                note=f"peak memory so far {peak_bytes() / MIB:.0f} MiB",
            )
        )
    return rows


def growth(scale: Scale) -> list[Row]:
    """Check that the cost of an event does not depend on the number of earlier events."""
    return _growth("growth", apps.counting, scale)


def growth_timers(scale: Scale) -> list[Row]:
    """As ``growth``, and each event moves a timer."""
    return _growth("growth, a timer moved per event", apps.timing, scale)


def _hot_key(app: tr.App, events: list[apps.Event], each: int, repeats: int) -> float:
    """Microseconds per event of one key, with a commit after ``each`` events."""

    def run() -> None:
        drive = Drive(app)
        for at in range(0, len(events), each):
            drive.feed(events[at : at + each])
            drive.commit()

    return 1e6 / rate(len(events), run, repeats)


def sessions(scale: Scale) -> list[Row]:
    """Sessions of one hot key: the cost of an event must not depend on the number of entries that wait for the commit."""
    few, many = scale.pending
    draw = Random(1).random
    events = [apps.Event("hot", at * 200 + int(draw() * 400), 1) for at in range(2 * many)]
    least, most = (_hot_key(apps.sessions, events, each, scale.repeats) for each in (few, many))
    return [
        Row(case=f"sessions of one key, {few:,} events a commit", measured=least, unit="us/event"),
        Row(
            case=f"sessions of one key, {many:,} events a commit",
            measured=most,
            unit="us/event",
            target="at most 115 % of the fewest",
            met=most <= 1.15 * least,
            ratio=most / least,
            compared_with=f"{few:,} events a commit",
            compared=least,
        ),
    ]


def append(scale: Scale) -> list[Row]:
    """An item appended to a list in an entry of a map, which has 50 items on average, compared with one that has 1."""
    costs: list[float] = []
    for size in (1, 50):
        events = [apps.Event("hot", at, size) for at in range(scale.events // 20)]
        costs.append(_hot_key(apps.collecting, events, 1_000, scale.repeats))
    short, long = costs
    return [
        Row(case="an item appended to a list of 0 to 2", measured=short, unit="us/event"),
        Row(
            case="an item appended to a list of 0 to 100",
            measured=long,
            unit="us/event",
            target="at most 2 us more",
            met=long <= short + 2,
            ratio=long / short,
            compared_with="a list of 0 to 2",
            compared=short,
        ),
    ]


def tape(scale: Scale) -> list[Row]:
    """The size of the tape, with a commit for every 100,000 events."""
    count, commit_every = scale.events, 100_000
    names = apps.keys(scale.keys)
    rows: list[Row] = []

    def row(name: str, drive: Drive, taken: int) -> None:
        note = f"{drive.commits} commits"
        rows.append(Row(case=name, measured=drive.tape_bytes / taken, unit="bytes/event", note=note))

    drive = Drive(apps.counting)
    events = apps.events(count, names)
    while some := list(islice(events, commit_every)):
        drive.feed(some)
        drive.commit()
    row("tape, one input", drive, count)
    for per_ms, dense in ((10.0, "10,000"), (0.1, "100")):
        drive = Drive(apps.joining)
        events = apps.events(count, names, per_ms=per_ms)
        while some := list(islice(events, commit_every)):
            drive.merge((some[::2], some[1::2]))
            drive.commit()
        row(f"tape, two inputs, {dense} events per second of event time", drive, count)
    return rows


def harness(scale: Scale) -> list[Row]:
    """The test harness as users run it: events go through the log, and are routed and committed."""
    events = list(apps.events(scale.harness_events, apps.keys(scale.keys)))

    def run(*, checked: bool) -> None:
        with Harness(apps.counting, checked=checked) as h:
            for at in range(0, len(events), SLICE):
                h.send(apps.counted, *events[at : at + SLICE])

    rows: list[Row] = []
    for checked, name in ((True, "harness"), (False, "harness, checked=False")):
        measured = rate(len(events), lambda checked=checked: run(checked=checked), scale.repeats)  # type: ignore[misc]
        target, met = ("100,000 or more", measured >= 100_000) if checked else ("", None)
        rows.append(Row(case=name, measured=measured, unit="events/s", target=target, met=met))
    return rows
