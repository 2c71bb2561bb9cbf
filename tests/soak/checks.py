"""What must hold when a soak is over: see ``check``. Each check raises AssertionError with what it found."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from contextlib import closing
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from tailrace.core.declare.plan import Plan
from tailrace.core.engine.task import TaskSettings
from tailrace.core.records import InputRecord
from tailrace.history.comparing.replayed_state import LiveFolder
from tailrace.history.reading.app_history import AppHistory
from tailrace.history.replay.replaying import replay
from tailrace.history.replay.report import ReplayOptions, ReplayReport
from tailrace.log import TopicPartition
from tailrace.log.embedded import EmbeddedLog
from tailrace.log.interface import OneCommitLog
from tailrace.log.opening import open_log
from tailrace.processes.environment import timezones_version
from tests.soak import feed, oracle
from tests.soak.apps import Alarm, Call, Closed, Notice, Passed, Step, Told, first_app, second_app

T = TypeVar("T")
_ORIGIN = "tailrace-origin"
_SHOWN = 5


@dataclass(frozen=True, slots=True)
class Figures:
    """What a round was about."""

    events: int
    outputs: int
    timers: int
    commits: int


def read(log: OneCommitLog, topic: str) -> list[list[InputRecord]]:
    """All visible records, by partition."""
    found: list[list[InputRecord]] = []
    for number in range(log.partitions(topic)):
        reader = log.reader({TopicPartition(topic, number): 0})
        records: list[InputRecord] = []
        while some := reader.fetch(topic, number, 50_000).records:
            records += some
        reader.close()
        found.append(records)
    return found


def decoded(log: OneCommitLog, topic: str, type_: type[T]) -> list[list[T]]:
    decode = msgspec.json.Decoder(type_).decode
    return [[decode(one.value or b"") for one in records] for records in read(log, topic)]


def flat(partitions: Iterable[Iterable[T]]) -> list[T]:
    return [one for partition in partitions for one in partition]


def check(
    place: Path | str, states: dict[str, Path], seed: int, *, rich: bool, clean: Path | None = None
) -> Figures:
    """Check everything about the log and the state of a round. ``clean`` is the folder of a run that was left alone."""
    log = open_log(place)
    try:
        if isinstance(log, EmbeddedLog):
            log.verify()
        plans = [first_app(rich=rich).plan(), second_app().plan()]
        check_feed(log, seed, rich=rich)
        for plan in plans:
            assert not flat(read(log, plan.dead_letters_topic)), f"{plan.app} has dead letters"
        outputs = sum(check_numbers(log, plan) for plan in plans)
        timers = check_against_the_oracle(log, seed, rich=rich)
        reports = [check_replay(log, plan, states[plan.app]) for plan in plans]
        assert all(one.rows for one in reports)
        if clean is not None:
            unharmed = EmbeddedLog(clean, create=False)
            try:
                check_equal(log, unharmed, plans)
            finally:
                unharmed.close()
    finally:
        log.close()
    return Figures(sum(one.records for one in reports), outputs, timers, sum(one.commits for one in reports))


def check_feed(log: OneCommitLog, seed: int, *, rich: bool) -> None:
    """What is in the inputs is what was fed, each event once."""
    given: dict[str, list[list[Any]]] = {
        "steps": decoded(log, "steps", Step),
        "calls": decoded(log, "calls", Call) if rich else [],
        "notices": decoded(log, "notices", Notice) if rich else [],
    }
    wanted: dict[str, Counter[Any]] = {"steps": Counter(), "calls": Counter(), "notices": Counter()}
    names = {Step: "steps", Call: "calls", Notice: "notices"}
    for event, _ in islice(feed.events(seed, rich=rich), feed.fed(log)):
        wanted[names[type(event)]][event] += 1
    for name, partitions in given.items():
        same(Counter(flat(partitions)), wanted[name], f"the events in {name!r}")


def check_numbers(log: OneCommitLog, plan: Plan) -> int:
    """The outputs of every task are numbered without gap or repeat, in order within a partition; how many there are."""
    numbers: dict[int, list[int]] = defaultdict(list)
    topics = {*plan.outputs, plan.dead_letters_topic, *filter(None, [plan.inbox_topic])} & log.topics().keys()
    for topic in sorted(topics):
        for partition, records in enumerate(read(log, topic)):
            last: dict[int, int] = {}
            for record in records:
                origin = dict(record.headers).get(_ORIGIN, b"fed/0/0")
                app, task, number = origin.partition(b"\0")[0].decode().rsplit("/", 2)
                if app != plan.app:
                    continue
                numbers[int(task)].append(int(number))
                assert int(number) > last.get(int(task), -1), (
                    f"output {number} of {app}/{task} stands behind {last[int(task)]} in {topic}/{partition}"
                )
                last[int(task)] = int(number)
    for number_of_task, found in numbers.items():
        found.sort()
        if found != list(range(len(found))):
            twice = [one for one, times in Counter(found).items() if times > 1]
            missing = sorted(set(range(found[-1] + 1)) - set(found))
            raise AssertionError(
                f"outputs of {plan.app}/{number_of_task}: twice {twice[:_SHOWN]}, missing {missing[:_SHOWN]}"
            )
    return sum(map(len, numbers.values()))


def check_against_the_oracle(log: OneCommitLog, seed: int, *, rich: bool) -> int:
    """No timer fired twice or never, nothing was counted twice or not at all; how many timers fired."""
    steps = decoded(log, "steps", Step)
    calls = flat(decoded(log, "calls", Call)) if rich else []
    told = Counter(flat(decoded(log, "first-told", Told)))
    if rich:
        late = {one.number for one in told if one.what == "late"}
        far = {
            e.number
            for e, far in islice(feed.events(seed, rich=True), feed.fed(log))
            if far and isinstance(e, Step)
        }
        assert late <= far, f"late without being behind: {sorted(late - far)[:_SHOWN]}"
    else:
        late = oracle.late_steps(steps)
    naps = {one: times for one, times in told.items() if one.what == "nap"}
    first = oracle.of_first(steps, calls, late, rich=rich)
    same(told - Counter(naps), first.told, "what the first service told")
    same(
        Counter(flat(decoded(log, "first-closed", Closed))), first.closed, "the windows of the first service"
    )
    passed = decoded(log, "passed", Passed)
    by_device: dict[str, list[Passed]] = defaultdict(list)
    for one in flat(passed):
        by_device[one.device].append(one)
    assert by_device == first.passed, "steps were lost, repeated or reordered on their way"
    alarms = Counter(one.number for one in flat(decoded(log, "alarms", Alarm)))
    same(alarms, Counter(oracle.alarms(steps, late)), "the alarms")
    second = oracle.of_second(passed)
    same(Counter(flat(decoded(log, "second-told", Told))), second.told, "what the second service told")
    same(
        Counter(flat(decoded(log, "second-closed", Closed))),
        second.closed,
        "the windows of the second service",
    )
    if rich:
        check_counts(Counter({one: naps[one] for one in naps}), "naps")
        audits = Counter(flat(decoded(log, "audits", Told)))
        check_counts(audits, "audits")
        assert audits.total() == sum(map(len, first.passed.values())), "messages were lost or repeated"
        same(Counter(flat(decoded(log, "pairs", Told))), first.pairs, "the pairs of the re-keyed join")
    return first.timers + second.timers + sum(naps.values())


def check_counts(told: Counter[Told], what: str) -> None:
    """Each key has counted one by one."""
    numbers: dict[str, list[int]] = defaultdict(list)
    for one in told.elements():
        numbers[one.key].append(one.number)
    for key, found in numbers.items():
        assert sorted(found) == list(range(1, len(found) + 1)), f"{what} of {key}: {sorted(found)[:50]}"


def check_replay(
    log: OneCommitLog, plan: Plan, state: Path, settings: TaskSettings | None = None
) -> ReplayReport:
    """Outputs, the changelog's rows, the state folders and the cuts equal those of a replay, byte for byte."""
    settings = settings or TaskSettings(timezones=timezones_version())
    with closing(LiveFolder(state, plan)) as live:
        report = replay(plan, log, ReplayOptions(compare=True, settings=settings), live=live.states)
        assert not live.notes, live.notes
    found = report.differences
    assert found.count == 0, f"{found.count} differences in the replay of {plan.app}: " + "\n".join(
        map(str, found.shown[:_SHOWN])
    )
    assert not report.notes, report.notes
    assert {"outputs", "the changelog", f"the state in {state / plan.app}"} <= set(report.compared)
    return report


def check_equal(log: OneCommitLog, clean: OneCommitLog, plans: list[Plan]) -> None:
    """Everything equals a run that was left alone.

    When the second service learns how far the first has come depends on when that commits: so a timer may fire before an
    event of a later time or after it, and outputs of one task stand in another order, under other numbers.
    """
    first, second = plans
    for topic in first.outputs:
        for number, (was, is_) in enumerate(zip(read(clean, topic), read(log, topic), strict=True)):
            for one, other in zip(was, is_, strict=False):
                assert one == other, f"{topic}/{number}: {other} where the clean run has {one}"
            assert len(was) == len(is_), f"{topic}/{number}: {len(is_)} where the clean run has {len(was)}"
    for topic in second.outputs:
        for number, (was, is_) in enumerate(zip(read(clean, topic), read(log, topic), strict=True)):
            same(Counter(map(_bare, is_)), Counter(map(_bare, was)), f"the outputs in {topic}/{number}")
    for plan in plans:
        for number in range(plan.partitions):
            rows = [dict(_rows(AppHistory(plan, one), number)) for one in (log, clean)]
            assert rows[0] == rows[1], f"the state of {plan.app}/{number} is not that of the clean run"


def _rows(history: AppHistory, number: int) -> Iterable[tuple[bytes, bytes]]:
    kept = history.committed(number, with_rows=True).rows
    assert kept is not None
    return kept.rows()


def _bare(record: InputRecord) -> tuple[Any, ...]:
    headers = tuple(one for one in record.headers if one[0] != _ORIGIN)
    return (record.timestamp_ms, record.key, record.value, headers)


def same(found: Counter[T], wanted: Counter[T], what: str) -> None:
    """Two collections are equal, but for their order."""
    if found != wanted:
        more, less = list((found - wanted).elements()), list((wanted - found).elements())
        raise AssertionError(
            f"{what}: {len(more)} too many, {len(less)} missing; too many {more[:_SHOWN]}, missing {less[:_SHOWN]}"
        )
