"""What a service measures of itself, for who asks over HTTP.

The worker's thread publishes, and others read what it has published: nothing is shared but references to values that do not change.
Counters are those of the last commits: work that is aborted is in none of them, a replay has none, and a task that moves to another
process takes its counters along, as they are in its cut. What ``ctx.metrics`` measured is counted in the process whose commit
reported it, so it begins at 0 in each; so are dead letters by reason, and the time until records are committed. The time of handlers
is estimated by a thread that samples which one runs, so that it costs an event nothing. The size of the state is what the store
estimates.

| kind of ``ctx.metrics`` | as |
|---|---|
| ``count("x")`` | the counter ``x_total`` |
| ``gauge("x", value)`` | the gauge ``x``, of each task |
| ``observe("x", value)`` | the histogram ``x``, with buckets of powers of ten and their halves and quarters |

Characters that no name may have become ``_``. A name that is taken by another kind, or by another name, is refused, with a warning.
"""

from __future__ import annotations

import logging
import os
import re
import time
from bisect import bisect_left
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from operator import add
from typing import Any, Final, Literal, NamedTuple, get_args

from tailrace.core.declare.user_metrics import KINDS, Measurement
from tailrace.core.durations import is_instant
from tailrace.core.engine.tape import Cut, Totals, decode_cut
from tailrace.core.engine.task import CommitBatch
from tailrace.core.errors import HANDLER_FAILED, BadReason
from tailrace.runtime.commit_notes import DEAD_LETTER, DELAY
from tailrace.runtime.companions import Companion
from tailrace.runtime.handler_watch import HandlerWatch, Stuck

_log = logging.getLogger("tailrace.service")
_EVERY_S = 1.0
SAMPLE_S: Final = 0.1
"""Between two samples of the handler that runs."""
BUCKETS: Final = tuple(one * 10.0**power for power in range(-4, 6) for one in (1.0, 2.5, 5.0))
"""Upper bounds of the buckets of a histogram."""
Kind = Literal["counter", "gauge", "histogram"]
_KINDS: dict[str, Kind] = {"count": "counter", "gauge": "gauge", "observe": "histogram"}

_SAMPLES: Final[dict[Kind, tuple[str, ...]]] = {
    "counter": ("_total", "_created"),
    "gauge": (),
    "histogram": ("_sum", "_count", "_bucket", "_created"),
}
"""What the names of its samples end with, beside its own."""
_OF_OTHERS: Final = ("tailrace_", "process_", "python_")


class Observed(NamedTuple):
    """The values of a histogram: how many there are in each bucket and above the last one, and their sum."""

    counts: tuple[int, ...]
    total: float


class Family(NamedTuple):
    """A metric. A sample is the values of its labels, and a value."""

    kind: Kind
    name: str
    """Of a counter without ``_total``."""
    help: str
    labels: tuple[str, ...]
    samples: tuple[tuple[tuple[str, ...], float | Observed], ...]


class Published(NamedTuple):
    """What is known of a process, as of one moment of its life."""

    turn_s: float
    """When the worker was last between two turns, by ``time.monotonic``."""
    has_joined: bool
    tasks: tuple[int, ...]
    running: tuple[int, ...]
    """The tasks that are restored and at work."""
    families: tuple[Family, ...]


class Seen(NamedTuple):
    """What is known of a process of the service."""

    pid: int
    published: Published
    stuck: Stuck | None


class Measuring(Companion):
    """Publishes once a second. See the head of this file."""

    name = "the metrics"

    def __init__(self, watch: HandlerWatch) -> None:
        self._watch = watch
        self.published = Published(time.monotonic(), False, (), (), ())
        self.turn_s = time.monotonic()
        """When the worker was last between two turns: known at once."""
        self._cuts: dict[int, Cut] = {}
        self._committed_s: dict[int, float] = {}
        self._own = UserMetrics()
        self._letters = dict.fromkeys((HANDLER_FAILED, *get_args(BadReason)), 0.0)
        self._delays: dict[str, Histogram] = {}
        self._assigned = 0
        self._published_s = 0.0

    def begin(self) -> None:
        self.turn_s = time.monotonic()

    def assigned(self, numbers: Collection[int], /) -> None:
        self._assigned += len(numbers)
        tasks = tuple(sorted({*self.published.tasks, *numbers}))
        self.published = self.published._replace(tasks=tasks)  # at once: it is not ready until they run

    def committed(self, number: int, batch: CommitBatch, /) -> None:
        self._cuts[number], self._committed_s[number] = decode_cut(batch.cut), time.time()
        for one in batch.measurements:
            if one.kind == DEAD_LETTER:
                self._letters[one.name] = self._letters.get(one.name, 0) + one.value
            elif one.kind == DELAY:
                self._delays.setdefault(one.name, Histogram()).add(one.value)
            elif one.kind in KINDS:
                self._own.add(one, number)

    def seen(self) -> tuple[dict[str, Seen], tuple[()]]:
        """This process, which has no name, as the only one of the service. May be called from any thread."""
        now = Seen(os.getpid(), self.published._replace(turn_s=self.turn_s), self._watch.stuck)
        return {"": now}, ()

    def look(self) -> None:
        self.turn_s = now_s = time.monotonic()
        if now_s - self._published_s < _EVERY_S:
            return
        self._published_s = now_s
        host = self.host
        assert host is not None
        worker = host.worker
        tasks = tuple(slot.number for slot in worker.slots)
        running = tuple(slot.number for slot in worker.slots if slot.running is not None)
        for number in self._cuts.keys() - set(tasks):
            del self._cuts[number], self._committed_s[number]
            self._own.forget(number)
        for slot in worker.slots:
            if slot.running is not None and slot.number not in self._cuts:
                # A counter that began with its first commit would hide that from who asks for its increase.
                core = slot.running.committed_cut
                self._cuts[slot.number] = _NOTHING if core is None else decode_cut(core)
                self._committed_s[slot.number] = time.time()
        found = self._of_tasks(tasks, running), self._of_process(), self._of_cuts(), self._own.families()
        families = tuple(chain.from_iterable(found))
        self.published = Published(now_s, host.tasks.joined, tasks, running, families)

    def _of_tasks(self, tasks: Collection[int], running: Collection[int]) -> Iterator[Family]:
        assert self.host is not None
        worker = self.host.worker
        at_work = [(slot.number, slot, slot.running) for slot in worker.slots if slot.running is not None]
        said = "Whether a task of this process is restored and at work."
        yield _of_each("gauge", "tailrace_task_running", said, ((one, one in running) for one in tasks))
        lags = ((number, worker.lag(slot)) for number, slot, _ in at_work)
        yield _of_each("gauge", "tailrace_lag_records", "Records to read.", lags)
        ahead = ((number, max(0.0, one.task.now / 1_000 - time.time())) for number, _, one in at_work)
        said = "By how much the last clock reading of a task is ahead of the clock: processing time stands still for so long."
        yield _of_each("gauge", "tailrace_clock_ahead_seconds", said, ahead)
        restores = ((number, (one.restore_ms or 0) / 1_000) for number, _, one in at_work)
        said = "How long the last restore of a task has taken in this process."
        yield _of_each("gauge", "tailrace_restore_seconds", said, restores)
        said = "Rows of the state at the last commit: instances, entries and timers."
        yield _of_each("gauge", "tailrace_state_rows", said, ((n, one.state_rows) for n, _, one in at_work))
        sizes = ((number, one.state_bytes) for number, _, one in at_work)
        said = "Size of the state in its folder and in memory, as RocksDB estimates it."
        yield _of_each("gauge", "tailrace_state_size_bytes", said, sizes)

    def _of_process(self) -> Iterator[Family]:
        given = (((), float(self._assigned)),)
        yield Family("counter", "tailrace_tasks_assigned", "Tasks that this process was given.", (), given)
        letters = tuple(((reason,), count) for reason, count in self._letters.items())
        said = "Dead letters that this process has committed."
        yield Family("counter", "tailrace_dead_letters", said, ("reason",), letters)
        delays = tuple(((name,), one.observed) for name, one in sorted(self._delays.items()))
        said = "Time from the timestamp of a record to its commit: of the first and the last of each commit."
        yield Family("histogram", "tailrace_source_to_commit_seconds", said, ("topic",), delays)
        seconds = tuple(((name,), value) for name, value in sorted(dict(self._watch.seconds).items()))
        said = "Time of handlers, with their state, estimated by ten samples a second."
        yield Family("counter", "tailrace_handler_seconds", said, ("handler",), seconds)

    def _of_cuts(self) -> Iterator[Family]:
        cuts = sorted(self._cuts.items())
        for name, attribute, said in _TOTALS:
            yield _of_each("counter", name, said, ((n, getattr(cut.totals, attribute)) for n, cut in cuts))
        yield _of_each(
            "counter", "tailrace_commits", "Commits of a task.", ((n, cut.tape) for n, cut in cuts)
        )
        said = (
            "Time of the last commit of a task; before the first of this process, when the task began to run."
        )
        yield _of_each(
            "gauge", "tailrace_last_commit_timestamp_seconds", said, sorted(self._committed_s.items())
        )
        for kind, name, said, labels, of in _PARTS:
            values = ((n, *one) for n, cut in cuts for one in of(cut))
            yield _of_each(kind, name, said, values, *labels)


def _of_each(kind: Kind, name: str, said: str, values: Iterable[tuple[Any, ...]], *labels: str) -> Family:
    """A metric of tasks. A value comes after its labels, and before these the number of the task; None: not known."""
    samples = tuple(((str(number), *at), float(value)) for number, *at, value in values if value is not None)
    return Family(kind, name, said, ("partition", *labels), samples)


def _instants(marks: Mapping[str, int]) -> list[tuple[Any, ...]]:
    return [(name, mark / 1_000) for name, mark in sorted(marks.items()) if is_instant(mark)]


_PARTS: Final[
    Sequence[tuple[Kind, str, str, tuple[str, ...], Callable[[Cut], Iterable[tuple[Any, ...]]]]]
] = (
    (
        "gauge",
        "tailrace_watermark_timestamp_seconds",
        "Watermark of an actor or a function, in event time.",
        ("operator",),
        lambda cut: _instants(cut.operators),
    ),
    (
        "gauge",
        "tailrace_source_watermark_timestamp_seconds",
        "Watermark of a source: the lowest of its sources, without idle ones, holds an actor back.",
        ("source",),
        lambda cut: _instants(cut.watermarks),
    ),
    (
        "gauge",
        "tailrace_source_idle",
        "Whether a source counts as idle.",
        ("source",),
        lambda cut: [(name, name in cut.idle) for name in sorted(cut.watermarks)],
    ),
    (
        "counter",
        "tailrace_late_after_idle_events",
        "Events that were late because their source had been idle.",
        ("source",),
        lambda cut: [
            (name, cut.idleness[name].late if name in cut.idleness else 0)
            for name in sorted({*cut.watermarks, *cut.idleness})
        ],
    ),
    (
        "gauge",
        "tailrace_waiting_events",
        "Events that were read and wait for their turn in an ordered actor or function.",
        ("operator", "topic"),
        lambda cut: [
            (operator, topic, count)
            for operator, one in sorted(cut.ordered.items())
            for topic, (_, count, _) in sorted(one.lows.items())
        ],
    ),
)
"""Metrics of parts of a task, by its last cut."""
_NOTHING: Final = Cut(0, "", 0, b"", {}, {}, [], 0, 0, Totals(), 0)
"""Of a task that has never committed."""
_TOTALS: Final = (
    ("tailrace_records", "records", "Records that a task has taken."),
    ("tailrace_timers", "fired", "Timers fired, and entries expired."),
    ("tailrace_outputs", "outputs", "Records that a task has emitted."),
    ("tailrace_late_events", "late", "Late events."),
    ("tailrace_dropped_events", "dropped", "Late events that their handlers left out."),
    ("tailrace_refused_records", "refused", "Records without a valid event, key or time."),
    ("tailrace_failed_units", "failed", "Records and timers whose handler has failed."),
    ("tailrace_ordered_events", "ordered", "Events that were handled in their turn."),
)


class Histogram:
    """Values by bucket, and their sum."""

    def __init__(self) -> None:
        self._counts = [0] * (len(BUCKETS) + 1)
        self._total = 0.0

    def add(self, value: float) -> None:
        """Count a value in."""
        self._counts[bisect_left(BUCKETS, value)] += 1
        self._total += value

    @property
    def observed(self) -> Observed:
        """As of now."""
        return Observed(tuple(self._counts), self._total)


class UserMetrics:
    """The sums of what ``ctx.metrics`` has measured in this process. See the head of this file."""

    def __init__(self) -> None:
        self._kinds: dict[str, tuple[Kind, str]] = {}
        """By name in the exposition: its kind, and the name in the code."""
        self._taken: dict[str, tuple[Kind, str]] = {}
        """The same, with the names of all samples."""
        self._names: dict[tuple[str, str], str | None] = {}
        """By kind and name in the code: the other one; None if it was refused."""
        self._counts: dict[str, float] = {}
        self._gauges: dict[str, dict[int, float]] = {}
        """By name, the value of each task."""
        self._histograms: dict[str, Histogram] = {}

    def add(self, measured: Measurement, number: int) -> None:
        """Count one of a task in."""
        kind, code, value = measured
        try:
            name = self._names[kind, code]
        except KeyError:
            name = self._names[kind, code] = self._named(_KINDS[kind], code)
        if name is None:
            return
        if kind == "gauge":
            self._gauges.setdefault(name, {})[number] = value
        elif kind == "count":
            self._counts[name] = self._counts.get(name, 0.0) + value
        else:
            self._histograms.setdefault(name, Histogram()).add(value)

    def forget(self, number: int) -> None:
        """A task is here no more: what another process measures of it may differ."""
        for values in self._gauges.values():
            values.pop(number, None)

    def _named(self, kind: Kind, code: str) -> str | None:
        name = re.sub(r"[^a-zA-Z0-9_]", "_", code)
        name = f"_{name}" if not name or name[0].isdigit() else name
        if kind == "counter":
            name = name.removesuffix("_total") or "_"
        names = [name, *(f"{name}{one}" for one in _SAMPLES[kind])]
        taken = next((self._taken[one] for one in names if one in self._taken), (kind, code))
        if taken == (kind, code) and not name.startswith(_OF_OTHERS):
            self._taken |= dict.fromkeys(names, taken)
            self._kinds[name] = taken
            return name
        _log.warning(
            "the metric %r, a %s, is not reported: its name is that of %r, a %s. Give it another name",
            code,
            kind,
            taken[1],
            taken[0],
        )
        return None

    def families(self) -> Iterable[Family]:
        """All of them."""
        for name, (kind, code) in sorted(self._kinds.items()):
            said = f"{code}, measured by handlers."
            if kind == "gauge":
                values = tuple(
                    ((str(number),), value) for number, value in sorted(self._gauges[name].items())
                )
                yield Family(kind, name, said, ("partition",), values)
            else:
                value = self._histograms[name].observed if kind == "histogram" else self._counts[name]
                yield Family(kind, name, said, (), (((), value),))


def merged(families: Iterable[Family]) -> list[Family]:
    """The families of several processes as one of each name: counters and histograms add up; a gauge is that of its task, which one
    process has.

    A counter must not fall when a process ends. Those of tasks are in their commits, and the next process continues them. What begins
    at 0 in each process is kept of those that have ended (``lasting``), as they have published it last.
    """
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
