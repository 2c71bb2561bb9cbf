"""Topics that a rebuild has written say what the service said; who lives on them is held no longer than the
rebuild takes.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest

import tailrace as tr
from tailrace.core.durations import NO_WATERMARK
from tailrace.core.engine.task import TaskSettings
from tailrace.history.reading.app_topics import prepare_topics
from tailrace.history.rebuilding.driver import rebuild
from tailrace.history.rebuilding.engines import LocalEngine
from tailrace.history.retirement import publishers_of, retire, retire_rebuilds
from tailrace.log.embedded import EmbeddedLog
from tailrace.log.embedded.writer import EmbeddedWriter
from tailrace.processes.app_loading import find_app
from tailrace.processes.environment import timezones_version
from tailrace.runtime.partition import Partition
from tailrace.runtime.preparing import prepare_log
from tailrace.runtime.slices import PartitionSettings
from tailrace.runtime.worker import Worker, WorkerSettings
from tailrace.state import MemoryStore
from tests.history.rebuilding import lived, shops
from tests.history.rebuilding.lived import done, request

SHOPS = "tests.history.rebuilding.shops:app"
IDLE_MS = 60_000


def follower(topic: str) -> tr.App:
    app = tr.App("follower", partitions=2)
    totals = app.topic(topic, shops.Total, key="shop", watermark="upstream")

    @app.actor
    class Follower(tr.Actor):
        seen: int = 0

        @tr.process(totals)
        def total(self, event: shops.Total, ctx: tr.Context[str]) -> None:
            self.seen += 1

    return app


def followed(folder: Path, topic: str, *, lives_on: bool = False) -> tuple[int, list[bool]]:
    """Where somebody stands who follows a topic to its end, and whether the topic is idle for it.

    ``lives_on``: it is a service, and begins as one.
    """
    log = EmbeddedLog(folder / "log")
    try:
        plan = follower(topic).plan()
        prepare_topics(log, plan)
        if lives_on:
            retire_rebuilds(plan, log)
        partition = Partition(plan, 0, log, MemoryStore(), lambda: 1_000, lineage=b"")
        partition.restore()
        while partition.poll():
            pass
        found = partition.task.watermark, list(partition.task.watermarks.idle)
        partition.close()
        return found
    finally:
        log.close()


def said(folder: Path, topic: str) -> list[list[tuple[int, int, int | None]]]:
    """What was published for a topic, without what says only that there is a publisher."""
    return [[one for one in some if one[2] != NO_WATERMARK] for some in lived.published(folder, topic)]


def live_until_idle(folder: Path, rounds: int = 3, commit_interval_ms: int = 0) -> None:
    """A service that takes some sales, falls idle and is woken again, and is idle in the end."""
    plan = find_app(SHOPS).plan()
    log, now_ms = EmbeddedLog(folder / "log"), 1_000_000
    prepare_log(log, plan, create_declared=True)
    stores = [MemoryStore(), MemoryStore()]
    task = TaskSettings(timezones=timezones_version())
    settings = WorkerSettings(partition=PartitionSettings(commit_interval_ms=commit_interval_ms, task=task))
    worker = Worker(
        plan, log, range(2), lambda number: stores[number], settings=settings, clock=lambda: now_ms
    )
    worker.start()
    for number in range(rounds):
        log.append_all(shops.sales(50, first=50 * number))
        for _ in range(3):
            while worker.turn():
                pass
            now_ms += IDLE_MS
    worker.leave()
    log.close()


@pytest.mark.parametrize("order", ["tape", "canonical"])
def test_a_service_that_lives_on_a_rebuilt_topic_is_left_at_its_last_watermark(
    tmp_path: Path, order: Any, caplog: pytest.LogCaptureFixture
) -> None:
    lived.append(tmp_path, shops.sales(300), {"sales": 2})
    lived.live_on(tmp_path, SHOPS)
    done(tmp_path, SHOPS, outputs="topic:-again", order=order)
    last = {task: mark for _, task, mark in said(tmp_path, "totals-again")[0] if mark is not None}
    assert set(last) == {0, 1}
    held = followed(tmp_path, "totals-again")
    assert held == (min(last.values()), [False])
    if order == "tape":
        assert held == followed(tmp_path, "totals")
    with caplog.at_level(logging.INFO, "tailrace.service"):
        for _ in range(2):
            assert followed(tmp_path, "totals-again", lives_on=True) == (max(last.values()), [True])
    (one,) = [record for record in caplog.records if "was retired" in record.message]
    assert "has written totals-again and will not come again" in one.message


def test_a_service_retires_no_rebuild_of_topics_that_are_not_its_own(tmp_path: Path) -> None:
    lived.append(tmp_path, shops.sales(300), {"sales": 2})
    lived.live_on(tmp_path, SHOPS)
    done(tmp_path, SHOPS, outputs="topic:-again")
    followed(tmp_path, "totals", lives_on=True)
    assert followed(tmp_path, "totals-again")[1] == [False]


@pytest.mark.parametrize("commit_interval_ms", [0, IDLE_MS])
def test_along_the_tape_topics_say_of_idle_tasks_what_the_service_said(
    tmp_path: Path, commit_interval_ms: int
) -> None:
    """With the longer interval, a commit has both records and idleness: the watermark comes before None."""
    live_until_idle(tmp_path, commit_interval_ms=commit_interval_ms)
    done(tmp_path, SHOPS, outputs="topic:-again")
    live = said(tmp_path, "totals")
    assert said(tmp_path, "totals-again") == live
    assert sum(mark is None for some in live for _, _, mark in some) >= 6
    assert followed(tmp_path, "totals-again") == followed(tmp_path, "totals")


def test_a_task_without_a_history_holds_nobody_in_the_end(tmp_path: Path) -> None:
    sales = [one for one in shops.sales(300) if one.key == b"shop-1"]
    lived.append(tmp_path, sales, {"sales": 2})
    lived.live_on(tmp_path, SHOPS)
    done(tmp_path, SHOPS, outputs="topic:-again")
    assert followed(tmp_path, "totals-again") == (NO_WATERMARK, [False])
    assert followed(tmp_path, "totals-again", lives_on=True)[0] > 3_000


@pytest.mark.parametrize("commits", [-1, -2])
def test_a_driver_that_dies_before_it_has_noted_that_it_is_finished_goes_on_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, commits: int
) -> None:
    class Killed(BaseException):
        pass

    def killing(most: int) -> int:
        """Let so many commits through; how many there were."""
        count = 0

        def counted(self: EmbeddedWriter, *arguments: Any) -> Any:
            nonlocal count
            if count == most:
                raise Killed
            count += 1
            return commit(self, *arguments)

        monkeypatch.setattr(EmbeddedWriter, "commit", counted)
        try:
            rebuild(request(tmp_path, SHOPS, outputs=f"topic:-{most}"), LocalEngine(1))
        except Killed:
            pass
        finally:
            monkeypatch.setattr(EmbeddedWriter, "commit", commit)
        return count

    commit = EmbeddedWriter.commit
    lived.append(tmp_path, shops.sales(100), {"sales": 2})
    lived.live_on(tmp_path, SHOPS)
    whole = killing(10**6)
    most = whole + commits
    assert killing(most) == most
    assert followed(tmp_path, f"totals-{most}", lives_on=True)[1] == [False], "it may go on"
    report = rebuild(request(tmp_path, SHOPS, outputs=f"topic:-{most}"), LocalEngine(1))
    assert report.resumed
    for suffix in (most, 10**6):
        assert followed(tmp_path, f"totals-{suffix}", lives_on=True)[1] == [True]
    assert said(tmp_path, f"totals-{most}") == said(tmp_path, f"totals-{10**6}")


def test_a_rebuild_that_was_given_up_is_retired_by_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Killed(BaseException):
        pass

    def killed(self: EmbeddedWriter, *arguments: Any) -> Any:
        if (
            arguments[1].startswith("rebuild-")
            and arguments[2:]
            and arguments[0]
            and max(arguments[0].values()) > 1
        ):
            raise Killed
        return commit(self, *arguments)

    commit = EmbeddedWriter.commit
    lived.append(tmp_path, shops.sales(300), {"sales": 2})
    lived.live_on(tmp_path, SHOPS)
    with monkeypatch.context() as patched, pytest.raises(Killed):
        patched.setattr(EmbeddedWriter, "commit", killed)
        rebuild(request(tmp_path, SHOPS, outputs="topic:-again"), LocalEngine(1))
    assert followed(tmp_path, "totals-again")[1] == [False]
    log = EmbeddedLog(tmp_path / "log", create=False)
    (name,) = [name for name in publishers_of(log) if name.startswith("rebuild-")]
    assert retire(log, name).topics[0].topic == "totals-again"
    log.close()
    assert followed(tmp_path, "totals-again")[1] == [True]
    report = rebuild(request(tmp_path, SHOPS, outputs="topic:-again"), LocalEngine(1))
    assert report.resumed
    assert followed(tmp_path, "totals-again") == followed(tmp_path, "totals")
