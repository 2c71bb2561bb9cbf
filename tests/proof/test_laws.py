"""What the laws say beside the properties: of each law what a few lines of an app can show.

The properties are the other tests of this folder. ``mutations`` shows that both can fail.
"""

from __future__ import annotations

import builtins
import os
import random
import time
from contextlib import ExitStack
from pathlib import Path
from random import Random
from typing import Any
from unittest import mock

import msgspec
import pytest

import tailrace as tr
from tailrace.core import rows
from tailrace.core.engine.settings import TaskSettings
from tailrace.core.engine.task import Task
from tailrace.core.errors import BadRecordError, HandlerError, WrongPartitionError
from tailrace.core.records import InputRecord
from tailrace.core.values.partitioner import partition_of
from tailrace.state import MemoryStore
from tests.proof.apps import Variant, build
from tests.proof.operations import Change, Event
from tests.proof.programs import Op
from tests.proof.runs import LINEAGE, Committed, First, Run, assert_equal, replayed
from tests.proof.seeds import START_MS, Feed, Records, variant_of
from tests.proof.test_independent import independent

QUIET = Variant(1, 1, "handle", 0, "events", "dead-letter-all", messages=False, lean=False)


def test_a_key_from_a_partition_that_is_not_its_own_is_refused() -> None:
    model = build(QUIET._replace(partitions=2, on_error="stop"))
    topic = model.topics[0]
    event = Event("k", START_MS)
    key = topic.encode_key(event)
    wrong = 1 - partition_of(key or b"", 2)
    task = Task(model.app.plan(), wrong, MemoryStore(), lineage=LINEAGE)
    with pytest.raises(WrongPartitionError):
        task.run(0, task.decode(0, [InputRecord(0, 0, key, topic.encode(event))]))


PURE = Path(tr.__file__).parent / "core"
FORBIDDEN = ("time", "secrets", "socket", "threading", "subprocess", "asyncio", "tempfile", "multiprocessing")


def test_the_core_does_no_io_reads_no_clock_and_draws_no_randomness() -> None:
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


def test_a_record_that_was_not_taken_wakes_nothing() -> None:
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
    with pytest.raises(HandlerError):
        take("changes", 0, bad)
    take("events", 1, good[1])
    assert run.task.watermark == START_MS + 4_999, "held back by an input of which nothing was taken"
    assert run.task.totals.late == 0
    run.commit()
    again = replayed(
        plan,
        0,
        run.committed.tapes,
        {("events", 0): [InputRecord(offset, 0, None, value) for offset, value in enumerate(good)]},
        Random(1),
    )
    assert_equal(run.committed, again, "replay")


def test_every_failure_is_loud() -> None:
    """What cannot be decoded or handled stops the task, or is a dead letter with its reason; what is late is counted."""
    plain = QUIET._replace(lean=True)
    for at in (0, 3, 6):
        run = Run(build(plain._replace(on_error="stop")).app.plan(), 0, Committed(), TaskSettings())
        with pytest.raises((BadRecordError, HandlerError)):
            run.task.run(0, run.task.decode(0, loud(plain)["events", 0][at : at + 1]))
    for late, handled, routed in (("handle", 4, 0), ("drop", 2, 0), ("route", 2, 2)):
        variant = plain._replace(late=late)
        run = Run(build(variant).app.plan(), 0, Committed(), TaskSettings())
        done = independent(run, loud(variant), Random(1), [])
        totals = done.standing().totals
        assert (totals.late, totals.refused, totals.failed) == (2, 2, 1)
        reasons = [
            dict(o.headers)["tailrace-reason"].decode()
            for o in done.outputs
            if o.topic == "proof.dead-letters"
        ]
        assert reasons == ["undecodable", "bad-time", "handler-failed"]
        assert sum(o.topic == "lates" for o in done.outputs) == routed
        (fields,) = [
            v for row, v in done.state().items() if row.startswith(b"splain") and row[-3:] == b"k\0\0"
        ]
        assert msgspec.msgpack.decode(fields[rows.start_of_fields(fields) :])["n"] == handled


def loud(variant: Variant) -> Records:
    """Two records that cannot be decoded, two events in time and two that are late, and one that fails."""
    topic = build(variant).topics[0]
    first, second, *late = (topic.encode(Event("k", at)) for at in (1_001, 2_001, 900, 901))
    fails = topic.encode(Event("k", 5_000, (Op("fail"),)))
    values = [b"\xff", first, second, b'{"key":"k","at":-1}', *late, fails]
    return {("events", 0): [InputRecord(offset, 0, None, value) for offset, value in enumerate(values)]}
