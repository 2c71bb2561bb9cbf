"""``tailrace upgrade`` with input that is wrong, a full disk, or a second command: a sentence, the old version runs, nothing in halves."""

from __future__ import annotations

import copy
import errno
import os
import shutil
import sys
from collections.abc import Generator, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from itertools import count as counting
from pathlib import Path
from random import Random
from typing import IO, Any

import pytest
from msgspec.structs import replace

from tailrace.core import errors
from tailrace.lab.upgrade import driver, tasks
from tailrace.lab.upgrade.driver import Upgrading, Wanted
from tailrace.lab.upgrade.generation import write_generation
from tailrace.lab.upgrade.steps import Steps
from tailrace.log.embedded import EmbeddedLog
from tailrace.log.interface import Ends
from tailrace.log.opening import open_log
from tailrace.processes.app_loading import find_app
from tailrace.state.snapshots import Manifest, Place, Snapshots
from tests.history.rebuilding.lived import live_on
from tests.lab.in_process import Here
from tests.lab.upgrade.stage import (
    BUG,
    OLD,
    Producer,
    check,
    corrected,
    module_of,
    outputs,
    step_of,
    wanted_in,
)

AT = 1_500
"""The time of a click."""
NUMBERS = counting(200)
"""Of versions: each has a module of its own."""


class StoppedError(BaseException):
    """Ends a command where a kill would."""


def serve(app: str, folder: Path, *, ends: bool = False) -> None:
    """A process of a version runs until it has handled everything, and leaves."""
    live_on(folder, app, ends=ends, state=f"state-of-{app.partition(':')[0]}")


@pytest.fixture(scope="module")
def begun(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Producer]:
    """The log of a version that has run."""
    folder = tmp_path_factory.mktemp("begun")
    producer = Producer(folder / "log")
    serve(OLD, folder)
    return folder, producer


@pytest.fixture
def producer(begun: tuple[Path, Producer], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Producer:
    """A producer of a copy of the log, which lies in ``tmp_path``. Versions are in this process."""
    monkeypatch.setattr(driver, "Version", Here)
    monkeypatch.syspath_prepend(str(tmp_path))
    Here.tasks = []
    shutil.copytree(begun[0] / "log", tmp_path / "log")
    made = copy.copy(begun[1])
    made._log, made._random, made.clicks = tmp_path / "log", Random(8), [*begun[1].clicks]
    return made


def new_version(folder: Path, *more: tuple[str, str]) -> str:
    """A version with a module of its own."""
    return corrected(folder, *more, number=next(NUMBERS))


def upgrade(asked: Wanted, *, until: str = "ready") -> None:
    """The command, up to a step: from ``ready`` on it waits for processes of the new version."""

    def reached(step: str) -> None:
        if step == until:
            raise StoppedError

    with ExitStack() as stack, suppress(StoppedError):
        Upgrading(asked, stack).run(reached)


def check_old_runs(producer: Producer, folder: Path) -> None:
    """The old version handles more."""
    producer.more(20)
    serve(OLD, folder)
    assert sum(map(len, outputs(folder / "log", "seen"))) == len(producer.clicks)


def finish(asked: Wanted, folder: Path, producer: Producer) -> None:
    """The upgrade is done to the end, and the new version handles more. Nothing is lost or doubled."""
    if step_of(asked.log) != "ready":
        upgrade(asked)
    assert step_of(asked.log) == "ready"
    producer.more(400)  # each user has some
    serve(module_of(asked.new), folder)
    with ExitStack() as stack:
        assert Upgrading(asked, stack).run().done
    with pytest.raises(errors.ReplacedVersionError, match="has replaced version '1'"):
        serve(OLD, folder)
    serve(module_of(asked.new), folder, ends=True)
    check(asked.log, producer.clicks, "on")


RAISES = (BUG, f"if event.at == {AT}:\n            raise ValueError('no')\n        if True:")


@pytest.mark.parametrize(
    ("changes", "options", "said"),
    [
        ([("import msgspec", "import msgspec\nimport no_such")], {}, "cannot be imported"),
        ([("class User(tr.Actor)", "class User(no_such)")], {}, "cannot be imported"),
        ([], {"new": "no-such:clicking:app"}, "there is no revision 'no-such'"),
        ([('version="NUMBER"', 'version="1"')], {}, "both are version '1'"),
        ([("partitions=2", "partitions=3")], {}, "has 2 partitions in one version, and 3 in the other"),
        ([('"clicking"', '"other"')], {}, "not versions of one app"),
        ([('app.topic("clicks"', 'app.topic("more"')], {}, "does not read 'clicks'"),
        ([], {"rollback": True}, "was not from version '1' to '2"),
    ],
)
def test_what_cannot_be_done_is_refused_before_anything_is_written(
    producer: Producer, tmp_path: Path, changes: list[tuple[str, str]], options: dict[str, Any], said: str
) -> None:
    number = next(NUMBERS)
    changed = [(before.replace("NUMBER", str(number)), after) for before, after in changes]
    asked = replace(wanted_in(tmp_path, corrected(tmp_path, *changed, number=number)), **options)
    with closing(open_log(asked.log)) as opened:
        topics = {*opened.topics()}
        for do in (Upgrading.plan, Upgrading.run):
            with ExitStack() as stack, pytest.raises(errors.TailraceError, match=said):
                do(Upgrading(asked, stack))
        assert {*opened.topics()} == topics
    assert (step_of(asked.log), (tmp_path / "snapshots").exists()) == ("", False)
    check_old_runs(producer, tmp_path)


def test_a_version_that_fails_on_history_never_stops_the_old_one(producer: Producer, tmp_path: Path) -> None:
    new = corrected(tmp_path, number=next(NUMBERS))
    file = Path(new.removesuffix(":app"))
    right = file.read_text("utf-8")
    file.write_text(right.replace("if True:", RAISES[1]), "utf-8")
    asked = wanted_in(tmp_path, new)
    with pytest.raises(errors.HandlerError, match=r"the new one: .*ValueError"):
        upgrade(asked)
    assert step_of(asked.log) == "begun"
    check_old_runs(producer, tmp_path)
    file.write_text(right, "utf-8")
    del sys.modules[file.stem]
    with pytest.raises(errors.OptionError, match=r"has changed since the upgrade was begun.*--cancel"):
        upgrade(asked)
    with ExitStack() as stack:
        assert Upgrading(asked, stack).cancel()
    finish(asked, tmp_path, producer)


def test_history_that_begins_in_the_middle_is_refused_and_the_old_version_runs(
    producer: Producer, tmp_path: Path
) -> None:
    with closing(EmbeddedLog(tmp_path / "log")) as log:
        for number in range(2):
            log.delete_before("clicks", number, 20)
    asked = wanted_in(tmp_path, new_version(tmp_path))
    with pytest.raises(errors.OffsetGoneError, match="deleted"):
        upgrade(asked)
    check_old_runs(producer, tmp_path)


@pytest.mark.parametrize("whole", [0, 2, 6, 10])
def test_a_disk_that_fills_stops_the_command_and_later_it_continues(
    producer: Producer, tmp_path: Path, whole: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After so many files of snapshots that were written whole: within the rebuild, a round of catch-up, or the cut-over."""
    asked, written = wanted_in(tmp_path, new_version(tmp_path)), 0
    stream, write = Place.stream, Place.write

    def count() -> None:
        nonlocal written
        written += 1
        if written > whole:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    @contextmanager
    def full_stream(self: Place) -> Generator[IO[bytes]]:
        with stream(self) as opened:
            yield opened
            with self.failures("writing"):
                count()

    def full_write(self: Place, data: bytes, *, replace: bool = True) -> None:
        with self.failures("writing"):
            count()
        write(self, data, replace=replace)

    with monkeypatch.context() as patch:
        patch.setattr(Place, "stream", full_stream)
        patch.setattr(Place, "write", full_write)
        with pytest.raises(errors.SnapshotUnavailableError, match="No space left on device"):
            upgrade(asked)
    assert step_of(asked.log) in ("begun", "given up")
    check_old_runs(producer, tmp_path)
    finish(asked, tmp_path, producer)


@pytest.mark.parametrize("step", ["begun", "kept", "round", "verified", "fenced", "last"])
def test_of_two_commands_at_once_the_second_goes_on_and_the_first_does_nothing_more(
    producer: Producer, tmp_path: Path, step: str
) -> None:
    asked, came = wanted_in(tmp_path, new_version(tmp_path)), list[str]()

    def reached(at: str) -> None:
        came.append(at)
        if at == step and came.count(at) == 1:
            upgrade(asked)

    with ExitStack() as stack, pytest.raises(errors.TailraceError):
        Upgrading(asked, stack).run(reached)
    assert "ready" not in came
    finish(asked, tmp_path, producer)


@pytest.mark.parametrize("step", ["round", "fenced", "last"])
def test_a_command_that_wakes_when_another_has_long_done_its_work_changes_nothing(
    producer: Producer, tmp_path: Path, step: str
) -> None:
    asked, is_first = wanted_in(tmp_path, new_version(tmp_path)), True
    new = module_of(asked.new)

    def reached(at: str) -> None:
        nonlocal is_first
        if at == step and is_first:
            is_first = False
            upgrade(asked)
            producer.more(400)  # each user has some
            serve(new, tmp_path)

    with ExitStack() as stack, pytest.raises(errors.FencedError):
        Upgrading(asked, stack).run(reached)
    snapshot = Snapshots(asked.snapshots, "clicking").list()[0].id
    with pytest.raises(errors.UsageError, match="another command has brought the upgrade"):
        write_generation(find_app(new).plan(), str(asked.log), asked.snapshots, snapshot, 1)
    shutil.rmtree(tmp_path / f"state-of-{new.partition(':')[0]}")  # the state is restored from the log
    producer.more(20)
    serve(new, tmp_path, ends=True)
    check(asked.log, producer.clicks, "on")


def test_a_process_of_the_new_version_that_fails_once_and_never_comes_back_ends_the_command(
    producer: Producer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = wanted_in(tmp_path, new_version(tmp_path))
    there, away = Path(asked.snapshots), tmp_path / "away"
    monkeypatch.setattr(tasks, "_AGAIN_S", 0.0)

    def reached(step: str) -> None:
        if step == "ready":
            there.rename(away)
            with pytest.raises(errors.SnapshotError, match="there is no snapshot"):
                serve(module_of(asked.new), tmp_path)
            away.rename(there)

    said = r"\(1 failure\), the last one by: there is no snapshot.*run this command again"
    with ExitStack() as stack, pytest.raises(errors.WorkerLostError, match=said):
        Upgrading(asked, stack).run(reached)
    finish(asked, tmp_path, producer)


def test_a_state_that_does_not_stand_where_the_old_version_ended_is_never_used(
    producer: Producer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After each round but the last, the old version handles more."""
    asked, do, is_left_out = wanted_in(tmp_path, new_version(tmp_path)), Steps._rebuild, True

    def rebuild(self: Steps, made: Sequence[Manifest], name: str, ends: Ends) -> None:
        if not name.endswith("last"):
            do(self, made, name, ends)
            check_old_runs(producer, tmp_path)
        elif not is_left_out:
            do(self, made, name, ends)

    monkeypatch.setattr(Steps, "_rebuild", rebuild)
    with pytest.raises(
        errors.SnapshotMismatchError, match=r"The upgrade was given up. Start version .1. again"
    ):
        upgrade(asked)
    assert step_of(asked.log) == "given up"
    check_old_runs(producer, tmp_path)
    is_left_out = False
    finish(asked, tmp_path, producer)
