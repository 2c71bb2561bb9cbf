"""The harness: a service's whole life in a test, without a server and without waiting.

    with Harness(app) as h:
        h.send(readings, Reading("boiler", 0, 212.0), Reading("boiler", 4_000, 214.0))
        assert h.advance_watermark(10_000).to(averages) == [Average("boiler", 5_000, 100.6, 2)]
        h.crash()
        assert h.state(Windows, "boiler") is not None
        h.replay()

Only the log is a substitute; it is in memory. Events are encoded into it and routed by their keys, every
partition is driven as by a worker, and outputs are appended and committed with state, offsets and tape. Tests
read the results where a consumer, or a restart, would find them. Time stands still unless a test moves it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import datetime
from itertools import chain
from typing import Literal, Unpack

from tailrace.core.declare.app import App
from tailrace.core.declare.plan import Plan
from tailrace.core.engine.task import TaskSettings
from tailrace.history.reading.app_topics import prepare_topics
from tailrace.testing import faults
from tailrace.testing.driver import Driver
from tailrace.testing.exploring.exploration import ExploreOptions, explore_or_raise
from tailrace.testing.exploring.feed import feed_of, feed_of_log
from tailrace.testing.exploring.report import ExploreReport
from tailrace.testing.memory_log import MemoryLog
from tailrace.testing.service import Service, StateKind
from tailrace.testing.snapshot import HarnessSnapshot
from tailrace.testing.view import View


class Harness(Driver, View):
    """Runs an app in a test: the engine, the commits and the state of a live service, on a log in memory.

    Use it as a context manager, or call ``close``. Instants are milliseconds since 1970 or aware datetimes;
    an instant of 2**61 ms or more from 1970 raises UsageError.

    - ``partitions``: number of tasks (default: the app's).
    - ``now_ms``: the initial time of the clock (default: 0). Only the test moves the clock.
    - ``checked``: detect state that is changed outside of its own handlers (StateLeakError), and events whose
      readers could not decode them (EmittedTypeError). It changes no result.
    - ``reload``: decode every touched instance again after each handler. It changes no result.
    - ``slice_size``: number of records that a partition takes at once.
    - ``commit_every``: by default every call commits at its end, and again until all messages are handled. A
      number adds a commit after that many records; ``"manual"`` commits only in ``commit``.
    - ``state``: ``"memory"`` is lost in a crash and restored from the changelog; ``"rocksdb"`` is in a
      temporary folder.
    - ``settings``: limits of a task (cache, timers in memory, firings at once). They change no result.
    - ``start``: a ``snapshot`` to start from, of this app or of an earlier version; see ``restart``. The
      clock then has the time of the snapshot, unless ``now_ms`` is given.

    If a handler fails and the app stops on failures, the call raises its HandlerError. The service is then
    down, everything since its last commit is undone, and the next call starts it again.

    Event time stands still in a partition without records, as in a live service. A topic that the app both
    writes and reads, and the topic behind ``repartition=True``, follow the lowest watermark that the app's
    tasks publish, so one such partition holds their readers back in all partitions. Move time as it would
    move live: with ``advance_watermark`` (the producers publish one), ``advance_clock_by("61s")`` or
    ``fall_idle`` (inputs are idle), ``end_of_input``; or run with ``partitions=1``.
    """

    def __init__(
        self,
        app: App,
        *,
        partitions: int | None = None,
        now_ms: int | datetime | None = None,
        checked: bool = True,
        reload: bool = False,
        slice_size: int = 1_000,
        commit_every: int | Literal["manual"] | None = None,
        state: StateKind = "memory",
        settings: TaskSettings | None = None,
        start: HarnessSnapshot | None = None,
    ) -> None:
        Driver.__init__(
            self,
            now_ms=(0 if start is None else start.now_ms) if now_ms is None else now_ms,
            checked=checked,
            reload=reload,
            slice_size=slice_size,
            commit_every=commit_every,
            state=state,
            settings=settings,
        )
        plan = app.plan() if partitions is None else replace(app.plan(), partitions=partitions)
        log, service = self._begun(plan, start)
        View.__init__(self, plan, log, service)
        self._drive([service], [[service]])

    def explore(
        self, history: Iterable[faults.Item] | None = None, **options: Unpack[ExploreOptions]
    ) -> ExploreReport:
        """Run a history of events under many schedules, and compare state and outputs, key by key.

        A schedule determines the order of arrival, the slow tasks, and the times of commits and crashes.
        ``history`` is a list of (topic, event) pairs and ``At`` values (default: the events sent to this
        harness so far). Every run begins with an empty state and ends with the end of input. The harness
        itself does not change. ``ExploreOptions`` lists the options.

        Raises:
            ScheduleDependentError: A result depends on the schedule, and the app does not declare that.
        """
        if history is None:
            feed = feed_of_log(self.plan, self.log)
        else:
            sent = (
                self._inputs.records(topic, (event,), self._timestamp(at))
                for topic, event, at in map(faults.sent, history)
            )
            feed = feed_of(self.plan, chain.from_iterable(sent))
        return explore_or_raise(self.plan, feed, self._now_ms, **options)

    def snapshot(self) -> HarnessSnapshot:
        """Take a snapshot of state, timers and undelivered messages. Uncommitted work is committed first.

        ``Harness(app, start=...)`` and ``restart`` start from it, any number of times, also after this
        harness is closed. Needs pyarrow (``tailrace[parquet]``).

        Raises:
            SnapshotMismatchError: There is no commit yet.
        """
        with self._driving():
            self._service.commit()
        return HarnessSnapshot(self.plan, self.log, self._now_ms)

    def restart(self, start: HarnessSnapshot) -> None:
        """Start again from a snapshot, as ``tailrace run --from-snapshot`` does, and read on from its
        positions.

        ``log`` is replaced by a copy with all events from outside, including those sent after the snapshot,
        which the next call reads again, and with the app's own records up to the snapshot. ``emitted`` and
        ``dead_letters`` start empty. Watermarks and idleness that a test set after the snapshot are not in
        the log.

        Raises:
            SnapshotMismatchError: The snapshot does not match the app, or some records were not yet
            repartitioned.
            IncompatibleStateError: The state cannot be read as the app declares it.
        """
        self.recover()
        log, service = self._begun(self.plan, start)
        self._service.close()
        self.log, self._service, self._letters_read = log, service, 0
        self._drive([service], [[service]])

    @property
    def _read_by_test(self) -> Sequence[View]:
        return [self]

    def _begun(self, plan: Plan, start: HarnessSnapshot | None) -> tuple[MemoryLog, Service]:
        """A log, and a service on it that is up."""
        log = MemoryLog() if start is None else start.fork()
        prepare_topics(log, plan, create_declared=True)
        service = Service(plan, log, self._read_clock, self._options, on_visible=self._visible.extend)
        try:
            if start is not None:
                service.begin(start)
            service.start()
        except BaseException:
            service.close()
            raise
        return log, service
