"""A log that has lost its end and has grown past it again, and another log: no state from there is taken up in silence.

Both ends of the log have the same offsets, commits, counts and watermarks: they differ in the amounts alone, and so in what has
to come out. The oracle is arithmetic: the sums of each account, in the order of its records.
"""

from __future__ import annotations

import shutil
from collections import defaultdict
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

import tailrace as tr
from tailrace.core.engine import tape
from tailrace.core.engine.replay import Replay
from tailrace.core.engine.task import Task
from tailrace.core.errors import ArchiveError, OffsetGoneError, ReplayDivergedError, SnapshotMismatchError
from tailrace.core.records import Output
from tailrace.core.storage import Store
from tailrace.history.comparing.cut_differences import cut_changes, in_one_line
from tailrace.history.comparing.replayed_state import LiveState
from tailrace.history.moving.moving import move_apps
from tailrace.history.reading.app_history import AppHistory
from tailrace.history.reading.beginnings import base_name, taped_beginning
from tailrace.history.reading.changelog import last_cut
from tailrace.history.reading.cut_notes import READ, ROWS
from tailrace.history.reading.opening import open_archive, open_history
from tailrace.history.reading.stretches import scan
from tailrace.history.rebuilding.driver import rebuild
from tailrace.history.rebuilding.engines import LocalEngine
from tailrace.history.rebuilding.request import Destination, Request, Source
from tailrace.history.replay.replaying import replay
from tailrace.history.replay.report import ReplayOptions
from tailrace.history.snapshots.start_from_snapshot import Start, start_from
from tailrace.history.snapshots.taking import TakingOptions, take_snapshot
from tailrace.log import TopicPartition
from tailrace.log.archive import archive_log
from tailrace.log.embedded import EmbeddedLog
from tailrace.log.embedded.database import PARTITIONS as PARTITIONS_TABLE
from tailrace.runtime.preparing import prepare_log
from tailrace.runtime.slices import PartitionSettings
from tailrace.runtime.worker import Worker, WorkerHooks, WorkerSettings
from tailrace.state import MemoryStore, RocksStore, StateIdentity
from tailrace.state.snapshots import Snapshots
from tailrace.state.store_cut import decode_store_cut

PARTITIONS = 2
WHO = tuple(f"account-{number}" for number in range(12))
SETTINGS = WorkerSettings(slice_records=10, partition=PartitionSettings(commit_interval_ms=1))
APP = "tests.history.test_lost_ends:app"


class Paid(msgspec.Struct, frozen=True):
    who: str
    at: int
    amount: int


class Sum(msgspec.Struct, frozen=True):
    who: str
    amount: int


app = tr.App("sums", partitions=PARTITIONS)
_paid = app.topic("paid", Paid, key="who", event_time="at")
_sums = app.topic("sums", Sum, key="who")


@app.actor
class Account(tr.Actor):
    total: int = 0

    @tr.process(_paid)
    def pay(self, event: Paid, ctx: tr.Context[str]) -> None:
        self.total += event.amount
        ctx.emit(_sums, Sum(event.who, self.total))


class World:
    """A log in a folder that can be put back, state folders that stay, and the sums that have to come out."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.plan, self.settings = folder, app.plan(), SETTINGS.partition
        self.log = EmbeddedLog(folder / "log")
        prepare_log(self.log, self.plan, create_declared=True)
        self.at = 0

    def pay(self, amount: int, rounds: int = 5) -> None:
        """Each account is paid an amount, so often; the service takes it in several commits."""
        for _ in range(rounds):
            self.append(amount)
            self.run()

    def append(self, amount: int) -> None:
        """A payment for each account."""
        self.log.append_all(
            Output("paid", who.encode(), msgspec.json.encode(Paid(who, self.at, amount)), self.at)
            for who in WHO
        )
        self.at += 1_000

    def lose_input(self, kept: int) -> None:
        """The topic of payments alone loses its end, behind so many commits."""
        with self.log._appender.turn("losing an end") as changes:
            for number in range(PARTITIONS):
                place = changes.place("paid", number)
                blocks, bounds = list(changes.blocks(place)), changes.bounds(place)
                for block in blocks[kept:]:
                    changes.drop_block(block)
                length = sum(block.length for block in blocks[:kept])
                changes.put(
                    PARTITIONS_TABLE, (place,), bounds._replace(end=blocks[kept - 1].end, bytes=length)
                )

    def run(self, start: Start | None = None, numbers: range = range(PARTITIONS)) -> None:
        def begin(number: int, store: Store) -> None:
            assert start is not None
            start_from(self.plan, number, self.log, store, start, 1)

        worker = Worker(
            self.plan,
            self.log,
            numbers,
            self.state,
            settings=replace(SETTINGS, bounded=True, partition=self.settings),
            hooks=WorkerHooks() if start is None else WorkerHooks(begin=begin),
        )
        try:
            worker.start()
            while worker.turn() or not worker.quiet:
                pass
            worker.leave()
        finally:
            for slot in worker.slots:
                if slot.partition is not None:
                    slot.partition.close()

    def state(self, number: int) -> RocksStore:
        return RocksStore(self.folder / "state" / str(number), StateIdentity("sums", number))

    def copy(self, name: str) -> None:
        self.log.close()
        for part in ("log", "state"):
            shutil.copytree(self.folder / part, self.folder / name / part)
        self.log = EmbeddedLog(self.folder / "log")

    def put_back(self, name: str, *parts: str) -> None:
        self.log.close()
        for part in parts:
            shutil.rmtree(self.folder / part)
            shutil.copytree(self.folder / name / part, self.folder / part)
        self.log = EmbeddedLog(self.folder / "log")

    def lost(self, *, further: int = 0) -> None:
        """The log loses the last five rounds, and grows past them again with other amounts; the state is the one from before."""
        self.copy("before")
        at = self.at
        self.pay(1)
        self.copy("ahead")
        self.put_back("before", "log", "state")
        self.at = at
        self.pay(7, 5 + further)
        self.put_back("ahead", "state")

    def paid(self) -> dict[str, list[int]]:
        """The sums that have to come out, by account."""
        found: dict[str, list[int]] = defaultdict(list)
        for number in range(PARTITIONS):
            for record in scan(self.log, "paid", number):
                one = msgspec.json.decode(record.value or b"", type=Paid)
                before = found[one.who][-1] if found[one.who] else 0
                found[one.who].append(before + one.amount)
        return found

    def check(self) -> None:
        """What has come out is what had to, and the stored state and a replay say so too."""
        found: dict[str, list[int]] = defaultdict(list)
        for number in range(PARTITIONS):
            for record in scan(self.log, "sums", number):
                one = msgspec.json.decode(record.value or b"", type=Sum)
                found[one.who].append(one.amount)
        assert found == self.paid()
        assert not replay(self.plan, self.log, ReplayOptions(compare=True), live=self.live).differences.count

    def live(self, number: int) -> list[LiveState]:
        rows, cut = self.held(number)
        store = MemoryStore()
        store.write(dict(rows), b"")
        return [LiveState("the state folder", store, cut, indexed=True)]

    def held(self, number: int) -> tuple[list[tuple[bytes, bytes]], bytes]:
        store = self.state(number)
        try:
            core = decode_store_cut(store.cut or b"").core
            assert core is not None
            return list(store.rows()), core
        finally:
            store.close()

    def cut(self, number: int) -> tape.Cut:
        """The last cut in the log."""
        data = AppHistory(self.plan, self.log).committed(number).cut
        assert data is not None
        return tape.decode_cut(data)

    def snapshots(self) -> Snapshots:
        return Snapshots(str(self.folder / "snapshots"), "sums")

    def start(self, which: str = "latest") -> Start:
        found = self.snapshots().open(which)
        return Start(found, base_name(found, str(self.folder / "snapshots")))


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made = World(tmp_path)
    made.pay(3, 3)
    yield made
    made.log.close()


@pytest.mark.parametrize("rounds", [1, 3, 5])
def test_an_input_that_lost_its_end_alone_is_refused_until_the_operator_accepts_it(
    world: World, rounds: int
) -> None:
    """It is shorter than what was read, ends where it ended, or has grown past it."""
    before = world.paid()
    world.lose_input(1)
    for _ in range(rounds - 1):
        world.append(1)
    for _ in range(2):
        with pytest.raises(OffsetGoneError, match=r"'paid' partition [01] .*--after-deleted"):
            world.run()
    world.settings = replace(world.settings, after_deleted=True)
    world.run()
    world.settings = replace(world.settings, after_deleted=False)
    world.append(7)
    world.run()
    sums = {
        one.who: one.amount
        for number in range(PARTITIONS)
        for record in scan(world.log, "sums", number)
        for one in [msgspec.json.decode(record.value or b"", type=Sum)]
    }
    further = max(0, rounds - 3)
    assert sums == {who: amounts[-1] + further + 7 for who, amounts in before.items()}


def test_a_snapshot_of_a_state_keeps_what_was_read_though_its_input_has_other_records_now(
    world: World, tmp_path: Path
) -> None:
    world.lose_input(1)
    for _ in range(2):
        world.append(1)
    made = take_snapshot(world.plan, world.log, world.snapshots())
    other = world.plan.app + "-again"
    plan = app.renamed(other).plan()
    prepare_log(world.log, plan, create_declared=True)
    with pytest.raises(SnapshotMismatchError, match="has read another record at offset"):
        start_from(plan, 0, world.log, MemoryStore(), world.start(made.id), 1)


def test_marks_and_rows_go_with_a_state_that_begins_with_a_snapshot_or_moves(
    world: World, tmp_path: Path
) -> None:
    made = take_snapshot(world.plan, world.log, world.snapshots())
    copy = app.renamed("copy").plan()
    prepare_log(world.log, copy, create_declared=True)
    start_from(copy, 0, world.log, MemoryStore(), world.start(made.id), 1)
    other = EmbeddedLog(tmp_path / "moved")

    def noted(log: EmbeddedLog, name: str) -> dict[str, bytes]:
        found = last_cut(log, TopicPartition(f"{name}.changelog", 0))
        assert found is not None
        return {header: value for header, value in found.headers if header in (READ, ROWS)}

    wanted = noted(world.log, "sums")
    assert len(wanted) == 2
    assert noted(world.log, "copy") == wanted
    with closing(other):
        move_apps([world.plan], world.log, other)
        assert noted(other, "sums") == wanted


def test_both_ends_have_the_same_counts_and_positions(world: World) -> None:
    """Otherwise the other tests would show less than they say."""
    world.lost()
    for number in range(PARTITIONS):
        ahead, now = tape.decode_cut(world.held(number)[1]), world.cut(number)
        assert ahead.identity != now.identity
        assert msgspec.structs.replace(ahead, identity=b"", now=0) == msgspec.structs.replace(
            now, identity=b"", now=0
        )


@pytest.mark.parametrize("further", [0, 3])
def test_a_state_of_a_lost_end_is_restored_from_the_log_and_the_service_says_so(
    world: World, further: int, caplog: pytest.LogCaptureFixture
) -> None:
    world.lost(further=further)
    ahead = [tape.decode_cut(world.held(number)[1]) for number in range(PARTITIONS)]
    world.pay(2)
    world.check()
    for one in ahead:
        assert f"commit {one.commit} with the identity {one.identity.hex()[:12]}" in caplog.text
    assert "restored from the log" in caplog.text


def test_a_state_that_is_ahead_of_the_log_is_restored_from_the_log(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    world.copy("before")
    world.pay(1)
    world.put_back("before", "log")
    world.pay(7, 2)
    world.check()
    assert caplog.text.count("restored from the log") == PARTITIONS


@pytest.mark.parametrize("further", [0, 3])
def test_the_state_of_another_log_is_restored_from_this_one(
    world: World, tmp_path: Path, further: int, caplog: pytest.LogCaptureFixture
) -> None:
    """It is at the same place, or behind: by its position it would fit."""
    other = World(tmp_path / "other")
    other.pay(4, 3)
    other.copy("kept")
    shutil.copytree(other.folder / "state", world.folder / "another")
    other.log.close()
    world.pay(5, further)
    shutil.rmtree(world.folder / "state")
    (world.folder / "another").rename(world.folder / "state")
    world.pay(2)
    world.check()
    assert caplog.text.count("restored from the log") == PARTITIONS


def test_a_snapshot_of_a_lost_end_is_left_aside(world: World, caplog: pytest.LogCaptureFixture) -> None:
    world.copy("before")
    at = world.at
    world.pay(1)
    made = take_snapshot(world.plan, world.log, world.snapshots())
    world.put_back("before", "log")
    shutil.rmtree(world.folder / "state")
    world.at = at
    world.pay(7, 8)
    shutil.rmtree(world.folder / "state")
    world.run(world.start())
    assert (
        caplog.text.count(f"the snapshot {made.id} stands after a commit that this log does not have")
        == PARTITIONS
    )
    assert "left aside" in caplog.text
    world.pay(2)
    world.check()
    again = take_snapshot(world.plan, world.log, world.snapshots(), TakingOptions(incremental=True))
    assert again.parent is None
    with pytest.raises(SnapshotMismatchError, match="does not stand where"):
        world.run(replace(world.start(made.id), replace=True))


def test_a_rebuild_a_replay_and_a_comparison_do_not_begin_with_a_snapshot_of_a_lost_end(world: World) -> None:
    world.copy("before")
    at = world.at
    world.pay(1)
    made = take_snapshot(world.plan, world.log, world.snapshots())
    world.put_back("before", "log", "state")
    world.at = at
    world.pay(7, 5)
    found = world.snapshots().open(made.id)
    history = AppHistory(world.plan, world.log)
    for number in range(PARTITIONS):
        with pytest.raises(SnapshotMismatchError, match="with the identity"):
            taped_beginning(history, number, world.cut(number), found)
    for order in ("tape", "canonical"):
        request = Request(
            app=APP,
            source=Source(
                log=str(world.folder / "log"), base=str(world.folder / "snapshots"), base_id=made.id
            ),
            to=Destination(uri=str(world.folder / "snapshots")),
            order=order,
        )
        with pytest.raises(SnapshotMismatchError, match="with the identity"):
            rebuild(request, LocalEngine(1))
    for number in range(PARTITIONS):
        then = tape.decode_cut(found.manifest.task(number).cut)
        assert "the identity of commit" in in_one_line(cut_changes(then, world.cut(number)))


def test_a_replay_of_a_lost_state_says_that_it_is_another_commit(world: World) -> None:
    world.lost()
    found = replay(world.plan, world.log, ReplayOptions(compare=True), live=world.live).differences
    assert found.count == PARTITIONS
    assert all("with the identity" in one.where for one in found.shown)


def test_an_archive_of_a_lost_end_is_not_read_with_the_log_that_has_grown_past_it(world: World) -> None:
    world.copy("before")
    at = world.at
    world.pay(1)
    archive_log(world.log, open_archive(str(world.folder / "archive")))
    world.put_back("before", "log", "state")
    world.at = at
    world.pay(7, 8)
    with (
        closing(open_history(world.folder / "log", str(world.folder / "archive"))) as joined,
        pytest.raises(ArchiveError, match="is another record in the archive"),
    ):
        replay(world.plan, joined)


def test_a_tape_that_is_put_together_from_two_histories_is_not_replayed(world: World) -> None:
    """As from an archive of which the log has nothing left to compare."""
    world.lost()
    cut = world.cut(0)
    records = list(AppHistory(world.plan, world.log).tapes(0, cut.tape))
    world.put_back("before", "log")
    world.pay(9)
    others = list(AppHistory(world.plan, world.log).tapes(0, cut.tape))
    for join in (4, cut.tape - 1):
        task = Task(world.plan, 0, MemoryStore(), lineage=cut.lineage, replaying=True)
        again = Replay(task, AppHistory(world.plan, world.log).source(0))
        with pytest.raises(ReplayDivergedError, match=f"commit {join} .* does not follow the commit before"):
            for one in [*others[:join], *records[join:]]:
                again.take(one)
                task.discard_outputs()
                task.defer_commit()


def test_a_snapshot_does_not_begin_an_app_in_a_log_that_has_other_records(
    world: World, tmp_path: Path
) -> None:
    """There is no commit to compare, so the last record of each input is."""
    take_snapshot(world.plan, world.log, world.snapshots())
    other = World(tmp_path / "other")
    for amount, fits in ((4, False), (3, True)):
        other.log.close()
        shutil.rmtree(other.folder)
        other = World(tmp_path / "other")
        for _ in range(3):
            other.append(amount)
        if fits:
            other.run(world.start())
            assert world.cut(0).totals == other.cut(0).totals
            continue
        with pytest.raises(SnapshotMismatchError, match="has read another record at offset"):
            other.run(world.start())
        assert AppHistory(other.plan, other.log).committed(0).cut is None
    other.log.close()


def test_a_rebuild_in_canonical_order_does_not_continue_from_a_state_that_has_read_other_records(
    world: World,
) -> None:
    made = take_snapshot(world.plan, world.log, world.snapshots())
    world.log.close()
    shutil.rmtree(world.folder / "log")
    shutil.rmtree(world.folder / "state")
    world.log = EmbeddedLog(world.folder / "log")
    prepare_log(world.log, world.plan, create_declared=True)
    world.at = 0
    world.pay(4, 5)
    request = Request(
        app=APP,
        source=Source(log=str(world.folder / "log"), base=str(world.folder / "snapshots"), base_id=made.id),
        to=Destination(uri=str(world.folder / "snapshots")),
        order="canonical",
    )
    with pytest.raises(SnapshotMismatchError, match="has read another record at offset"):
        rebuild(request, LocalEngine(1))
