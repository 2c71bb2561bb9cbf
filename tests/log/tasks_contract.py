"""What the owners of tasks can rely on, on any log. A log's own tests inherit ``TasksContract`` and give it a fixture ``open_log``."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from typing import Protocol, TypeAlias

import pytest

from tailrace.core.errors import FencedError, TaskOwnedError
from tailrace.log import Log, TopicSettings
from tailrace.log.tasks import AppTasks, TaskLog, Tasks

APP = AppTasks("a", "a.tape", 4)
PATIENCE_S = 30.0


class OwnedLog(Log, TaskLog, Protocol):
    """A log that knows owners."""


OpenLog: TypeAlias = Callable[[], OwnedLog]
"""Opens the log of a test once more, as another process would."""


class Process:
    """A process of the app, by what its log tells it."""

    def __init__(self, log: OwnedLog) -> None:
        self.given: list[int] = []
        self.taken: list[int] = []
        self.tasks: Tasks = log.join(APP, self._on_assigned, self._on_revoked)

    def _on_assigned(self, numbers: Collection[int]) -> None:
        self.given += numbers

    def _on_revoked(self, numbers: Collection[int], _may_commit: bool) -> None:
        self.taken += numbers

    def until(self, condition: Callable[[], bool], *others: Process) -> None:
        deadline_s = time.monotonic() + PATIENCE_S
        while not condition():
            assert time.monotonic() < deadline_s
            for one in (self, *others):
                one.tasks.look()
            time.sleep(0.01)


class TasksContract:
    @pytest.fixture
    def process(self, open_log: OpenLog) -> Process:
        """A process that owns all tasks."""
        log = open_log()
        log.create_topic(APP.tape, TopicSettings(APP.count))
        process = Process(log)
        assert not process.tasks.joined
        assert process.given == []
        process.until(lambda: len(process.given) == APP.count)
        return process

    def test_tasks_are_assigned_when_a_process_looks(self, process: Process) -> None:
        assert process.tasks.joined
        assert sorted(process.given) == sorted(process.tasks.owned) == [0, 1, 2, 3]
        process.tasks.look()
        process.tasks.check()
        assert len(process.given) == APP.count
        assert process.taken == []
        process.tasks.close()

    def test_a_task_has_one_owner_and_other_processes_can_see_it(
        self, process: Process, open_log: OpenLog
    ) -> None:
        other = open_log()
        assert other.owner(APP.app, 0) is not None
        assert other.owner("another", 0) is None
        if not other.moves_tasks:
            with pytest.raises(TaskOwnedError):
                Process(other)
        else:
            second = Process(other)
            second.until(lambda: len(process.tasks.owned) == len(second.tasks.owned) == 2, process)
            assert {*process.tasks.owned, *second.tasks.owned} == {0, 1, 2, 3}
            assert sorted(process.taken) == sorted(second.given)
            second.tasks.close()
        process.tasks.close()

    def test_tasks_are_free_when_their_owner_leaves_and_it_does_not_own_them_any_more(
        self, process: Process, open_log: OpenLog
    ) -> None:
        process.tasks.close()
        with pytest.raises(FencedError):
            process.tasks.check()
        second = Process(open_log())
        second.until(lambda: len(second.given) == APP.count)
        second.tasks.close()
        assert open_log().owner(APP.app, 0) is None

    def test_an_app_with_a_live_process_is_not_reserved(self, process: Process, open_log: OpenLog) -> None:
        with pytest.raises(TaskOwnedError), open_log().reserve(APP.app, APP.numbers):
            pass
        process.tasks.close()
        with open_log().reserve(APP.app, APP.numbers):
            pass
        with open_log().reserve(APP.app, APP.numbers):
            pass
