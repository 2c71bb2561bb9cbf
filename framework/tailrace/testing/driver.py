"""Drives services in a test: input, time, crashes and the end, for one app or for several on one log.

Every method has its effect and then runs all of its consequences: services take records and commit until no
app has anything left to do. If the test commits itself (``commit_every="manual"``), they run as far as
possible without a commit.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Generator, Iterable, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime, timedelta
from itertools import cycle, groupby
from types import TracebackType
from typing import Any, Literal, Self, TypeVar

from tailrace.core.declare.topic import Table, Topic
from tailrace.core.durations import duration, to_ms
from tailrace.core.engine.task import TaskSettings
from tailrace.core.errors import UsageError
from tailrace.core.records import Output
from tailrace.history.replay.replaying import seldom_collected
from tailrace.processes.network_guard import network_refused
from tailrace.runtime.progress import last_phase
from tailrace.testing import faults
from tailrace.testing.emitted import Emitted, Out
from tailrace.testing.inputs import Inputs
from tailrace.testing.memory_log import MemoryLog
from tailrace.testing.service import Service, ServiceOptions, StateKind
from tailrace.testing.view import View

E = TypeVar("E")
K = TypeVar("K")


class Driver(ABC):
    """Drives services over one log; a context manager. It has no services before ``_drive``."""

    log: MemoryLog
    """The log, for operations that are not offered here."""

    def __init__(
        self,
        *,
        now_ms: int | datetime,
        checked: bool,
        reload: bool,
        slice_size: int,
        commit_every: int | Literal["manual"] | None,
        state: StateKind,
        settings: TaskSettings | None,
    ) -> None:
        if slice_size < 1 or (isinstance(commit_every, int) and commit_every < 1):
            raise UsageError("slice_size and commit_every are numbers of records", hint="Give 1 or more.")
        self._options = ServiceOptions(
            replace(settings or TaskSettings(), reload=reload, checked=checked),
            slice_size,
            commit_every if isinstance(commit_every, int) else None,
            state,
        )
        self._now_ms = to_ms(now_ms)
        self._manual = commit_every == "manual"
        self._services: Sequence[Service] = ()
        self._inputs = Inputs(())
        self._end_order: Sequence[Collection[Service]] = ()
        self._visible: list[Out] = []
        self._reported = 0
        self._closed = False

    def _drive(self, services: Sequence[Service], end_order: Sequence[Collection[Service]]) -> None:
        """Drive these from now on. ``end_order``: groups whose inputs end together, first to end first."""
        self._services, self._end_order = services, end_order
        self._inputs = Inputs(services)

    @property
    def now(self) -> int:
        """The time of the clock, in milliseconds since 1970."""
        return self._now_ms

    @property
    def reload(self) -> bool:
        """Whether every touched instance is decoded again after each handler."""
        return self._options.task.reload

    # --- input

    def send(self, topic: Topic[E, Any], *events: E, timestamp_ms: int | datetime | None = None) -> Emitted:
        """Append events to a topic, handle them and all of their consequences, and return the emitted events.

        The records have the timestamp ``timestamp_ms`` (default: the clock's time). An event without a key is
        appended to the log without one.

        Raises:
            UsageError: No handler takes the topic, or an event is not of its type.
            HandlerError: A handler failed, and the app stops on failures.
        """
        records = self._inputs.records(topic, events, self._timestamp(timestamp_ms))
        with self._driving():
            self.log.append_all(records)
            self._settle()
        return self._news()

    def delete(self, table: Table[Any, K], *keys: K, timestamp_ms: int | datetime | None = None) -> Emitted:
        """Append deletions of keys to a table, as a producer from outside; otherwise like ``send``."""
        self._inputs.of(table)
        at_ms, encode = self._timestamp(timestamp_ms), table.key_codec.encode
        with self._driving():
            self.log.append_all([Output(table.name, encode(key), None, at_ms) for key in keys])
            self._settle()
        return self._news()

    def send_raw(
        self,
        topic: Topic[Any, Any],
        value: bytes | None,
        key: bytes | None = None,
        timestamp_ms: int | datetime | None = None,
        *,
        partition: int | None = None,
    ) -> Emitted:
        """Append a record of raw bytes, such as one that cannot be decoded; otherwise like ``send``.

        The key selects the partition. With ``partition``, it is appended there, as by a producer with another
        partitioner.
        """
        self._inputs.of(topic)
        at_ms = self._timestamp(timestamp_ms)
        with self._driving():
            self.log.append(topic.name, key, value, at_ms, partition=partition)
            self._settle()
        return self._news()

    # --- time

    def advance_watermark(self, to: int | datetime, *, topic: Topic[Any, Any] | None = None) -> Emitted:
        """Raise the watermark of every input from outside, in every partition, as if its producers had
        published it.

        With ``topic``, only of that input. Topics that the app both writes and reads follow, commit by
        commit; so do topics that one app of a system writes and another reads with ``watermark="upstream"``.
        Returns the emitted events, including those of timers that became due. A watermark never goes back: a
        lower value has no effect.

        Raises:
            UsageError: No input from outside has a watermark, or ``topic`` is not such an input.
        """
        to_watermark_ms = to_ms(to)
        raised = self._inputs.all_from_outside() if topic is None else self._inputs.from_outside(topic)
        with self._driving():
            self._settle()
            self._read_clocks()
            for service, plan, _ in raised:
                service.raise_watermark(plan.index, to_watermark_ms)
            self._settle()
        return self._news()

    def advance_clock(self, to: int | datetime) -> Emitted:
        """Set the clock. Due processing-time timers fire and due inputs become idle. Returns the emitted
        events.

        An input from outside becomes idle as in a live service: when no record has come for its
        ``idle_after`` (default: 60 s). A topic of the app whose writers are all idle then no longer holds its
        readers back. The clock may be set back, as real clocks sometimes are; handlers never see it go back.
        """
        self._now_ms = to_ms(to)
        with self._driving():
            self._settle()
        return self._news()

    def advance_clock_by(self, time: str | int | timedelta) -> Emitted:
        """Advance the clock by milliseconds or a duration such as ``"1s"``; see ``advance_clock``."""
        return self.advance_clock(self._now_ms + duration(time))

    def fall_idle(self, topic: Topic[Any, Any]) -> Emitted:
        """Make an input idle now, in every partition: it holds no actor's watermark back until it wakes.

        It wakes with its next record, or, for a topic that the app writes itself, with the next watermark
        that the tasks publish. It stays idle in a crash, in which no time passes. Records sent while the
        service is down wake it before any other input is read.
        """
        found = self._inputs.of(topic)
        with self._driving():
            self._settle()
            self._read_clocks()
            for service, plan, _ in found:
                service.fall_idle(plan.index)
            self._settle()
        return self._news()

    def end_of_input(self) -> Emitted:
        """End all inputs for good, as ``tailrace run --end-of-input`` does, and return the emitted events.

        Every event-time timer fires in order, also those that are set meanwhile. Processing-time timers stay
        pending, and so do timers of handlers declared with ``unless_ended`` that are later than the last other
        one. It commits, whatever ``commit_every`` is. Afterwards no events can be sent.

        Raises:
            TimerLoopError: Timer handlers still set timers after event time has risen 1,000 times.
        """
        with self._driving():
            self._commit_until_quiet()
            self._read_clocks()
            for services in self._end_order:
                self._end(services)
            self._inputs.ended = True
        return self._news()

    def run(self, items: Iterable[faults.Item]) -> Emitted:
        """Take a list of events and faults, one after the other, and return all events that became visible.

        Unlike ``send``, it commits only at COMMIT, RELOAD, REBALANCE and END, by ``commit_every``, and at the
        end of the list unless commits are manual. So a CRASH loses all work since the last commit, as in a
        live service.
        """
        start, manual = self._reported, self._manual
        self._manual = True
        try:
            for topic, group in groupby(items, _topic_of):
                if topic is not None:
                    self.send(topic, *(item[1] for item in group if isinstance(item, tuple)))
                    continue
                for item in group:
                    self._do(item)
        finally:
            self._manual = manual
        with self._driving():
            self._settle()
        self._reported = start
        return self._news()

    def _do(self, item: faults.Item) -> None:
        match item:
            case faults.At(timestamp_ms, topic, event):
                self.send(topic, event, timestamp_ms=timestamp_ms)
            case faults.Clock(now_ms):
                self.advance_clock(now_ms)
            case faults.Watermark(watermark_ms, topic):
                self.advance_watermark(watermark_ms, topic=topic)
            case faults.Idle(topic):
                self.fall_idle(topic)
            case faults.CRASH:
                self.crash()
            case faults.COMMIT:
                self.commit()
            case faults.RELOAD:
                self._restart(keep_state=True)
            case faults.REBALANCE:
                self._restart(keep_state=False)
            case faults.END:
                self.end_of_input()
            case _:
                raise UsageError(
                    f"{item!r} is not an item of a run",
                    hint="Give (topic, event) pairs, and faults from tailrace.testing.",
                )

    def commit(self) -> Emitted:
        """Take all available records, commit, and return the events that became visible. For
        ``commit_every="manual"``.

        Messages that become visible with this commit are handled by the next call.
        """
        with self._driving():
            for one in self._running:
                one.take_all()
            for one in self._running:
                one.commit()
        return self._news()

    def crash(self) -> None:
        """Kill the service, or all services of a system. Uncommitted work is lost. The next call starts it
        again.

        An error of a service that a call raises has the same effect.
        """
        for one in self._services:
            one.kill()

    def recover(self) -> None:
        """Start services that are down, and restore their partitions. Every call does so if necessary."""
        self._start(self._running)

    def close(self) -> None:
        """Release the log, the state and its temporary folders. May be called more than once."""
        if not self._closed:
            self._closed = True
            for one in self._services:
                one.close()

    @property
    def closed(self) -> bool:
        """Whether it has been closed."""
        return self._closed

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if error is None:
                self.check()
        finally:
            self.close()

    def check(self) -> None:
        """Raise AssertionError if an app has dead letters that the test has not read. The end of the ``with`` block calls it."""
        for one in self._read_by_test:
            if not self._closed:
                one.check_dead_letters()

    @property
    @abstractmethod
    def _read_by_test(self) -> Sequence[View]:
        """The results of each service."""

    @property
    def _running(self) -> Sequence[Service]:
        """The services that are up, or start again with the next call."""
        return self._services

    def _start(self, services: Sequence[Service]) -> None:
        if self._closed:
            raise UsageError(
                f"the {type(self).__name__.lower()} is closed", hint="Use it inside of its with block."
            )
        for one in services:
            if not one.up:
                with self._killing():
                    one.start()

    def _read_clock(self) -> int:
        return self._now_ms

    def _read_clocks(self) -> None:
        for one in self._running:
            one.read_clock()

    def _timestamp(self, at: int | datetime | None) -> int:
        return self._now_ms if at is None else to_ms(at)

    def _settle(self) -> None:
        """Let everything happen that can: with commits, or up to where one would be needed."""
        if self._manual:
            for one in self._running:
                one.take_all()
        else:
            self._commit_until_quiet()

    def _commit_until_quiet(self) -> None:
        """Take and commit, app after app, until nothing moves: one may wait for what another commits."""
        running, quiet = self._running, 0
        for one in cycle(running):
            # One that has committed is quiet now, and all others are asked once more.
            quiet = 1 if one.commit_until_quiet() else quiet + 1
            if quiet == len(running):
                return

    def _end(self, services: Collection[Service]) -> None:
        """End the inputs of services, level by level."""
        for phase in range(1, max(last_phase(one.plan) for one in services) + 1):
            for service in services:
                service.end_input(phase)
            self._commit_until_quiet()

    def _restart(self, *, keep_state: bool) -> None:
        with self._driving():
            for one in self._running:
                one.take_all()
            for one in self._running:
                one.stop(keep_state=keep_state)
            for one in self._running:
                one.start()

    def _news(self) -> Emitted:
        news = Emitted(self._visible[self._reported :])
        self._reported = len(self._visible)
        return news

    @contextmanager
    def _driving(self) -> Generator[None]:
        """Drives the services: they are up before, and down if anything fails."""
        self.recover()
        with self._killing(), network_refused(), seldom_collected():
            yield

    @contextmanager
    def _killing(self) -> Generator[None]:
        try:
            yield
        except BaseException:
            for one in self._services:
                one.kill()
            raise


def _topic_of(item: faults.Item) -> Topic[Any, Any] | None:
    """The topic of an event, by which neighbours are sent together; None for anything else."""
    return item[0] if isinstance(item, tuple) and len(item) == 2 else None
