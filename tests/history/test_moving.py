"""Moves between embedded logs: what is refused, and what an interruption leaves."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pytest

from tailrace.core.errors import LogUnavailableError, OtherHistoryError, TaskOwnedError, UsageError
from tailrace.core.records import Output
from tailrace.history.moving.copying import CopyStatus
from tailrace.history.moving.moving import give_up_move, move_apps
from tailrace.history.provenance.moves import check_lives_here
from tailrace.history.reading.app_topics import prepare_topics
from tailrace.history.reading.changelog import last_cut
from tailrace.log import TopicPartition
from tailrace.log.embedded import EmbeddedLog
from tailrace.log.embedded.appending import Appender
from tests.cli.commands import done, run
from tests.log.embedded.owning import owning
from tests.soak import checks, feed
from tests.soak.apps import PARTITIONS, first_app, second_app

PLANS = [first_app(rich=False).plan(), second_app().plan()]
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
            done("run", f"tests.soak.apps:{app}", *self.places(log), "--end-of-input", "--after-end")

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


def lives(log: EmbeddedLog, app: str) -> bool:
    try:
        check_lives_here(log, app)
    except OtherHistoryError:
        return False
    return True


def test_apps_that_moved_start_there_alone_and_go_on(logs) -> None:
    assert move_apps(PLANS, logs.old, logs.new).rows > 50
    ends = logs.new.ends(logs.new.topics())
    assert move_apps(PLANS, logs.old, logs.new).topics == []
    assert logs.new.ends(logs.new.topics()) == ends, "a move that has ended has no effect when it is repeated"
    ended = run("run", "tests.soak.apps:first", *logs.places(logs.old), "--end-of-input", "--after-end")
    assert ended.code == 1
    assert f"was moved from this log to {logs.new.path}" in ended.err
    ended = run("dead-letters", "redrive", "first", "--all", "--log", logs.old.path)
    assert (ended.code, "was moved from this log" in ended.err) == (1, True)  # nobody would read them
    logs.live(logs.new)
    logs.check(logs.new)


def test_a_move_that_is_interrupted_anywhere_is_repeated_until_it_is_done(logs) -> None:
    """Each write to a log fails once. In between, no app may start on both logs."""
    interrupted, found = 0, None
    while found is None:
        try:
            with failing(logs.new, interrupted):
                found = move_apps(PLANS, logs.old, logs.new)
        except LogUnavailableError:
            interrupted += 1
            for plan in PLANS:
                assert not (
                    lives(logs.old, plan.app)
                    and plan.tape_topic in logs.new.topics()
                    and lives(logs.new, plan.app)
                )
    assert interrupted > 10
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


def interrupted_at_its_end(logs: Logs) -> None:
    """The apps have left the source, their state is copied, and they have not arrived."""
    passed, place = 0, TopicPartition("second.changelog", PARTITIONS - 1)
    while place.topic not in logs.new.topics() or last_cut(logs.new, place) is None:
        with failing(logs.new, passed), pytest.raises(LogUnavailableError):
            move_apps(PLANS, logs.old, logs.new)
        passed += 1
    assert not lives(logs.old, "first")
    assert not lives(logs.new, "first")


def test_a_move_that_is_given_up_leaves_the_apps_where_they_were(logs, tmp_path) -> None:
    interrupted_at_its_end(logs)
    give_up_move(PLANS, logs.old, logs.new)
    logs.live(logs.old)
    with pytest.raises(OtherHistoryError, match="its move to this log was given up"):
        check_lives_here(logs.new, "first")
    with pytest.raises(OtherHistoryError, match="the target has records in") as refused:
        move_apps(PLANS, logs.old, logs.new)  # its copies are older than what the apps have done since
    assert "use another log or prefix" in refused.value.hint
    third = EmbeddedLog(tmp_path / "third")
    move_apps(PLANS, logs.old, third)
    with pytest.raises(OtherHistoryError, match="lives on the target"):
        give_up_move(PLANS, logs.old, third)
    logs.live(third)
    logs.check(third)
    third.close()


def test_an_app_that_runs_is_not_moved(logs) -> None:
    owned = owning(logs.old.path, "first", [2])
    with pytest.raises(TaskOwnedError, match="an app that runs is not moved"):
        move_apps(PLANS, logs.old, logs.new)
    owned.close()
    assert lives(logs.old, "first")


def test_an_app_is_not_parted_from_the_writers_that_it_follows(logs) -> None:
    with pytest.raises(UsageError, match="'second' follows 'alarms', which the app 'first' writes"):
        move_apps(PLANS[1:], logs.old, logs.new)


def test_a_target_with_records_in_the_topics_is_refused(logs) -> None:
    with pytest.raises(UsageError, match="the same log"):
        move_apps(PLANS, logs.old, logs.old)
    settings = logs.old.topics()
    for topic in ("steps", "alarms"):
        logs.new.create_topic(topic, settings[topic])  # without records it does no harm
    logs.new.append_all([Output("steps", b"k", b"v", 1)] * 3, 0)
    with pytest.raises(OtherHistoryError, match="the target has records in 'steps' already"):
        move_apps(PLANS, logs.old, logs.new)
    assert lives(logs.old, "first")


def test_what_others_write_to_the_target_between_two_attempts_is_found(logs) -> None:
    with failing(logs.new, 12), pytest.raises(LogUnavailableError):
        move_apps(PLANS, logs.old, logs.new)
    logs.new.append_all([Output("steps", b"k", b"v", 1)], 0)
    with pytest.raises(OtherHistoryError, match="'steps' partition 0 has records on the target that are not"):
        move_apps(PLANS, logs.old, logs.new)


@pytest.mark.parametrize("what", ["a row", "a cut"])
def test_an_app_does_not_arrive_if_the_copied_state_differs(logs, what: str) -> None:
    interrupted_at_its_end(logs)
    place = TopicPartition("first.changelog", 0)
    last = last_cut(logs.new, place)
    assert last is not None
    cut = msgspec.msgpack.decode(last.value or b"")
    cut[4]["steps"] += what == "a cut"
    logs.new.append_all(
        [
            Output(place.topic, b"sa row", b"v" if what == "a row" else None, 1),
            Output(place.topic, last.key, msgspec.msgpack.encode(cut), 1, last.headers),
        ],
        place.partition,
    )
    with pytest.raises(OtherHistoryError, match="differs from the one on the source"):
        move_apps(PLANS, logs.old, logs.new)
    assert not lives(logs.old, "first")
    assert not lives(logs.new, "first")


def test_an_app_does_not_arrive_if_a_topic_has_another_end(logs) -> None:
    def written_meanwhile(status: CopyStatus) -> None:
        if status.done == status.all:
            logs.new.append_all([Output("steps", b"k", b"v", 1)], 0)

    with pytest.raises(OtherHistoryError, match=r"'steps' partition 0 ends at \d+ on the target"):
        move_apps(PLANS, logs.old, logs.new, written_meanwhile)
    assert not lives(logs.new, "first")
