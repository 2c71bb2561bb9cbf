"""An app that was reshaped continues as if it had always had these partitions: against plain Python, and against such an app."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import tailrace as tr
from tailrace.core import rows
from tailrace.core.declare.plan import Plan
from tailrace.core.errors import OptionError, OtherHistoryError, SnapshotMismatchError
from tailrace.history.moving.copying import Copied
from tailrace.history.moving.reshaping import _Reshaping, reshape
from tailrace.history.moving.spreading import Spread
from tailrace.history.provenance.moves import check_lives_here
from tailrace.history.reading.app_history import AppHistory
from tailrace.history.reading.stretches import scan
from tailrace.history.snapshots.taking import take_snapshot
from tailrace.log.embedded import EmbeddedLog
from tailrace.log.interface import StoredLog
from tailrace.runtime.preparing import prepare_log
from tailrace.runtime.progress import last_phase
from tailrace.runtime.slices import PartitionSettings
from tailrace.runtime.worker import Worker, WorkerSettings
from tailrace.state import MemoryStore
from tailrace.state.snapshots import Manifest, Snapshots
from tests.cast.apps import case_of
from tests.cast.member import Event, records
from tests.cli.commands import done
from tests.history.differences import from_the_log
from tests.history.rebuilding import any_app
from tests.history.rebuilding.lived import done as rebuild
from tests.history.rebuilding.lived import rebuilt
from tests.history.resized import CASE, EVENTS, found, make_app

APP = make_app(2).name
OFTEN = WorkerSettings(slice_records=7, partition=PartitionSettings(commit_interval_ms=1))


class Life:
    """An app on one log after the other."""

    def __init__(self, folder: Path, partitions: int, make: Callable[[int], tr.App] = make_app) -> None:
        self.make, self.folder, self.logs = make, folder, 0
        self.log: StoredLog = self.new_log()
        self.plan: Plan = self.make(partitions).plan()
        self.stores: dict[int, MemoryStore] = {}
        prepare_log(self.log, self.plan, create_declared=True)

    def new_log(self) -> StoredLog:
        self.logs += 1
        return EmbeddedLog(self.folder / f"log{self.logs}")

    def run(self, numbers: range | None = None, *, turns: int = 1 << 30, to_the_end: bool = False) -> None:
        worker = Worker(
            self.plan,
            self.log,
            numbers or range(self.plan.partitions),
            lambda number: self.stores.setdefault(number, MemoryStore()),
            settings=replace(OFTEN, bounded=True),
        )
        worker.start()
        while turns > 0:
            turns -= 1
            if worker.turn() or not worker.quiet:
                continue
            if not to_the_end or worker.phase == last_phase(worker.plan):
                break
            worker.advance()
        worker.leave()

    def reshape(self, partitions: int, log: StoredLog | None = None) -> Manifest:
        """Into a new log."""
        log = log or self.new_log()
        done, _ = reshape(self.plan, self.log, log, str(self.folder / "snapshots"), partitions)
        self.log.close()
        self.log, self.plan, self.stores = log, self.make(partitions).plan(), {}
        return done

    def rows(self) -> dict[bytes, bytes]:
        """Of all tasks together."""
        end, history = rows.prefix_end(rows.STATE), AppHistory(self.plan, self.log)
        some = (history.committed(number, with_rows=True).rows for number in range(self.plan.partitions))
        found = [pair for one in some if one is not None for pair in one.scan(rows.STATE, end)]
        assert len({row for row, _ in found}) == len(found), "a row is in two tasks"
        return dict(found)


@pytest.fixture
def life(tmp_path: Path) -> Iterator[Life]:
    """An app in which events wait for their turn and messages are under way, and records were not read yet."""
    made = Life(tmp_path, 3)
    made.log.append_all(EVENTS[:70])
    made.run()
    made.log.append_all(EVENTS[70:110])
    made.run(range(2))
    yield made
    made.log.close()


def check_rest(life: Life) -> None:
    """The rest of the events, and the end of all."""
    life.log.append_all(EVENTS[110:])
    life.run(to_the_end=True)
    assert found(life.log) == CASE.expected


@pytest.mark.parametrize("partitions", [1, 2, 5])
def test_what_is_under_way_is_so_on_the_new_log_and_no_number_is_used_twice(
    life: Life, partitions: int
) -> None:
    life.reshape(partitions)
    made = take_snapshot(life.plan, life.log, Snapshots(str(life.folder / "others"), APP))
    inbox = [life.log.end_offset(f"{APP}.inbox", number) for number in range(partitions)]
    assert [(one.waiting or {}).get(f"{APP}.inbox") for one in made.tasks] == inbox
    assert sum(inbox) > 3
    check_rest(life)
    origins = [one.headers[-1] for at in range(partitions) for one in scan(life.log, "results", at)]
    assert len(origins) == len({*origins}) > 100


def test_a_rebuild_along_the_tape_comes_to_the_state(life: Life, monkeypatch: pytest.MonkeyPatch) -> None:
    life.reshape(2)
    check_rest(life)
    monkeypatch.chdir(life.folder)
    app, how = "tests.history.resized:of_2", ("--order", "tape", "--workers", 1, "--any-environment")
    done("rebuild", app, "--log", "log2", "--to", "rebuilt", *how)
    assert from_the_log(app, "log2", snapshot="rebuilt") == []


def test_a_rebuild_in_stages_from_the_snapshot_comes_to_the_state(tmp_path: Path) -> None:
    """Of an app whose ordered operators read from outside alone."""
    case = case_of("shop", 2)
    life = Life(tmp_path, 3, case.make)
    life.log.append_all(case.inputs[:40])
    life.run()
    life.log.append_all(case.inputs[40:70])
    life.run(range(2))
    life.reshape(2)
    life.log.append_all(case.inputs[70:])
    life.run(to_the_end=True)
    options: dict[str, Any] = {"log": str(tmp_path / "log2"), "base": str(tmp_path / "snapshots")}
    _, snapshot = rebuild(tmp_path, any_app.place(case.make(2)), order="stages", **options)
    assert {row: value for one in rebuilt(snapshot) for row, value in one.rows} == life.rows() != {}
    life.log.close()


def test_messages_that_were_under_way_keep_their_places_in_stages(life: Life) -> None:
    life.reshape(2)
    check_rest(life)
    options: dict[str, Any] = {"log": str(life.folder / "log2"), "base": str(life.folder / "snapshots")}
    _, snapshot = rebuild(life.folder, any_app.place(make_app(2)), order="stages", **options)
    assert {row: value for one in rebuilt(snapshot) for row, value in one.rows} == life.rows() != {}


@pytest.mark.parametrize("step", ["_rows", "_spread", "_publish"])
def test_one_that_is_interrupted_leaves_a_log_that_no_app_starts_on_and_begins_again(
    life: Life, step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = life.log.ends(life.log.topics())

    def interrupted(*_: Any) -> None:
        raise KeyboardInterrupt

    uri, log = str(life.folder / "snapshots"), life.new_log()
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(_Reshaping, step, interrupted)
        reshape(life.plan, life.log, log, uri, 2)
    with pytest.raises(OtherHistoryError, match="not everything is here yet"):
        check_lives_here(log, APP)
    with pytest.raises(OtherHistoryError, match="the target has records in"):
        reshape(life.plan, life.log, log, uri, 2)
    assert life.log.ends(life.log.topics()).offsets == before.offsets
    check_lives_here(life.log, APP)
    life.reshape(2)
    check_lives_here(life.log, APP)
    check_rest(life)


def test_what_is_written_meanwhile_is_refused(life: Life, monkeypatch: pytest.MonkeyPatch) -> None:
    publish, uri = _Reshaping._spread, str(life.folder / "snapshots")

    def write_meanwhile(*given: Any) -> Any:
        life.log.append_all(EVENTS[110:111])
        return publish(*given)

    monkeypatch.setattr(_Reshaping, "_spread", write_meanwhile)
    with pytest.raises(OtherHistoryError, match="something has written to the topics") as refused:
        reshape(life.plan, life.log, life.new_log(), uri, 2)
    assert "Stop the producers" in str(refused.value.hint)


def test_what_would_be_wrong_is_refused(life: Life, tmp_path: Path) -> None:
    uri, new = str(tmp_path / "snapshots"), EmbeddedLog(tmp_path / "new")
    with pytest.raises(OptionError, match="its own log"):
        reshape(life.plan, life.log, life.log, uri, 2)
    with pytest.raises(OptionError, match="has 3 partitions already"):
        reshape(life.plan, life.log, new, uri, 3)
    prepare_log(new, make_app(2).plan(), create_declared=True)
    new.append_all(EVENTS[:1])
    with pytest.raises(OtherHistoryError, match="the target has records in '"):
        reshape(life.plan, life.log, new, uri, 2)
    other, before = EmbeddedLog(tmp_path / "other"), Spread.done

    def written(self: Spread) -> Copied:
        self._flush()
        other.append_all([EVENTS[0]._replace(topic=self._topic)])
        return before(self)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Spread, "done", written)
        with pytest.raises(OtherHistoryError, match="something else has written to it"):
            reshape(life.plan, life.log, other, uri, 2)
    new.close()
    other.close()


@pytest.mark.parametrize(
    ("broadcast", "said"),
    [
        (False, "wait for their turn in InTurn, and another actor has handled"),
        (True, "is broadcast: each task has a table of it"),
    ],
)
def test_what_cannot_be_told_apart_by_keys_is_refused(tmp_path: Path, broadcast: bool, said: str) -> None:
    app = tr.App("counts", partitions=2)
    events = app.topic("events", Event, out_of_order="40ms")
    table = app.topic("rules", Event, broadcast=True) if broadcast else None

    @app.actor
    class Early(tr.Actor, order="arrival"):
        count: int = 0
        if table is not None:
            rules: tr.Shared[str, Event] = tr.shared(table)

        @tr.process(events)
        def take(self, event: Event, ctx: tr.Context[str]) -> None:
            self.count += 1

    @app.actor
    class InTurn(tr.Actor, order="event-time"):
        count: int = 0

        @tr.process(events)
        def take(self, event: Event, ctx: tr.Context[str]) -> None:
            self.count += 1

    life = Life(tmp_path, 2, lambda _: app)
    life.log.append_all(records([("events", Event(f"k{n}", 1_000 + n, n)) for n in range(50)]))
    life.run()
    with pytest.raises(SnapshotMismatchError, match=said):
        life.reshape(3)
