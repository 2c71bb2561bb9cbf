"""The driver takes a task along its tape in the order that it documents, and where commits fall changes nothing."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tailrace.core.engine import tape
from tailrace.core.engine.replay import Limit, Replay
from tailrace.core.engine.settings import CommitBatch
from tailrace.core.engine.task import Task
from tailrace.history.reading.app_history import AppHistory
from tailrace.history.reading.driving import CommitPolicy, Step, TapeSink, drive_along_tape, replay_of
from tailrace.state import MemoryStore
from tailrace.testing import Harness
from tests.history.sales import lived, shops


class Noted(TapeSink):
    """Notes in which order the driver calls it."""

    def __init__(self, policy: CommitPolicy | None = None) -> None:
        super().__init__(MemoryStore(), policy)
        self.calls: list[str] = []

    @property
    def kept(self) -> list[tuple[bytes, bytes]]:
        return list(self.store.scan(b"", b"\xff"))

    def other_code(self, version: str, /) -> None:
        self.calls.append(f"version {version}")

    def take(self, task: Task, step: Step, /) -> None:
        self.calls.append(f"take {step.record.number}")
        super().take(task, step)

    def write(self, batch: CommitBatch, /) -> None:
        self.calls.append("write")
        super().write(batch)

    def step_done(self, task: Task, step: Step, /) -> None:
        self.calls.append(f"stands before {task.tape_number}" + ("" if step.whole else ", within"))


@pytest.fixture(scope="module")
def h() -> Iterator[Harness]:
    with lived(shops(partitions=1), commits=3) as found:
        yield found


def replay_in(h: Harness, sink: Noted, *, limit: Limit | None = None) -> Replay:
    plan, history = shops(partitions=1).plan(), AppHistory(h.plan, h.log)
    lineage = cut_of(h).lineage
    return replay_of(plan, 0, sink.store, None, history.source(0), lineage=lineage, limit=limit)


def cut_of(h: Harness) -> tape.Cut:
    data = AppHistory(h.plan, h.log).committed(0).cut
    assert data is not None
    return tape.decode_cut(data)


def tapes_of(h: Harness) -> list[tape.TapeRecord]:
    return list(AppHistory(h.plan, h.log).tapes(0, cut_of(h).tape))


def test_outputs_are_taken_before_the_commit_and_progress_is_told_after_it(h: Harness) -> None:
    sink, records = Noted(CommitPolicy(moved=0)), tapes_of(h)
    assert drive_along_tape(replay_in(h, sink), records, len(records), sink)
    assert sink.calls == [
        call
        for number in range(len(records))
        for call in (f"take {number}", "write", f"stands before {number + 1}")
    ]


def test_a_commit_that_is_put_off_is_made_with_the_last_one(h: Harness) -> None:
    records = tapes_of(h)
    each, last = Noted(CommitPolicy(moved=0)), Noted()
    for sink in (each, last):
        drive_along_tape(replay_in(h, sink), records, len(records), sink)
    assert last.calls.count("write") == 1
    assert (last.calls[-2], each.calls.count("write")) == ("write", len(records))
    assert last.kept == each.kept
    assert last.store.cut == each.store.cut == AppHistory(h.plan, h.log).committed(0).cut


def test_the_state_is_written_where_something_stands_that_it_is_compared_with(h: Harness) -> None:
    sink, records = Noted(CommitPolicy(at=frozenset((2,)))), tapes_of(h)
    drive_along_tape(replay_in(h, sink), records, len(records), sink)
    assert sink.calls[:4] == ["take 0", "stands before 1", "take 1", "write"]


def test_a_limit_within_a_record_writes_what_there_is_and_ends_the_way(h: Harness) -> None:
    sink, records = Noted(), tapes_of(h)
    replay = replay_in(h, sink, limit=Limit(offsets={"sales": 1}))
    assert not drive_along_tape(replay, records, len(records), sink)
    assert sink.calls[-2] == "write"
    assert sink.calls[-1].endswith(", within")


def test_other_code_is_told_before_the_first_record_unless_a_base_came_after_it(h: Harness) -> None:
    records = tapes_of(h)
    old = tape.TapeRecord(tape.FORMAT, -2, [], [], tape.Totals(), 0, version="0")
    base = tape.TapeRecord(tape.FORMAT, -1, [], [], tape.Totals(), 0, base="file:///a#b/c")
    cases: list[tuple[list[tape.TapeRecord], list[str]]] = [
        ([old], ["version 0"]),
        ([old, base], []),
        ([], []),
    ]
    for before, told in cases:
        sink = Noted()
        drive_along_tape(replay_in(h, sink), [*before, *records], len(records), sink)
        assert sink.calls[: len(told) + 1] == [*told, "take 0"]
