"""What ``tailrace run`` says when log, state, records or app are not as they have to be: in one line, with a
hint.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import apsw
import msgspec
import pytest

import tailrace as tr
from tailrace.core.declare.topic import OnError
from tailrace.core.records import Output
from tailrace.history.dead_letters.letters import dead_letters
from tailrace.history.reading.stretches import scan
from tailrace.history.replay.replaying import replay
from tailrace.history.replay.report import ReplayOptions
from tailrace.log.embedded import EmbeddedLog
from tailrace.log.embedded.database import DATABASE
from tailrace.runtime.preparing import prepare_log
from tailrace.runtime.worker import Worker, WorkerSettings
from tailrace.state import MemoryStore
from tailrace.state.folder import FORMAT
from tests.cli.commands import TO_THE_END, Ended, done, run
from tests.messages import Says
from tests.runtime import served
from tests.runtime.served import make_app
from tests.runtime.tallies import check_all, check_counts, ticks

APP = "tests.runtime.served:app"


class House:
    """A log and a state that a service has worked on."""

    def __init__(self, folder: Path) -> None:
        self.log, self.state = folder / "log", folder / "state"
        assert self.run("--create-topics").code == 0
        self.feed(ticks(10, 10))
        assert self.run().code == 0

    def feed(self, outputs: list[Output]) -> None:
        log = EmbeddedLog(self.log, create=False)
        log.append_all(outputs)
        log.close()

    def run(self, *arguments: object) -> Ended:
        where = ("--log", self.log, "--state", self.state, "--log-format", "json")
        return run("run", APP, *where, *TO_THE_END, *arguments)

    def refused(self, *arguments: object, code: int = 1) -> str:
        """The last line, which is one of the log."""
        ended = self.run(*arguments)
        assert ended.code == code, ended.err
        assert "Traceback" not in ended.err
        last = msgspec.json.decode(ended.err.splitlines()[-1])
        assert (last["level"], last["exit_code"]) == ("error", code)
        return str(last["message"])


@pytest.fixture
def house(tmp_path: Path, quiet_logs: None) -> House:
    return House(tmp_path)


def test_on_a_log_that_has_lost_its_end_the_state_is_restored_and_that_is_said(
    house: House, tmp_path: Path
) -> None:
    shutil.copytree(house.log, tmp_path / "before")
    house.feed(ticks(10, 10, 10))
    assert house.run().code == 0
    shutil.rmtree(house.log)
    (tmp_path / "before").rename(house.log)
    ended = house.run()
    assert ended.code == 0
    assert "stands after a commit that this log does not have" in ended.err
    log = EmbeddedLog(house.log, create=False)
    check_all(log, 10, 10)
    log.close()


def newer_log(house: House) -> None:
    connection = apsw.Connection(str(house.log / DATABASE))
    connection.execute("PRAGMA user_version = 99")
    connection.close()


def newer_state(house: House) -> None:
    for label in house.state.rglob("tailrace-state.json"):
        label.write_bytes(label.read_bytes().replace(b'"format": %d' % FORMAT, b'"format": 99'))


@pytest.mark.parametrize("make_newer", [newer_log, newer_state])
def test_what_a_newer_version_wrote_is_left_alone(
    house: House, make_newer: Callable[[House], None], says: Says
) -> None:
    make_newer(house)
    before = (house.log / DATABASE).read_bytes()
    says(house.refused())
    assert (house.log / DATABASE).read_bytes() == before


def test_other_inputs_are_refused_until_they_are_meant(
    house: House, monkeypatch: pytest.MonkeyPatch, says: Says
) -> None:
    monkeypatch.setattr(served, "app", make_app(extra_input=True))
    says(house.refused())
    says(house.refused("--create-topics"))
    assert house.run("--change-inputs").code == 0
    monkeypatch.setattr(served, "app", make_app())
    says(house.refused())


class Blob(msgspec.Struct):
    who: str
    at: int
    size: int
    text: str = ""


def blob_app(on_error: OnError = "stop") -> tr.App:
    app = tr.App("blobs", partitions=1, on_error=on_error)
    blobs = app.topic("blobs", Blob, key="who", event_time="at")
    large = app.topic("large", Blob, key="who")

    @app.actor
    class Blower(tr.Actor):
        text: str = ""

        @tr.process(blobs)
        def blown(self, event: Blob, ctx: tr.Context[str]) -> None:
            if event.size < 0:
                raise ValueError("a negative size " + "." * 2_000)
            if event.text == "keep":
                self.text = "x" * event.size
            else:
                ctx.emit(large, Blob(event.who, event.at, 0, "x" * event.size))

    return app


def blobs(*events: Blob) -> list[Output]:
    return [Output("blobs", one.who.encode(), msgspec.json.encode(one), one.at) for one in events]


@pytest.fixture
def blown(tmp_path: Path, quiet_logs: None, monkeypatch: pytest.MonkeyPatch) -> House:
    monkeypatch.setattr(served, "app", blob_app())
    house = object.__new__(House)
    house.log, house.state = tmp_path / "log", tmp_path / "state"
    assert house.run("--create-topics").code == 0
    return house


def test_an_event_larger_than_the_limit_ends_the_service_and_is_taken_with_another_limit(
    blown: House,
) -> None:
    blown.feed(blobs(Blob("a", 1, 10), Blob("k", 2, 2_000_000), Blob("a", 3, 10)))
    ended = blown.run()
    assert ended.code == 1
    message = msgspec.json.decode(ended.err.splitlines()[-1])["message"]
    assert (
        "RecordTooLargeError: a record of 2000038 bytes is over the limit of 1000000 (topic 'large'"
        in message
    )
    log = EmbeddedLog(blown.log, create=False)
    assert log.end_offset("large", 0) == 0, "nothing of its commit is there"
    assert blown.run("--max-record-bytes", 3_000_000).code == 0
    assert log.end_offset("large", 0) == 3
    log.close()


def test_state_that_no_record_can_hold_fails_its_event_though_only_commits_measure_it(
    blown: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(served, "app", blob_app("dead-letter"))
    kept = [Blob("a", 1, 1_000, "keep"), Blob("k", 2, 40 << 20, "keep"), Blob("a", 3, 40 << 20, "keep")]
    blown.feed(blobs(*kept, Blob("a", 4, 2_000, "keep"), Blob("k", 5, 10)))
    ended = blown.run("--allow-dead-letters")
    assert ended.code == 0, ended.err
    assert "measures each event" in ended.err
    with closing(EmbeddedLog(blown.log, create=False)) as log:
        assert log.end_offset("large", 0) == 1
        letters = list(dead_letters(log, "blobs"))
    assert [(one.origin_offset, one.reason) for one in letters] == [
        (1, "handler-failed"),
        (2, "handler-failed"),
    ]
    assert all("ListState" in one.error for one in letters)
    assert blown.run().code == 0


def test_many_failures_with_long_texts_are_several_commits(
    blown: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(served, "app", blob_app("dead-letter"))
    count = 8_000
    blown.feed(blobs(*(Blob("a", number + 1, -1) for number in range(count))))
    assert blown.run("--commit-interval", "1h", "--allow-dead-letters").code == 0
    with closing(EmbeddedLog(blown.log, create=False)) as log:
        taped = [len(one.value or b"") for one in scan(log, "blobs.tape", 0)]
        letters = list(dead_letters(log, "blobs"))
        report = replay(
            blob_app("dead-letter").plan(), log, ReplayOptions(compare=True, any_environment=True)
        )
    assert max(taped) < 16 << 20, "Kafka takes 32 MiB"
    assert sum(taped) > 16 << 20
    assert [one.origin_offset for one in letters] == [*range(count)]
    assert {len(one.error) > 2_000 for one in letters} == {True, False}
    assert all(one.error.endswith("....") and "a negative size" in one.error for one in letters)
    assert not report.differences.shown


def test_state_and_tape_may_be_larger_than_an_event(blown: House, monkeypatch: pytest.MonkeyPatch) -> None:
    blown.feed(blobs(Blob("a", 1, 2_000_000, "keep")))
    assert blown.run().code == 0
    monkeypatch.setattr(served, "app", blob_app("dead-letter"))
    blown.feed(blobs(*(Blob("a", number, -1) for number in range(2, 1_002))))
    assert blown.run("--commit-interval", "1h", "--allow-dead-letters").code == 0
    shutil.rmtree(blown.state)
    assert blown.run().code == 0
    log = EmbeddedLog(blown.log, create=False)
    assert log.end_offset("blobs.dead-letters", 0) == 1_000
    for topic in ("blobs.changelog", "blobs.tape"):
        assert max(len(one.value or b"") for one in scan(log, topic, 0)) > 1 << 20
    log.close()


def test_a_copy_of_an_app_that_is_refused_leaves_no_topics(tmp_path: Path) -> None:
    shapes, log = "services.shapes:app", tmp_path / "log"
    done("topics", "apply", "--app", shapes, "--log", log)
    before = done("log", "list", "--log", log).out
    where = ("--log", log, "--state", tmp_path / "state", "--end-of-input", "--after-end")
    ended = run("run", shapes, "--as", "shapes2", *where)
    assert ended.code != 0
    assert "is another name of 'shapes'" in ended.err
    assert done("log", "list", "--log", log).out == before


def test_a_clock_that_cannot_be_right_is_refused_with_what_to_do(tmp_path: Path, quiet_logs: None) -> None:
    plan, log = served.app.plan(), EmbeddedLog(tmp_path / "log")
    prepare_log(log, plan, create_declared=True)
    log.append_all(ticks(4, 2))
    stores = [MemoryStore() for _ in range(plan.partitions)]
    before_ms = time.time_ns() // 1_000_000 - 10 * 86_400_000
    settings = WorkerSettings(bounded=True)
    worker = Worker(plan, log, range(4), stores.__getitem__, settings=settings, clock=lambda: before_ms)
    worker.start()
    while worker.turn():
        pass
    worker.leave()
    log.append_all(ticks(4, 1, 2))
    command = ("run", APP, "--log", tmp_path / "log", "--state", tmp_path / "state", "--until-end")
    ended = run(*command)
    assert ended.code == 1
    assert "10d after the last reading of task" in ended.err
    assert "and no input has a record within a day of it" in ended.err
    assert "start with --accept-clock" in ended.err
    done(*command, "--accept-clock")
    check_counts(log, 4, 3)
    log.close()
