"""A standby is a copy of whole commits, of this history, that makes the restore of its task short; and it changes nothing else."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Callable, Collection, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

import tailrace as tr
from tailrace.core.declare.plan import Plan
from tailrace.core.errors import StateUnavailableError
from tailrace.core.records import Output
from tailrace.core.rows import CUT_ROW
from tailrace.history.reading.app_topics import prepare_topics
from tailrace.history.reading.changelog import fold
from tailrace.history.reading.stretches import last as last_record
from tailrace.log import TopicPartition
from tailrace.log.embedded import EmbeddedLog
from tailrace.log.tasks import Tasks
from tailrace.runtime.slices import PartitionSettings
from tailrace.runtime.standbys import Standby, Standbys
from tailrace.runtime.states import States
from tailrace.runtime.worker import Worker, WorkerSettings, system_clock
from tailrace.state import RocksStore
from tailrace.state.store_cut import StoreCut, decode_store_cut
from tests.kafka import apps
from tests.runtime.processes import wait_until

PLAN = apps.app.plan()
TASKS = range(PLAN.partitions)
START_MS = 1_700_000_000_000


def events(first: int, last: int) -> list[Output]:
    """Of 200 keys, in order."""
    return [
        Output("seen", b"k%d" % key, b'{"key":"k%d","at_ms":%d}' % (key, at_ms), at_ms)
        for key, at_ms in ((number % 200, START_MS + 50 * number) for number in range(first, last))
    ]


class _NoTasks(Tasks):
    """A member of the group that owns nothing."""

    owned: Collection[int] = ()
    joined = True

    @property
    def member_id(self) -> str:
        return "this"

    def look(self) -> None: ...

    def check(self) -> None: ...

    def close(self) -> None: ...


class World:
    """A log, an owner of all tasks with a state of its own, and a process that keeps standbys of them."""

    def __init__(self, folder: Path, name: str = "log") -> None:
        self.log = EmbeddedLog(folder / name)
        self.folder = folder
        self.stores: dict[int, RocksStore] = {}
        self.now_ms = 0
        """What the clock of the standbys is ahead."""
        self.fed = 0
        prepare_topics(self.log, PLAN, create_declared=True)

    def worked(self, count: int, plan: Plan = PLAN, folder: str = "owner") -> None:
        """Feed some events; an owner takes them, and leaves."""
        self.log.append_all(events(self.fed, self.fed + count))
        self.fed += count
        states = States(self.folder / folder, plan.app)
        worker = Worker(
            plan,
            self.log,
            TASKS,
            states.take,
            settings=WorkerSettings(
                slice_records=50, bounded=True, partition=PartitionSettings(commit_interval_ms=20)
            ),
        )
        worker.start()
        wait_until(lambda: not worker.turn() and worker.quiet, "the owner has taken all")
        worker.leave()

    def standbys(self, plan: Plan = PLAN, *, opened: Callable[[int], None] = lambda _: None) -> Standbys:
        states = States(self.folder / "standby", plan.app)

        def taken(number: int) -> RocksStore:
            opened(number)
            store = states.take(number)
            assert isinstance(store, RocksStore)
            self.stores[number] = store
            return store

        return Standbys(
            plan, self.log, 1, _NoTasks(), open_state=taken,
            owners=lambda: dict.fromkeys(TASKS, "the owner"), clock=lambda: system_clock() + self.now_ms,
        )  # fmt: skip

    def brought_up(self, standbys: Standbys, look: Callable[[], None] = lambda: None) -> None:
        """Until all tasks have a standby at the end of the changelog. ``look`` is called after each slice."""

        def done() -> bool:
            standbys.look()
            look()
            return standbys.behind == dict.fromkeys(TASKS, 0) and all(
                decode_store_cut(store.cut or b"").core == last(self.log, number)
                for number, store in self.stores.items()
            )

        wait_until(done, "the standbys are at the end", 60)

    def rows_of(self, folder: str, number: int) -> tuple[list[tuple[bytes, bytes]], StoreCut]:
        with closing(States(self.folder / folder, PLAN.app).take(number)) as store:
            assert isinstance(store, RocksStore)
            return [*store.rows()], decode_store_cut(store.cut or b"")


def last(log: EmbeddedLog, number: int) -> bytes | None:
    place = TopicPartition(PLAN.changelog_topic, number)
    return fold(log, place, log.start_offset(*place)).cut


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made = World(tmp_path)
    yield made
    made.log.close()


def applied(caplog: pytest.LogCaptureFixture) -> list[int]:
    """How many records of the changelog each restore has applied."""
    found = [vars(one)["applied"] for one in caplog.records if one.getMessage() == "the state is restored"]
    caplog.clear()
    return found


def test_a_standby_has_the_rows_of_the_owner_also_where_its_folder_was_deleted_and_its_promotion_applies_nothing(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "tailrace")
    world.worked(2_000)
    standbys = world.standbys()
    world.brought_up(standbys)
    standbys.close()
    shutil.rmtree(world.folder / "standby" / "2")
    world.worked(1_000)
    standbys = world.standbys()
    world.brought_up(standbys)
    ends = {topic: [world.log.end_offset(topic, n) for n in TASKS] for topic in world.log.topics()}
    standbys.assigned(TASKS)
    standbys.close()
    for number in TASKS:
        mine, theirs = world.rows_of("standby", number), world.rows_of("owner", number)
        assert mine[0] == theirs[0]
        assert mine[1].core == theirs[1].core
    assert ends == {topic: [world.log.end_offset(topic, n) for n in TASKS] for topic in world.log.topics()}
    caplog.clear()
    world.worked(200, folder="standby")
    assert applied(caplog) == [0, 0, 0, 0]
    shutil.rmtree(world.folder / "standby")
    world.worked(200, folder="standby")
    assert min(applied(caplog)) > 100


def test_whenever_it_is_looked_at_a_following_standby_has_whole_commits(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tailrace.runtime.standbys._BATCH", 7)  # so that a fetch ends within a commit
    monkeypatch.setattr("tailrace.runtime.standbys._SLICE_S", 0.001)
    world.worked(400)
    standbys = world.standbys()
    world.brought_up(standbys)
    seen: dict[tuple[int, bytes], dict[bytes, bytes]] = {}
    ends = set[tuple[int, int]]()

    def look() -> None:
        for number, store in world.stores.items():
            cut = decode_store_cut(store.cut or b"")
            assert cut.toward is None
            assert cut.core is not None
            rows = {row: value for row, value in store.rows() if row[:1] != b"i"}
            place = TopicPartition(PLAN.changelog_topic, number)
            if (number, cut.changelog_position) not in ends:
                ends.add((number, cut.changelog_position))
                ended = last_record(world.log, *place, stop=cut.changelog_position)
                assert ended is not None
                assert ended.key == CUT_ROW, "the store ends with a commit"
            if (before := seen.setdefault((number, cut.core), rows)) is not rows:
                assert rows == before
                continue
            then = fold(world.log, place, 0, cut.changelog_position)
            assert then.cut == cut.core
            assert rows == {row: value for row, value in then.rows.items() if value is not None}

    for _ in range(2):
        world.worked(200)
        world.brought_up(standbys, look)
    standbys.close()
    assert len(seen) >= 2 * len(TASKS)


def test_a_standby_whose_task_comes_leaves_the_folder_to_it_and_does_not_come_back(world: World) -> None:
    world.worked(400)
    standbys = world.standbys()
    world.brought_up(standbys)
    standbys.assigned([1])
    standbys.look()
    assert 1 not in standbys.behind
    with closing(States(world.folder / "standby", PLAN.app).take(1)) as store:
        assert store.cut is not None
    standbys.close()


def test_a_store_of_another_history_is_emptied_and_filled_from_this_one(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    other = World(world.folder, "other")
    other.worked(800, folder="standby")
    other.log.close()
    world.worked(1_000)
    standbys = world.standbys()
    world.brought_up(standbys)
    standbys.close()
    assert caplog.text.count("stands after a commit that this log does not have") == len(TASKS)
    for number in TASKS:
        assert world.rows_of("standby", number)[0] == world.rows_of("owner", number)[0]


def test_a_store_that_was_away_for_too_long_is_emptied_since_deletions_may_be_gone(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.worked(400)
    standbys = world.standbys()
    world.brought_up(standbys)
    standbys.close()
    with closing(States(world.folder / "standby", PLAN.app).take(0)) as store:
        store.write({b"vghost": b"its deletion was compacted away"}, store.cut or b"")
    world.now_ms = 13 * 3_600_000
    world.worked(400)
    checks: list[int] = []
    check = Standby._check

    def counted(standby: Standby) -> Any:
        checks.append(standby.number)
        return check(standby)

    monkeypatch.setattr(Standby, "_check", counted)

    def look() -> None:
        assert len(checks) < 10 * len(TASKS), "it is checked again and again, and never emptied"

    standbys = world.standbys()
    world.brought_up(standbys, look)
    standbys.close()
    for number in TASKS:
        assert world.rows_of("standby", number)[0] == world.rows_of("owner", number)[0]


def test_an_error_of_a_standby_is_told_and_it_is_tried_again_and_the_others_go_on(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    world.worked(400)
    failures = iter([True])

    def opened(number: int) -> None:
        if number == 1 and next(failures, False):
            raise StateUnavailableError("the disk is full", path="state")

    standbys = world.standbys(opened=opened)
    world.brought_up(standbys)
    standbys.close()
    assert "a standby waits: the disk is full" in caplog.text
    for number in TASKS:
        assert world.rows_of("standby", number)[0] == world.rows_of("owner", number)[0]


def test_a_process_of_another_version_keeps_the_same_rows(world: World) -> None:
    second = tr.App("totals", version="2", on_error="dead-letter")
    seen = second.topic("seen", apps.Seen)
    second.topic("totals", apps.Total)

    @second.actor
    class Counter(tr.Actor):
        count: int = 0
        latest_ms: int = 0

        @tr.process(seen)
        def counted(self, event: apps.Seen, ctx: tr.Context[str]) -> None:
            self.count += 1
            self.latest_ms = event.at_ms

    world.worked(400, second.plan())
    standbys = world.standbys()
    world.brought_up(standbys)
    standbys.close()
    for number in TASKS:
        assert world.rows_of("standby", number)[0] == world.rows_of("owner", number)[0]
