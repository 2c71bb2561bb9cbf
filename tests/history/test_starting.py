"""Starting from a snapshot when others do so too, at the worst of moments."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import msgspec
import pytest

import tailrace as tr
from tailrace.core.declare.plan import Plan
from tailrace.core.errors import FencedError, OffsetGoneError, SnapshotMismatchError, UnknownSnapshotError
from tailrace.core.records import Output
from tailrace.core.values.partitioner import partition_of
from tailrace.history.reading.changelog import last_cut
from tailrace.history.replay.replaying import replay
from tailrace.history.replay.report import ReplayOptions
from tailrace.history.snapshots.start_from_snapshot import Start, all_have_begun, open_start, start_from
from tailrace.log.embedded import EmbeddedLog
from tailrace.log.interface import TopicPartition
from tailrace.runtime.options import ServiceOptions
from tailrace.runtime.preparing import prepare_log
from tailrace.runtime.snapshot_start import begin_all, with_snapshot_settled
from tailrace.state.provenance import Abandoned, Provenance, provenance_of
from tests.runtime.served import Tick
from tests.runtime.state_world import KEYS, ROUNDS, World, edited
from tests.runtime.tallies import ticks


@pytest.fixture
def world(tmp_path) -> Iterator[World]:
    made = World(tmp_path)
    yield made
    made.log.close()


def lived(world: World, *, under_way: bool = False) -> None:
    """A life, and a snapshot of it; ``under_way``: with messages that nobody has taken yet."""
    world.live()
    if under_way:
        world.log.append_all(ticks(KEYS, 1, ROUNDS))
        world.run(numbers=range(1))
    world.take()


def test_who_was_stopped_before_it_seeded_does_not_set_back_what_another_has_begun(
    world, monkeypatch
) -> None:
    lived(world)
    other = world.app.renamed("other").plan()
    writer = world.log.writer

    def late(transactional_id: str) -> Any:
        monkeypatch.undo()
        world.run(other, start=world.start())
        world.log.append_all(ticks(KEYS, ROUNDS, ROUNDS))
        world.run(other)
        return writer(transactional_id)

    prepare_log(world.log, other, create_declared=True)
    monkeypatch.setattr(world.log, "writer", late)
    with pytest.raises(FencedError, match="started by another"):
        start_from(other, 0, world.log, world.start(), 1)
    world.run()
    world.run(other)
    assert world.rows("other") == world.rows()


def test_it_is_asked_whether_the_task_is_owned_right_before_it_is_taken_over(world) -> None:
    lived(world)
    other = world.app.renamed("other").plan()
    world.run(other, numbers=range(1), start=world.start())
    before = world.log.ends(["other.changelog"])

    def lost() -> None:
        raise FencedError("lost")

    with pytest.raises(FencedError, match="lost"):
        start_from(other, 1, world.log, world.start(), 1, lost)
    assert world.log.ends(["other.changelog"]).offsets == before.offsets


@pytest.mark.parametrize("name", ["other", "tally"])
def test_what_was_sent_to_a_task_before_it_was_seeded_is_not_lost(world, tmp_path, name) -> None:
    """Under another name; and under its own in another log, where offsets of the inbox mean nothing."""
    lived(world, under_way=True)
    plan = world.app.renamed(name).plan()
    world.live(first=ROUNDS + 1)
    expected = world.rows()
    if name == "tally":
        world.log.close()
        world.log = EmbeddedLog(tmp_path / "another")
        world.stores.clear()
        prepare_log(world.log, plan, create_declared=True)
        world.log.append_all(ticks(KEYS, ROUNDS))
        world.log.append_all(ticks(KEYS, 1, ROUNDS))
        world.log.append_all(ticks(KEYS, ROUNDS, ROUNDS + 1))
    for number in range(4):
        world.run(plan, numbers=range(number, number + 1), start=world.start())
    world.run(plan)
    assert world.rows(name) == expected


def test_a_topic_that_begins_with_the_name_of_the_app_is_not_taken_for_its_own(world) -> None:
    """Its own are renamed with it; this one is not, and is gone on in where the snapshot stands."""
    app = tr.App("tally", partitions=4)
    raw = app.topic("tally.raw", Tick, key="who", event_time="at")

    @app.actor
    class Counter(tr.Actor):
        count: int = 0

        @tr.process(raw)
        def ticked(self, event: Tick, ctx: tr.Context[str]) -> None:
            self.count += 1

    world.app, world.plan = app, app.plan()
    prepare_log(world.log, world.plan, create_declared=True)
    world.log.append_all(one._replace(topic="tally.raw") for one in ticks(KEYS, ROUNDS))
    world.run()
    world.take()
    other = app.renamed("other").plan()
    world.run(other, start=world.start())
    assert world.cut(0, "other").positions == {
        name.replace("tally.inbox", "other.inbox"): at for name, at in world.cut(0).positions.items()
    }
    assert world.cut(0, "other").identity not in (b"", world.cut(0).identity)
    assert world.rows("other") == world.rows()


def opened(world: World, plan: Plan, which: str = "", *, replace: bool = False) -> Start | None:
    reference = f"{world.folder / 'snapshots'}#{which}" if which else str(world.folder / "snapshots")
    return open_start(reference, "tally", plan, world.log, replace=replace)


def test_all_tasks_begin_with_one_snapshot_though_there_is_a_newer_one_by_the_time_the_last_does(
    world,
) -> None:
    lived(world)
    other = world.app.renamed("other").plan()
    prepare_log(world.log, other, create_declared=True)
    first = opened(world, other)
    assert first is not None
    start_from(other, 0, world.log, first, 1)  # killed before it begins the others
    world.live(rounds=1, first=ROUNDS)
    newer = world.take()
    again = opened(world, other)
    assert again is not None
    assert again.name == first.name
    assert newer.id not in again.name
    assert not all_have_begun(other, world.log, again)
    world.run(other, start=again)
    assert all_have_begun(other, world.log, again)
    assert world.rows("other") == world.rows()


def test_until_the_tasks_of_other_workers_have_begun_none_takes_a_record(world) -> None:
    lived(world, under_way=True)
    other = world.app.renamed("other").plan()
    prepare_log(world.log, other, create_declared=True)
    start = opened(world, other)
    assert start is not None

    def begin(number: int) -> None:
        start_from(other, number, world.log, start, 1)

    all_begun = partial(all_have_begun, other, world.log, start)
    waits = 0

    def wait(_pause_s: float) -> bool:
        nonlocal waits
        waits += 1
        if waits == 3:
            begin_all(begin, all_begun, range(2, 4), lambda _: False)
        return True

    begin_all(begin, all_begun, range(2), lambda _: False)
    assert not all_begun(), "it was stopped before"
    begin_all(begin, all_begun, range(2), wait)
    assert waits >= 3
    assert all_begun()


def test_it_is_started_again_though_the_snapshot_that_it_began_with_is_gone(world) -> None:
    lived(world)
    other = world.app.renamed("other").plan()
    begun = world.start()
    found = begun.snapshot.manifest.id
    world.run(other, numbers=range(2), start=begun)
    folder = world.folder / "snapshots"
    folder.rename(world.folder / "moved")
    for which in ("", found):
        with pytest.raises(UnknownSnapshotError):
            opened(world, other, which)  # two tasks have not begun with it
    (world.folder / "moved").rename(folder)
    world.run(other, start=begun)
    world.snapshots().delete(found)
    for which, instead in (("", False), (found, False), (found, True)):
        assert opened(world, other, which, replace=instead) is None
    with pytest.raises(UnknownSnapshotError):
        opened(world, other, "another", replace=True)


def test_retention_leaves_the_snapshot_with_which_a_history_begins(world) -> None:
    world.live()
    first = world.take(automatic=True)
    second = world.take(automatic=True, incremental=True)
    assert second.parent == first.id
    other = world.app.renamed("other").plan()
    prepare_log(world.log, other, create_declared=True)
    world.run(other, start=world.start())
    third, last = world.take(automatic=True), world.take(automatic=True)
    assert world.snapshots().keep(1) == [third.id]
    assert world.snapshots().sweep(older_than_s=-60) == []
    assert world.snapshots().keep(1) == []
    assert [one.id for one in world.snapshots().list()] == [first.id, second.id, last.id]
    assert replay(other, world.log, ReplayOptions(compare=True)).differences.count == 0


def test_a_state_is_replaced_as_a_whole_or_not_at_all(world) -> None:
    """One task stands where the snapshot does, another has gone on."""
    lived(world)
    edited(world.snapshots(), lambda row, value: None if row.startswith(b"sAuditor") else value)
    other = next(one for one in ticks(KEYS, 1, ROUNDS) if partition_of(one.key or b"", 4) == 3)
    world.log.append_all([other])
    world.run(numbers=range(3, 4))
    expected = world.rows()
    for number in range(4):
        with pytest.raises(
            SnapshotMismatchError,
            match=r"partition 3 the snapshot .* does not stand where .* ticks: \d+ and \d+",
        ):
            start_from(world.plan, number, world.log, world.start(replace=True), 1)
    world.run(numbers=range(3))
    assert [world.cut(number).base for number in range(4)] == [""] * 4
    assert world.rows()[3] == expected[3]


def none_begins(world: World, error: type[Exception], said: str) -> None:
    """No task of another app begins with the snapshot."""
    other = world.app.renamed("other").plan()
    prepare_log(world.log, other, create_declared=True)
    for number in range(4):
        with pytest.raises(error, match=said):
            start_from(other, number, world.log, world.start(), 1)
    assert world.log.ends(["other.changelog"]).offsets == {"other.changelog": [0] * 4}


def test_what_waits_for_a_task_that_has_not_committed_yet_is_not_left_behind(world) -> None:
    """Its messages are in no snapshot: under another name no task begins, in place there they are."""
    world.log.append_all(one for one in ticks(KEYS, ROUNDS) if partition_of(one.key or b"", 4) == 0)
    world.run(numbers=range(1))
    made = world.take()
    assert [bool(task.cut) for task in made.tasks] == [True, False, False, False]
    none_begins(world, SnapshotMismatchError, "had not committed yet")
    world.stores.clear()
    world.run(start=world.start())
    audited = [row for found in world.rows()[1:] for row in found if row.startswith(b"sAuditor")]
    assert audited


def test_where_one_task_cannot_begin_none_does(world) -> None:
    lived(world)
    world.log.append_all(ticks(KEYS, 1, ROUNDS))
    world.log.delete_before("ticks", 3, world.log.end_offset("ticks", 3))
    none_begins(world, OffsetGoneError, "partition 3")


def test_one_that_stands_within_history_and_lacks_what_was_under_way_begins_nothing_elsewhere(world) -> None:
    lived(world)
    found = world.snapshots().open().manifest
    draft = world.snapshots().begin()
    tasks = [msgspec.structs.replace(one, files=(), changelog_position=None) for one in found.tasks]
    limited: dict[str, Any] = {"source": "tape", "ends": {}, "tasks": tuple(tasks), "checksum": ""}
    made = msgspec.structs.replace(found, id=draft.id, created_ms=draft.created_ms, **limited)
    world.snapshots().publish(made)
    none_begins(world, SnapshotMismatchError, "does not hold what was under way")


def test_the_processes_of_a_service_are_told_which_snapshot_it_is(world) -> None:
    lived(world)
    first = world.snapshots().open().manifest.id
    options = ServiceOptions(
        "tests.runtime.served:app@other", world.folder / "log", world.folder / "state", workers=2
    )
    other = world.app.renamed("other").plan()
    prepare_log(world.log, other, create_declared=True)
    assert with_snapshot_settled(options, other, world.log) is options
    options = replace(options, from_snapshot=str(world.folder / "snapshots"))
    told = with_snapshot_settled(options, other, world.log)
    assert told.from_snapshot == f"{options.from_snapshot}#{first}"
    assert world.take().id != first
    assert with_snapshot_settled(told, other, world.log) == told


def test_a_state_that_is_replaced_keeps_its_versions_and_where_inputs_were_left(world) -> None:
    """Otherwise an older version would be admitted, and an input that is declared again would be read from another place."""
    place = TopicPartition(world.plan.changelog_topic, 0)
    before = Provenance(abandoned={"gone": Abandoned(7, "log/id")}, versions=("0", "1"))
    lived(world)
    cut = last_cut(world.log, place)
    assert cut is not None
    world.log.append_all([Output(place.topic, cut.key, cut.value, cut.timestamp_ms, before.headers)], 0)
    edited(world.snapshots(), lambda _, value: value)
    start = world.start(replace=True)
    assert start_from(world.plan, 0, world.log, start, 1) == "replaced"
    seeded = provenance_of(last_cut(world.log, place))
    assert (seeded.versions, seeded.abandoned) == (before.versions, before.abandoned)
