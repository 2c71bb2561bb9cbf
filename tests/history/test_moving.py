"""Moves between embedded logs: what is refused, what an interruption leaves, and what a comparison finds."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tailrace.core.errors import AppMovedError, LogUnavailableError, TaskOwnedError, UsageError
from tailrace.core.records import Output
from tailrace.history.app_topics import prepare_topics
from tailrace.history.moving import copying, moving
from tailrace.history.moving.moving import MoveOptions, give_up_move, move_apps
from tailrace.history.moving.residence import check_lives_here
from tailrace.history.retirement import retire
from tailrace.log import TopicPartition
from tailrace.log.embedded import EmbeddedLog
from tailrace.log.embedded.appending import Appender
from tailrace.processes.task_ownership import TaskOwnership
from tests.cli.commands import done, run
from tests.soak import checks, feed
from tests.soak.apps import first_app, second_app

PLANS = [first_app(rich=False).plan(), second_app().plan()]
CHECKED = MoveOptions(check=True)
SEED = 3


class Logs:
    """Two logs, one of which the apps have run on."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.old, self.new = EmbeddedLog(folder / "old"), EmbeddedLog(folder / "new")
        self.fed = 0
        for plan in PLANS:
            prepare_topics(self.old, plan, create_declared=True)

    def live(self, log: EmbeddedLog) -> None:
        """Feed 200 events, and run both apps to the end."""
        writer = log.writer("feed")
        writer.append(feed.outputs(SEED, self.fed, self.fed + 200, rich=False))
        self.fed += 200
        writer.commit({feed.PLACE: self.fed}, feed.GROUP)
        writer.close()
        for app in ("first", "second"):
            done("run", f"tests.soak.apps:{app}", *self.places(log), "--until-end")

    def check(self, log: EmbeddedLog) -> None:
        """Check the log, the numbers of outputs, and that a replay of all gives state and outputs byte for byte."""
        log.verify()
        for plan in PLANS:
            checks.check_numbers(log, plan)
            assert checks.check_replay(log, plan, self.folder / "state").records > self.fed // 4

    def places(self, log: EmbeddedLog) -> list[object]:
        return ["--log", log.path, "--state", self.folder / "state"]


@pytest.fixture
def logs(tmp_path) -> Iterator[Logs]:
    made = Logs(tmp_path)
    made.live(made.old)
    yield made
    made.old.close()
    made.new.close()


def test_apps_that_moved_start_there_alone_and_go_on(logs) -> None:
    found = move_apps(PLANS, logs.old, logs.new, CHECKED)
    assert found.is_done
    assert found.compared is not None
    assert found.compared.differences == ()
    ended = run("run", "tests.soak.apps:first", *logs.places(logs.old), "--until-end")
    assert ended.code == 1
    assert f"was moved from this log to {logs.new.path}" in ended.err
    ended = run("dead-letters", "redrive", "first", "--all", "--log", logs.old.path)
    assert (ended.code, "was moved from this log" in ended.err) == (1, True)  # nobody would read them
    logs.live(logs.new)
    logs.check(logs.new)


def test_a_move_is_repeated_without_effect_and_then_only_compares(logs) -> None:
    move_apps(PLANS, logs.old, logs.new, MoveOptions())
    ends = logs.new.ends(logs.new.topics())
    again = move_apps(PLANS, logs.old, logs.new, CHECKED)
    assert again.is_done
    assert again.topics == []
    assert again.compared is not None
    assert (again.compared.differences, again.compared.has_run) == ((), False)
    assert logs.new.ends(logs.new.topics()) == ends
    logs.live(logs.new)
    compared = move_apps(PLANS, logs.old, logs.new, CHECKED).compared
    assert compared is not None
    assert (compared.differences, compared.has_run) == ((), True)


def test_a_move_back_copies_what_came_since(logs) -> None:
    move_apps(PLANS, logs.old, logs.new, CHECKED)
    logs.live(logs.new)
    back = move_apps(PLANS, logs.new, logs.old, CHECKED)
    assert back.is_done
    assert {one.topic: one.records for one in back.topics}["steps"] == 200
    logs.live(logs.old)
    logs.check(logs.old)
    with pytest.raises(AppMovedError, match="was moved from this log"):
        check_lives_here(logs.new, "first")


def test_an_app_that_was_moved_and_then_retired_on_the_source_is_not_retired_on_the_target(logs) -> None:
    move_apps(PLANS[:1], logs.old, logs.new, CHECKED)
    before = logs.new.publications()
    assert before["passed", "first-0"] is not None
    retire(logs.old, "first")  # so that its reader does not wait for it there
    assert move_apps(PLANS[1:], logs.old, logs.new, CHECKED).is_done
    assert {one: mark for one, mark in logs.new.publications().items() if one in before} == before


def test_a_move_that_is_interrupted_anywhere_is_repeated_until_it_is_done(logs) -> None:
    """Each write to the target fails once. In between, no app may start on both logs."""
    interrupted, found = 0, None
    while found is None:
        try:
            with failing(logs.new, interrupted):
                found = move_apps(PLANS, logs.old, logs.new, CHECKED)
        except LogUnavailableError:
            interrupted += 1
            for plan in PLANS:
                assert not (
                    lives(logs.old, plan.app)
                    and plan.tape_topic in logs.new.topics()
                    and lives(logs.new, plan.app)
                )
    assert interrupted > 10
    assert found.is_done
    assert found.compared is not None
    assert found.compared.differences == ()
    logs.live(logs.new)
    logs.check(logs.new)


@contextmanager
def failing(log: EmbeddedLog, passed: int) -> Generator[None]:
    """The write after so many fails, and all later ones."""
    turn, left = Appender.turn, passed

    def struck(self: Appender, *arguments: str):
        nonlocal left
        if self is log._appender:
            if left <= 0:
                raise LogUnavailableError("struck")
            left -= 1
        return turn(self, *arguments)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Appender, "turn", struck)
        yield


def lives(log: EmbeddedLog, app: str) -> bool:
    try:
        check_lives_here(log, app)
    except AppMovedError:
        return False
    return True


def test_history_can_be_copied_before_while_the_apps_run(logs) -> None:
    owned = TaskOwnership(logs.old.path, "first", [2])
    try:
        with pytest.raises(TaskOwnedError, match="an app that runs is not moved"):
            move_apps(PLANS, logs.old, logs.new, MoveOptions())
        prepared = move_apps(PLANS, logs.old, logs.new, MoveOptions(prepare=True))
        assert not prepared.is_done
        assert sum(one.records for one in prepared.topics) > 400
    finally:
        owned.release()
    with pytest.raises(AppMovedError, match="is being moved to this log"):
        check_lives_here(logs.new, "first")
    logs.live(logs.old)
    moved = move_apps(PLANS, logs.old, logs.new, CHECKED)
    assert moved.is_done
    assert {one.topic: one.records for one in moved.topics}["steps"] == 200


def test_a_move_can_be_given_up_until_it_has_ended(logs) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            moving._Moving,
            "_commit_positions",
            lambda _: (_ for _ in ()).throw(LogUnavailableError("struck")),
        )
        with pytest.raises(LogUnavailableError):
            move_apps(PLANS, logs.old, logs.new, MoveOptions())
    assert not lives(logs.old, "first")
    give_up_move(PLANS, logs.old, logs.new)
    logs.live(logs.old)
    assert not lives(logs.new, "first")
    assert move_apps(PLANS, logs.old, logs.new, CHECKED).is_done
    with pytest.raises(AppMovedError, match="lives on the target"):
        give_up_move(PLANS, logs.old, logs.new)


def test_without_history_the_target_begins_where_the_apps_stand(logs, tmp_path) -> None:
    moved = move_apps(PLANS, logs.old, logs.new, MoveOptions(history=False, check=True))
    assert moved.is_done
    assert {one.topic: one.records for one in moved.topics}["steps"] == 0
    assert logs.new.start_offset("steps", 0) == logs.old.end_offset("steps", 0)
    logs.live(logs.new)
    assert logs.new.end_offset("steps", 0) > logs.old.end_offset("steps", 0)
    ended = run("replay", "tests.soak.apps:first", "--compare", *logs.places(logs.new))
    assert ended.code == 1
    assert "A part of the tape is missing" in ended.out


def test_an_app_is_not_parted_from_the_writers_that_it_follows(logs) -> None:
    with pytest.raises(UsageError, match="'second' follows 'alarms', which the app 'first' writes"):
        move_apps(PLANS[1:], logs.old, logs.new, MoveOptions())
    move_apps(PLANS[:1], logs.old, logs.new, CHECKED)
    done("run", "tests.soak.apps:first", *logs.places(logs.new), "--until-end")
    assert move_apps(PLANS[1:], logs.old, logs.new, CHECKED).is_done


def test_a_target_with_another_history_is_refused(logs, tmp_path) -> None:
    with pytest.raises(UsageError, match="the same log"):
        move_apps(PLANS, logs.old, logs.old, MoveOptions())
    strange = EmbeddedLog(tmp_path / "strange")
    strange.create_topic("steps", logs.old.topics()["steps"])
    strange.append_all([Output("steps", b"k", b"v", 1)] * 3, 0)
    with pytest.raises(AppMovedError, match="'steps' partition 0 has another record"):
        move_apps(PLANS, logs.old, strange, MoveOptions())
    assert lives(logs.old, "first")
    strange.close()
    other = Logs(tmp_path / "others")
    other.live(other.old)
    with pytest.raises(AppMovedError, match="an app 'first' of its own"):
        move_apps(PLANS, logs.old, other.old, MoveOptions())
    other.old.close()
    other.new.close()


@pytest.mark.parametrize("what", ["a row", "a record", "a watermark", "a position"])
def test_a_comparison_finds_what_is_missing_and_the_app_does_not_arrive(logs, monkeypatch, what) -> None:
    def without_last_row(*_):
        return 0

    def without_a_record(self, reader, places, ends):
        return [one._replace(records=one.records[1:]) for one in read(self, reader, places, ends)]

    read = copying.TopicCopy._read
    if what == "a row":
        monkeypatch.setattr(moving, "copy_changelog", without_last_row)
    elif what == "a record":
        monkeypatch.setattr(copying.TopicCopy, "_read", without_a_record)
    elif what == "a watermark":
        monkeypatch.setattr(moving._Moving, "_publish", lambda *_: None)
    else:
        place = TopicPartition("steps", 0)
        commit = moving._Moving._commit_positions

        def astray(self):
            commit(self)
            writer = logs.new.writer("astray")
            writer.commit({place: 1}, "first")

        monkeypatch.setattr(moving._Moving, "_commit_positions", astray)
    found = move_apps(PLANS, logs.old, logs.new, CHECKED)
    assert found.compared is not None
    assert found.compared.differences
    assert not found.is_done
    assert not lives(logs.old, "first")
    assert not lives(logs.new, "first")


def test_a_move_that_is_given_up_is_told_as_json(logs) -> None:
    names = ("--from", logs.old.path, "--to", logs.new.path, "--app", "tests.soak.apps:first")
    (said,) = done("migrate", *names, "--cancel", "--json").lines
    assert said == {"apps": ["first"], "done": False, "given_up": True}
