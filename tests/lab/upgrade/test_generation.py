"""The state of a new version is written into a changelog of its own, and from the switch on every reader reads that one."""

from __future__ import annotations

import shutil
from contextlib import ExitStack, closing
from pathlib import Path
from random import Random
from typing import Any

import pytest

from tailrace.core import rows
from tailrace.core.declare.plan import Plan
from tailrace.core.errors import StateMovedError
from tailrace.core.names import changelog_of, upgrades_of
from tailrace.history.comparing.replayed_state import LiveFolder
from tailrace.history.moving.moving import move_apps
from tailrace.history.reading.changelog import fold, last_cut
from tailrace.history.reading.generations import at_generation, folder_of, located
from tailrace.history.reading.upgrades import Upgrade, note_upgrade
from tailrace.history.replay.replaying import replay
from tailrace.history.replay.report import ReplayOptions
from tailrace.history.snapshots.taking import take_snapshot
from tailrace.lab.upgrade import generation
from tailrace.lab.upgrade.generation import close_generation, write_generation
from tailrace.log import TopicPartition, TopicSettings
from tailrace.log.embedded import EmbeddedLog
from tailrace.log.embedded.writer import EmbeddedWriter
from tailrace.processes.app_loading import find_app
from tailrace.serve.answers import Questions
from tailrace.serve.followers import Followers as Served
from tailrace.state import MemoryStore
from tailrace.state.provenance import provenance_of
from tailrace.state.snapshots import Snapshot, Snapshots
from tests.history.rebuilding.lived import TALLY, done, live, rebuilt, serve_tallies
from tests.runtime.processes import wait_until
from tests.runtime.tallies import check_all


@pytest.fixture
def plan() -> Plan:
    return find_app(TALLY).plan()


def state_of(folder: Path, plan: Plan, number: int) -> dict[bytes, bytes]:
    """The rows of a generation, without the schema, by the partition."""
    found: dict[bytes, bytes] = {}
    with closing(EmbeddedLog(folder / "log", create=False)) as log:
        for partition in range(plan.partitions):
            place = TopicPartition(changelog_of(plan.app, number), partition)
            folded = fold(log, place, 0).rows
            found |= {row: value for row, value in folded.items() if value and row[:1] == rows.STATE}
    return found


def rows_in(found: Snapshot) -> dict[bytes, bytes]:
    return {row: value for one in rebuilt(found) for row, value in one.rows}


def written(folder: Path, plan: Plan, found: Snapshot, number: int = 1) -> int:
    return write_generation(plan, str(folder / "log"), str(folder / "snapshots"), found.manifest.id, number)


@pytest.mark.parametrize("seed", range(4))
def test_after_each_round_the_changelog_has_its_rows_wherever_a_write_was_killed(
    tmp_path: Path, plan: Plan, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    random, commit, left = Random(seed), EmbeddedWriter.commit, [10_000]

    def killed(writer: EmbeddedWriter, *given: Any) -> Any:
        left[0] -= 1
        if not left[0]:
            raise KeyboardInterrupt
        return commit(writer, *given)

    monkeypatch.setattr(generation, "_PIECE", 7)
    serve_tallies(tmp_path, keys=40, rounds=2)
    _, found = done(tmp_path)
    for number in range(4):
        monkeypatch.setattr(EmbeddedWriter, "commit", killed)
        left[0] = random.choice([1, 2, 5, 10_000])
        try:
            written(tmp_path, plan, found)
        except KeyboardInterrupt:
            pass
        monkeypatch.setattr(EmbeddedWriter, "commit", commit)
        if random.random() < 0.7:  # otherwise the next round is made before it is tried again
            written(tmp_path, plan, found)
            assert state_of(tmp_path, plan, 1) == rows_in(found)
            assert written(tmp_path, plan, found) == 0
        serve_tallies(tmp_path, keys=random.choice([3, 45]), rounds=1, first_round=2 + number)
        if random.random() < 0.7:
            base: dict[str, Any] = {"base": str(tmp_path / "snapshots"), "base_id": found.manifest.id}
            _, found = done(tmp_path, order="tape", store="memory", **base)
        else:  # it does not rest upon what was written
            _, found = done(tmp_path)
    written(tmp_path, plan, found)
    assert state_of(tmp_path, plan, 1) == rows_in(found)
    with closing(EmbeddedLog(tmp_path / "log", create=False)) as log:
        for partition in range(plan.partitions):
            last = last_cut(log, TopicPartition(changelog_of(plan.app, 1), partition))
            assert provenance_of(last).snapshot == found.manifest.id


def switched(folder: Path, plan: Plan) -> None:
    """The state continues in another changelog, as after an upgrade; the service handles more."""
    _, found = done(folder)
    written(folder, plan, found)
    upgrade = Upgrade(
        step="ready", id="1", old="old", new=plan.version, snapshots=str(folder / "snapshots"),
        code="", before=0, generation=1, snapshot=found.manifest.id,
    )  # fmt: skip
    with closing(EmbeddedLog(folder / "log", create=False)) as log:
        log.create_topic(upgrades_of(plan.app), TopicSettings(1))
        with closing(log.writer(upgrades_of(plan.app))) as writer:
            note_upgrade(writer, plan.app, upgrade)
        old, new = changelog_of(plan.app), changelog_of(plan.app, 1)
        close_generation(log, old, new)
    serve_tallies(folder, keys=20, rounds=2, first_round=3)


def test_from_the_switch_on_the_state_is_read_there_and_the_old_changelog_is_refused(
    tmp_path: Path, plan: Plan
) -> None:
    serve_tallies(tmp_path)
    with closing(EmbeddedLog(tmp_path / "log", create=False)) as log:
        before = located(plan, log)
    switched(tmp_path, plan)
    assert not (tmp_path / "state" / plan.app / "0").exists()
    assert (folder_of(tmp_path / "state" / plan.app, at_generation(plan, 1)) / "0").is_dir()
    with closing(EmbeddedLog(tmp_path / "log", create=False)) as log:
        check_all(log, 20, 5)
        taken = take_snapshot(plan, log, Snapshots(str(tmp_path / "taken"), plan.app))
        read = (last_cut, lambda log, place: fold(log, place, 0))
        for one in read:
            with pytest.raises(StateMovedError, match=r"but in '[a-z]+\.changelog\.1'"):
                one(log, TopicPartition(before.changelog_topic, 0))
    expected = {row: value for one in live(tmp_path, plan) for row, value in one.rows}
    assert rows_in(Snapshots(str(tmp_path / "taken"), plan.app).open(taken.id)) == expected
    _, again = done(tmp_path)
    assert rows_in(again) == expected


def test_a_follower_goes_on_with_the_new_changelog(tmp_path: Path, plan: Plan) -> None:
    serve_tallies(tmp_path)
    question = Questions(plan).question("Counter", "k1", "count", {})
    with ExitStack() as closes:
        log = closes.enter_context(closing(EmbeddedLog(tmp_path / "log", create=False)))
        followers = Served(plan, log, range(plan.partitions), lambda *_: MemoryStore())
        closes.callback(followers.close)

        def counts(many: int) -> bool:
            for one in followers.all:
                one.step()
            report = followers.reports()[question.partition]
            return report.offset is not None and followers.answer(question).value == many

        wait_until(lambda: counts(3), "it answers")
        switched(tmp_path, plan)
        wait_until(lambda: counts(5), "it answers by the new changelog")


def test_a_move_carries_the_switch(tmp_path: Path, plan: Plan) -> None:
    serve_tallies(tmp_path)
    switched(tmp_path, plan)
    expected = live(tmp_path, plan)
    (tmp_path / "moved").mkdir()
    with (
        closing(EmbeddedLog(tmp_path / "log", create=False)) as source,
        closing(EmbeddedLog(tmp_path / "moved" / "log")) as target,
    ):
        move_apps([plan], source, target)
    assert [(one.cut, one.rows) for one in live(tmp_path / "moved", plan)] == [
        (one.cut, one.rows) for one in expected
    ]
    (tmp_path / "state").rename(tmp_path / "moved" / "state")
    serve_tallies(tmp_path / "moved", keys=20, rounds=1, first_round=5)
    with closing(EmbeddedLog(tmp_path / "moved" / "log", create=False)) as log:
        check_all(log, 20, 6)


def test_a_copy_that_a_given_up_upgrade_has_left_is_not_taken_for_the_state(
    tmp_path: Path, plan: Plan
) -> None:
    serve_tallies(tmp_path)
    states = tmp_path / "state" / plan.app
    for number in range(plan.partitions):
        shutil.copytree(states / str(number), states / "generation.1" / str(number))
    serve_tallies(tmp_path, keys=20, rounds=2, first_round=3)
    with closing(EmbeddedLog(tmp_path / "log")) as log:
        live = LiveFolder(tmp_path / "state", located(plan, log))
        report = replay(plan, log, ReplayOptions(compare=True, any_environment=True), live=live.states)
        live.close()
    assert f"the state in {states}" in report.compared
    assert not report.differences.count
