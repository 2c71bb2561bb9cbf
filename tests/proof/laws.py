"""The laws, each as a check that takes some seconds: the tests run them, and mutations must make them fail.

They are numbered as in docs/reliability.md. A check raises whatever it likes if its law does not hold. Where other tests of the suite
check a part of a law, the mutations of that part name them.
"""

from __future__ import annotations

import builtins
import os
import random
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any
from unittest import mock

import msgspec

import tailrace as tr
from tailrace.core import rows
from tailrace.core.engine import tape
from tailrace.core.engine.settings import TaskSettings
from tailrace.core.engine.task import ORIGIN_HEADER, Task
from tailrace.core.errors import BadRecordError, HandlerError, WrongPartitionError
from tailrace.core.records import InputRecord
from tailrace.core.values.partitioner import partition_of
from tailrace.runtime.slices import PartitionSettings
from tailrace.state import MemoryStore
from tests.months.team import months
from tests.proof import (
    canonical_orders,
    event_times,
    first_runs,
    independent,
    ordered_shards,
    splitting,
    stops,
)
from tests.proof.alarms import Alarm, Note, alarms_app, records_of
from tests.proof.apps import Variant, build
from tests.proof.every_point import every_point, unharmed
from tests.proof.nan_checks import check_nans
from tests.proof.operations import Change, Event
from tests.proof.programs import Op
from tests.proof.runs import LINEAGE, Committed, First, Run, assert_equal, follow
from tests.proof.seeds import START_MS, Feed, Records, settings_of, variant_of
from tests.proof.simulations import TINY, simulated, small_inputs

QUIET = Variant(1, 1, "handle", 0, "events", "dead-letter-all", messages=False, lean=False)


# --- 1 -----------------------------------------------------------------------------------------------------------


def the_log_is_the_truth() -> None:
    """State is a function of log, tape and code: who has nothing but these comes to the same rows, in any process."""
    for seed in range(30):
        random_ = Random(seed)
        variant = variant_of(random_)
        model = build(variant)
        log: Records = {}
        first = first_runs.first_run(model, variant, random_, log, [])
        for run in first.runs:
            # All that is taken from the first run is its tape; its store and its process are gone.
            again = first_runs.replayed(run.plan, run.partition, run.committed.tapes, log, random_)
            assert (again.state(), again.identity()) == (run.committed.state(), run.committed.identity())


# --- 2 -----------------------------------------------------------------------------------------------------------


def one_key_has_one_owner() -> None:
    """A key from a partition that is not its own is refused, and one that was taken over commits nothing more."""
    model = build(QUIET._replace(partitions=2, on_error="stop"))
    topic = model.topics[0]
    event = Event("k", START_MS)
    key = topic.encode_key(event)
    wrong = 1 - partition_of(key or b"", 2)
    task = Task(model.app.plan(), wrong, MemoryStore(), lineage=LINEAGE)
    try:
        task.run(0, task.decode(0, [InputRecord(0, 0, key, topic.encode(event))]))
    except WrongPartitionError:
        pass
    else:
        raise AssertionError("a key has two owners")
    plan, inputs = small_inputs(QUIET)
    for struck in every_point(plan, inputs[:3], TINY, 2):
        if struck.point is not None and struck.point.strike.name == "sleep":
            assert len(struck.outputs[0]) == len({headers for *_, headers in struck.outputs[0]})


# --- 3 -----------------------------------------------------------------------------------------------------------


def nothing_is_visible_until_it_is_committed_and_a_crash_loses_and_repeats_nothing() -> None:
    """At every operation of a small run, and in random ones: the laws after every step, and the same bytes in the end."""
    plan, inputs = small_inputs(QUIET)
    for settings in (TINY, PartitionSettings(commit_interval_ms=1 << 40)):
        clean = unharmed(plan, inputs, settings, 3)
        for struck in every_point(plan, inputs, settings, 3):
            assert struck.outputs == clean.outputs, struck.point
            assert struck.rows == clean.rows, struck.point
    for seed in range(40):
        simulated(seed)


# --- 4 -----------------------------------------------------------------------------------------------------------

PURE = Path(tr.__file__).parent / "core"
FORBIDDEN = ("time", "secrets", "socket", "threading", "subprocess", "asyncio", "tempfile", "multiprocessing")


def the_core_does_no_io_reads_no_clock_and_draws_no_randomness() -> None:
    """The core imports nothing that could, and runs where all of it raises."""
    for path in sorted(PURE.rglob("*.py")):
        for line in path.read_text().splitlines():
            words = line.split()
            if words[:1] in (["import"], ["from"]):
                assert words[1].split(".")[0] not in FORBIDDEN, f"{path}: {line}"

    def forbidden(*_: object, **__: object) -> Any:
        raise RuntimeError("the core has touched the outside world")

    random_ = Random(7)
    variant = variant_of(random_, inputs=2)
    model = build(variant)
    log: Records = {}
    Feed(model, variant, random_, most=20).fill(log)
    state = random.getstate()
    outside = [
        (time, name) for name in ("time", "time_ns", "monotonic", "monotonic_ns", "perf_counter", "sleep")
    ]
    with ExitStack() as patches:
        for module, name in (*outside, (os, "urandom"), (builtins, "open")):
            patches.enter_context(mock.patch.object(module, name, forbidden))
        First(model.app.plan(), log, random_, []).run(30)
    assert random.getstate() == state, "the core has drawn from the global random generator"


# --- 5 -----------------------------------------------------------------------------------------------------------


def results_do_not_depend_on_batching() -> None:
    """The same causes in other slices, with other commits, caches, reloads and crashes; and independent runs: all of a seed before the
    next, as most mistakes show in the first seeds.
    """
    a_failed_unit_leaves_no_trace()
    a_record_that_was_not_taken_wakes_nothing()
    for seed in range(180):
        random_ = Random(seed)
        variant = variant_of(random_)
        log: Records = {}
        trace: list[str] = []
        first = first_runs.first_run(build(variant), variant, random_, log, trace)
        for run in first.runs:
            then = run.committed
            again = follow(run.plan, run.partition, then.tapes, log, random_, trace)
            assert_equal(then, again, f"seed {seed}")
        if seed < 60:
            independent.check_seed(seed, [])


def a_failed_unit_leaves_no_trace() -> None:
    """What a unit does and takes back cannot be told from what was never done, by the instance that lived through it."""
    model = build(QUIET)
    topic = model.topics[0]
    fade, again, fail = Op("fade", 1), Op("fade-same"), Op("fail-rich")
    forget = (Op("clear"), Op("chain", 0, 0, (fail,)))
    programs = [(fade,), forget, (again, fail), (Op("put", 1, 2),), (Op("count"),)]
    some = [
        topic.encode(Event("k", START_MS + at, program))
        for at, program in zip((0, 2_000, 2_100, 2_500, 4_000), programs, strict=True)
    ]
    states: list[dict[bytes, bytes]] = []
    for restart in (False, True):
        run = Run(model.app.plan(), 0, Committed(), TaskSettings())
        for offset, value in enumerate(some):
            task = run.task
            task.run(0, task.decode(0, [InputRecord(offset, 0, None, value)]))
            while not run.task.drain():
                pass
            run.commit()
            if restart:
                run.crash(TaskSettings())
        states.append(run.committed.state())
        value = next(v for r, v in states[-1].items() if r.startswith(b"srich") and r[-2:] == b"\0\0")
        fields = msgspec.msgpack.decode(value[rows.start_of_fields(value) :])
        assert fields["fading"] == [], "renewed by a unit that failed"
        assert fields["n"] == 3, "lost by a unit that failed"
    assert states[0] == states[1]


def a_record_that_was_not_taken_wakes_nothing() -> None:
    """An input that is idle stays so if its next record stops the task; and so does the count of late ones."""
    model = build(QUIET._replace(inputs=2, on_error="stop"))
    plan, (events, changes) = model.app.plan(), model.topics
    of = {one.name: one.index for one in plan.inputs}
    run = Run(plan, 0, Committed(), TaskSettings())
    bad = changes.encode(Change("k", 100, (Op("fail"),)))
    good = [events.encode(Event("k", START_MS + at)) for at in (0, 5_000)]

    def take(name: str, offset: int, value: bytes) -> None:
        run.task.run(of[name], run.task.decode(of[name], [InputRecord(offset, 0, None, value)]))

    run.task.idle(of["changes"])
    take("events", 0, good[0])
    try:
        take("changes", 0, bad)
    except HandlerError:
        pass
    else:
        raise AssertionError("not stopped")
    take("events", 1, good[1])
    assert run.task.watermark == START_MS + 4_999, "held back by an input of which nothing was taken"
    assert run.task.totals.late == 0
    run.commit()
    again = first_runs.replayed(
        plan,
        0,
        run.committed.tapes,
        {("events", 0): [InputRecord(offset, 0, None, value) for offset, value in enumerate(good)]},
        Random(1),
    )
    assert_equal(run.committed, again, "replay")


# --- 6 -----------------------------------------------------------------------------------------------------------


def replay_equals_live() -> None:
    """Along its own tape, commit by commit: state, outputs with headers and timestamps, and where it stands. In shards, key by key; and
    in the canonical order, however it is read: all of a seed before the next, as most mistakes show in the first seeds, and some in
    these alone.
    """
    check_nans()
    whole = sharded = 0
    telling = 223, 23, 18, 9
    for seed in (*telling, *(one for one in range(80) if one not in telling)):
        variant = variant_of(random_ := Random(seed))
        log: Records = {}
        first = first_runs.first_run(build(variant), variant, random_, log, [])
        for run in first.runs:
            again = first_runs.replayed(run.plan, run.partition, run.committed.tapes, log, random_)
            assert_equal(run.committed, again, f"seed {seed}")
            numbers = [dict(one.headers)[ORIGIN_HEADER] for one in again.outputs]
            assert numbers == [f"proof/{run.partition}/{n}".encode() for n in range(len(numbers))]
        if seed < 60:
            sharded += ordered_shards.check_shards(seed, [])
        if seed < 30:
            whole += splitting.check_whole(seed, [])
            canonical_orders.check_partition(seed, [])
            canonical_orders.check_messages(seed, [])
            canonical_orders.check_order(seed, [])
    assert whole > 100, "hardly any could be split"
    assert sharded > 60, "hardly any could be split"


# --- 7 -----------------------------------------------------------------------------------------------------------


def watermarks_never_go_back_and_a_timer_fires_at_most_once() -> None:
    """Every alarm goes off once, at the time it was last set for; every cut is at or past the one before."""
    for seed in range(30):
        random_ = Random(seed)
        app = alarms_app("stop")
        at, events = 1_000, list[Note | bytes]()
        for _ in range(40):
            at = max(0, at + random_.randint(-20, 40))
            events.append(Note(random_.choice("ab"), at))
        records = records_of(app, events)
        run = Run(app.plan(), 0, Committed(), settings_of(random_))
        done = independent.independent(run, records, random_, [])  # an alarm at a wrong time stops the task
        alarms = [
            msgspec.json.decode(o.value or b"", type=Alarm) for o in done.outputs if o.topic == "alarms"
        ]
        assert alarms
        for key in "ab":
            assert [a.number for a in alarms if a.key == key] == list(
                range(1, sum(a.key == key for a in alarms) + 1)
            )
        marks = 0
        for _, record in enumerate(done.tapes):
            watermark = tape.decode_tape(record).watermark
            assert watermark >= marks or not marks
            marks = watermark
    idle_inputs_do_not_pull_back()


def idle_inputs_do_not_pull_back() -> None:
    """An input that wakes up behind the watermark finds its records late; the watermark stays."""
    model = build(QUIET._replace(inputs=2))
    plan, (events, changes) = model.app.plan(), model.topics
    by_name = {one.name: one.index for one in plan.inputs}
    task = Task(plan, 0, MemoryStore(), lineage=LINEAGE)
    seen: list[int] = []

    def take(topic: Any, at: int, offset: int) -> None:
        data = msgspec.json.encode({"key": "k", "at": at})
        task.run(by_name[topic.name], task.decode(by_name[topic.name], [InputRecord(offset, 0, None, data)]))
        seen.append(task.watermark)

    take(events, 5_000, 0)
    task.idle(by_name["changes"])
    seen.append(task.watermark)
    take(changes, 1_000, 0)
    take(events, 6_000, 1)
    task.idle(by_name["events"])
    seen.append(task.watermark)
    assert seen == sorted(seen)
    assert seen[1] == 4_999
    assert task.totals.late == 1


# --- 8 -----------------------------------------------------------------------------------------------------------


def every_failure_is_loud() -> None:
    """What cannot be decoded or handled stops the task, or is a dead letter with its reason; what is late is counted."""
    bad: list[Note | bytes] = [b"\xff", b'{"key":"k","at":-1}', Note("k", 5_000, "fail")]
    for one in bad:
        run = Run(alarms_app("stop").plan(), 0, Committed(), TaskSettings())
        task = run.task
        try:
            task.run(0, task.decode(0, records_of(alarms_app(), [one])["notes", 0]))
        except (BadRecordError, HandlerError):
            pass
        else:
            raise AssertionError("a failure in silence")
    good: list[Note | bytes] = [Note("k", 1_001), Note("k", 2_001), Note("k", 900), Note("k", 901)]
    for late, handled, routed in (("handle", 4, 0), ("drop", 2, 0), ("route", 2, 2)):
        app = alarms_app("dead-letter", late)
        events = [bad[0], *good[:2], bad[1], *good[2:], bad[2]]
        run = Run(app.plan(), 0, Committed(), TaskSettings())
        done = independent.independent(run, records_of(app, events), Random(1), [])
        totals = done.standing().totals
        assert (totals.late, totals.refused, totals.failed) == (2, 2, 1)
        reasons = [
            dict(o.headers)["tailrace-reason"].decode()
            for o in done.outputs
            if o.topic == "alarms.dead-letters"
        ]
        assert reasons == ["undecodable", "bad-time", "handler-failed"]
        assert sum(o.topic == "lates" for o in done.outputs) == routed
        (fields,) = [
            v for row, v in done.state().items() if row.startswith(b"sClock") and row.endswith(b"k\0\0")
        ]
        assert msgspec.msgpack.decode(fields[1:])["seen"] == handled


# --- 9 -----------------------------------------------------------------------------------------------------------


def right_and_not_only_repeatable() -> None:
    """Event time is right at every step of an app, over stops; what an actor comes to is its own; what is published holds. All of a seed
    before the next, as most mistakes show in the first seeds.
    """
    for seed in range(60):
        event_times.check_right(seed, [])
        if seed < 25:
            event_times.check_apart(seed, [])
        for ends in ("nights", "both") if seed < 10 else ():
            stops.check_days(seed, [], ends)


# --- 10 ----------------------------------------------------------------------------------------------------------

MONTHS = (12, 42, 49)
"""Seeds of the model team: ends of runs that are no ends of inputs, a state that is not replaced, corrected sends."""


def nothing_that_is_done_over_months_is_wrong_in_silence() -> None:
    """Stops, corrections, upgrades, redrives and repairs: state and outputs are what events and versions say, or it is refused."""
    for seed in MONTHS:
        with TemporaryDirectory() as folder:
            months(seed, Path(folder) / "months")


# --- 11 ----------------------------------------------------------------------------------------------------------


def ordered_results_follow_from_the_set_of_events() -> None:
    """If all operators are ordered, the records may be taken in any order of the inputs."""
    for seed in range(60):
        independent.check_any_order(seed, [])


LAWS: dict[int, Callable[[], None]] = {
    1: the_log_is_the_truth,
    2: one_key_has_one_owner,
    3: nothing_is_visible_until_it_is_committed_and_a_crash_loses_and_repeats_nothing,
    4: the_core_does_no_io_reads_no_clock_and_draws_no_randomness,
    5: results_do_not_depend_on_batching,
    6: replay_equals_live,
    7: watermarks_never_go_back_and_a_timer_fires_at_most_once,
    8: every_failure_is_loud,
    9: right_and_not_only_repeatable,
    10: nothing_that_is_done_over_months_is_wrong_in_silence,
    11: ordered_results_follow_from_the_set_of_events,
}
