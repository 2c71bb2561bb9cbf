"""The harness: a service's whole life in a test, without a server and without waiting.

    with Harness(app) as h:
        h.send(readings, Reading("boiler", 0, 212.0), Reading("boiler", 4_000, 214.0))
        assert h.advance_watermark(10_000).to(averages) == [Average("boiler", 5_000, 100.6, 2)]
        h.crash()
        assert h.state(Windows, "boiler") is not None
        h.replay()

Nothing in it is a stand-in but the log, which is in memory: events are encoded into it and routed by their keys, every
partition is driven as a worker drives it, outputs are appended and committed with state, offsets and tape, and what is
shown is what a consumer, or a restart, would find. Time stands still unless a test moves it.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime, timedelta
from itertools import chain, groupby
from types import TracebackType
from typing import Any, Literal, Self, TypeVar, Unpack

from tailrace.core.declare.app import App
from tailrace.core.declare.plan import InputPlan
from tailrace.core.declare.topic import Topic
from tailrace.core.durations import duration, to_ms
from tailrace.core.engine.task import TaskSettings
from tailrace.core.errors import TailraceError, UsageError
from tailrace.core.records import Output
from tailrace.runtime.replaying import seldom_collected
from tailrace.runtime.topics import prepare_topics
from tailrace.testing import faults
from tailrace.testing.emitted import Emitted
from tailrace.testing.exploring.exploration import ExploreOptions, explore_or_raise
from tailrace.testing.exploring.feed import feed_of, feed_of_log
from tailrace.testing.exploring.report import ExploreReport
from tailrace.testing.memory_log import MemoryLog
from tailrace.testing.replaying import ReplayReport, replay
from tailrace.testing.service import Service, StateKind
from tailrace.testing.view import View

E = TypeVar("E")


class Harness(View):
    """Runs an app in a test. A context manager; ``close`` does the same.

    ``partitions`` is the app's number unless given. ``now_ms`` is where the clock stands at the beginning. ``checked``
    looks for state that is changed outside its own handlers (StateLeakError), ``reload`` decodes every touched
    instance anew after each handler; neither changes a result. ``slice_size`` is how many records a partition takes
    at once. Every call commits at its end, and again until no message is on its way; ``commit_every`` adds commits after
    so many records, or, as ``"manual"``, leaves them all to ``commit``. ``state`` says where state is kept: in memory
    it is lost in a crash and restored from the changelog, with ``"rocksdb"`` it is in a temporary folder. ``settings`` are
    the limits of a task (its cache, timers in memory, firings at once), which change no result either.

    A handler that fails where the app stops on failures makes the call raise its HandlerError; the service is down then,
    with everything since its last commit undone, and comes up again with the next call.
    """

    def __init__(
        self,
        app: App,
        *,
        partitions: int | None = None,
        now_ms: int | datetime = 0,
        checked: bool = True,
        reload: bool = False,
        slice_size: int = 1_000,
        commit_every: int | Literal["manual"] | None = None,
        state: StateKind = "memory",
        settings: TaskSettings | None = None,
    ) -> None:
        if slice_size < 1 or (isinstance(commit_every, int) and commit_every < 1):
            raise UsageError("slice_size and commit_every are numbers of records", mend="Give 1 or more.")
        plan = app.plan() if partitions is None else replace(app.plan(), partitions=partitions)
        log = MemoryLog()
        prepare_topics(log, plan, create_declared=True)
        self._now_ms = to_ms(now_ms)
        self._task_settings = replace(settings or TaskSettings(), reload=reload, checked=checked)
        service = Service(
            plan,
            log,
            self._read_clock,
            state=state,
            settings=self._task_settings,
            slice_size=slice_size,
            commit_every=commit_every if isinstance(commit_every, int) else None,
        )
        super().__init__(plan, log, service)
        self._manual = commit_every == "manual"
        self._inputs = {one.name: one for one in plan.inputs}
        self._told = 0
        self._ended = False
        self._closed = False
        self.recover()

    @property
    def now(self) -> int:
        """Where the clock stands, in milliseconds since the epoch."""
        return self._now_ms

    # --- input

    def send(self, topic: Topic[E, Any], *events: E, timestamp_ms: int | datetime | None = None) -> Emitted:
        """Append events to a topic, and let everything happen that follows from them; returns what was emitted.

        Their records bear ``timestamp_ms``, the clock's time unless given. An event without a key is appended without
        one. Raises UsageError for a topic that no handler of the app takes, or an event that is not of its type.
        """
        records = self._records(topic, events, timestamp_ms)
        with self._driving():
            self.log.append_all(records)
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
        """Append a record as it is, such as one that cannot be decoded; otherwise as ``send``.

        It goes where its key says, or to ``partition``, as a producer with another partitioner would have it.
        """
        name, at_ms = self._input(topic).name, self._timestamp(timestamp_ms)
        with self._driving():
            self.log.append(name, key, value, at_ms, partition=partition)
            self._settle()
        return self._news()

    def advance_watermark(self, to: int | datetime) -> Emitted:
        """Raise the watermark of every input from outside, in every partition, as if its producers had published it.

        What the app writes and reads itself follows, commit by commit.

        Raises UsageError if no input of the app has a watermark.
        """
        to_watermark_ms = to_ms(to)
        counting = [one for one in self.plan.inputs if one.moves and not one.own]
        if not counting:
            raise UsageError(
                f"no input of the app {self.plan.app!r} has a watermark",
                mend="Declare one without watermark=False.",
            )
        with self._driving():
            self._settle()
            self._service.read_clock()
            for one in counting:
                self._service.raise_watermark(one.index, to_watermark_ms)
            self._settle()
        return self._news()

    def advance_clock(self, to: int | datetime) -> Emitted:
        """Set the clock. Timers of processing time fire, and inputs fall idle, as they are due.

        It may be set back, as clocks sometimes are; handlers never see it go back.
        """
        self._now_ms = to_ms(to)
        with self._driving():
            self._settle()
        return self._news()

    def advance_clock_by(self, time: str | int | timedelta) -> Emitted:
        """Move the clock on, by milliseconds or a duration such as ``"1s"``; otherwise as ``advance_clock``."""
        return self.advance_clock(self._now_ms + duration(time))

    def fall_idle(self, topic: Topic[Any, Any]) -> Emitted:
        """Have an input fall idle now, in every partition: its watermark holds nobody back until it wakes."""
        number = self._input(topic).index
        with self._driving():
            self._settle()
            self._service.read_clock()
            self._service.fall_idle(number)
            self._settle()
        return self._news()

    def end_of_input(self) -> Emitted:
        """End all inputs: once all messages are delivered, the watermark rises to the latest timer then pending.

        Timers set meanwhile for later stay pending, and so do those of processing time. Commits, whatever
        ``commit_every`` says. Nothing can be sent afterwards.
        """
        with self._driving():
            self._service.end()
            self._ended = True
        return self._news()

    def run(self, items: Iterable[faults.Item]) -> Emitted:
        """Feed a list of events and faults, one after the other; returns what became visible in all of it.

        Unlike ``send``, a list commits only where it says so (COMMIT, RELOAD, REBALANCE, END, or by
        ``commit_every``), and at its end unless commits are manual. So a CRASH has something to lose.
        """
        start, manual = self._told, self._manual
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
        self._told = start
        return self._news()

    def _do(self, item: faults.Item) -> None:
        match item:
            case faults.At(timestamp_ms, topic, event):
                self.send(topic, event, timestamp_ms=timestamp_ms)
            case faults.Clock(now_ms):
                self.advance_clock(now_ms)
            case faults.Watermark(watermark_ms):
                self.advance_watermark(watermark_ms)
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
                    f"{item!r} is no item of a run",
                    mend="Give (topic, event) pairs, and faults from tailrace.testing.",
                )

    # --- life

    def commit(self) -> Emitted:
        """Take what there is to take, and commit it; returns what became visible.

        It is what ``commit_every="manual"`` is for. Messages that became visible are handled by the next call.
        """
        with self._driving():
            self._service.take_all()
            self._service.commit()
        return self._news()

    def crash(self) -> None:
        """Kill the service: what was not committed is gone. A call that raises an error from the service does it, too."""
        self._service.kill()

    def recover(self) -> None:
        """Start a service that is down: restore every partition. Every call does so where it is needed."""
        if self._closed:
            raise UsageError("the harness is closed", mend="Use it inside of its with block.")
        if not self._service.up:
            with self._killing():
                self._service.start()

    def replay(self) -> ReplayReport:
        """Do everything that was committed again, along the tape and from nothing, and compare byte by byte.

        Raises ReplayDivergedError, which names the first difference, in state, outputs or positions.
        """
        self.recover()
        return replay(self.plan, self.log, self._service.stores, self._task_settings)

    def explore(
        self, history: Iterable[faults.Item] | None = None, **options: Unpack[ExploreOptions]
    ) -> ExploreReport:
        """Run a history of events under many schedules, and compare what each leaves, key by key.

        ``history`` consists of (topic, event) pairs and ``At``; by default it is what was sent to this harness so far.
        Nothing happens to the harness itself. ``ExploreOptions`` lists the options.

        Raises:
            ScheduleDependentError: Something depends on the schedule, and the app declares nothing of the kind.
        """
        if history is None:
            feed = feed_of_log(self.plan, self.log)
        else:
            sent = (self._records(topic, (event,), at) for topic, event, at in map(faults.sent, history))
            feed = feed_of(self.plan, chain.from_iterable(sent))
        return explore_or_raise(self.plan, feed, self._now_ms, **options)

    def close(self) -> None:
        """Let go of everything. May be called again."""
        if not self._closed:
            self._closed = True
            self._service.close()

    @property
    def reload(self) -> bool:
        """Whether every touched instance is decoded anew after each handler."""
        return self._task_settings.reload

    @property
    def closed(self) -> bool:
        """Whether it has been closed."""
        return self._closed

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # --- how

    def _read_clock(self) -> int:
        return self._now_ms

    def _records(
        self, topic: Topic[Any, Any], events: Iterable[Any], timestamp_ms: int | datetime | None
    ) -> list[Output]:
        self._input(topic)
        name, encode, encode_key, types = topic.name, topic.encode, topic.encode_key, topic.types
        at_ms = self._timestamp(timestamp_ms)
        records: list[Output] = []
        for event in events:
            if type(event) not in types:
                raise UsageError(
                    f"{type(event).__name__} was sent to {name!r}, which holds {topic.type_name}",
                    mend="Send events of the declared type, or bytes by send_raw.",
                )
            try:
                key = encode_key(event)
            except (TailraceError, AttributeError, TypeError, ValueError):
                key = None  # as from a producer that sends it all the same
            records.append(Output(name, key, encode(event), at_ms))
        return records

    def _input(self, topic: object) -> InputPlan:
        if not isinstance(topic, Topic):
            raise UsageError(
                f"{topic!r} is no topic", mend="Give a topic of the app, as app.topic returned it."
            )
        if self.plan.topics.get(topic.name) is not topic:
            raise UsageError(
                f"the topic {topic.name!r} of the app {topic.app!r} is none of the app {self.plan.app!r}",
                mend=f"Its topics are {', '.join(self.plan.outputs) or 'none'}.",
            )
        found = self._inputs.get(topic.name)
        if found is None:
            raise UsageError(
                f"no handler of the app {self.plan.app!r} takes the topic {topic.name!r}",
                mend=f"Its inputs are {', '.join(self._inputs) or 'none'}.",
            )
        if self._ended:
            raise UsageError(f"the input {topic.name!r} has ended", mend="Send before end_of_input.")
        return found

    def _timestamp(self, given: int | datetime | None) -> int:
        return self._now_ms if given is None else to_ms(given)

    def _settle(self) -> None:
        """Let everything happen that can: with commits, or up to where one would be needed."""
        if self._manual:
            self._service.take_all()
        else:
            self._service.commit_until_quiet()

    def _restart(self, *, keep_state: bool) -> None:
        with self._driving():
            self._service.take_all()
            self._service.stop(keep_state=keep_state)
            self._service.start()

    def _news(self) -> Emitted:
        news = Emitted(self._service.visible[self._told :])
        self._told = len(self._service.visible)
        return news

    @contextmanager
    def _driving(self) -> Generator[None]:
        """Drives the service: it is up before, and down if anything fails."""
        self.recover()
        with self._killing(), seldom_collected():
            yield

    @contextmanager
    def _killing(self) -> Generator[None]:
        try:
            yield
        except BaseException:
            self._service.kill()
            raise


def _topic_of(item: faults.Item) -> Topic[Any, Any] | None:
    """The topic of an event, by which neighbours are sent together; None for anything else."""
    return item[0] if isinstance(item, tuple) and len(item) == 2 else None
